//! Connections by (tenant, server, isolation): opened on first use, one at a time, closed when idle.
//!
//! A failed start is remembered for a growing while, so that a dead server costs its callers microseconds and its
//! neighbours nothing. Opening goes on when the caller who began it has left.

mod exclusive;
mod openings;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared as SharedFuture};
use rollcall_shared::ids::{ServerId, TenantId};
use rollcall_shared::limits;
use rollcall_shared::model::{Isolation, Server, ServerEra, Transport};
use rollcall_shared::placement::Thing;
use rollcall_shared::telemetry::{Metrics, label};
use rollcall_shared::tenants::Owned;
use rollcall_shared::wire::{Failure, Reason};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use openings::Openings;

use super::Connection;
use super::http::HttpConnection;
use super::stdio::StdioConnection;
use crate::worker::Shared;

/// A connection that ended sooner than this after its start counts as a failed start.
const SHORT_LIFE: Duration = Duration::from_secs(10);
const SWEEP: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    tenant: TenantId,
    server: ServerId,
    /// Empty for a shared connection.
    session: String,
    /// A server that speaks both eras is spoken to in its caller's, where a connection more changes nothing for it.
    legacy: bool,
}

/// Whose connection is wanted.
pub(crate) struct Wanted<'a> {
    pub(crate) tenant: &'a TenantId,
    pub(crate) server: &'a Owned<Server>,
    /// Whose, where each session has one.
    pub(crate) session: &'a str,
    /// For a caller that can be asked in the legacy way alone.
    pub(crate) legacy: bool,
}

impl<'a> Wanted<'a> {
    /// For ourselves, or for a caller to whom the era makes no difference.
    pub(crate) fn of(tenant: &'a TenantId, server: &'a Owned<Server>, session: &'a str) -> Self {
        Self { tenant, server, session, legacy: false }
    }
}

type Opened = Result<Arc<Connection>, Failure>;

enum State {
    Idle,
    Opening(SharedFuture<BoxFuture<'static, Opened>>),
    Open {
        connection: Arc<Connection>,
        since: Instant,
    },
    Failed {
        failure: Failure,
        until: Instant,
    },
    /// The slot left the pool: nothing is opened here any more.
    Closed,
}

struct Slot {
    /// What it is to the placement.
    thing: Thing,
    /// The settings that the connection was made from; others need another connection.
    server: Owned<Server>,
    era: ServerEra,
    state: Mutex<State>,
    /// Failed starts in a row.
    streak: AtomicUsize,
    calls: Arc<Semaphore>,
    /// Subscriptions that keep the connection open.
    watchers: AtomicUsize,
    last_used: Mutex<Instant>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Pool {
    slots: DashMap<Key, Arc<Slot>>,
    /// Servers, by what they were when it was found out, that keep no legacy session beside the modern era.
    modern_alone: DashMap<(TenantId, ServerId), String>,
    openings: Openings,
    /// The worker ends: no slot is made any more.
    closing: AtomicBool,
}

/// A connection that is kept open for a subscription, which is no call.
pub(crate) struct Watching {
    connection: Arc<Connection>,
    slot: Arc<Slot>,
}

impl Watching {
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.slot.watchers.fetch_sub(1, Ordering::AcqRel);
        *lock(&self.slot.last_used) = Instant::now();
    }
}

/// A connection with the right to make one call on it.
pub(crate) struct Borrowed {
    connection: Arc<Connection>,
    slot: Arc<Slot>,
    _permit: OwnedSemaphorePermit,
}

impl Borrowed {
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Whether it may be written to now: what only one may hold, only by whoever surely holds it.
    pub(crate) fn may_act(&self, shared: &Shared) -> bool {
        !self.slot.thing.exclusive || shared.ownership.may_act()
    }

    /// Keeps the connection, and gives the right to make a call back.
    pub(crate) fn watching(&self) -> Watching {
        self.slot.watchers.fetch_add(1, Ordering::AcqRel);
        Watching { connection: self.connection.clone(), slot: self.slot.clone() }
    }

