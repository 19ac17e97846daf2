//! Everything that is compared, as processes of their own.

use std::str::FromStr;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use super::Work;
use crate::cluster::{Cluster, Plan, built};
use crate::issuer::Issuer;
use crate::lane::{self, Road, Shot};
use crate::processor;
use crate::programs::Running;
use crate::redis::free_port;
use crate::upstream::fast;

/// Another gateway, as the command line gives it.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    name: String,
    url: String,
    token: Option<String>,
    processes: Vec<u32>,
    work: Option<String>,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once('=').ok_or("must be NAME=URL")?;
        let mut parts = rest.split(',');
        let url = parts.next().unwrap_or_default().to_owned();
        let mut peer = Self { name: name.to_owned(), url, token: None, processes: Vec::new(), work: None };
        for part in parts {
            match part.split_once('=') {
                Some(("token", token)) => peer.token = Some(token.to_owned()),
                Some(("pid", process)) => {
                    peer.processes.push(process.parse().map_err(|_| format!("{process} is no process id"))?);
                }
                Some(("work", work)) if Work::ALL.iter().any(|known| known.name() == work) => {
                    peer.work = Some(work.to_owned());
                }
                _ => return Err(format!("`{part}` is none of token=TOKEN, pid=PROCESS, work=WORKLOAD")),
            }
        }
        Ok(peer)
    }
}

/// How a way is spoken to.
pub(super) enum Dialect {
    /// As the upstream itself: it, or what forwards bytes to it.
    Upstream,
    Rollcall,
    /// A gateway that is spoken to as a legacy client does.
    Peer {
        token: Option<String>,
        session: Option<String>,
        path: String,
        tools: Vec<String>,
        work: Option<String>,
    },
}

impl Dialect {
    pub(super) fn words(&self) -> lane::Dialect {
        match self {
            Dialect::Upstream | Dialect::Rollcall => lane::Dialect::Modern,
            Dialect::Peer { .. } => lane::Dialect::Legacy,
        }
    }
}

/// What a way is, for the ratios.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Direct,
    Hop,
    TwoHops,
    Standalone,
    Distributed,
    Other,
}

/// One way to the upstream.
pub(super) struct Way {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) dialect: Dialect,
    pub(super) road: Road,
    /// Whose processor time is its cost.
    pub(super) processes: Vec<u32>,
    issuer: Option<std::sync::Arc<Issuer>>,
}

impl Way {
    pub(super) fn does(&self, work: Work) -> bool {
        match &self.dialect {
            Dialect::Peer { work: Some(only), .. } => only == work.name(),
            Dialect::Upstream | Dialect::Rollcall | Dialect::Peer { .. } => true,
        }
    }

    pub(super) fn path(&self, work: Work) -> String {
        match &self.dialect {
            Dialect::Upstream => format!("/mcp?{}", work.shape()),
            Dialect::Rollcall => "/mcp".to_owned(),
            Dialect::Peer { path, .. } => path.clone(),
        }
    }

    pub(super) fn token(&self, work: Work) -> Option<String> {
        match (&self.dialect, &self.issuer) {
            (Dialect::Rollcall, Some(issuer)) => issuer.token(work.name(), "agent").ok(),
            (Dialect::Peer { token, .. }, _) => token.clone(),
            (Dialect::Rollcall | Dialect::Upstream, _) => None,
        }
    }

    pub(super) fn session(&self) -> Option<&str> {
        match &self.dialect {
            Dialect::Peer { session, .. } => session.as_deref(),
            Dialect::Upstream | Dialect::Rollcall => None,
        }
    }

    /// The upstream's nth tool, as it is called on this way.
    pub(super) fn tool_name(&self, n: usize) -> String {
        let real = fast::tool_name(n);
        match &self.dialect {
            Dialect::Upstream => real,
            Dialect::Rollcall => format!("s__{real}"),
            Dialect::Peer { tools, .. } => tools.iter().find(|name| name.ends_with(&real)).cloned().unwrap_or(real),
        }
    }
}

/// See the module.
pub(super) struct Scene {
    pub(super) ways: Vec<Way>,
    children: Vec<(u32, Running)>,
    cluster: Cluster,
    standalone: Running,
    /// Its processes that are measured, and what else has to be pinned.
    everybody: Vec<u32>,
    _folder: TempDir,
}

