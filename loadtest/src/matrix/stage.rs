//! What the clients play against: the peers installed, the servers started, one Rollcall before them all.
//!
//! Everything lives in a temporary folder and ends with the stage. Ports are free ones, never fixed.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rollcall_loadtest::client::Client as Http;
use rollcall_loadtest::issuer::Issuer;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::cast::{Action, Client, Route, Server};
use super::process::{complete, serve};

const TENANT: &str = "matrix";
/// Until Rollcall knows a server's tools, and has started its process for a session.
const READY: Duration = Duration::from_secs(60);

/// See the module.
pub(crate) struct Stage {
    folder: TempDir,
    programs: PathBuf,
    direct: Vec<(Server, String)>,
    gateway: Option<Gateway>,
    /// End when dropped.
    children: Vec<Child>,
}

struct Gateway {
    base: String,
    issuer: Issuer,
}

impl Stage {
    pub(crate) async fn set(route: Route, clients: &[Client], servers: &[Server]) -> Result<Self, String> {
        complete(Command::new(peers().join("install.sh"))).await?;
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let programs = build(route, clients, servers).await?;
        std::fs::create_dir(folder.path().join("home")).map_err(|e| e.to_string())?;
        make_repository(&folder.path().join("repo")).await?;
        let mut stage = Self { folder, programs, direct: Vec::new(), gateway: None, children: Vec::new() };
        for &server in servers {
            if let Some(command) = stage.over_http(server) {
                let (child, url) = serve(command, stage.folder.path(), server.name()).await?;
                stage.children.push(child);
                stage.direct.push((server, url));
            }
        }
        if route == Route::Rollcall {
            stage.start_rollcall(servers).await?;
        }
        Ok(stage)
    }

    /// The command of a server that speaks HTTP, and says where in its first line.
    fn over_http(&self, server: Server) -> Option<Command> {
        match server {
            Server::Everything | Server::Git => None,
            Server::Ts2 => {
                let mut command = Command::new(node());
                command.arg(peers().join("matrix_server_ts2.mjs"));
                Some(command)
            }
            Server::Py => {
                let mut command = Command::new(python());
                command.arg(peers().join("matrix_server_py.py"));
                Some(command)
            }
            Server::Fixture => Some(Command::new(self.example("fixture"))),
        }
    }

    fn entry(&self, server: Server) -> Value {
        let url = self.direct.iter().find(|(other, _)| *other == server).map(|(_, url)| url);
        let everything = peers().join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
        let git = peers().join("venv/bin/mcp-server-git");
        match (server, url) {
            (_, Some(url)) => json!({"id": server.name(), "url": url}),
            (Server::Everything, None) => {
                json!({"id": server.name(), "command": [node(), everything, "stdio"], "isolation": "session"})
            }
            (_, None) => {
                let command = json!([git, "--repository", self.repository()]);
                json!({"id": server.name(), "command": command, "isolation": "session"})
            }
        }
    }

    async fn start_rollcall(&mut self, servers: &[Server]) -> Result<(), String> {
        let issuer = Issuer::new("https://id.example", "rollcall", "k1")?;
        let write = |name: &str, text: String| {
            let path = self.folder.path().join(name);
            std::fs::write(&path, text).map(|()| path).map_err(|e| e.to_string())
        };
        let keys = write("jwks.json", Issuer::jwks(&[&issuer]).to_string())?;
        let entries: Vec<Value> = servers.iter().map(|server| self.entry(*server)).collect();
        // JSON is YAML, and needs no quoting of ours.
        let config = json!({
            "listen": "127.0.0.1:0",
            "store": "memory:",
            "issuers": [{
                "issuer": issuer.name, "audience": issuer.audience, "jwks_file": keys, "tenant_claim": "tenant",
                "tenants": ["*"],
            }],
            "tenants": {TENANT: {"servers": entries, "default_policy": {}}},
        });
        let config = write("rollcall.yaml", config.to_string())?;
        let mut command = Command::new(self.programs.join("rollcall"));
        command.arg("standalone").arg("--config").arg(config);
        let (child, url) = serve(command, self.folder.path(), "rollcall").await?;
        self.children.push(child);
        let base = url.strip_suffix("/mcp").unwrap_or(&url).to_owned();
        self.gateway = Some(Gateway { base, issuer });
        Ok(())
    }

