//! Documents and blobs in the shared store.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::FromRedisValue as _;

use super::link::unavailable;
use super::watch::{Row, ask_position, read_position};
use super::{RedisStore, draw, key};
use crate::digest::Digest;
use crate::ids::TenantId;
use crate::limits;
use crate::store::versions::lock;
use crate::store::{
    Changes, Document, Documents, Expect, Heard, Key, Kind, Listed, PARTITIONS, Position, StoreError, Tombstone,
    Versions, Write, partition,
};

/// The hash of a tenant in which documents of this kind are.
fn hash_of(tenant: &TenantId, kind: Kind) -> String {
    let which = if kind.is_of_session() { "sessions" } else { "docs" };
    key(partition(tenant), &format!("{which}:{tenant}"))
}

/// The field of `meta` that says that the hash was begun.
fn mark_of(tenant: &TenantId, kind: Kind) -> String {
    format!("{}:{tenant}", if kind.is_of_session() { "s" } else { "d" })
}

fn field_of(key: &Key) -> String {
    format!("{}:{}", key.kind.label(), key.id)
}

fn read_field(tenant: &TenantId, field: &str) -> Option<Key> {
    let (label, id) = field.split_once(':')?;
    Some(Key::new(tenant, Kind::of_label(label)?, id))
}

/// The address of a document in the log.
fn logged(key: &Key) -> String {
    format!("{}\n{}", key.tenant, field_of(key))
}

fn read_logged(address: &str) -> Option<Key> {
    let (tenant, field) = address.split_once('\n')?;
    read_field(&TenantId::parse(tenant).ok()?, field)
}

/// Version, line feed, body. What is not written so was not written by us; no version, so that nothing rests on it.
fn read_document(value: &[u8]) -> Document {
    let split = memchr::memchr(b'\n', value).and_then(|at| value.split_at_checked(at));
    let found = split.and_then(|(version, body)| {
        let version = std::str::from_utf8(version).ok()?.parse().ok()?;
        Some(Document { version, body: Bytes::copy_from_slice(body.get(1..)?) })
    });
    found.unwrap_or_else(|| Document { version: 0, body: Bytes::copy_from_slice(value) })
}

/// A hash that was begun and is gone.
fn check_begun(tenant: &TenantId, begun: bool, is_there: bool) -> Result<(), StoreError> {
    if begun && !is_there { Err(StoreError::Lost(tenant.to_string())) } else { Ok(()) }
}

impl RedisStore {
    async fn read(&self, wanted: &Key) -> Result<Option<Document>, StoreError> {
        let mut connection = self.link.reads()?;
        let Key { tenant, kind, .. } = wanted;
        let mut pipeline = redis::pipe();
        pipeline.cmd("HMGET").arg(key(partition(tenant), "meta")).arg("inc").arg(mark_of(tenant, *kind));
        pipeline.cmd("HMGET").arg(hash_of(tenant, *kind)).arg("").arg(field_of(wanted));
        type Read = ((Option<u64>, Option<u64>), (Option<Vec<u8>>, Option<Vec<u8>>));
        let ((incarnation, begun), (is_there, value)): Read =
            pipeline.query_async(&mut connection).await.map_err(|e| unavailable(&e))?;
        incarnation.ok_or(StoreError::NotSeeded)?;
        check_begun(tenant, begun.is_some(), is_there.is_some())?;
        if begun.is_none() && is_there.is_some() {
            // `meta` was lost and seeded again: the hash is to be missed from here on, should it be lost too.
            let mut mark = redis::cmd("HSET");
            mark.arg(key(partition(tenant), "meta")).arg(mark_of(tenant, *kind)).arg(1);
            mark.query_async::<()>(&mut connection).await.map_err(|e| unavailable(&e))?;
        }
        Ok(value.map(|value| read_document(&value)))
    }

