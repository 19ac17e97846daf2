//! The four bridges: callers and servers of either era, and a server that needs input in the course of a call.

use std::sync::Arc;

use rollcall_loadtest::upstream::{Conclude, Reply, Speaks, Upstream};
use serde_json::{Value, json};

use crate::harness::{Agent, over_both, setup, text_of, until};

const QUESTION: &str =
    r#"{"message":"Which one?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer"}}}}"#;

fn text(text: &str) -> String {
    json!({"content": [{"type": "text", "text": text}]}).to_string()
}

/// A legacy server whose tool asks these things and tells what it was answered.
async fn legacy_server(questions: Vec<(&'static str, String)>) -> Upstream {
    let upstream = Upstream::start(Speaks::Legacy, &["ask"]).await.expect("an upstream");
    upstream.answers(move |_| {
        let conclude = Conclude(Arc::new(|answers: &[Value]| {
            let told: Vec<String> = answers
                .iter()
                .map(|answer| match answer.get("result") {
                    Some(result) => result.to_string(),
                    None => format!("error {}", answer["error"]["code"]),
                })
                .collect();
            text(&told.join(" "))
        }));
        Reply::Ask(questions.clone(), conclude)
    });
    upstream
}

/// A modern server whose tool needs a form filled in, and keeps what it needs for that in its own state.
async fn modern_server() -> Upstream {
    let upstream = Upstream::start(Speaks::Modern, &["ask"]).await.expect("an upstream");
    upstream.answers(|params| {
        if params["requestState"] == "of the server" {
            return Reply::Result(text(&params["inputResponses"]["q"].to_string()));
        }
        let requests = format!(r#"{{"q":{{"method":"elicitation/create","params":{QUESTION}}}}}"#);
        Reply::Result(format!(
            r#"{{"resultType":"input_required","inputRequests":{requests},"requestState":"of the server"}}"#
        ))
    });
    upstream
}

fn tenants(upstream: &Upstream) -> String {
    format!(
        "{{acme: {{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}, other: {{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}}}",
        upstream.url(),
        upstream.url()
    )
}

fn asking(capabilities: Value) -> Value {
    json!({"name": "s__ask", "arguments": {"a": 1},
        "_meta": {"io.modelcontextprotocol/clientCapabilities": capabilities}})
}

async fn modern(agent: &Agent, params: Value) -> Value {
    agent.client.modern("/mcp", "tools/call", params).await.expect("an answer").rpc()
}

fn with(mut params: Value, more: Value) -> Value {
    let (Some(params_map), Some(more)) = (params.as_object_mut(), more.as_object()) else { panic!("objects") };
    params_map.extend(more.clone());
    params
}

#[tokio::test]
async fn a_modern_caller_answers_a_legacy_server_and_the_call_goes_on() {
    over_both(async |link| {
        let upstream = legacy_server(vec![("elicitation/create", QUESTION.to_owned())]).await;
        let system = setup(&tenants(&upstream)).link(link).start().await;
        let agent = system.agent("acme", "s");
        let params = asking(json!({"elicitation": {}}));
        let asked = modern(&agent, params.clone()).await;
        let result = &asked["result"];
        assert_eq!(result["resultType"], "input_required", "{asked}");
        let requests = result["inputRequests"].as_object().expect("requests");
        let (key, request) = requests.iter().next().expect("one");
        assert_eq!((requests.len(), &request["method"]), (1, &json!("elicitation/create")));
        let question: Value = serde_json::from_str(QUESTION).expect("JSON");
        assert_eq!(request["params"], with(question, json!({"mode": "form"})), "as the server asked it");
        let state = result["requestState"].as_str().expect("a state").to_owned();

        // What is missing is asked for again, and what nobody asked for is passed over.
        let retry = |state: &str, responses: Value| {
            with(params.clone(), json!({"requestState": state, "inputResponses": responses}))
        };
        let again = modern(&agent, retry(&state, json!({"nonsense": {}}))).await;
        assert_eq!(again["result"]["inputRequests"], result["inputRequests"], "{again}");
        let second = again["result"]["requestState"].as_str().expect("a state").to_owned();
        assert_ne!(second, state);

        // Nobody else can answer, and the first state is used up.
        let answer = json!({key: {"action": "accept", "content": {"n": 7}}});
        for (who, sent) in [
            (system.agent("acme", "another"), second.clone()),
            (system.agent("other", "s"), second.clone()),
            (system.agent("acme", "s"), format!("{second}-TAMPERED")),
        ] {
            let refused = modern(&who, retry(&sent, answer.clone())).await;
            assert_eq!(refused["error"]["code"], -32602, "{refused}");
        }
        let used = modern(&agent, retry(&state, answer.clone())).await;
        assert_eq!(used["result"]["isError"], true, "{used}");
        assert!(text_of(&used).contains("call it again from the start"), "{used}");

        let done = modern(&agent, retry(&second, answer.clone())).await;
        assert_eq!(text_of(&done), r#"{"action":"accept","content":{"n":7}}"#, "{done}");
        assert_eq!(upstream.calls().len(), 1, "one call, whatever was tried");
        let late = modern(&agent, retry(&second, answer)).await;
        assert_eq!(late["result"]["isError"], true, "once is all: {late}");
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_legacy_caller_answers_a_server_of_either_era_on_its_stream() {
    over_both(async |link| {
        for speaks in [Speaks::Legacy, Speaks::Modern] {
            let upstream = match speaks {
                Speaks::Legacy => legacy_server(vec![("elicitation/create", QUESTION.to_owned())]).await,
                Speaks::Modern => modern_server().await,
            };
            let system = setup(&tenants(&upstream)).link(link).start().await;
            let agent = system.agent("acme", "s");
            let session = agent.client.open("/mcp", "2025-11-25", json!({"elicitation": {}})).await.expect("a session");
            let params = json!({"name": "s__ask", "arguments": {}});
            let mut stream = session.stream(json!(1), "tools/call", params).await.expect("a stream");
            let question = stream.next().await.expect("a question");
            assert_eq!(question["method"], "elicitation/create", "{question}");
            let asked: Value = serde_json::from_str(QUESTION).expect("JSON");
            assert_eq!(question["params"], asked);

            // A question is answered by its own session alone, once.
            let stranger = system.agent("acme", "another").client;
            let other = stranger.open("/mcp", "2025-11-25", json!({"elicitation": {}})).await.expect("a session");
            assert_eq!(other.answer(&question, json!({"action": "accept"})).await.expect("an answer").status, 400);
            let sibling = agent.client.open("/mcp", "2025-11-25", json!({})).await.expect("a session");
            assert_eq!(sibling.answer(&question, json!({"action": "accept"})).await.expect("an answer").status, 400);
            let answer = json!({"action": "accept", "content": {"n": 7}});
            assert_eq!(session.answer(&question, answer.clone()).await.expect("an answer").status, 202);
            let end = stream.next().await.expect("the result");
            assert_eq!((&end["id"], text_of(&end)), (&json!(1), answer.to_string()), "{end}");
            assert!(stream.next().await.is_none(), "the stream ends with the answer");
            assert_eq!(session.answer(&question, answer).await.expect("an answer").status, 400, "once is all");
            system.stop().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_modern_callers_round_with_a_modern_server_is_its_own() {
    let upstream = modern_server().await;
    let system = setup(&tenants(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    let params = asking(json!({"elicitation": {}}));
    let asked = modern(&agent, params.clone()).await;
    let state = asked["result"]["requestState"].as_str().expect("a state").to_owned();
    assert!(!state.contains("server"), "the server's own state is sealed: {state}");
    assert_eq!(asked["result"]["inputRequests"]["q"]["method"], "elicitation/create");
    let retry = with(params, json!({"requestState": state, "inputResponses": {"q": {"action": "decline"}}}));
    let stranger = modern(&system.agent("acme", "another"), retry.clone()).await;
    assert_eq!(stranger["error"]["code"], -32602, "{stranger}");
    let unsealed = with(retry.clone(), json!({"requestState": "of the server"}));
    assert_eq!(modern(&agent, unsealed).await["error"]["code"], -32602);
    let done = modern(&agent, retry).await;
    assert_eq!(text_of(&done), r#"{"action":"decline"}"#, "{done}");
    let calls = upstream.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[1]["requestState"], "of the server", "given back as it was");
    system.stop().await;
}

#[tokio::test]
async fn nobody_is_asked_for_what_it_did_not_declare() {
    let questions = vec![
        ("sampling/createMessage", r#"{"messages":[],"maxTokens":1}"#.to_owned()),
        ("roots/list", "{}".to_owned()),
        (
            "elicitation/create",
            r#"{"mode":"url","message":"m","url":"https://x.example","elicitationId":"e"}"#.to_owned(),
        ),
    ];
    let upstream = legacy_server(questions).await;
    let system = setup(&tenants(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    let refused = "error -32601 error -32601 error -32601";
    // An elicitation of forms is none of URLs.
    for capabilities in [json!({}), json!({"elicitation": {"form": {}}})] {
        assert_eq!(text_of(&modern(&agent, asking(capabilities)).await), refused);
    }
    assert_eq!(text_of(&agent.call("s__ask", json!({})).await), refused, "a legacy caller without a session");
    let session = agent.client.open("/mcp", "2025-11-25", json!({})).await.expect("a session");
    let answer = session.request("tools/call", json!({"name": "s__ask"})).await.expect("an answer");
    assert_eq!(text_of(&answer.rpc()), refused);

    let declared = json!({"sampling": {}, "roots": {}, "elicitation": {"url": {}}});
    let asked = modern(&agent, asking(declared)).await;
    let requests = asked["result"]["inputRequests"].as_object().unwrap_or_else(|| panic!("{asked}")).clone();
    let methods: Vec<&str> = requests.values().filter_map(|request| request["method"].as_str()).collect();
    assert_eq!(methods.len(), 3, "{methods:?}");
    let url = requests.values().find(|request| request["method"] == "elicitation/create").expect("one");
    assert_eq!(url["params"], json!({"mode": "url", "message": "m", "url": "https://x.example"}), "no id of their era");
    system.stop().await;
}

#[tokio::test]
async fn an_error_that_a_url_must_be_visited_becomes_a_round_for_a_modern_caller() {
    let upstream = Upstream::start(Speaks::Legacy, &["ask"]).await.expect("an upstream");
    let data =
        r#"{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://x.example/","message":"Sign in"}]}"#;
    let error = format!(r#"{{"code":-32042,"message":"URL needed","data":{data}}}"#);
    upstream.answers(move |_| Reply::Error(error.clone()));
    let system = setup(&tenants(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    let asked = modern(&agent, asking(json!({"elicitation": {"url": {}}}))).await;
    let request = &asked["result"]["inputRequests"]["u0"];
    assert_eq!(request["params"], json!({"mode": "url", "message": "Sign in", "url": "https://x.example/"}), "{asked}");
    let retry =
        with(asking(json!({"elicitation": {"url": {}}})), json!({"inputResponses": {"u0": {"action": "accept"}}}));
    upstream.answers(|params| Reply::Result(text(&format!("now {}", params["arguments"]))));
    assert_eq!(text_of(&modern(&agent, retry).await), r#"now {"a":1}"#);
    assert!(upstream.calls()[1].get("inputResponses").is_none(), "a legacy server knows no such member");
    // Who cannot visit it, and who knows the error, get it as it is.
    let upstream_says = upstream.calls().len();
    let error = format!(r#"{{"code":-32042,"message":"URL needed","data":{data}}}"#);
    upstream.answers(move |_| Reply::Error(error.clone()));
    assert_eq!(modern(&agent, asking(json!({}))).await["error"]["code"], -32042);
    assert_eq!(agent.call("s__ask", json!({})).await["error"]["code"], -32042);
    assert_eq!(upstream.calls().len(), upstream_says + 2);
    system.stop().await;
}

#[tokio::test]
async fn a_caller_that_takes_its_call_back_while_it_is_asked_cancels_it_upstream() {
    let upstream = legacy_server(vec![("elicitation/create", QUESTION.to_owned())]).await;
    let system = setup(&tenants(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    let session = agent.client.open("/mcp", "2025-11-25", json!({"elicitation": {}})).await.expect("a session");
    let mut stream = session.stream(json!("x"), "tools/call", json!({"name": "s__ask"})).await.expect("a stream");
    assert!(stream.next().await.is_some(), "a question");
    let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "x"}});
    assert_eq!(session.post(&note).await.expect("an answer").status, 202);
    assert!(stream.next().await.is_none(), "the stream ends without an answer");
    until("the server is told", async || upstream.cancelled() >= 1).await;
    system.stop().await;
}

#[tokio::test]
async fn parked_calls_are_bounded_for_each_tenant() {
    let upstream = legacy_server(vec![("elicitation/create", QUESTION.to_owned())]).await;
    let system = setup(&tenants(&upstream)).start().await;
    let params = asking(json!({"elicitation": {}}));
    // 50 of one session, 200 of one tenant.
    for (session, expected) in [("a", 50), ("b", 50), ("c", 50), ("d", 50), ("e", 0)] {
        let agent = system.agent("acme", session);
        let mut parked = 0;
        for _ in 0..52 {
            let answer = modern(&agent, params.clone()).await;
            if answer["result"]["resultType"] == "input_required" {
                parked += 1;
            } else {
                assert!(text_of(&answer).contains("overloaded"), "{answer}");
            }
        }
        assert_eq!(parked, expected, "session {session}");
    }
    let neighbour = modern(&system.agent("other", "s"), params).await;
    assert_eq!(neighbour["result"]["resultType"], "input_required", "its neighbour is unharmed: {neighbour}");
    until("the refused ones are cancelled upstream", async || upstream.cancelled() >= 60).await;
    system.stop().await;
    assert_eq!(upstream.sessions().1, 0, "the end of the worker ends the sessions, and what waits in them");
}

#[tokio::test]
async fn open_questions_are_bounded_for_each_session_and_free_their_place_when_answered() {
    let upstream = legacy_server(vec![("elicitation/create", QUESTION.to_owned())]).await;
    let system = setup(&tenants(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    let session = agent.client.open("/mcp", "2025-11-25", json!({"elicitation": {}})).await.expect("a session");
    let ask = async |n: usize| {
        let mut stream = session.stream(json!(n), "tools/call", json!({"name": "s__ask"})).await.expect("a stream");
        let first = stream.next().await;
        (stream, first)
    };
    let mut open = Vec::new();
    for n in 0..50 {
        let (stream, question) = ask(n).await;
        open.push((stream, question.filter(|q| q["method"] == "elicitation/create").expect("a question")));
    }
    let refused = session.request("tools/call", json!({"name": "s__ask"})).await.expect("an answer");
    assert_eq!(text_of(&refused.rpc()), "error -32601", "the server is told that nobody can be asked now");
    let (mut stream, question) = open.pop().expect("one");
    session.answer(&question, json!({"action": "decline"})).await.expect("an answer");
    assert!(stream.next().await.is_some(), "the result");
    let (_stream, question) = ask(99).await;
    assert_eq!(question.expect("a message")["method"], "elicitation/create", "a place is free again");
    system.stop().await;
}

#[tokio::test]
async fn a_parked_call_is_authorized_again_when_it_goes_on() {
    let upstream = legacy_server(vec![("elicitation/create", QUESTION.to_owned())]).await;
    let system = setup(&tenants(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    let params = asking(json!({"elicitation": {}}));
    let asked = modern(&agent, params.clone()).await;
    let key = asked["result"]["inputRequests"].as_object().and_then(|r| r.keys().next()).expect("a key").clone();
    let more = json!({"requestState": asked["result"]["requestState"], "inputResponses": {key: {"action": "accept"}}});
    let retry = with(params, more);
    system.put("tenants/acme/sessions/s/policy", json!({"deny": ["s__ask"]})).await;
    let refused = modern(&agent, retry.clone()).await;
    assert_eq!(refused["error"]["data"]["not_allowed"], json!(["s__ask"]), "{refused}");
    // It was not used up by that: allowed again, it goes on.
    system.put("tenants/acme/sessions/s/policy", json!({})).await;
    assert_eq!(text_of(&modern(&agent, retry).await), r#"{"action":"accept"}"#);
    system.stop().await;
}

#[tokio::test]
async fn what_a_caller_cannot_give_is_told_to_each_era_in_its_way() {
    let upstream = Upstream::start(Speaks::Modern, &["ask"]).await.expect("an upstream");
    let data = r#"{"requiredCapabilities":{"sampling":{}}}"#;
    upstream.answers(move |params| {
        let declared = &params["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        assert!(declared.get("sampling").is_none(), "{declared}");
        Reply::ErrorWith(400, format!(r#"{{"code":-32021,"message":"needs sampling","data":{data}}}"#))
    });
    let system = setup(&tenants(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    let answer = agent.client.modern("/mcp", "tools/call", asking(json!({}))).await.expect("an answer");
    assert_eq!((answer.status.as_u16(), answer.json()["error"]["code"].as_i64()), (400, Some(-32021)));
    assert_eq!(answer.json()["error"]["data"]["requiredCapabilities"], json!({"sampling": {}}));
    // A legacy client knows no such code; its model is told.
    let legacy = agent.call("s__ask", json!({})).await;
    assert_eq!((&legacy["result"]["isError"], text_of(&legacy)), (&json!(true), "needs sampling".to_owned()));
    assert_eq!(upstream.calls().len(), 2, "each was sent once");
    system.stop().await;
}

#[tokio::test]
async fn extensions_are_offered_in_the_eras_that_can_carry_them() {
    let upstream = Upstream::start(Speaks::Modern, &["ask"]).await.expect("an upstream");
    let extensions = json!({"com.example/x": {"n": 1}, "io.modelcontextprotocol/tasks": {},
        "io.modelcontextprotocol/skills": {}});
    upstream.is(&format!(r#""extensions":{extensions}"#), "");
    let system = setup(&tenants(&upstream)).start().await;
    let agent = system.agent("acme", "s");
    for path in ["/mcp", "/servers/s/mcp"] {
        let discovered = agent.client.modern(path, "server/discover", json!({})).await.expect("an answer").json();
        let offered = &discovered["result"]["capabilities"]["extensions"];
        assert_eq!(*offered, json!({"com.example/x": {"n": 1}, "io.modelcontextprotocol/tasks": {}}), "{path}");
        let session = agent.client.open(path, "2025-11-25", json!({})).await.expect("a session");
        let offered = &session.opened["result"]["capabilities"]["extensions"];
        assert_eq!(*offered, json!({"com.example/x": {"n": 1}}), "{path}");
    }
    // What a legacy client declares of tasks is not passed on: its era has no form for one.
    let capabilities =
        json!({"sampling": {}, "extensions": {"io.modelcontextprotocol/tasks": {}, "com.example/x": {}}});
    let session = agent.client.open("/mcp", "2025-11-25", capabilities).await.expect("a session");
    session.request("tools/call", json!({"name": "s__ask"})).await.expect("an answer");
    let declared = &upstream.calls()[0]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    assert_eq!(*declared, json!({"sampling": {}, "extensions": {"com.example/x": {}}}));
    system.stop().await;
}

#[tokio::test]
async fn a_shared_child_is_offered_no_questions_and_one_of_a_session_is() {
    // A legacy server on standard input and output, which asks its client before it answers a call.
    let script = r#"
import json, sys
def say(m): print(json.dumps(m), flush=True)
asked = None
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "initialize":
        declared = m["params"]["capabilities"]
        say({"jsonrpc": "2.0", "id": m["id"], "result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}})
    elif m.get("method") == "tools/list":
        say({"jsonrpc": "2.0", "id": m["id"], "result": {"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]}})
    elif m.get("method") == "tools/call":
        asked = m["id"]
        say({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": {"message": "m", "requestedSchema": {"type": "object", "properties": {}}}})
    elif asked is not None and m.get("id") == 1:
        text = json.dumps([sorted(declared), m.get("result", m.get("error", {}).get("code"))])
        say({"jsonrpc": "2.0", "id": asked, "result": {"content": [{"type": "text", "text": text}]}})
    elif "id" in m and "method" in m:
        say({"jsonrpc": "2.0", "id": m["id"], "error": {"code": -32601, "message": "no"}})
"#;
    for (isolation, expected) in
        [("shared", r#"[[], -32601]"#), ("session", r#"[["elicitation", "roots", "sampling"], {"action": "accept"}]"#)]
    {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("server.py");
        std::fs::write(&file, script).expect("a file");
        let command = json!(["python3", file]);
        let tenants = format!(
            "{{acme: {{servers: [{{id: s, command: {command}, isolation: {isolation}}}], default_policy: {{}}}}}}"
        );
        let system = setup(&tenants).start().await;
        let agent = system.agent("acme", "s");
        let session = agent.client.open("/mcp", "2025-11-25", json!({"elicitation": {}})).await.expect("a session");
        let mut stream = session.stream(json!(1), "tools/call", json!({"name": "s__ask"})).await.expect("a stream");
        let mut told = match stream.status.is_success() && stream.headers["content-type"] == "text/event-stream" {
            true => stream.next().await.expect("a message"),
            false => serde_json::from_slice(&stream.chunk().await.expect("a body")).expect("JSON"),
        };
        if told["method"] == "elicitation/create" {
            assert_eq!(isolation, "session");
            session.answer(&told, json!({"action": "accept"})).await.expect("an answer");
            told = stream.next().await.expect("the result");
        }
        assert_eq!(text_of(&told), expected, "{isolation}");
        system.stop().await;
    }
}
