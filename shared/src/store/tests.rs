//! What every store must do, run against each of them.

#![expect(clippy::disallowed_methods, reason = "a test joins what it spawns")]

use redb::Database;

use super::*;
use crate::clock::unix_s;

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).expect("a tenant id")
}

async fn every_store(check: impl AsyncFn(&dyn Documents)) {
    check(&MemoryStore::new()).await;
    let folder = tempfile::tempdir().expect("a folder");
    check(&FileStore::open(&folder.path().join("data")).expect("a store")).await;
}

fn put(key: &Key, expect: Expect, body: &str) -> Write {
    Write::put(key.clone(), expect, body.as_bytes().to_vec())
}

#[tokio::test]
async fn a_write_is_read_back_with_its_version_and_only_by_its_tenant() {
    every_store(async |store| {
        let (acme, other) = (tenant("acme"), tenant("acme2"));
        let key = Key::new(&acme, Kind::Server, "neon");
        let version = store.write(&acme, vec![put(&key, Expect::Absent, "one")]).await.expect("written");
        let found = store.get(&key).await.expect("read").expect("there");
        assert_eq!((found.version, &found.body[..]), (version, &b"one"[..]));
        assert_eq!(store.list(&acme).await.expect("read").len(), 1);
        assert!(store.list(&other).await.expect("read").is_empty());
        assert_eq!(store.get(&Key::new(&other, Kind::Server, "neon")).await.expect("read"), None);
    })
    .await;
}

#[tokio::test]
async fn a_write_that_expects_another_version_changes_nothing() {
    every_store(async |store| {
        let acme = tenant("acme");
        let (a, b) = (Key::new(&acme, Kind::Server, "a"), Key::new(&acme, Kind::Server, "b"));
        let version = store.write(&acme, vec![put(&a, Expect::Absent, "one")]).await.expect("written");
        for expect in [Expect::Absent, Expect::Version(version + 1)] {
            let refused = store.write(&acme, vec![put(&b, Expect::Any, "x"), put(&a, expect, "two")]).await;
            assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{refused:?}");
        }
        assert_eq!(store.get(&b).await.expect("read"), None, "all or nothing");
        assert_eq!(store.versions().newest(partition(&acme)), version);
        let next = store.write(&acme, vec![put(&a, Expect::Version(version), "two")]).await.expect("written");
        assert!(next > version);
    })
    .await;
}

#[tokio::test]
async fn a_lagging_reader_learns_what_changed_or_that_it_must_read_again() {
    every_store(async |store| {
        let acme = tenant("acme");
        let p = partition(&acme);
        let key = Key::new(&acme, Kind::Policy, "s");
        let seen = store.versions().watch();
        let first = store.write(&acme, vec![put(&key, Expect::Any, "0")]).await.expect("written");
        assert!(seen.has_changed().expect("open"));
        let second = store.write(&acme, vec![Write::delete(key.clone(), Expect::Any)]).await.expect("written");
        let changes = store.changes(p, first).await.expect("read");
        assert_eq!(changes, Changes::Since(vec![(second, key.clone())]));
        for n in 0..3 {
            let many = (0..crate::limits::CHANGE_LOG / 2)
                .map(|i| put(&Key::new(&acme, Kind::Policy, format!("{n}-{i}")), Expect::Any, "x"))
                .collect();
            store.write(&acme, many).await.expect("written");
        }
        assert_eq!(store.changes(p, first).await.expect("read"), Changes::Gap);
        assert!(store.list(&acme).await.expect("read").is_empty(), "policies are read one by one");
    })
    .await;
}

#[tokio::test]
async fn what_expired_is_swept() {
    every_store(async |store| {
        let acme = tenant("acme");
        let key = Key::new(&acme, Kind::Policy, "s");
        let now = unix_s();
        let write = Write { expires_at: Some(now + 10), ..put(&key, Expect::Any, "x") };
        store.write(&acme, vec![write]).await.expect("written");
        assert_eq!(store.sweep(now).await.expect("swept"), 0);
        assert_eq!(store.sweep(now + 10).await.expect("swept"), 1);
        assert_eq!(store.get(&key).await.expect("read"), None);
    })
    .await;
}

