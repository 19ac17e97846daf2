//! A: who sees and may do what. C2: what a warm call asks of the store.

use std::collections::BTreeSet;
use std::time::Duration;

use rollcall_loadtest::client::Client;
use rollcall_loadtest::cluster::within;
use rollcall_loadtest::fault::Fault;
use rollcall_loadtest::upstream::tool;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::scene::{Scene, TENANTS, call, credential, scale, tenant};

fn find(haystack: &[u8], needle: &str) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle.as_bytes())
}

/// Everything that the store has written down.
fn store_bytes(scene: &Scene) -> Vec<u8> {
    let folder = scene.cluster.redis.folder().join("appendonlydir");
    let files = std::fs::read_dir(folder).expect("the store's files").flatten();
    files.flat_map(|file| std::fs::read(file.path()).expect("a file")).collect()
}

/// A1: canaries in arguments, results and credentials, all calls under one id, while a worker is killed and calls are given
/// up on the way.
#[tokio::test]
async fn no_tenant_ever_sees_anothers_bytes() {
    let mut scene = Scene::set_with(2, 2, json!({}), |plan| plan.records_links = true).await;
    let each = 60 * scale();
    let canary = |tenant: &str, n: usize| format!("canary-of-{tenant}-{n}-end");
    let mut calling = JoinSet::new();
    for n in 0..TENANTS {
        let (name, agent) = (tenant(n), scene.cluster.agent(&tenant(n), "load").expect("an agent"));
        calling.spawn(async move {
            let mut replies = Vec::new();
            for at in 0..each {
                let tool = format!("s{}__echo", at % 3);
                let asked = call(&agent, &tool, json!({"text": canary(&name, at)}));
                // Some are given up on the way: what is left of them must reach nobody else.
                if at % 7 == 3 {
                    tokio::time::timeout(Duration::from_millis(2), asked).await.ok();
                } else {
                    replies.push(asked.await);
                }
            }
            (name, replies)
        });
    }
    sleep(Duration::from_millis(500)).await;
    scene.cluster.workers[1].kill().await;
    let (mut foreign, mut replies, mut lost) = (0, 0, 0);
    while let Some(done) = calling.join_next().await {
        let (name, answers) = done.expect("joined");
        for answer in answers {
            replies += 1;
            lost += usize::from(answer.is_err());
            let text = answer.unwrap_or_else(|error| error);
            foreign += (0..TENANTS)
                .map(tenant)
                .filter(|other| *other != name && text.contains(&format!("of-{other}-")))
                .count();
        }
    }
    // Each call went out with its own tenant's credential.
    let mut calls = 0;
    for (at, upstream) in scene.upstreams.iter().enumerate() {
        for seen in upstream.seen().iter().filter(|seen| seen.body.contains("canary-of-")) {
            calls += 1;
            let owner =
                (0..TENANTS).map(tenant).find(|name| seen.body.contains(&format!("of-{name}-"))).expect("an owner");
            let key = seen.headers.get("x-api-key").and_then(|key| key.to_str().ok());
            assert_eq!(key, Some(credential(&owner, at).as_str()));
        }
    }
    println!(
        "A1 {replies} replies ({lost} lost with the worker), {calls} calls at upstreams, {foreign} foreign canaries"
    );
    assert!(foreign == 0 && calls >= replies - lost);
    // Nothing of it is written down.
    let mut written = store_bytes(&scene);
    for node in scene.cluster.gateways.iter().chain(&scene.cluster.workers) {
        written.extend(node.log().into_bytes());
    }
    for gateway in &scene.cluster.gateways {
        written.extend(gateway.metrics().await.expect("metrics").into_bytes());
    }
    assert!(!find(&written, "canary-of-") && !find(&written, "-canary"), "arguments, results and secrets stay out");
    scene.cluster.workers[1].run().expect("started");
    scene.cluster.workers[1].ready().await.expect("ready");
    scene.stop().await;
}

