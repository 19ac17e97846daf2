//! Standing streams: changes of lists and updates of resources, for callers and servers of either era.

use std::time::Duration;

use rollcall_loadtest::upstream::{Reply, Speaks, Upstream, tool};
use serde_json::{Value, json};

use crate::harness::{over_both, setup, until};

const SOON: Duration = Duration::from_millis(300);

async fn server(speaks: Speaks) -> Upstream {
    let upstream = Upstream::start(speaks, &["t"]).await.expect("an upstream");
    upstream.is(r#""resources":{"subscribe":true,"listChanged":true},"prompts":{"listChanged":true}"#, "");
    upstream.answers_to("prompts/list", |_| Reply::Result(r#"{"prompts":[{"name":"p"}]}"#.to_owned()));
    let resources = r#"{"resources":[{"uri":"file:///a","name":"a"},{"uri":"file:///b","name":"b"}]}"#;
    upstream.answers_to("resources/list", move |_| Reply::Result(resources.to_owned()));
    upstream.answers_to("resources/templates/list", |_| Reply::Result(r#"{"resourceTemplates":[]}"#.to_owned()));
    for method in ["resources/subscribe", "resources/unsubscribe"] {
        upstream.answers_to(method, |_| Reply::Result("{}".to_owned()));
    }
    upstream
}

fn tenants(upstream: &Upstream) -> String {
    format!("{{acme: {{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}}}", upstream.url())
}

fn all_lists() -> Value {
    json!({"notifications": {"toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true}})
}

#[tokio::test]
async fn a_change_is_told_once_it_can_be_seen_and_only_to_whom_it_concerns() {
    over_both(async |link| {
        let upstream = server(Speaks::Modern).await;
        let system = setup(&tenants(&upstream)).link(link).start().await;
        let agent = system.agent("acme", "s");
        assert_eq!(agent.names().await, ["get_api_spec", "s__t"]);
        system.put("tenants/acme/sessions/narrow/policy", json!({"allow": ["s__t", "prompt:*"]})).await;
        let narrow = system.agent("acme", "narrow");
        until("the server is listened to", async || upstream.listeners() > 0).await;

        let listen = async |agent: &crate::harness::Agent| {
            let asked =
                agent.client.modern_stream("/mcp", json!("listen-1"), "subscriptions/listen", all_lists()).await;
            let mut stream = asked.expect("a stream");
            let first = stream.next().await.expect("an acknowledgement");
            assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
            (stream, first)
        };
        let (mut wide, acknowledged) = listen(&agent).await;
        assert_eq!(acknowledged["params"]["notifications"], all_lists()["notifications"]);
        let (mut other, acknowledged) = listen(&narrow).await;
        let honoured = json!({"toolsListChanged": true, "promptsListChanged": true});
        assert_eq!(acknowledged["params"]["notifications"], honoured, "it may use no resource");
        let session = agent.client.open("/mcp", "2025-11-25", json!({})).await.expect("a session");
        let mut legacy = session.listen(None).await.expect("a stream");

        upstream.set_tools(vec![tool("t"), tool("u")]);
        let told = wide.next().await.expect("a notification");
        assert_eq!(told["method"], "notifications/tools/list_changed");
        let changes = json!({"added": ["s__u"], "removed": [], "changed": []});
        let meta = json!({"io.modelcontextprotocol/subscriptionId": "listen-1", "io.rollcall/changes": changes});
        assert_eq!(told["params"]["_meta"], meta);
        assert_eq!(agent.names().await, ["get_api_spec", "s__t", "s__u"], "it can be seen when it is told");
        let told = legacy.next().await.expect("a notification");
        let params = json!({"_meta": {"io.rollcall/changes": changes}});
        assert_eq!(told, json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": params}));
        assert_eq!(other.within(SOON).await, None, "its list is the same as before");

        // The server says that something changed, and nothing did.
        upstream.tell("notifications/prompts/list_changed", "");
        assert_eq!(wide.within(Duration::from_millis(1500)).await, None);

        // A policy that takes a tool away is told like any change; one that takes everything ends the stream.
        system.put("tenants/acme/sessions/s/policy", json!({"allow": ["s__t"]})).await;
        let told: Vec<Value> = vec![
            wide.next().await.expect("a change"),
            wide.next().await.expect("a change"),
            wide.next().await.expect("a change"),
        ];
        let mut methods: Vec<&str> = told.iter().filter_map(|told| told["method"].as_str()).collect();
        methods.sort_unstable();
        assert_eq!(
            methods,
            [
                "notifications/prompts/list_changed",
                "notifications/resources/list_changed",
                "notifications/tools/list_changed",
            ]
        );
        system.put("tenants/acme/sessions/s/revoked", Value::Null).await;
        let last = wide.next().await.expect("the end");
        assert_eq!((&last["id"], &last["result"]["resultType"]), (&json!("listen-1"), &json!("complete")), "{last}");
        assert_eq!(wide.next().await, None);
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn updates_reach_who_subscribed_in_any_era_and_nobody_else() {
    for speaks in [Speaks::Modern, Speaks::Legacy] {
        over_both(async |link| {
            let upstream = server(speaks).await;
            let system = setup(&tenants(&upstream)).link(link).start().await;
            let agent = system.agent("acme", "s");
            agent.names().await;
            until("the server is listened to", async || upstream.listeners() > 0).await;
            let before = upstream.listeners();
            let (a, b) = ("rollcall://s/file%3A%2F%2F%2Fa", "rollcall://s/file%3A%2F%2F%2Fb");
            let filter = json!({"notifications": {"resourceSubscriptions": [a, "rollcall://s/nothing"]}});
            let asked = agent.client.modern_stream("/mcp", json!(7), "subscriptions/listen", filter).await;
            let mut modern = asked.expect("a stream");
            let first = modern.next().await.expect("an acknowledgement");
            assert_eq!(first["params"]["notifications"], json!({"resourceSubscriptions": [a]}));

            let session = agent.client.open("/servers/s/mcp", "2025-11-25", json!({})).await.expect("a session");
            let mut legacy = session.listen(None).await.expect("a stream");
            for uri in ["file:///a", "file:///b"] {
                let answer = session.request("resources/subscribe", json!({"uri": uri})).await.expect("an answer");
                assert_eq!(answer.json()["result"], json!({}), "{}", answer.text());
            }
            let unknown = session.request("resources/subscribe", json!({"uri": "file:///c"})).await.expect("an answer");
            assert_eq!(unknown.json()["error"]["code"], -32002);
            let heard = async || match speaks {
                // One upstream listener for each resource, however many want it.
                Speaks::Modern => upstream.listeners() == before + 2,
                Speaks::Legacy => upstream.asked_for("resources/subscribe").len() == 2,
            };
            until("both are subscribed upstream", heard).await;

            upstream.tell("notifications/resources/updated", r#""uri":"file:///a""#);
            let told = modern.next().await.expect("an update");
            assert_eq!(told["params"]["uri"], a, "under the name that it subscribed to: {told}");
            assert_eq!(told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 7);
            assert_eq!(legacy.next().await.expect("an update")["params"], json!({"uri": "file:///a"}));
            upstream.tell("notifications/resources/updated", r#""uri":"file:///b""#);
            assert_eq!(legacy.next().await.expect("an update")["params"], json!({"uri": "file:///b"}));
            assert_eq!(modern.within(SOON).await, None, "it asked for {a}, not {b}");

            session.request("resources/unsubscribe", json!({"uri": "file:///b"})).await.expect("an answer");
            let ended = async || match speaks {
                Speaks::Modern => upstream.listeners() == before + 1,
                Speaks::Legacy => upstream.asked_for("resources/unsubscribe").len() == 1,
            };
            until("the last who listened ends the subscription", ended).await;
            // What may be read no more is told of no more.
            system.put("tenants/acme/sessions/s/policy", json!({"deny": ["resource:server:s/file:///a"]})).await;
            assert_eq!(
                legacy.within(SOON).await.map(|told| told["method"].clone()),
                Some(json!("notifications/resources/list_changed"))
            );
            upstream.tell("notifications/resources/updated", r#""uri":"file:///a""#);
            assert_eq!((modern.within(SOON).await, legacy.within(SOON).await), (None, None));
            // The end of the session ends its stream.
            assert!(session.end().await.expect("an answer").status.is_success());
            assert_eq!(legacy.next().await, None);
            system.stop().await;
        })
        .await;
    }
}

#[tokio::test]
async fn what_changed_while_nobody_listened_is_found_when_the_stream_is_back() {
    for speaks in [Speaks::Modern, Speaks::Legacy] {
        let upstream = server(speaks).await;
        let system = setup(&tenants(&upstream)).start().await;
        let agent = system.agent("acme", "s");
        assert_eq!(agent.names().await, ["get_api_spec", "s__t"]);
        until("the server is listened to", async || upstream.listeners() > 0).await;
        let filter = json!({"notifications": {"toolsListChanged": true, "resourceSubscriptions": ["rollcall://s/file%3A%2F%2F%2Fa"]}});
        let asked = agent.client.modern_stream("/mcp", json!(1), "subscriptions/listen", filter).await;
        let mut stream = asked.expect("a stream");
        assert!(stream.next().await.is_some(), "an acknowledgement");
        let subscribed = async || match speaks {
            Speaks::Modern => upstream.listeners() == 2,
            Speaks::Legacy => upstream.asked_for("resources/subscribe").len() == 1,
        };
        until("it is subscribed upstream", subscribed).await;
        upstream.set_tools_silently(vec![tool("t"), tool("u")]);
        upstream.ends_streams();
        let mut methods = std::collections::BTreeSet::new();
        let wanted = if speaks == Speaks::Modern { 2 } else { 1 };
        while methods.len() < wanted {
            let told = stream.next().await.expect("a notification");
            methods.insert(told["method"].as_str().expect("a method").to_owned());
        }
        assert!(methods.contains("notifications/tools/list_changed"), "{methods:?}");
        assert_eq!(agent.names().await, ["get_api_spec", "s__t", "s__u"]);
        system.stop().await;
    }
}

#[tokio::test]
async fn a_task_is_its_owners_alone() {
    let upstream = Upstream::start(Speaks::Modern, &["t", "u"]).await.expect("an upstream");
    upstream.is(r#""extensions":{"io.modelcontextprotocol/tasks":{}}"#, "");
    let task = r#""taskId":"inner","status":"working","ttlMs":null"#;
    upstream.answers(move |_| Reply::Result(format!(r#"{{"resultType":"task",{task}}}"#)));
    upstream.answers_to("tasks/get", move |_| Reply::Result(format!(r#"{{"resultType":"complete",{task}}}"#)));
    let system = setup(&tenants(&upstream)).start().await;
    let declares = |params: Value| {
        let mut params = params;
        params["_meta"] = json!({"io.modelcontextprotocol/clientCapabilities":
            {"extensions": {"io.modelcontextprotocol/tasks": {}}}});
        params
    };
    let agent = system.agent("acme", "s");
    let modern = async |agent: &crate::harness::Agent, method: &str, params: Value| {
        agent.client.modern("/mcp", method, params).await.expect("an answer")
    };
    let made = modern(&agent, "tools/call", declares(json!({"name": "s__t"}))).await.json();
    let handle = made["result"]["taskId"].as_str().expect("a handle").to_owned();
    assert!(!handle.contains("inner"), "{made}");
    let got = modern(&agent, "tasks/get", declares(json!({"taskId": handle}))).await.json();
    assert_eq!((&got["result"]["taskId"], &got["result"]["status"]), (&json!(handle), &json!("working")), "{got}");
    let asked = upstream.asked_for("tasks/get");
    assert_eq!(asked[0]["taskId"], "inner", "the server's own id");
    for (who, taken) in
        [(system.agent("acme", "another"), handle.as_str()), (agent.clone(), "inner"), (agent.clone(), "x")]
    {
        let refused = modern(&who, "tasks/get", declares(json!({"taskId": taken}))).await.json();
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    let undeclared = modern(&agent, "tasks/get", json!({"taskId": handle})).await;
    assert_eq!((undeclared.status.as_u16(), undeclared.json()["error"]["code"].as_i64()), (400, Some(-32021)));
    // What the session may use no more, it may ask about no more.
    system.put("tenants/acme/sessions/s/policy", json!({"allow": ["s__u"]})).await;
    let refused = modern(&agent, "tasks/get", declares(json!({"taskId": handle}))).await;
    assert_eq!(refused.json()["error"]["code"], -32602, "{}", refused.text());
    assert_eq!(upstream.asked_for("tasks/get").len(), 1, "none of that reached the server");
    system.stop().await;
}

#[tokio::test]
async fn a_standing_stream_begins_at_once_and_is_never_silent_for_long() {
    let upstream = server(Speaks::Modern).await;
    let system = setup(&tenants(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    let session = agent.client.open("/mcp/", "2025-11-25", json!({})).await.expect("a session");
    let mut legacy = session.listen(None).await.expect("a stream");
    let filter = json!({"notifications": {"toolsListChanged": true}});
    let asked = agent.client.modern_stream("/mcp/", json!(1), "subscriptions/listen", filter).await;
    let mut modern = asked.expect("a stream");
    for stream in [&mut legacy, &mut modern] {
        assert_eq!(stream.status, 200);
        assert_eq!(stream.headers["content-type"], "text/event-stream");
        assert_eq!(stream.headers["x-accel-buffering"], "no");
        let cache = stream.headers["cache-control"].to_str().expect("text");
        assert!(cache.contains("no-transform") && cache.contains("no-store"), "{cache}");
        let first = tokio::time::timeout(Duration::from_secs(5), stream.chunk()).await;
        assert!(first.expect("the first byte comes at once").is_some());
    }
    let silence = async |stream: &mut rollcall_loadtest::client::Stream| {
        let comment = tokio::time::timeout(Duration::from_secs(24), stream.chunk()).await;
        comment.expect("a comment within 25 s").expect("the stream goes on")
    };
    let (legacy, modern) = tokio::join!(silence(&mut legacy), silence(&mut modern));
    assert!(legacy.starts_with(b":") && modern.starts_with(b":"), "comments, which no client takes for a message");
    system.stop().await;
}
