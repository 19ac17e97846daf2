//! Real MCP servers and clients from npm and PyPI, at pinned versions, in front of and behind Rollcall.
//!
//! What goes through is compared with what the same client gets from the same server direct.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;

use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::harness::{System, peers_folder, setup, until};

/// Installs the pinned peers, once for all tests. A missing prerequisite fails with its install line.
pub(crate) fn install() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let output = std::process::Command::new(peers_folder().join("install.sh")).output().expect("a shell");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
}

pub(crate) fn node() -> PathBuf {
    peers_folder().join("node_modules/node/bin/node")
}

fn package(name: &str) -> PathBuf {
    peers_folder().join("node_modules/@modelcontextprotocol").join(name).join("dist/index.js")
}

fn venv(program: &str) -> PathBuf {
    peers_folder().join("venv/bin").join(program)
}

/// A real server: its words, and calls whose results are the same every time.
struct Peer {
    id: &'static str,
    command: Vec<String>,
    env: Vec<(String, String)>,
    calls: Vec<(&'static str, Value)>,
}

/// A folder with a file and a repository for the servers to work on.
struct Ground {
    folder: tempfile::TempDir,
}

impl Ground {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("files")).expect("a folder");
        std::fs::write(folder.path().join("files/a.txt"), "héllo ☃\n").expect("a file");
        let script = "git init -q repo && cd repo && echo one > a && git add a && \
                      git -c user.name=T -c user.email=t@e.example commit -q -m first --date 2026-01-01T00:00:00Z";
        let made = std::process::Command::new("sh")
            .args(["-c", script])
            .current_dir(folder.path())
            .env("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z")
            .status();
        assert!(made.expect("a shell").success());
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

fn words(parts: &[&dyn AsRef<Path>]) -> Vec<String> {
    parts.iter().map(|p| p.as_ref().display().to_string()).collect()
}

fn peers(ground: &Ground) -> Vec<Peer> {
    let (files, repo) = (ground.path("files"), ground.path("repo"));
    let file = format!("{files}/a.txt");
    vec![
        Peer {
            id: "everything",
            command: words(&[&node(), &package("server-everything"), &"stdio"]),
            env: vec![],
            calls: vec![
                ("echo", json!({"message": "héllo ☃"})),
                ("get-sum", json!({"a": 0.1, "b": 0.2})),
                ("get-annotated-message", json!({"messageType": "error", "includeImage": true})),
                ("get-structured-content", json!({"location": "New York"})),
                ("get-resource-links", json!({"count": 3})),
                ("echo", json!({})),
            ],
        },
        Peer {
            id: "filesystem",
            command: words(&[&node(), &package("server-filesystem"), &files]),
            env: vec![],
            calls: vec![
                ("read_text_file", json!({"path": file})),
                ("list_directory", json!({"path": files})),
                ("list_allowed_directories", json!({})),
                ("read_text_file", json!({"path": "/etc/passwd"})),
            ],
        },
        Peer {
            id: "memory",
            command: words(&[&node(), &package("server-memory")]),
            env: vec![("MEMORY_FILE_PATH".into(), ground.path("memory.jsonl"))],
            calls: vec![("read_graph", json!({})), ("search_nodes", json!({"query": "a"}))],
        },
        Peer {
            id: "git",
            command: words(&[&venv("mcp-server-git"), &"--repository", &repo]),
            env: vec![],
            calls: vec![
                ("git_status", json!({"repo_path": repo})),
                ("git_log", json!({"repo_path": repo, "max_count": 1})),
                ("git_show", json!({"repo_path": repo, "revision": "HEAD"})),
                ("git_status", json!({"repo_path": "/etc"})),
            ],
        },
        Peer {
            id: "time",
            command: words(&[&venv("mcp-server-time"), &"--local-timezone", &"UTC"]),
            env: vec![],
            calls: vec![("get_current_time", json!({"timezone": "Mars/X"}))],
        },
    ]
}

fn server_yaml(peer: &Peer) -> String {
    let env: Vec<String> = peer.env.iter().map(|(k, v)| format!("{k}: {}", json!(v))).collect();
    format!("{{id: {}, command: {}, env: {{{}}}}}", peer.id, json!(peer.command), env.join(", "))
}

async fn run(program: &Path, arguments: &[String], env: &[(String, String)]) -> Value {
    let path =
        format!("{}:{}", node().parent().expect("a folder").display(), std::env::var("PATH").unwrap_or_default());
    let home = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(program);
    command.args(arguments).env("PATH", path).env("HOME", home.path()).stdin(Stdio::null()).kill_on_drop(true);
    command.envs(env.iter().map(|(k, v)| (k, v)));
    let output = tokio::time::timeout(std::time::Duration::from_secs(90), command.output()).await;
    let output = output.expect("in time").expect("started");
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.trim()).unwrap_or_else(|e| {
        panic!("{program:?} {arguments:?}: {e}\n{text}\n{}", String::from_utf8_lossy(&output.stderr))
    })
}

