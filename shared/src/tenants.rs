//! Tenants as this node has them: what the file owns joined with what the store holds, kept fresh.
//!
//! Tenants load on first use and are evicted by weight. Each object has one owner, file or store; nothing is merged by
//! field. The applier follows the store's versions: it re-reads exactly what changed and raises the generation of the
//! tenant concerned, which every request compares. A document that cannot be read keeps its last good form; without
//! one it is absent, which can only narrow what is allowed.

mod documents;
mod mcp_sessions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::{Mutex, watch};

use crate::config::FileTenant;
use crate::ids::{BundleName, PlatformName, ServerId, TenantId};
use crate::limits;
use crate::model::{
    Allotment, Bundle, CatalogPointer, Entry, McpSession, PlatformTool, Server, SessionPolicy, Settings,
};
use crate::store::{Changes, Documents, Key, Kind, PARTITIONS, StoreError, partition};
use crate::task::Tasks;
use crate::telemetry::Metrics;

/// Who may write an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    File,
    Store,
}

/// An object with its owner.
#[derive(Debug, Clone)]
pub struct Owned<T> {
    pub owner: Owner,
    pub value: Arc<T>,
}

/// A tenant at one moment. Immutable.
#[derive(Debug, Clone, Default)]
pub struct TenantDocs {
    pub settings: Arc<Settings>,
    /// Who owns the settings; nobody, if only other documents exist.
    pub settings_owner: Option<Owner>,
    pub servers: BTreeMap<ServerId, Owned<Server>>,
    pub tools: BTreeMap<PlatformName, Owned<PlatformTool>>,
    pub bundles: BTreeMap<BundleName, Owned<Bundle>>,
    pub allotment: Arc<Allotment>,
    pub catalogs: BTreeMap<ServerId, CatalogPointer>,
    /// Entries that are denied to every session of the tenant.
    pub revoked_entries: BTreeMap<String, Entry>,
    /// The whole tenant is revoked.
    pub revoked: bool,
    /// The file's objects contradict one another: nothing can be served.
    pub broken: Option<String>,
}

/// A tenant that is at hand.
pub struct Tenant {
    pub id: TenantId,
    docs: ArcSwap<TenantDocs>,
    /// Raised with every change; a request that sees another one than it compiled for compiles anew.
    generation: AtomicU64,
    /// One writer at a time, so that an older read never replaces a newer one.
    writer: Mutex<Loaded>,
    settled: AtomicBool,
}

/// What the documents of a tenant were read at.
struct Loaded {
    version: u64,
}

/// The generation of a tenant that was evicted.
const EVICTED: u64 = u64::MAX;

impl Tenant {
    pub fn docs(&self) -> Arc<TenantDocs> {
        self.docs.load_full()
    }

    /// The generation; none once the tenant was evicted, from when on it is told of no change.
    pub fn generation(&self) -> Option<u64> {
        Some(self.generation.load(Ordering::Acquire)).filter(|g| *g != EVICTED)
    }

    fn raise(&self) {
        let raised = |g: u64| (g != EVICTED).then(|| g + 1);
        // Failure means evicted, where nothing is left to raise.
        self.generation.fetch_update(Ordering::AcqRel, Ordering::Acquire, raised).ok();
    }
}

/// What is stored of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredSession {
    /// `None`: never written.
    pub policy: Option<SessionPolicy>,
    pub revoked: bool,
}

/// All tenants of this node.
pub struct Tenants {
    documents: Arc<dyn Documents>,
    file: BTreeMap<TenantId, FileTenant>,
    at_hand: moka::future::Cache<TenantId, Arc<Tenant>>,
    mcp_sessions: mcp_sessions::Remembered,
    applied: [AtomicU64; PARTITIONS],
    progress: watch::Sender<u64>,
    metrics: Arc<Metrics>,
}

