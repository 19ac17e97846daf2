//! What every store must do, run against each of them.

#![expect(clippy::disallowed_methods, reason = "a test joins what it spawns")]

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use redb::Database;
use rollcall_loadtest::certificates::Authority;
use rollcall_loadtest::redis::RedisServer;
use rollcall_loadtest::redis_family::{RedisCluster, Sentinels};

use super::membership::{Claim, Counters, LocalMembership, Member, Membership};
use super::redis::{RedisSettings, RedisStore};
use super::*;
use crate::clock::unix_s;
use crate::task::Tasks;

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).expect("a tenant id")
}

type Check = fn(&dyn Documents) -> LocalBoxFuture<'_, ()>;
type MembershipCheck = for<'a> fn(&'a dyn Membership, &'a dyn Counters) -> LocalBoxFuture<'a, ()>;

/// What every store of documents must do.
const DOCUMENTS: &[(&str, Check)] = &[
    (
        "a_write_is_read_back_with_its_version_and_only_by_its_tenant",
        a_write_is_read_back_with_its_version_and_only_by_its_tenant,
    ),
    ("a_write_that_expects_another_version_changes_nothing", a_write_that_expects_another_version_changes_nothing),
    (
        "a_lagging_reader_learns_what_changed_or_that_it_must_read_again",
        a_lagging_reader_learns_what_changed_or_that_it_must_read_again,
    ),
    ("an_api_of_thousands_is_one_write", an_api_of_thousands_is_one_write),
    ("what_expired_is_swept", what_expired_is_swept),
    ("a_forgotten_tenant_leaves_its_denials_and_no_rights", a_forgotten_tenant_leaves_its_denials_and_no_rights),
    ("blobs_are_found_by_their_content", blobs_are_found_by_their_content),
    ("tenants_are_those_with_settings", tenants_are_those_with_settings),
];

/// What every membership must do.
const MEMBERSHIP: &[(&str, MembershipCheck)] = &[
    ("a_lease_that_ended_is_not_renewed", a_lease_that_ended_is_not_renewed),
    (
        "a_claim_is_held_until_it_is_given_back_or_its_holder_is_gone",
        a_claim_is_held_until_it_is_given_back_or_its_holder_is_gone,
    ),
    ("a_lock_is_one_holders_and_ends_by_itself", a_lock_is_one_holders_and_ends_by_itself),
    ("counters_count_a_window", counters_count_a_window),
];

#[tokio::test]
async fn the_store_of_tests_does_what_every_store_must() {
    for (name, check) in DOCUMENTS {
        println!("{name}");
        check(&MemoryStore::new()).await;
    }
    for (name, check) in MEMBERSHIP {
        println!("{name}");
        let local = LocalMembership::default();
        check(&local, &local).await;
    }
}

#[tokio::test]
async fn the_file_does_what_every_store_must() {
    for (name, check) in DOCUMENTS {
        println!("{name}");
        let folder = tempfile::tempdir().expect("a folder");
        check(&FileStore::open(&folder.path().join("data")).expect("a store")).await;
    }
}

/// Every check against a shared store, which `flush` empties in between.
async fn on_shared(url: &str, flush: impl Fn()) {
    let (store, tasks) = seeded(url).await;
    for (name, check) in DOCUMENTS {
        println!("{name}");
        anew(&store, &flush).await;
        check(&store).await;
    }
    for (name, check) in MEMBERSHIP {
        println!("{name}");
        anew(&store, &flush).await;
        check(&store, &store).await;
    }
    assert!(tasks.drain(Duration::from_secs(5)).await);
}

async fn anew(store: &RedisStore, flush: &impl Fn()) {
    flush();
    until(async || store.versions().heard(0) == Heard::Unseeded).await;
    store.seed(false).await.expect("seeded");
    let all = async || (0..PARTITIONS).all(|p| matches!(store.versions().heard(p), Heard::At { .. }));
    until(all).await;
}

#[tokio::test]
async fn redis_does_what_every_store_must() {
    let server = RedisServer::start().await.expect("a server");
    on_shared(&server.url(), || drop(server.command(&["FLUSHALL"]).expect("flushed"))).await;
}