/// `list` or `call NAME JSON`.
fn operation(call: Option<(&str, &Value)>) -> Vec<String> {
    match call {
        None => vec!["list".into()],
        Some((name, arguments)) => vec!["call".into(), name.into(), arguments.to_string()],
    }
}

async fn direct(peer: &Peer, call: Option<(&str, &Value)>) -> Value {
    let mut words = vec![peers_folder().join("client_stdio.mjs").display().to_string()];
    words.extend(operation(call));
    words.push("--".into());
    words.extend(peer.command.clone());
    run(&node(), &words, &peer.env).await
}

/// What a script of the pinned Python makes of a text: its output, as JSON.
pub(crate) async fn python(script: &str, text: &str) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let input = folder.path().join("input");
    std::fs::write(&input, text).expect("written");
    let mut command = tokio::process::Command::new(venv("python"));
    command.args(["-c", script]).stdin(std::fs::File::open(input).expect("opened")).kill_on_drop(true);
    let output = command.output().await.expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[derive(Clone, Copy, Debug)]
enum Client {
    TypeScript,
    FastMcp,
    Inspector,
}

async fn through(client: Client, system: &System, path: &str, call: Option<(&str, &Value)>) -> Value {
    let (url, token) = (system.url(path), system.token("acme", "s"));
    match client {
        Client::TypeScript => {
            let mut words = vec![peers_folder().join("client_ts.mjs").display().to_string(), url, token];
            words.extend(operation(call));
            run(&node(), &words, &[]).await
        }
        Client::FastMcp => {
            let mut words = vec![peers_folder().join("client_fastmcp.py").display().to_string(), url, token];
            words.extend(operation(call));
            run(&venv("python"), &words, &[]).await
        }
        Client::Inspector => {
            let mut words = vec![
                peers_folder().join("node_modules/.bin/mcp-inspector").display().to_string(),
                "--cli".into(),
                url,
                "--transport".into(),
                "http".into(),
                "--stored-auth-only".into(),
                "--header".into(),
                format!("Authorization: Bearer {token}"),
                "--format".into(),
                "json".into(),
                "-q".into(),
                "--method".into(),
            ];
            match call {
                None => words.push("tools/list".into()),
                Some((name, arguments)) => words.extend(
                    ["tools/call", "--tool-name", name, "--tool-args-json"]
                        .map(str::to_owned)
                        .into_iter()
                        .chain([arguments.to_string()]),
                ),
            }
            run(&node(), &words, &[]).await["result"].clone()
        }
    }
}

/// What the modern era adds to a result, and our own facts, are no part of what the server said.
fn plain(mut value: Value) -> Value {
    if let Some(members) = value.as_object_mut() {
        members.remove("resultType");
        members.remove("_meta");
    }
    value
}

fn tools(value: &Value) -> Vec<Value> {
    value["tools"].as_array().unwrap_or_else(|| panic!("{value}")).clone()
}

fn visible(id: &str, name: &str) -> String {
    format!("{id}__{name}")
}

