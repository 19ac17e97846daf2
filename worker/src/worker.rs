//! The worker as a whole: what its parts share, and the link that a gateway calls.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ipnet::IpNet;
use rollcall_shared::config::Environment;
use rollcall_shared::task::Tasks;
use rollcall_shared::telemetry::Metrics;
use rollcall_shared::tenants::Tenants;
use rollcall_shared::wire::{Envelope, Final, Interim, WorkerLink};

use crate::call::{self, Conversations, Topics};
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
    pub(crate) conversations: Conversations,
    pub(crate) topics: Topics,
    /// Tells this run of the worker from others.
    incarnation: u64,
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
            conversations: Conversations::default(),
            topics: Topics::default(),
            incarnation: rollcall_shared::digest::random().first_chunk().map_or(0, |half| u64::from_be_bytes(*half)),
            metrics: settings.metrics,
            tasks: settings.tasks,
        });
        let sweeper = shared.clone();
        shared.tasks.spawn_until_stop("idle upstreams", async move { sweeper.pool.sweep_forever(&sweeper).await });
        Ok(Self { shared })
    }

    /// Ends every upstream connection; children are given time to end by themselves.
    pub async fn close(&self) {
        self.shared.conversations.close();
        self.shared.pool.close_all(&self.shared.metrics).await;
    }
}

impl WorkerLink for Worker {
    fn incarnation(&self) -> u64 {
        self.shared.incarnation
    }

    fn send(&self, envelope: Envelope, interim: Interim) -> BoxFuture<'static, Final> {
        call::serve(self.shared.clone(), envelope, interim).boxed()
    }
}
