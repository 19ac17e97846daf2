//! The only wiring: a configuration and a way to workers become a gateway that serves.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use rollcall_shared::config::{Admin, Config, FileTenant, Store};
use rollcall_shared::ids::TenantId;
use rollcall_shared::limits;
use rollcall_shared::ops::Ops;
use rollcall_shared::schema::Schemas;
use rollcall_shared::store::redis::{RedisSettings, RedisStore};
use rollcall_shared::store::{Documents, FileStore, MemoryStore, StoreError};
use rollcall_shared::task::Tasks;
use rollcall_shared::telemetry::Metrics;
use rollcall_shared::tenants::Tenants;
use rollcall_shared::wire::WorkerLink;
use tokio::net::TcpListener;
use url::Url;

use crate::admin;
use crate::call::{Audit, Load};
use crate::handle::Seals;
use crate::http;
use crate::identity::Issuers;
use crate::live::Live;
use crate::mcp::listen::Standing;
use crate::registry::enrol::{EnrolError, enrol};
use crate::surface::changes::Changes;
use crate::surface::list::Lists;
use crate::surface::search::found::Indices;
use crate::surface::spec::SpecCache;

/// What every request of a gateway node reaches.
pub struct App {
    pub(crate) public_url: Url,
    pub(crate) hosts: HashSet<String>,
    pub(crate) origins: HashSet<String>,
    pub(crate) issuers: Issuers,
    pub(crate) live: Arc<Live>,
    pub(crate) link: Arc<dyn WorkerLink>,
    pub(crate) load: Arc<Load>,
    pub(crate) lists: Lists,
    pub(crate) specs: SpecCache,
    pub(crate) indices: Indices,
    pub(crate) schemas: Schemas,
    pub(crate) changes: Changes,
    pub(crate) audit: Audit,
    pub(crate) seals: Seals,
    pub(crate) standing: Standing,
    pub(crate) admin: Option<Admin>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tasks: Tasks,
}

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{what} {address}: {source}")]
    Listen { what: &'static str, address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("no root certificates on this machine: {0}")]
    Certificates(std::io::Error),
    #[error("metrics: {0}")]
    Metrics(String),
    #[error("{0}")]
    Configuration(String),
}

/// The sockets of a node, bound before anything else is done.
pub struct Sockets {
    agents: TcpListener,
    admin: Option<TcpListener>,
    ops: Option<(SocketAddr, Ops)>,
}

async fn bind(what: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|source| StartError::Listen { what, address, source })
}

impl Sockets {
    /// Binds them all. Operations are served at once: a process that waits for its store is alive.
    pub async fn bind(config: &Config, metrics: &Arc<Metrics>, tasks: &Tasks) -> Result<Self, StartError> {
        let agents = bind("listen", config.listen).await?;
        let admin = match &config.admin {
            Some(admin) => Some(bind("admin.listen", admin.listen).await?),
            None => None,
        };
        let ops = match config.ops {
            Some(address) => {
                let listener = bind("ops.listen", address).await?;
                let address = listener.local_addr().map_err(StartError::Certificates)?;
                Some((address, Ops::start(listener, metrics.clone(), tasks)))
            }
            None => None,
        };
        Ok(Self { agents, admin, ops })
    }
}

/// A gateway that serves. Its sockets' addresses are known, even where a port was left to the system.
pub struct Gateway {
    pub app: Arc<App>,
    pub agents: SocketAddr,
    pub admin: Option<SocketAddr>,
    pub ops: Option<SocketAddr>,
    pub(crate) health: Option<Ops>,
}

/// Opens the configured store.
pub async fn open_store(store: &Store, tasks: &Tasks) -> Result<Arc<dyn Documents>, StoreError> {
    match store {
        Store::Redis { settings, lease } => {
            let store = RedisStore::open_with_lease(RedisSettings::clone(settings), *lease, tasks)?;
            store.connected(limits::STORE_TIMEOUT).await?;
            Ok(Arc::new(store))
        }
        Store::Memory => Ok(Arc::new(MemoryStore::new())),
        Store::File(folder) => {
            let folder = folder.clone();
            let opened = tokio::task::spawn_blocking(move || FileStore::open(&folder)).await;
            Ok(Arc::new(opened.map_err(|e| StoreError::Unavailable(e.to_string()))??))
        }
    }
}

/// Allots aliases to the servers of the file. Two that claim one name break their tenant alone.
pub async fn enrol_file_tenants(
    documents: &dyn Documents,
    tenants: &mut BTreeMap<TenantId, FileTenant>,
) -> Result<(), StoreError> {
    for (id, tenant) in tenants.iter_mut() {
        for api in &tenant.apis {
            api.remarks
                .iter()
                .for_each(|what| tracing::warn!(tenant = %id, api = %api.api.id, what, "an imported API"));
        }
        if tenant.broken.is_some() {
            continue;
        }
        let reserved = tenant.tools.iter().find(|t| crate::registry::naming::BRIDGE_TOOLS.contains(&t.name.as_str()));
        tenant.broken = match reserved {
            Some(tool) => Some(format!("the tool {} has the name of one of Rollcall's own", tool.name)),
            None => match enrol(documents, id, &tenant.servers).await {
                Ok(_) => None,
                Err(EnrolError::Store(error)) => return Err(error),
                Err(cause) => Some(cause.to_string()),
            },
        };
        if let Some(cause) = &tenant.broken {
            tracing::error!(tenant = %id, cause, "this tenant cannot be served; the others are");
        }
    }
    Ok(())
}