#[tokio::test]
async fn lists_and_calls_of_real_servers_equal_those_made_direct() {
    install();
    let ground = Ground::new();
    let peers = peers(&ground);
    let servers: Vec<String> = peers.iter().map(server_yaml).collect();
    let system = setup(&format!("{{acme: {{servers: [{}], default_policy: {{}}}}}}", servers.join(", "))).start().await;
    let agent = system.agent("acme", "s");
    // Some servers add tools after they were initialized, and say so.
    until("all servers have listed all their tools", async || {
        let names = agent.names().await;
        names.len() > 13 + 14 + 9 + 12 + 2 && names.contains(&"everything__simulate-research-query".to_owned())
    })
    .await;
    let everywhere = tools(&through(Client::TypeScript, &system, "/mcp", None).await);
    for peer in &peers {
        let expected = tools(&direct(peer, None).await);
        let path = format!("/servers/{}/mcp", peer.id);
        for client in [Client::TypeScript, Client::FastMcp] {
            assert_eq!(tools(&through(client, &system, &path, None).await), expected, "{} by {client:?}", peer.id);
        }
        for tool in &expected {
            let mut tool = tool.clone();
            tool["name"] = visible(peer.id, tool["name"].as_str().expect("a name")).into();
            assert!(everywhere.contains(&tool), "{tool}");
        }
        for (name, arguments) in &peer.calls {
            let expected = plain(direct(peer, Some((name, arguments))).await);
            let what = format!("{} {name} {arguments}", peer.id);
            let got = through(Client::TypeScript, &system, &path, Some((name, arguments))).await;
            assert_eq!(plain(got), expected, "{what}");
            let whole = visible(peer.id, name);
            let got = through(Client::FastMcp, &system, "/mcp", Some((&whole, arguments))).await;
            assert_eq!(plain(got), expected, "{what}");
        }
    }
    // The Inspector reorders members and drops what it does not know: names and texts are compared.
    let names = |list: &[Value]| -> Vec<String> {
        let mut names: Vec<String> = list.iter().filter_map(|t| Some(t["name"].as_str()?.to_owned())).collect();
        names.sort();
        names
    };
    let inspected = through(Client::Inspector, &system, "/mcp", None).await;
    assert_eq!(names(&tools(&inspected)), names(&everywhere));
    let arguments = json!({"a": 0.1, "b": 0.2});
    let sum = through(Client::Inspector, &system, "/mcp", Some(("everything__get-sum", &arguments))).await;
    assert_eq!(sum["content"], direct(&peers[0], Some(("get-sum", &arguments))).await["content"]);
    system.stop().await;
}

/// A generated document of real tools satisfies a public validator, and is enough to call them by with curl, which fails
/// where a call does.
#[tokio::test]
async fn a_document_of_real_tools_is_valid_and_enough_to_call_them_by() {
    install();
    let ground = Ground::new();
    let peers: Vec<Peer> = peers(&ground).into_iter().filter(|peer| peer.id != "time").collect();
    let servers: Vec<String> = peers.iter().map(server_yaml).collect();
    let tenants = format!(
        "{{acme: {{servers: [{}, {{id: down, url: \"http://127.0.0.1:1\"}}], default_policy: {{deny: [\"git__git_reset\"]}}}}}}",
        servers.join(", ")
    );
    let system = setup(&tenants).start().await;
    let agent = system.agent("acme", "s");
    // Of each tool the first call, which succeeds.
    let mut arguments = serde_json::Map::new();
    for peer in &peers {
        for (name, given) in &peer.calls {
            arguments.entry(visible(peer.id, name)).or_insert_with(|| given.clone());
        }
    }
    assert!(arguments.len() >= 10, "{arguments:?}");
    until("all of them are listed", async || {
        let names = agent.names().await;
        arguments.keys().all(|name| names.contains(name))
    })
    .await;
    let names: Vec<&String> = arguments.keys().collect();
    let headers = [("content-type", "application/json")];
    let body = json!({"tool_names": names}).to_string();
    let answer = agent.client.send(http::Method::POST, "/v1/specs", &headers, body).await.expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let failures = json!([
        ["/tools/nothing__here", {}],
        ["/tools/git__git_reset", {"repo_path": ground.path("repo")}],
        ["/tools/down__anything", {}],
        ["/tools/filesystem__read_text_file", {"path": "/etc/passwd"}],
        ["/tools/filesystem__read_text_file", []],
        ["/v1/specs", {"tool_names": ["nothing__here"]}],
    ]);
    let asked = json!({
        "document": answer.json(), "token": system.token("acme", "s"), "arguments": arguments, "failures": failures,
    });
    let script = std::fs::read_to_string(peers_folder().join("openapi_calls.py")).expect("the script");
    let done = python(&script, &asked.to_string()).await;
    for peer in &peers {
        for (name, given) in peer.calls.iter().filter(|(name, given)| arguments[&visible(peer.id, name)] == *given) {
            let expected = plain(direct(peer, Some((name, given))).await);
            let got = &done["calls"][visible(peer.id, name)];
            assert_eq!((&got["success"], plain(got["result"].clone())), (&json!(true), expected), "{name}");
        }
    }
    let errors: Vec<(i64, &Value, &Value)> = done["failures"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|failed| (failed[0].as_i64().expect("a code"), &failed[1]["success"], &failed[1]["error"]))
        .collect();
    let no = json!(false);
    let (refused, tool, malformed) = (json!("tools_unavailable"), json!("tool_error"), json!("invalid_params"));
    let expected = [&refused, &refused, &refused, &tool, &malformed, &refused].map(|error| (22, &no, error));
    assert_eq!(errors, expected);
    system.stop().await;
}

