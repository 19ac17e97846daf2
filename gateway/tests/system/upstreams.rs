//! Upstreams that page, change, vanish, come back, lie and hang.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rollcall_loadtest::upstream::{Reply, Speaks, Upstream, tool};
use serde_json::{Value, json};

use crate::harness::{over_both, setup, text_of, until};

fn one(upstream: &Upstream) -> String {
    format!("{{acme: {{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}}}", upstream.url())
}

#[tokio::test]
async fn all_pages_are_listed() {
    for speaks in [Speaks::Modern, Speaks::Legacy] {
        let names: Vec<String> = (0..54).map(|n| format!("t{n:02}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let upstream = Upstream::start(speaks, &names).await.expect("an upstream");
        upstream.pages_of(25);
        let system = setup(&one(&upstream)).start().await;
        assert_eq!(system.agent("acme", "s").names().await.len(), 55);
        system.stop().await;
    }
}

#[tokio::test]
async fn a_cursor_that_comes_twice_is_a_failed_listing_not_an_endless_one() {
    let upstream = Upstream::start(Speaks::Modern, &["a", "b"]).await.expect("an upstream");
    upstream.loops();
    let system = setup(&one(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    let answer = agent.client.legacy("/mcp", "tools/list", json!({})).await.expect("an answer").json();
    assert_eq!(answer["result"]["tools"], json!([]));
    assert_eq!(
        answer["result"]["_meta"]["io.rollcall/unavailable"]["s"], "bad_answer",
        "not an empty catalog, but none yet"
    );
    let lists = upstream.seen().iter().filter(|s| s.body.contains("tools/list")).count();
    assert!(lists < 20, "{lists} pages asked for");
    system.stop().await;
}

#[tokio::test]
async fn a_changed_list_is_seen_whether_it_is_announced_or_only_aged() {
    over_both(async |link| {
        for speaks in [Speaks::Modern, Speaks::Legacy] {
            let upstream = Upstream::start(speaks, &["a"]).await.expect("an upstream");
            let system = setup(&one(&upstream)).link(link).start().await;
            let agent = system.agent("acme", "s");
            assert_eq!(agent.names().await, ["get_api_spec", "s__a"]);
            until("the worker listens", async || upstream.listeners() > 0).await;
            upstream.set_tools(vec![tool("a"), tool("b")]);
            until("the new tool is listed", async || agent.names().await.contains(&"s__b".to_owned())).await;
            system.stop().await;
        }
        let upstream = Upstream::start(Speaks::Modern, &["a"]).await.expect("an upstream");
        let tenants = format!(
            "{{acme: {{servers: [{{id: s, url: \"{}\", catalog_age: 1s}}], default_policy: {{}}}}}}",
            upstream.url()
        );
        let system = setup(&tenants).link(link).start().await;
        let agent = system.agent("acme", "s");
        agent.names().await;
        upstream.set_tools_silently(vec![tool("a"), tool("c")]);
        until("use after its age lists anew", async || {
            agent.call("s__a", json!({})).await;
            agent.names().await.contains(&"s__c".to_owned())
        })
        .await;
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn one_bad_server_spoils_nothing_and_is_named() {
    over_both(async |link| {
        let good = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
        let locked = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
        locked.breaks(Some(Reply::Raw(401, "text/plain", "who are you".into())));
        let html = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
        html.breaks(Some(Reply::Raw(200, "text/html", "<html>hello</html>".into())));
        let tenants = format!(
            "{{acme: {{servers: [{{id: good, url: \"{}\"}}, {{id: locked, url: \"{}\"}}, {{id: html, url: \"{}\"}}, \
             {{id: dead, url: \"http://127.0.0.1:1/mcp\"}}, {{id: nocommand, command: [/no/such/program]}}, \
             {{id: nocredential, url: \"{}\", headers: {{X: \"${{NO_SUCH_VARIABLE}}\"}}}}], default_policy: {{}}}}}}",
            good.url(),
            locked.url(),
            html.url(),
            good.url()
        );
        let system = setup(&tenants).link(link).start().await;
        let agent = system.agent("acme", "s");
        let answer = agent.client.legacy("/mcp", "tools/list", json!({})).await.expect("an answer").json();
        let names: Vec<&Value> =
            answer["result"]["tools"].as_array().expect("tools").iter().map(|t| &t["name"]).collect();
        assert_eq!(names, ["get_api_spec", "good__t"]);
        let unavailable = &answer["result"]["_meta"]["io.rollcall/unavailable"];
        let expected = json!({
            "dead": "unreachable", "html": "bad_answer", "locked": "upstream_auth_required",
            "nocommand": "start_failed", "nocredential": "credential_missing",
        });
        assert_eq!(*unavailable, expected);
        assert_eq!(agent.text("good__t", json!({})).await, "t {}");
        let refused = agent.call("dead__anything", json!({})).await;
        let facts = &refused["result"]["structuredContent"];
        assert_eq!(
            (&refused["result"]["isError"], &facts["unknown"]),
            (&json!(true), &json!([])),
            "unavailable is not unknown"
        );
        assert_eq!(facts["unavailable"][0]["reason"], "unreachable");
        assert!(text_of(&refused).contains("Other names will not help"), "{refused}");
        let metrics = system.metrics().await;
        for (server, reason) in
            [("dead", "unreachable"), ("locked", "upstream_auth_required"), ("nocommand", "start_failed")]
        {
            let line = format!(r#"rollcall_upstream_failures_total{{reason="{reason}",server="{server}"}}"#);
            assert!(metrics.contains(&line), "{line} in {metrics}");
        }
        // What is mended is found again without a restart.
        locked.breaks(None);
        until("the mended server is listed", async || agent.names().await.contains(&"locked__t".to_owned())).await;
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn during_an_outage_the_list_stays_and_calls_say_what_happened() {
    let upstream = Upstream::start(Speaks::Legacy, &["t"]).await.expect("an upstream");
    let address = upstream.address;
    let system = setup(&one(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    let list = async || agent.client.legacy("/mcp", "tools/list", json!({})).await.expect("an answer").text();
    assert_eq!(agent.text("s__t", json!({})).await, "t {}");
    let before = list().await;
    drop(upstream);
    // A connection that was open may break under the first call; after it there is none.
    agent.call("s__t", json!({})).await;
    let answer = agent.call("s__t", json!({})).await;
    assert_eq!(answer["result"]["isError"], true, "the model sees it: {answer}");
    let text = text_of(&answer);
    assert!(
        text.contains("its server s is not available (unreachable). The call did not run. Other names will not help."),
        "{text}"
    );
    assert_eq!(list().await, before, "a flapping server changes no list");
    let spec = agent.call("get_api_spec", json!({"tool_names": ["s__t"]})).await;
    assert!(spec.get("error").is_none(), "the last good definition is described");
    let began = Instant::now();
    agent.call("s__t", json!({})).await;
    assert!(began.elapsed() < Duration::from_secs(2), "a dead server costs its callers little");
    let _back = Upstream::start_at(address, Speaks::Legacy, &["t"]).await.expect("an upstream");
    until("the server that came back is used", async || agent.text("s__t", json!({})).await == "t {}").await;
    system.stop().await;
}

#[tokio::test]
async fn a_lost_session_is_opened_anew_once_and_the_call_runs_once() {
    over_both(async |link| {
        let upstream = Upstream::start(Speaks::Legacy, &["t"]).await.expect("an upstream");
        let neighbour = Upstream::start(Speaks::Legacy, &["t"]).await.expect("an upstream");
        let tenants = format!(
            "{{acme: {{servers: [{{id: s, url: \"{}\"}}, {{id: n, url: \"{}\"}}], default_policy: {{}}}}}}",
            upstream.url(),
            neighbour.url()
        );
        let system = setup(&tenants).link(link).start().await;
        let agent = system.agent("acme", "s");
        assert_eq!(agent.text("s__t", json!({})).await, "t {}");
        assert_eq!(agent.text("n__t", json!({})).await, "t {}");
        upstream.forget_sessions();
        let calls = (0..10).map(|n| {
            let agent = agent.clone();
            async move { agent.text("s__t", json!({"n": n})).await }
        });
        for (n, text) in futures_util::future::join_all(calls).await.iter().enumerate() {
            assert_eq!(*text, format!(r#"t {{"n":{n}}}"#));
        }
        assert_eq!(upstream.sessions(), (2, 1), "one re-initialization for all that were waiting");
        assert_eq!(agent.text("n__t", json!({})).await, "t {}");
        assert_eq!(neighbour.sessions(), (1, 1), "the other leg is untouched");
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_call_that_may_have_run_is_never_sent_again() {
    over_both(async |link| {
        for speaks in [Speaks::Modern, Speaks::Legacy] {
            let upstream = Upstream::start(speaks, &["order"]).await.expect("an upstream");
            upstream.answers(|_| Reply::Raw(503, "text/plain", "acted, then failed".into()));
            let system = setup(&one(&upstream)).link(link).start().await;
            let agent = system.agent("acme", "s");
            let answer = agent.call("s__order", json!({})).await;
            assert!(text_of(&answer).contains("The call may have run."), "{answer}");
            assert!(!text_of(&answer).contains("acted"), "upstream text is not ours to pass as advice");
            assert_eq!(upstream.calls().len(), 1);
            system.stop().await;
        }
    })
    .await;
}

#[tokio::test]
async fn answers_that_are_none_are_refused_precisely() {
    over_both(async |link| {
        let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
        let system = setup(&one(&upstream)).link(link).start().await;
        let agent = system.agent("acme", "s");
        agent.names().await;
        let cases = [
            (Reply::Raw(200, "text/html", "<html>".into()), "bad_answer"),
            (Reply::Raw(200, "application/json", "{".into()), "bad_answer"),
            (Reply::Raw(200, "application/json", "[]".into()), "bad_answer"),
            (Reply::Raw(200, "application/json", String::new()), "bad_answer"),
            (Reply::WrongId, "bad_answer"),
            (Reply::Result("null".into()), "bad_answer"),
            (Reply::Result("[1]".into()), "bad_answer"),
            (Reply::Raw(200, "text/event-stream", "data: {\"jsonrpc\":\n\n".into()), "bad_answer"),
            (Reply::Raw(200, "text/event-stream", String::new()), "connection_lost"),
            (Reply::Raw(302, "text/plain", "elsewhere".into()), "bad_answer"),
            (Reply::Raw(401, "text/plain", String::new()), "upstream_auth_required"),
            (Reply::Raw(429, "text/plain", String::new()), "overloaded"),
            (Reply::Raw(200, "application/json", format!("{{\"x\":\"{}\"}}", "y".repeat(17 << 20))), "too_large"),
        ];
        for (reply, reason) in cases {
            let shown = format!("{reply:?}").chars().take(80).collect::<String>();
            let reply = reply.clone();
            upstream.answers(move |_| reply.clone());
            let answer = agent.call("s__t", json!({})).await;
            assert!(text_of(&answer).contains(&format!("({reason})")), "{shown}: {answer}");
        }
        upstream.answers(|_| Reply::Error(r#"{"code":-32050,"message":"mine","data":{"k":[1,null,"é"]}}"#.into()));
        let answer = agent.call("s__t", json!({})).await;
        assert_eq!(answer["error"], json!({"code": -32050, "message": "mine", "data": {"k": [1, null, "é"]}}));
        upstream.answers(|_| Reply::Result(r#"{"content":[{"type":"text","text":"x"}],"isError":true}"#.into()));
        assert_eq!(agent.call("s__t", json!({})).await["result"]["isError"], true, "the tool's own error passes");
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_hung_server_is_cut_at_its_deadline_and_hurts_nobody_else() {
    over_both(async |link| {
        let hung = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
        let good = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
        hung.answers(|_| Reply::Hang);
        let tenants = format!(
            "{{acme: {{servers: [{{id: hung, url: \"{}\", call_timeout: 500ms}}, {{id: good, url: \"{}\"}}], default_policy: {{}}}}}}",
            hung.url(),
            good.url()
        );
        let system = setup(&tenants).link(link).start().await;
        let agent = system.agent("acme", "s");
        agent.names().await;
        let waiting = tokio::spawn({
            let agent = agent.clone();
            async move {
                let began = Instant::now();
                (agent.call("hung__t", json!({})).await, began.elapsed())
            }
        });
        for _ in 0..5 {
            assert_eq!(agent.text("good__t", json!({})).await, "t {}");
        }
        let (answer, took) = waiting.await.expect("ended");
        assert!(text_of(&answer).contains("(timed_out). The call may have run."), "{answer}");
        assert!(took >= Duration::from_millis(450) && took < Duration::from_secs(5), "{took:?}");
        until("the upstream is freed", async || hung.cancelled() == 1).await;
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn ids_of_ours_are_no_ids_of_a_caller_and_no_two_are_equal() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    let system = setup(&one(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    for _ in 0..5 {
        agent.call("s__t", json!({})).await;
    }
    let ids: Vec<String> = upstream.seen().iter().map(|s| s.json()["id"].to_string()).collect();
    let distinct: std::collections::BTreeSet<&String> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len());
    assert!(ids.iter().all(|id| id.len() > 32), "unguessable: {ids:?}");
    system.stop().await;
}

#[tokio::test]
async fn every_member_of_a_definition_is_relayed() {
    let full = json!({
        "name": "full", "title": "T", "description": "d", "icons": [{"src": "https://e/x.png"}],
        "inputSchema": {"type": "object", "$schema": "https://json-schema.org/draft/2020-12/schema",
            "definitions": {"A": {"type": ["number", "null"]}}, "properties": {"a": {"$ref": "#/definitions/A"}}},
        "outputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true, "x": 1},
        "execution": {"taskSupport": "optional"}, "_meta": {"com.example/y": [1]}, "vendor": {"z": 9007199254740993u64},
    });
    let upstream = Upstream::start(Speaks::Modern, &[]).await.expect("an upstream");
    upstream.set_tools(vec![full.clone(), json!({"name": "odd", "inputSchema": {"type": "object", "properties": 7}})]);
    let system = setup(&one(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    let listed = agent.list("/mcp").await;
    let mut expected = full.clone();
    expected["name"] = "s__full".into();
    assert!(listed.contains(&expected), "{listed:?}");
    assert!(listed.iter().any(|t| t["name"] == "s__odd"), "a schema that nobody understands is relayed all the same");
    assert_eq!(agent.list("/servers/s/mcp").await[0], full);
    system.stop().await;
}

#[tokio::test]
async fn the_list_is_the_same_bytes_however_often_and_wherever_it_is_asked_for() {
    let upstream = Upstream::start(Speaks::Modern, &["b", "a", "C", "a-b", "a_b"]).await.expect("an upstream");
    let mut all = Vec::new();
    for _ in 0..2 {
        let system = setup(&one(&upstream)).start().await;
        for _ in 0..3 {
            let agent = system.agent("acme", "s");
            let answer = agent.client.legacy("/mcp", "tools/list", json!({})).await.expect("an answer");
            let tag = answer.headers["etag"].to_str().expect("text").trim_matches('"').to_owned();
            assert_eq!(answer.json()["result"]["_meta"]["io.rollcall/view"], tag);
            all.push(answer.text());
        }
        system.stop().await;
        let tools = upstream.seen().len();
        assert!(tools > 0);
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "one view, one list");
    let list: Value = serde_json::from_str(&all[0]).expect("JSON");
    let names: Vec<&str> =
        list["result"]["tools"].as_array().expect("tools").iter().filter_map(|t| t["name"].as_str()).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!(names, sorted);
}

#[tokio::test]
async fn an_error_that_answers_our_request_is_an_answer_whatever_it_speaks_of() {
    let upstream = Upstream::start(Speaks::Legacy, &["browse"]).await.expect("an upstream");
    let system = setup(&one(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    agent.names().await;
    upstream.answers(|_| Reply::ErrorWith(400, r#"{"code":-32000,"message":"the browser session crashed"}"#.into()));
    let answer = agent.call("s__browse", json!({})).await;
    assert_eq!(answer["error"]["message"], "the browser session crashed");
    assert_eq!(upstream.calls().len(), 1, "it ran, and is not run again");
    system.stop().await;
}

#[tokio::test]
async fn a_definition_that_names_itself_twice_is_no_definition() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    upstream.lists(r#"{"tools":[{"name":"good","inputSchema":{"type":"object"}},{"name":"a","inputSchema":{"type":"object"},"name":"neon__run_sql"}]}"#);
    let system = setup(&one(&upstream)).start().await;
    assert_eq!(system.agent("acme", "s").names().await, ["get_api_spec", "s__good"]);
    system.stop().await;
}

#[tokio::test]
async fn a_server_that_refuses_a_revision_it_names_is_asked_again_and_never_initialized() {
    // Once where the connection is opened, and once in the midst of its life.
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    upstream.refuses(1);
    let system = setup(&one(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    assert_eq!(agent.text("s__t", json!({})).await, "t {}");
    upstream.refuses(1);
    assert_eq!(agent.text("s__t", json!({})).await, "t {}");
    // One that goes on so is no legacy server either.
    upstream.refuses(usize::MAX);
    agent.call("s__t", json!({})).await;
    upstream.refuses(0);
    until("it is used again", async || agent.text("s__t", json!({})).await == "t {}").await;
    assert_eq!(upstream.asked_for("initialize"), Vec::<Value>::new());
    system.stop().await;
}

#[tokio::test]
async fn a_server_has_a_stream_to_ask_on_before_the_first_call_of_a_session_of_its_own() {
    let upstream = Arc::new(Upstream::start(Speaks::Legacy, &["t"]).await.expect("an upstream"));
    let own = Arc::downgrade(&upstream);
    upstream.answers(move |_| {
        let listeners = own.upgrade().map_or(0, |upstream| upstream.listeners());
        Reply::Result(json!({"content": [{"type": "text", "text": listeners.to_string()}]}).to_string())
    });
    let servers = format!("[{{id: s, url: \"{}\", isolation: session}}]", upstream.url());
    let system = setup(&format!("{{acme: {{servers: {servers}, default_policy: {{}}}}}}")).start().await;
    system.agent("acme", "a").names().await;
    until("the connection that lists listens", async || upstream.listeners() == 1).await;
    upstream.opens_streams_after(Duration::from_millis(100));
    assert_eq!(system.agent("acme", "a").text("s__t", json!({})).await, "2", "one more at the time of the call");
    // One that never opens it holds the call up for a moment alone.
    upstream.opens_streams_after(Duration::from_secs(3600));
    assert_eq!(system.agent("acme", "b").text("s__t", json!({})).await, "2");
    system.stop().await;
}

#[tokio::test]
async fn a_server_that_changes_its_era_is_found_in_its_new_one() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    let address = upstream.address;
    let system = setup(&one(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    assert_eq!(agent.text("s__t", json!({})).await, "t {}");
    drop(upstream);
    let _legacy = Upstream::start_at(address, Speaks::Legacy, &["t"]).await.expect("an upstream");
    until("it is spoken to in its new era", async || agent.text("s__t", json!({})).await == "t {}").await;
    system.stop().await;
}

#[tokio::test]
async fn a_code_of_ours_with_status_200_is_the_servers_own_answer() {
    for speaks in [Speaks::Modern, Speaks::Legacy] {
        let upstream = Upstream::start(speaks, &["pay"]).await.expect("an upstream");
        let system = setup(&one(&upstream)).start().await;
        let agent = system.agent("acme", "s");
        agent.names().await;
        upstream.answers(|_| Reply::Error(r#"{"code":-32020,"message":"card charged, receipt failed"}"#.into()));
        let answer = agent.call("s__pay", json!({})).await;
        assert_eq!(answer["error"]["message"], "card charged, receipt failed");
        assert_eq!(upstream.calls().len(), 1, "it ran, and is not run again");
        system.stop().await;
    }
}

#[tokio::test]
async fn a_session_that_is_lost_is_found_out_also_where_the_refusal_repeats_our_id() {
    let upstream = Upstream::start(Speaks::Legacy, &["t"]).await.expect("an upstream");
    let system = setup(&one(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    assert_eq!(agent.text("s__t", json!({})).await, "t {}");
    upstream.forget_sessions();
    upstream.repeats_ids();
    assert_eq!(agent.text("s__t", json!({})).await, "t {}");
    assert_eq!(upstream.sessions(), (2, 1));
    system.stop().await;
}
