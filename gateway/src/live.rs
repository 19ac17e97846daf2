//! Registries and sights, kept at hand and fresh.
//!
//! A request compares one number, the tenant's generation; only where it moved is anything compiled anew. A server that
//! never listed anything is asked in the background until it does; the first list of a tenant waits for it a moment.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use dashmap::DashMap;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use rollcall_shared::clock::unix_s;
use rollcall_shared::digest::Digest;
use rollcall_shared::ids::{ServerId, TenantId};
use rollcall_shared::limits;
use rollcall_shared::model::{Catalog, Policy, Server, SessionPolicy};
use rollcall_shared::placement::Thing;
use rollcall_shared::store::StoreError;
use rollcall_shared::task::Tasks;
use rollcall_shared::telemetry::Metrics;
use rollcall_shared::tenants::{AtHand, StoredSession, Tenant, TenantDocs, Tenants};
use rollcall_shared::wire::{
    CallId, Caller, Envelope, Failure, Final, Head, Interim, Op, Params, Reason, Route, TraceContext, WorkerLink,
};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::identity::Principal;
use crate::refusal::Refusal;
use crate::registry::{Listed, Registry, Segments};
use crate::view::{Sight, Views};

/// What is known of a server's availability; an overlay that changes no list.
#[derive(Debug, Clone)]
struct Trouble {
    reason: Reason,
    since: Instant,
    retry_after_s: Option<u32>,
}

/// A session's sight, valid for one generation of its tenant.
struct Current {
    sight: Arc<Sight>,
    tenant: Arc<Tenant>,
    /// Of the tenant when its documents were read. An evicted tenant has none, and so equals nothing.
    generation: u64,
    /// What was stored of the session itself.
    stored: Arc<AtHand<StoredSession>>,
    /// Seconds since 1970.
    expires_at: Option<u64>,
}

impl Current {
    fn is_strict(&self) -> bool {
        self.sight.registry.docs.settings.strict
    }
}

#[derive(Default)]
struct Slot {
    current: ArcSwapOption<Current>,
}

/// See the module.
pub struct Live {
    tenants: Arc<Tenants>,
    link: Arc<dyn WorkerLink>,
    segments: Segments,
    views: Views,
    registries: moka::sync::Cache<TenantId, Arc<Registry>>,
    /// One builder a tenant at a time.
    building: DashMap<TenantId, Arc<Mutex<()>>>,
    slots: moka::sync::Cache<[u8; 32], Arc<Slot>, foldhash::fast::RandomState>,
    policies: DashMap<Digest, Weak<Policy>>,
    trouble: DashMap<(TenantId, ServerId), Trouble>,
    /// Servers that a task is asking for their first catalog.
    asking: DashMap<(TenantId, ServerId), ()>,
    metrics: Arc<Metrics>,
    tasks: Tasks,
}

impl Live {
    pub fn new(tenants: Arc<Tenants>, link: Arc<dyn WorkerLink>, metrics: Arc<Metrics>, tasks: Tasks) -> Arc<Self> {
        Arc::new(Self {
            tenants,
            link,
            segments: Segments::default(),
            views: Views::default(),
            registries: moka::sync::Cache::builder().max_capacity(100_000).build(),
            building: DashMap::new(),
            slots: moka::sync::Cache::builder()
                .max_capacity(limits::SESSIONS_AT_HAND)
                .time_to_idle(limits::SESSION_IDLE)
                .build_with_hasher(foldhash::fast::RandomState::default()),
            policies: DashMap::new(),
            trouble: DashMap::new(),
            asking: DashMap::new(),
            metrics,
            tasks,
        })
    }

    pub fn tenants(&self) -> &Arc<Tenants> {
        &self.tenants
    }

