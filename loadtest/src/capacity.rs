//! `rollcall-loadtest capacity`: what ten thousand tenants and a hundred thousand sessions cost a gateway.
//!
//! A gateway is measured with few tenants, then started again with all of them registered: time to ready, memory per
//! tenant and per session, and the processor time of a warm call, which must not grow with what is registered.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rollcall_shared::ids::TenantId;
use rollcall_shared::store::redis::{RedisSettings, RedisStore};
use rollcall_shared::store::{Documents, Expect, Key, Kind, Write};
use rollcall_shared::task::Tasks;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::Client;
use crate::cluster::{Cluster, Plan};
use crate::upstream::{Speaks, Upstream, tool};

/// What the command runs.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    tenants: u32,
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(10..=10_000_000))]
    sessions: u32,
    /// Tools of each tenant's one server.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    tools: u32,
    /// Calls over which processor time is measured.
    #[arg(long, default_value_t = 10_000)]
    calls: usize,
}

const FEW: usize = 10;
const CALLERS: usize = 16;
/// What a gateway may hold with everything registered and touched; what a session may cost that was touched within the last
/// minutes, its verified token included (which goes after five); and how much more a call may cost than with few tenants:
/// measured on busy machines, so with some room.
const MEMORY_KB: u64 = 1 << 20;
const SESSION_BYTES: u64 = 2 << 10;
const COST: f64 = 2.0;
const ROUNDS: usize = 3;

struct Measured {
    cluster: Cluster,
    _upstream: Upstream,
    options: Options,
}

fn tenant(n: usize) -> String {
    format!("tenant-{n:05}")
}

/// Whether everything stayed within its bounds. Prints as it goes.
pub async fn run(options: &Options, say: fn(&str)) -> Result<bool, String> {
    let upstream = Upstream::start(Speaks::Modern, &[]).await.map_err(|e| e.to_string())?;
    upstream.set_tools((0..options.tools).map(|n| tool(&format!("tool_{n:04}"))).collect());
    let mut plan = Plan::new(1, 1, json!({}));
    plan.more = json!({"upstream": {"allow_networks": ["127.0.0.0/8"]}});
    // Many documents are written at once here; what is lost with the machine is made again.
    plan.redis = &["--appendonly", "no"];
    let cluster = Cluster::start(plan).await?;
    cluster.put(&format!("tenants/{}", tenant(0)), json!({"default_policy": {}})).await?;
    cluster
        .put(&format!("tenants/{}/servers/s", tenant(0)), json!({"url": upstream.url(), "catalog_age": "24h"}))
        .await?;
    cluster.put(&format!("tenants/{}/sessions/s0/policy", tenant(0)), json!({"allow": ["s__*"]})).await?;
    let mut measured = Measured { cluster, _upstream: upstream, options: options.clone() };
    measured.call(0, 0).await?;

    let few_sessions = (measured.sessions() / 100).max(FEW);
    measured.register(1..FEW, 0..few_sessions).await?;
    measured.restart().await?;
    measured.touch(0..few_sessions, FEW).await?;
    let before = measured.cost_of_a_call(few_sessions, FEW).await?;
    say(&format!("{FEW} tenants, {few_sessions} sessions: {before:.0} us of processor time a warm call"));

    let (tenants, sessions) = (measured.tenants(), measured.sessions());
    let began = Instant::now();
    measured.register(0..tenants, 0..sessions).await?;
    say(&format!("registered {tenants} tenants and {sessions} sessions in {:.1} s", began.elapsed().as_secs_f32()));
    let ready = measured.restart().await?;
    let empty = measured.memory()?;
    say(&format!("ready {} ms after its start, with {} MB", ready.as_millis(), empty / 1024));
    measured.touch(0..tenants, tenants).await?;
    let with_tenants = measured.memory()?;
    let per_tenant = (with_tenants.saturating_sub(empty)) * 1024 / tenants as u64;
    say(&format!(
        "{tenants} tenants at hand, one session each: {} MB, {per_tenant} bytes a tenant",
        with_tenants / 1024
    ));
    measured.touch(tenants..sessions, tenants).await?;
    let with_all = measured.memory()?;
    let rest = sessions.saturating_sub(tenants).max(1) as u64;
    let per_session = with_all.saturating_sub(with_tenants) * 1024 / rest;
    say(&format!(
        "{sessions} sessions at hand: {} MB, {per_session} bytes a session, its verified token included",
        with_all / 1024
    ));
    let after = measured.cost_of_a_call(few_sessions, tenants).await?;
    let spread = measured.cost_of_a_call(sessions, tenants).await?;
    let ratio = after.min(spread) / before;
    say(&format!(
        "{after:.0} us a warm call of the same sessions, {spread:.0} us of all: {ratio:.2} of that with {FEW} tenants"
    ));
    let good = with_all < MEMORY_KB && per_session < SESSION_BYTES && ratio < COST;
    measured.cluster.stop().await?;
    Ok(good)
}

