//! Who may act on a thing: one worker at a time, and none without its lease.

#![allow(clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

use rollcall_shared::ids::TenantId;
use rollcall_shared::store::membership::LocalMembership;
use rollcall_shared::wire::VERSIONS;

use super::*;

async fn worker(among: &Arc<LocalMembership>, name: &str) -> Ownership {
    let (name, address) = (name.to_owned(), name.to_owned());
    let member = Member { incarnation: 0, name, address, weight: 1, draining: false, wire: VERSIONS };
    let worker = Ownership::among(among.clone(), member);
    beat(among, &worker).await;
    worker
}

async fn beat(among: &Arc<LocalMembership>, worker: &Ownership) {
    let me = worker.me.load_full();
    assert!(among.beat(&me, limits::WORKER_LEASE, false).await.expect("answered"));
    worker.acts_until_ms.store(worker.ms(Instant::now() + limits::WORKER_LEASE), Ordering::Release);
}

fn thing(name: &str) -> Thing {
    Thing { tenant: TenantId::parse("acme").expect("an id"), name: name.to_owned(), exclusive: true }
}

fn refused(held: Result<Option<String>, Failure>) -> Failure {
    let failure = held.expect_err("refused");
    assert!(!failure.may_have_run, "nothing was sent: {failure:?}");
    failure
}

#[tokio::test]
async fn without_its_lease_a_worker_touches_nothing_also_what_it_held() {
    let among = Arc::new(LocalMembership::default());
    let a = worker(&among, "a").await;
    assert_eq!(a.hold(&thing("x")).await, Ok(None));
    assert_eq!(a.hold(&thing("x")).await, Ok(None));
    a.acts_until_ms.store(0, Ordering::Release);
    for name in ["x", "y"] {
        assert_eq!(refused(a.hold(&thing(name)).await).reason, Reason::NoWorker);
    }
    beat(&among, &a).await;
    assert_eq!(a.hold(&thing("x")).await, Ok(None));
}

#[tokio::test]
async fn what_another_holds_is_elsewhere_until_it_is_gone_and_then_its_trace_is_told() {
    let among = Arc::new(LocalMembership::default());
    let (a, b) = (worker(&among, "a").await, worker(&among, "b").await);
    assert_eq!(a.hold(&thing("x")).await, Ok(None));
    a.note(&thing("x"), "the session").await;
    let failure = refused(b.hold(&thing("x")).await);
    assert_eq!((failure.reason, failure.elsewhere), (Reason::Elsewhere, Some(a.incarnation())));
    assert_eq!(b.hold(&thing("y")).await, Ok(None), "others are free");
    a.leave().await;
    assert_eq!(b.hold(&thing("x")).await, Ok(Some("the session".to_owned())));
    assert_eq!(b.hold(&thing("x")).await, Ok(None), "it is told once");
}

#[tokio::test]
async fn what_a_draining_worker_holds_is_waited_for_and_it_takes_nothing_new() {
    let among = Arc::new(LocalMembership::default());
    let (a, b) = (worker(&among, "a").await, worker(&among, "b").await);
    assert_eq!(a.hold(&thing("x")).await, Ok(None));
    a.note(&thing("x"), "the session").await;
    a.drain().await;
    assert_eq!(a.hold(&thing("x")).await, Ok(None), "what it holds is served until it is let go of");
    assert_eq!(refused(a.hold(&thing("y")).await).reason, Reason::NoWorker);
    let moving = async {
        tokio::time::sleep(3 * limits::MOVE_LOOK).await;
        let epoch = a.lets_go(&thing("x"));
        assert_eq!(refused(a.hold(&thing("x")).await).reason, Reason::NoWorker);
        a.gives_back(&thing("x"), epoch).await;
    };
    let (held, ()) = tokio::join!(async { b.hold(&thing("x")).await }, moving);
    assert_eq!(held, Ok(None), "closed in good order: nothing is left to end");
    let failure = refused(worker(&among, "c").await.hold(&thing("x")).await);
    assert_eq!((failure.reason, failure.elsewhere), (Reason::Elsewhere, Some(b.incarnation())));
}

#[tokio::test]
async fn what_is_unused_is_given_back_and_only_that() {
    let among = Arc::new(LocalMembership::default());
    let (a, b) = (worker(&among, "a").await, worker(&among, "b").await);
    for name in ["used", "unused"] {
        assert_eq!(a.hold(&thing(name)).await, Ok(None));
    }
    a.give_back_unused(|thing| thing.name == "used").await;
    assert_eq!(a.all(), [thing("used")]);
    assert_eq!(b.hold(&thing("unused")).await, Ok(None));
    assert_eq!(refused(b.hold(&thing("used")).await).reason, Reason::Elsewhere);
}
