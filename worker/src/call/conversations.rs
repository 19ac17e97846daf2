//! Conversations by their calls: those that go on, those that ended a moment ago, and calls that are parked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dashmap::DashMap;
use rollcall_shared::ids::TenantId;
use rollcall_shared::limits;
use rollcall_shared::wire::{CallId, Final};
use tokio::time::Instant;

use super::asking::Asking;
use super::conversation::Conversation;
use super::leg::Leg;
use crate::worker::Shared;

/// See the module.
pub(crate) struct Conversations {
    running: DashMap<CallId, Arc<Conversation>>,
    /// By session and the caller's own id, since that is all that a cancellation names.
    by_request: DashMap<(String, String), Vec<CallId>>,
    ended: moka::sync::Cache<CallId, Arc<Conversation>>,
    parked: Mutex<HashMap<CallId, Parked>>,
    pub(super) asking: Arc<Asking>,
    /// What of each tenant nobody waits for at this moment: calls, and bytes of their params.
    detached: DashMap<TenantId, (usize, usize)>,
    /// The worker ends: nothing is parked any more.
    closing: AtomicBool,
}

/// A call's share of its tenant's detached ones, given back when dropped.
pub(super) struct Detached {
    shared: Weak<Shared>,
    tenant: TenantId,
    bytes: usize,
}

impl Drop for Detached {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade()
            && let Some(mut of) = shared.conversations.detached.get_mut(&self.tenant)
        {
            of.0 -= 1;
            of.1 -= self.bytes;
        }
    }
}

pub(super) struct Parked {
    pub(super) leg: Leg,
    pub(super) round: u32,
    pub(super) until: Instant,
    pub(super) _detached: Detached,
}

impl Default for Conversations {
    fn default() -> Self {
        let ended = moka::sync::Cache::builder()
            .max_capacity(limits::REPLAYED_BYTES)
            .weigher(|_, conversation: &Arc<Conversation>| conversation.weight())
            .time_to_live(limits::REPLAYED_FOR)
            .build();
        Self {
            running: DashMap::new(),
            by_request: DashMap::new(),
            ended,
            parked: Mutex::default(),
            asking: Arc::default(),
            detached: DashMap::new(),
            closing: AtomicBool::new(false),
        }
    }
}

impl Conversations {
    pub(super) fn begin(&self, conversation: &Arc<Conversation>) {
        self.running.insert(conversation.id, conversation.clone());
        self.by_request.entry(key(conversation)).or_default().push(conversation.id);
    }

    pub(super) fn end(&self, conversation: &Arc<Conversation>, end: &Final) {
        conversation.ends(end);
        self.running.remove(&conversation.id);
        let key = key(conversation);
        if let Some(mut calls) = self.by_request.get_mut(&key) {
            calls.retain(|call| *call != conversation.id);
        }
        self.by_request.remove_if(&key, |_, calls| calls.is_empty());
        if conversation.converses() {
            self.ended.insert(conversation.id, conversation.clone());
        }
    }

    /// A conversation of this session; others are as if they were not.
    pub(super) fn find(&self, tenant: &TenantId, session: &str, call: CallId) -> Option<Arc<Conversation>> {
        let running = self.running.get(&call).map(|entry| entry.value().clone());
        running.or_else(|| self.ended.get(&call)).filter(|c| c.tenant == *tenant && c.session == session)
    }

    /// Cancels the one call with this id. Where a client used the id twice at once, nobody can tell which it means.
    pub(super) fn cancel(&self, tenant: &TenantId, session: &str, request: &str) {
        let calls = self.by_request.get(&(session.to_owned(), request.to_owned())).map(|calls| calls.clone());
        if let Some([only]) = calls.as_deref()
            && let Some(conversation) = self.find(tenant, session, *only)
        {
            conversation.cancelled.cancel();
        }
    }

    fn parked(&self) -> MutexGuard<'_, HashMap<CallId, Parked>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A share for one more call that nobody waits for; none where the tenant has too many of them.
    pub(super) fn detach(&self, shared: &Arc<Shared>, conversation: &Conversation) -> Option<Detached> {
        let mut of = self.detached.entry(conversation.tenant.clone()).or_default();
        let bytes = conversation.params_bytes;
        if of.0 >= limits::DETACHED_PER_TENANT || of.1 + bytes > limits::DETACHED_BYTES {
            return None;
        }
        *of = (of.0 + 1, of.1 + bytes);
        drop(of);
        Some(Detached { shared: Arc::downgrade(shared), tenant: conversation.tenant.clone(), bytes })
    }

    /// Drops the leg, which cancels it at its upstream, where its tenant has too much that nobody waits for.
    pub(super) fn park(&self, shared: &Arc<Shared>, leg: Leg, round: u32) -> bool {
        let Some(detached) = self.detach(shared, &leg.conversation) else { return false };
        let mut parked = self.parked();
        let of = &leg.conversation;
        let tenants = parked.values().filter(|p| p.leg.conversation.tenant == of.tenant);
        let (all, own) = tenants
            .fold((0, 0), |(all, own), p| (all + 1, own + usize::from(p.leg.conversation.session == of.session)));
        let closing = self.closing.load(Ordering::Acquire);
        if closing || all >= limits::PARKED_PER_TENANT || own >= limits::PARKED_PER_SESSION {
            drop(parked);
            return false;
        }
        let until = Instant::now() + limits::PARKED_FOR;
        parked.insert(leg.conversation.id, Parked { leg, round, until, _detached: detached });
        true
    }

    /// Takes the call that waits in this round; it can be taken once.
    pub(super) fn take(&self, tenant: &TenantId, session: &str, call: CallId, round: u32) -> Option<Parked> {
        let mut parked = self.parked();
        let fits = parked.get(&call).is_some_and(|p| {
            let of = &p.leg.conversation;
            p.round == round && of.tenant == *tenant && of.session == session
        });
        if fits { parked.remove(&call) } else { None }
    }

    /// Ends what has waited too long: dropping a leg cancels it at its upstream.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        let late: Vec<Parked> = {
            let mut parked = self.parked();
            let late: Vec<CallId> = parked.iter().filter(|(_, p)| p.until <= now).map(|(call, _)| *call).collect();
            late.iter().filter_map(|call| parked.remove(call)).collect()
        };
        drop(late);
    }

    /// Ends all that waits, at the end of the worker.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        let all: Vec<Parked> = self.parked().drain().map(|(_, parked)| parked).collect();
        drop(all);
    }
}

fn key(conversation: &Conversation) -> (String, String) {
    (conversation.session.clone(), conversation.request.clone())
}
