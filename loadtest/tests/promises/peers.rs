//! Real clients before two gateways and three workers, each request on a connection of its own: what they get is what the
//! server gives them direct.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rollcall_loadtest::cluster::{Cluster, Plan};
use rollcall_loadtest::conformance::Proxy;
use rollcall_loadtest::programs::{self, Running, peers};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::scene::alone;

/// One operation of a client's script: what it printed.
async fn run(program: PathBuf, script: &str, url: &str, era: &str, operation: &[&str]) -> Value {
    let mut command = Command::new(program);
    command.arg(peers().join(script)).arg(url).arg("").args(operation).env("MCP_ERA", era);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output =
        tokio::time::timeout(Duration::from_secs(90), command.output()).await.expect("in time").expect("started");
    let errors = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{script} {operation:?}: {errors}"))
}

#[tokio::test]
async fn real_clients_meet_many_nodes_as_one() {
    let _one = alone().await;
    programs::install_peers().await.expect("the peers");
    let built = programs::build().await.expect("built");
    let folder = tempfile::tempdir().expect("a folder");
    let mut fixture = Command::new(&built.fixture);
    fixture.args(["--listen", "127.0.0.1:0"]);
    let (fixture, direct) = Running::start(fixture, &folder.path().join("log"), "").await.expect("a fixture");
    let server = json!({"id": "fixture", "url": direct, "isolation": "session"});
    let tenants = json!({"acme": {"servers": [server], "default_policy": {}}});
    let cluster = Cluster::start(Plan::new(2, 3, tenants)).await.expect("a cluster");
    let (node, python) = (peers().join("node_modules/node/bin/node"), peers().join("venv/bin/python"));
    let clients = [
        (node, "client_ts.mjs", "legacy"),
        (python.clone(), "client_fastmcp.py", "legacy"),
        (python, "client_fastmcp.py", "2026-07-28"),
    ];
    let mut compared = 0;
    for (program, script, era) in clients {
        let token = cluster.issuer.token("acme", &format!("{script}-{era}")).expect("a token");
        let behind = cluster.balancer.address.to_string().parse().expect("an authority");
        let proxy = Proxy::start(behind, &token).await.expect("a proxy");
        let through = format!("http://{}/servers/fixture/mcp", proxy.address);
        let operations: [&[&str]; 4] = [
            &["list"],
            &["call", "test_simple_text", "{}"],
            &["call", "test_error_handling", "{}"],
            &["call", "test_multiple_content_types", "{}"],
        ];
        for operation in operations {
            let expected = run(program.clone(), script, &direct, era, operation).await;
            let got = run(program.clone(), script, &through, era, operation).await;
            assert_eq!(sorted(without_meta(got)), sorted(without_meta(expected)), "{script} in {era}: {operation:?}");
            compared += 1;
        }
    }
    println!("real clients: {compared} operations through a round-robin of 2 gateways before 3 workers, all as direct");
    cluster.stop().await.expect("everything ends");
    fixture.end().await;
}

/// `_meta` is whose answer it is.
fn without_meta(mut value: Value) -> Value {
    if let Some(object) = value.as_object_mut() {
        object.remove("_meta");
    }
    value
}

/// Rollcall lists in the order of names, the fixture in its own.
fn sorted(mut value: Value) -> Value {
    if let Some(tools) = value.get_mut("tools").and_then(Value::as_array_mut) {
        tools.retain(|tool| !["get_api_spec"].contains(&tool["name"].as_str().unwrap_or_default()));
        tools.sort_by_key(|tool| tool["name"].as_str().map(str::to_owned));
    }
    value
}
