//! The worker as a whole: what its parts share, and the link that a gateway calls.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ipnet::IpNet;
use rollcall_shared::config::Environment;
use rollcall_shared::schema::Schemas;
use rollcall_shared::store::membership::{Member, Membership};
use rollcall_shared::task::Tasks;
use rollcall_shared::telemetry::Metrics;
use rollcall_shared::tenants::Tenants;
use rollcall_shared::wire::{Envelope, Final, Incarnate, Interim, Route, WorkerLink};
use tokio_util::sync::CancellationToken;

use crate::call::{self, Conversations, Topics};
use crate::catalog::Catalogs;
use crate::ownership::Ownership;
use crate::upstream::net::Clients;
use crate::upstream::pool::Pool;

/// What a worker is told at start.
pub struct WorkerSettings {
    pub tenants: Arc<Tenants>,
    /// Where `${NAME}` in a server's settings is read.
    pub environment: Environment,
    /// Networks, beyond the public internet, that URLs written over the admin API may reach.
    pub networks: Vec<IpNet>,
    /// The other workers, and how gateways find this one; none where there is no other.
    pub among: Option<(Arc<dyn Membership>, Member)>,
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
    pub(crate) schemas: Schemas,
    pub(crate) ownership: Ownership,
    /// Cancelled once the lease was given back.
    left: CancellationToken,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tasks: Tasks,
}

impl Worker {
    /// Fails only where the machine has no root certificates to verify upstreams with.
    pub fn new(settings: WorkerSettings) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            clients: Clients::new(settings.networks, &settings.tasks)?,
            tenants: settings.tenants,
            environment: settings.environment,
            pool: Pool::default(),
            catalogs: Catalogs::default(),
            conversations: Conversations::default(),
            topics: Topics::default(),
            schemas: Schemas::default(),
            left: CancellationToken::new(),
            ownership: match settings.among {
                Some((membership, member)) => Ownership::among(membership, member),
                None => Ownership::alone(),
            },
            metrics: settings.metrics,
            tasks: settings.tasks,
        });
        let owner = shared.clone();
        // Until the worker has left, also while it drains.
        let leaving = shared.left.clone();
        shared.tasks.spawn("lease", async move {
            tokio::select! {
                () = leaving.cancelled() => {}
                () = owner.ownership.beat_forever(&owner) => {}
            }
        });
        let verifier = shared.clone();
        shared.tasks.spawn_until_stop("claims", async move { verifier.ownership.verify_forever(&verifier).await });
        let sweeper = shared.clone();
        shared.tasks.spawn_until_stop("idle upstreams", async move { sweeper.pool.sweep_forever(&sweeper).await });
        Ok(Self { shared })
    }

    /// Whether it may act on what it owns: its lease holds.
    pub fn may_act(&self) -> bool {
        self.shared.ownership.may_act()
    }

    /// Takes no new placements, and lets go of what only one may hold as soon as nobody uses it.
    pub async fn drain(&self, patience: Duration) {
        self.shared.ownership.drain().await;
        tokio::time::timeout(patience, self.shared.pool.let_go(&self.shared)).await.ok();
    }

    /// Ends every upstream connection; children are given time to end by themselves. Then the lease is given back.
    pub async fn close(&self) {
        self.shared.conversations.close();
        self.shared.pool.close_all(&self.shared).await;
        self.shared.clients.close();
        self.shared.left.cancel();
        self.shared.ownership.leave().await;
    }
}

impl Incarnate for Worker {
    fn incarnation(&self) -> u64 {
        self.shared.ownership.incarnation()
    }
}

impl WorkerLink for Worker {
    fn send(&self, route: Route, envelope: Envelope, interim: Interim) -> BoxFuture<'static, Final> {
        let incarnation = self.incarnation();
        if matches!(route, Route::Run(run) if run != incarnation) {
            return async { call::no_such_call() }.boxed();
        }
        interim.is_served_by(incarnation);
        call::serve(self.shared.clone(), envelope, interim).boxed()
    }
}