#[tokio::test]
async fn the_file_store_survives_a_restart_and_admits_one_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    let acme = tenant("acme");
    let key = Key::new(&acme, Kind::Settings, "");
    let digest = Digest::of(b"blob");
    let version = {
        let store = FileStore::open(&path).expect("a store");
        assert!(store.is_seeded().await.expect("read"));
        assert!(FileStore::open(&path).is_err(), "two processes on one file");
        store.put_blob(&digest, b"blob".to_vec()).await.expect("written");
        store.write(&acme, vec![put(&key, Expect::Any, "kept")]).await.expect("written")
    };
    let store = FileStore::open(&path).expect("a store");
    assert_eq!(store.get(&key).await.expect("read").map(|d| d.version), Some(version));
    assert_eq!(store.get_blob(&digest).await.expect("read").as_deref(), Some(&b"blob"[..]));
    assert_eq!(store.versions().newest(partition(&acme)), version);
    assert_eq!(store.tenants().await.expect("read"), [acme]);
    drop(store);
    let database = Database::create(path.join("rollcall.redb")).expect("the file");
    let transaction = database.begin_write().expect("a transaction");
    let meta: redb::TableDefinition<'_, &str, &str> = redb::TableDefinition::new("meta");
    transaction.delete_table(meta).expect("deleted");
    transaction.commit().expect("committed");
    drop(database);
    let store = FileStore::open(&path).expect("a store");
    assert!(!store.is_seeded().await.expect("read"), "a store that lost its marker says so");
}

#[tokio::test]
async fn a_forgotten_tenant_leaves_its_denials_and_no_rights() {
    every_store(async |store| {
        let (acme, other) = (tenant("acme"), tenant("acme-2"));
        let (rules, revoked) = (Key::new(&acme, Kind::Policy, "a"), Key::new(&acme, Kind::SessionRevoked, "b"));
        let (settings, neighbour) = (Key::new(&acme, Kind::Settings, ""), Key::new(&other, Kind::Settings, ""));
        let writes = [&rules, &settings, &revoked].map(|key| put(key, Expect::Any, "x")).to_vec();
        store.write(&acme, writes).await.expect("written");
        store.write(&other, vec![put(&neighbour, Expect::Any, "x")]).await.expect("written");
        let now = unix_s();
        store.forget(&acme, Tombstone { body: b"gone".to_vec(), expires_at: now + 10 }).await.expect("forgotten");
        assert_eq!(store.get(&rules).await.expect("read").map(|d| d.body.to_vec()), Some(b"gone".to_vec()));
        assert_eq!(store.get(&settings).await.expect("read"), None);
        assert!(store.get(&revoked).await.expect("read").is_some());
        assert!(store.get(&neighbour).await.expect("read").is_some());
        assert_eq!(store.sweep(now + 10).await.expect("swept"), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn versions_are_seen_in_order_however_many_write_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = std::sync::Arc::new(FileStore::open(&folder.path().join("data")).expect("a store"));
    let acme = tenant("acme");
    let p = partition(&acme);
    let writers = (0..40).map(|n| {
        let (store, acme) = (store.clone(), acme.clone());
        tokio::spawn(async move {
            let key = Key::new(&acme, Kind::Policy, n.to_string());
            store.write(&acme, vec![put(&key, Expect::Any, "x")]).await.expect("written")
        })
    });
    let reader = tokio::spawn({
        let store = store.clone();
        async move {
            let (mut seen, mut keys) = (0, 0);
            while keys < 40 {
                let newest = store.versions().newest(p);
                if let Changes::Since(changes) = store.changes(p, seen).await.expect("read") {
                    // Whoever has seen `newest` has been told of everything up to it.
                    keys += changes.iter().filter(|(v, _)| *v <= newest).count();
                }
                seen = newest;
                tokio::task::yield_now().await;
            }
        }
    });
    futures_util::future::join_all(writers).await;
    tokio::time::timeout(std::time::Duration::from_secs(10), reader).await.expect("no change is missed").expect("read");
}

#[test]
fn a_document_for_newer_readers_is_not_guessed_at() {
    let text = encode(&vec![1, 2]);
    assert_eq!(decode::<Vec<i32>>(&text).expect("readable"), [1, 2]);
    let newer = br#"{"schema":9,"min_reader":9,"body":{"x":1}}"#;
    assert!(matches!(decode::<Vec<i32>>(newer), Err(DecodeError::TooNew(9))));
    let compatible = br#"{"schema":9,"min_reader":1,"body":[3],"extra":true}"#;
    assert_eq!(decode::<Vec<i32>>(compatible).expect("readable"), [3]);
    assert!(matches!(decode::<Vec<i32>>(b"garbage"), Err(DecodeError::Broken(_))));
}
