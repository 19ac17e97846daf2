//! Legacy sessions: sealed ids, resumption, log levels, batches; and ids that clients use twice.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use rollcall_loadtest::client::Session;
use rollcall_loadtest::upstream::{Conclude, Reply, Speaks, Upstream};
use serde_json::{Value, json};

use crate::harness::{over_both, setup, text_of, until};

fn tenants(upstream: &Upstream) -> String {
    let servers = format!("{{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}", upstream.url());
    format!("{{acme: {servers}, other: {servers}}}")
}

#[tokio::test]
async fn a_session_is_its_owners_alone_and_ends_for_good() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    let system = setup(&tenants(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    let session = agent.client.open("/mcp", "2025-06-18", json!({})).await.expect("a session");
    assert_eq!(session.opened["result"]["protocolVersion"], "2025-06-18");
    assert!(session.id.bytes().all(|b| (0x21..=0x7e).contains(&b)), "visible ASCII: {}", session.id);
    assert_eq!(session.request("tools/list", json!({})).await.expect("an answer").status, 200);

    let list = json!({"jsonrpc": "2.0", "id": "l", "method": "tools/list"}).to_string();
    let altered = format!("{}x", session.id);
    for (client, path, id) in [
        (system.agent("acme", "another").client, "/mcp", session.id.as_str()),
        (system.agent("other", "s").client, "/mcp", session.id.as_str()),
        (agent.client.clone(), "/servers/s/mcp", session.id.as_str()),
        (agent.client.clone(), "/mcp", altered.as_str()),
        (agent.client.clone(), "/mcp", "7d1c2f1e-0000-4000-8000-000000000000"),
    ] {
        let headers = [("content-type", "application/json"), ("mcp-session-id", id)];
        let answer = client.send(Method::POST, path, &headers, list.clone()).await.expect("an answer");
        assert_eq!((answer.status.as_u16(), &answer.json()["id"]), (404, &json!("l")), "{path} {id}");
        assert!(answer.text().contains("initialize again"), "{}", answer.text());
    }
    // A client that does not send it back is served without one.
    assert_eq!(agent.client.legacy("/mcp", "tools/list", json!({})).await.expect("an answer").status, 200);
    assert!(session.end().await.expect("an answer").status.is_success());
    assert_eq!(session.request("tools/list", json!({})).await.expect("an answer").status, 404);
    assert_eq!(session.end().await.expect("an answer").status, 404);
    let metrics = system.metrics().await;
    let counted: Vec<&str> = metrics.lines().filter(|line| line.contains(r#"method="DELETE""#)).collect();
    assert_eq!(counted.len(), 2, "the end and its refusal are on record: {counted:?}");
    system.stop().await;
}

#[tokio::test]
async fn a_client_that_uses_one_id_for_everything_gets_the_right_answers() {
    over_both(async |link| {
        let upstream = Upstream::start(Speaks::Legacy, &["t"]).await.expect("an upstream");
        upstream.answers(|params| {
            let n = params["arguments"]["n"].as_u64().unwrap_or(0);
            let result = json!({"content": [{"type": "text", "text": n.to_string()}]}).to_string();
            Reply::After(Duration::from_millis(5 * (40 - n)), Box::new(Reply::Result(result)))
        });
        let system = setup(&tenants(&upstream)).link(link).start().await;
        let agent = system.agent("acme", "s");
        let session = agent.client.open("/mcp", "2025-11-25", json!({})).await.expect("a session");
        let calls = (0..40).map(|n| session.request("tools/call", json!({"name": "s__t", "arguments": {"n": n}})));
        let answers = futures_util::future::join_all(calls).await;
        for (n, answer) in answers.into_iter().enumerate() {
            let answer = answer.expect("an answer").rpc();
            assert_eq!((&answer["id"], text_of(&answer)), (&json!(1), n.to_string()));
        }
        let upstream_ids: std::collections::BTreeSet<String> = upstream
            .seen()
            .iter()
            .map(rollcall_loadtest::upstream::Seen::json)
            .filter(|message| message["method"] == "tools/call")
            .map(|message| message["id"].to_string())
            .collect();
        assert_eq!(upstream_ids.len(), 40, "ids of ours, each its own");
        system.stop().await;
    })
    .await;
}

fn progress(n: u32, token: &Value) -> String {
    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": n}})
        .to_string()
}

#[tokio::test]
async fn what_a_client_missed_is_told_when_it_comes_back() {
    over_both(async |link| {
        let upstream = Upstream::start(Speaks::Legacy, &["t"]).await.expect("an upstream");
        upstream.answers(|params| {
            let token = &params["_meta"]["progressToken"];
            let result = json!({"content": [{"type": "text", "text": "done"}]}).to_string();
            let events = vec![progress(1, token), progress(2, token)];
            Reply::After(Duration::from_millis(300), Box::new(Reply::Stream(events, result)))
        });
        let system = setup(&tenants(&upstream)).link(link).start().await;
        let agent = system.agent("acme", "s");
        let session = agent.client.open("/mcp", "2025-11-25", json!({})).await.expect("a session");
        let params = json!({"name": "s__t", "_meta": {"progressToken": 7}});
        let mut stream = session.stream(json!("mine"), "tools/call", params).await.expect("a stream");
        assert_eq!(stream.headers["content-type"], "text/event-stream");
        // The first event says how to come back; then the connection breaks.
        assert_eq!(stream.within(Duration::from_millis(50)).await, None);
        let first = stream.last_id().expect("a priming event");
        drop(stream);
        let mut taken_up = session.listen(Some(&first)).await.expect("a stream");
        for n in [1, 2] {
            let told = taken_up.next().await.expect("progress");
            assert_eq!(
                (&told["params"]["progress"], &told["params"]["progressToken"]),
                (&json!(n), &json!(7)),
                "{told}"
            );
        }
        let after_progress = taken_up.last_id().expect("an id");
        let end = taken_up.next().await.expect("the result");
        assert_eq!((&end["id"], text_of(&end)), (&json!("mine"), "done".to_owned()));
        // Once more, from further on: only the end is left to tell.
        let mut again = session.listen(Some(&after_progress)).await.expect("a stream");
        assert_eq!(again.next().await.as_ref(), Some(&end));
        assert_eq!(upstream.calls().len(), 1, "it ran once");

        let stranger = system.agent("acme", "another").client.open("/mcp", "2025-11-25", json!({})).await;
        let refused = stranger.expect("a session").listen(Some(&first)).await.expect("an answer");
        assert_eq!(refused.status, 400);
        let sibling = agent.client.open("/mcp", "2025-11-25", json!({})).await.expect("a session");
        assert_eq!(sibling.listen(Some(&first)).await.expect("an answer").status, 400);
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_servers_stream_that_breaks_off_is_taken_up() {
    let upstream = Upstream::start(Speaks::Legacy, &["t"]).await.expect("an upstream");
    upstream.answers(|_| Reply::Break(json!({"content": [{"type": "text", "text": "in the end"}]}).to_string()));
    let system = setup(&tenants(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    assert_eq!(agent.text("s__t", json!({})).await, "in the end");
    assert_eq!(upstream.calls().len(), 1, "the call was not sent again");
    let came_back = upstream.seen().into_iter().filter(|seen| seen.headers.contains_key("last-event-id"));
    let ids: Vec<_> = came_back.map(|seen| seen.headers["last-event-id"].clone()).collect();
    assert_eq!(ids, ["1"]);
    system.stop().await;
}

#[tokio::test]
async fn a_log_level_is_its_sessions_own() {
    let upstream = Upstream::start(Speaks::Legacy, &["t"]).await.expect("an upstream");
    upstream.is(r#""logging":{}"#, "");
    upstream.answers_to("logging/setLevel", |_| Reply::Result("{}".to_owned()));
    upstream.answers(|_| {
        let log = |level: &str| {
            let params = json!({"level": level, "data": level});
            json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params}).to_string()
        };
        let events = ["debug", "warning", "error"].map(log).to_vec();
        Reply::Stream(events, json!({"content": [{"type": "text", "text": "x"}]}).to_string())
    });
    let system = setup(&tenants(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    let levels = async |level: Option<&str>| {
        let session = agent.client.open("/mcp", "2025-11-25", json!({})).await.expect("a session");
        if let Some(level) = level {
            let set = session.request("logging/setLevel", json!({"level": level})).await.expect("an answer");
            assert_eq!(set.json()["result"], json!({}), "{}", set.text());
        }
        let answer = session.request("tools/call", json!({"name": "s__t"})).await.expect("an answer");
        let told = answer.events().into_iter().filter(|event| event["method"] == "notifications/message");
        told.map(|event| event["params"]["level"].as_str().expect("a level").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(levels(Some("error")).await, ["error"]);
    assert_eq!(levels(Some("warning")).await, ["warning", "error"]);
    assert_eq!(levels(None).await, ["debug", "warning", "error"], "what the server chooses to send");
    let asked: Vec<String> =
        upstream.asked_for("logging/setLevel").iter().map(|params| params["level"].to_string()).collect();
    assert_eq!(asked, [r#""error""#, r#""warning""#], "the server logs from the least that anybody asked for");
    let session = agent.client.open("/mcp", "2025-11-25", json!({})).await.expect("a session");
    let bad = session.request("logging/setLevel", json!({"level": "loud"})).await.expect("an answer");
    assert_eq!(bad.json()["error"]["code"], -32602);
    system.stop().await;
}

#[tokio::test]
async fn a_batch_of_the_oldest_revision_is_answered_as_one() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    let system = setup(&tenants(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    let batch = json!([
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": "2", "method": "tools/call", "params": {"name": "s__t", "arguments": {}}},
        {"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": {}},
        7,
    ]);
    let send = async |version: Option<&str>, body: String| {
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(version.map(|version| ("mcp-protocol-version", version)));
        agent.client.send(Method::POST, "/mcp", &headers, body).await.expect("an answer")
    };
    for version in [None, Some("2025-03-26")] {
        let answer = send(version, batch.to_string()).await;
        let answers = answer.json();
        assert_eq!((answer.status.as_u16(), answers.as_array().map(Vec::len)), (200, Some(4)), "{answers}");
        assert_eq!(answers[0], json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
        assert_eq!((&answers[1]["id"], text_of(&answers[1])), (&json!("2"), "t {}".to_owned()));
        assert_eq!((&answers[2]["error"]["code"], &answers[3]["error"]["code"]), (&json!(-32600), &json!(-32600)));
    }
    let notes = json!([{"jsonrpc": "2.0", "method": "notifications/initialized"}]).to_string();
    assert_eq!(send(None, notes).await.status, 202);
    for version in ["2025-06-18", "2025-11-25", "2026-07-28"] {
        let answer = send(Some(version), batch.to_string()).await;
        assert_eq!((answer.status.as_u16(), answer.json()["error"]["code"].as_i64()), (400, Some(-32600)), "{version}");
    }
    let many = Value::from(vec![json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}); 65]).to_string();
    assert_eq!(send(None, many).await.json()["error"]["code"], -32600);
    system.stop().await;
}

#[tokio::test]
async fn a_stream_that_a_client_names_first_is_what_it_gets() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    upstream.set_tools(vec![json!({"name": "t", "description": "line\nbreak", "inputSchema": {"type": "object"}})]);
    let system = setup(&tenants(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    for (accept, kind) in [
        ("text/event-stream, application/json", "text/event-stream"),
        ("application/json, text/event-stream", "application/json"),
        ("*/*", "application/json"),
        ("text/event-stream", "text/event-stream"),
    ] {
        let headers = [("content-type", "application/json"), ("accept", accept)];
        let answer = agent.client.send(Method::POST, "/mcp", &headers, list.clone()).await.expect("an answer");
        assert_eq!(answer.headers["content-type"], kind, "{accept}");
        assert_eq!(answer.rpc()["result"]["tools"][1]["description"], "line\nbreak", "{accept}: {}", answer.text());
    }
    system.stop().await;
}

#[tokio::test]
async fn a_legacy_call_runs_on_when_its_client_goes_away_and_a_modern_one_does_not() {
    over_both(async |link| {
        let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
        upstream.answers(|_| {
            let result = json!({"content": [{"type": "text", "text": "x"}]}).to_string();
            Reply::After(Duration::from_millis(400), Box::new(Reply::Result(result)))
        });
        let system = setup(&tenants(&upstream)).link(link).start().await;
        let agent = system.agent("acme", "s");
        let session = agent.client.open("/mcp", "2025-11-25", json!({})).await.expect("a session");
        let stream = session.stream(json!(1), "tools/call", json!({"name": "s__t"})).await.expect("a stream");
        drop(stream);
        let stream = agent.client.modern_stream("/mcp", json!(2), "tools/call", json!({"name": "s__t"}));
        assert!(tokio::time::timeout(Duration::from_millis(100), stream).await.is_err(), "it waits");
        until("the modern one is cancelled", async || upstream.cancelled() == 1).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!((upstream.calls().len(), upstream.cancelled()), (2, 1), "the legacy one ran on");
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn any_gateway_node_serves_any_request_of_a_session() {
    over_both(async |link| {
        let upstream = Upstream::start(Speaks::Legacy, &["ask"]).await.expect("an upstream");
        upstream.answers(|_| {
            let conclude = Conclude(Arc::new(|answers: &[Value]| {
                json!({"content": [{"type": "text", "text": answers[0]["result"].to_string()}]}).to_string()
            }));
            let question = json!({"message": "m", "requestedSchema": {"type": "object", "properties": {}}}).to_string();
            Reply::Ask(vec![("elicitation/create", question)], conclude)
        });
        let system = setup(&tenants(&upstream)).link(link).start().await;
        let here = system.agent("acme", "s");
        let there = system.agent_elsewhere("acme", "s").await;
        let opened = here.client.open("/mcp", "2025-11-25", json!({"elicitation": {}})).await.expect("a session");
        let elsewhere = Session {
            client: there.client.clone(),
            path: "/mcp".to_owned(),
            id: opened.id.clone(),
            opened: Value::Null,
        };

        // Asked here, answered there; the rest is taken up there too.
        let mut stream = opened.stream(json!("x"), "tools/call", json!({"name": "s__ask"})).await.expect("a stream");
        let question = stream.next().await.expect("a question");
        let place = stream.last_id().expect("an id");
        drop(stream);
        assert_eq!(elsewhere.answer(&question, json!({"action": "accept"})).await.expect("an answer").status, 202);
        let mut taken_up = elsewhere.listen(Some(&place)).await.expect("a stream");
        let end = taken_up.next().await.expect("the result");
        assert_eq!((&end["id"], text_of(&end)), (&json!("x"), r#"{"action":"accept"}"#.to_owned()));

        // A modern call that waits goes on wherever its answer arrives, once.
        let params =
            json!({"name": "s__ask", "_meta": {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}});
        let asked = here.client.modern("/mcp", "tools/call", params.clone()).await.expect("an answer").json();
        let key = asked["result"]["inputRequests"].as_object().and_then(|r| r.keys().next()).expect("a key").clone();
        let mut retry = params;
        retry["requestState"] = asked["result"]["requestState"].clone();
        retry["inputResponses"] = json!({key: {"action": "decline"}});
        let done = there.client.modern("/mcp", "tools/call", retry.clone()).await.expect("an answer").rpc();
        assert_eq!(text_of(&done), r#"{"action":"decline"}"#);
        let twice = here.client.modern("/mcp", "tools/call", retry).await.expect("an answer").rpc();
        assert_eq!(twice["result"]["isError"], true, "{twice}");
        assert_eq!(upstream.calls().len(), 2);

        // Cancelled there; ended there for here.
        let mut stream = opened.stream(json!("y"), "tools/call", json!({"name": "s__ask"})).await.expect("a stream");
        assert!(stream.next().await.is_some(), "a question");
        let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "y"}});
        elsewhere.post(&note).await.expect("an answer");
        assert_eq!(stream.next().await, None);
        assert!(elsewhere.end().await.expect("an answer").status.is_success());
        until("the end is known here", async || {
            opened.request("tools/list", json!({})).await.expect("an answer").status == 404
        })
        .await;
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn two_clients_of_one_agent_cancel_their_own_calls_alone() {
    let upstream = Upstream::start(Speaks::Legacy, &["t"]).await.expect("an upstream");
    upstream.answers(|params| match params["arguments"]["hang"].as_bool() {
        Some(true) => Reply::Hang,
        _ => {
            let result = json!({"content": [{"type": "text", "text": "done"}]}).to_string();
            Reply::After(Duration::from_millis(500), Box::new(Reply::Result(result)))
        }
    });
    let system = setup(&tenants(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    let one = agent.client.open("/mcp", "2025-11-25", json!({})).await.expect("a session");
    let two = agent.client.open("/mcp", "2025-11-25", json!({})).await.expect("a session");
    let call = |hang: bool| json!({"name": "s__t", "arguments": {"hang": hang}});
    let mut first = one.stream(json!(1), "tools/call", call(true)).await.expect("a stream");
    let mut second = two.stream(json!(1), "tools/call", call(false)).await.expect("a stream");
    let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    one.post(&note).await.expect("an answer");
    assert_eq!(first.next().await, None, "cancelled");
    assert_eq!(second.next().await.map(|end| text_of(&end)).as_deref(), Some("done"), "the other one's goes on");
    system.stop().await;
}

#[tokio::test]
async fn progress_is_told_only_to_who_asked_for_it() {
    for speaks in [Speaks::Modern, Speaks::Legacy] {
        let upstream = Upstream::start(speaks, &["t"]).await.expect("an upstream");
        upstream.answers(|params| {
            let own = params["_meta"]["progressToken"].clone();
            let events = vec![progress(1, &json!("invented")), progress(1, &own), progress(2, &json!(1))];
            Reply::Stream(events, json!({"content": [{"type": "text", "text": own.to_string()}]}).to_string())
        });
        let system = setup(&tenants(&upstream)).start().await;
        let agent = system.agent("acme", "s");
        let told = async |meta: Value| {
            let params = json!({"name": "s__t", "_meta": meta});
            let answer = agent.client.modern("/mcp", "tools/call", params).await.expect("an answer");
            (answer.events().len().saturating_sub(1), text_of(&answer.rpc()), answer)
        };
        let (events, token, _) = told(json!({})).await;
        assert_eq!((events, token.as_str()), (0, "null"), "nobody asked: no token, no progress");
        let (events, token, answer) = told(json!({"progressToken": 0})).await;
        assert_eq!(events, 1, "{}", answer.text());
        assert_eq!(answer.events()[0]["params"], json!({"progressToken": 0, "progress": 1}), "under the caller's own");
        assert!(token.len() > 20, "upstream it is one of ours: {token}");
        system.stop().await;
    }
}