impl Gateway {
    /// Starts to serve. `tenants` and `link` are how this node reaches the store and the workers.
    pub async fn start(
        config: Config,
        sockets: Sockets,
        tenants: Arc<Tenants>,
        link: Arc<dyn WorkerLink>,
        metrics: Arc<Metrics>,
        tasks: Tasks,
    ) -> Result<Self, StartError> {
        let local = |listener: &TcpListener| listener.local_addr().map_err(StartError::Certificates);
        let agents = local(&sockets.agents)?;
        let admin = sockets.admin.as_ref().map(local).transpose()?;
        let ops_address = sockets.ops.as_ref().map(|(address, _)| *address);
        let mut public_url = config.public_url.clone();
        if config.listen.port() == 0 && public_url.port() == Some(0) {
            public_url.set_port(Some(agents.port())).ok();
        }
        let issuers = Issuers::new(config.issuers, metrics.clone(), tasks.clone()).map_err(StartError::Certificates)?;
        let live = Live::new(tenants.clone(), link.clone(), metrics.clone(), tasks.clone());
        let app = Arc::new(App {
            hosts: hosts(&public_url, agents, &config.allowed_hosts),
            origins: origins(&public_url, &config.allowed_origins),
            public_url,
            issuers,
            live,
            link,
            load: Load::new(config.limits, metrics.clone()),
            lists: Lists::default(),
            specs: SpecCache::new(metrics.clone()),
            indices: Indices::default(),
            schemas: Schemas::default(),
            changes: Changes::default(),
            audit: Audit::start(metrics.clone(), &tasks),
            seals: Seals::new(&config.keys.sealing),
            standing: Standing::default(),
            admin: config.admin,
            metrics,
            tasks: tasks.clone(),
        });
        tenants.follow(&tasks);
        in_sync(&tenants).await;
        sweep_store(&tenants, &tasks);
        tasks.spawn_visit("agents", http::serve(sockets.agents, http::agents(app.clone()), tasks.clone()));
        if let Some(listener) = sockets.admin {
            tasks.spawn_visit("admin", http::serve(listener, admin::handler(app.clone()), tasks.clone()));
        }
        let ops = sockets.ops.map(|(_, ops)| ops);
        if let Some(ops) = &ops {
            let tenants = tenants.clone();
            ops.ready_when(move || tenants.check_all().map_err(|error| error.to_string()));
        }
        Ok(Self { app, agents, admin, ops: ops_address, health: ops })
    }

    /// The public address of the MCP endpoint.
    pub fn mcp_url(&self) -> String {
        format!("{}/mcp", self.app.public_url.as_str().trim_end_matches('/'))
    }

    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.app.metrics
    }

    /// Look-ups of the spec cache so far.
    pub fn spec_lookups(&self) -> u64 {
        self.app.specs.lookups()
    }
}

/// Who connects before this node knows what holds is better kept waiting than refused. A part of the store that does not
/// come keeps the others' tenants waiting no longer than this.
async fn in_sync(tenants: &Tenants) {
    let waiting = async {
        while tenants.check_all().is_err() {
            tokio::time::sleep(limits::STORE_BEAT / 4).await;
        }
    };
    tokio::time::timeout(limits::APPLY_TIMEOUT, waiting).await.ok();
}

/// Expired tombstones leave the store once an hour.
fn sweep_store(tenants: &Arc<Tenants>, tasks: &Tasks) {
    const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);
    let documents = tenants.documents().clone();
    tasks.spawn_until_stop("sweep", async move {
        loop {
            if let Err(error) = documents.sweep(rollcall_shared::clock::unix_s()).await {
                tracing::warn!(%error, "the store cannot be swept");
            }
            tokio::time::sleep(HOUR).await;
        }
    });
}

/// Values of Host that are ours: the public one, the socket's own, and what the operator adds.
fn hosts(public_url: &Url, agents: SocketAddr, allowed: &[String]) -> HashSet<String> {
    let mut hosts: HashSet<String> = allowed.iter().cloned().collect();
    if let Some(host) = public_url.host_str() {
        match public_url.port() {
            Some(port) => hosts.insert(format!("{host}:{port}")),
            None => hosts.insert(host.to_owned()),
        };
    }
    hosts.insert(agents.to_string());
    if agents.ip().is_loopback() || agents.ip().is_unspecified() {
        hosts.extend(["localhost", "127.0.0.1", "[::1]"].map(|host| format!("{host}:{}", agents.port())));
    }
    hosts
}

fn origins(public_url: &Url, allowed: &[String]) -> HashSet<String> {
    let mut origins: HashSet<String> = allowed.iter().cloned().collect();
    origins.insert(public_url.origin().ascii_serialization());
    origins
}

/// The bound on how long a drain may take: calls in flight end by their own deadlines, then children are ended.
pub const DRAIN: std::time::Duration = limits::CALL_TIMEOUT.saturating_add(limits::HEAD_TIMEOUT);
