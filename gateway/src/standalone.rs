//! Gateway and worker in one process. The one file that knows both.

use std::sync::Arc;
use std::time::Duration;

use rollcall_shared::config::{Config, Environment};
use rollcall_shared::ids::{ServerId, TenantId};
use rollcall_shared::task::Tasks;
use rollcall_shared::telemetry::Metrics;
use rollcall_shared::tenants::Tenants;
use rollcall_shared::wire::{Failure, RemoteLink, WorkerLink, serve_link};
use rollcall_worker::{Worker, WorkerSettings};
use tokio::net::TcpListener;

use crate::app::{DRAIN, Gateway, Sockets, StartError, enrol_file_tenants, open_store};

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
    pub async fn start(mut config: Config, environment: Environment, link: Link) -> Result<Self, StartError> {
        let sockets = Sockets::bind(&config).await?;
        let documents = open_store(&config.store).await?;
        enrol_file_tenants(&*documents, &mut config.tenants).await?;
        let metrics = Arc::new(Metrics::new().map_err(StartError::Metrics)?);
        let tasks = Tasks::new();
        let tenants = Tenants::new(documents, std::mem::take(&mut config.tenants), metrics.clone());
        let worker = Worker::new(WorkerSettings {
            tenants: tenants.clone(),
            environment,
            networks: config.upstream_networks.clone(),
            metrics: metrics.clone(),
            tasks: tasks.clone(),
        })
        .map_err(StartError::Certificates)?;
        let link: Arc<dyn WorkerLink> = match link {
            Link::Direct => Arc::new(worker.clone()),
            Link::Socket => over_socket(&worker, &tasks).await?,
        };
        let gateway = Gateway::start(config, sockets, tenants, link.clone(), metrics, tasks.clone())?;
        Ok(Self { gateway, worker, link, tasks })
    }

    /// Another gateway node over the same store and the same worker. It shares nothing else with the first, as if it were
    /// another process.
    pub async fn another_gateway(&self, mut config: Config) -> Result<Gateway, StartError> {
        let sockets = Sockets::bind(&config).await?;
        let documents = self.gateway.app.live.tenants().documents().clone();
        enrol_file_tenants(&*documents, &mut config.tenants).await?;
        let metrics = Arc::new(Metrics::new().map_err(StartError::Metrics)?);
        let tenants = Tenants::new(documents, std::mem::take(&mut config.tenants), metrics.clone());
        Gateway::start(config, sockets, tenants, self.link.clone(), metrics, self.tasks.clone())
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
        drop(gateway);
        let drained = tasks.drain(patience);
        tokio::pin!(drained);
        // Children must be asked to end before their readers can.
        let (_, drained) = tokio::join!(worker.close(), drained);
        drained
    }
}

async fn over_socket(worker: &Worker, tasks: &Tasks) -> Result<Arc<dyn WorkerLink>, StartError> {
    let address = ([127, 0, 0, 1], 0).into();
    let failed = |source| StartError::Listen { what: "worker.listen", address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let mut key = [0; 32];
    for half in key.chunks_mut(16) {
        half.copy_from_slice(&rollcall_shared::digest::random());
    }
    tasks.spawn("worker", serve_link(listener, Arc::new(worker.clone()), key, tasks.clone()));
    Ok(Arc::new(RemoteLink::new(bound, key, worker.incarnation())))
}
