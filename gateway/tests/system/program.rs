//! The program as a process: its exit codes, its logs and audit lines, its traces, its end.

use std::process::Stdio;
use std::time::Duration;

use rollcall_loadtest::client::Client;
use rollcall_loadtest::upstream::{Reply, Speaks, Upstream};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::Command;

use crate::harness::{program, until};

const KEY: &str = "0123456789abcdef0123456789abcdef";

async fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(program()).args(arguments).stdin(Stdio::null()).output().await.expect("started");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn a_wrong_configuration_is_reported_whole_with_exit_code_64() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "lisen: 1\nstore: x\nlimits: {body_bytes: 0}\n").expect("written");
    let path = file.path().display().to_string();
    let (code, out, err) = run(&["standalone", "--config", &path]).await;
    assert_eq!((code, out.as_str()), (64, ""));
    for line in [
        "has 3 problem(s)",
        "line 1 column 8: unknown key `lisen`; did you mean `listen`?",
        "line 2 column 8: store",
        "line 3 column 22: limits.body_bytes",
    ] {
        assert!(err.contains(line), "{line} in {err}");
    }
    assert_eq!(run(&["standalone", "--config", "/no/such/file"]).await.0, 64);
    assert_eq!(run(&["nonsense"]).await.0, 64);
    let (code, out, _) = run(&["--help"]).await;
    assert!(code == 0 && out.contains("standalone") && out.contains("token"), "{out}");
}

#[tokio::test]
async fn the_demo_server_answers_a_client_that_speaks_either_era() {
    use tokio::io::AsyncWriteExt as _;
    let mut child = Command::new(program())
        .arg("demo-server")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("started");
    let mut input = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut ask = async |line: &str| -> Value {
        input.write_all(format!("{line}\n").as_bytes()).await.expect("written");
        let answer = lines.next_line().await.expect("read").expect("a line");
        serde_json::from_str(&answer).expect("JSON")
    };
    let opened =
        ask(r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#).await;
    assert_eq!(opened["result"]["protocolVersion"], "2025-06-18");
    assert!(opened["result"].get("resultType").is_none());
    let broken = ask("{").await;
    assert_eq!(broken["error"]["code"], -32700);
    let unknown = ask(r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"nope"}}"#).await;
    assert_eq!(unknown["error"]["code"], -32602);
    drop(input);
    let ended = tokio::time::timeout(Duration::from_secs(5), child.wait()).await.expect("it ends with its input");
    assert!(ended.expect("waited").success());
}

/// A port that is free now.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port()
}

#[tokio::test]
async fn one_trace_and_one_audit_line_tell_of_a_call_and_sigterm_ends_it_well() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    // The collector: whatever is posted is remembered.
    let collector = Upstream::start(Speaks::Modern, &[]).await.expect("a server");
    collector.breaks(Some(Reply::Raw(200, "application/x-protobuf", String::new())));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rollcall.yaml");
    let port = free_port();
    let yaml = format!(
        "listen: 127.0.0.1:{port}\nstore: \"memory:\"\ntelemetry: {{otlp_endpoint: \"http://{}\"}}\n\
         issuers: [{{issuer: dev, audience: rollcall, hs256_key: {KEY}, tenant_claim: tenant, tenants: [acme]}}]\n\
         tenants: {{acme: {{servers: [{{id: s, url: \"{}\", headers: {{X-Key: canary-credential}}}}], default_policy: {{}}}}}}\n",
        collector.address,
        upstream.url()
    );
    std::fs::write(&file, yaml).expect("written");
    let path = file.display().to_string();
    let (code, token, err) =
        run(&["token", "--config", &path, "--tenant", "acme", "--session", "s1", "--ttl", "5m"]).await;
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = run(&["token", "--config", &path, "--tenant", "other"]).await;
    assert!(code == 64 && err.contains("may speak for this tenant"), "{err}");
    let mut child = Command::new(program())
        .args(["standalone", "--config", &path])
        .env("RUST_LOG", "trace")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("started");
    let mut stderr = child.stderr.take().expect("a pipe");
    let logs = tokio::spawn(async move {
        let mut text = String::new();
        stderr.read_to_string(&mut text).await.map(|_| text)
    });
    let client = Client::new(format!("http://127.0.0.1:{port}")).with_token(token.trim());
    until("it serves", async || client.legacy("/mcp", "ping", json!({})).await.is_ok()).await;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let params = json!({
        "name": "s__t", "arguments": {"secret": "canary-argument"},
        "_meta": {"traceparent": format!("00-{trace}-b7ad6b7169203331-01")},
    });
    let answer = client.modern("/mcp", "tools/call", params).await.expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let denied = client.modern("/mcp", "tools/call", json!({"name": "s__nope"})).await.expect("an answer");
    assert_eq!(denied.json()["error"]["code"], -32602);
    let sent = upstream.calls().pop().expect("a call")["_meta"]["traceparent"].as_str().expect("a trace").to_owned();
    assert!(
        sent.starts_with(&format!("00-{trace}-")) && !sent.contains("b7ad6b7169203331"),
        "a span of our own: {sent}"
    );
    until("spans have arrived", async || {
        let bodies: String = collector.seen().iter().map(|s| s.body.clone()).collect();
        bodies.contains("upstream call") && bodies.contains("rollcall")
    })
    .await;
    let id = child.id().expect("running").to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
    let ended = tokio::time::timeout(Duration::from_secs(30), child.wait()).await.expect("it ends");
    assert!(ended.expect("waited").success());
    let logs = logs.await.expect("read").expect("text");
    for canary in ["canary-argument", "canary-credential", KEY, token.trim().rsplit('.').next().expect("a signature")] {
        assert!(!logs.contains(canary), "a secret was written down: {canary}");
    }
    let lines: Vec<Value> =
        logs.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"))).collect();
    let audit: Vec<&Value> =
        lines.iter().filter(|l| l["target"] == "rollcall::audit" && l["method"] == "tools/call").collect();
    assert_eq!(audit.len(), 2, "one line for each decision");
    let (allowed, refused) = (audit[0], audit[1]);
    for (key, expected) in [
        ("tenant", "acme"),
        ("session", "s1"),
        ("issuer", "dev"),
        ("name", "s__t"),
        ("server", "s"),
        ("verdict", "allowed"),
        ("trace", trace),
    ] {
        assert_eq!(allowed[key], expected, "{allowed}");
    }
    assert!(allowed["duration_us"].as_u64().is_some_and(|us| us > 0));
    assert_eq!(
        (&refused["verdict"], &refused["reason"], &refused["name"]),
        (&json!("refused"), &json!("unknown_tool"), &json!("s__nope"))
    );
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), format!("listen: {address}\nstore: \"memory:\"\n")).expect("written");
    let (code, _, err) = run(&["standalone", "--config", &file.path().display().to_string()]).await;
    assert!(code == 69 && err.contains(&address), "{code}: {err}");
}