/// A6
#[tokio::test]
async fn the_callers_token_stops_at_the_gateway() {
    let scene = Scene::set_with(1, 2, json!({}), |plan| plan.records_links = true).await;
    let mut tokens = Vec::new();
    for n in 0..TENANTS {
        let token = scene.cluster.issuer.token(&tenant(n), "secretive").expect("a token");
        let agent = Client::new(format!("http://{}", scene.cluster.balancer.address)).with_token(token.clone());
        for server in 0..3 {
            call(&agent, &format!("s{server}__echo"), json!({"n": n})).await.expect("served");
        }
        tokens.push(token);
    }
    let mut after = store_bytes(&scene);
    for node in scene.cluster.gateways.iter().chain(&scene.cluster.workers) {
        after.extend(node.log().into_bytes());
    }
    let mut on_links = 0;
    for worker in &scene.cluster.workers {
        let recorded = worker.link.as_ref().expect("recorded").recorded();
        on_links += recorded.len();
        after.extend(recorded);
    }
    for seen in scene.upstreams.iter().flat_map(|upstream| upstream.seen()) {
        after.extend(format!("{:?} {}", seen.headers, seen.body).into_bytes());
    }
    assert!(find(&after, "s0") && on_links > 10_000, "what is searched is what went there");
    for token in &tokens {
        let signature = token.rsplit('.').next().expect("a signature");
        assert!(!find(&after, token) && !find(&after, signature), "a token travelled on");
    }
    println!("A6 {} bytes behind the gateway searched for {} tokens: none", after.len(), tokens.len());
    scene.stop().await;
}

/// Whom a policy of the test lets use what, evaluated as naively as can be.
struct Naive {
    allow: Vec<String>,
    deny: Vec<String>,
}

impl Naive {
    fn matches(entry: &str, name: &str) -> bool {
        match entry.split_once('*') {
            None => entry == name,
            Some((before, after)) => {
                name.len() >= before.len() + after.len() && name.starts_with(before) && name.ends_with(after)
            }
        }
    }

    fn allows(&self, name: &str) -> bool {
        let any = |list: &[String]| list.iter().any(|entry| Self::matches(entry, name));
        any(&self.allow) && !any(&self.deny)
    }
}

/// A small generator of numbers: the test repeats itself.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or(0) % sides
    }
}

/// A2: what is listed is described is callable, and nothing else, at every node.
#[tokio::test]
async fn a_tool_is_callable_iff_listed() {
    let scene = Scene::set().await;
    let words = ["read", "write", "list", "drop"];
    let names: Vec<String> = words.iter().flat_map(|a| words.iter().map(move |b| format!("{a}_{b}"))).collect();
    for upstream in &scene.upstreams {
        upstream.set_tools(names.iter().map(|name| tool(name)).collect());
    }
    let all: Vec<String> = (0..3).flat_map(|s| names.iter().map(move |name| format!("s{s}__{name}"))).collect();
    let acme = tenant(0);
    for gateway in &scene.cluster.gateways {
        let agent = scene.cluster.agent_at(gateway.address, &acme, "load").expect("an agent");
        let listed = within(Duration::from_secs(20), async || listed(&agent).await.len() == all.len());
        assert!(listed.await.is_some(), "{}", scene.cluster.logs());
    }
    let mut dice = Dice(7);
    let (mut asked, mut allowed) = (0, 0);
    for session in 0..12 * scale() {
        let entries = |dice: &mut Dice, most: usize| -> Vec<String> {
            (0..dice.roll(most))
                .map(|_| {
                    let name = &all[dice.roll(all.len())];
                    match dice.roll(4) {
                        0 => format!("{}*", &name.chars().take(4 + dice.roll(5)).collect::<String>()),
                        1 => format!("*{}", words[dice.roll(words.len())]),
                        _ => name.clone(),
                    }
                })
                .collect()
        };
        let naive = Naive { allow: entries(&mut dice, 6), deny: entries(&mut dice, 4) };
        let path = format!("tenants/{acme}/sessions/a2-{session}/policy");
        scene.cluster.put(&path, json!({"allow": naive.allow, "deny": naive.deny})).await.expect("written");
        let expected: BTreeSet<&str> = all.iter().map(String::as_str).filter(|name| naive.allows(name)).collect();
        for gateway in &scene.cluster.gateways {
            let agent = scene.cluster.agent_at(gateway.address, &acme, &format!("a2-{session}")).expect("an agent");
            let listed = listed(&agent).await;
            assert_eq!(
                listed.iter().map(String::as_str).collect::<BTreeSet<_>>(),
                expected,
                "{:?} {:?}",
                naive.allow,
                naive.deny
            );
            for name in (0..12).map(|_| all[dice.roll(all.len())].as_str()).chain(expected.iter().copied().take(4)) {
                let fits = expected.contains(name);
                assert_eq!(call(&agent, name, json!({})).await.is_ok(), fits, "{name} is called");
                let params = json!({"name": "get_api_spec", "arguments": {"tool_names": [name]}});
                let spec = agent.modern("/mcp", "tools/call", params).await.expect("an answer").text();
                assert_eq!(spec.contains("openapi"), fits, "{name} is described: {spec}");
                asked += 1;
                allowed += usize::from(fits);
            }
        }
    }
    println!("A2 {asked} names called and described, {allowed} of them allowed, 0 differ");
    assert!(allowed > 20 && asked > 2 * allowed);
    scene.stop().await;
}