#[tokio::test]
async fn valkey_does_what_every_store_must() {
    let server = RedisServer::valkey().await.expect("a server");
    on_shared(&server.url(), || drop(server.command(&["FLUSHALL"]).expect("flushed"))).await;
}

#[tokio::test]
async fn a_redis_cluster_does_what_every_store_must() {
    let cluster = RedisCluster::start(0).await.expect("a cluster");
    on_shared(&cluster.url(), || cluster.flush()).await;
}

#[tokio::test]
async fn the_master_behind_sentinels_does_what_every_store_must() {
    let sentinels = Sentinels::start().await.expect("sentinels");
    on_shared(&sentinels.url(), || drop(sentinels.servers[0].command(&["FLUSHALL"]).expect("flushed"))).await;
}

/// A shared store that is connected and has its markers.
async fn seeded(url: &str) -> (RedisStore, Tasks) {
    let tasks = Tasks::new();
    let store = RedisStore::open(RedisSettings::parse(url).expect("settings"), &tasks).expect("a store");
    store.connected(Duration::from_secs(10)).await.expect("connected");
    store.seed(false).await.expect("seeded");
    let mut moved = store.versions().watch();
    while !matches!(store.versions().heard(0), Heard::At { .. }) {
        moved.changed().await.expect("a beat");
    }
    (store, tasks)
}

fn put(key: &Key, expect: Expect, body: &str) -> Write {
    Write::put(key.clone(), expect, body.as_bytes().to_vec())
}

fn a_write_is_read_back_with_its_version_and_only_by_its_tenant(store: &dyn Documents) -> LocalBoxFuture<'_, ()> {
    async move {
        let (acme, other) = (tenant("acme"), tenant("acme2"));
        let key = Key::new(&acme, Kind::Server, "neon");
        assert_eq!(store.get(&key).await.expect("read"), None);
        let version = store.write(&acme, vec![put(&key, Expect::Absent, "one")]).await.expect("written");
        let found = store.get(&key).await.expect("read").expect("there");
        assert_eq!((found.version, &found.body[..]), (version, &b"one"[..]));
        assert_eq!(store.list(&acme).await.expect("read").documents.len(), 1);
        assert!(store.list(&other).await.expect("read").documents.is_empty());
        assert_eq!(store.get(&Key::new(&other, Kind::Server, "neon")).await.expect("read"), None);
    }
    .boxed_local()
}

fn a_write_that_expects_another_version_changes_nothing(store: &dyn Documents) -> LocalBoxFuture<'_, ()> {
    async move {
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
    }
    .boxed_local()
}

fn a_lagging_reader_learns_what_changed_or_that_it_must_read_again(store: &dyn Documents) -> LocalBoxFuture<'_, ()> {
    async move {
        let acme = tenant("acme");
        let p = partition(&acme);
        let key = Key::new(&acme, Kind::Policy, "s");
        let seen = store.versions().watch();
        store.write(&acme, vec![put(&key, Expect::Any, "0")]).await.expect("written");
        let first = store.position(p).await.expect("read");
        assert!(seen.has_changed().expect("open"));
        store.write(&acme, vec![Write::delete(key.clone(), Expect::Any)]).await.expect("written");
        let second = store.position(p).await.expect("read");
        let changes = store.changes(p, first).await.expect("read");
        assert_eq!(changes, Changes::Since { to: second, keys: vec![key.clone()] });
        let none = store.changes(p, second).await.expect("read");
        assert_eq!(none, Changes::Since { to: second, keys: Vec::new() });
        for n in 0..3 {
            let many = (0..crate::limits::CHANGE_LOG / 2)
                .map(|i| put(&Key::new(&acme, Kind::Policy, format!("{n}-{i}")), Expect::Any, "x"))
                .collect();
            store.write(&acme, many).await.expect("written");
        }
        let now = store.position(p).await.expect("read");
        assert_eq!(store.changes(p, first).await.expect("read"), Changes::Gap { to: now });
        assert!(store.list(&acme).await.expect("read").documents.is_empty(), "policies are read one by one");
    }
    .boxed_local()
}

