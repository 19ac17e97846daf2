//! Legacy transport sessions at hand: a warm request of one waits for no store.
//!
//! Absence is remembered too, since most sessions never store anything. A change takes exactly its own entry away; a read
//! that a change overtook is not kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Tenants;
use crate::limits;
use crate::model::McpSession;
use crate::store::{Key, Kind, StoreError};

/// See the module.
pub(super) struct Remembered {
    at_hand: moka::sync::Cache<Key, Arc<McpSession>>,
    /// Raised before an entry is taken away.
    changes: AtomicU64,
}

impl Default for Remembered {
    fn default() -> Self {
        let at_hand = moka::sync::Cache::builder()
            .max_capacity(limits::MCP_SESSIONS_AT_HAND)
            .time_to_idle(limits::SESSION_IDLE)
            .build();
        Self { at_hand, changes: AtomicU64::new(0) }
    }
}

impl Remembered {
    pub(super) async fn get(&self, tenants: &Tenants, key: Key) -> Result<Arc<McpSession>, StoreError> {
        if let Some(known) = self.at_hand.get(&key) {
            return Ok(known);
        }
        let seen = self.changes.load(Ordering::Acquire);
        let stored = tenants.documents.get(&key).await?;
        // One that cannot be read counts as ended: its client opens another.
        let unreadable = || McpSession { ended: true, ..McpSession::default() };
        let session = stored.map(|d| tenants.read(&key, &d.body).unwrap_or_else(unreadable)).unwrap_or_default();
        let session = Arc::new(session);
        self.at_hand.insert(key.clone(), session.clone());
        if self.changes.load(Ordering::Acquire) != seen {
            self.at_hand.invalidate(&key);
        }
        Ok(session)
    }

    pub(super) fn forget(&self, key: &Key) {
        if key.kind == Kind::McpSession {
            self.changes.fetch_add(1, Ordering::AcqRel);
            self.at_hand.invalidate(key);
        }
    }

    pub(super) fn forget_all(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.at_hand.invalidate_all();
    }
}