    async fn read_all(&self, tenant: &TenantId, kind: Kind) -> Result<(Position, Vec<(Key, Document)>), StoreError> {
        let mut connection = self.link.reads()?;
        let index = partition(tenant);
        let mut pipeline = redis::pipe();
        // The position is read first, so that the documents are at least as new.
        pipeline.cmd("HMGET").arg(key(index, "meta")).arg("inc").arg("ver").arg("tag").arg(mark_of(tenant, kind));
        pipeline.cmd("HGETALL").arg(hash_of(tenant, kind));
        type Read = ((Option<u64>, Option<u64>, Option<u64>, Option<u64>), HashMap<Vec<u8>, Vec<u8>>);
        let ((incarnation, version, tag, begun), fields): Read =
            pipeline.query_async(&mut connection).await.map_err(|e| unavailable(&e))?;
        let at = read_position((incarnation, version, tag)).ok_or(StoreError::NotSeeded)?;
        check_begun(tenant, begun.is_some(), fields.contains_key(&b""[..]))?;
        let read = |(field, value): (Vec<u8>, Vec<u8>)| {
            Some((read_field(tenant, std::str::from_utf8(&field).ok()?)?, read_document(&value)))
        };
        Ok((at, fields.into_iter().filter_map(read).collect()))
    }

    async fn write_all(&self, tenant: &TenantId, writes: Vec<Write>) -> Result<u64, StoreError> {
        let index = partition(tenant);
        let tag = draw();
        let mut script = self.scripts.write.prepare_invoke();
        script.key(key(index, "meta"));
        script.key(hash_of(tenant, Kind::Settings)).key(hash_of(tenant, Kind::Policy));
        script.key(key(index, "log")).key(key(index, "expiry"));
        script.arg(tenant.as_str()).arg(tag).arg(key(index, "ch")).arg(self.publishes()).arg(limits::CHANGE_LOG);
        for write in writes {
            script.arg(if write.key.kind.is_of_session() { 3 } else { 2 }).arg(field_of(&write.key));
            match write.expect {
                Expect::Any => script.arg("*"),
                Expect::Absent => script.arg("-"),
                Expect::Version(version) => script.arg(version),
            };
            script.arg(if write.body.is_some() { "p" } else { "d" }).arg(write.body.unwrap_or_default());
            script.arg(write.expires_at.unwrap_or(0)).arg(logged(&write.key));
        }
        let mut connection = self.link.writes().await?;
        if let Some(wrote_by) = self.wrote_by.get(index) {
            wrote_by.store(connection.number, Ordering::Release);
        }
        let answer: Vec<redis::Value> = connection.with(async |c| script.invoke_async(c).await).await?;
        drop(connection);
        let text =
            |at: usize| answer.get(at).and_then(|v| String::from_redis_value(v.clone()).ok()).unwrap_or_default();
        match text(0).as_str() {
            "ok" => {
                let version = text(1).parse().map_err(|_| StoreError::Damaged("no version".to_owned()))?;
                if let Heard::At { position, .. } = self.versions.heard(index) {
                    self.versions.hint(index, Position { version, tag, ..position });
                }
                Ok(version)
            }
            "unseeded" => Err(StoreError::NotSeeded),
            "lost" => Err(StoreError::Lost(tenant.to_string())),
            "conflict" => Err(StoreError::Conflict {
                key: read_field(tenant, &text(1)).map_or_else(|| text(1), |key| key.to_string()),
                found: text(2).parse().ok(),
            }),
            other => Err(StoreError::Damaged(format!("the script answers {other:?}"))),
        }
    }