    /// What a principal sees now.
    pub async fn sight(self: &Arc<Self>, principal: &Principal) -> Result<Arc<Sight>, Refusal> {
        let slot = self.slots.get_with(slot_key(principal), Arc::default);
        if let Some(current) = slot.current.load().as_ref().filter(|current| !current.is_strict())
            && let Some(sight) = self.at_hand(current)?
        {
            return Ok(sight);
        }
        if let Some(current) = slot.current.load_full().filter(|current| current.is_strict()) {
            // Everything that was answered before this request came is applied before it goes on.
            self.tenants.catch_up_with_now(current.tenant.partition).await.map_err(|e| store_refusal(&e))?;
            if let Some(sight) = self.at_hand(&current)? {
                return Ok(sight);
            }
        }
        let known = self.tenant(&principal.tenant).await?;
        if known.docs().settings.strict {
            self.tenants.catch_up_with_now(known.partition).await.map_err(|e| store_refusal(&e))?;
        }
        // Read before the documents, so that a change in between shows as an older generation.
        let (tenant, generation) = loop {
            let tenant = self.tenant(&principal.tenant).await?;
            if let Some(generation) = tenant.generation() {
                break (tenant, generation);
            }
        };
        let stored = self.tenants.session(&tenant.id, &principal.session_id()).await.map_err(|e| store_refusal(&e))?;
        let registry = self.registry(&tenant).await?;
        // What was just read may still be older than what is relied on.
        self.tenants.check(tenant.partition).map_err(|e| store_refusal(&e))?;
        let rules = effective(&registry.docs, &stored.value, unix_s());
        let expires_at = rules.expires_at;
        let sight = Arc::new(self.views.sight(registry, self.share(rules), &principal.scopes));
        let current = Current { sight: sight.clone(), tenant, generation, stored, expires_at };
        slot.current.store(Some(Arc::new(current)));
        Ok(sight)
    }

    /// The sight of a slot, where nothing that it was made from has changed.
    fn at_hand(&self, current: &Current) -> Result<Option<Arc<Sight>>, Refusal> {
        self.tenants.check(current.tenant.partition).map_err(|e| store_refusal(&e))?;
        let holds = current.tenant.generation() == Some(current.generation)
            && current.stored.is_current()
            && current.expires_at.is_none_or(|end| unix_s() < end);
        Ok(holds.then(|| current.sight.clone()))
    }

    /// Sessions with the same rules share them.
    fn share(&self, rules: Policy) -> Arc<Policy> {
        let digest = Digest::of(&rollcall_shared::store::encode(&rules));
        let mut slot = self.policies.entry(digest).or_default();
        if let Some(shared) = slot.upgrade() {
            return shared;
        }
        let shared = Arc::new(rules);
        *slot = Arc::downgrade(&shared);
        drop(slot);
        if self.policies.len().is_power_of_two() && self.policies.len() >= 1024 {
            self.policies.retain(|_, weak| weak.strong_count() > 0);
        }
        shared
    }

    /// The sight that a policy would give in a tenant, for the admin API: it is not kept.
    pub fn sight_of(
        &self,
        registry: Arc<Registry>,
        policy: Policy,
        scopes: &std::collections::BTreeSet<String>,
    ) -> Sight {
        self.views.sight(registry, Arc::new(policy), scopes)
    }

    pub async fn tenant(&self, id: &TenantId) -> Result<Arc<Tenant>, Refusal> {
        self.tenants.get(id).await.map_err(|e| store_refusal(&e))?.ok_or(Refusal::UnknownTenant)
    }

