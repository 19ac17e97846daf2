//! What only one worker may hold: a session's own connection, with the state that a legacy server keeps behind it.

use std::collections::BTreeSet;
use std::time::Duration;

use http::Method;
use rollcall_loadtest::cluster::within;
use rollcall_loadtest::fault::Fault;
use rollcall_loadtest::upstream::Upstream;
use serde_json::json;
use tokio::time::sleep;

use crate::scene::{RATE, Scene, call, call_once, tenant};

/// Every session has its own connection to every server; the second upstream keeps a state behind each.
async fn exclusive() -> Scene {
    Scene::set_with(2, 2, json!({}), |plan| {
        for tenant in plan.tenants.as_object_mut().expect("tenants").values_mut() {
            for server in tenant["servers"].as_array_mut().expect("servers") {
                server["isolation"] = json!("session");
            }
        }
    })
    .await
}

/// The sessions that were ended at an upstream. Fails where one was written to after that.
fn ended_for_good(upstream: &Upstream) -> BTreeSet<String> {
    let mut ended = BTreeSet::new();
    for (at, seen) in upstream.seen().into_iter().enumerate() {
        let Some(session) = seen.headers.get("mcp-session-id") else { continue };
        let session = session.to_str().expect("text").to_owned();
        if seen.method == Method::DELETE {
            ended.insert(session);
        } else {
            assert!(!ended.contains(&session), "request {at} is of {session}, which was ended: {}", seen.body);
        }
    }
    ended
}

/// D8
#[tokio::test]
async fn two_owners_cannot_both_act() {
    let scene = exclusive().await;
    let load = scene.load(RATE);
    sleep(Duration::from_secs(1)).await;
    // Longer than twice its lease of 6 s. Calls lie in its sockets meanwhile.
    scene.cluster.workers[0].freeze();
    sleep(Duration::from_secs(13)).await;
    scene.cluster.workers[0].thaw();
    sleep(Duration::from_secs(3)).await;
    let report = load.end().await;
    println!("D8 {report}");
    assert_eq!(scene.executed_twice(), Vec::<u64>::new());
    // It came back as another run, and serves again.
    scene.cluster.workers[0].ready().await.expect("ready");
    let agent = scene.cluster.agent(&tenant(0), "load").expect("an agent");
    let served = within(Duration::from_secs(10), async || call_once(&agent, "s1__echo", scene.number()).await.is_ok());
    assert!(served.await.is_some(), "{}", scene.cluster.logs());
    let ended = ended_for_good(&scene.upstreams[1]);
    println!("D8 sessions that the new owner ended, and nobody wrote to after: {}", ended.len());
    assert!(!ended.is_empty(), "the new owner ends what the frozen one left");
    scene.stop().await;
}

/// A store that failed over may have lost a claim, and given it to another since: who held it finds out and lets go.
#[tokio::test]
async fn a_claim_that_the_store_lost_is_let_go_of() {
    let scene = exclusive().await;
    let agent = scene.cluster.agent(&tenant(0), "mine").expect("an agent");
    let redis = &scene.cluster.redis;
    let records = || -> BTreeSet<String> {
        let records = redis.command(&["--raw", "KEYS", "*own:tenant-00:server s1 of *"]).expect("answered");
        records.lines().map(str::to_owned).collect()
    };
    let of_others = records();
    call(&agent, "s1__echo", json!({})).await.expect("served");
    let record = records().difference(&of_others).next().expect("one more record").clone();
    let holder = redis.command(&["HGET", &record, "by"]).expect("answered");
    let members = redis.command(&["--raw", "HKEYS", "rc:{m}:members"]).expect("answered");
    let other = members.lines().find(|member| *member != holder).expect("another worker").to_owned();
    let before = scene.upstreams[1].sessions().0;
    let script = "redis.call('HINCRBY', KEYS[1], 'epoch', 1) redis.call('HSET', KEYS[1], 'by', ARGV[1])";
    redis.command(&["EVAL", script, "1", &record, &other]).expect("done");
    // It looks when it has connected anew.
    for node in &scene.cluster.workers {
        node.store.set(Fault::Reset);
    }
    sleep(Duration::from_millis(200)).await;
    for node in &scene.cluster.workers {
        node.store.set(Fault::None);
    }
    let lets_go = async || scene.cluster.workers.iter().any(|node| node.log().contains("another worker holds what"));
    let took = within(Duration::from_secs(10), lets_go).await;
    println!("a lost claim is let go of {took:?} after the store was reached again");
    assert!(took.is_some(), "{}", scene.cluster.logs());
    let served = async || call(&agent, "s1__echo", json!({})).await.is_ok();
    assert!(within(Duration::from_secs(10), served).await.is_some(), "{}", scene.cluster.logs());
    assert_eq!(redis.command(&["HGET", &record, "by"]).expect("answered"), other, "the other one holds it");
    assert_eq!(scene.upstreams[1].sessions().0, before + 1, "with a session of its own");
    ended_for_good(&scene.upstreams[1]);
    scene.stop().await;
}