impl Measured {
    fn tenants(&self) -> usize {
        self.options.tenants as usize
    }

    fn sessions(&self) -> usize {
        self.options.sessions as usize
    }

    /// Registers tenants and sessions as the first ones stand in the store.
    async fn register(&self, tenants: std::ops::Range<usize>, sessions: std::ops::Range<usize>) -> Result<(), String> {
        let tasks = Tasks::new();
        let settings = RedisSettings::parse(&self.cluster.redis.url())?;
        let failed = |e: rollcall_shared::store::StoreError| e.to_string();
        let store = RedisStore::open(settings, &tasks).map_err(failed)?;
        store.connected(Duration::from_secs(10)).await.map_err(failed)?;
        let first = TenantId::parse(&tenant(0)).map_err(|e| e.to_string())?;
        let documents = store.list(&first).await.map_err(failed)?.documents;
        let issuer = &self.cluster.issuer.name;
        let policy = store.get(&Key::new(&first, Kind::Policy, format!("{issuer} s0"))).await.map_err(failed)?;
        let policy = policy.ok_or("no policy of the first session")?.body;
        let count = tenants.end;
        for n in tenants.filter(|n| *n > 0) {
            let id = TenantId::parse(&tenant(n)).map_err(|e| e.to_string())?;
            let copy = |(key, document): &(Key, rollcall_shared::store::Document)| {
                Write::put(Key::new(&id, key.kind, key.id.clone()), Expect::Any, document.body.to_vec())
            };
            store.write(&id, documents.iter().map(copy).collect()).await.map_err(failed)?;
        }
        for n in 0..count {
            let id = TenantId::parse(&tenant(n)).map_err(|e| e.to_string())?;
            let own: Vec<usize> = sessions.clone().filter(|session| session % count == n).collect();
            for some in own.chunks(500) {
                let write = |session: &usize| {
                    let key = Key::new(&id, Kind::Policy, format!("{issuer} s{session}"));
                    Write::put(key, Expect::Any, policy.to_vec())
                };
                store.write(&id, some.iter().map(write).collect()).await.map_err(failed)?;
            }
        }
        tasks.drain(Duration::from_secs(5)).await;
        Ok(())
    }

    async fn restart(&mut self) -> Result<Duration, String> {
        let gateway = self.cluster.gateways.first_mut().ok_or("no gateway")?;
        gateway.kill().await;
        let began = Instant::now();
        gateway.run()?;
        gateway.ready().await?;
        Ok(began.elapsed())
    }

    fn memory(&self) -> Result<u64, String> {
        self.cluster.gateways.first().and_then(crate::node::Node::resident_kb).ok_or_else(|| "no memory".to_owned())
    }

    fn agent(&self, session: usize, tenants: usize) -> Result<Client, String> {
        self.cluster.agent(&tenant(session % tenants), &format!("s{session}"))
    }