/// server-everything over Streamable HTTP, on a port that is free.
async fn everything_over_http(port: u16) -> Child {
    let mut command = Command::new(node());
    command.arg(package("server-everything")).arg("streamableHttp").env("PORT", port.to_string());
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn();
    let child = child.expect("started");
    until("it listens", async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
    child
}

#[tokio::test]
async fn a_real_http_server_is_served_and_found_again_after_its_restart() {
    install();
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let mut server = everything_over_http(port).await;
    let tenants = format!(
        "{{acme: {{servers: [{{id: everything, url: \"http://127.0.0.1:{port}/mcp\"}}], default_policy: {{}}}}}}"
    );
    let system = setup(&tenants).start().await;
    let agent = system.agent("acme", "s");
    until("its tools are listed", async || agent.names().await.len() >= 13).await;
    let arguments = json!({"message": "héllo"});
    let call = async |client| through(client, &system, "/mcp", Some(("everything__echo", &arguments))).await;
    let before = call(Client::TypeScript).await;
    assert_eq!(before["content"][0]["text"], "Echo: héllo");
    assert_eq!(plain(call(Client::FastMcp).await), plain(before.clone()));
    let progress = json!({"name": "everything__trigger-long-running-operation", "arguments": {"duration": 1, "steps": 2}, "_meta": {"progressToken": "p"}});
    let answer = agent.client.modern("/mcp", "tools/call", progress).await.expect("an answer");
    assert!(answer.events().iter().filter(|e| e["params"]["progressToken"] == "p").count() >= 2, "{}", answer.text());
    server.kill().await.expect("killed");
    let _server = everything_over_http(port).await;
    // The old session is unknown to the new process; whoever calls does not notice.
    until("the server is used again", async || {
        agent.text("everything__echo", arguments.clone()).await == "Echo: héllo"
    })
    .await;
    assert_eq!(call(Client::TypeScript).await, before);
    system.stop().await;
}

#[tokio::test]
async fn a_real_client_reads_refusals_and_recovery() {
    install();
    let ground = Ground::new();
    let all = peers(&ground);
    let time = all.iter().find(|p| p.id == "time").expect("the peer");
    let tenants =
        format!("{{acme: {{servers: [{}], default_policy: {{deny: [\"time__convert_time\"]}}}}}}", server_yaml(time));
    let system = setup(&tenants).start().await;
    for client in [Client::TypeScript, Client::FastMcp] {
        let refused = through(client, &system, "/mcp", Some(("time__convert_time", &json!({})))).await;
        assert_eq!(refused["error"]["code"], -32602, "{client:?}: {refused}");
        assert_eq!(refused["error"]["data"]["not_allowed"], json!(["time__convert_time"]));
        let spec = through(
            client,
            &system,
            "/mcp",
            Some(("get_api_spec", &json!({"tool_names": ["time__get_current_time"]}))),
        )
        .await;
        assert!(spec["content"][0]["text"].as_str().is_some_and(|t| t.contains("\"openapi\":\"3.1.0\"")), "{spec}");
    }
    system.stop().await;
}
