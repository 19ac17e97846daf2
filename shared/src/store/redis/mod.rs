//! The shared store: Redis 7 or Valkey; one server, Sentinel, or Cluster; plain or TLS.
//!
//! Each of the 64 partitions has its keys in one hash slot, so that one script changes a document with the partition's
//! version, log and notification. Redis loses whole keys (by eviction, by accident), so documents are fields of two hashes
//! a tenant, one for the tenant's own and one for its sessions', and the partition's `meta` remembers which hashes were
//! begun: one that is gone is noticed, and allows nothing. The same `meta` holds the incarnation marker.
//!
//! | key | what |
//! |---|---|
//! | `rc:{pNN}:meta` | hash: `inc`, `ver`, `tag`; `d:<tenant>` and `s:<tenant>` for hashes that were begun |
//! | `rc:{pNN}:docs:<tenant>` | hash: `<kind>:<id>` → version, line feed, document; the empty field marks it as begun |
//! | `rc:{pNN}:sessions:<tenant>` | the same for documents of sessions |
//! | `rc:{pNN}:log` | stream: one entry a changed document, `<version>-<n>`, with its address and the write's tag |
//! | `rc:{pNN}:expiry` | sorted set of what expires |
//! | `rc:{pNN}:own:<tenant>:…` | hash: who holds an exclusive connection |
//! | `rc:{pNN}:count:<tenant>:…`, `rc:{pNN}:lock:<tenant>:…` | counters and locks |
//! | `rc:{m}:members`, `rc:{m}:leases`, `rc:{m}:ver`, `rc:{m}:grace` | workers |
//! | `rc:blob:<digest>` | content by its SHA-256; expires when nobody has used it for long |

mod documents;
mod link;
mod members;
mod scripts;
mod settings;
mod watch;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, Shared};
use redis::Script;

use self::link::Link;
use super::versions::{Position, Versions};
use super::{PARTITIONS, StoreError};
use crate::digest::random;
use crate::limits;
use crate::task::Tasks;

pub use settings::{RedisSettings, Topology};

type Asked = Shared<BoxFuture<'static, Result<Position, StoreError>>>;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct RedisStore {
    link: Arc<Link>,
    versions: Arc<Versions>,
    /// Ticks when the members may have changed.
    members: Arc<tokio::sync::watch::Sender<u64>>,
    scripts: Arc<Scripts>,
    /// The next question for each partition's position, which whoever comes now may join.
    asking: Arc<[Mutex<Option<Asked>>; PARTITIONS]>,
    /// The connection by which each partition was written to last.
    wrote_by: Arc<[AtomicU64; PARTITIONS]>,
}

struct Scripts {
    write: Script,
    sweep: Script,
    seed: Script,
    beat: Script,
    leave: Script,
    claim: Script,
    note: Script,
    unlock: Script,
    count: Script,
}

/// `rc:{pNN}:` and what follows.
fn key(partition: usize, rest: &str) -> String {
    format!("rc:{{p{partition:02}}}:{rest}")
}

const MEMBERS_CHANNEL: &str = "rc:{m}:ch";

impl RedisStore {
    /// Connects in the background, and again whenever the connection is lost; until then whoever asks is refused.
    pub fn open(settings: RedisSettings, tasks: &Tasks) -> Result<Self, StoreError> {
        Self::open_with_lease(settings, limits::STORE_LEASE, tasks)
    }

    /// `lease`: for how long this node may rely on what it holds when the store does not answer.
    pub fn open_with_lease(settings: RedisSettings, lease: Duration, tasks: &Tasks) -> Result<Self, StoreError> {
        let store = Self {
            link: Arc::new(Link::new(settings)?),
            versions: Arc::new(Versions::shared(lease)),
            members: Arc::new(tokio::sync::watch::Sender::new(0)),
            scripts: Arc::new(Scripts {
                write: Script::new(scripts::WRITE),
                sweep: Script::new(scripts::SWEEP),
                seed: Script::new(scripts::SEED),
                beat: Script::new(scripts::BEAT),
                leave: Script::new(scripts::LEAVE),
                claim: Script::new(scripts::CLAIM),
                note: Script::new(scripts::NOTE),
                unlock: Script::new(scripts::UNLOCK),
                count: Script::new(scripts::COUNT),
            }),
            asking: Arc::new(std::array::from_fn(|_| Mutex::new(None))),
            wrote_by: Arc::new(std::array::from_fn(|_| AtomicU64::new(0))),
        };
        let watching = store.clone();
        // Not ended by a drain: calls in flight still need the store, and it ends with the program.
        tasks.spawn_until_stop("store", async move { watching.watch_forever().await });
        Ok(store)
    }

    /// Waits until the store has answered for the first time.
    pub async fn connected(&self, patience: Duration) -> Result<(), StoreError> {
        let mut moved = self.versions.watch();
        let waiting = async {
            while self.link.reads().is_err() {
                if moved.changed().await.is_err() {
                    return;
                }
            }
        };
        let late = |_| StoreError::Unavailable("no connection in time".to_owned());
        tokio::time::timeout(patience, waiting).await.map_err(late)
    }

    /// Gives partitions without an incarnation marker one; with `anew`, all of them. Returns how many.
    ///
    /// What the store holds then counts, and what it lost counts as never written.
    pub async fn seed(&self, anew: bool) -> Result<usize, StoreError> {
        let mut seeded = 0;
        let mut writes = self.link.writes().await?;
        for partition in 0..PARTITIONS {
            let incarnation = draw();
            let mut script = self.scripts.seed.prepare_invoke();
            script.key(key(partition, "meta")).key(key(partition, "log"));
            script.arg(incarnation).arg(if anew { "1" } else { "0" });
            script.arg(key(partition, "docs:")).arg(key(partition, "sessions:"));
            seeded += writes.with(async |c| script.invoke_async::<usize>(c).await).await?;
        }
        Ok(seeded)
    }

    fn publishes(&self) -> &'static str {
        if self.link.settings.topology == Topology::Cluster { "SPUBLISH" } else { "PUBLISH" }
    }
}

/// A random number that fits a double, so that scripts may handle it: 53 bits.
fn draw() -> u64 {
    random().first_chunk().map_or(1, |half| u64::from_be_bytes(*half) >> 11)
}
