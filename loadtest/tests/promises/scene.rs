//! Two gateways, two workers, three upstreams that count, twenty tenants with the same tool names.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rollcall_loadtest::arrivals::Load;
use rollcall_loadtest::client::Client;
use rollcall_loadtest::cluster::{Cluster, Plan};
use rollcall_loadtest::upstream::{Reply, Speaks, Upstream};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// Calls a second that two busy cores hold easily, in a debug build beside everything else.
pub(crate) const RATE: f64 = 40.0;
pub(crate) const TENANTS: usize = 20;
/// How long a call of `slow` takes.
pub(crate) const SLOW: Duration = Duration::from_secs(4);

/// How many times the usual size.
pub(crate) fn scale() -> usize {
    std::env::var("ROLLCALL_PROMISES_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// The right to measure.
pub(crate) async fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().await
}

pub(crate) struct Scene {
    pub(crate) cluster: Cluster,
    pub(crate) upstreams: Vec<Upstream>,
    numbers: Arc<AtomicU64>,
    _one: MutexGuard<'static, ()>,
}

pub(crate) fn tenant(n: usize) -> String {
    format!("tenant-{:02}", n % TENANTS)
}

/// A secret of a tenant towards an upstream.
pub(crate) fn credential(tenant: &str, upstream: usize) -> String {
    format!("credential-of-{tenant}-at-{upstream}-canary")
}

/// The tenants of the configuration file, with the same names for all.
pub(crate) fn tenants(upstreams: &[Upstream], settings: &Value) -> Value {
    let tenants: BTreeMap<String, Value> = (0..TENANTS)
        .map(|n| {
            let name = tenant(n);
            let servers: Vec<Value> = upstreams
                .iter()
                .enumerate()
                .map(|(at, upstream)| {
                    let headers = json!({"x-api-key": credential(&name, at)});
                    json!({"id": format!("s{at}"), "url": upstream.url(), "headers": headers, "catalog_age": "1h"})
                })
                .collect();
            let mut value = json!({"servers": servers, "default_policy": {}});
            value.as_object_mut().expect("an object").extend(settings.as_object().cloned().unwrap_or_default());
            (name, value)
        })
        .collect();
    json!(tenants)
}

/// An upstream that answers with what it was asked, `slow` after a while.
async fn upstream(speaks: Speaks) -> Upstream {
    let upstream = Upstream::start(speaks, &["echo", "slow", "other"]).await.expect("an upstream");
    upstream.answers(|params| {
        let text = params["arguments"].to_string();
        let result = Reply::Result(json!({"content": [{"type": "text", "text": text}]}).to_string());
        if params["name"] == "slow" { Reply::After(SLOW, Box::new(result)) } else { result }
    });
    upstream
}

impl Scene {
    pub(crate) async fn set() -> Self {
        Self::set_with(2, 2, json!({}), |_| {}).await
    }

    /// `settings` are added to each tenant; `alter` changes the plan.
    pub(crate) async fn set_with(
        gateways: usize,
        workers: usize,
        settings: Value,
        alter: impl FnOnce(&mut Plan),
    ) -> Self {
        let one = alone().await;
        let upstreams =
            vec![upstream(Speaks::Modern).await, upstream(Speaks::Legacy).await, upstream(Speaks::Modern).await];
        let mut plan = Plan::new(gateways, workers, tenants(&upstreams, &settings));
        alter(&mut plan);
        let cluster = Cluster::start(plan).await.expect("a cluster");
        let scene = Self { cluster, upstreams, numbers: Arc::default(), _one: one };
        scene.warm_up().await;
        scene
    }

    /// Every tenant's servers are listed, and every node has served every tenant.
    async fn warm_up(&self) {
        for gateway in &self.cluster.gateways {
            for n in 0..TENANTS {
                let agent = self.cluster.agent_at(gateway.address, &tenant(n), "load").expect("an agent");
                for server in 0..self.upstreams.len() {
                    let called = call(&agent, &format!("s{server}__echo"), json!({"warm": n})).await;
                    called.unwrap_or_else(|e| panic!("{e}\n{}", self.cluster.logs()));
                }
            }
        }
    }

    /// A number that no other call has.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls of `echo` at all upstreams for all tenants, through the round-robin, each on a connection of its own.
    pub(crate) fn load(&self, rate: f64) -> Load {
        let agents: Vec<Arc<dyn Fn() -> Client + Send + Sync>> = (0..TENANTS)
            .map(|n| {
                let (base, token) = (format!("http://{}", self.cluster.balancer.address), self.token(&tenant(n)));
                Arc::new(move || Client::new(base.clone()).with_token(token.clone()))
                    as Arc<dyn Fn() -> Client + Send + Sync>
            })
            .collect();
        let (upstreams, numbers) = (self.upstreams.len(), self.numbers.clone());
        Load::start(rate, move |n| {
            let n = usize::try_from(n).unwrap_or(0);
            let agent = agents[n % TENANTS].clone();
            let number = numbers.fetch_add(1, Ordering::Relaxed);
            let name = format!("s{}__echo", n / TENANTS % upstreams);
            async move { call_once(&agent(), &name, number).await }
        })
    }

    pub(crate) fn token(&self, tenant: &str) -> String {
        self.cluster.issuer.token(tenant, "load").expect("a token")
    }

    /// The numbers of calls that reached upstreams, with how often each did.
    pub(crate) fn executed(&self) -> BTreeMap<u64, usize> {
        let mut out = BTreeMap::new();
        for call in self.upstreams.iter().flat_map(Upstream::calls) {
            if let Some(number) = call["arguments"]["number"].as_u64() {
                *out.entry(number).or_default() += 1;
            }
        }
        out
    }

    pub(crate) fn executed_twice(&self) -> Vec<u64> {
        self.executed().into_iter().filter(|(_, times)| *times > 1).map(|(number, _)| number).collect()
    }

    pub(crate) async fn stop(self) {
        let Self { cluster, .. } = self;
        cluster.stop().await.expect("everything ends");
    }
}

/// One call whose answer must be its own.
pub(crate) async fn call_once(agent: &Client, name: &str, number: u64) -> Result<(), String> {
    let answer = call(agent, name, json!({"number": number})).await?;
    let expected = json!({"number": number}).to_string();
    if answer == expected { Ok(()) } else { Err(format!("{expected} was answered with {answer}")) }
}

/// The text of a result, or what stands in its place.
pub(crate) async fn call(agent: &Client, name: &str, arguments: Value) -> Result<String, String> {
    let params = json!({"name": name, "arguments": arguments});
    let answer = agent.modern("/mcp", "tools/call", params).await?;
    let rpc = answer.rpc();
    let text = rpc["result"]["content"][0]["text"].as_str();
    match (text, rpc["result"]["isError"] == true) {
        (Some(text), false) => Ok(text.to_owned()),
        (Some(text), true) => Err(format!("tool error: {text}")),
        (None, _) => Err(format!("{}: {}", answer.status.as_u16(), answer.text())),
    }
}
