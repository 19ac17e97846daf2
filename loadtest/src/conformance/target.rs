//! What the suite is run against: the fixture itself, Rollcall before the fixture, or any other server.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use http::Uri;
use http::uri::Authority;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::Instant;

use super::Transport;
use super::proxy::Proxy;
use crate::client::Client;
use crate::cluster::{Cluster, Plan};
use crate::programs::Running;

/// Where Rollcall serves its one server alone, under its own names.
pub(super) const PATH: &str = "/servers/fixture/mcp";
/// Longest wait until the fixture's tools are listed.
const READY: Duration = Duration::from_secs(60);

pub(super) enum Target {
    Fixture(PathBuf),
    Rollcall { transport: Transport, fixture: PathBuf, rollcall: PathBuf },
    Other { url: Uri, token: Option<String> },
}

/// A target that serves. Its processes end with it.
pub(super) struct Started {
    pub(super) url: String,
    _proxy: Option<Proxy>,
    _cluster: Option<Cluster>,
    /// The first to be ended comes first.
    programs: Vec<Running>,
}

impl Started {
    pub(super) async fn end(self) {
        for program in self.programs {
            program.end().await;
        }
    }
}

fn failed(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

pub(super) fn authority(url: &str) -> io::Result<Authority> {
    let url: Uri = url.parse().map_err(|_| failed(format!("no URL: {url}")))?;
    url.authority().cloned().ok_or_else(|| failed(format!("no host in {url}")))
}

impl Target {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Fixture(_) => "fixture",
            Self::Rollcall { .. } => "rollcall",
            Self::Other { .. } => "other",
        }
    }

    pub(super) fn transport(&self) -> &'static str {
        match self {
            Self::Rollcall { transport: Transport::Stdio, .. } => "stdio",
            Self::Rollcall { transport: Transport::Cluster, .. } => "cluster",
            Self::Rollcall { transport: Transport::Http, .. } | Self::Fixture(_) | Self::Other { .. } => "http",
        }
    }

    /// Starts it; the logs of its processes go into the folder.
    pub(super) async fn start(&self, revision: &str, folder: &Path) -> io::Result<Started> {
        let isolation = isolation(revision);
        match self {
            Self::Fixture(program) => {
                let (fixture, url) = start_fixture(program, folder).await?;
                Ok(Started { url, _proxy: None, _cluster: None, programs: vec![fixture] })
            }
            Self::Rollcall { transport: Transport::Http, fixture, rollcall } => {
                let (fixture, url) = start_fixture(fixture, folder).await?;
                let mut started =
                    start_rollcall(rollcall, &format!("url: {}, isolation: {isolation}", json!(url)), folder).await?;
                started.programs.push(fixture);
                Ok(started)
            }
            Self::Rollcall { transport: Transport::Stdio, fixture, rollcall } => {
                let command = json!([fixture, "--stdio"]);
                start_rollcall(rollcall, &format!("command: {command}, isolation: {isolation}"), folder).await
            }
            Self::Rollcall { transport: Transport::Cluster, fixture, .. } => {
                let (fixture, url) = start_fixture(fixture, folder).await?;
                let server = json!({"id": "fixture", "url": url, "isolation": isolation});
                let mut started = start_cluster(server).await?;
                started.programs.push(fixture);
                Ok(started)
            }
            Self::Other { url, token: None } => {
                Ok(Started { url: url.to_string(), _proxy: None, _cluster: None, programs: vec![] })
            }
            Self::Other { url, token: Some(token) } => {
                if url.scheme_str() != Some("http") {
                    return Err(failed("a token is added on http alone"));
                }
                let proxy = Proxy::start(authority(&url.to_string())?, token).await?;
                let url = format!("http://{}{}", proxy.address, url.path());
                Ok(Started { url, _proxy: Some(proxy), _cluster: None, programs: vec![] })
            }
        }
    }
}

/// A legacy server asks and logs on streams that one session must have for itself, to know whose they are; a modern one
/// says it on the stream of each request.
fn isolation(revision: &str) -> &'static str {
    if revision < "2026" { "session" } else { "shared" }
}

