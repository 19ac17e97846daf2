//! The newest version of each partition, and who waits for it to move.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use super::{Changes, Key, PARTITIONS};
use crate::limits;
use std::collections::VecDeque;

/// Readable without a lock by every request; raised by whoever learns of a write.
pub struct Versions {
    newest: [AtomicU64; PARTITIONS],
    moved: watch::Sender<u64>,
}

impl Default for Versions {
    fn default() -> Self {
        Self { newest: std::array::from_fn(|_| AtomicU64::new(0)), moved: watch::Sender::new(0) }
    }
}

impl Versions {
    pub fn newest(&self, partition: usize) -> u64 {
        self.newest.get(partition).map_or(0, |v| v.load(Ordering::Acquire))
    }

    /// Raises a partition's version; a lower one is old news.
    pub fn raise(&self, partition: usize, version: u64) {
        if let Some(slot) = self.newest.get(partition) {
            slot.fetch_max(version, Ordering::AcqRel);
        }
        self.moved.send_modify(|n| *n += 1);
    }

    /// Resolves each time any version was raised.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }
}

/// The change log of an embedded store: in memory, since only this process reads it.
#[derive(Default)]
pub(super) struct Log {
    partitions: Mutex<Vec<VecDeque<(u64, Key)>>>,
    /// Versions up to here were written before this process began, or have left the log.
    floor: Mutex<Vec<u64>>,
}

impl Log {
    pub(super) fn start_at(&self, partition: usize, version: u64) {
        let mut floor = lock(&self.floor);
        floor.resize(PARTITIONS, 0);
        if let Some(slot) = floor.get_mut(partition) {
            *slot = version;
        }
    }

    pub(super) fn append(&self, partition: usize, version: u64, keys: impl IntoIterator<Item = Key>) {
        let mut logs = lock(&self.partitions);
        let mut floor = lock(&self.floor);
        logs.resize_with(PARTITIONS, VecDeque::new);
        floor.resize(PARTITIONS, 0);
        let (Some(log), Some(floor)) = (logs.get_mut(partition), floor.get_mut(partition)) else { return };
        log.extend(keys.into_iter().map(|key| (version, key)));
        while log.len() > limits::CHANGE_LOG {
            if let Some((gone, _)) = log.pop_front() {
                *floor = (*floor).max(gone);
            }
        }
    }

    pub(super) fn after(&self, partition: usize, version: u64) -> Changes {
        let floor = lock(&self.floor).get(partition).copied().unwrap_or(0);
        if version < floor {
            return Changes::Gap;
        }
        let logs = lock(&self.partitions);
        let log = logs.get(partition);
        Changes::Since(log.into_iter().flatten().filter(|(v, _)| *v > version).cloned().collect())
    }
}

/// A lock that a panicking holder left is still good: each critical section here is one step.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
