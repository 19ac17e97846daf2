//! A3: how long a right lives after it was taken away.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hdrhistogram::Histogram;
use rollcall_loadtest::cluster::within;
use rollcall_loadtest::fault::Fault;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::scene::{Scene, call, scale, tenant};

const LEASE: Duration = Duration::from_secs(5);
const GATEWAYS: usize = 3;
/// The gateway that nobody notifies, in the scene with a cut channel.
const DEAF: usize = 2;

/// What is taken away.
#[derive(Debug, Clone, Copy)]
enum Right {
    Tool,
    Session,
    Tenant,
}

impl Right {
    const ALL: [Right; 3] = [Right::Tool, Right::Session, Right::Tenant];

    fn path(self, tenant: &str) -> String {
        match self {
            Right::Tool | Right::Tenant => format!("tenants/{tenant}/revoked"),
            Right::Session => format!("tenants/{tenant}/sessions/load/revoked"),
        }
    }

    async fn take(self, scene: &Scene, tenant: &str) {
        let body = match self {
            Right::Tool => json!({"tenant": false, "entries": ["s0__echo"]}),
            Right::Tenant => json!({"tenant": true, "entries": []}),
            Right::Session => Value::Null,
        };
        scene.cluster.put(&self.path(tenant), body).await.expect("revoked");
    }

    async fn give_back(self, scene: &Scene, tenant: &str) {
        let given = match self {
            Right::Tool | Right::Tenant => {
                scene.cluster.put(&self.path(tenant), json!({"tenant": false, "entries": []})).await
            }
            Right::Session => scene.cluster.delete(&self.path(tenant)).await,
        };
        given.expect("given back");
    }
}

/// Calls one tool at one gateway again and again, and remembers when the calls that got through were begun.
fn probe(scene: &Scene, gateway: usize, tenant: &str, begun: &Arc<Mutex<Vec<Instant>>>) -> JoinSet<()> {
    let mut probing = JoinSet::new();
    for _ in 0..2 {
        let address = scene.cluster.gateways[gateway].address;
        let agent = scene.cluster.agent_at(address, tenant, "load").expect("an agent");
        let begun = begun.clone();
        probing.spawn(async move {
            loop {
                let now = Instant::now();
                if call(&agent, "s0__echo", json!({})).await.is_ok() {
                    begun.lock().expect("a lock").push(now);
                } else {
                    sleep(Duration::from_millis(5)).await;
                }
            }
        });
    }
    probing
}

/// Takes a right away under load. Gives, for each gateway asked, how long after the answer the last call began that got
/// through.
async fn revoke(scene: &Scene, right: Right, tenant: &str, gateways: &[usize], watch: Duration) -> Vec<Duration> {
    let seen: Vec<Arc<Mutex<Vec<Instant>>>> = gateways.iter().map(|_| Arc::default()).collect();
    let probing: Vec<JoinSet<()>> =
        gateways.iter().zip(&seen).map(|(at, seen)| probe(scene, *at, tenant, seen)).collect();
    sleep(Duration::from_millis(150)).await;
    right.take(scene, tenant).await;
    let returned = Instant::now();
    sleep(watch).await;
    drop(probing);
    let last = |seen: &Arc<Mutex<Vec<Instant>>>| {
        let begun = seen.lock().expect("a lock");
        assert!(!begun.is_empty(), "nothing got through before either");
        begun.iter().max().map_or(Duration::ZERO, |last| last.saturating_duration_since(returned))
    };
    let after = seen.iter().map(last).collect();
    right.give_back(scene, tenant).await;
    for at in gateways {
        let address = scene.cluster.gateways[*at].address;
        let agent = scene.cluster.agent_at(address, tenant, "load").expect("an agent");
        let back = within(Duration::from_secs(15), async || call(&agent, "s0__echo", json!({})).await.is_ok()).await;
        assert!(back.is_some(), "{right:?} does not come back\n{}", scene.cluster.logs());
    }
    after
}

fn figures(times: &[Duration]) -> String {
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000, 3).expect("bounds");
    for time in times {
        histogram.saturating_record(u64::try_from(time.as_micros()).expect("a time"));
    }
    let ms = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
    format!("p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms over {}", ms(0.5), ms(0.99), ms(1.0), times.len())
}

