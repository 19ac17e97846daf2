//! The store of documents: versioned, watched, durable. A notification is a hint, a version is the truth.
//!
//! Tenants hash to 64 partitions. Each has one version, which every write raises, and a bounded change log; a reader
//! that has seen version `n` asks what changed after it and re-reads only that. Losing the store, or a document in it,
//! can only narrow what is allowed: a store without its incarnation marker denies everything until it is seeded.

mod file;
pub mod membership;
mod memory;
pub mod redis;
mod versions;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::ids::TenantId;

pub use file::FileStore;
pub use memory::MemoryStore;
pub use versions::{Heard, Position, Versions};

/// Partitions of the store. Fixed: a change would move every tenant.
pub const PARTITIONS: usize = 64;

/// The partition of a tenant: the first byte of the hash of its id, by 64.
pub fn partition(tenant: &TenantId) -> usize {
    Digest::of(tenant.as_str().as_bytes()).as_bytes().first().map_or(0, |b| usize::from(*b) % PARTITIONS)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Settings,
    Server,
    Tool,
    Bundle,
    Aliases,
    Catalog,
    Policy,
    /// The tenant itself, or one of its tools, is revoked.
    Revoked,
    /// A session is revoked, whatever its policy says.
    SessionRevoked,
    /// What a legacy transport session remembers.
    McpSession,
    /// What a session is told before its tools.
    Instructions,
}

impl Kind {
    pub const ALL: [Kind; 11] = [
        Kind::Settings,
        Kind::Server,
        Kind::Tool,
        Kind::Bundle,
        Kind::Aliases,
        Kind::Catalog,
        Kind::Policy,
        Kind::Revoked,
        Kind::SessionRevoked,
        Kind::McpSession,
        Kind::Instructions,
    ];

    /// Documents of sessions are read one by one; a tenant may have a million.
    pub fn is_of_session(self) -> bool {
        matches!(self, Kind::Policy | Kind::SessionRevoked | Kind::McpSession | Kind::Instructions)
    }

    pub fn of_label(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.label() == label)
    }

    pub fn label(self) -> &'static str {
        match self {
            Kind::Settings => "settings",
            Kind::Server => "server",
            Kind::Tool => "tool",
            Kind::Bundle => "bundle",
            Kind::Aliases => "aliases",
            Kind::Catalog => "catalog",
            Kind::Policy => "policy",
            Kind::Revoked => "revoked",
            Kind::SessionRevoked => "session_revoked",
            Kind::McpSession => "mcp_session",
            Kind::Instructions => "instructions",
        }
    }
}

/// The address of a document. It always carries the tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub tenant: TenantId,
    pub kind: Kind,
    pub id: String,
}

impl Key {
    pub fn new(tenant: &TenantId, kind: Kind, id: impl Into<String>) -> Self {
        Self { tenant: tenant.clone(), kind, id: id.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.tenant, self.kind.label(), self.id)
    }
}

/// A stored document. Its version is that of its partition when it was written, so it never repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub version: u64,
    pub body: Bytes,
}

/// What a write expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Any,
    Absent,
    Version(u64),
}

/// One change of a transaction. A body of `None` deletes.
#[derive(Debug, Clone)]
pub struct Write {
    pub key: Key,
    pub expect: Expect,
    pub body: Option<Vec<u8>>,
    /// Seconds since 1970 after which the document may be swept.
    pub expires_at: Option<u64>,
}

impl Write {
    pub fn put(key: Key, expect: Expect, body: Vec<u8>) -> Self {
        Self { key, expect, body: Some(body), expires_at: None }
    }

    pub fn delete(key: Key, expect: Expect) -> Self {
        Self { key, expect, body: None, expires_at: None }
    }
}

/// What a forgotten policy becomes.
#[derive(Debug, Clone)]
pub struct Tombstone {
    pub body: Vec<u8>,
    /// Seconds since 1970.
    pub expires_at: u64,
}

impl Tombstone {
    /// What becomes of a document when its tenant is forgotten.
    fn instead_of(&self, key: Key) -> Option<Write> {
        match key.kind {
            Kind::Revoked | Kind::SessionRevoked => None,
            Kind::Policy => {
                let body = self.body.clone();
                Some(Write { expires_at: Some(self.expires_at), ..Write::put(key, Expect::Any, body) })
            }
            Kind::Settings
            | Kind::Server
            | Kind::Tool
            | Kind::Bundle
            | Kind::Aliases
            | Kind::Catalog
            | Kind::McpSession
            | Kind::Instructions => Some(Write::delete(key, Expect::Any)),
        }
    }
}

/// What changed after a position, up to another one.
#[derive(Debug, PartialEq, Eq)]
pub enum Changes {
    Since {
        to: Position,
        keys: Vec<Key>,
    },
    /// The log does not reach back that far, or the store's history is not the one that was seen: read everything again.
    Gap {
        to: Position,
    },
}

