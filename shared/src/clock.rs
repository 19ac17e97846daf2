//! Wall-clock seconds. Deadlines use tokio's monotonic clock, which tests can pause; only `exp` and its like use this.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970-01-01T00:00:00Z; 0 on a machine whose clock stands before that.
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