    async fn call(&self, session: usize, n: usize) -> Result<(), String> {
        called(&self.agent(session, 1)?, n).await
    }

    /// One list of each session.
    async fn touch(&self, sessions: std::ops::Range<usize>, tenants: usize) -> Result<(), String> {
        let (base, issuer) = (format!("http://{}", self.cluster.balancer.address), &self.cluster.issuer);
        let mut tokens = Vec::new();
        for session in sessions {
            tokens.push(issuer.token(&tenant(session % tenants), &format!("s{session}"))?);
        }
        let tools = self.options.tools;
        all(
            tokens.len(),
            move |n, client| {
                let agent = client.with_token(tokens.get(n).cloned().unwrap_or_default());
                async move {
                    let answer = agent.modern("/mcp", "tools/list", json!({})).await?;
                    let listed = answer.text().matches("\"s__tool_").count();
                    if listed == tools as usize { Ok(()) } else { Err(format!("{listed} tools: {}", answer.text())) }
                }
            },
            &base,
        )
        .await
    }

    /// Microseconds of the gateway's processor time a warm call.
    async fn cost_of_a_call(&self, sessions: usize, tenants: usize) -> Result<f64, String> {
        let base = format!("http://{}", self.cluster.balancer.address);
        let count = sessions.min(2_000);
        let mut tokens = Vec::new();
        for n in 0..count {
            let session = n * (sessions / count);
            tokens.push(self.cluster.issuer.token(&tenant(session % tenants), &format!("s{session}"))?);
        }
        let tokens = Arc::new(tokens);
        let calls = |tokens: Arc<Vec<String>>| {
            move |n: usize, client: Client| {
                let agent = client.with_token(tokens.get(n % tokens.len()).cloned().unwrap_or_default());
                async move { called(&agent, n).await }
            }
        };
        all(count, calls(tokens.clone()), &base).await?;
        let id = self.cluster.gateways.first().and_then(crate::node::Node::id).ok_or("no gateway")?;
        // The least of a few: what else the machine does only adds to it.
        let mut least = f64::INFINITY;
        for _ in 0..ROUNDS {
            let before = processor_us(id)?;
            all(self.options.calls, calls(tokens.clone()), &base).await?;
            least = least.min((processor_us(id)? - before) / self.options.calls as f64);
        }
        Ok(least)
    }
}

async fn called(agent: &Client, n: usize) -> Result<(), String> {
    let params = json!({"name": format!("s__tool_{:04}", n % 7), "arguments": {"n": n}});
    let answer = agent.modern("/mcp", "tools/call", params).await?;
    if answer.rpc().pointer("/result/content").is_some() { Ok(()) } else { Err(answer.text()) }
}

/// So many requests, over a few connections that are kept.
async fn all<F>(
    count: usize,
    request: impl Fn(usize, Client) -> F + Send + Sync + 'static,
    base: &str,
) -> Result<(), String>
where
    F: Future<Output = Result<(), String>> + Send,
{
    let (next, request) = (Arc::new(AtomicUsize::new(0)), Arc::new(request));
    let mut callers: JoinSet<Result<(), String>> = JoinSet::new();
    for _ in 0..CALLERS {
        let (next, request, client) = (next.clone(), request.clone(), Client::new(base));
        callers.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= count {
                    return Ok(());
                }
                request(n, client.clone()).await?;
            }
        });
    }
    while let Some(done) = callers.join_next().await {
        done.map_err(|e| e.to_string())??;
    }
    Ok(())
}

/// Processor time of a process so far, of user and kernel, as the kernel counts it (`proc(5)`, in ticks of 10 ms).
fn processor_us(id: u32) -> Result<f64, String> {
    let text =
        std::fs::read_to_string(Path::new("/proc").join(id.to_string()).join("stat")).map_err(|e| e.to_string())?;
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).ok_or("no processor time");
    Ok((ticks(11)? + ticks(12)?) * 10_000.0)
}