/// An imported API is a document for each operation.
fn an_api_of_thousands_is_one_write(store: &dyn Documents) -> LocalBoxFuture<'_, ()> {
    async move {
        let tenant = tenant("many");
        let key = |n: usize| Key::new(&tenant, Kind::Tool, format!("tool_{n}"));
        let body = "x".repeat(1_000);
        let most = crate::limits::PLATFORM_TOOLS_PER_TENANT;
        let writes = |count| (0..count).map(|n| put(&key(n), Expect::Any, &body)).collect();
        let version = store.write(&tenant, writes(most)).await.expect("written");
        let all = store.list(&tenant).await.expect("listed").documents;
        assert_eq!(
            all.iter().filter(|(key, document)| key.kind == Kind::Tool && document.version == version).count(),
            most
        );
        let gone = (0..most).map(|n| Write::delete(key(n), Expect::Any)).collect();
        store.write(&tenant, gone).await.expect("deleted");
        assert!(store.list(&tenant).await.expect("listed").documents.iter().all(|(key, _)| key.kind != Kind::Tool));
    }
    .boxed_local()
}

fn what_expired_is_swept(store: &dyn Documents) -> LocalBoxFuture<'_, ()> {
    async move {
        let acme = tenant("acme");
        let key = Key::new(&acme, Kind::Policy, "s");
        let now = unix_s();
        let write = Write { expires_at: Some(now + 10), ..put(&key, Expect::Any, "x") };
        store.write(&acme, vec![write]).await.expect("written");
        assert_eq!(store.sweep(now).await.expect("swept"), 0);
        assert_eq!(store.sweep(now + 10).await.expect("swept"), 1);
        assert_eq!(store.get(&key).await.expect("read"), None);
    }
    .boxed_local()
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

fn a_forgotten_tenant_leaves_its_denials_and_no_rights(store: &dyn Documents) -> LocalBoxFuture<'_, ()> {
    async move {
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
    }
    .boxed_local()
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
            let (mut seen, mut count) = (Position::default(), 0);
            while count < 40 {
                let newest = store.versions().newest(p);
                if let Changes::Since { to, keys } = store.changes(p, seen).await.expect("read") {
                    // Whoever has heard of `newest` is told of everything up to it.
                    assert!(to.version >= newest);
                    count += keys.len();
                    seen = to;
                }
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

fn blobs_are_found_by_their_content(store: &dyn Documents) -> LocalBoxFuture<'_, ()> {
    async move {
        let digest = Digest::of(b"blob");
        assert_eq!(store.get_blob(&digest).await.expect("read"), None);
        assert!(!store.keep_blob(&digest).await.expect("read"));
        store.put_blob(&digest, b"blob".to_vec()).await.expect("written");
        assert_eq!(store.get_blob(&digest).await.expect("read").as_deref(), Some(&b"blob"[..]));
        assert!(store.keep_blob(&digest).await.expect("read"));
    }
    .boxed_local()
}

fn tenants_are_those_with_settings(store: &dyn Documents) -> LocalBoxFuture<'_, ()> {
    async move {
        let (acme, other) = (tenant("acme"), tenant("other"));
        store.write(&acme, vec![put(&Key::new(&acme, Kind::Settings, ""), Expect::Any, "x")]).await.expect("written");
        store.write(&other, vec![put(&Key::new(&other, Kind::Server, "s"), Expect::Any, "x")]).await.expect("written");
        assert_eq!(store.tenants().await.expect("read"), [acme]);
    }
    .boxed_local()
}

fn member(incarnation: u64) -> Member {
    let name = format!("w{incarnation}");
    Member { incarnation, name, address: "127.0.0.1:1".to_owned(), weight: 1, draining: false, wire: (1, 1) }
}

const LEASE: Duration = Duration::from_secs(60);

