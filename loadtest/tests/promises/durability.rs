//! D: processes may be killed, frozen, restarted; the store may go and come back.

use std::time::Duration;

use rollcall_loadtest::arrivals::Load;
use rollcall_loadtest::cluster::{built, within};
use rollcall_loadtest::fault::Fault;
use rollcall_loadtest::redis_family::{RedisCluster, Sentinels};
use rollcall_loadtest::upstream::{Reply, Speaks, Upstream};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::scene::{RATE, Scene, TENANTS, call, call_once, tenant};

/// What a killed process's own calls end with.
fn may_have_run(failure: &str) -> bool {
    failure.contains("may have run")
}

/// D1
#[tokio::test]
async fn a_killed_worker_loses_only_what_it_held() {
    // One more server for each tenant, of which every session has a connection of its own.
    let stateful = Upstream::start(Speaks::Legacy, &["echo"]).await.expect("an upstream");
    let url = stateful.url();
    let mut scene = Scene::set_with(2, 2, json!({}), |plan| {
        for tenant in plan.tenants.as_object_mut().expect("tenants").values_mut() {
            let server = json!({"id": "own", "url": url, "isolation": "session"});
            tenant["servers"].as_array_mut().expect("servers").push(server);
        }
    })
    .await;
    let sessions: Vec<_> =
        (0..16).map(|n| scene.cluster.agent(&tenant(n), &format!("own-{n}")).expect("an agent")).collect();
    for agent in &sessions {
        call(agent, "own__echo", json!({})).await.expect("served");
    }
    let load = scene.load(RATE);
    sleep(Duration::from_secs(2)).await;
    let killed = load.elapsed();
    scene.cluster.workers[0].kill().await;
    let began = Instant::now();
    let mut exclusive = Vec::new();
    for agent in &sessions {
        let served = within(Duration::from_secs(20), async || call(agent, "own__echo", json!({})).await.is_ok()).await;
        served.unwrap_or_else(|| panic!("a session has no owner\n{}", scene.cluster.logs()));
        exclusive.push(began.elapsed());
    }
    println!("D1 all exclusive connections have an owner again after {:?}", exclusive.last().expect("some"));
    assert!(exclusive.iter().all(|took| *took < Duration::from_secs(8)), "{exclusive:?}");
    assert!(exclusive.iter().any(|took| *took > Duration::from_secs(1)), "some were the killed worker's");
    let report = load.end().await;
    let base = report.between(Duration::ZERO, killed.saturating_sub(Duration::from_millis(500)));
    let after = report.between(killed, Duration::MAX);
    println!("D1 before the kill: {base}\nD1 after the kill:  {after}");
    assert_eq!(base.failed(), 0, "{base}");
    // What it held at that moment, and nothing else.
    let held = report.between(killed.saturating_sub(Duration::from_millis(500)), killed + Duration::from_millis(500));
    for failure in report.failures().keys() {
        assert!(may_have_run(failure), "{failure}\n{}", scene.cluster.logs());
    }
    assert_eq!(held.failed(), report.failed(), "only calls that were under way fail");
    assert_eq!(scene.executed_twice(), Vec::<u64>::new());
    // Every server of every tenant has an owner again.
    let agent = scene.cluster.agent(&tenant(0), "after").expect("an agent");
    for n in 0..20 {
        call_once(&agent, &format!("s{}__echo", n % 3), scene.number()).await.expect("served");
    }
    scene.cluster.workers[0].run().expect("started");
    scene.cluster.workers[0].ready().await.expect("ready");
    scene.stop().await;
}

/// D2
#[tokio::test]
async fn a_killed_gateway_loses_nothing() {
    let mut scene = Scene::set().await;
    let load = scene.load(RATE);
    sleep(Duration::from_secs(2)).await;
    let killed = load.elapsed();
    scene.cluster.gateways[0].kill().await;
    sleep(Duration::from_secs(3)).await;
    let report = load.end().await;
    println!("D2 {report}");
    // Its open calls end with their connections; whoever comes next is served by the other one.
    let open = report.between(killed.saturating_sub(Duration::from_millis(500)), killed + Duration::from_millis(100));
    assert_eq!(open.failed(), report.failed(), "{report}");
    assert_eq!(scene.executed_twice(), Vec::<u64>::new());
    scene.cluster.gateways[0].run().expect("started");
    scene.cluster.gateways[0].ready().await.expect("ready");
    scene.stop().await;
}

