//! Gateway and worker in one process. The one file that knows both.

use std::sync::Arc;
use std::time::Duration;

use rollcall_shared::config::{Config, Environment};
use rollcall_shared::ids::{ServerId, TenantId};
use rollcall_shared::store::membership::{LocalMembership, Member, Membership};
use rollcall_shared::task::Tasks;
use rollcall_shared::telemetry::Metrics;
use rollcall_shared::tenants::Tenants;
use rollcall_shared::wire::{Dialer, Failure, LinkServer, VERSIONS, WireKeys, WorkerLink};
use rollcall_worker::{Worker, WorkerSettings};
use tokio::net::TcpListener;

use crate::app::{DRAIN, Gateway, Sockets, StartError, enrol_file_tenants, open_store};
use crate::workers::Workers;

/// How gateway and worker reach one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// A function call.
    Direct,
    /// The byte codec over a loopback socket, as two processes would.
    Socket,
}

/// A whole system in one process.
pub struct Standalone {
    pub gateway: Gateway,
    worker: Worker,
    link: Arc<dyn WorkerLink>,
    tasks: Tasks,
}

impl Standalone {
    /// Starts to serve. Servers connect on first use, or through `connect`.
    pub async fn start(
        mut config: Config,
        environment: Environment,
        link: Link,
        tasks: Tasks,
    ) -> Result<Self, StartError> {
        let metrics = Arc::new(Metrics::new().map_err(StartError::Metrics)?);
        let sockets = Sockets::bind(&config, &metrics, &tasks).await?;
        let documents = open_store(&config.store, &tasks).await?;
        enrol_file_tenants(&*documents, &mut config.tenants).await?;
        let tenants = Tenants::new(documents, std::mem::take(&mut config.tenants), metrics.clone());
        let membership: Arc<dyn Membership> = Arc::new(LocalMembership::default());
        let address = ([127, 0, 0, 1], 0).into();
        let failed = |source| StartError::Listen { what: "worker.listen", address, source };
        let socket = match link {
            Link::Direct => None,
            Link::Socket => Some(TcpListener::bind(address).await.map_err(failed)?),
        };
        let among = socket.as_ref().map(|socket| {
            let address = socket.local_addr().map(|address| address.to_string()).unwrap_or_default();
            let name = "standalone".to_owned();
            let member = Member { incarnation: 0, name, address, weight: 1, draining: false, wire: VERSIONS };
            (membership.clone(), member)
        });
        let worker = Worker::new(WorkerSettings {
            among,
            tenants: tenants.clone(),
            environment,
            networks: config.upstream_networks.clone(),
            metrics: metrics.clone(),
            tasks: tasks.clone(),
        })
        .map_err(StartError::Certificates)?;
        let link: Arc<dyn WorkerLink> = match socket {
            None => Arc::new(worker.clone()),
            Some(socket) => over_socket(&worker, membership, socket, &metrics, &tasks).await,
        };
        let gateway = Gateway::start(config, sockets, tenants, link.clone(), metrics, tasks.clone()).await?;
        Ok(Self { gateway, worker, link, tasks })
    }

    /// Another gateway node over the same store and the same worker. It shares nothing else with the first, as if it were
    /// another process.
    pub async fn another_gateway(&self, mut config: Config) -> Result<Gateway, StartError> {
        let metrics = Arc::new(Metrics::new().map_err(StartError::Metrics)?);
        config.ops = None;
        let sockets = Sockets::bind(&config, &metrics, &self.tasks).await?;
        let documents = self.gateway.app.live.tenants().documents().clone();
        enrol_file_tenants(&*documents, &mut config.tenants).await?;
        let tenants = Tenants::new(documents, std::mem::take(&mut config.tenants), metrics.clone());
        Gateway::start(config, sockets, tenants, self.link.clone(), metrics, self.tasks.clone()).await
    }

    /// The servers of the configuration file: whom a first request would wait for.
    pub async fn file_servers(&self) -> Vec<(TenantId, ServerId)> {
        let tenants = self.gateway.app.live.tenants();
        let mut out = Vec::new();
        for id in tenants.file_tenants() {
            if let Ok(Some(tenant)) = tenants.get(id).await {
                out.extend(tenant.docs().servers.keys().map(|server| (id.clone(), server.clone())));
            }
        }
        out
    }

    /// Connects a server and lists it.
    pub async fn connect(&self, tenant: &TenantId, server: &ServerId) -> Result<(), Failure> {
        self.gateway.app.live.refresh(tenant, server).await
    }

    /// Stops: no new connections, calls in flight finish, children end. Says whether everything ended in time.
    pub async fn stop(self) -> bool {
        self.stop_within(DRAIN).await
    }

    pub async fn stop_within(self, patience: Duration) -> bool {
        let Self { gateway, worker, tasks, .. } = self;
        let health = gateway.health.clone();
        drop(gateway);
        let left = tasks.close(patience).await;
        // Children must be asked to end before their readers can.
        let (_, ended) = tokio::join!(worker.close(), tasks.drain(patience));
        if let Some(health) = health {
            health.close().await;
        }
        left && ended
    }
}

/// The worker behind a socket of its own, found by its lease as it would be among several.
async fn over_socket(
    worker: &Worker,
    membership: Arc<dyn Membership>,
    listener: TcpListener,
    metrics: &Arc<Metrics>,
    tasks: &Tasks,
) -> Arc<dyn WorkerLink> {
    let keys = WireKeys::of_this_process();
    let server = LinkServer {
        link: Arc::new(worker.clone()),
        keys: keys.clone(),
        tls: None,
        versions: VERSIONS,
        tasks: tasks.clone(),
    };
    tasks.spawn_visit("worker", server.serve(listener));
    let dialer = Dialer { keys, tls: None, versions: VERSIONS, tasks: tasks.clone() };
    Arc::new(Workers::new(membership, dialer, metrics.clone()))
}