    /// The tenant's registry, built anew where its documents changed.
    pub async fn registry(self: &Arc<Self>, tenant: &Arc<Tenant>) -> Result<Arc<Registry>, Refusal> {
        if let Some(registry) = self.fresh(tenant) {
            return Ok(registry);
        }
        let lock = self.building.entry(tenant.id.clone()).or_default().clone();
        let _one = lock.lock().await;
        if let Some(registry) = self.fresh(tenant) {
            return Ok(registry);
        }
        let first = !self.registries.contains_key(&tenant.id);
        let mut registry = self.build(tenant, tenant.docs()).await?;
        if first && !registry.missing.is_empty() {
            self.wait_for_first_catalogs(&registry).await;
            registry = self.build(tenant, tenant.docs()).await?;
        }
        for missing in &registry.missing {
            self.keep_asking(&tenant.id, &missing.server.id);
        }
        self.metrics
            .shadowed
            .record(registry.shadowed.len() as u64, &[opentelemetry::KeyValue::new("tenant", tenant.id.to_string())]);
        self.registries.insert(tenant.id.clone(), registry.clone());
        Ok(registry)
    }

    fn fresh(&self, tenant: &Tenant) -> Option<Arc<Registry>> {
        self.registries.get(&tenant.id).filter(|registry| Arc::ptr_eq(&registry.docs, &tenant.docs()))
    }

    async fn build(&self, tenant: &Tenant, docs: Arc<TenantDocs>) -> Result<Arc<Registry>, Refusal> {
        if let Some(cause) = &docs.broken {
            return Err(Refusal::TenantBroken(cause.clone()));
        }
        let mut catalogs: BTreeMap<ServerId, Listed> = BTreeMap::new();
        for (id, pointer) in &docs.catalogs {
            if docs.servers.get(id).is_none_or(|s| s.value.fingerprint() != pointer.of) {
                continue; // of the server that stood here before
            }
            let (Some(allotted), Some(digest)) = (docs.allotment.servers.get(id), Digest::parse(&pointer.digest))
            else {
                continue;
            };
            let budget = docs.settings.name_budget;
            let era = pointer.era;
            if let Some(listing) = self.segments.find(&allotted.alias, budget, &digest) {
                catalogs.insert(id.clone(), Listed { listing, era });
                continue;
            }
            let blob = self.tenants.documents().get_blob(&digest).await.map_err(|e| store_refusal(&e))?;
            // A catalog whose content is gone or broken counts as never had, and is asked for again.
            let Some(blob) = blob else { continue };
            match Catalog::unpack(&blob, &digest) {
                Ok(catalog) => {
                    let listing = self.segments.listing(&allotted.alias, budget, id, &catalog, &digest);
                    catalogs.insert(id.clone(), Listed { listing, era });
                }
                Err(error) => tracing::error!(server = %id, %error, "a stored catalog cannot be read"),
            }
            tokio::task::yield_now().await;
        }
        let share = |segments| self.views.roster(segments);
        let registry = Registry::new(tenant.id.clone(), docs, &catalogs, &self.segments, share);
        for shadowed in &registry.shadowed {
            let server = shadowed.server.as_ref().map(ServerId::as_str);
            tracing::warn!(tenant = %tenant.id, name = shadowed.name, server, "a discovered tool is shadowed");
        }
        Ok(Arc::new(registry))
    }

    async fn wait_for_first_catalogs(self: &Arc<Self>, registry: &Registry) {
        let asked: Vec<BoxFuture<'static, bool>> = registry
            .missing
            .iter()
            .map(|m| {
                let (live, tenant, server) = (self.clone(), registry.tenant.clone(), m.server.id.clone());
                async move { live.ask(tenant, server).await }.boxed()
            })
            .collect();
        let all = futures_util::stream::iter(asked).buffer_unordered(limits::FIRST_CONNECTS).collect::<Vec<bool>>();
        // Whoever takes longer comes later: the chat must start.
        tokio::time::timeout(limits::FIRST_LISTING_WAIT, all).await.ok();
    }

    async fn ask(self: &Arc<Self>, tenant: TenantId, server: ServerId) -> bool {
        self.refresh(&tenant, &server).await.is_ok()
    }