fn a_lease_that_ended_is_not_renewed<'a>(
    membership: &'a dyn Membership,
    _: &'a dyn Counters,
) -> LocalBoxFuture<'a, ()> {
    async move {
        let (one, two) = (member(1), member(2));
        let seen = membership.changed();
        assert!(membership.beat(&one, Duration::from_millis(150), false).await.expect("beat"));
        assert!(membership.beat(&two, LEASE, false).await.expect("beat"));
        assert_eq!(
            membership.members().await.expect("read").0.into_values().collect::<Vec<_>>(),
            [one.clone(), two.clone()]
        );
        until(async || seen.has_changed().expect("open")).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(membership.members().await.expect("read").0.keys().copied().collect::<Vec<_>>(), [2]);
        assert!(!membership.beat(&one, LEASE, false).await.expect("beat"), "a run that was let go of comes back");
        let draining = Member { draining: true, ..two.clone() };
        let seen = membership.changed();
        assert!(membership.beat(&draining, LEASE, false).await.expect("beat"));
        until(async || seen.has_changed().expect("open")).await;
        assert_eq!(membership.members().await.expect("read").0.get(&2), Some(&draining));
        assert!(membership.beat(&draining, LEASE, true).await.expect("beat"));
        assert!(!membership.beat(&member(3), LEASE, true).await.expect("beat"), "a lease that nobody knows is renewed");
        assert!(!membership.beat(&member(3), LEASE, false).await.expect("beat"), "and that run comes back");
        membership.leave(2).await.expect("left");
        assert!(membership.members().await.expect("read").0.is_empty());
        assert!(!membership.beat(&two, LEASE, false).await.expect("beat"));
    }
    .boxed_local()
}

async fn until(condition: impl AsyncFn() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("in time");
}

fn a_claim_is_held_until_it_is_given_back_or_its_holder_is_gone<'a>(
    membership: &'a dyn Membership,
    _: &'a dyn Counters,
) -> LocalBoxFuture<'a, ()> {
    async move {
        let (acme, other) = (tenant("acme"), tenant("other"));
        let ours = |epoch, trace: Option<&str>| Claim::Ours { epoch, trace: trace.map(str::to_owned) };
        let claim = async |tenant, who, gone| membership.claim(tenant, "s1", who, gone).await.expect("claimed");
        assert_eq!(claim(&acme, 1, None).await, ours(1, None));
        assert_eq!(claim(&acme, 1, None).await, ours(1, None), "again by the same");
        assert_eq!(claim(&other, 2, None).await, ours(1, None), "another tenant's is another one");
        assert_eq!(claim(&acme, 2, None).await, Claim::Held { by: 1 });
        assert_eq!(claim(&acme, 2, Some(3)).await, Claim::Held { by: 1 }, "somebody else is gone");
        assert!(membership.note(&acme, "s1", (1, 1), "session x").await.expect("noted"));
        assert!(!membership.note(&acme, "s1", (2, 1), "y").await.expect("noted"));
        assert_eq!(claim(&acme, 2, Some(1)).await, ours(2, Some("session x")));
        for stale in [(1, 1), (1, 2), (2, 1)] {
            assert!(!membership.note(&acme, "s1", stale, "y").await.expect("noted"), "{stale:?}");
            assert!(!membership.release(&acme, "s1", stale).await.expect("released"), "{stale:?}");
        }
        assert!(membership.release(&acme, "s1", (2, 2)).await.expect("released"));
        assert_eq!(claim(&acme, 3, None).await, ours(3, Some("session x")), "epochs never go back");
    }
    .boxed_local()
}

fn a_lock_is_one_holders_and_ends_by_itself<'a>(
    membership: &'a dyn Membership,
    _: &'a dyn Counters,
) -> LocalBoxFuture<'a, ()> {
    async move {
        let acme = tenant("acme");
        let lock = async |lasts| membership.lock(&acme, "refresh", lasts).await.expect("asked");
        let token = lock(LEASE).await.expect("free");
        assert_eq!(lock(LEASE).await, None);
        membership.unlock(&acme, "refresh", "another").await.expect("asked");
        assert_eq!(lock(LEASE).await, None, "given back by somebody else");
        membership.unlock(&acme, "refresh", &token).await.expect("asked");
        assert!(lock(Duration::from_millis(50)).await.is_some());
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert!(lock(LEASE).await.is_some());
    }
    .boxed_local()
}

