//! Following the store: what changed is read again, and how long what is at hand may be relied on.
//!
//! A partition is fresh from the moment at which a read of its position was begun, once everything up to that position is
//! applied; it may be relied on for the store's lease from there. A store without its marker, or one that went back
//! further than a failover explains, closes the partition until it is seeded again: what was taken away must not come
//! back by itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::Tenants;
use crate::ids::TenantId;
use crate::limits;
use crate::store::{Changes, Heard, Key, Kind, PARTITIONS, Position, StoreError, Versions, partition};
use crate::task::Tasks;

/// How far this node has followed, and until when that holds.
pub(super) struct Followed {
    parts: [Part; PARTITIONS],
    began: Instant,
    progress: watch::Sender<u64>,
}

struct Part {
    /// The version that is applied.
    applied: AtomicU64,
    /// Milliseconds since `began` until which the partition may be relied on.
    fresh_until_ms: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    position: Option<Position>,
    /// Where it was when the store was found without its marker.
    before: Option<Position>,
    past: Past,
    closed: Option<StoreError>,
    as_of: Option<Instant>,
}

/// Until when an embedded store may be relied on.
const FOR_EVER: u64 = u64::MAX;

impl Followed {
    pub(super) fn new(versions: &Versions) -> Self {
        let parts = std::array::from_fn(|index| {
            let mut state = State::default();
            if let (Heard::At { position, .. }, None) = (versions.heard(index), versions.lease()) {
                state.position = Some(position);
            }
            Part {
                applied: AtomicU64::new(state.position.map_or(0, |p| p.version)),
                fresh_until_ms: AtomicU64::new(if versions.lease().is_none() { FOR_EVER } else { 0 }),
                state: Mutex::new(state),
            }
        });
        Self { parts, began: Instant::now(), progress: watch::Sender::new(0) }
    }

    fn state(&self, index: usize) -> Option<std::sync::MutexGuard<'_, State>> {
        let part = self.parts.get(index)?;
        Some(part.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.progress.subscribe()
    }

    fn has_applied(&self, index: usize, version: u64) -> bool {
        self.parts.get(index).is_none_or(|part| part.applied.load(Ordering::Acquire) >= version)
    }

    /// Whether a place in the history is behind us: a number alone could be of another history.
    fn has_reached(&self, index: usize, at: Position) -> bool {
        let Some(mine) = self.state(index).and_then(|state| state.position) else { return false };
        if mine == at {
            return true;
        }
        let is_embedded = self.parts.get(index).is_some_and(|p| p.fresh_until_ms.load(Ordering::Acquire) == FOR_EVER);
        let passed = mine.incarnation == at.incarnation && mine.version > at.version;
        passed && (is_embedded || self.is_recent(index, at.version))
    }

    /// Whether a version was passed a moment ago: a request's question is no older, so that a step back cannot hide in it.
    fn is_recent(&self, index: usize, version: u64) -> bool {
        let Some(state) = self.state(index) else { return false };
        let next = state.past.recent.iter().find(|(passed, _)| *passed > version);
        next.is_some_and(|(_, at)| at.elapsed() < limits::STRICT_TIMEOUT)
    }

    /// Whether what is at hand of a partition may be relied on now: a comparison, in a request.
    pub(super) fn check(&self, index: usize) -> Result<(), StoreError> {
        let until = self.parts.get(index).map_or(0, |part| part.fresh_until_ms.load(Ordering::Acquire));
        if until == FOR_EVER || self.ms(Instant::now()) < until {
            return Ok(());
        }
        let closed = self.state(index).and_then(|state| state.closed.clone());
        Err(closed.unwrap_or_else(|| StoreError::Unavailable("its lease has ended".to_owned())))
    }

    fn ms(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX - 1)
    }

    /// The age of the oldest word of the store that this node relies on; none for an embedded store.
    fn age(&self) -> Option<Duration> {
        let oldest = (0..PARTITIONS).filter_map(|index| self.state(index)?.as_of).min()?;
        Some(oldest.elapsed())
    }
}

/// Versions that were the newest within the last lease.
#[derive(Default)]
struct Past {
    recent: VecDeque<(u64, Instant)>,
    /// What is older than this was superseded longer ago than the lease, or might have been.
    floor: u64,
}

impl Past {
    fn passed(&mut self, version: u64, now: Instant, lease: Duration) {
        self.recent.push_back((version, now));
        while self.recent.front().is_some_and(|(_, at)| now.saturating_duration_since(*at) > lease)
            || self.recent.len() > limits::CHANGE_LOG
        {
            // All before this one was superseded when it came.
            self.floor = self.recent.pop_front().map_or(self.floor, |(version, _)| version);
        }
    }

