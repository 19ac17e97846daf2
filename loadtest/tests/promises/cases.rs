//! Faults that users of such systems report with more than one replica.

use std::time::Duration;

use http::Method;
use rollcall_loadtest::client::Client;
use rollcall_loadtest::cluster::within;
use serde_json::json;

use crate::scene::{Scene, tenant};

/// A legacy client whose every request comes on a new connection, and so to another node than the one before: lists, calls
/// and the end of a session work from any, and after the end the session is unknown to all.
#[tokio::test]
async fn a_session_is_served_and_ended_by_any_node() {
    let scene = Scene::set().await;
    let token = scene.token(&tenant(0));
    let fresh = || Client::new(format!("http://{}", scene.cluster.balancer.address)).with_token(token.clone());
    for run in 0..15 {
        let session = fresh().open("/mcp", "2025-11-25", json!({})).await.expect("a session");
        let headers = [("content-type", "application/json"), ("mcp-session-id", session.id.as_str())];
        let ask = async |method: &str, params: serde_json::Value| {
            let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
            fresh().send(Method::POST, "/mcp", &headers, body).await.expect("an answer")
        };
        let listed = ask("tools/list", json!({})).await;
        assert!(listed.text().contains("s1__echo"), "run {run}: {}", listed.text());
        let called = ask("tools/call", json!({"name": "s1__echo", "arguments": {"run": run}})).await;
        assert!(called.rpc()["result"]["content"].is_array(), "run {run}: {}", called.text());
        let ended = fresh().send(Method::DELETE, "/mcp", &headers, "").await.expect("an answer");
        assert!(ended.status.is_success(), "run {run}: {}", ended.text());
        // The other node hears of it within a second, as of everything.
        let unknown = async || {
            let (one, other) = (ask("tools/list", json!({})).await, ask("tools/list", json!({})).await);
            one.status == 404 && other.status == 404
        };
        let took = within(Duration::from_secs(1), unknown).await;
        assert!(took.is_some(), "run {run}: an ended session is known somewhere");
    }
    // Without a session, and with one of somebody else.
    let plain = fresh().legacy("/mcp", "tools/list", json!({})).await.expect("an answer");
    assert!(plain.text().contains("s1__echo"));
    let headers = [("content-type", "application/json"), ("mcp-session-id", "another-servers-id")];
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    let foreign = fresh().send(Method::POST, "/mcp", &headers, body).await.expect("an answer");
    assert_eq!(foreign.status, 404, "{}", foreign.text());
    scene.stop().await;
}

/// Clients rarely end their sessions.
#[tokio::test]
async fn sessions_that_nobody_ends_cost_nothing() {
    let scene = Scene::set().await;
    let gateway = &scene.cluster.gateways[0];
    let agent = scene.cluster.agent_at(gateway.address, &tenant(0), "load").expect("an agent");
    let keys = || scene.cluster.redis.command(&["DBSIZE"]).expect("read");
    let open = async |count: usize| {
        for _ in 0..count {
            agent.open("/mcp", "2025-11-25", json!({})).await.expect("a session");
        }
    };
    open(500).await;
    let (before, stored) = (gateway.resident_kb().expect("memory"), keys());
    open(2_000).await;
    let after = gateway.resident_kb().expect("memory");
    println!(
        "2000 sessions more: {before} kB before, {after} kB after; in the store {stored} before, {} after",
        keys()
    );
    assert!(after < before + 4_096, "{before} kB, then {after} kB");
    assert_eq!(keys(), stored, "nothing is kept of them in the store either");
    scene.stop().await;
}