async fn revoke_all(scene: &Scene, gateways: &[usize], rounds: usize, what: &str) -> Duration {
    let mut worst = Duration::ZERO;
    for right in Right::ALL {
        let mut by_node = vec![Vec::new(); gateways.len()];
        for round in 0..rounds {
            let times = revoke(scene, right, &tenant(round), gateways, Duration::from_millis(400)).await;
            for (node, time) in by_node.iter_mut().zip(times) {
                node.push(time);
            }
        }
        for (at, times) in gateways.iter().zip(&by_node) {
            println!("A3 {what}, {right:?} at gateway {at}: {}", figures(times));
            worst = worst.max(times.iter().max().copied().unwrap_or_default());
        }
    }
    worst
}

async fn scene(settings: Value) -> Scene {
    Scene::set_with(GATEWAYS, 2, settings, |plan| {
        // A user of the store who may not listen to any channel.
        plan.redis = &[
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--user",
            "deaf",
            "on",
            ">deaf",
            "~*",
            "resetchannels",
            "+@all",
        ];
        plan.store = Box::new(|name, address| {
            let login = if name == "gateway-2" { "deaf:deaf@" } else { "" };
            json!({"url": format!("redis://{login}{address}"), "lease": "5s"})
        });
    })
    .await
}

/// A3
#[tokio::test]
async fn a_revocation_is_felt_everywhere_within_a_second() {
    let mut scene = scene(json!({})).await;
    let rounds = 5 * scale();
    let worst = revoke_all(&scene, &[0, 1], rounds, "notified").await;
    assert!(worst < Duration::from_secs(1), "{worst:?}");
    let worst = revoke_all(&scene, &[DEAF], rounds, "with the channel cut").await;
    assert!(worst < Duration::from_secs(5), "{worst:?}");
    // The store is killed and started again: from the first write on that it takes, the promise holds.
    scene.cluster.redis.kill();
    scene.cluster.redis.run().await.expect("started");
    for gateway in 0..GATEWAYS {
        let ready = within(Duration::from_secs(5), async || scene.cluster.gateways[gateway].is_ready().await).await;
        assert!(ready.is_some());
    }
    let writes = async || scene.cluster.put(&Right::Session.path(&tenant(9)), Value::Null).await.is_ok();
    assert!(within(Duration::from_secs(5), writes).await.is_some(), "{}", scene.cluster.logs());
    let worst = revoke_all(&scene, &[0, 1], 2, "after the store was restarted").await;
    assert!(worst < Duration::from_secs(1), "{worst:?}");
    // A node that does not reach the store at all: known sessions go on for its lease, and no longer.
    let known = scene.cluster.agent_at(scene.cluster.gateways[1].address, &tenant(3), "load").expect("an agent");
    call(&known, "s0__echo", json!({})).await.expect("served");
    scene.cluster.gateways[1].store.set(Fault::Hang);
    let cut = Instant::now();
    let times = revoke_cut_off(&scene, &tenant(3)).await;
    println!("A3 cut off for its lease of {LEASE:?}: the last call got through {times:?} after the revocation");
    assert!(times < LEASE, "{times:?}, {:?} after it was cut off", cut.elapsed());
    scene.cluster.gateways[1].store.set(Fault::None);
    let ready = within(Duration::from_secs(10), async || scene.cluster.gateways[1].is_ready().await).await;
    assert!(ready.is_some(), "it comes back");
    scene.stop().await;
}

async fn revoke_cut_off(scene: &Scene, tenant: &str) -> Duration {
    let seen = Arc::default();
    let probing = probe(scene, 1, tenant, &seen);
    sleep(Duration::from_millis(300)).await;
    Right::Session.take(scene, tenant).await;
    let returned = Instant::now();
    sleep(LEASE + Duration::from_secs(1)).await;
    drop(probing);
    let begun = seen.lock().expect("a lock");
    begun.iter().max().expect("some").saturating_duration_since(returned)
}

/// A3, for tenants that ask for it: a revocation that was answered is in effect.
#[tokio::test]
async fn a_strict_tenants_revocation_is_in_effect_when_it_is_answered() {
    let scene = scene(json!({"freshness": "strict"})).await;
    let worst = revoke_all(&scene, &[0, 1, DEAF], 5 * scale(), "strict").await;
    assert_eq!(worst, Duration::ZERO, "a call got through that was begun after the answer");
    // Without an answer of the store nothing gets through at all.
    scene.cluster.gateways[1].store.set(Fault::Hang);
    let agent = scene.cluster.agent_at(scene.cluster.gateways[1].address, &tenant(1), "load").expect("an agent");
    let began = Instant::now();
    let refused = agent.modern("/mcp", "tools/call", json!({"name": "s0__echo", "arguments": {}})).await;
    println!("A3 strict and cut off: refused after {:?}", began.elapsed());
    assert_eq!(refused.expect("an answer").status, 503);
    scene.cluster.gateways[1].store.set(Fault::None);
    scene.stop().await;
}
