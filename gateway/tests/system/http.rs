//! The HTTP surface: what is malformed, too large, too slow, or from somewhere else.

use std::time::Duration;

use http::Method;
use rollcall_loadtest::client::{Answer, modern_params};
use rollcall_loadtest::upstream::{Speaks, Upstream};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::{Agent, System, setup};

const JSON: (&str, &str) = ("content-type", "application/json");

async fn system() -> (System, Upstream) {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    let tenants = format!("{{acme: {{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}}}", upstream.url());
    let system =
        setup(&tenants).more("limits: {body_bytes: 64KiB}\nallowed_origins: [\"https://app.example\"]").start().await;
    (system, upstream)
}

async fn post(agent: &Agent, headers: &[(&str, &str)], body: impl Into<String>) -> Answer {
    agent.client.send(Method::POST, "/mcp", headers, body.into()).await.expect("an answer")
}

fn code(answer: &Answer) -> (u16, Option<i64>) {
    (answer.status.as_u16(), answer.json()["error"]["code"].as_i64())
}

#[tokio::test]
async fn what_is_no_message_is_answered_precisely() {
    let (system, upstream) = system().await;
    let agent = system.agent("acme", "s");
    let cases: [(&str, u16, i64); 12] = [
        ("", 400, -32700),
        ("{", 400, -32700),
        ("\u{0}", 400, -32700),
        ("[]", 400, -32600),
        ("7", 400, -32600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, 400, -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, 400, -32600),
        (r#"{"jsonrpc":"2.0","id":[1],"method":"ping"}"#, 400, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}"#, 400, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"s__t","name":"x"}}"#, 200, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}"#, 200, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"s__t","arguments":[1]}}"#, 200, -32602),
    ];
    for (body, status, expected) in cases {
        assert_eq!(code(&post(&agent, &[JSON], body).await), (status, Some(expected)), "{body}");
    }
    let id = post(&agent, &[JSON], r#"{"jsonrpc":"2.0","id":"a\u00e9","method":"nonsense"}"#).await;
    assert!(id.text().starts_with(r#"{"jsonrpc":"2.0","id":"a\u00e9","#), "ids keep their form: {}", id.text());
    let deep = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{{\"name\":\"s__t\",\"arguments\":{{\"a\":{}{}}}}}}}",
        "[".repeat(20_000),
        "]".repeat(20_000)
    );
    assert_eq!(post(&agent, &[JSON], deep).await.status, 200, "depth is the upstream's business");
    assert!(upstream.calls().len() <= 1);
    system.stop().await;
}

#[tokio::test]
async fn modern_headers_must_say_what_the_body_says() {
    let (system, upstream) = system().await;
    let agent = system.agent("acme", "s");
    let body = |params: Value| json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let good = body(modern_params(json!({"name": "s__t"})));
    let (version, method, name) =
        (("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "s__t"));
    assert_eq!(post(&agent, &[JSON, version, method, name], good.clone()).await.status, 200);
    assert_eq!(
        post(&agent, &[JSON, version, method, ("mcp-name", "=?base64?c19fdA==?=")], good.clone()).await.status,
        200
    );
    let mismatches: [&[(&str, &str)]; 10] = [
        &[JSON],
        &[JSON, method, name],
        &[JSON, version, name],
        &[JSON, version, method],
        &[JSON, version, method, ("mcp-name", "s__T")],
        &[JSON, version, method, ("mcp-name", "=?base64?***?=")],
        &[JSON, version, method, name, ("mcp-name", "s__t")],
        &[JSON, version, ("mcp-method", "TOOLS/CALL"), name],
        &[JSON, ("mcp-protocol-version", "2025-11-25"), method, name],
        &[JSON, version, version, method, name],
    ];
    let before = upstream.calls().len();
    for headers in mismatches {
        assert_eq!(code(&post(&agent, headers, good.clone()).await), (400, Some(-32020)), "{headers:?}");
    }
    let no_meta = body(json!({"name": "s__t"}));
    assert_eq!(code(&post(&agent, &[JSON, version, method, name], no_meta).await), (400, Some(-32602)));
    let mut without = modern_params(json!({"name": "s__t"}));
    without["_meta"].as_object_mut().expect("meta").remove("io.modelcontextprotocol/clientCapabilities");
    assert_eq!(code(&post(&agent, &[JSON, version, method, name], body(without)).await), (400, Some(-32602)));
    let mut other = modern_params(json!({"name": "s__t"}));
    other["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2027-01-01".into();
    let headers = [JSON, ("mcp-protocol-version", "2027-01-01"), method, name];
    let answer = post(&agent, &headers, body(other)).await;
    assert_eq!(code(&answer), (400, Some(-32022)));
    assert_eq!(answer.json()["error"]["data"]["requested"], "2027-01-01");
    assert_eq!(
        code(&post(&agent, &[JSON, ("mcp-protocol-version", "1999-01-01")], body(json!({"name": "s__t"}))).await),
        (400, Some(-32022))
    );
    assert_eq!(upstream.calls().len(), before, "none of them was forwarded");
    system.stop().await;
}

#[tokio::test]
async fn bodies_are_json_plain_and_within_the_limit() {
    let (system, upstream) = system().await;
    let agent = system.agent("acme", "s");
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    for headers in [&[][..], &[("content-type", "text/plain")], &[JSON, ("content-encoding", "gzip")]] {
        assert_eq!(post(&agent, headers, ping).await.status, 415, "{headers:?}");
    }
    assert_eq!(post(&agent, &[JSON, ("accept", "text/html")], ping).await.status, 406);
    for accept in ["application/json", "*/*", "text/event-stream", "application/json;q=0.9, text/event-stream"] {
        assert_eq!(post(&agent, &[JSON, ("accept", accept)], ping).await.status, 200, "{accept}");
    }
    let large = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "s__t", "arguments": {"x": "y".repeat(70_000)}}});
    let answer = post(&agent, &[JSON], large.to_string()).await;
    assert_eq!(answer.status, 413);
    assert!(answer.text().contains("limits.body_bytes = 65536"), "{}", answer.text());
    assert!(upstream.calls().is_empty());
    system.stop().await;
}

#[tokio::test]
async fn a_chunked_body_over_the_limit_is_cut_while_it_comes() {
    let (system, _upstream) = system().await;
    let token = system.token("acme", "s");
    let address = system.inner().gateway.agents;
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nAuthorization: Bearer {token}\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    let chunk = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
    let sent = async {
        for n in 0..100_000u32 {
            if stream.write_all(chunk.as_bytes()).await.is_err() {
                return n;
            }
        }
        u32::MAX
    };
    let sent = tokio::time::timeout(Duration::from_secs(20), sent).await.expect("it is cut");
    assert!(sent < 2_000, "{sent} chunks were taken");
    system.stop().await;
}

#[tokio::test]
async fn only_our_own_hosts_and_allowed_origins_are_served() {
    let (system, _upstream) = system().await;
    let agent = system.agent("acme", "s");
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let port = system.inner().gateway.agents.port();
    for host in ["evil.example", "127.0.0.1", "localhost:1", &format!("127.0.0.1:{port}.evil.example")] {
        assert_eq!(post(&agent, &[JSON, ("host", host)], ping).await.status, 421, "{host}");
    }
    assert_eq!(post(&agent, &[JSON, ("host", &format!("localhost:{port}"))], ping).await.status, 200);
    for origin in ["https://evil.example", "null", "https://app.example.evil.example"] {
        assert_eq!(post(&agent, &[JSON, ("origin", origin)], ping).await.status, 403, "{origin}");
    }
    let allowed = post(&agent, &[JSON, ("origin", "https://app.example")], ping).await;
    assert_eq!(allowed.status, 200);
    assert_eq!(allowed.headers["access-control-allow-origin"], "https://app.example");
    let preflight = [("origin", "https://app.example"), ("access-control-request-method", "POST")];
    let answer = agent.client.send(Method::OPTIONS, "/mcp", &preflight, "").await.expect("an answer");
    assert_eq!(answer.status, 204);
    assert!(answer.headers["access-control-allow-headers"].to_str().expect("text").contains("mcp-name"));
    system.stop().await;
}

#[tokio::test]
async fn both_spellings_of_a_path_are_served_and_nothing_redirects() {
    let (system, _upstream) = system().await;
    let agent = system.agent("acme", "s");
    for path in ["/mcp", "/mcp/", "/t/acme/mcp", "/t/acme/mcp/", "/servers/s/mcp", "/servers/s/mcp/"] {
        let answer = agent.client.legacy(path, "tools/list", json!({})).await.expect("an answer");
        assert_eq!(answer.status, 200, "{path}");
    }
    for path in ["/", "/nothing", "/mcp/x", "/servers", "/t/acme"] {
        let answer = agent.client.legacy(path, "tools/list", json!({})).await.expect("an answer");
        assert_eq!(answer.status, 404, "{path}");
    }
    system.stop().await;
}

#[tokio::test]
async fn a_client_that_never_finishes_is_cut() {
    let (system, _upstream) = system().await;
    let mut silent = TcpStream::connect(system.inner().gateway.agents).await.expect("connected");
    let mut buffer = [0; 64];
    let read = tokio::time::timeout(Duration::from_secs(15), silent.read(&mut buffer)).await;
    assert_eq!(read.expect("it is cut").unwrap_or(0), 0);
    system.stop().await;
}

/// A connection whose request is on the way when the node closes its doors: it was let in, so it is served.
#[tokio::test]
async fn whoever_was_let_in_is_served_though_the_doors_close() {
    let (system, _upstream) = system().await;
    let address = system.inner().gateway.agents;
    let token = system.token("acme", "s");
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n{ping}",
        ping.len()
    );
    let mut let_in = Vec::new();
    for _ in 0..8 {
        let_in.push(TcpStream::connect(address).await.expect("connected"));
    }
    let stopping = tokio::spawn(system.stop());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(TcpStream::connect(address).await.is_err(), "the doors are closed");
    for mut stream in let_in {
        stream.write_all(request.as_bytes()).await.expect("written");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("read");
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer:?}");
    }
    stopping.await.expect("stopped");
}

#[tokio::test]
async fn more_than_fits_is_refused_at_once_and_given_back_after() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    upstream.answers(|_| {
        rollcall_loadtest::upstream::Reply::After(
            Duration::from_secs(1),
            Box::new(rollcall_loadtest::upstream::Reply::Result(r#"{"content":[]}"#.into())),
        )
    });
    let tenants = format!(
        "{{acme: {{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}, calm: {{default_policy: {{}}}}}}",
        upstream.url()
    );
    let system = setup(&tenants).more("limits: {calls_in_flight: 8}").start().await;
    let (noisy, calm) = (system.agent("acme", "s"), system.agent("calm", "s"));
    noisy.names().await;
    let calls = (0..12).map(|_| {
        let noisy = noisy.clone();
        async move { noisy.client.legacy("/mcp", "tools/call", json!({"name": "s__t"})).await.expect("an answer") }
    });
    let flood = tokio::spawn(futures_util::future::join_all(calls));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(calm.names().await.is_empty(), "a neighbour finds room");
    let answers = flood.await.expect("ended");
    let refused: Vec<_> = answers.iter().filter(|a| a.status == 503).collect();
    assert_eq!(refused.len(), 8, "half of the room is the most that one tenant takes");
    assert!(refused.iter().all(|a| a.headers.contains_key("retry-after")));
    for _ in 0..3 {
        assert_eq!(noisy.client.legacy("/mcp", "tools/list", json!({})).await.expect("an answer").status, 200);
    }
    let metrics = system.metrics().await;
    assert!(
        metrics.contains("rollcall_calls_in_flight 0") && metrics.contains("rollcall_buffered_bytes 0"),
        "{metrics}"
    );
    system.stop().await;
}

#[tokio::test]
async fn requests_are_counted_by_closed_lists_of_labels() {
    let (system, _upstream) = system().await;
    let agent = system.agent("acme", "s");
    agent.names().await;
    let series = |metrics: &str| metrics.lines().filter(|l| !l.starts_with('#')).count();
    agent.call("nothing_0", json!({})).await;
    agent.client.legacy("/mcp", "method_0", json!({})).await.expect("an answer");
    let before = system.metrics().await;
    for n in 0..200 {
        agent.call(&format!("nothing_{n}"), json!({})).await;
        agent.client.legacy("/mcp", &format!("method_{n}"), json!({})).await.expect("an answer");
        system.client().with_token(format!("t{n}")).legacy(&format!("/p{n}"), "x", json!({})).await.expect("an answer");
    }
    let after = system.metrics().await;
    assert!(after.contains(r#"rollcall_refusals_total{reason="unknown_tool",surface="mcp"} 201"#), "{after}");
    assert!(series(&after) <= series(&before) + 2, "names of callers make no series");
    system.stop().await;
}

#[tokio::test]
async fn bodies_that_do_not_fit_the_budget_are_refused_before_they_are_read() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    upstream.answers(|_| rollcall_loadtest::upstream::Reply::Hang);
    let tenants = format!(
        "{{acme: {{servers: [{{id: s, url: \"{}\", call_timeout: 1s}}], default_policy: {{}}}}}}",
        upstream.url()
    );
    let limits = "limits: {body_bytes: 64KiB, buffered_bytes: 128KiB}";
    let system = setup(&tenants).more(limits).start().await;
    let agent = system.agent("acme", "s");
    agent.names().await;
    let large = json!({"name": "s__t", "arguments": {"x": "y".repeat(60_000)}});
    let first = tokio::spawn({
        let (agent, large) = (agent.clone(), large.clone());
        async move { agent.client.legacy("/mcp", "tools/call", large).await.expect("an answer").status.as_u16() }
    });
    crate::harness::until("the first is under way", async || !upstream.calls().is_empty()).await;
    let second = agent.client.legacy("/mcp", "tools/call", large.clone()).await.expect("an answer");
    assert_eq!(second.status, 503, "half of the budget is the most that one tenant holds");
    assert!(second.headers.contains_key("retry-after"));
    let small = agent.client.legacy("/mcp", "ping", json!({})).await.expect("an answer");
    assert_eq!(small.status, 200);
    assert_eq!(first.await.expect("ended"), 200);
    assert_eq!(agent.client.legacy("/mcp", "tools/call", large).await.expect("an answer").status, 200, "given back");
    system.stop().await;
}

#[tokio::test]
async fn results_that_do_not_fit_the_budget_are_refused_and_what_was_held_is_given_back() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    let result = json!({"content": [{"type": "text", "text": "x".repeat(200_000)}]}).to_string();
    upstream.answers(move |_| rollcall_loadtest::upstream::Reply::Result(result.clone()));
    let tenants = format!("{{acme: {{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}}}", upstream.url());
    let small = setup(&tenants).more("limits: {body_bytes: 64KiB, buffered_bytes: 256KiB}").start().await;
    let answer = small.agent("acme", "s").call("s__t", json!({})).await;
    let text = crate::harness::text_of(&answer);
    assert!(text.contains("(overloaded). The call may have run."), "{text}");
    small.stop().await;
    let system = setup(&tenants).more("limits: {body_bytes: 64KiB, buffered_bytes: 512KiB}").start().await;
    let agent = system.agent("acme", "s");
    for _ in 0..5 {
        assert_eq!(agent.text("s__t", json!({})).await.len(), 200_000, "given back each time");
    }
    crate::harness::until("nothing is held", async || system.metrics().await.contains("rollcall_buffered_bytes 0"))
        .await;
    system.stop().await;
}

#[tokio::test]
async fn more_headers_than_a_request_needs_are_refused_before_anything_reads_them() {
    let (system, upstream) = system().await;
    let agent = system.agent("acme", "s");
    let names: Vec<String> = (0..1000).map(|n| format!("mcp-param-x{n}")).collect();
    let mut headers = vec![JSON];
    headers.extend(names.iter().map(|name| (name.as_str(), "1")));
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"s__t"}}"#;
    assert_eq!(post(&agent, &headers, body).await.status, 431);
    // A few that nobody knows are passed over.
    assert_eq!(post(&agent, headers.get(..20).expect("some"), body).await.status, 200);
    assert_eq!(upstream.calls().len(), 1);
    system.stop().await;
}