/// D4: with connections of every kind, and calls under way that take longer than the doors stay open.
#[tokio::test]
async fn a_rolling_restart_is_not_noticed() {
    let stateful = Upstream::start(Speaks::Legacy, &["echo"]).await.expect("an upstream");
    stateful.answers(|params| {
        Reply::Result(json!({"content": [{"type": "text", "text": params["arguments"].to_string()}]}).to_string())
    });
    let (url, program) = (stateful.url(), built().await.expect("programs").rollcall.clone());
    let mut scene = Scene::set_with(2, 2, json!({}), |plan| {
        for tenant in plan.tenants.as_object_mut().expect("tenants").values_mut() {
            let servers = tenant["servers"].as_array_mut().expect("servers");
            servers.push(json!({"id": "own", "url": url, "isolation": "session"}));
            servers.push(json!({"id": "child", "command": [program, "demo-server"]}));
        }
    })
    .await;
    let load = scene.load(RATE);
    // A session's own connection, and a child process: both may be held by one worker only.
    let sessions: Vec<_> = (0..8).map(|n| scene.cluster.agent(&tenant(n), &format!("own-{n}")).expect("one")).collect();
    let exclusive = Load::start(RATE / 4.0, move |n| {
        let (agent, to_child) = (sessions[n as usize / 2 % sessions.len()].clone(), n % 2 == 0);
        async move {
            if !to_child {
                return call_once(&agent, "own__echo", n).await;
            }
            let sum = call(&agent, "child__add", json!({"a": n, "b": 1})).await?;
            if sum == (n + 1).to_string() { Ok(()) } else { Err(format!("{n} + 1 was answered with {sum}")) }
        }
    });
    let agent = scene.cluster.agent(&tenant(1), "slow").expect("an agent");
    for at in 0..4 {
        let slow: Vec<_> = (0..6)
            .map(|n| {
                let (agent, number) = (agent.clone(), scene.number());
                tokio::spawn(async move { call_once(&agent, &format!("s{}__slow", n % 3), number).await })
            })
            .collect();
        sleep(Duration::from_millis(300)).await;
        let began = Instant::now();
        let replaced =
            if at < 2 { scene.cluster.replace_gateway(at).await } else { scene.cluster.replace_worker(at - 2).await };
        println!("D4 process {at} was replaced in {:.1} s", began.elapsed().as_secs_f32());
        replaced.unwrap_or_else(|e| panic!("{e}\n{}", scene.cluster.logs()));
        for call in slow {
            call.await.expect("joined").unwrap_or_else(|e| panic!("{e}\n{}", scene.cluster.logs()));
        }
    }
    let (report, exclusive) = (load.end().await, exclusive.end().await);
    println!("D4 {report}\nD4 on exclusive connections: {exclusive}");
    assert_eq!(report.failed(), 0, "{report}\n{}", scene.cluster.logs());
    assert_eq!(exclusive.failed(), 0, "{exclusive}\n{}", scene.cluster.logs());
    assert_eq!(scene.executed_twice(), Vec::<u64>::new());
    scene.stop().await;
}

