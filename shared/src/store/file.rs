//! The embedded store: one redb file in a folder, crash-safe, for one process at a time.
//!
//! A folder that did not exist is seeded; a database that lost its marker is not, and then everything is denied.

use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::memory::check;
use super::versions::{Log, Position, Versions, lock};
use super::{Changes, Document, Documents, Key, Kind, Listed, PARTITIONS, StoreError, Tombstone, Write, partition};
use crate::digest::{Digest, unguessable};
use crate::ids::TenantId;

/// `tenant NUL kind NUL id` → version (8 bytes), expiry (8 bytes, 0 for never), body.
const DOCUMENTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("documents");
/// Hex digest → packed bytes.
const BLOBS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("blobs");
/// Partition → version.
const VERSIONS: TableDefinition<'_, u64, u64> = TableDefinition::new("versions");
const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
const INCARNATION: &str = "incarnation";

/// See the module.
pub struct FileStore {
    database: Arc<Database>,
    log: Arc<Log>,
    versions: Arc<Versions>,
    /// From the transaction to the raised version is one step: a reader must never see version 2 before 1 is in the log.
    writing: Arc<Mutex<()>>,
}

fn unavailable(error: impl Into<redb::Error>) -> StoreError {
    StoreError::Unavailable(error.into().to_string())
}

impl FileStore {
    /// Opens the store in `folder`, which is made where it is missing.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        // An empty folder is a new one too: it may be a volume that was mounted for this.
        let fresh = std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
        make_folder(folder).map_err(|e| StoreError::Unavailable(format!("{}: {e}", folder.display())))?;
        let path = folder.join("rollcall.redb");
        let database =
            Database::create(&path).map_err(|e| StoreError::Unavailable(format!("{}: {e}", path.display())))?;
        let versions = Arc::new(Versions::embedded());
        let log = Arc::new(Log::default());
        let transaction = database.begin_write().map_err(unavailable)?;
        {
            transaction.open_table(DOCUMENTS).map_err(unavailable)?;
            transaction.open_table(BLOBS).map_err(unavailable)?;
            let table = transaction.open_table(VERSIONS).map_err(unavailable)?;
            for entry in table.iter().map_err(unavailable)? {
                let (partition, version) = entry.map_err(unavailable)?;
                let partition = usize::try_from(partition.value()).unwrap_or(PARTITIONS);
                versions.hint(partition, Position { version: version.value(), ..Position::default() });
                log.start_at(partition, version.value());
            }
            let mut meta = transaction.open_table(META).map_err(unavailable)?;
            if fresh {
                meta.insert(INCARNATION, unguessable().as_str()).map_err(unavailable)?;
            }
        }
        transaction.commit().map_err(unavailable)?;
        Ok(Self { database: Arc::new(database), log, versions, writing: Arc::default() })
    }

    /// Runs a piece of work on the database away from the I/O threads.
    fn run<T, F>(&self, work: F) -> BoxFuture<'static, Result<T, StoreError>>
    where
        T: Send + 'static,
        F: FnOnce(&Database) -> Result<T, StoreError> + Send + 'static,
    {
        let database = self.database.clone();
        async move {
            tokio::task::spawn_blocking(move || work(&database))
                .await
                .map_err(|e| StoreError::Unavailable(e.to_string()))?
        }
        .boxed()
    }
}

/// The folder holds credentials of servers, so nobody else may read it.
fn make_folder(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

fn address(key: &Key) -> String {
    format!("{}\0{}\0{}", key.tenant, key.kind.label(), key.id)
}

fn read_address(text: &str) -> Option<Key> {
    let mut parts = text.splitn(3, '\0');
    let tenant = TenantId::parse(parts.next()?).ok()?;
    let label = parts.next()?;
    let kind = Kind::of_label(label)?;
    Some(Key { tenant, kind, id: parts.next()?.to_owned() })
}

fn pack(version: u64, expires_at: Option<u64>, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + body.len());
    out.extend_from_slice(&version.to_be_bytes());
    out.extend_from_slice(&expires_at.unwrap_or(0).to_be_bytes());
    out.extend_from_slice(body);
    out
}

/// Version, expiry and body. A row too short to be one of ours counts as absent, which denies.
fn unpack(row: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (version, rest) = row.split_first_chunk::<8>()?;
    let (expires, body) = rest.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*version), u64::from_be_bytes(*expires), body))
}

impl Documents for FileStore {
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Document>, StoreError>> {
        let address = address(key);
        self.run(move |database| {
            let transaction = database.begin_read().map_err(unavailable)?;
            let table = transaction.open_table(DOCUMENTS).map_err(unavailable)?;
            let row = table.get(address.as_str()).map_err(unavailable)?;
            Ok(row.and_then(|row| {
                unpack(row.value()).map(|(version, _, body)| Document { version, body: Bytes::copy_from_slice(body) })
            }))
        })
    }

    fn list<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<Listed, StoreError>> {
        let tenant = tenant.clone();
        let at = self.log.position(partition(&tenant));
        self.run(move |database| {
            let transaction = database.begin_read().map_err(unavailable)?;
            let table = transaction.open_table(DOCUMENTS).map_err(unavailable)?;
            let mut out = Vec::new();
            for kind in Kind::ALL.into_iter().filter(|k| !k.is_of_session()) {
                let from = format!("{tenant}\0{}\0", kind.label());
                let to = format!("{tenant}\0{}\u{1}", kind.label());
                for entry in table.range(from.as_str()..to.as_str()).map_err(unavailable)? {
                    let (address, row) = entry.map_err(unavailable)?;
                    if let (Some(key), Some((version, _, body))) = (read_address(address.value()), unpack(row.value()))
                    {
                        out.push((key, Document { version, body: Bytes::copy_from_slice(body) }));
                    }
                }
            }
            Ok(Listed { at, documents: out })
        })
    }