/// The names of MCP tools that a session lists.
async fn listed(agent: &Client) -> BTreeSet<String> {
    let answer = agent.modern("/mcp", "tools/list", json!({})).await.expect("an answer").rpc();
    let tools = answer["result"]["tools"].as_array().cloned().unwrap_or_default();
    tools
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .filter(|name| name.contains("__"))
        .map(str::to_owned)
        .collect()
}

/// C2, counted by the store's own monitor.
#[tokio::test]
async fn a_warm_call_never_asks_redis() {
    let scene = Scene::set().await;
    let calls = 2_000 * scale();
    let monitor = scene.cluster.folder().join("monitor");
    let mut monitoring = std::process::Command::new("redis-cli")
        .args(["-p", &scene.cluster.redis.port().to_string(), "MONITOR"])
        .stdout(std::fs::File::create(&monitor).expect("a file"))
        .spawn()
        .expect("redis-cli");
    sleep(Duration::from_millis(300)).await;
    let mut calling = JoinSet::new();
    for worker in 0..4 {
        let agents: Vec<Client> =
            (0..TENANTS).map(|n| scene.cluster.agent(&tenant(n), "load").expect("an agent")).collect();
        calling.spawn(async move {
            for n in 0..calls / 4 {
                call(&agents[n % TENANTS], &format!("s{}__echo", (n + worker) % 3), json!({})).await.expect("served");
            }
        });
    }
    while let Some(done) = calling.join_next().await {
        done.expect("joined");
    }
    sleep(Duration::from_millis(200)).await;
    monitoring.kill().expect("ended");
    monitoring.wait().expect("ended");
    let text = std::fs::read_to_string(&monitor).expect("the monitor's lines");
    // Beats: every partition's position, the workers' leases, and what the scripts of these do inside.
    let is_beat = |line: &&str| {
        let reads_position = line.contains("\"HMGET\"") && line.contains(":meta\" \"inc\" \"ver\" \"tag\"");
        reads_position || line.contains("rc:{m}:") || line.contains(" lua]") || line.contains("\"PING\"")
    };
    let commands: Vec<&str> = text.lines().filter(|line| line.contains("] \"")).collect();
    let others: Vec<&str> = commands.iter().copied().filter(|line| !is_beat(line)).collect();
    println!(
        "C2 {calls} warm calls, {} commands of beats, {} others: {:?}",
        commands.len() - others.len(),
        others.len(),
        others.first()
    );
    assert!(commands.len() > 100, "the monitor saw the beats");
    // And each takes one hop inside, on whichever node it comes.
    for gateway in &scene.cluster.gateways {
        let metrics = gateway.metrics().await.expect("metrics");
        let sum = |name: &str| -> f64 {
            let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            value.unwrap_or_else(|| panic!("no {name} in {metrics}"))
        };
        let (hops, forwarded) = (sum("rollcall_worker_hops_sum"), sum("rollcall_worker_hops_count"));
        assert!(forwarded > 0.0 && (hops - forwarded).abs() < 0.5, "{hops} hops for {forwarded} calls");
    }
    assert!(others.len() * 100 <= calls, "{others:#?}");
    scene.stop().await;
}