    async fn read_changes(&self, index: usize, after: Position) -> Result<Changes, StoreError> {
        let mut connection = self.link.reads()?;
        let mut pipeline = redis::pipe();
        pipeline.add_command(ask_position(index));
        // From the last one that was seen on, to be sure that this is the same history.
        pipeline.cmd("XRANGE").arg(key(index, "log")).arg(format!("{}-0", after.version)).arg("+");
        type Entry = (String, HashMap<String, String>);
        let (row, entries): (Row, Vec<Entry>) =
            pipeline.query_async(&mut connection).await.map_err(|e| unavailable(&e))?;
        let to = read_position(row).ok_or(StoreError::NotSeeded)?;
        if to == after {
            return Ok(Changes::Since { to, keys: Vec::new() });
        }
        let version_of = |id: &str| id.split_once('-').and_then(|(version, _)| version.parse::<u64>().ok());
        let begins = entries.first().is_some_and(|(id, fields)| {
            let same = fields.get("t").and_then(|tag| tag.parse().ok()) == Some(after.tag);
            id.strip_suffix("-0").and_then(|version| version.parse().ok()) == Some(after.version) && same
        });
        // Before the first write there is nothing that could be compared.
        let is_fresh = after.version == 0 && entries.first().is_some_and(|(id, _)| id == "1-0");
        if after.incarnation != to.incarnation || !(begins || is_fresh) {
            return Ok(Changes::Gap { to });
        }
        let mut keys = Vec::new();
        for (id, fields) in &entries {
            if version_of(id).is_some_and(|version| version > after.version) {
                let read = fields.get("a").and_then(|address| read_logged(address));
                keys.push(read.ok_or_else(|| StoreError::Damaged(format!("entry {id} of a change log")))?);
            }
        }
        Ok(Changes::Since { to, keys })
    }

    async fn forget_all(&self, tenant: &TenantId, tombstone: Tombstone) -> Result<u64, StoreError> {
        let mut writes = Vec::new();
        for kind in [Kind::Settings, Kind::Policy] {
            let (_, documents) = self.read_all(tenant, kind).await?;
            writes.extend(documents.into_iter().filter_map(|(key, _)| tombstone.instead_of(key)));
        }
        // A tenant of many sessions is forgotten in pieces; its own documents first, so that nothing of it is served.
        let mut version = self.versions.newest(partition(tenant));
        let mut rest = writes.into_iter().peekable();
        while rest.peek().is_some() {
            version = self.write_all(tenant, rest.by_ref().take(limits::WRITES_AT_ONCE).collect()).await?;
        }
        Ok(version)
    }

    async fn ask(&self, index: usize) -> Result<Position, StoreError> {
        let mut connection = self.link.reads()?;
        let row = ask_position(index).query_async(&mut connection).await.map_err(|e| unavailable(&e))?;
        let position = read_position(row).ok_or(StoreError::NotSeeded)?;
        self.versions.hint(index, position);
        Ok(position)
    }

    /// One question at a time; whoever comes while one is under way shares the next, which is put after they came.
    fn ask_together(&self, index: usize) -> BoxFuture<'static, Result<Position, StoreError>> {
        let Some(slot) = self.asking.get(index) else {
            return async { Err(StoreError::Unavailable("no such partition".to_owned())) }.boxed();
        };
        let mut next = lock(slot);
        if let Some(next) = &*next {
            return next.clone().boxed();
        }
        let store = self.clone();
        let asked = async move {
            // From here on others may come too late for this question.
            if let Some(slot) = store.asking.get(index) {
                *lock(slot) = None;
            }
            store.ask(index).await
        }
        .boxed()
        .shared();
        *next = Some(asked.clone());
        asked.boxed()
    }
}

impl Documents for RedisStore {
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Document>, StoreError>> {
        self.read(key).boxed()
    }

    fn list<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<Listed, StoreError>> {
        async move {
            let (at, documents) = self.read_all(tenant, Kind::Settings).await?;
            Ok(Listed { at, documents })
        }
        .boxed()
    }

