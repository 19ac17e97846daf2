//! What is stored of sessions, at hand: a warm request of one waits for no store.
//!
//! Absence is remembered too, since most sessions never store anything. A change takes exactly its own entry away and marks
//! it, so that whoever still holds it finds out with one load; a read that a change overtook is marked as well.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::digest;
use crate::ids::TenantId;
use crate::limits;
use crate::store::{StoreError, partition};

/// A value that was read of the store, and whether it still holds.
pub struct AtHand<T> {
    pub value: T,
    partition: usize,
    stale: AtomicBool,
}

impl<T> AtHand<T> {
    pub fn is_current(&self) -> bool {
        !self.stale.load(Ordering::Acquire)
    }
}

/// A hash of tenant and session under a key that only this process knows: a fraction of the two texts, and nobody can look
/// for two sessions that share one.
type Key = [u8; 16];

/// See the module.
pub(super) struct Remembered<T> {
    secret: [u8; 32],
    at_hand: moka::sync::Cache<Key, Arc<AtHand<T>>>,
    /// Raised before an entry is taken away.
    changes: AtomicU64,
}

impl<T: Send + Sync + 'static> Remembered<T> {
    pub(super) fn new(capacity: u64) -> Self {
        let at_hand = moka::sync::Cache::builder()
            .max_capacity(capacity)
            .time_to_idle(limits::SESSION_IDLE)
            .eviction_listener(|_, gone: Arc<AtHand<T>>, _| gone.stale.store(true, Ordering::Release))
            .build();
        Self { secret: *blake3::hash(&digest::random()).as_bytes(), at_hand, changes: AtomicU64::new(0) }
    }

    fn key(&self, tenant: &TenantId, id: &str) -> Key {
        let mut hash = blake3::Hasher::new_keyed(&self.secret);
        hash.update(&tenant.as_str().len().to_le_bytes());
        hash.update(tenant.as_str().as_bytes());
        hash.update(id.as_bytes());
        *hash.finalize().as_bytes().first_chunk().unwrap_or(&[0; 16])
    }

    /// `read` says whether the value may be kept: one that stands for something unreadable is read again the next time.
    pub(super) async fn get(
        &self,
        tenant: &TenantId,
        id: &str,
        read: impl Future<Output = Result<(T, bool), StoreError>>,
    ) -> Result<Arc<AtHand<T>>, StoreError> {
        let key = self.key(tenant, id);
        if let Some(known) = self.at_hand.get(&key) {
            return Ok(known);
        }
        let seen = self.changes.load(Ordering::Acquire);
        let (value, may_be_kept) = read.await?;
        let entry = Arc::new(AtHand { value, partition: partition(tenant), stale: AtomicBool::new(!may_be_kept) });
        if !may_be_kept {
            return Ok(entry);
        }
        self.at_hand.insert(key, entry.clone());
        if self.changes.load(Ordering::Acquire) != seen {
            entry.stale.store(true, Ordering::Release);
            self.at_hand.invalidate(&key);
        }
        Ok(entry)
    }

    pub(super) fn forget(&self, tenant: &TenantId, id: &str) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        if let Some(gone) = self.at_hand.remove(&self.key(tenant, id)) {
            gone.stale.store(true, Ordering::Release);
        }
    }

    pub(super) fn forget_partition(&self, index: usize) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        for (key, entry) in &self.at_hand {
            if entry.partition == index {
                entry.stale.store(true, Ordering::Release);
                self.at_hand.invalidate(key.as_ref());
            }
        }
    }
}

/// Values by the bytes that they were read from, as long as anybody has them.
pub(super) struct Shared<T>(Mutex<HashMap<blake3::Hash, Weak<T>>>);

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Shared<T> {
    /// The value of these bytes; read, where nobody has it.
    pub(super) fn get(&self, bytes: &[u8], read: impl FnOnce() -> Option<T>) -> Option<Arc<T>> {
        let key = blake3::hash(bytes);
        let known = |map: &HashMap<blake3::Hash, Weak<T>>| map.get(&key).and_then(Weak::upgrade);
        if let Some(known) = known(&self.lock()) {
            return Some(known);
        }
        let value = Arc::new(read()?);
        let mut map = self.lock();
        if map.len().is_power_of_two() && map.len() >= 1024 {
            map.retain(|_, value| value.strong_count() > 0);
        }
        map.insert(key, Arc::downgrade(&value));
        Some(value)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<blake3::Hash, Weak<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