/// A10: each damage by a way to the store that is not ours.
#[tokio::test]
async fn losing_the_store_never_widens_access() {
    const LEASE: Duration = Duration::from_secs(2);
    let scene = Scene::set_with(2, 1, json!({}), |plan| {
        plan.store = Box::new(|_, address| json!({"url": format!("redis://{address}"), "lease": "2s"}));
    })
    .await;
    let mut scene = scene;
    let acme = tenant(0);
    // The default allows everything; these sessions may use one tool, or nothing.
    let narrow = json!({"allow": ["s0__echo"]});
    scene.cluster.put(&format!("tenants/{acme}/sessions/narrow/policy"), narrow.clone()).await.expect("written");
    scene.cluster.put(&format!("tenants/{acme}/sessions/gone/policy"), narrow.clone()).await.expect("written");
    scene.cluster.delete(&format!("tenants/{acme}/sessions/gone/policy")).await.expect("deleted");
    let p = partition(&scene, &acme);
    let (meta, docs, sessions) =
        (format!("rc:{{{p}}}:meta"), format!("rc:{{{p}}}:docs:{acme}"), format!("rc:{{{p}}}:sessions:{acme}"));
    let before =
        scene.cluster.redis.command(&["HGET", &sessions, &policy_field(&scene, &sessions, "narrow")]).expect("read");
    assert!(before.contains("s0__echo"), "{before}");
    // As it stood before one more right was taken away.
    let old = snapshot(&scene);
    sleep(LEASE + Duration::from_millis(500)).await;
    scene.cluster.put(&format!("tenants/{acme}/sessions/revoked/revoked"), Value::Null).await.expect("revoked");
    let now = snapshot(&scene);
    let field = policy_field(&scene, &sessions, "narrow");
    let damages: Vec<(&str, Vec<Vec<&str>>)> = vec![
        ("flushed", vec![vec!["FLUSHALL"]]),
        ("sessions gone", vec![vec!["DEL", &sessions]]),
        ("documents gone", vec![vec!["DEL", &docs]]),
        ("meta gone", vec![vec!["DEL", &meta]]),
        ("sessions of another type", vec![vec!["SET", &sessions, "x"]]),
        ("meta of another type", vec![vec!["SET", &meta, "x"]]),
        ("garbage for a policy", vec![vec!["HSET", &sessions, &field, "garbage"]]),
        ("garbage for a version", vec![vec!["HSET", &meta, "ver", "garbage"]]),
        (
            "a policy for newer readers",
            vec![vec!["HSET", &sessions, &field, "9\n{\"schema\":9,\"min_reader\":9,\"body\":{}}"]],
        ),
        ("an empty registry", vec![vec!["HDEL", &docs, "aliases:"]]),
    ];
    let (mut tried, mut widened) = (0, Vec::new());
    for (what, commands) in damages {
        for command in &commands {
            scene.cluster.redis.command(command).expect("done");
        }
        for _ in 0..3 {
            attempts(&scene, &acme, what, &mut tried, &mut widened).await;
            sleep(Duration::from_millis(100)).await;
        }
        restore(&mut scene, &now).await;
        let agent = scene.cluster.agent(&acme, "narrow").expect("an agent");
        let back = within(Duration::from_secs(10), async || call(&agent, "s0__echo", json!({})).await.is_ok()).await;
        assert!(back.is_some(), "after {what}: {}", scene.cluster.logs());
    }
    // The whole store is an older one: what was revoked since must not come back by itself. One gateway has seen the store
    // empty in between, the other one has not.
    scene.cluster.gateways[1].store.set(Fault::Hang);
    scene.cluster.redis.command(&["FLUSHALL"]).expect("done");
    sleep(Duration::from_millis(500)).await;
    restore(&mut scene, &old).await;
    scene.cluster.gateways[1].store.set(Fault::None);
    for _ in 0..10 {
        attempts(&scene, &acme, "an older store", &mut tried, &mut widened).await;
        sleep(Duration::from_millis(50)).await;
    }
    // Also once both are connected again.
    sleep(Duration::from_secs(2)).await;
    attempts(&scene, &acme, "an older store", &mut tried, &mut widened).await;
    let mut closed = Ok(String::new());
    for gateway in &scene.cluster.gateways {
        let agent = scene.cluster.agent_at(gateway.address, &acme, "narrow").expect("an agent");
        closed = call(&agent, "s0__echo", json!({})).await;
        assert!(closed.is_err(), "an older store is closed until somebody says that it counts");
    }
    println!(
        "A10 {tried} calls that were not allowed before, {} got through: {widened:?}; an older store: {closed:?}",
        widened.len()
    );
    assert!(widened.is_empty(), "{widened:?}\n{}", scene.cluster.logs());
    scene.stop().await;
}

/// Calls that no state of the store may let through.
async fn attempts(scene: &Scene, acme: &str, what: &str, tried: &mut usize, widened: &mut Vec<String>) {
    for gateway in &scene.cluster.gateways {
        for (session, tool) in [("narrow", "s1__echo"), ("gone", "s0__echo"), ("revoked", "s0__echo")] {
            let agent = scene.cluster.agent_at(gateway.address, acme, session).expect("an agent");
            *tried += 1;
            if call(&agent, tool, json!({})).await.is_ok() {
                widened.push(format!("{what}: {session} calls {tool} at {}", gateway.name));
            }
        }
    }
}