    /// Asks a server for its first catalog, again and again, until it has one or is configured no more.
    fn keep_asking(self: &Arc<Self>, tenant: &TenantId, server: &ServerId) {
        let key = (tenant.clone(), server.clone());
        if self.asking.insert(key.clone(), ()).is_some() {
            return;
        }
        let live = self.clone();
        self.tasks.spawn_until_stop("first catalog", async move {
            let mut pause = limits::BACKOFF_FIRST;
            loop {
                match live.tenants.get(&key.0).await {
                    Ok(Some(tenant)) if !live.has_catalog(&tenant.docs(), &key.1).await => {
                        live.ask(key.0.clone(), key.1.clone()).await;
                    }
                    Ok(_) => break,
                    Err(_) => {}
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(limits::BACKOFF_LONGEST);
            }
            live.asking.remove(&key);
        });
    }

    /// Whether a server has its catalog, or is configured no more, so that nobody needs to ask.
    async fn has_catalog(&self, docs: &TenantDocs, server: &ServerId) -> bool {
        let Some(configured) = docs.servers.get(server) else { return true };
        let Some(pointer) = docs.catalogs.get(server) else { return false };
        let Some(digest) = Digest::parse(&pointer.digest) else { return false };
        let blob = self.tenants.documents().get_blob(&digest).await;
        pointer.of == configured.value.fingerprint() && matches!(blob, Ok(Some(_)))
    }

    /// Lists a server anew, for whoever registered it or asks for it.
    pub async fn refresh(self: &Arc<Self>, tenant: &TenantId, server: &ServerId) -> Result<(), Failure> {
        let head = Head {
            tenant: tenant.clone(),
            op: Op::Refresh { server: server.clone() },
            call: CallId::fresh(),
            session: String::new(),
            sent_at: unix_s(),
            deadline_ms: u64::try_from(limits::LISTING_TIMEOUT.as_millis()).unwrap_or(u64::MAX),
            trace: TraceContext::fresh(),
            caller: Caller::default(),
        };
        let configured = self.tenants.get(tenant).await.ok().flatten().map(|tenant| tenant.docs());
        let configured = configured.and_then(|docs| docs.servers.get(server).map(|owned| owned.value.clone()));
        let Some(configured) = configured else {
            return Err(Failure::unsent(Reason::NotConfigured, "the server is not configured"));
        };
        let route = Route::Owner(Thing::connection(tenant, &configured, ""));
        let envelope = Envelope { head, params: Params::default() };
        let refreshed = match self.link.send(route, envelope, Interim::none()).await {
            Final::Failed(failure) => Err(failure),
            Final::Result(_) | Final::Error(_) | Final::Parked { .. } => Ok(()),
        };
        if refreshed.is_ok() {
            // The worker has published it; this node has it once it has caught up.
            let index = rollcall_shared::store::partition(tenant);
            if let Err(error) = self.tenants.catch_up_with_now(index).await {
                tracing::warn!(%error, "a catalog was published, and is not here yet");
            }
        }
        match &refreshed {
            Ok(()) => drop(self.trouble.remove(&(tenant.clone(), server.clone()))),
            Err(failure) => self.note(tenant.clone(), server.clone(), failure),
        }
        refreshed
    }

    /// Remembers that a server failed.
    pub fn note(&self, tenant: TenantId, server: ServerId, failure: &Failure) {
        let trouble = Trouble { reason: failure.reason, since: Instant::now(), retry_after_s: failure.retry_after_s };
        self.trouble.insert((tenant, server), trouble);
    }

    /// Remembers that a server answered.
    pub fn note_good(&self, tenant: &TenantId, server: &ServerId) {
        if !self.trouble.is_empty() {
            self.trouble.remove(&(tenant.clone(), server.clone()));
        }
    }

    /// Why a server that never listed anything cannot be used, and when to try again.
    pub fn availability(&self, tenant: &TenantId, server: &Server) -> (&'static str, Option<u32>) {
        match self.trouble.get(&(tenant.clone(), server.id.clone())) {
            Some(trouble) if trouble.since.elapsed() < Duration::from_secs(300) => {
                (trouble.reason.label(), trouble.retry_after_s.or(Some(5)))
            }
            _ => ("connecting", Some(2)),
        }
    }

    /// Why a server that listed its tools cannot be reached now, as far as its last call tells.
    pub fn unreachable(&self, tenant: &TenantId, server: &Server) -> Option<&'static str> {
        let trouble = self.trouble.get(&(tenant.clone(), server.id.clone()))?;
        let lasts = trouble.since.elapsed() < Duration::from_secs(300);
        let of_server = match trouble.reason {
            Reason::Unreachable
            | Reason::StartFailed
            | Reason::AuthRequired
            | Reason::CredentialMissing
            | Reason::AddressForbidden
            | Reason::NoWorker => true,
            // These may be of one call alone.
            Reason::TimedOut
            | Reason::BadAnswer
            | Reason::TooLarge
            | Reason::ConnectionLost
            | Reason::Overloaded
            | Reason::NotConfigured
            | Reason::Cancelled
            | Reason::NoSuchCall
            | Reason::Elsewhere => false,
        };
        (lasts && of_server).then(|| trouble.reason.label())
    }
}