impl Tenants {
    pub fn new(
        documents: Arc<dyn Documents>,
        file: BTreeMap<TenantId, FileTenant>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let at_hand = moka::future::Cache::builder()
            .max_capacity(limits::TENANT_WEIGHT)
            .weigher(|_, tenant: &Arc<Tenant>| {
                let docs = tenant.docs.load();
                let objects = docs.servers.len() + docs.tools.len() + docs.bundles.len() + docs.catalogs.len();
                u32::try_from(2_000 * (objects + 1)).unwrap_or(u32::MAX)
            })
            .eviction_listener(|_, tenant: Arc<Tenant>, _| tenant.generation.store(EVICTED, Ordering::Release))
            .build();
        let applied = std::array::from_fn(|p| AtomicU64::new(documents.versions().newest(p)));
        let (mcp_sessions, progress) = (mcp_sessions::Remembered::default(), watch::Sender::new(0));
        Arc::new(Self { documents, file, at_hand, mcp_sessions, applied, progress, metrics })
    }

    pub fn documents(&self) -> &Arc<dyn Documents> {
        &self.documents
    }

    pub fn file_tenants(&self) -> impl Iterator<Item = &TenantId> {
        self.file.keys()
    }

    /// The tenant, if the file or the store knows it.
    pub async fn get(&self, id: &TenantId) -> Result<Option<Arc<Tenant>>, StoreError> {
        loop {
            let tenant = match self.at_hand.get(id).await {
                Some(tenant) => tenant,
                None if !self.exists(id).await? => return Ok(None),
                None => {
                    let loaded = self.at_hand.try_get_with(id.clone(), self.load(id)).await;
                    loaded.map_err(|error| StoreError::clone(&error))?
                }
            };
            if tenant.settled.load(Ordering::Acquire) || self.settle(&tenant).await? {
                return Ok(Some(tenant));
            }
        }
    }

    async fn exists(&self, id: &TenantId) -> Result<bool, StoreError> {
        if self.file.contains_key(id) {
            return Ok(true);
        }
        Ok(self.documents.get(&Key::new(id, Kind::Settings, "")).await?.is_some())
    }

    async fn load(&self, id: &TenantId) -> Result<Arc<Tenant>, StoreError> {
        if !self.documents.is_seeded().await? {
            return Err(StoreError::NotSeeded);
        }
        let version = self.documents.versions().newest(partition(id));
        let mut docs = self.of_file(id);
        for (key, document) in self.documents.list(id).await? {
            self.apply(&mut docs, &key, Some(&document.body));
        }
        Ok(Arc::new(Tenant {
            id: id.clone(),
            docs: ArcSwap::from_pointee(docs),
            generation: AtomicU64::new(1),
            writer: Mutex::new(Loaded { version }),
            settled: AtomicBool::new(false),
        }))
    }

    /// Catches up with what changed between the reading of a tenant and its being at hand: of that the applier told
    /// nobody. No one uses a tenant before. `false`: the log does not reach back that far, load it again.
    async fn settle(&self, tenant: &Arc<Tenant>) -> Result<bool, StoreError> {
        let mut loaded = tenant.writer.lock().await;
        if tenant.settled.load(Ordering::Acquire) {
            return Ok(true);
        }
        let index = partition(&tenant.id);
        let newest = self.documents.versions().newest(index);
        if newest > loaded.version {
            match self.documents.changes(index, loaded.version).await? {
                Changes::Since(changes) => {
                    let keys = changes.into_iter().map(|(_, key)| key).filter(|key| key.tenant == tenant.id);
                    self.reread(tenant, &keys.collect()).await?;
                }
                Changes::Gap => {
                    self.at_hand.invalidate(&tenant.id).await;
                    return Ok(false);
                }
            }
            loaded.version = newest;
        }
        tenant.settled.store(true, Ordering::Release);
        Ok(true)
    }

    /// What is stored of a session, by the id of its documents. A policy that cannot be read denies.
    pub async fn session(&self, tenant: &TenantId, id: &str) -> Result<StoredSession, StoreError> {
        let policy = self.documents.get(&Key::new(tenant, Kind::Policy, id)).await?;
        let revoked = self.documents.get(&Key::new(tenant, Kind::SessionRevoked, id)).await?;
        let key = Key::new(tenant, Kind::Policy, id);
        let policy = policy.map(|d| self.read(&key, &d.body).unwrap_or(SessionPolicy::Tombstone { since: 0 }));
        Ok(StoredSession { policy, revoked: revoked.is_some() })
    }

