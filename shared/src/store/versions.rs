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
    partitions: Mutex<Vec<Changed>>,
}

#[derive(Default, Clone)]
struct Changed {
    log: VecDeque<(u64, Key)>,
    /// Versions up to here were written before this process began, or have left the log.
    floor: u64,
}

impl Log {
    pub(super) fn start_at(&self, partition: usize, version: u64) {
        if let Some(changed) = self.lock().get_mut(partition) {
            changed.floor = version;
        }
    }

    pub(super) fn append(&self, partition: usize, version: u64, keys: impl IntoIterator<Item = Key>) {
        let mut partitions = self.lock();
        let Some(changed) = partitions.get_mut(partition) else { return };
        changed.log.extend(keys.into_iter().map(|key| (version, key)));
        while changed.log.len() > limits::CHANGE_LOG {
            if let Some((gone, _)) = changed.log.pop_front() {
                changed.floor = changed.floor.max(gone);
            }
        }
    }

    pub(super) fn after(&self, partition: usize, version: u64) -> Changes {
        let partitions = self.lock();
        let Some(changed) = partitions.get(partition) else { return Changes::Gap };
        if version < changed.floor {
            return Changes::Gap;
        }
        Changes::Since(changed.log.iter().filter(|(v, _)| *v > version).cloned().collect())
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
