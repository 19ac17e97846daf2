//! A gateway node among others: nothing of its own, workers behind the link, everything shared in the store.

use std::sync::Arc;
use std::time::Duration;

use rollcall_shared::config::{Config, Store};
use rollcall_shared::limits;
use rollcall_shared::ops::Ops;
use rollcall_shared::store::redis::RedisStore;
use rollcall_shared::store::{Documents, StoreError};
use rollcall_shared::task::Tasks;
use rollcall_shared::telemetry::Metrics;
use rollcall_shared::tenants::Tenants;
use rollcall_shared::wire::{Dialer, VERSIONS, WireKeys, WireTls};

use crate::app::{Gateway, Sockets, StartError, enrol_file_tenants};
use crate::workers::Workers;

/// See the module.
pub struct Node {
    pub gateway: Gateway,
    health: Option<Ops>,
    delay: Duration,
    patience: Duration,
    tasks: Tasks,
}

impl Node {
    /// Starts to serve. Waits for the store as long as it takes: meanwhile the node is alive and not ready.
    pub async fn start(mut config: Config, tasks: Tasks) -> Result<Self, StartError> {
        let Store::Redis { settings, lease } = &config.store else {
            return Err(StartError::Configuration(
                "`store`: a gateway shares it with its workers: redis://HOST:PORT".into(),
            ));
        };
        if config.keys.sealing.is_empty() {
            let what = "`keys.sealing`: every gateway needs the same key, to open what another one sealed";
            return Err(StartError::Configuration(what.into()));
        }
        let keys = WireKeys::new(&config.keys.wire)
            .ok_or_else(|| StartError::Configuration("`keys.wire`: gateways and workers need the same key".into()))?;
        let tls = match config.worker.as_ref().and_then(|worker| worker.tls.as_ref()) {
            Some(tls) => {
                Some(WireTls::read(&tls.ca_file, &tls.cert_file, &tls.key_file).map_err(StartError::Certificates)?)
            }
            None => None,
        };
        let metrics = Arc::new(Metrics::new().map_err(StartError::Metrics)?);
        let store = RedisStore::open_with_lease((**settings).clone(), *lease, &tasks)?;
        let sockets = Sockets::bind(&config, &metrics, &tasks).await?;
        store.connected(limits::STORE_RECONNECT_LONGEST).await.ok();
        while let Err(error) = enrol_file_tenants(&store, &mut config.tenants).await {
            wait(&error).await;
        }
        let (documents, membership): (Arc<dyn Documents>, _) = (Arc::new(store.clone()), Arc::new(store));
        let tenants = Tenants::new(documents, std::mem::take(&mut config.tenants), metrics.clone());
        let dialer = Dialer { keys, tls, versions: VERSIONS, tasks: tasks.clone() };
        let workers = Arc::new(Workers::new(membership, dialer, metrics.clone()));
        let (delay, patience) = (config.drain.delay, config.drain.patience);
        let gateway = Gateway::start(config, sockets, tenants, workers, metrics, tasks.clone()).await?;
        let health = gateway.health.clone();
        Ok(Self { gateway, health, delay, patience, tasks })
    }

    /// Ends: not ready at once, but the doors stay open until load balancers have had their time; then calls in flight
    /// finish, and streams end. Says whether everything did in time.
    pub async fn drain(self) -> bool {
        let Self { gateway, health, delay, patience, tasks } = self;
        tasks.draining().cancel();
        tokio::time::sleep(delay).await;
        drop(gateway);
        let drained = tasks.drain(patience).await;
        if let Some(health) = health {
            health.close().await;
        }
        drained
    }
}

/// Before another attempt at the store.
async fn wait(error: &StoreError) {
    if matches!(error, StoreError::NotSeeded) {
        tracing::error!("{error}; a new store is seeded by: rollcall seed --config FILE");
    } else {
        tracing::warn!(%error, "waiting for the store");
    }
    tokio::time::sleep(limits::STORE_RECONNECT_LONGEST).await;
}