fn slot_key(principal: &Principal) -> [u8; 32] {
    let mut hash = blake3::Hasher::new();
    for part in [principal.tenant.as_str(), principal.issuer.as_str(), principal.session.as_str()] {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    for scope in &principal.scopes {
        hash.update(scope.as_bytes());
        hash.update(&[0]);
    }
    *hash.finalize().as_bytes()
}

/// The rules that hold for a session now. Whatever is lost, expired or revoked only narrows them.
pub fn effective(docs: &TenantDocs, stored: &StoredSession, now: u64) -> Policy {
    let nothing = || Policy { allow: Some(Vec::new()), ..Policy::default() };
    if docs.revoked || stored.revoked {
        return nothing();
    }
    let rules = match stored.policy.as_deref() {
        Some(SessionPolicy::Rules(rules)) => rules.clone(),
        Some(SessionPolicy::Tombstone { .. }) => return nothing(),
        None => match &docs.settings.default_policy {
            Some(rules) => rules.clone(),
            None => return nothing(),
        },
    };
    if rules.is_expired(now) { nothing() } else { rules }
}

pub(crate) fn store_refusal(error: &StoreError) -> Refusal {
    // Of a store that is away every request would say so; whoever keeps the connection says it once.
    if matches!(error, StoreError::Unavailable(_)) {
        tracing::debug!(%error, "the store refuses");
    } else {
        tracing::error!(%error, "the store refuses");
    }
    Refusal::StoreUnavailable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_expired_or_revoked_allows_nothing() {
        let rules = Policy { expires_at: Some(100), ..Policy::default() };
        let docs = TenantDocs::default();
        let allow = |docs: &TenantDocs, policy: Option<SessionPolicy>, now| {
            effective(docs, &StoredSession { policy: policy.map(Arc::new), revoked: false }, now).allow.map(|a| a.len())
        };
        assert_eq!(allow(&docs, Some(SessionPolicy::Rules(rules.clone())), 99), None, "everything registered");
        assert_eq!(allow(&docs, Some(SessionPolicy::Rules(rules.clone())), 100), Some(0));
        assert_eq!(allow(&docs, Some(SessionPolicy::Tombstone { since: 0 }), 0), Some(0));
        assert_eq!(allow(&docs, None, 0), Some(0), "no policy and no default");
        let session = StoredSession { policy: Some(Arc::new(SessionPolicy::Rules(Policy::default()))), revoked: true };
        assert_eq!(effective(&docs, &session, 0).allow.map(|a| a.len()), Some(0));
        let revoked = TenantDocs { revoked: true, ..TenantDocs::default() };
        assert_eq!(allow(&revoked, Some(SessionPolicy::Rules(rules)), 0), Some(0));
    }
}
