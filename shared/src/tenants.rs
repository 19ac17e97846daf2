//! Tenants as this node has them: what the file owns joined with what the store holds, kept fresh.
//!
//! Tenants load on first use and are evicted by weight. Each object has one owner, file or store; nothing is merged by
//! field. The applier follows the store's versions: it re-reads exactly what changed and raises the generation of the
//! tenant concerned, which every request compares. A document that cannot be read keeps its last good form; without
//! one it is absent, which can only narrow what is allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, watch};

use crate::config::FileTenant;
use crate::ids::{BundleName, PlatformName, ServerId, TenantId};
use crate::limits;
use crate::model::{Allotment, Bundle, CatalogPointer, Entry, PlatformTool, Server, SessionPolicy, Settings};
use crate::store::{self, Changes, Documents, Key, Kind, PARTITIONS, StoreError, partition};
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
    writer: Mutex<()>,
}

/// The generation of a tenant that was evicted: no view compiled for it is valid.
const EVICTED: u64 = u64::MAX;

impl Tenant {
    pub fn docs(&self) -> Arc<TenantDocs> {
        self.docs.load_full()
    }

    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn raise(&self) {
        let raised = |g: u64| (g != EVICTED).then(|| g + 1);
        // Failure means evicted, where nothing is left to raise.
        self.generation.fetch_update(Ordering::AcqRel, Ordering::Acquire, raised).ok();
    }
}

