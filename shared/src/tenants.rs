//! Tenants as this node has them: what the file owns joined with what the store holds, kept fresh.
//!
//! Tenants load on first use and are evicted by weight. Each object has one owner, file or store; nothing is merged by
//! field. The applier follows the store's versions: it re-reads exactly what changed and raises the generation of the
//! tenant concerned, which every request compares. A document that cannot be read keeps its last good form; without
//! one it is absent, which can only narrow what is allowed.

mod documents;
mod follow;
mod sessions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::Mutex;

use crate::config::FileTenant;
use crate::ids::{BundleName, PlatformName, ServerId, TenantId};
use crate::limits;
use crate::model::{
    Allotment, Bundle, CatalogPointer, Entry, Instructions, McpSession, PlatformTool, Server, SessionPolicy, Settings,
};
use crate::store::{Changes, Documents, Key, Kind, Listed, Position, StoreError, partition};
use crate::telemetry::Metrics;

pub use sessions::AtHand;

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
    /// Of the store.
    pub partition: usize,
    docs: ArcSwap<TenantDocs>,
    /// Raised with every change; a request that sees another one than it compiled for compiles anew.
    generation: AtomicU64,
    /// One writer at a time, so that an older read never replaces a newer one.
    writer: Mutex<Loaded>,
    settled: AtomicBool,
}

/// What the documents of a tenant were read at.
struct Loaded {
    at: Position,
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
    /// `None`: never written. Sessions whose documents are the same share it.
    pub policy: Option<Arc<SessionPolicy>>,
    pub revoked: bool,
}

/// All tenants of this node.
pub struct Tenants {
    documents: Arc<dyn Documents>,
    file: BTreeMap<TenantId, FileTenant>,
    at_hand: moka::future::Cache<TenantId, Arc<Tenant>>,
    sessions: sessions::Remembered<StoredSession>,
    policies: sessions::Shared<SessionPolicy>,
    mcp_sessions: sessions::Remembered<Arc<McpSession>>,
    instructions: sessions::Remembered<Arc<Instructions>>,
    followed: follow::Followed,
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
        let followed = follow::Followed::new(documents.versions());
        let sessions = sessions::Remembered::new(limits::SESSIONS_AT_HAND);
        let mcp_sessions = sessions::Remembered::new(limits::MCP_SESSIONS_AT_HAND);
        let instructions = sessions::Remembered::new(limits::INSTRUCTIONS_AT_HAND);
        let policies = sessions::Shared::default();
        Arc::new(Self { documents, file, at_hand, sessions, policies, mcp_sessions, instructions, followed, metrics })
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
        let Listed { at, documents } = self.documents.list(id).await?;
        let mut docs = self.of_file(id);
        for (key, document) in documents {
            self.apply(&mut docs, &key, Some(&document.body));
        }
        Ok(Arc::new(Tenant {
            id: id.clone(),
            partition: partition(id),
            docs: ArcSwap::from_pointee(docs),
            generation: AtomicU64::new(1),
            writer: Mutex::new(Loaded { at }),
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
        // Asked in any case: what was heard last may be older than what the applier has passed on already.
        match self.documents.changes(tenant.partition, loaded.at).await? {
            Changes::Since { to, keys } => {
                let own = keys.into_iter().filter(|key| key.tenant == tenant.id);
                self.reread(tenant, &own.collect()).await?;
                loaded.at = to;
            }
            Changes::Gap { .. } => {
                self.at_hand.invalidate(&tenant.id).await;
                return Ok(false);
            }
        }
        tenant.settled.store(true, Ordering::Release);
        Ok(true)
    }

    /// What is stored of a session, by the id of its documents; from memory where it is known. A policy that cannot be
    /// read denies.
    pub async fn session(&self, tenant: &TenantId, id: &str) -> Result<Arc<AtHand<StoredSession>>, StoreError> {
        let read = async {
            let key = Key::new(tenant, Kind::Policy, id);
            let revoked = Key::new(tenant, Kind::SessionRevoked, id);
            let (policy, revoked) = futures_util::try_join!(self.documents.get(&key), self.documents.get(&revoked))?;
            let policy = policy.map(|d| self.policies.get(&d.body, || self.read(&key, &d.body)));
            let readable = !matches!(policy, Some(None));
            let unreadable = || Arc::new(SessionPolicy::Tombstone { since: 0 });
            let policy = policy.map(|policy| policy.unwrap_or_else(unreadable));
            Ok((StoredSession { policy, revoked: revoked.is_some() }, readable))
        };
        self.sessions.get(tenant, id, read).await
    }

    /// What a legacy transport session remembers, by its number; from memory where it is known.
    pub async fn mcp_session(&self, tenant: &TenantId, id: &str) -> Result<Arc<McpSession>, StoreError> {
        let read = async {
            let key = Key::new(tenant, Kind::McpSession, id);
            let stored = self.documents.get(&key).await?;
            // One that cannot be read counts as ended: its client opens another.
            let unreadable = || McpSession { ended: true, ..McpSession::default() };
            let session = stored.map(|d| self.read(&key, &d.body));
            let readable = !matches!(session, Some(None));
            Ok((Arc::new(session.map(|session| session.unwrap_or_else(unreadable)).unwrap_or_default()), readable))
        };
        Ok(self.mcp_sessions.get(tenant, id, read).await?.value.clone())
    }

    /// What a session is told before its tools; from memory where it is known.
    pub async fn instructions(&self, tenant: &TenantId, id: &str) -> Result<Arc<Instructions>, StoreError> {
        let read = async {
            let key = Key::new(tenant, Kind::Instructions, id);
            let stored = self.documents.get(&key).await?;
            let read = stored.map(|d| self.read(&key, &d.body));
            let readable = !matches!(read, Some(None));
            Ok((Arc::new(read.flatten().unwrap_or_default()), readable))
        };
        Ok(self.instructions.get(tenant, id, read).await?.value.clone())
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
        // What concerns one session alone leaves the others as they are.
        if keys.iter().any(|key| !key.kind.is_of_session()) {
            tenant.raise();
        }
        if gone {
            // A tenant without settings is none; whoever holds it finds that out by its generation.
            self.at_hand.invalidate(&tenant.id).await;
        }
        Ok(())
    }
}
