//! The store of tests: everything in memory, gone with the process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::versions::{Log, Position, Versions, lock};
use super::{Changes, Document, Documents, Expect, Key, Kind, Listed, StoreError, Tombstone, Write, partition};
use crate::digest::Digest;
use crate::ids::TenantId;

#[derive(Default)]
struct State {
    documents: BTreeMap<Key, (Document, Option<u64>)>,
    blobs: BTreeMap<Digest, Bytes>,
    versions: BTreeMap<usize, u64>,
}

/// See the module.
pub struct MemoryStore {
    state: Mutex<State>,
    log: Log,
    versions: Arc<Versions>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self { state: Mutex::default(), log: Log::default(), versions: Arc::new(Versions::embedded()) }
    }
}

impl MemoryStore {
    pub fn new() -> Self {
        Self::default()
    }
}

/// The version that a document has now must be what the write expects.
pub(super) fn check(write: &Write, found: Option<u64>) -> Result<(), StoreError> {
    let fits = match write.expect {
        Expect::Any => true,
        Expect::Absent => found.is_none(),
        Expect::Version(version) => found == Some(version),
    };
    if fits { Ok(()) } else { Err(StoreError::Conflict { key: write.key.to_string(), found }) }
}

impl Documents for MemoryStore {
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Document>, StoreError>> {
        let found = lock(&self.state).documents.get(key).map(|(document, _)| document.clone());
        async move { Ok(found) }.boxed()
    }

    fn list<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<Listed, StoreError>> {
        let at = self.log.position(partition(tenant));
        let documents = lock(&self.state)
            .documents
            .iter()
            .filter(|(key, _)| key.tenant == *tenant && !key.kind.is_of_session())
            .map(|(key, (document, _))| (key.clone(), document.clone()))
            .collect();
        async move { Ok(Listed { at, documents }) }.boxed()
    }

    fn write<'a>(&'a self, tenant: &'a TenantId, writes: Vec<Write>) -> BoxFuture<'a, Result<u64, StoreError>> {
        let written = (|| {
            let mut state = lock(&self.state);
            for write in &writes {
                check(write, state.documents.get(&write.key).map(|(document, _)| document.version))?;
            }
            let partition = partition(tenant);
            let slot = state.versions.entry(partition).or_default();
            *slot += 1;
            let version = *slot;
            let keys: Vec<Key> = writes.iter().map(|w| w.key.clone()).collect();
            for write in writes {
                match write.body {
                    Some(body) => {
                        let document = Document { version, body: body.into() };
                        state.documents.insert(write.key, (document, write.expires_at));
                    }
                    None => {
                        state.documents.remove(&write.key);
                    }
                }
            }
            self.log.append(partition, version, keys);
            drop(state);
            self.versions.hint(partition, Position { version, ..Position::default() });
            Ok(version)
        })();
        async move { written }.boxed()
    }

    fn put_blob<'a>(&'a self, digest: &'a Digest, bytes: Vec<u8>) -> BoxFuture<'a, Result<(), StoreError>> {
        lock(&self.state).blobs.insert(*digest, bytes.into());
        async { Ok(()) }.boxed()
    }

    fn keep_blob<'a>(&'a self, digest: &'a Digest) -> BoxFuture<'a, Result<bool, StoreError>> {
        let found = lock(&self.state).blobs.contains_key(digest);
        async move { Ok(found) }.boxed()
    }

    fn get_blob<'a>(&'a self, digest: &'a Digest) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        let found = lock(&self.state).blobs.get(digest).cloned();
        async move { Ok(found) }.boxed()
    }

    fn tenants(&self) -> BoxFuture<'_, Result<Vec<TenantId>, StoreError>> {
        let found: BTreeSet<TenantId> = lock(&self.state)
            .documents
            .keys()
            .filter(|key| key.kind == Kind::Settings)
            .map(|key| key.tenant.clone())
            .collect();
        async move { Ok(found.into_iter().collect()) }.boxed()
    }

    fn changes(&self, partition: usize, after: Position) -> BoxFuture<'_, Result<Changes, StoreError>> {
        let changes = self.log.after(partition, after);
        async move { Ok(changes) }.boxed()
    }

    fn position(&self, partition: usize) -> BoxFuture<'_, Result<Position, StoreError>> {
        let at = self.log.position(partition);
        async move { Ok(at) }.boxed()
    }

    fn prove<'a>(&'a self, _: &'a TenantId) -> BoxFuture<'a, Result<(), StoreError>> {
        async { Ok(()) }.boxed()
    }

    fn forget<'a>(&'a self, tenant: &'a TenantId, tombstone: Tombstone) -> BoxFuture<'a, Result<u64, StoreError>> {
        let keys: Vec<Key> = lock(&self.state).documents.keys().filter(|key| key.tenant == *tenant).cloned().collect();
        self.write(tenant, keys.into_iter().filter_map(|key| tombstone.instead_of(key)).collect())
    }

    fn versions(&self) -> &Arc<Versions> {
        &self.versions
    }

    fn sweep(&self, now: u64) -> BoxFuture<'_, Result<usize, StoreError>> {
        let mut state = lock(&self.state);
        let before = state.documents.len();
        state.documents.retain(|_, (_, expires)| expires.is_none_or(|end| end > now));
        let gone = before - state.documents.len();
        async move { Ok(gone) }.boxed()
    }

    fn is_seeded(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        async { Ok(true) }.boxed()
    }
}