/// All tenants of this node.
pub struct Tenants {
    documents: Arc<dyn Documents>,
    file: BTreeMap<TenantId, FileTenant>,
    at_hand: moka::future::Cache<TenantId, Arc<Tenant>>,
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
        Arc::new(Self { documents, file, at_hand, applied, progress: watch::Sender::new(0), metrics })
    }

    pub fn documents(&self) -> &Arc<dyn Documents> {
        &self.documents
    }

    pub fn file_tenants(&self) -> impl Iterator<Item = &TenantId> {
        self.file.keys()
    }

    /// The tenant, if the file or the store knows it.
    pub async fn get(&self, id: &TenantId) -> Result<Option<Arc<Tenant>>, StoreError> {
        if let Some(tenant) = self.at_hand.get(id).await {
            return Ok(Some(tenant));
        }
        if !self.exists(id).await? {
            return Ok(None);
        }
        let loaded = self.at_hand.try_get_with(id.clone(), self.load(id)).await;
        loaded.map(Some).map_err(|error| StoreError::clone(&error))
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
        let index = partition(id);
        loop {
            // What changes while we read is not applied to this tenant, since it is not at hand yet: read again then.
            let before = self.documents.versions().newest(index);
            let mut docs = self.from_file(id);
            for (key, document) in self.documents.list(id).await? {
                self.apply(&mut docs, &key, Some(&document.body));
            }
            if self.documents.versions().newest(index) == before {
                return Ok(Arc::new(Tenant {
                    id: id.clone(),
                    docs: ArcSwap::from_pointee(docs),
                    generation: AtomicU64::new(1),
                    writer: Mutex::new(()),
                }));
            }
        }
    }

    fn from_file(&self, id: &TenantId) -> TenantDocs {
        let Some(file) = self.file.get(id) else { return TenantDocs::default() };
        fn owned<T: Clone>(value: &T) -> Owned<T> {
            Owned { owner: Owner::File, value: Arc::new(value.clone()) }
        }
        TenantDocs {
            settings: Arc::new(file.settings.clone()),
            settings_owner: Some(Owner::File),
            servers: file.servers.iter().map(|s| (s.id.clone(), owned(s))).collect(),
            tools: file.tools.iter().map(|t| (t.name.clone(), owned(t))).collect(),
            bundles: file.bundles.iter().map(|(name, b)| (name.clone(), owned(b))).collect(),
            broken: file.broken.clone(),
            ..TenantDocs::default()
        }
    }

    /// Puts one stored document, or its absence, into `docs`. What the file owns stays the file's.
    fn apply(&self, docs: &mut TenantDocs, key: &Key, body: Option<&[u8]>) {
        match key.kind {
            Kind::Settings => {
                if docs.settings_owner != Some(Owner::File) {
                    docs.settings_owner = body.map(|_| Owner::Store);
                    match body {
                        // A tenant whose settings are unreadable keeps the last good ones, else those that allow nothing.
                        Some(body) => {
                            if let Some(settings) = self.read(key, body) {
                                docs.settings = Arc::new(settings);
                            }
                        }
                        None => docs.settings = Arc::default(),
                    }
                }
            }
            Kind::Server => {
                if let Ok(id) = ServerId::parse(&key.id) {
                    self.apply_owned(&mut docs.servers, id, key, body);
                }
            }
            Kind::Tool => {
                if let Ok(name) = PlatformName::parse(&key.id) {
                    self.apply_owned(&mut docs.tools, name, key, body);
                }
            }
            Kind::Bundle => {
                if let Ok(name) = BundleName::parse(&key.id) {
                    self.apply_owned(&mut docs.bundles, name, key, body);
                }
            }
            Kind::Aliases => match body {
                Some(body) => {
                    if let Some(allotment) = self.read(key, body) {
                        docs.allotment = Arc::new(allotment);
                    }
                }
                None => docs.allotment = Arc::default(),
            },
            Kind::Catalog => {
                if let Ok(id) = ServerId::parse(&key.id) {
                    match body {
                        Some(body) => {
                            if let Some(pointer) = self.read(key, body) {
                                docs.catalogs.insert(id, pointer);
                            }
                        }
                        None => {
                            docs.catalogs.remove(&id);
                        }
                    }
                }
            }
            Kind::Revoked if key.id.is_empty() => docs.revoked = body.is_some(),
            Kind::Revoked => match (body, Entry::parse(&key.id)) {
                (Some(_), Ok(entry)) => {
                    docs.revoked_entries.insert(key.id.clone(), entry);
                }
                _ => {
                    docs.revoked_entries.remove(&key.id);
                }
            },
            Kind::Policy => {}
        }
    }

    fn apply_owned<K: Ord, T: DeserializeOwned>(
        &self,
        map: &mut BTreeMap<K, Owned<T>>,
        id: K,
        key: &Key,
        body: Option<&[u8]>,
    ) {
        if map.get(&id).is_some_and(|owned| owned.owner == Owner::File) {
            return;
        }
        match body {
            Some(body) => {
                if let Some(value) = self.read(key, body) {
                    map.insert(id, Owned { owner: Owner::Store, value: Arc::new(value) });
                }
            }
            None => {
                map.remove(&id);
            }
        }
    }

    fn read<T: DeserializeOwned>(&self, key: &Key, body: &[u8]) -> Option<T> {
        store::decode(body)
            .inspect_err(|error| {
                self.metrics.broken_documents.add(1, &[]);
                tracing::error!(%key, %error, "a stored document cannot be read; its last good form is kept, if any");
            })
            .ok()
    }

    /// The policy of a session, by its key in the store (see `policy_key`). `Ok(None)`: never written.
    /// A policy that cannot be read denies.
    pub async fn policy(&self, key: &Key) -> Result<Option<SessionPolicy>, StoreError> {
        Ok(self
            .documents
            .get(key)
            .await?
            .map(|document| self.read(key, &document.body).unwrap_or(SessionPolicy::Tombstone { since: 0 })))
    }

    /// Follows the store's versions until the program drains.
    pub fn follow(self: &Arc<Self>, tasks: &Tasks) {
        let tenants = self.clone();
        tasks.spawn_until_stop("tenants", async move {
            let mut versions = tenants.documents.versions().watch();
            loop {
                for index in 0..PARTITIONS {
                    tenants.catch_up(index).await;
                }
                if versions.changed().await.is_err() {
                    return;
                }
            }
        });
    }

    /// Waits until this node has applied a version that was just written.
    pub async fn applied(&self, tenant: &TenantId, version: u64) {
        let index = partition(tenant);
        let mut progress = self.progress.subscribe();
        while self.applied.get(index).is_some_and(|a| a.load(Ordering::Acquire) < version) {
            if progress.changed().await.is_err() {
                return;
            }
        }
    }

    async fn catch_up(&self, index: usize) {
        let Some(applied) = self.applied.get(index) else { return };
        let newest = self.documents.versions().newest(index);
        let seen = applied.load(Ordering::Acquire);
        if newest <= seen {
            return;
        }
        match self.documents.changes(index, seen).await {
            Ok(Changes::Since(changes)) => {
                let keys: BTreeSet<Key> = changes.into_iter().map(|(_, key)| key).collect();
                for key in keys {
                    if let Err(error) = self.touch(&key).await {
                        tracing::warn!(%key, %error, "a change could not be read; trying again");
                        self.documents.versions().raise(index, newest);
                        return;
                    }
                }
            }
            Ok(Changes::Gap) => {
                // Whatever is at hand of this partition may be old: let it be loaded anew.
                let old: Vec<TenantId> = self
                    .at_hand
                    .iter()
                    .map(|(id, _)| id.as_ref().clone())
                    .filter(|id| partition(id) == index)
                    .collect();
                for id in old {
                    self.at_hand.invalidate(&id).await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the change log cannot be read");
                return;
            }
        }
        applied.fetch_max(newest, Ordering::AcqRel);
        self.progress.send_modify(|n| *n += 1);
    }

    async fn touch(&self, key: &Key) -> Result<(), StoreError> {
        let Some(tenant) = self.at_hand.get(&key.tenant).await else { return Ok(()) };
        if key.kind != Kind::Policy {
            let _writer = tenant.writer.lock().await;
            let document = self.documents.get(key).await?;
            let mut docs = TenantDocs::clone(&tenant.docs.load());
            self.apply(&mut docs, key, document.as_ref().map(|d| &d.body[..]));
            let gone = docs.settings_owner.is_none();
            tenant.docs.store(Arc::new(docs));
            if gone {
                // A tenant without settings is none; whoever holds it finds that out by its generation.
                self.at_hand.invalidate(&key.tenant).await;
            }
        }
        tenant.raise();
        Ok(())
    }
}