fn counters_count_a_window<'a>(_: &'a dyn Membership, counters: &'a dyn Counters) -> LocalBoxFuture<'a, ()> {
    async move {
        let (acme, other) = (tenant("acme"), tenant("other"));
        let add = async |tenant, n| counters.add(tenant, "calls", n, Duration::from_secs(1)).await.expect("counted");
        assert_eq!((add(&acme, 2).await, add(&acme, 3).await, add(&other, 1).await), (2, 5, 1));
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert_eq!(add(&acme, 1).await, 1);
    }
    .boxed_local()
}

/// What a damaged or emptied store answers; each by a way to it that is not ours.
#[tokio::test]
async fn a_shared_store_that_lost_something_says_so() {
    let server = RedisServer::start().await.expect("a server");
    let (store, tasks) = seeded(&server.url()).await;
    let acme = tenant("acme");
    let p = partition(&acme);
    let (settings, policy) = (Key::new(&acme, Kind::Settings, ""), Key::new(&acme, Kind::Policy, "s"));
    store.write(&acme, vec![put(&settings, Expect::Any, "x"), put(&policy, Expect::Any, "y")]).await.expect("written");
    let at = store.position(p).await.expect("read");
    // One key is gone: the documents in it are not "never written".
    let sessions = format!("rc:{{p{p:02}}}:sessions:acme");
    assert_eq!(server.command(&["DEL", &sessions]).expect("done"), "1");
    assert!(matches!(store.get(&policy).await, Err(StoreError::Lost(_))));
    assert!(store.get(&settings).await.expect("read").is_some());
    let again = store.write(&acme, vec![put(&policy, Expect::Any, "z")]).await;
    assert!(matches!(again, Err(StoreError::Lost(_))), "{again:?}");
    // Another type stands there.
    server.command(&["SET", &sessions, "garbage"]).expect("done");
    assert!(matches!(store.get(&policy).await, Err(StoreError::Damaged(_))));
    server.command(&["DEL", &sessions]).expect("done");
    // What is no document of ours is read as one that nobody can decode.
    server.command(&["HSET", &format!("rc:{{p{p:02}}}:docs:acme"), "settings:", "garbage"]).expect("done");
    let found = store.get(&settings).await.expect("read").expect("there");
    assert!(decode::<Vec<i32>>(&found.body).is_err());
    // Seeded anew, the store holds what it holds; whoever knew the life before starts over.
    assert_eq!(store.seed(false).await.expect("seeded"), 0);
    assert_eq!(store.seed(true).await.expect("seeded"), PARTITIONS);
    assert_eq!(store.get(&policy).await.expect("read"), None);
    assert!(
        matches!(store.changes(p, at).await.expect("read"), Changes::Gap { to } if to.incarnation != at.incarnation)
    );
    // Everything is gone.
    server.command(&["FLUSHALL"]).expect("done");
    assert!(matches!(store.get(&policy).await, Err(StoreError::NotSeeded)));
    assert!(matches!(store.position(p).await, Err(StoreError::NotSeeded)));
    let written = store.write(&acme, vec![put(&policy, Expect::Any, "z")]).await;
    assert!(matches!(written, Err(StoreError::NotSeeded)), "{written:?}");
    until(async || store.versions().heard(p) == Heard::Unseeded).await;
    assert!(!store.is_seeded().await.expect("read"));
    assert!(tasks.drain(Duration::from_secs(5)).await);
}

/// Two stores over one server: what one writes the other hears of, also when nobody notifies it.
#[tokio::test]
async fn a_write_is_heard_of_by_notification_and_by_the_beat() {
    let server = RedisServer::start().await.expect("a server");
    let (one, tasks) = seeded(&server.url()).await;
    let (two, others) = seeded(&server.url()).await;
    let acme = tenant("acme");
    let p = partition(&acme);
    let key = Key::new(&acme, Kind::Policy, "s");
    let version = one.write(&acme, vec![put(&key, Expect::Any, "x")]).await.expect("written");
    until(async || two.versions().newest(p) == version).await;
    let one_tag = two.position(p).await.expect("read").tag;
    // A write that nobody is notified of, made by hand.
    let (meta, log) = (format!("rc:{{p{p:02}}}:meta"), format!("rc:{{p{p:02}}}:log"));
    let (next, tag) = ((version + 1).to_string(), "77");
    server.command(&["HSET", &format!("rc:{{p{p:02}}}:sessions:acme"), "policy:s", "2\ny"]).expect("done");
    server.command(&["XADD", &log, &format!("{next}-0"), "a", "acme\npolicy:s", "t", tag]).expect("done");
    server.command(&["HSET", &meta, "ver", &next, "tag", tag]).expect("done");
    until(async || two.versions().newest(p) == version + 1).await;
    let before = Position { tag: one_tag, ..two.position(p).await.expect("read") };
    let changes = two.changes(p, Position { version, ..before }).await.expect("read");
    assert!(matches!(changes, Changes::Since { keys, .. } if keys == [key]));
    assert!(tasks.drain(Duration::from_secs(5)).await && others.drain(Duration::from_secs(5)).await);
}