    fn write<'a>(&'a self, tenant: &'a TenantId, writes: Vec<Write>) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.write_all(tenant, writes).boxed()
    }

    fn put_blob<'a>(&'a self, digest: &'a Digest, bytes: Vec<u8>) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            let mut command = redis::cmd("SET");
            command.arg(blob(digest)).arg(bytes).arg("EX").arg(limits::BLOB_LIFETIME.as_secs());
            let mut connection = self.link.reads()?;
            command.query_async::<()>(&mut connection).await.map_err(|e| unavailable(&e))
        }
        .boxed()
    }

    fn keep_blob<'a>(&'a self, digest: &'a Digest) -> BoxFuture<'a, Result<bool, StoreError>> {
        async move {
            let mut command = redis::cmd("EXPIRE");
            command.arg(blob(digest)).arg(limits::BLOB_LIFETIME.as_secs());
            let mut connection = self.link.reads()?;
            command.query_async(&mut connection).await.map_err(|e| unavailable(&e))
        }
        .boxed()
    }

    fn get_blob<'a>(&'a self, digest: &'a Digest) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        async move {
            let mut connection = self.link.reads()?;
            let found: Option<Vec<u8>> =
                redis::cmd("GET").arg(blob(digest)).query_async(&mut connection).await.map_err(|e| unavailable(&e))?;
            Ok(found.map(Bytes::from))
        }
        .boxed()
    }

    fn tenants(&self) -> BoxFuture<'_, Result<Vec<TenantId>, StoreError>> {
        async move {
            let mut out = Vec::new();
            let mut connection = self.link.reads()?;
            for index in 0..PARTITIONS {
                let fields: Vec<String> = redis::cmd("HKEYS")
                    .arg(key(index, "meta"))
                    .query_async(&mut connection)
                    .await
                    .map_err(|e| unavailable(&e))?;
                for tenant in fields.iter().filter_map(|f| TenantId::parse(f.strip_prefix("d:")?).ok()) {
                    if self.read(&Key::new(&tenant, Kind::Settings, "")).await?.is_some() {
                        out.push(tenant);
                    }
                }
            }
            Ok(out)
        }
        .boxed()
    }

    fn changes(&self, partition: usize, after: Position) -> BoxFuture<'_, Result<Changes, StoreError>> {
        self.read_changes(partition, after).boxed()
    }

    fn position(&self, partition: usize) -> BoxFuture<'_, Result<Position, StoreError>> {
        self.ask_together(partition)
    }

    fn prove<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            let meta = key(partition(tenant), "meta");
            let mut connection = self.link.writes().await?;
            // What a connection waits for is what was written before over the same one: another one knows nothing of it, and
            // may be to another master.
            let wrote_by = self.wrote_by.get(partition(tenant)).map(|number| number.load(Ordering::Acquire));
            if wrote_by != Some(connection.number) {
                return Err(StoreError::NotProven);
            }
            let role = connection.with(async |c| c.at_master_of(&meta, redis::cmd("ROLE")).await).await?;
            let redis::Value::Array(role) = role else { return Err(StoreError::NotProven) };
            if matches!(role.get(2), Some(redis::Value::Array(replicas)) if replicas.is_empty()) {
                return Ok(());
            }
            let mut wait = redis::cmd("WAIT");
            wait.arg(1).arg(limits::REPLICA_TIMEOUT.as_millis() as u64);
            let confirmed = connection.with(async |c| c.at_master_of(&meta, wait).await).await?;
            if confirmed == redis::Value::Int(0) { Err(StoreError::NotProven) } else { Ok(()) }
        }
        .boxed()
    }

    fn forget<'a>(&'a self, tenant: &'a TenantId, tombstone: Tombstone) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.forget_all(tenant, tombstone).boxed()
    }

    fn versions(&self) -> &Arc<Versions> {
        &self.versions
    }

    fn sweep(&self, now: u64) -> BoxFuture<'_, Result<usize, StoreError>> {
        async move {
            let mut gone = 0;
            for index in 0..PARTITIONS {
                loop {
                    let mut script = self.scripts.sweep.prepare_invoke();
                    script.key(key(index, "meta")).key(key(index, "expiry"));
                    script.arg(now).arg(limits::WRITES_AT_ONCE);
                    script.arg(key(index, "docs:")).arg(key(index, "sessions:"));
                    let mut connection = self.link.reads()?;
                    let swept: usize = script.invoke_async(&mut connection).await.map_err(|e| unavailable(&e))?;
                    gone += swept;
                    if swept < limits::WRITES_AT_ONCE {
                        break;
                    }
                }
            }
            Ok(gone)
        }
        .boxed()
    }

    fn is_seeded(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        let seeded = (0..PARTITIONS).all(|index| self.versions.heard(index) != Heard::Unseeded);
        async move { Ok(seeded) }.boxed()
    }
}

fn blob(digest: &Digest) -> String {
    format!("rc:blob:{digest}")
}
