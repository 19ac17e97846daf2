//! Lists and calls, in both eras on both legs, over both links: right upstream, right name, same bytes.

use std::time::Duration;

use http::Method;
use rollcall_loadtest::upstream::{Reply, Speaks, Upstream};
use serde_json::{Value, json};

use crate::harness::{over_both, setup, text_of, until};

#[tokio::test]
async fn each_era_of_client_meets_each_era_of_server() {
    over_both(async |link| {
        let modern = Upstream::start(Speaks::Modern, &["run"]).await.expect("an upstream");
        let legacy = Upstream::start(Speaks::Legacy, &["run"]).await.expect("an upstream");
        let tenants = format!(
            "{{acme: {{servers: [{{id: new, url: \"{}\"}}, {{id: old, url: \"{}\"}}], default_policy: {{}}}}}}",
            modern.url(),
            legacy.url()
        );
        let system = setup(&tenants).link(link).start().await;
        let agent = system.agent("acme", "s");
        assert_eq!(agent.names().await, ["get_api_spec", "new__run", "old__run"]);
        for (upstream, name) in [(&modern, "new__run"), (&legacy, "old__run")] {
            assert_eq!(agent.text(name, json!({"a": 1})).await, r#"run {"a":1}"#);
            let params = json!({"name": name, "arguments": {"b": 2}});
            let answer = agent.client.modern("/mcp", "tools/call", params).await.expect("an answer");
            assert_eq!(answer.status, 200);
            assert_eq!(answer.json()["id"], "m-1");
            assert_eq!(answer.json()["result"]["resultType"], "complete");
            assert_eq!(text_of(&answer.json()), r#"run {"b":2}"#);
            let seen: Vec<Value> = upstream.calls().iter().map(|c| c["name"].clone()).collect();
            assert_eq!(seen, ["run", "run"], "the upstream sees its own name");
        }
        let list = agent.client.modern("/mcp", "tools/list", json!({})).await.expect("an answer").json();
        let result = &list["result"];
        assert_eq!(
            (&result["resultType"], &result["cacheScope"], &result["ttlMs"]),
            (&json!("complete"), &json!("private"), &json!(0))
        );
        system.stop().await;
        assert_eq!(legacy.sessions(), (1, 0), "one session was opened, and deleted at the end");
    })
    .await;
}

#[tokio::test]
async fn bytes_pass_unchanged_both_ways() {
    over_both(async |link| {
        let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
        let result = r#"{ "content":[ ],"z":{"b":9007199254740993,"a":1.50},"resultType":"complete", "é":"\u00e9" }"#;
        upstream.answers(move |_| Reply::Result(result.to_owned()));
        let tenants = format!("{{acme: {{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}}}", upstream.url());
        let system = setup(&tenants).link(link).start().await;
        let agent = system.agent("acme", "s");
        let body = r#"{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"arguments":{"z":9007199254740993,"a":[1.50,{"k" : null}]},"name":"s__t"}}"#;
        let answer = agent
            .client
            .send(Method::POST, "/mcp", &[("content-type", "application/json")], body)
            .await
            .expect("an answer");
        assert_eq!(answer.text(), format!(r#"{{"jsonrpc":"2.0","id":9007199254740993,"result":{result}}}"#));
        let sent = upstream.seen().into_iter().find(|s| s.body.contains("tools/call")).expect("a call");
        assert!(sent.body.contains(r#""arguments":{"z":9007199254740993,"a":[1.50,{"k" : null}]}"#), "{}", sent.body);
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn nothing_of_the_callers_headers_goes_upstream() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    let tenants = format!(
        "{{acme: {{servers: [{{id: s, url: \"{}\", headers: {{Authorization: \"Bearer ${{UPSTREAM_TOKEN}}\"}}}}], default_policy: {{}}}}}}",
        upstream.url()
    );
    let system = setup(&tenants).environment("UPSTREAM_TOKEN", "of-the-server").start().await;
    let agent = system.agent("acme", "s");
    let headers = [
        ("content-type", "application/json"),
        ("cookie", "canary=1"),
        ("x-canary", "canary"),
        ("mcp-param-x", "canary"),
    ];
    let body = json!({"jsonrpc": "2.0", "id": "canary-id", "method": "tools/call", "params": {
        "name": "s__t", "arguments": {}, "canary": 1, "_meta": {"com.example/kept": 1, "progressToken": "canary-token"},
    }});
    let answer = agent.client.send(Method::POST, "/mcp", &headers, body.to_string()).await.expect("an answer");
    assert_eq!(answer.status, 200);
    let token = system.token("acme", "s");
    for seen in upstream.seen() {
        let everything = format!("{:?} {}", seen.headers, seen.body);
        assert!(!everything.contains("canary"), "{everything}");
        assert!(!everything.contains(token.split('.').nth(1).expect("a payload")), "the caller's token travels on");
        assert_eq!(seen.headers.get("authorization").map(|v| v.as_bytes()), Some(&b"Bearer of-the-server"[..]));
    }
    let call = upstream.calls().pop().expect("a call");
    assert_eq!(call["_meta"]["com.example/kept"], 1, "what is nobody's reserved key goes on");
    assert!(call["_meta"]["traceparent"].is_string());
    system.stop().await;
}

#[tokio::test]
async fn one_trace_goes_from_the_caller_to_the_upstream() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    let tenants = format!("{{acme: {{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}}}", upstream.url());
    let system = setup(&tenants).start().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let params = json!({"name": "s__t", "arguments": {}, "_meta": {"traceparent": trace, "baggage": "secret=1"}});
    system.agent("acme", "s").client.modern("/mcp", "tools/call", params).await.expect("an answer");
    let call = upstream.calls().pop().expect("a call");
    let sent = call["_meta"]["traceparent"].as_str().expect("a trace");
    assert!(sent.starts_with("00-0af7651916cd43dd8448eb211c80319c-"), "{sent}");
    assert!(call["_meta"].get("baggage").is_none(), "baggage ends at the tenant's boundary");
    system.stop().await;
}

#[tokio::test]
async fn progress_is_streamed_under_the_callers_own_token() {
    over_both(async |link| {
        let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
        upstream.answers(|params| {
            let token = &params["_meta"]["progressToken"];
            let progress = |n: u64, token: &Value| {
                json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": n}}).to_string()
            };
            let events = vec![progress(1, token), progress(2, &json!("of somebody else")), progress(3, token)];
            Reply::Stream(events, r#"{"resultType":"complete","content":[]}"#.to_owned())
        });
        let tenants = format!("{{acme: {{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}}}", upstream.url());
        let system = setup(&tenants).link(link).start().await;
        let agent = system.agent("acme", "s");
        for token in [json!(7), json!("mine")] {
            let params = json!({"name": "s__t", "_meta": {"progressToken": token}});
            let answer = agent.client.modern("/mcp", "tools/call", params).await.expect("an answer");
            assert_eq!(answer.headers["content-type"], "text/event-stream");
            let events = answer.events();
            let told: Vec<_> = events.iter().filter(|e| e["method"] == "notifications/progress").collect();
            let progress: Vec<_> = told.iter().map(|e| e["params"]["progress"].as_u64()).collect();
            assert_eq!(progress, [Some(1), Some(3)]);
            assert!(told.iter().all(|e| e["params"]["progressToken"] == token));
            assert_eq!(events.last().map(|e| e["id"].clone()), Some(json!("m-1")));
        }
        let plain = agent.client.modern("/mcp", "tools/call", json!({"name": "s__t"})).await.expect("an answer");
        assert!(plain.events().iter().all(|e| e.get("method").is_none()), "no progress without a token");
        let only_json = [("content-type", "application/json"), ("accept", "application/json")];
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "s__t", "_meta": {"progressToken": 1}}});
        let answer = agent.client.send(Method::POST, "/mcp", &only_json, body.to_string()).await.expect("an answer");
        assert_eq!(answer.headers["content-type"], "application/json");
        let metrics = system.metrics().await;
        let line = r#"rollcall_requests_total{method="tools/call",outcome="allowed",surface="mcp"} 4"#;
        assert!(metrics.contains(line), "each call is on record once, streams too: {metrics}");
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_modern_client_that_goes_away_cancels_and_a_legacy_one_does_not() {
    over_both(async |link| {
        let modern = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
        let legacy = Upstream::start(Speaks::Legacy, &["t"]).await.expect("an upstream");
        for upstream in [&modern, &legacy] {
            upstream.answers(|_| Reply::Hang);
        }
        let tenants = format!(
            "{{acme: {{servers: [{{id: new, url: \"{}\"}}, {{id: old, url: \"{}\", call_timeout: 2s}}], default_policy: {{}}}}}}",
            modern.url(),
            legacy.url()
        );
        let system = setup(&tenants).link(link).start().await;
        let agent = system.agent("acme", "s");
        agent.names().await;
        for (upstream, name) in [(&modern, "new__t"), (&legacy, "old__t")] {
            let before = upstream.cancelled();
            let call = tokio::spawn({
                let agent = agent.clone();
                async move { agent.client.modern("/mcp", "tools/call", json!({"name": name})).await }
            });
            until("the call has arrived", async || !upstream.calls().is_empty()).await;
            call.abort();
            until("the upstream is told", async || upstream.cancelled() > before).await;
        }
        let before = legacy.cancelled();
        let calls = legacy.calls().len();
        let call = tokio::spawn({
            let agent = agent.clone();
            async move { agent.call("old__t", json!({})).await }
        });
        until("the call has arrived", async || legacy.calls().len() > calls).await;
        call.abort();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(legacy.cancelled(), before, "a legacy client that goes away does not cancel");
        until("the deadline ends it", async || legacy.cancelled() > before).await;
        let line = r#"rollcall_requests_total{method="tools/call",outcome="cancelled",surface="mcp"} 3"#;
        until("hang-ups are on record", async || system.metrics().await.contains(line)).await;
        until("what they held is given back", async || {
            let metrics = system.metrics().await;
            metrics.contains("rollcall_calls_in_flight 0") && metrics.contains("rollcall_buffered_bytes 0")
        })
        .await;
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_legacy_client_cancels_by_notification() {
    let upstream = Upstream::start(Speaks::Legacy, &["t"]).await.expect("an upstream");
    upstream.answers(|_| Reply::Hang);
    let tenants = format!("{{acme: {{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}}}", upstream.url());
    let system = setup(&tenants).start().await;
    let agent = system.agent("acme", "s");
    let call = tokio::spawn({
        let agent = agent.clone();
        async move { agent.client.legacy("/mcp", "tools/call", json!({"name": "s__t"})).await }
    });
    until("the call has arrived", async || !upstream.calls().is_empty()).await;
    let stranger = system.agent("acme", "another");
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    stranger.client.post("/mcp", &cancel).await.expect("an answer");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(upstream.cancelled(), 0, "another session's id means nothing");
    agent.client.post("/mcp", &cancel).await.expect("an answer");
    until("the upstream is told", async || upstream.cancelled() == 1).await;
    assert_eq!(call.await.expect("ended").expect("an answer").status, 202);
    system.stop().await;
}

#[tokio::test]
async fn one_server_is_served_under_its_real_names() {
    over_both(async |link| {
        let upstream = Upstream::start(Speaks::Modern, &["zeta", "a.b", "mid"]).await.expect("an upstream");
        let tenants = format!(
            "{{acme: {{servers: [{{id: my_46fb2cad6010, name: My Server, url: \"{}\"}}], default_policy: {{deny: [\"my_server__mid\"]}}}}}}",
            upstream.url()
        );
        let system = setup(&tenants).link(link).start().await;
        let agent = system.agent("acme", "s");
        for path in ["/servers/my_server/mcp", "/servers/my_46fb2cad6010/mcp/", "/servers/My%20Server/mcp", "/t/acme/servers/my_server/mcp"] {
            let names: Vec<Value> = agent.list(path).await.iter().map(|t| t["name"].clone()).collect();
            assert_eq!(names, ["zeta", "a.b"], "the server's order and names: {path}");
            assert_eq!(text_of(&agent.call_at(path, "a.b", json!({})).await), "a.b {}");
            let denied = agent.call_at(path, "mid", json!({})).await;
            assert_eq!(denied["error"]["code"], -32602);
            assert!(text_of(&denied).contains("may not use mid") && text_of(&denied).contains("zeta"), "{denied}");
        }
        let other = agent.client.legacy("/servers/other/mcp", "tools/list", json!({})).await.expect("an answer");
        assert_eq!(other.status, 404);
        let foreign = agent.client.legacy("/t/other/mcp", "tools/list", json!({})).await.expect("an answer");
        assert_eq!(foreign.status, 403, "a token of another tenant");
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn methods_that_are_not_offered_are_answered_as_each_era_has_it() {
    let system = setup("{acme: {default_policy: {}}}").start().await;
    let agent = system.agent("acme", "s");
    for method in ["prompts/list", "ping", "initialize", "resources/read", "nonsense"] {
        let answer = agent.client.modern("/mcp", method, json!({})).await.expect("an answer");
        assert_eq!((answer.status.as_u16(), answer.json()["error"]["code"].as_i64()), (404, Some(-32601)), "{method}");
    }
    let legacy = agent.client.legacy("/mcp", "prompts/list", json!({})).await.expect("an answer");
    assert_eq!((legacy.status.as_u16(), legacy.json()["error"]["code"].as_i64()), (200, Some(-32601)));
    let ping = agent.client.legacy("/mcp", "ping", json!({})).await.expect("an answer").json();
    assert_eq!(ping, json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
    let params =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
    let opened = agent.client.legacy("/mcp", "initialize", params).await.expect("an answer");
    assert_eq!(opened.json()["result"]["protocolVersion"], "2025-06-18");
    assert!(opened.headers.contains_key("mcp-session-id"), "a session, which the client may leave unused");
    let unknown = json!({"protocolVersion": "2099-01-01", "capabilities": {}});
    let opened = agent.client.legacy("/mcp", "initialize", unknown).await.expect("an answer").json();
    assert_eq!(opened["result"]["protocolVersion"], "2025-11-25");
    let discover = agent.client.modern("/mcp", "server/discover", json!({})).await.expect("an answer").json();
    assert_eq!(
        discover["result"]["supportedVersions"],
        json!(["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"])
    );
    assert_eq!(discover["result"]["cacheScope"], "private");
    let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let answer = agent.client.post("/mcp", &note).await.expect("an answer");
    assert_eq!((answer.status.as_u16(), answer.body.len()), (202, 0));
    for method in [Method::GET, Method::DELETE, Method::PUT] {
        let answer = agent.client.send(method.clone(), "/mcp", &[], "").await.expect("an answer");
        assert_eq!(answer.status, 405, "{method}");
        let allowed = if method == Method::PUT { "POST, GET, DELETE" } else { "POST" };
        assert_eq!(answer.headers["allow"], allowed, "{method}");
    }
    system.stop().await;
}

#[tokio::test]
async fn a_very_large_list_has_pages_and_a_cursor_of_another_view_is_refused() {
    let upstream = Upstream::start(Speaks::Modern, &[]).await.expect("an upstream");
    let big = "x".repeat(900_000);
    let tools =
        (0..12).map(|n| json!({"name": format!("t{n:02}"), "description": big, "inputSchema": {"type": "object"}}));
    upstream.set_tools(tools.collect());
    let tenants = format!("{{acme: {{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}}}", upstream.url());
    let system = setup(&tenants).start().await;
    let agent = system.agent("acme", "s");
    let mut cursor = Value::Null;
    let mut names = Vec::new();
    let mut pages = 0;
    loop {
        let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
        let answer = agent.client.legacy("/mcp", "tools/list", params).await.expect("an answer").json();
        let tools = answer["result"]["tools"].as_array().expect("tools").clone();
        names.extend(tools.iter().map(|t| t["name"].as_str().expect("a name").to_owned()));
        pages += 1;
        match answer["result"].get("nextCursor") {
            Some(next) => cursor = next.clone(),
            None => break,
        }
    }
    assert_eq!((pages, names.len()), (2, 13));
    let first = agent.client.legacy("/mcp", "tools/list", json!({})).await.expect("an answer").json();
    let cursor = first["result"]["nextCursor"].clone();
    system.put("tenants/acme/sessions/s/policy", json!({"deny": ["s__t00"]})).await;
    let stale = agent.client.legacy("/mcp", "tools/list", json!({"cursor": cursor})).await.expect("an answer").json();
    assert_eq!(stale["error"]["code"], -32602);
    system.stop().await;
}

/// Only where the tenant asks, and before anything is sent: over MCP, through `tool_call`, and over HTTP.
#[tokio::test]
async fn arguments_of_servers_tools_are_checked_where_the_tenant_asks() {
    over_both(async |link| {
        let upstream = Upstream::start(Speaks::Modern, &[]).await.expect("an upstream");
        let strict = json!({"type": "object", "required": ["id"], "properties": {"id": {"type": "string", "pattern": "^[a-z]+$"}}});
        let tool = |name: &str, schema: &Value| json!({"name": name, "inputSchema": schema});
        let odd = json!({"type": "object", "properties": {"id": {"type": "string", "pattern": "(?=a)b"}}});
        let far = json!({"type": "object", "properties": {"id": {"$ref": "https://h.example/x.json"}}});
        upstream.set_tools(vec![tool("t", &strict), tool("odd", &odd), tool("far", &far)]);
        let server = format!("servers: [{{id: s, url: \"{}\"}}], default_policy: {{bridge_tools: [tool_call]}}", upstream.url());
        let tenants = format!("{{acme: {{{server}, arguments: check}}, lax: {{{server}}}}}");
        let system = setup(&tenants).link(link).start().await;
        let agent = system.agent("acme", "s");
        let problem = "The arguments do not fit s__t, and nothing was called:\n/id: 7 is not of type \"string\"";
        let called = agent.call("s__t", json!({"id": 7})).await;
        assert_eq!((called["result"]["isError"] == true, text_of(&called).as_str()), (true, problem), "{called}");
        let through = agent.call("tool_call", json!({"name": "s__t", "arguments": {"id": 7}})).await;
        assert_eq!((through["result"]["isError"] == true, text_of(&through).as_str()), (true, problem), "{through}");
        let posted = agent.client.post("/tools/s__t", &json!({"id": 7})).await.expect("an answer");
        assert_eq!((posted.status.as_u16(), &posted.json()["message"]), (422, &json!(problem)));
        let empty = agent.text("s__t", json!({})).await;
        assert!(empty.contains("\"id\" is a required property"), "{empty}");
        assert_eq!(upstream.calls().len(), 0, "nothing was sent");
        let line = r#"rollcall_refusals_total{reason="arguments",surface="mcp"} 3"#;
        let metrics = system.metrics().await;
        assert!(metrics.contains(line), "{metrics}");
        // What fits is sent, and a schema that cannot be checked in linear time, or leads elsewhere, checks nothing.
        for (name, arguments) in [("s__t", json!({"id": "abc"})), ("s__odd", json!({"id": "b"})), ("s__far", json!({"id": 1}))] {
            assert_eq!(agent.call(name, arguments).await["result"]["isError"], Value::Null, "{name}");
        }
        let lax = system.agent("lax", "s").call("s__t", json!({"id": 7})).await;
        assert_eq!(lax["result"]["isError"], Value::Null, "{lax}");
        assert_eq!(upstream.calls().len(), 4);
        system.stop().await;
    })
    .await;
}