/// A store whose last writes were lost and made otherwise is another history, though its numbers are the same.
#[tokio::test]
async fn a_history_that_went_elsewhere_is_a_gap() {
    let server = RedisServer::start().await.expect("a server");
    let (store, tasks) = seeded(&server.url()).await;
    let acme = tenant("acme");
    let p = partition(&acme);
    let key = Key::new(&acme, Kind::Policy, "s");
    let write = async |body: &str| store.write(&acme, vec![put(&key, Expect::Any, body)]).await.expect("written");
    write("1").await;
    let names: Vec<String> = ["meta", "log", "sessions:acme"].map(|rest| format!("rc:{{p{p:02}}}:{rest}")).to_vec();
    for name in &names {
        server.command(&["COPY", name, &format!("{name}-before")]).expect("copied");
    }
    write("2").await;
    let lost = store.position(p).await.expect("read");
    for name in &names {
        server.command(&["COPY", &format!("{name}-before"), name, "REPLACE"]).expect("copied");
    }
    let back = store.position(p).await.expect("read");
    assert_eq!(back.version, lost.version - 1);
    assert_eq!(store.changes(p, lost).await.expect("read"), Changes::Gap { to: back });
    write("3").await;
    let other = store.position(p).await.expect("read");
    assert_eq!((other.version, other.tag == lost.tag), (lost.version, false));
    assert_eq!(store.changes(p, lost).await.expect("read"), Changes::Gap { to: other });
    assert_eq!(store.changes(p, back).await.expect("read"), Changes::Since { to: other, keys: vec![key.clone()] });
    assert!(tasks.drain(Duration::from_secs(5)).await);
}

/// A server that speaks TLS alone, and asks for a certificate.
#[tokio::test]
async fn a_shared_store_is_reached_over_tls_with_certificates() {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    let authority = Authority::new("authority").expect("an authority");
    let (server, client) = (authority.certificate("server"), authority.certificate("client"));
    let (server, client) = (server.expect("a certificate"), client.expect("a certificate"));
    let port = rollcall_loadtest::redis::free_port().expect("a port").to_string();
    let text = |path: &std::path::Path| path.display().to_string();
    let (ca, cert, key) = (text(&authority.ca_file()), text(&server.cert_file), text(&server.key_file));
    let arguments = ["--tls-port", &port, "--tls-ca-cert-file", &ca, "--tls-cert-file", &cert, "--tls-key-file", &key];
    let _server = RedisServer::start_with(&arguments).await.expect("a server");
    let mut settings = RedisSettings::parse(&format!("rediss://127.0.0.1:{port}")).expect("settings");
    settings.ca_file = Some(authority.ca_file());
    let connects = async |settings: &RedisSettings| {
        let tasks = Tasks::new();
        let store = RedisStore::open(settings.clone(), &tasks).expect("a store");
        let connected = store.connected(Duration::from_secs(3)).await.is_ok();
        let seeded = connected && store.seed(false).await.is_ok();
        assert!(tasks.drain(Duration::from_secs(5)).await);
        seeded
    };
    assert!(!connects(&settings).await, "without a certificate of ours");
    (settings.cert_file, settings.key_file) = (Some(client.cert_file), Some(client.key_file));
    assert!(connects(&settings).await);
    let another = Authority::new("another").expect("an authority");
    settings.ca_file = Some(another.ca_file());
    assert!(!connects(&settings).await, "a server that our authority does not know");
}
