//! Conversations by their calls: those that go on, those that ended a moment ago, and calls that are parked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dashmap::DashMap;
use rollcall_shared::ids::TenantId;
use rollcall_shared::limits;
use rollcall_shared::wire::{CallId, Final};
use tokio::time::Instant;

use super::conversation::Conversation;
use super::leg::Leg;

/// See the module.
pub(crate) struct Conversations {
    running: DashMap<CallId, Arc<Conversation>>,
    /// By session and the caller's own id, since that is all that a cancellation names.
    by_request: DashMap<(String, String), Vec<CallId>>,
    ended: moka::sync::Cache<CallId, Arc<Conversation>>,
    parked: Mutex<HashMap<CallId, Parked>>,
}

pub(super) struct Parked {
    pub(super) leg: Leg,
    pub(super) round: u32,
    pub(super) until: Instant,
}

impl Default for Conversations {
    fn default() -> Self {
        let ended = moka::sync::Cache::builder()
            .max_capacity(limits::REPLAYED_BYTES)
            .weigher(|_, conversation: &Arc<Conversation>| conversation.weight())
            .time_to_live(limits::REPLAYED_FOR)
            .build();
        Self { running: DashMap::new(), by_request: DashMap::new(), ended, parked: Mutex::default() }
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

    /// Gives the leg back where the tenant has too many that wait.
    pub(super) fn park(&self, leg: Leg, round: u32) -> Result<(), Box<Leg>> {
        let mut parked = self.parked();
        let tenant = &leg.conversation.tenant;
        if parked.values().filter(|p| p.leg.conversation.tenant == *tenant).count() >= limits::PARKED_PER_TENANT {
            return Err(Box::new(leg));
        }
        let until = Instant::now() + limits::PARKED_FOR;
        parked.insert(leg.conversation.id, Parked { leg, round, until });
        Ok(())
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
        let all: Vec<Parked> = self.parked().drain().map(|(_, parked)| parked).collect();
        drop(all);
    }
}

fn key(conversation: &Conversation) -> (String, String) {
    (conversation.session.clone(), conversation.request.clone())
}