async fn start_fixture(program: &Path, folder: &Path) -> io::Result<(Running, String)> {
    let mut command = Command::new(program);
    command.args(["--listen", "127.0.0.1:0"]);
    // The first line is the URL.
    Running::start(command, &folder.join("fixture.log"), "").await
}

/// `server` is how the configuration says where the fixture is.
async fn start_rollcall(program: &Path, server: &str, folder: &Path) -> io::Result<Started> {
    let (running, url, token) = start_before(program, server, folder).await?;
    let proxy = Proxy::start(authority(&url)?, &token).await?;
    let base = format!("http://{}", proxy.address);
    until_listed(&Client::new(&base)).await?;
    Ok(Started { url: format!("{base}{PATH}"), _proxy: Some(proxy), _cluster: None, programs: vec![running] })
}

async fn start_cluster(server: Value) -> io::Result<Started> {
    let tenants = json!({"acme": {"servers": [server], "default_policy": {}}});
    let cluster = Cluster::start(Plan::new(2, 3, tenants)).await.map_err(failed)?;
    let token = cluster.issuer.token("acme", "conformance").map_err(failed)?;
    // Which opens a connection for each request; the round-robin behind it hands each to the next gateway.
    let proxy = Proxy::start(authority(&format!("http://{}", cluster.balancer.address))?, &token).await?;
    let base = format!("http://{}", proxy.address);
    until_listed(&Client::new(&base)).await?;
    Ok(Started { url: format!("{base}{PATH}"), _proxy: Some(proxy), _cluster: Some(cluster), programs: vec![] })
}

/// Rollcall before one server, which it may not have reached yet; where it serves, and a token for it.
pub(super) async fn start_before(program: &Path, server: &str, folder: &Path) -> io::Result<(Running, String, String)> {
    let config = folder.join("rollcall.yaml");
    std::fs::write(&config, configuration(server))?;
    let token = mint(program, &config).await?;
    let mut command = rollcall(program, "standalone", &config);
    command.env("RUST_LOG", "info");
    let (running, url) = Running::start(command, &folder.join("rollcall.log"), "MCP endpoint").await?;
    Ok((running, url, token))
}

fn rollcall(program: &Path, what: &str, config: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg(what).arg("--config").arg(config);
    // Whatever overrides the configuration of another Rollcall here is not meant for this one.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ROLLCALL_")) {
        command.env_remove(name);
    }
    command
}

/// The key protects nothing: it signs for a gateway on the loopback that lives as long as this run.
fn configuration(server: &str) -> String {
    format!(
        "listen: 127.0.0.1:0\n\
         store: \"memory:\"\n\
         issuers:\n  - {{issuer: conformance, audience: rollcall, hs256_key: \"{:032x}\", tenant_claim: tenant, tenants: [acme]}}\n\
         tenants:\n  acme:\n    servers: [{{id: fixture, {server}}}]\n    default_policy: {{}}\n",
        u128::from(std::process::id()),
    )
}

async fn mint(program: &Path, config: &Path) -> io::Result<String> {
    let mut command = rollcall(program, "token", config);
    command.args(["--tenant", "acme", "--session", "conformance", "--ttl", "1h"]);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await?;
    if !output.status.success() {
        return Err(failed(format!("no token: {}", String::from_utf8_lossy(&output.stderr))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Rollcall serves before its servers are connected.
async fn until_listed(client: &Client) -> io::Result<()> {
    let deadline = Instant::now() + READY;
    let mut last = String::new();
    while Instant::now() < deadline {
        match client.legacy(PATH, "tools/list", json!({})).await {
            Ok(answer) => {
                let listed = answer.rpc().pointer("/result/tools").and_then(|tools| Some(tools.as_array()?.len()));
                if listed.is_some_and(|tools| tools > 0) {
                    return Ok(());
                }
                last = answer.text();
            }
            Err(error) => last = error,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err(failed(format!("Rollcall lists no tools of the fixture: {last}")))
}
