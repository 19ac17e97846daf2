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