    /// Where a client finds a server, and its token. Through Rollcall the server is warm then: an action's time limit is
    /// for the action, not for a cold start. Each client is a session of its own, and so has processes of its own.
    pub(crate) async fn reach(&self, client: Client, server: Server) -> Result<(String, String), String> {
        let Some(Gateway { base, issuer }) = &self.gateway else {
            let url = self.direct.iter().find(|(other, _)| *other == server).map(|(_, url)| url.clone());
            return url.map(|url| (url, String::new())).ok_or_else(|| format!("{} has no URL", server.name()));
        };
        let token = issuer.token(TENANT, client.name())?;
        let path = format!("/servers/{}/mcp", server.name());
        let http = Http::new(base.clone()).with_token(token.clone());
        let plan = super::plan::of(server, &self.repository());
        let call =
            plan.iter().find(|(action, _)| *action == Action::Call).map(|(_, call)| call).unwrap_or(&Value::Null);
        let params = json!({"name": call.get("tool"), "arguments": call.get("arguments").unwrap_or(&json!({}))});
        let started = Instant::now();
        loop {
            let answer = http.modern(&path, "tools/call", params.clone()).await?.rpc();
            if answer.pointer("/result/content").is_some() {
                return Ok((format!("{base}{path}"), token));
            }
            if started.elapsed() > READY {
                return Err(format!("{} is not served: {answer}", server.name()));
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    pub(crate) fn repository(&self) -> String {
        self.folder.path().join("repo").display().to_string()
    }

    /// An empty home: the Inspector keeps files in it.
    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    pub(crate) fn example(&self, name: &str) -> PathBuf {
        self.programs.join("examples").join(name)
    }

    /// Leaves the folder with its logs.
    pub(crate) fn keep(self) -> PathBuf {
        self.folder.keep()
    }
}

pub(crate) fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

pub(crate) fn node() -> PathBuf {
    peers().join("node_modules/node/bin/node")
}

pub(crate) fn python() -> PathBuf {
    peers().join("venv/bin/python")
}

/// Builds what the run needs, with the profile and into the folder of the program that runs. The folder.
async fn build(route: Route, clients: &[Client], servers: &[Server]) -> Result<PathBuf, String> {
    let here = std::env::current_exe().map_err(|e| e.to_string())?;
    let folder = here.parent().ok_or("the program has no folder")?.to_owned();
    let profile = folder.file_name().and_then(|name| name.to_str()).unwrap_or("debug");
    let profile = if profile == "debug" { "dev" } else { profile };
    let target = folder.parent().ok_or("the program has no target folder")?;
    let mut wanted = Vec::new();
    if route == Route::Rollcall {
        wanted.extend(["--bin", "rollcall"]);
    }
    if clients.contains(&Client::Rmcp) {
        wanted.extend(["--example", "matrix_client"]);
    }
    if servers.contains(&Server::Fixture) {
        wanted.extend(["--example", "fixture"]);
    }
    if wanted.is_empty() {
        return Ok(folder);
    }
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Of the whole workspace: with other features, what `cargo test` has built would be built again.
    command.args(["build", "--workspace", "--profile", profile, "--target-dir"]).arg(target).args(wanted);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    complete(command).await?;
    Ok(folder)
}

async fn make_repository(folder: &Path) -> Result<(), String> {
    let script = "git init -q \"$0\" && cd \"$0\" && echo one > a && git add a && \
                  git -c user.name=T -c user.email=t@e.example commit -q -m first";
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(folder).stderr(Stdio::inherit());
    complete(command).await
}
