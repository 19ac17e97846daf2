//! How far each partition has come, as this node has heard; and the change log of the embedded stores.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{Changes, Key, PARTITIONS};
use crate::limits;

/// A place in the history of a partition. A version alone is not enough: a store that lost its last writes in a failover
/// writes other ones under the same numbers. The tag, drawn for each write, tells them apart; the incarnation tells one
/// life of the store from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    pub incarnation: u64,
    pub version: u64,
    pub tag: u64,
}

/// What was heard of a partition last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    Nothing,
    /// The store has no incarnation marker for it.
    Unseeded,
    At {
        position: Position,
        /// When a read that told this was begun; none where only a notification did, or nothing can be missed.
        as_of: Option<Instant>,
    },
}

/// Raised by whoever learns of a write. A notification is a hint; what a beat reads is the truth.
pub struct Versions {
    heard: [Mutex<Heard>; PARTITIONS],
    moved: watch::Sender<u64>,
    lease: Option<Duration>,
}

impl Versions {
    /// Of a store in this process: every write is heard of before it is answered.
    pub fn embedded() -> Self {
        Self::new(Heard::At { position: Position::default(), as_of: None }, None)
    }

    /// Of a shared store, on whose word this node may rely for `lease` after it was heard.
    pub fn shared(lease: Duration) -> Self {
        Self::new(Heard::Nothing, Some(lease))
    }

    fn new(heard: Heard, lease: Option<Duration>) -> Self {
        Self { heard: std::array::from_fn(|_| Mutex::new(heard)), moved: watch::Sender::new(0), lease }
    }

    /// For how long what was heard holds; for ever in an embedded store.
    pub fn lease(&self) -> Option<Duration> {
        self.lease
    }

    pub fn heard(&self, partition: usize) -> Heard {
        self.heard.get(partition).map_or(Heard::Nothing, |slot| *lock(slot))
    }

    /// The newest version that was heard of.
    pub fn newest(&self, partition: usize) -> u64 {
        match self.heard(partition) {
            Heard::At { position, .. } => position.version,
            Heard::Nothing | Heard::Unseeded => 0,
        }
    }

    /// A write became known. One that is older than what is known is old news.
    pub fn hint(&self, partition: usize, to: Position) {
        if let Some(slot) = self.heard.get(partition) {
            let mut heard = lock(slot);
            match &mut *heard {
                Heard::At { position, .. } if to.version > position.version => *position = to,
                Heard::At { .. } => return,
                Heard::Nothing | Heard::Unseeded => *heard = Heard::At { position: to, as_of: None },
            }
        }
        self.moved.send_modify(|n| *n += 1);
    }

    /// What was just read of the store holds, whatever was heard before.
    pub fn insist(&self, partition: usize, at: Position) {
        if let Some(slot) = self.heard.get(partition) {
            let mut heard = lock(slot);
            let as_of = if let Heard::At { as_of, .. } = *heard { as_of } else { None };
            *heard = Heard::At { position: at, as_of };
        }
        self.moved.send_modify(|n| *n += 1);
    }

    /// What one beat read of all partitions: `None` where it failed, which leaves what was heard before.
    pub fn beat(&self, read: impl IntoIterator<Item = Option<Heard>>) {
        for (slot, read) in self.heard.iter().zip(read) {
            if let Some(read) = read {
                *lock(slot) = read;
            }
        }
        self.moved.send_modify(|n| *n += 1);
    }

    /// Resolves each time anything was heard.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }
}

/// The change log of an embedded store: in memory, since only this process reads it.
#[derive(Default)]
pub(super) struct Log {
    partitions: Mutex<Vec<Changed>>,
}

#[derive(Default, Clone)]
struct Changed {
    log: VecDeque<(u64, Key)>,
    version: u64,
    /// Versions up to here were written before this process began, or have left the log.
    floor: u64,
}

impl Log {
    pub(super) fn start_at(&self, partition: usize, version: u64) {
        if let Some(changed) = self.lock().get_mut(partition) {
            changed.floor = version;
            changed.version = version;
        }
    }

    pub(super) fn append(&self, partition: usize, version: u64, keys: impl IntoIterator<Item = Key>) {
        let mut partitions = self.lock();
        let Some(changed) = partitions.get_mut(partition) else { return };
        changed.version = version;
        changed.log.extend(keys.into_iter().map(|key| (version, key)));
        while changed.log.len() > limits::CHANGE_LOG {
            if let Some((gone, _)) = changed.log.pop_front() {
                changed.floor = changed.floor.max(gone);
            }
        }
    }

    pub(super) fn position(&self, partition: usize) -> Position {
        let version = self.lock().get(partition).map_or(0, |changed| changed.version);
        Position { version, ..Position::default() }
    }

    pub(super) fn after(&self, partition: usize, after: Position) -> Changes {
        let to = self.position(partition);
        let partitions = self.lock();
        let Some(changed) = partitions.get(partition).filter(|changed| after.version >= changed.floor) else {
            return Changes::Gap { to };
        };
        let newer = |(version, _): &&(u64, Key)| *version > after.version && *version <= to.version;
        Changes::Since { to, keys: changed.log.iter().filter(newer).map(|(_, key)| key.clone()).collect() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Changed>> {
        let mut partitions = lock(&self.partitions);
        partitions.resize(PARTITIONS, Changed::default());
        partitions
    }
}

/// A lock that a panicking holder left is still good: each critical section here is one step.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