    fn write<'a>(&'a self, tenant: &'a TenantId, writes: Vec<Write>) -> BoxFuture<'a, Result<u64, StoreError>> {
        let partition = partition(tenant);
        let (log, versions, writing) = (self.log.clone(), self.versions.clone(), self.writing.clone());
        self.run(move |database| {
            let _one = lock(&writing);
            let transaction = database.begin_write().map_err(unavailable)?;
            let version;
            {
                let mut table = transaction.open_table(DOCUMENTS).map_err(unavailable)?;
                for write in &writes {
                    let row = table.get(address(&write.key).as_str()).map_err(unavailable)?;
                    check(write, row.and_then(|row| unpack(row.value()).map(|(version, _, _)| version)))?;
                }
                let mut counters = transaction.open_table(VERSIONS).map_err(unavailable)?;
                let index = partition as u64;
                version = counters.get(index).map_err(unavailable)?.map_or(0, |v| v.value()) + 1;
                counters.insert(index, version).map_err(unavailable)?;
                for write in &writes {
                    let address = address(&write.key);
                    match &write.body {
                        Some(body) => {
                            let row = pack(version, write.expires_at, body);
                            table.insert(address.as_str(), row.as_slice()).map_err(unavailable)?;
                        }
                        None => {
                            table.remove(address.as_str()).map_err(unavailable)?;
                        }
                    }
                }
            }
            transaction.commit().map_err(unavailable)?;
            log.append(partition, version, writes.into_iter().map(|w| w.key));
            versions.hint(partition, Position { version, ..Position::default() });
            Ok(version)
        })
    }

    fn put_blob<'a>(&'a self, digest: &'a Digest, bytes: Vec<u8>) -> BoxFuture<'a, Result<(), StoreError>> {
        let address = digest.to_string();
        self.run(move |database| {
            let transaction = database.begin_write().map_err(unavailable)?;
            transaction
                .open_table(BLOBS)
                .map_err(unavailable)?
                .insert(address.as_str(), bytes.as_slice())
                .map_err(unavailable)?;
            transaction.commit().map_err(unavailable)
        })
    }

    fn keep_blob<'a>(&'a self, digest: &'a Digest) -> BoxFuture<'a, Result<bool, StoreError>> {
        async move { Ok(self.get_blob(digest).await?.is_some()) }.boxed()
    }

    fn get_blob<'a>(&'a self, digest: &'a Digest) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        let address = digest.to_string();
        self.run(move |database| {
            let transaction = database.begin_read().map_err(unavailable)?;
            let table = transaction.open_table(BLOBS).map_err(unavailable)?;
            let row = table.get(address.as_str()).map_err(unavailable)?;
            Ok(row.map(|row| Bytes::copy_from_slice(row.value())))
        })
    }

    fn tenants(&self) -> BoxFuture<'_, Result<Vec<TenantId>, StoreError>> {
        self.run(|database| {
            let transaction = database.begin_read().map_err(unavailable)?;
            let table = transaction.open_table(DOCUMENTS).map_err(unavailable)?;
            let mut out = Vec::new();
            for entry in table.iter().map_err(unavailable)? {
                let (address, _) = entry.map_err(unavailable)?;
                if let Some(key) = read_address(address.value()).filter(|k| k.kind == Kind::Settings) {
                    out.push(key.tenant);
                }
            }
            Ok(out)
        })
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
        async move {
            let name = tenant.clone();
            let reading = self.run(move |database| {
                let transaction = database.begin_read().map_err(unavailable)?;
                let table = transaction.open_table(DOCUMENTS).map_err(unavailable)?;
                let (from, to) = (format!("{name}\0"), format!("{name}\u{1}"));
                let mut keys = Vec::new();
                for entry in table.range(from.as_str()..to.as_str()).map_err(unavailable)? {
                    keys.extend(read_address(entry.map_err(unavailable)?.0.value()));
                }
                Ok(keys)
            });
            let keys = reading.await?;
            self.write(tenant, keys.into_iter().filter_map(|key| tombstone.instead_of(key)).collect()).await
        }
        .boxed()
    }

    fn versions(&self) -> &Arc<Versions> {
        &self.versions
    }

    fn sweep(&self, now: u64) -> BoxFuture<'_, Result<usize, StoreError>> {
        self.run(move |database| {
            let transaction = database.begin_write().map_err(unavailable)?;
            let mut gone = 0;
            {
                let mut table = transaction.open_table(DOCUMENTS).map_err(unavailable)?;
                table
                    .retain(|_, row| {
                        let expired = unpack(row).is_some_and(|(_, end, _)| end != 0 && end <= now);
                        gone += usize::from(expired);
                        !expired
                    })
                    .map_err(unavailable)?;
            }
            transaction.commit().map_err(unavailable)?;
            Ok(gone)
        })
    }

    fn is_seeded(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.run(|database| {
            let transaction = database.begin_read().map_err(unavailable)?;
            let meta = transaction.open_table(META).map_err(unavailable)?;
            Ok(meta.get(INCARNATION).map_err(unavailable)?.is_some())
        })
    }
}