    /// Whether a version was still the newest a lease ago.
    fn explains(&self, version: u64) -> bool {
        version >= self.floor
    }

    fn starts_at(version: u64) -> Self {
        Self { recent: VecDeque::new(), floor: version }
    }
}

impl Tenants {
    /// Ticks with each batch of changes that was applied, whosever they are.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.followed.changes()
    }

    /// Whether what is at hand of a partition may be relied on now.
    pub fn check(&self, index: usize) -> Result<(), StoreError> {
        self.followed.check(index)
    }

    /// Whether every partition may be relied on: what readiness is.
    pub fn check_all(&self) -> Result<(), StoreError> {
        (0..PARTITIONS).try_for_each(|index| self.followed.check(index))
    }

    /// For requests that may rely on nothing older than themselves: asks the store where the partition stands, and waits
    /// until everything up to there is applied.
    pub async fn catch_up_with_now(&self, index: usize) -> Result<(), StoreError> {
        let position = self.documents.position(index).await?;
        let there = || self.followed.has_reached(index, position);
        if !there() {
            self.documents.versions().insist(index, position);
        }
        if !self.wait_until(there, limits::STRICT_TIMEOUT).await {
            return Err(StoreError::Unavailable("changes could not be applied in time".to_owned()));
        }
        self.check(index)
    }

    /// Follows the store's versions until the program drains.
    pub fn follow(self: &Arc<Self>, tasks: &Tasks) {
        let tenants = self.clone();
        tasks.spawn_until_stop("tenants", async move {
            let mut versions = tenants.documents.versions().watch();
            loop {
                // At once, so that one part of the store that does not answer delays no other.
                let all = (0..PARTITIONS).map(|index| tenants.catch_up(index));
                let behind = futures_util::future::join_all(all).await.into_iter().find_map(Result::err);
                if let Some(age) = tenants.followed.age() {
                    tenants.metrics.store_age.record(age.as_secs_f64(), &[]);
                }
                match behind {
                    Some(error) => {
                        tracing::warn!(%error, "changes could not be read; trying again");
                        tokio::time::sleep(limits::CATCH_UP_PAUSE).await;
                    }
                    // The age is told also while the store says nothing.
                    None => {
                        let moved = tokio::time::timeout(limits::MEMBERS_LOOK, versions.changed()).await;
                        if let Ok(Err(_)) = moved {
                            return;
                        }
                    }
                }
            }
        });
    }

    /// Waits until this node has applied a version that was just written, at most a few seconds: the write stands
    /// either way.
    pub async fn applied(&self, tenant: &TenantId, version: u64) {
        let there = || self.followed.has_applied(partition(tenant), version);
        if !self.wait_until(there, limits::APPLY_TIMEOUT).await {
            tracing::error!(%tenant, version, "a write was not applied in time");
        }
    }

    async fn wait_until(&self, there: impl Fn() -> bool, patience: Duration) -> bool {
        let mut progress = self.followed.changes();
        let waiting = async {
            while !there() {
                if progress.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(patience, waiting).await.is_ok()
    }

    async fn catch_up(&self, index: usize) -> Result<(), StoreError> {
        let Some(part) = self.followed.parts.get(index) else { return Ok(()) };
        let (heard, as_of) = match self.documents.versions().heard(index) {
            Heard::Nothing => return Ok(()),
            Heard::Unseeded => {
                self.close(index);
                return Ok(());
            }
            Heard::At { position, as_of } => (position, as_of),
        };
        let mine = self.followed.state(index).and_then(|state| state.position);
        if mine != Some(heard) {
            let to = match mine {
                None => {
                    self.forget_partition(index).await;
                    let before = self.followed.state(index).and_then(|mut state| state.before.take());
                    match before.filter(|before| before.incarnation == heard.incarnation) {
                        // It is the same life of the store again, and maybe an older day of it.
                        Some(before) if before != heard => self.jumps(index, before, heard),
                        Some(_) => self.opens(index),
                        None => self.starts(index, heard),
                    }
                    heard
                }
                Some(mine) => match self.documents.changes(index, mine).await? {
                    Changes::Since { to, keys } => {
                        self.apply_changes(keys).await?;
                        to
                    }
                    Changes::Gap { to } => {
                        self.forget_partition(index).await;
                        self.jumps(index, mine, to);
                        to
                    }
                },
            };
            if let Some(mut state) = self.followed.state(index) {
                state.position = Some(to);
                if let Some(lease) = self.documents.versions().lease() {
                    state.past.passed(to.version, Instant::now(), lease);
                }
            }
            part.applied.store(to.version, Ordering::Release);
            self.followed.progress.send_modify(|n| *n += 1);
        }
        if let (Some(as_of), Some(lease)) = (as_of, self.documents.versions().lease())
            && let Some(mut state) = self.followed.state(index)
        {
            state.as_of = Some(as_of);
            let until = if state.closed.is_none() { self.followed.ms(as_of + lease) } else { 0 };
            part.fresh_until_ms.store(until, Ordering::Release);
        }
        Ok(())
    }

    /// The store says that it holds nothing: neither does this node.
    fn close(&self, index: usize) {
        let (Some(part), Some(mut state)) = (self.followed.parts.get(index), self.followed.state(index)) else {
            return;
        };
        if !matches!(state.closed, Some(StoreError::WentBack { .. })) {
            state.closed = Some(StoreError::NotSeeded);
        }
        state.before = state.position.take().or(state.before);
        part.fresh_until_ms.store(0, Ordering::Release);
    }

    /// A partition is met for the first time, or anew after it was seeded.
    fn starts(&self, index: usize, at: Position) {
        if let Some(mut state) = self.followed.state(index) {
            state.closed = None;
            state.past = Past::starts_at(at.version);
        }
    }

    /// The marker is there again.
    fn opens(&self, index: usize) {
        let state = self.followed.state(index);
        if let Some(mut state) = state.filter(|state| matches!(state.closed, Some(StoreError::NotSeeded))) {
            state.closed = None;
        }
    }

    /// The history goes on elsewhere than where this node was.
    fn jumps(&self, index: usize, from: Position, to: Position) {
        if from.incarnation != to.incarnation {
            self.starts(index, to);
            return;
        }
        if to.version > from.version {
            // The log was too short, or the last writes were lost and more made since: all is read anew in either case.
            self.opens(index);
            return;
        }
        self.metrics.store_regressions.add(1, &[]);
        let Some(mut state) = self.followed.state(index) else { return };
        if state.past.explains(to.version) {
            tracing::error!(partition = index, from = from.version, to = to.version, "the store lost its last writes");
            drop(state);
            self.opens(index);
        } else {
            let error = StoreError::WentBack { partition: index, from: from.version, to: to.version };
            tracing::error!(%error, "the store is an older one");
            state.closed = Some(error);
        }
    }

    async fn apply_changes(&self, keys: Vec<Key>) -> Result<(), StoreError> {
        let mut by_tenant: BTreeMap<TenantId, BTreeSet<Key>> = BTreeMap::new();
        for key in keys {
            match key.kind {
                Kind::McpSession => self.mcp_sessions.forget(&key.tenant, &key.id),
                Kind::Instructions => self.instructions.forget(&key.tenant, &key.id),
                Kind::Policy | Kind::SessionRevoked => self.sessions.forget(&key.tenant, &key.id),
                Kind::Settings
                | Kind::Server
                | Kind::Tool
                | Kind::Bundle
                | Kind::Aliases
                | Kind::Catalog
                | Kind::Revoked => {
                    by_tenant.entry(key.tenant.clone()).or_default().insert(key);
                }
            }
        }
        for (id, keys) in by_tenant {
            let Some(tenant) = self.at_hand.get(&id).await else { continue };
            let _writer = tenant.writer.lock().await;
            self.reread(&tenant, &keys).await?;
        }
        Ok(())
    }

    /// Whatever is at hand of a partition may be old: let it be loaded anew.
    async fn forget_partition(&self, index: usize) {
        self.mcp_sessions.forget_partition(index);
        self.instructions.forget_partition(index);
        self.sessions.forget_partition(index);
        let of_partition = |id: &TenantId| partition(id) == index;
        let old: Vec<TenantId> = self.at_hand.iter().map(|(id, _)| id.as_ref().clone()).filter(of_partition).collect();
        for id in old {
            self.at_hand.invalidate(&id).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_explains_a_step_back_only_while_it_was_new() {
        let lease = Duration::from_secs(30);
        let began = Instant::now();
        let at = |s| began + Duration::from_secs(s);
        let mut past = Past::starts_at(10);
        for (version, seconds) in [(11, 0), (12, 5), (13, 40)] {
            past.passed(version, at(seconds), lease);
        }
        // 12 was the newest until second 40; 11 was superseded at second 5.
        assert!(past.explains(13) && past.explains(12));
        assert!(!past.explains(11) && !past.explains(10));
    }
}