/// D3
#[tokio::test]
async fn redis_may_go_and_come_back() {
    const LEASE: Duration = Duration::from_secs(6);
    let scene = Scene::set_with(2, 2, json!({}), |plan| {
        plan.store = Box::new(|_, address| json!({"url": format!("redis://{address}"), "lease": "6s"}));
    })
    .await;
    let mut scene = scene;
    let served = async |scene: &Scene, at: usize| {
        let agent = scene.cluster.agent_at(scene.cluster.gateways[at].address, &tenant(2), "load").expect("an agent");
        call_once(&agent, "s0__echo", scene.number()).await
    };
    // It is killed and comes back; warm calls go on meanwhile.
    let load = scene.load(RATE);
    sleep(Duration::from_secs(1)).await;
    scene.cluster.redis.kill();
    sleep(Duration::from_secs(2)).await;
    scene.cluster.redis.run().await.expect("started");
    let back = Instant::now();
    let ready = async |scene: &Scene| {
        let mut all = true;
        for node in &scene.cluster.gateways {
            let unknown = scene.cluster.agent_at(node.address, &tenant(3), &format!("new-{}", scene.number()));
            all &= call(&unknown.expect("an agent"), "s0__echo", json!({})).await.is_ok();
        }
        all
    };
    let took = within(Duration::from_secs(10), async || ready(&scene).await).await;
    println!("D3 killed for 2 s, unknown sessions served again {:?} after its start", back.elapsed());
    assert!(took.is_some_and(|took| took < Duration::from_secs(3)), "{took:?}\n{}", scene.cluster.logs());
    // It stands still, then is slow.
    scene.cluster.redis.freeze();
    sleep(Duration::from_secs(3)).await;
    let unknown = scene.cluster.agent(&tenant(3), "never-seen").expect("an agent");
    let began = Instant::now();
    let refused = unknown.modern("/mcp", "tools/list", json!({})).await.expect("an answer");
    println!("D3 frozen: an unknown session is refused with {} in {:?}", refused.status, began.elapsed());
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.headers.contains_key("retry-after") && began.elapsed() < Duration::from_secs(1));
    scene.cluster.redis.thaw();
    for node in scene.cluster.gateways.iter().chain(&scene.cluster.workers) {
        node.store.set(Fault::Delay(Duration::from_millis(250)));
    }
    sleep(Duration::from_secs(2)).await;
    for node in scene.cluster.gateways.iter().chain(&scene.cluster.workers) {
        node.store.set(Fault::None);
    }
    // It refuses writes: out of memory, then as a replica would.
    for (command, undo) in [
        (&["CONFIG", "SET", "maxmemory", "1"][..], &["CONFIG", "SET", "maxmemory", "0"][..]),
        (&["REPLICAOF", "127.0.0.1", "1"][..], &["REPLICAOF", "NO", "ONE"][..]),
    ] {
        scene.cluster.redis.command(command).expect("done");
        let refused = scene.cluster.put(&format!("tenants/{}/sessions/x/policy", tenant(0)), json!({})).await;
        println!("D3 a write under {command:?}: {refused:?}");
        assert!(refused.is_err_and(|e| e.contains("503")), "a write that was not made must not be answered as made");
        sleep(Duration::from_secs(1)).await;
        scene.cluster.redis.command(undo).expect("done");
    }
    let report = load.end().await;
    println!("D3 warm calls while it went and came back: {report}");
    assert!(report.failed() * 1000 <= report.count(), "{report}\n{}", scene.cluster.logs());
    // It does not come back: warm calls go on for the lease, then everything is closed.
    scene.cluster.redis.freeze();
    let began = Instant::now();
    sleep(LEASE.saturating_sub(Duration::from_secs(2))).await;
    for at in 0..2 {
        served(&scene, at).await.expect("known sessions go on");
    }
    let closed = within(LEASE, async || served(&scene, 0).await.is_err() && served(&scene, 1).await.is_err()).await;
    println!("D3 frozen for good: closed after {:?} with a lease of {LEASE:?}", began.elapsed());
    assert!(closed.is_some() && began.elapsed() < LEASE + Duration::from_secs(2));
    assert!(!scene.cluster.gateways[0].is_ready().await, "a node without its lease is not ready");
    assert!(scene.cluster.gateways[0].is_alive().await, "but alive");
    scene.cluster.redis.thaw();
    let open = within(Duration::from_secs(5), async || served(&scene, 0).await.is_ok()).await;
    println!("D3 thawed: open after {open:?}");
    assert!(open.is_some_and(|took| took < Duration::from_secs(2)), "{open:?}");
    scene.stop().await;
}

