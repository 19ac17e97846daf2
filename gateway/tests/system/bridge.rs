//! Calls by name over plain HTTP, as generated specs describe them.

use http::Method;
use rollcall_loadtest::client::Answer;
use rollcall_loadtest::upstream::{Reply, Speaks, Upstream};
use serde_json::{Value, json};

use crate::harness::{over_both, setup, text_of};

#[tokio::test]
async fn the_status_says_how_a_call_went() {
    over_both(async |link| {
        let upstream = Upstream::start(Speaks::Modern, &["t", "denied", "slow"]).await.expect("an upstream");
        upstream.answers(|params| match params["arguments"]["do"].as_str() {
            Some("fail") => Reply::Result(r#"{"content":[],"isError":true}"#.into()),
            Some("error") => Reply::Error(r#"{"code":-32050,"message":"mine"}"#.into()),
            Some("503") => Reply::Raw(503, "text/plain", String::new()),
            Some("hang") => Reply::Hang,
            _ => Reply::Result(json!({"content": [], "structuredContent": params["arguments"]}).to_string()),
        });
        let tenants = format!(
            "{{acme: {{servers: [{{id: s, url: \"{}\", call_timeout: 500ms}}, {{id: down, url: \"http://127.0.0.1:1\"}}], \
             default_policy: {{deny: [\"s__denied\"]}}}}}}",
            upstream.url()
        );
        let system = setup(&tenants).link(link).start().await;
        let agent = system.agent("acme", "s");
        let post = async |path: &str, body: &str| -> Answer {
            let headers = [("content-type", "application/json")];
            agent.client.send(Method::POST, path, &headers, body.to_owned()).await.expect("an answer")
        };
        let cases = [
            ("/tools/s__t", r#"{"n":9007199254740993}"#, 200, Value::Null),
            ("/tools/s__t/", "", 200, Value::Null),
            ("/t/acme/tools/s__t", "{}", 200, Value::Null),
            ("/tools/s__t", r#"{"do":"fail"}"#, 422, json!("tool_error")),
            ("/tools/s__t", r#"{"do":"error"}"#, 422, json!("tool_error")),
            ("/tools/s__t", r#"{"do":"503"}"#, 503, json!("unreachable")),
            ("/tools/s__t", r#"{"do":"hang"}"#, 504, json!("timed_out")),
            ("/tools/nothing", "{}", 404, json!("tools_unavailable")),
            ("/tools/s__denied", "{}", 403, json!("tools_unavailable")),
            ("/tools/down__x", "{}", 503, json!("tools_unavailable")),
            ("/tools/s__t", "[1]", 400, json!("invalid_params")),
            ("/tools/s__t", "{", 400, json!("parse")),
            ("/t/other/tools/s__t", "{}", 403, json!("other_tenant")),
        ];
        for (path, body, status, error) in cases {
            let answer = post(path, body).await;
            let json = answer.json();
            assert_eq!((answer.status.as_u16(), json.get("error").cloned().unwrap_or_default()), (status, error), "{path} {body}: {}", answer.text());
            assert_eq!(json["success"], status == 200);
            assert_eq!(answer.headers.contains_key("retry-after"), status == 503, "{path} {body}");
        }
        let exact = post("/tools/s__t", r#"{"n":9007199254740993}"#).await.text();
        assert!(exact.contains(r#""structuredContent":{"n":9007199254740993}"#), "{exact}");
        let open = system.client().send(Method::POST, "/tools/s__t", &[], "{}").await.expect("an answer");
        assert!(open.status == 401 && open.headers.contains_key("www-authenticate"));
        let get = agent.client.send(Method::GET, "/tools/s__t", &[], "").await.expect("an answer");
        assert_eq!(get.status, 405);
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn what_a_spec_describes_can_be_called_as_it_describes_it() {
    let upstream = Upstream::start(Speaks::Legacy, &["t"]).await.expect("an upstream");
    let tenants = format!("{{acme: {{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}}}", upstream.url());
    let system = setup(&tenants).start().await;
    let agent = system.agent("acme", "s");
    let spec = agent.call("get_api_spec", json!({"tool_names": ["s__t"]})).await;
    let spec: Value = serde_json::from_str(&text_of(&spec)).expect("a document");
    let server = spec["servers"][0]["url"].as_str().expect("a URL");
    let (path, operations) = spec["paths"].as_object().expect("paths").iter().next().expect("a path");
    assert!(operations.get("post").is_some());
    assert_eq!(server, system.url(""));
    let answer = agent.client.post(path, &json!({"a": 1})).await.expect("an answer").json();
    assert_eq!(answer["result"]["content"][0]["text"], r#"t {"a":1}"#);
    system.stop().await;
}

/// A platform tool with arguments in every place, checked before anything is sent, its answers mapped.
#[tokio::test]
async fn a_platform_tool_puts_its_arguments_where_the_platform_wants_them() {
    over_both(async |link| {
        let platform = Upstream::start(Speaks::Modern, &[]).await.expect("an upstream");
        platform.breaks(Some(Reply::Raw(200, "application/json", r#"{"data":{"name":"Ann","id":9007199254740993}}"#.into())));
        let base = platform.url().trim_end_matches("/mcp").to_owned();
        let schema = "{type: object, required: [id], additionalProperties: false, properties: {id: {type: string, pattern: '^[a-z0-9/.]+$'}, \
                      verbose: {type: boolean}, trace: {type: string}, note: {type: string}}}";
        let tools = format!(
            "[{{name: get_user, description: d, input_schema: {schema}, http: {{method: GET, url: '{base}/users/{{id}}', \
             query: {{v: verbose}}, header_arguments: {{X-Trace: trace}}, headers: {{X-Key: canary}}, result: /data, \
             errors: {{404: There is no such user.}}}}}}, \
             {{name: set_user, description: d, input_schema: {schema}, http: {{method: PUT, url: '{base}/users/{{id}}', query: [verbose]}}}}]"
        );
        let system = setup(&format!("{{acme: {{tools: {tools}, default_policy: {{}}}}}}")).link(link).start().await;
        let agent = system.agent("acme", "s");
        let got = agent.call("get_user", json!({"id": "a/b", "verbose": true, "trace": "t", "note": "x y"})).await;
        assert_eq!(got["result"]["content"][0]["text"], r#"{"name":"Ann","id":9007199254740993}"#, "{got}");
        agent.call("set_user", json!({"id": "a", "note": "n"})).await;
        let seen = platform.seen();
        assert_eq!((&seen[0].method, seen[0].path.as_str()), (&Method::GET, "/users/a%2Fb?v=true&note=x%20y"));
        assert_eq!((seen[0].headers["x-trace"].to_str().ok(), seen[0].headers["x-key"].to_str().ok()), (Some("t"), Some("canary")));
        assert_eq!((&seen[1].method, seen[1].path.as_str(), seen[1].body.as_str()), (&Method::PUT, "/users/a", r#"{"note":"n"}"#));
        // What does not fit is told to the model, and nothing is sent.
        for (arguments, problem) in [
            (json!({}), "\"id\" is a required property"),
            (json!({"id": "A"}), "/id: "),
            (json!({"id": "a", "verbose": "yes"}), "/verbose: "),
            (json!({"id": "a", "more": 1}), "more"),
            (json!({"id": ".."}), "must not be `.` or `..`"),
            (json!({"id": "a", "trace": "a\r\nb: c"}), "goes into a header"),
        ] {
            let answer = agent.call("get_user", arguments.clone()).await;
            assert!(answer["result"]["isError"] == true && text_of(&answer).contains(problem), "{arguments}: {answer}");
        }
        assert_eq!(platform.seen().len(), 2);
        platform.breaks(Some(Reply::Raw(404, "text/html", "<html>".into())));
        let answer = agent.call("get_user", json!({"id": "a"})).await;
        assert_eq!((text_of(&answer).as_str(), &answer["result"]["isError"]), ("There is no such user.", &json!(true)));
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_platform_tool_that_contradicts_itself_is_refused_with_every_problem() {
    let system = setup("{acme: {default_policy: {}}}").start().await;
    let schema = json!({"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]});
    for (schema, http, problem) in [
        (schema.clone(), json!({"url": "https://h/{nothing}"}), "`{nothing}` is no property of input_schema"),
        (json!({"type": "object", "properties": {"id": {}}}), json!({"url": "https://h/{id}"}), "must require it"),
        (schema.clone(), json!({"url": "https://{id}/x"}), "only the path may hold arguments"),
        (schema.clone(), json!({"url": "https://h/x?y={id}"}), "only the path may hold arguments"),
        (schema.clone(), json!({"url": "https://h/{id"}), "`{`"),
        (schema.clone(), json!({"url": "ftp://h/"}), "http or https"),
        (schema.clone(), json!({"url": "https://h/", "method": "TRACE"}), "expected one of GET"),
        (schema.clone(), json!({"url": "https://h/", "header_arguments": {"Host": "id"}}), "computed by Rollcall"),
        (schema.clone(), json!({"url": "https://h/", "errors": {"200": "x"}}), "400 to 599"),
        (schema.clone(), json!({"url": "https://h/", "body": "all"}), "expected rest, none"),
        (schema, json!({"url": "https://h/", "result": "data"}), "JSON Pointer"),
        (
            json!({"type": "object", "properties": {"x": {"pattern": "(?=a)"}}}),
            json!({"url": "https://h/"}),
            "no valid JSON Schema",
        ),
        (
            json!({"type": "object", "properties": {"x": {"$ref": "https://example.com/x"}}}),
            json!({"url": "https://h/"}),
            "no valid JSON Schema",
        ),
    ] {
        let tool = json!({"description": "d", "input_schema": schema, "http": http});
        let answer = system.admin(Method::PUT, "tenants/acme/tools/t", tool).await;
        assert!(answer.status == 422 && answer.text().contains(problem), "{http}: {}", answer.text());
    }
    system.stop().await;
}