/// One part of this program as a process of its own. It says its URL first.
async fn part(folder: &TempDir, name: &str, arguments: &[&str]) -> Result<(u32, Running, String), String> {
    let program = std::env::current_exe().map_err(|e| format!("this program's own path: {e}"))?;
    let mut command = Command::new(program);
    command.args(arguments);
    let log = folder.path().join(format!("{name}.log"));
    let (running, url) = Running::start(command, &log, "").await.map_err(|e| format!("{name}: {e}"))?;
    let id = running.id().ok_or_else(|| format!("{name} has ended"))?;
    Ok((id, running, url))
}

/// One tenant for each workload, each with the upstream of its shape and a policy that allows its tools.
fn tenants(upstream: &str) -> Value {
    let tenant = |work: Work| {
        let server =
            json!({"alias": "s", "id": "s", "url": format!("{upstream}/mcp?{}", work.shape()), "catalog_age": "24h"});
        let policy = json!({"allow": ["s__*"], "deny": ["s__drop_*"]});
        (work.name().to_owned(), json!({"servers": [server], "default_policy": policy, "defer_above": 100_000}))
    };
    Work::ALL.map(tenant).into_iter().collect::<serde_json::Map<_, _>>().into()
}

impl Scene {
    pub(super) async fn set(upstream: Option<&str>, peers: &[Peer]) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let programs = built().await?;
        let mut children = Vec::new();
        let mut everybody = vec![std::process::id()];
        let base = match upstream {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => {
                let (id, running, url) = part(&folder, "upstream", &["upstream", "--fast"]).await?;
                everybody.push(id);
                children.push((id, running));
                url.trim_end_matches("/mcp").to_owned()
            }
        };
        let mut ways = vec![way("direct", Kind::Direct, Dialect::Upstream, &base, Vec::new())?];
        let (hop, running, hop_url) = part(&folder, "hop", &["hop", "--to", &base]).await?;
        children.push((hop, running));
        ways.push(way("one bare hop", Kind::Hop, Dialect::Upstream, &hop_url, vec![hop])?);
        let (inner, running, url) = part(&folder, "inner hop", &["hop", "--to", &base]).await?;
        children.push((inner, running));
        let (outer, running, url) = part(&folder, "outer hop", &["hop", "--to", &url]).await?;
        children.push((outer, running));
        ways.push(way("two bare hops", Kind::TwoHops, Dialect::Upstream, &url, vec![outer, inner])?);

        let mut plan = Plan::new(1, 1, tenants(&base));
        plan.redis = &["--appendonly", "no"];
        let cluster = Cluster::start(plan).await?;
        let issuer = Issuer::new("https://id.example", "rollcall", "k1")?;
        let (standalone, url) = standalone(&folder, &programs.rollcall, &issuer, tenants(&base)).await?;
        let issuer = std::sync::Arc::new(issuer);
        let id = standalone.id().ok_or("the standalone process has ended")?;
        let mut alone = way("Rollcall standalone", Kind::Standalone, Dialect::Rollcall, &url, vec![id])?;
        alone.issuer = Some(issuer);
        ways.push(alone);
        let nodes: Vec<u32> =
            cluster.gateways.iter().chain(&cluster.workers).filter_map(crate::node::Node::id).collect();
        let address = cluster.gateways.first().ok_or("no gateway")?.address;
        let url = format!("http://{address}");
        let mut distributed = way("Rollcall distributed", Kind::Distributed, Dialect::Rollcall, &url, nodes)?;
        distributed.issuer = Some(std::sync::Arc::new(cluster.issuer.clone()));
        ways.push(distributed);
        for peer in peers {
            ways.push(meet(peer).await?);
        }
        everybody.extend(ways.iter().flat_map(|way| way.processes.iter().copied()));
        Ok(Self { ways, children, cluster, standalone, everybody, _folder: folder })
    }

    /// Lets everybody, this process too, run on these cores alone.
    pub(super) fn pin(&self, cores: &[usize]) -> Result<(), String> {
        self.everybody.iter().try_for_each(|process| processor::pin(*process, cores))
    }

    /// What each way's processes hold now.
    pub(super) fn memory(&self) -> String {
        let of = |way: &Way| {
            let bytes: u64 = way.processes.iter().filter_map(|process| processor::memory(*process)).sum();
            format!("{} {} MB", way.name, bytes >> 20)
        };
        let all: Vec<String> = self.ways.iter().filter(|way| !way.processes.is_empty()).map(of).collect();
        format!("memory now: {}", all.join(", "))
    }

    pub(super) async fn stop(self) {
        self.cluster.stop().await.ok();
        self.standalone.end().await;
        for (_, child) in self.children {
            child.end().await;
        }
    }
}