/// A master of the store dies under load. Warm calls go on; the rest comes back with the new master, within the lease.
async fn fail_over(what: &str, url: String, kill: impl FnOnce()) {
    let scene = Scene::set_with(2, 2, json!({}), |plan| plan.store = Box::new(move |_, _| url.clone().into())).await;
    let load = scene.load(RATE);
    sleep(Duration::from_secs(2)).await;
    let began = Instant::now();
    kill();
    let writes = async || {
        let mut all = true;
        for n in 0..TENANTS {
            let path = format!("tenants/{}/sessions/{}/policy", tenant(n), scene.number());
            all &= scene.cluster.put(&path, json!({})).await.is_ok();
        }
        all
    };
    // The first that succeeds may be of a moment before anybody noticed.
    sleep(Duration::from_millis(500)).await;
    let written = within(Duration::from_secs(30), writes).await;
    println!("{what}: every tenant is written to again {:?} after the kill", began.elapsed());
    assert!(written.is_some(), "{}", scene.cluster.logs());
    for gateway in &scene.cluster.gateways {
        for n in 0..TENANTS {
            let session = format!("after-{}", scene.number());
            let unknown = scene.cluster.agent_at(gateway.address, &tenant(n), &session).expect("an agent");
            let served = async || call_once(&unknown, "s0__echo", scene.number()).await.is_ok();
            assert!(within(Duration::from_secs(30), served).await.is_some(), "{}", scene.cluster.logs());
        }
    }
    println!("{what}: every node serves unknown sessions of every tenant {:?} after the kill", began.elapsed());
    let report = load.end().await;
    println!("{what}: warm calls meanwhile: {report}");
    assert_eq!(report.failed(), 0, "{report}\n{}", scene.cluster.logs());
    assert_eq!(scene.executed_twice(), Vec::<u64>::new());
    scene.stop().await;
}

/// D3, where the store has a master to lose.
#[tokio::test]
async fn a_failover_of_the_store_ends_within_the_lease() {
    let mut sentinels = Sentinels::start().await.expect("sentinels");
    fail_over("Sentinel", sentinels.url(), || sentinels.servers[0].kill()).await;
    drop(sentinels);
    let mut cluster = RedisCluster::start(1).await.expect("a cluster");
    let url = cluster.url();
    // The master of the workers' leases, and of a third of all partitions.
    let master = cluster.master_of("rc:{m}:members").expect("a master");
    fail_over("Redis Cluster", url, || cluster.servers[master].kill()).await;
}

/// What a node needs to list and describe is in the store: it touches no upstream for that, and no worker.
#[tokio::test]
async fn a_fresh_gateway_lists_and_describes_without_an_upstream() {
    let mut scene = Scene::set().await;
    let told = async |scene: &Scene, at: usize| {
        let agent = scene.cluster.agent_at(scene.cluster.gateways[at].address, &tenant(4), "load").expect("an agent");
        let list = agent.modern("/mcp", "tools/list", json!({})).await.expect("an answer");
        let params = json!({"name": "get_api_spec", "arguments": {"tool_names": ["s0__echo", "s1__slow"]}});
        let spec = agent.modern("/mcp", "tools/call", params).await.expect("an answer");
        (list.text(), spec.text())
    };
    let before = told(&scene, 0).await;
    assert!(before.0.contains("s2__other") && before.1.contains("openapi"), "{before:?}");
    assert_eq!(told(&scene, 1).await, before, "every node says the same, byte by byte");
    // One worker lists a server anew, and every node knows.
    scene.upstreams[2].set_tools(["echo", "slow", "brand_new"].map(rollcall_loadtest::upstream::tool).to_vec());
    for at in 0..2 {
        let knows = async || told(&scene, at).await.0.contains("s2__brand_new");
        let took = within(Duration::from_secs(10), knows).await;
        println!("one worker's refresh reaches gateway {at} after {took:?}");
        assert!(took.is_some(), "{}", scene.cluster.logs());
    }
    let before = told(&scene, 1).await;
    for worker in &mut scene.cluster.workers {
        worker.kill().await;
    }
    let seen: usize = scene.upstreams.iter().map(|upstream| upstream.seen().len()).sum();
    scene.cluster.gateways[0].kill().await;
    let began = Instant::now();
    scene.cluster.gateways[0].run().expect("started");
    scene.cluster.gateways[0].ready().await.expect("ready");
    println!("a fresh gateway is ready {:?} after its start", began.elapsed());
    assert_eq!(told(&scene, 0).await, before);
    assert_eq!(scene.upstreams.iter().map(|upstream| upstream.seen().len()).sum::<usize>(), seen);
    for worker in &mut scene.cluster.workers {
        worker.run().expect("started");
    }
    for worker in &scene.cluster.workers {
        worker.ready().await.expect("ready");
    }
    scene.stop().await;
}