    /// What a legacy transport session remembers, by its number; from memory where it is known.
    pub async fn mcp_session(&self, tenant: &TenantId, id: &str) -> Result<Arc<McpSession>, StoreError> {
        let key = Key::new(tenant, Kind::McpSession, id);
        self.mcp_sessions.get(self, key).await
    }

    /// Ticks with each batch of changes that was applied, whosever they are.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.progress.subscribe()
    }

    /// Follows the store's versions until the program drains.
    pub fn follow(self: &Arc<Self>, tasks: &Tasks) {
        let tenants = self.clone();
        tasks.spawn_until_stop("tenants", async move {
            let mut versions = tenants.documents.versions().watch();
            loop {
                let mut behind = false;
                for index in 0..PARTITIONS {
                    if let Err(error) = tenants.catch_up(index).await {
                        tracing::warn!(%error, "changes could not be read; trying again");
                        behind = true;
                    }
                }
                if behind {
                    tokio::time::sleep(limits::CATCH_UP_PAUSE).await;
                } else if versions.changed().await.is_err() {
                    return;
                }
            }
        });
    }

    /// Waits until this node has applied a version that was just written, at most a few seconds: the write stands
    /// either way.
    pub async fn applied(&self, tenant: &TenantId, version: u64) {
        let index = partition(tenant);
        let mut progress = self.progress.subscribe();
        let waiting = async {
            while self.applied.get(index).is_some_and(|a| a.load(Ordering::Acquire) < version) {
                if progress.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(limits::APPLY_TIMEOUT, waiting).await.is_err() {
            tracing::error!(%tenant, version, "a write was not applied in time");
        }
    }

    async fn catch_up(&self, index: usize) -> Result<(), StoreError> {
        let Some(applied) = self.applied.get(index) else { return Ok(()) };
        let newest = self.documents.versions().newest(index);
        let seen = applied.load(Ordering::Acquire);
        if newest <= seen {
            return Ok(());
        }
        match self.documents.changes(index, seen).await? {
            Changes::Since(changes) => {
                let mut by_tenant: BTreeMap<TenantId, BTreeSet<Key>> = BTreeMap::new();
                for (_, key) in changes {
                    self.mcp_sessions.forget(&key);
                    by_tenant.entry(key.tenant.clone()).or_default().insert(key);
                }
                for (id, keys) in by_tenant {
                    let Some(tenant) = self.at_hand.get(&id).await else { continue };
                    let _writer = tenant.writer.lock().await;
                    self.reread(&tenant, &keys).await?;
                }
            }
            Changes::Gap => {
                self.mcp_sessions.forget_all();
                // Whatever is at hand of this partition may be old: let it be loaded anew.
                let of_partition = |id: &TenantId| partition(id) == index;
                let old: Vec<TenantId> =
                    self.at_hand.iter().map(|(id, _)| id.as_ref().clone()).filter(of_partition).collect();
                for id in old {
                    self.at_hand.invalidate(&id).await;
                }
            }
        }
        applied.fetch_max(newest, Ordering::AcqRel);
        self.progress.send_modify(|n| *n += 1);
        Ok(())
    }

    /// Reads changed documents again and puts them in place all at once. The caller holds the tenant's writer lock.
    async fn reread(&self, tenant: &Tenant, keys: &BTreeSet<Key>) -> Result<(), StoreError> {
        let mut docs: Option<TenantDocs> = None;
        for key in keys.iter().filter(|key| !key.kind.is_of_session()) {
            let document = self.documents.get(key).await?;
            let docs = docs.get_or_insert_with(|| TenantDocs::clone(&tenant.docs.load()));
            self.apply(docs, key, document.as_ref().map(|d| &d.body[..]));
        }
        let gone = docs.as_ref().is_some_and(|docs| docs.settings_owner.is_none());
        if let Some(docs) = docs {
            tenant.docs.store(Arc::new(docs));
        }
        // What a transport session remembers changes nobody's view.
        if keys.iter().any(|key| key.kind != Kind::McpSession) {
            tenant.raise();
        }
        if gone {
            // A tenant without settings is none; whoever holds it finds that out by its generation.
            self.at_hand.invalidate(&tenant.id).await;
        }
        Ok(())
    }
}