    /// The connection is of no more use; the next caller opens a new one.
    pub(crate) fn discard(self, shared: &Arc<Shared>) {
        let mut state = lock(&self.slot.state);
        if matches!(&*state, State::Open { connection, .. } if Arc::ptr_eq(connection, &self.connection)) {
            *state = State::Idle;
            drop(state);
            shared.metrics.upstreams.add(-1, &[label("transport", self.connection.transport())]);
            let connection = self.connection.clone();
            shared.tasks.spawn("close upstream", async move { connection.close().await });
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        *lock(&self.slot.last_used) = Instant::now();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// The connection for a call, opened if need be.
    pub(crate) async fn borrow(&self, shared: &Arc<Shared>, wanted: Wanted<'_>) -> Result<Borrowed, Failure> {
        let Wanted { tenant, server, session, legacy } = wanted;
        let thing = Thing::connection(tenant, &server.value, session);
        if thing.exclusive
            && let Some(left) = shared.ownership.hold(&thing).await?
        {
            super::http::end_session(shared, server, &left).await;
        }
        let session = match server.value.isolation {
            Isolation::Shared => String::new(),
            Isolation::Session => session.to_owned(),
        };
        let mut key = Key { tenant: tenant.clone(), server: server.value.id.clone(), session, legacy: false };
        if matches!(server.value.transport, Transport::Command { .. }) {
            // A child has one state: whoever came first chose its era.
            let other = Key { legacy: true, ..key.clone() };
            let has = |key: &Key| self.slots.contains_key(key);
            key.legacy = has(&other) || legacy && !has(&key) && self.may_speak_legacy(&key, server);
        } else {
            key.legacy = legacy && self.may_speak_legacy(&key, server);
        }
        let borrowed = self.borrow_in_era(shared, &mut key, server).await?;
        if thing.exclusive && !shared.ownership.holds(&thing) {
            // What was opened in the meantime must not stay: it is another worker's now.
            self.slots.remove_if(&key, |_, slot| Arc::ptr_eq(slot, &borrowed.slot));
            shared.tasks.spawn("close upstream", close(borrowed.slot.clone(), shared.metrics.clone()));
            return Err(Failure::unsent(Reason::NoWorker, "the connection has just moved").retry_after(1));
        }
        Ok(borrowed)
    }

    async fn borrow_in_era(
        &self,
        shared: &Arc<Shared>,
        key: &mut Key,
        server: &Owned<Server>,
    ) -> Result<Borrowed, Failure> {
        if !key.legacy {
            return self.borrow_by(shared, key, server).await;
        }
        match self.borrow_by(shared, key, server).await {
            Err(failure) if failure.reason != Reason::Overloaded => {
                tracing::info!(server = %key.server, cause = failure.detail, "no legacy session is to be had");
                if matches!(failure.reason, Reason::BadAnswer | Reason::StartFailed | Reason::TimedOut) {
                    let named = (key.tenant.clone(), key.server.clone());
                    self.modern_alone.insert(named, server.value.fingerprint());
                }
                self.slots.remove(key);
                key.legacy = false;
                self.borrow_by(shared, key, server).await
            }
            borrowed => borrowed,
        }
    }

    /// A second connection is harmless over HTTP, and where a session has its child for itself.
    fn may_speak_legacy(&self, key: &Key, server: &Owned<Server>) -> bool {
        let separate = match &server.value.transport {
            Transport::Http { .. } => true,
            Transport::Command { .. } => server.value.isolation == Isolation::Session,
        };
        let known = self.modern_alone.get(&(key.tenant.clone(), key.server.clone()));
        separate && server.value.era == ServerEra::Auto && known.is_none_or(|of| *of != server.value.fingerprint())
    }

    async fn borrow_by(&self, shared: &Arc<Shared>, key: &Key, server: &Owned<Server>) -> Result<Borrowed, Failure> {
        loop {
            let slot = self.slot(shared, key.clone(), server)?;
            let Ok(permit) = slot.calls.clone().try_acquire_owned() else {
                let failure = Failure::unsent(Reason::Overloaded, "too many calls in flight on this server");
                return Err(failure.retry_after(1));
            };
            let connection = match slot.ready(shared, key) {
                Ready::Open(connection) => connection,
                Ready::Opening(opening) => match opening.await {
                    Ok(connection) => connection,
                    // Its settings changed meanwhile: there is another slot for the new ones.
                    Err(_) if matches!(&*lock(&slot.state), State::Closed) => continue,
                    Err(failure) => return Err(failure),
                },
                Ready::Failed(failure) => return Err(failure),
                // It was closed between finding and using it: there is another one by now, or none.
                Ready::Closed => continue,
            };
            return Ok(Borrowed { connection, slot, _permit: permit });
        }
    }

    fn slot(&self, shared: &Arc<Shared>, key: Key, server: &Owned<Server>) -> Result<Arc<Slot>, Failure> {
        if self.closing.load(Ordering::Acquire) {
            return Err(Failure::unsent(Reason::NoWorker, "the worker is shutting down"));
        }
        if let Some(slot) = self.slots.get(&key).map(|slot| slot.clone()) {
            if Arc::ptr_eq(&slot.server.value, &server.value) || slot.server.value == server.value {
                return Ok(slot);
            }
            // The settings changed: the old connection ends, its calls in flight finish on it.
            self.slots.remove_if(&key, |_, old| Arc::ptr_eq(old, &slot));
            shared.tasks.spawn("close upstream", close(slot, shared.metrics.clone()));
        } else if !self.has_room(shared, &key.tenant) {
            let failure = Failure::unsent(Reason::Overloaded, "too many upstream connections of this tenant");
            return Err(failure.retry_after(5));
        }
        let fresh = Arc::new(Slot {
            thing: Thing::connection(&key.tenant, &server.value, &key.session),
            server: server.clone(),
            era: if key.legacy { ServerEra::Legacy } else { server.value.era },
            state: Mutex::new(State::Idle),
            streak: AtomicUsize::new(0),
            calls: Arc::new(Semaphore::new(limits::UPSTREAM_CALLS)),
            watchers: AtomicUsize::new(0),
            last_used: Mutex::new(Instant::now()),
        });
        let slot = self.slots.entry(key.clone()).or_insert(fresh).clone();
        if self.closing.load(Ordering::Acquire) {
            // It began to end in between, and may have counted its slots already.
            self.slots.remove(&key);
            return Err(Failure::unsent(Reason::NoWorker, "the worker is shutting down"));
        }
        Ok(slot)
    }

    /// Whether the tenant may have one more; the one that was idle the longest makes room.
    fn has_room(&self, shared: &Arc<Shared>, tenant: &TenantId) -> bool {
        let mut own: Vec<(Key, Arc<Slot>)> = self
            .slots
            .iter()
            .filter(|entry| entry.key().tenant == *tenant)
            .map(|entry| (entry.key().clone(), entry.value().clone()))
            .collect();
        if own.len() < limits::UPSTREAMS_PER_TENANT {
            return true;
        }
        own.retain(|(_, slot)| slot.is_idle());
        let Some((key, slot)) = own.into_iter().min_by_key(|(_, slot)| *lock(&slot.last_used)) else { return false };
        self.slots.remove_if(&key, |_, old| Arc::ptr_eq(old, &slot));
        shared.tasks.spawn("close upstream", close(slot, shared.metrics.clone()));
        true
    }

    /// Closes what is idle, and what is configured no more.
    pub(crate) async fn sweep_forever(&self, shared: &Arc<Shared>) {
        // Claims without a connection, at the last look: one that was made a moment ago may still get its own.
        let mut unused: HashSet<Thing> = HashSet::new();
        loop {
            tokio::time::sleep(SWEEP).await;
            shared.conversations.sweep();
            shared.clients.sweep();
            self.openings.sweep();
            if self.modern_alone.len() > limits::SERVERS_PER_TENANT {
                self.modern_alone.clear(); // found out again by whoever needs it
            }
            let entries: Vec<(Key, Arc<Slot>)> =
                self.slots.iter().map(|entry| (entry.key().clone(), entry.value().clone())).collect();
            // Claims of connections that made room for others, or that were never opened.
            let used: HashSet<&Thing> = entries.iter().map(|(_, slot)| &slot.thing).collect();
            let now: HashSet<Thing> =
                shared.ownership.all().into_iter().filter(|thing| !used.contains(thing)).collect();
            let twice: HashSet<Thing> = unused.intersection(&now).cloned().collect();
            unused = now;
            let has_slot = |thing: &Thing| self.slots.iter().any(|entry| entry.value().thing == *thing);
            shared.ownership.give_back_unused(|thing| !twice.contains(thing) || has_slot(thing)).await;
            for (key, slot) in entries {
                let configured = match shared.tenants.get(&key.tenant).await {
                    Ok(Some(tenant)) => tenant.docs().servers.contains_key(&key.server),
                    Ok(None) => false,
                    Err(_) => true,
                };
                let idle = lock(&slot.last_used).elapsed() > slot.server.value.idle_timeout() && slot.is_idle();
                if (idle || !configured) && self.slots.remove_if(&key, |_, old| Arc::ptr_eq(old, &slot)).is_some() {
                    let twin = self.slots.iter().any(|entry| entry.value().thing == slot.thing);
                    let epoch = if twin { None } else { shared.ownership.lets_go(&slot.thing) };
                    let shared = shared.clone();
                    let tasks = shared.tasks.clone();
                    tasks.spawn("close upstream", async move {
                        close(slot.clone(), shared.metrics.clone()).await;
                        shared.ownership.gives_back(&slot.thing, epoch).await;
                    });
                }
            }
        }
    }

    pub(crate) async fn close_all(&self, shared: &Shared) {
        self.closing.store(true, Ordering::Release);
        let slots: Vec<Arc<Slot>> = self.slots.iter().map(|entry| entry.value().clone()).collect();
        self.slots.clear();
        let closing = slots.into_iter().map(|slot| async move {
            let epoch = shared.ownership.lets_go(&slot.thing);
            close(slot.clone(), shared.metrics.clone()).await;
            shared.ownership.gives_back(&slot.thing, epoch).await;
        });
        futures_util::future::join_all(closing).await;
    }
}

async fn close(slot: Arc<Slot>, metrics: Arc<Metrics>) {
    let state = std::mem::replace(&mut *lock(&slot.state), State::Closed);
    if let State::Opening(opening) = &state {
        // What is being opened closes by itself, but it is there until then.
        opening.clone().await.ok();
    }
    if let State::Open { connection, .. } = state {
        // Calls in flight finish on the old connection.
        let all = u32::try_from(limits::UPSTREAM_CALLS).unwrap_or(u32::MAX);
        tokio::time::timeout(limits::CALL_TIMEOUT, slot.calls.acquire_many(all)).await.ok();
        connection.close().await;
        metrics.upstreams.add(-1, &[label("transport", connection.transport())]);
    }
}

/// What a caller finds at a slot.
enum Ready {
    Open(Arc<Connection>),
    Opening(SharedFuture<BoxFuture<'static, Opened>>),
    Failed(Failure),
    Closed,
}

/// An opening that panics must not leave its slot waiting for ever.
struct Unfinished(Arc<Slot>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        if matches!(&*state, State::Opening(_)) {
            *state = State::Idle;
        }
    }
}

impl Slot {
    fn is_idle(&self) -> bool {
        self.calls.available_permits() == limits::UPSTREAM_CALLS && self.watchers.load(Ordering::Acquire) == 0
    }

    /// What a caller finds here; a connection is opened where there is none.
    fn ready(self: &Arc<Self>, shared: &Arc<Shared>, key: &Key) -> Ready {
        let mut state = lock(&self.state);
        match &*state {
            State::Open { connection, .. } if !connection.is_closed() => return Ready::Open(connection.clone()),
            State::Opening(opening) => return Ready::Opening(opening.clone()),
            State::Closed => return Ready::Closed,
            State::Failed { failure, until } => {
                let left = until.saturating_duration_since(Instant::now());
                if !left.is_zero() {
                    return Ready::Failed(failure.clone().retry_after(left.as_secs() + 1));
                }
            }
            State::Open { connection, since } => {
                shared.metrics.upstreams.add(-1, &[label("transport", connection.transport())]);
                // One early death may be an accident; a second one in a row is a crash loop.
                if since.elapsed() < SHORT_LIFE && !connection.ever_answered() {
                    let streak = self.streak.fetch_add(1, Ordering::AcqRel) + 1;
                    if streak > 1 {
                        let pause = backoff(streak - 1);
                        let failure = Failure::unsent(Reason::StartFailed, "it ends soon after each start");
                        *state = State::Failed { failure: failure.clone(), until: Instant::now() + pause };
                        return Ready::Failed(failure.retry_after(pause.as_secs() + 1));
                    }
                } else {
                    self.streak.store(0, Ordering::Release);
                }
            }
            State::Idle => {}
        }
        let (sender, receiver) = oneshot::channel::<Opened>();
        let opening = async move {
            receiver.await.unwrap_or_else(|_| Err(Failure::unsent(Reason::StartFailed, "the opening was given up")))
        }
        .boxed()
        .shared();
        *state = State::Opening(opening.clone());
        let (slot, shared, key) = (self.clone(), shared.clone(), key.clone());
        let tasks = shared.tasks.clone();
        tasks.spawn("open upstream", async move {
            let unfinished = Unfinished(slot.clone());
            let turn = shared.pool.openings.turn(&key.tenant).await;
            let opened = slot.open(&shared, &key).await;
            drop((unfinished, turn));
            sender.send(opened).ok();
        });
        Ready::Opening(opening)
    }

    async fn open(self: &Arc<Self>, shared: &Arc<Shared>, key: &Key) -> Opened {
        let changed = {
            let (shared, tenant, server) = (shared.clone(), key.tenant.clone(), self.server.value.id.clone());
            Arc::new(move || shared.catalogs.changed(&shared, &tenant, &server))
        };
        let opened = match &self.server.value.transport {
            Transport::Http { .. } => {
                HttpConnection::open(shared, &self.server, self.era, changed).await.map(Connection::Http)
            }
            Transport::Command { .. } => {
                StdioConnection::open(shared, &self.server, self.era, changed).await.map(Connection::Stdio)
            }
        };
        let opened = opened.map(Arc::new).and_then(|connection| {
            // Without a session a legacy server can ask nobody: then the modern era is the better one.
            if key.legacy && !connection.keeps_session() {
                return Err(Failure::unsent(Reason::BadAnswer, "the server keeps no session"));
            }
            Ok(connection)
        });
        if let (true, Ok(connection)) = (self.thing.exclusive, &opened)
            && let Some(session) = connection.upstream_session()
        {
            shared.ownership.note(&self.thing, &session).await;
        }
        let is_closed = matches!(&*lock(&self.state), State::Closed);
        if let (Ok(connection), true) = (&opened, is_closed) {
            // Whoever configured or waited for it is gone.
            connection.close().await;
            return Err(Failure::unsent(Reason::NotConfigured, "closed while it opened"));
        }
        let mut state = lock(&self.state);
        match &opened {
            Ok(connection) if matches!(&*state, State::Closed) => {
                let connection = connection.clone();
                shared.tasks.spawn("close upstream", async move { connection.close().await });
                return Err(Failure::unsent(Reason::NotConfigured, "closed while it opened"));
            }
            Err(_) if matches!(&*state, State::Closed) => {}
            Ok(connection) => {
                shared.metrics.upstreams.add(1, &[label("transport", connection.transport())]);
                tracing::info!(server = %key.server, era = connection.era().label(), "an upstream is connected");
                if !matches!(connection.transport(), "stdio") {
                    self.streak.store(0, Ordering::Release);
                }
                *state = State::Open { connection: connection.clone(), since: Instant::now() };
            }
            Err(failure) => {
                let streak = self.streak.fetch_add(1, Ordering::AcqRel) + 1;
                *state = State::Failed { failure: failure.clone(), until: Instant::now() + backoff(streak) };
            }
        }
        opened
    }
}

/// Doubling pauses, each cut by up to a quarter at random so that many workers do not knock at once.
fn backoff(streak: usize) -> Duration {
    let doubled =
        limits::BACKOFF_FIRST * 2u32.saturating_pow(u32::try_from(streak.saturating_sub(1)).unwrap_or(10).min(10));
    let bounded = doubled.min(limits::BACKOFF_LONGEST);
    let jitter = u32::from(rollcall_shared::digest::random().first().copied().unwrap_or(0));
    bounded - bounded / 4 * jitter / 255
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        for (streak, low, high) in [(1, 375, 500), (2, 750, 1000), (3, 1500, 2000), (50, 22_500, 30_000)] {
            let pause = backoff(streak).as_millis();
            assert!((low..=high).contains(&pause), "{streak}: {pause}");
        }
    }
}
