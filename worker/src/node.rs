//! A worker among others: its lease, its link, its drain.

use std::sync::Arc;
use std::time::Duration;

use rollcall_shared::config::{Config, Environment, Store};
use rollcall_shared::ops::Ops;
use rollcall_shared::store::Documents;
use rollcall_shared::store::membership::{Member, Membership};
use rollcall_shared::store::redis::RedisStore;
use rollcall_shared::task::Tasks;
use rollcall_shared::telemetry::Metrics;
use rollcall_shared::tenants::Tenants;
use rollcall_shared::wire::{LinkServer, VERSIONS, WireKeys, WireTls};
use tokio::net::TcpListener;

use crate::{Worker, WorkerSettings};

/// Why a worker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Configuration(&'static str),
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error(transparent)]
    Store(#[from] rollcall_shared::store::StoreError),
    #[error("metrics: {0}")]
    Metrics(String),
}

/// See the module.
pub struct Node {
    /// Where its link listens.
    pub address: std::net::SocketAddr,
    worker: Worker,
    health: Option<Ops>,
    delay: Duration,
    patience: Duration,
    tasks: Tasks,
}

fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> StartError {
    let what = what.into();
    move |source| StartError::Io { what, source }
}

impl Node {
    /// Starts to serve. The store may come later: meanwhile the worker is alive, not ready, and in nobody's view.
    pub async fn start(mut config: Config, environment: Environment, tasks: Tasks) -> Result<Self, StartError> {
        let wrong = StartError::Configuration;
        let Store::Redis { settings, lease } = &config.store else {
            return Err(wrong("`store`: a worker shares it with gateways: redis://HOST:PORT"));
        };
        let here = config.worker.as_ref().ok_or(wrong("`worker` is missing: {listen: ADDRESS}"))?;
        let keys =
            WireKeys::new(&config.keys.wire).ok_or(wrong("`keys.wire`: gateways and workers need the same key"))?;
        let tls = match &here.tls {
            Some(tls) => Some(WireTls::read(&tls.ca_file, &tls.cert_file, &tls.key_file).map_err(io("`worker.tls`"))?),
            None => None,
        };
        let metrics = Arc::new(Metrics::new().map_err(StartError::Metrics)?);
        let listener = TcpListener::bind(here.listen).await.map_err(io(format!("worker.listen {}", here.listen)))?;
        let address = listener.local_addr().map_err(io("worker.listen"))?;
        let health = match config.ops {
            Some(ops) => {
                let listener = TcpListener::bind(ops).await.map_err(io(format!("ops.listen {ops}")))?;
                Some(Ops::start(listener, metrics.clone(), &tasks))
            }
            None => None,
        };
        let advertise = here.advertise.clone().unwrap_or_else(|| address.to_string());
        let name = here.name.clone().unwrap_or_else(|| advertise.clone());
        let member =
            Member { incarnation: 0, name, address: advertise, weight: here.weight, draining: false, wire: VERSIONS };
        let store = RedisStore::open_with_lease((**settings).clone(), *lease, &tasks)?;
        let (documents, membership): (Arc<dyn Documents>, Arc<dyn Membership>) =
            (Arc::new(store.clone()), Arc::new(store));
        let tenants = Tenants::new(documents, std::mem::take(&mut config.tenants), metrics.clone());
        tenants.follow(&tasks);
        let worker = Worker::new(WorkerSettings {
            tenants: tenants.clone(),
            environment,
            networks: config.upstream_networks.clone(),
            among: Some((membership, member)),
            metrics,
            tasks: tasks.clone(),
        })
        .map_err(io("no root certificates on this machine"))?;
        let server = LinkServer { link: Arc::new(worker.clone()), keys, tls, versions: VERSIONS, tasks: tasks.clone() };
        tasks.spawn_visit("gateways", server.serve(listener));
        if let Some(health) = &health {
            let ready = worker.clone();
            health.ready_when(move || {
                tenants.check_all().map_err(|error| error.to_string())?;
                if ready.may_act() { Ok(()) } else { Err("no lease".to_owned()) }
            });
        }
        let (delay, patience) = (config.drain.delay, config.drain.patience);
        Ok(Self { address, worker, health, delay, patience, tasks })
    }

    /// Ends: gateways place nothing new here, what only one may hold moves as soon as nobody uses it, calls in flight
    /// finish. Says whether everything did in time.
    pub async fn drain(self) -> bool {
        let Self { worker, health, delay, patience, tasks, .. } = self;
        tasks.draining().cancel();
        // A gateway that was not told yet looks by itself within the delay; until then its calls are served.
        tokio::join!(worker.drain(patience), tokio::time::sleep(delay));
        let left = tasks.close(patience).await;
        // Children must be asked to end before their readers can.
        let (_, ended) = tokio::join!(worker.close(), tasks.drain(patience));
        if let Some(health) = health {
            health.close().await;
        }
        left && ended
    }
}