/// A tenant's documents, at least as new as `at`.
#[derive(Debug)]
pub struct Listed {
    pub at: Position,
    pub documents: Vec<(Key, Document)>,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error("{key} has version {found:?}, not the expected one")]
    Conflict { key: String, found: Option<u64> },
    #[error("the store does not answer: {0}")]
    Unavailable(String),
    #[error("the store has lost its incarnation marker; nothing is allowed until it is seeded again")]
    NotSeeded,
    #[error("the store has lost the documents of {0}; nothing is allowed there until it is seeded again")]
    Lost(String),
    #[error(
        "the store went back from version {from} to {to} of partition {partition}; nothing is allowed there until it is seeded again"
    )]
    WentBack { partition: usize, from: u64, to: u64 },
    #[error("what the store holds is not what was put there: {0}")]
    Damaged(String),
    #[error("the write stands, but no replica confirmed it in time")]
    NotProven,
}

/// Versioned, watched, durable documents, and blobs addressed by their content.
pub trait Documents: Send + Sync {
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Document>, StoreError>>;
    /// All documents of a tenant except those of its sessions, which are read one by one.
    fn list<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<Listed, StoreError>>;
    /// All or nothing. Every key must be of `tenant`. Gives the partition's new version.
    fn write<'a>(&'a self, tenant: &'a TenantId, writes: Vec<Write>) -> BoxFuture<'a, Result<u64, StoreError>>;
    fn put_blob<'a>(&'a self, digest: &'a Digest, bytes: Vec<u8>) -> BoxFuture<'a, Result<(), StoreError>>;
    fn get_blob<'a>(&'a self, digest: &'a Digest) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>>;
    /// Whether a blob is there; a store in which unused ones expire keeps it for another while.
    fn keep_blob<'a>(&'a self, digest: &'a Digest) -> BoxFuture<'a, Result<bool, StoreError>>;
    /// Tenants that have a document of settings.
    fn tenants(&self) -> BoxFuture<'_, Result<Vec<TenantId>, StoreError>>;
    fn changes(&self, partition: usize, after: Position) -> BoxFuture<'_, Result<Changes, StoreError>>;
    /// Where a partition stands now, for requests that may rely on nothing older than themselves. Asks the store, where it
    /// is another process; those who ask at once share one question that is put after they came.
    fn position(&self, partition: usize) -> BoxFuture<'_, Result<Position, StoreError>>;
    /// Waits until the writes that this node made before are held by a replica, where there are any; `NotProven` if none
    /// confirms in time.
    fn prove<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<(), StoreError>>;
    /// Removes a tenant: its revocations stay, and each policy of a session becomes `tombstone`, which expires, so that a
    /// tenant of the same name finds no rights and loses no denial. Gives the new version.
    fn forget<'a>(&'a self, tenant: &'a TenantId, tombstone: Tombstone) -> BoxFuture<'a, Result<u64, StoreError>>;
    /// The newest version of each partition that this node has heard of.
    fn versions(&self) -> &Arc<Versions>;
    /// Removes what has expired by `now`. Gives how many documents.
    fn sweep(&self, now: u64) -> BoxFuture<'_, Result<usize, StoreError>>;
    /// Whether the incarnation marker is there.
    fn is_seeded(&self) -> BoxFuture<'_, Result<bool, StoreError>>;
}

/// The schema that this program writes, and the oldest reader that understands it.
const SCHEMA: u32 = 1;
const MIN_READER: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Stored<T> {
    schema: u32,
    min_reader: u32,
    body: T,
}

/// Why a stored document cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DecodeError {
    #[error("written for readers of version {0} and later; this one is {SCHEMA}")]
    TooNew(u32),
    #[error("broken: {0}")]
    Broken(String),
}

/// A document as it is stored: `{"schema":1,"min_reader":1,"body":…}`.
pub fn encode<T: Serialize>(body: &T) -> Vec<u8> {
    // The model's types have string keys and no failing serializers, so this cannot fail; an empty document is unreadable, which denies.
    serde_json::to_vec(&Stored { schema: SCHEMA, min_reader: MIN_READER, body }).unwrap_or_default()
}

/// Reads a stored document, unless it was written for newer readers only.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    #[derive(Deserialize)]
    struct Head {
        min_reader: u32,
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|e| DecodeError::Broken(e.to_string()))?;
    if head.min_reader > SCHEMA {
        return Err(DecodeError::TooNew(head.min_reader));
    }
    let stored: Stored<T> = serde_json::from_slice(bytes).map_err(|e| DecodeError::Broken(e.to_string()))?;
    Ok(stored.body)
}

#[cfg(test)]
mod tests;