fn way(name: &str, kind: Kind, dialect: Dialect, url: &str, processes: Vec<u32>) -> Result<Way, String> {
    Ok(Way { name: name.to_owned(), kind, dialect, road: Road::to(url)?, processes, issuer: None })
}

async fn standalone(
    folder: &TempDir,
    rollcall: &std::path::Path,
    issuer: &Issuer,
    tenants: Value,
) -> Result<(Running, String), String> {
    let keys = folder.path().join("jwks.json");
    std::fs::write(&keys, Issuer::jwks(&[issuer]).to_string()).map_err(|e| e.to_string())?;
    let listen = format!("127.0.0.1:{}", free_port()?);
    let config = json!({
        "public_url": format!("http://{listen}"),
        "listen": listen,
        "store": "memory:",
        "issuers": [{
            "issuer": issuer.name, "audience": issuer.audience, "jwks_file": keys,
            "tenant_claim": "tenant", "tenants": ["*"],
        }],
        "tenants": tenants,
    });
    let path = folder.path().join("standalone.json");
    std::fs::write(&path, config.to_string()).map_err(|e| e.to_string())?;
    let mut command = Command::new(rollcall);
    command.arg("standalone").arg("--config").arg(&path);
    let log = folder.path().join("standalone.log");
    let (running, url) = Running::start(command, &log, "MCP endpoint").await.map_err(|e| e.to_string())?;
    Ok((running, url.trim().to_owned()))
}

/// Opens a session at another gateway, as a legacy client does, and looks what it offers.
async fn meet(peer: &Peer) -> Result<Way, String> {
    let road = Road::to(&peer.url)?;
    let uri: http::Uri = peer.url.parse().map_err(|e| format!("{}: {e}", peer.url))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let mut lane = road.lane();
    let of = |what: &str, why: String| format!("{}: {what}: {why}", peer.name);
    let client = json!({"name": "rollcall-loadtest", "version": env!("CARGO_PKG_VERSION")});
    let opening = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
    let shot = Shot::mcp(&path, lane::Dialect::Legacy, "initialize", opening)?.with_token(peer.token.as_deref())?;
    let opened = lane.send(&shot).await.map_err(|lost| of("initialize", lost.detail))?;
    if opened.rpc().get("result").is_none() {
        return Err(of("initialize", opened.text()));
    }
    let session = opened.headers.get("mcp-session-id").and_then(|v| v.to_str().ok()).map(str::to_owned);
    let with_session = |shot: Shot| -> Result<Shot, String> {
        let shot = shot.with_token(peer.token.as_deref())?;
        match &session {
            Some(session) => shot.with_header("mcp-session-id", session),
            None => Ok(shot),
        }
    };
    let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let shot = with_session(Shot::json(&path, &told)?.with_header("mcp-protocol-version", "2025-11-25")?)?;
    lane.send(&shot).await.map_err(|lost| of("notifications/initialized", lost.detail))?;
    let shot = with_session(Shot::mcp(&path, lane::Dialect::Legacy, "tools/list", json!({}))?)?;
    let listed = lane.send(&shot).await.map_err(|lost| of("tools/list", lost.detail))?.rpc();
    let tools = listed.pointer("/result/tools").and_then(Value::as_array).cloned().unwrap_or_default();
    let tools: Vec<String> = tools.iter().filter_map(|tool| tool.get("name")?.as_str().map(str::to_owned)).collect();
    if tools.is_empty() {
        return Err(of("tools/list", listed.to_string()));
    }
    let (token, work) = (peer.token.clone(), peer.work.clone());
    let dialect = Dialect::Peer { token, session, path, tools, work };
    Ok(Way {
        name: peer.name.clone(),
        kind: Kind::Other,
        dialect,
        road,
        processes: peer.processes.clone(),
        issuer: None,
    })
}
