//! The worker as a whole: what its parts share, and the link that a gateway calls.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ipnet::IpNet;
use rollcall_shared::config::Environment;
use rollcall_shared::ids::{ServerId, TenantId};
use rollcall_shared::task::Tasks;
use rollcall_shared::telemetry::Metrics;
use rollcall_shared::tenants::Tenants;
use rollcall_shared::wire::{Envelope, Failure, Final, Interim, WorkerLink};

use crate::call;
use crate::catalog::Catalogs;
use crate::upstream::net::Clients;
use crate::upstream::pool::Pool;

/// What a worker is told at start.
pub struct WorkerSettings {
    pub tenants: Arc<Tenants>,
    /// Where `${NAME}` in a server's settings is read.
    pub environment: Environment,
    /// Networks, beyond the public internet, that URLs written over the admin API may reach.
    pub networks: Vec<IpNet>,
    pub metrics: Arc<Metrics>,
    pub tasks: Tasks,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Worker {
    pub(crate) shared: Arc<Shared>,
}

/// What the parts of a worker share.
pub(crate) struct Shared {
    pub(crate) tenants: Arc<Tenants>,
    pub(crate) environment: Environment,
    pub(crate) clients: Clients,
    pub(crate) pool: Pool,
    pub(crate) catalogs: Catalogs,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tasks: Tasks,
}

impl Worker {
    /// Fails only where the machine has no root certificates to verify upstreams with.
    pub fn new(settings: WorkerSettings) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            clients: Clients::new(settings.networks)?,
            tenants: settings.tenants,
            environment: settings.environment,
            pool: Pool::default(),
            catalogs: Catalogs::default(),
            metrics: settings.metrics,
            tasks: settings.tasks,
        });
        let sweeper = shared.clone();
        shared.tasks.spawn_until_stop("idle upstreams", async move { sweeper.pool.sweep_forever(&sweeper).await });
        Ok(Self { shared })
    }

    /// Ends every upstream connection; children are given time to end by themselves.
    pub async fn close(&self) {
        self.shared.pool.close_all(&self.shared.metrics).await;
    }
}

impl WorkerLink for Worker {
    fn call(&self, envelope: Envelope, interim: Interim) -> BoxFuture<'static, Final> {
        call::call(self.shared.clone(), envelope, interim).boxed()
    }

    fn refresh(&self, tenant: TenantId, server: ServerId) -> BoxFuture<'static, Result<(), Failure>> {
        let shared = self.shared.clone();
        async move { shared.catalogs.refresh(&shared, &tenant, &server).await }.boxed()
    }
}