/// The tag of the partition in which a tenant is, as the store has it.
fn partition(scene: &Scene, tenant: &str) -> String {
    let keys = scene.cluster.redis.command(&["KEYS", &format!("rc:{{p*}}:docs:{tenant}")]).expect("read");
    keys.trim_start_matches("rc:{").split('}').next().expect("a tag").to_owned()
}

/// The field of a session's policy.
fn policy_field(scene: &Scene, sessions: &str, session: &str) -> String {
    let fields = scene.cluster.redis.command(&["HKEYS", sessions]).expect("read");
    let fits = |field: &&str| field.starts_with("policy:") && field.contains(session);
    fields.lines().find(fits).unwrap_or_else(|| panic!("{fields}")).to_owned()
}

fn snapshot(scene: &Scene) -> tempfile::TempDir {
    let (from, to) = (scene.cluster.redis.folder().join("appendonlydir"), tempfile::tempdir().expect("a folder"));
    for file in std::fs::read_dir(from).expect("files").flatten() {
        std::fs::copy(file.path(), to.path().join(file.file_name())).expect("copied");
    }
    to
}

/// Starts the store over other data.
async fn restore(scene: &mut Scene, from: &tempfile::TempDir) {
    scene.cluster.redis.kill();
    let folder = scene.cluster.redis.folder().join("appendonlydir");
    std::fs::remove_dir_all(&folder).expect("removed");
    std::fs::create_dir(&folder).expect("made");
    for file in std::fs::read_dir(from.path()).expect("files").flatten() {
        std::fs::copy(file.path(), folder.join(file.file_name())).expect("copied");
    }
    scene.cluster.redis.run().await.expect("started");
    sleep(Duration::from_millis(700)).await;
}

/// A11: real envelopes, recorded between a gateway and a worker, sent by somebody else.
#[tokio::test]
async fn a_worker_obeys_only_gateways() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let scene = Scene::set_with(1, 1, json!({}), |plan| plan.records_links = true).await;
    let agent = scene.cluster.agent(&tenant(0), "load").expect("an agent");
    call(&agent, "s0__echo", json!({"mark": "recorded"})).await.expect("served");
    let recorded = scene.cluster.workers[0].link.as_ref().expect("recorded").recorded();
    // The request that carries this call, from its request line to the end of its body.
    const CALL: &[u8] = b"POST /w/1/call";
    let marked = recorded.windows(8).position(|window| window == b"recorded").expect("the call");
    let begin = recorded[..marked].windows(CALL.len()).rposition(|window| window == CALL).expect("a request");
    let head_end = begin + recorded[begin..].windows(4).position(|w| w == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&recorded[begin..head_end]).into_owned();
    let length: usize = head
        .lines()
        .find_map(|l| l.strip_prefix("content-length: "))
        .expect("a length")
        .trim()
        .parse()
        .expect("a number");
    let body = recorded[head_end..head_end + length].to_vec();
    assert!(find(&body, "recorded"), "the call that was made");
    let before = scene.upstreams[0].calls().len();
    let worker = scene.cluster.workers[0].address;
    let send = async |head: String, body: &[u8]| -> u16 {
        let mut stream = tokio::net::TcpStream::connect(worker).await.expect("connected");
        stream.write_all(head.as_bytes()).await.expect("written");
        stream.write_all(body).await.expect("written");
        let mut answer = vec![0; 512];
        let read = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut answer))
            .await
            .expect("an answer")
            .expect("read");
        String::from_utf8_lossy(&answer[..read]).split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0)
    };
    let without = |name: &str| {
        head.lines().filter(|line| !line.starts_with(name)).map(|line| format!("{line}\r\n")).collect::<String>()
    };
    let other = String::from_utf8_lossy(&body).replace(&tenant(0), &tenant(1)).into_bytes();
    let vectors = [
        ("replayed as it was", head.clone(), body.clone()),
        ("unsigned", without("x-rollcall-mac"), body.clone()),
        ("without a number", without("x-rollcall-number"), body.clone()),
        ("for another tenant", head.clone(), other),
        ("with another number", head.replace("x-rollcall-number: ", "x-rollcall-number: 9"), body.clone()),
        ("with another key's name", head.replace("x-rollcall-key: w1", "x-rollcall-key: w2"), body.clone()),
    ];
    for (what, head, body) in &vectors {
        let status = send(head.clone(), body).await;
        println!("A11 {what}: {status}");
        assert_eq!(status, 401, "{what}");
    }
    assert_eq!(scene.upstreams[0].calls().len(), before, "no upstream was touched");
    scene.stop().await;
}
