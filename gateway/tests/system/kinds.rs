//! Prompts, resources, templates and completions: listed, read, allowed and denied like tools.

use http::Method;
use rollcall_loadtest::client::Client;
use rollcall_loadtest::upstream::{Reply, Speaks, Upstream};
use serde_json::{Value, json};

use crate::harness::{Agent, over_both, setup};

const CAPABILITIES: &str = r#""prompts":{},"resources":{"subscribe":true},"completions":{}"#;

/// A server with a prompt, two resources and a template, which answers with what it was asked.
async fn library(speaks: Speaks) -> Upstream {
    let upstream = Upstream::start(speaks, &["t"]).await.expect("an upstream");
    upstream.is(CAPABILITIES, r#""instructions":"Read before you write.""#);
    let modern =
        if speaks == Speaks::Modern { r#""resultType":"complete","ttlMs":9,"cacheScope":"public","# } else { "" };
    let lists = [
        ("prompts/list", r#""prompts":[{"name":"re.view","description":"d","n":9007199254740993}]"#),
        (
            "resources/list",
            r#""resources":[{"uri":"file:///a","name":"a","x":1.50},{"uri":"file:///secret","name":"s"}]"#,
        ),
        ("resources/templates/list", r#""resourceTemplates":[{"uriTemplate":"db://{table}/row","name":"rows"}]"#),
    ];
    for (method, members) in lists {
        let result = format!("{{{modern}{members}}}");
        upstream.answers_to(method, move |_| Reply::Result(result.clone()));
    }
    upstream.answers_to("prompts/get", |params| {
        let text = format!("{} {}", params["name"].as_str().unwrap_or_default(), params["arguments"]);
        let message = json!({"role": "user", "content": {"type": "text", "text": text}});
        Reply::Result(json!({"messages": [message]}).to_string())
    });
    let read = modern.to_owned();
    upstream.answers_to("resources/read", move |params| {
        let contents = json!([{"uri": params["uri"], "text": format!("content of {}", params["uri"])}]);
        Reply::Result(format!(r#"{{{read}"contents":{contents},"n":9007199254740993}}"#))
    });
    upstream.answers_to("completion/complete", |params| {
        let values = json!([params["ref"].to_string()]);
        Reply::Result(json!({"completion": {"values": values}}).to_string())
    });
    upstream
}

fn tenants(upstream: &Upstream, policy: &str) -> String {
    format!("{{acme: {{servers: [{{id: lib, url: \"{}\"}}], default_policy: {policy}}}}}", upstream.url())
}

async fn modern(agent: &Agent, path: &str, method: &str, params: Value) -> Value {
    agent.client.modern(path, method, params).await.expect("an answer").rpc()
}

fn all<'v>(answer: &'v Value, list: &str, member: &str) -> Vec<&'v str> {
    let entries = answer["result"][list].as_array().unwrap_or_else(|| panic!("{answer}"));
    entries.iter().map(|entry| entry[member].as_str().expect("a text")).collect()
}

#[tokio::test]
async fn every_kind_is_offered_under_public_names_and_under_real_ones() {
    for speaks in [Speaks::Modern, Speaks::Legacy] {
        over_both(async |link| {
            let upstream = library(speaks).await;
            let system = setup(&tenants(&upstream, "{}")).link(link).start().await;
            let agent = system.agent("acme", "s");

            let prompts = modern(&agent, "/mcp", "prompts/list", json!({})).await;
            let [prompt] = all(&prompts, "prompts", "name")[..] else { panic!("{prompts}") };
            assert!(prompt.starts_with("lib__re_view_"), "{prompt}");
            assert!(prompts.to_string().contains("9007199254740993"), "other bytes are as sent");
            assert_eq!((&prompts["result"]["ttlMs"], &prompts["result"]["cacheScope"]), (&json!(0), &json!("private")));
            let resources = modern(&agent, "/mcp", "resources/list", json!({})).await;
            let uris = all(&resources, "resources", "uri");
            assert_eq!(uris, ["rollcall://lib/file%3A%2F%2F%2Fa", "rollcall://lib/file%3A%2F%2F%2Fsecret"]);
            let templates = modern(&agent, "/mcp", "resources/templates/list", json!({})).await;
            let forms = all(&templates, "resourceTemplates", "uriTemplate");
            assert_eq!(forms, ["rollcall://lib/db%3A%2F%2F{table}%2Frow"]);

            let got = modern(&agent, "/mcp", "prompts/get", json!({"name": prompt, "arguments": {"a": "1"}})).await;
            assert_eq!(got["result"]["messages"][0]["content"]["text"], r#"re.view {"a":"1"}"#);
            assert_eq!(got["result"]["resultType"], "complete");
            for (uri, real) in [
                (uris[0], "file:///a"),
                ("rollcall://lib/db%3A%2F%2Fusers%2Frow", "db://users/row"),
                ("file:///a", "file:///a"),
                ("db://users/row", "db://users/row"),
            ] {
                let read = modern(&agent, "/mcp", "resources/read", json!({"uri": uri})).await;
                assert_eq!(read["result"]["contents"][0]["uri"], real, "{uri}: {read}");
                assert_eq!(read["result"]["cacheScope"], "private", "a policy stands between");
                assert!(read.to_string().contains("9007199254740993"));
            }
            let reference =
                json!({"ref": {"type": "ref/prompt", "name": prompt}, "argument": {"name": "a", "value": "x"}});
            let completed = modern(&agent, "/mcp", "completion/complete", reference).await;
            assert_eq!(
                completed["result"]["completion"]["values"],
                json!([r#"{"name":"re.view","type":"ref/prompt"}"#])
            );
            let reference =
                json!({"ref": {"type": "ref/resource", "uri": forms[0]}, "argument": {"name": "table", "value": "u"}});
            let completed = modern(&agent, "/mcp", "completion/complete", reference).await;
            assert_eq!(
                completed["result"]["completion"]["values"][0],
                r#"{"type":"ref/resource","uri":"db://{table}/row"}"#
            );

            let own = "/servers/lib/mcp";
            let prompts = modern(&agent, own, "prompts/list", json!({})).await;
            assert_eq!(all(&prompts, "prompts", "name"), ["re.view"]);
            let resources = modern(&agent, own, "resources/list", json!({})).await;
            assert_eq!(all(&resources, "resources", "uri"), ["file:///a", "file:///secret"]);
            let read = modern(&agent, own, "resources/read", json!({"uri": "db://x/row"})).await;
            assert_eq!(read["result"]["contents"][0]["uri"], "db://x/row");
            let discovered = modern(&agent, own, "server/discover", json!({})).await;
            assert_eq!(discovered["result"]["instructions"], "Read before you write.");
            let capabilities = &discovered["result"]["capabilities"];
            assert_eq!(capabilities["resources"], json!({"subscribe": true, "listChanged": true}));
            assert_eq!((&capabilities["completions"], &capabilities["logging"]), (&json!({}), &Value::Null));
            system.stop().await;
        })
        .await;
    }
}

#[tokio::test]
async fn what_a_policy_denies_is_neither_listed_nor_read_nor_completed() {
    let upstream = library(Speaks::Modern).await;
    let rules = r#"{deny: ["prompt:*", "resource:rollcall://lib/*secret*", "resource:server:lib/db://payroll*"]}"#;
    let system = setup(&tenants(&upstream, rules)).start().await;
    let agent = system.agent("acme", "s");

    let resources = modern(&agent, "/mcp", "resources/list", json!({})).await;
    assert_eq!(all(&resources, "resources", "uri"), ["rollcall://lib/file%3A%2F%2F%2Fa"]);
    for path in ["/mcp", "/servers/lib/mcp"] {
        for uri in [
            "rollcall://lib/file%3A%2F%2F%2Fsecret",
            "file:///secret",
            "rollcall://lib/db%3A%2F%2Fpayroll%2Frow",
            "db://payroll/row",
            "rollcall://lib/db%3A%2F%2Fpay%72oll%2Frow",
            "rollcall://lib/nothing",
        ] {
            let read = modern(&agent, path, "resources/read", json!({"uri": uri})).await;
            assert_eq!(read["error"]["code"], -32602, "{path} {uri}: {read}");
            assert_eq!(read["error"]["data"]["uri"], uri);
            let legacy = agent.client.legacy(path, "resources/read", json!({"uri": uri})).await.expect("an answer");
            assert_eq!(legacy.rpc()["error"]["code"], -32002, "{path} {uri}");
        }
    }
    for method in ["prompts/list", "prompts/get"] {
        let answer = agent.client.modern("/mcp", method, json!({"name": "lib__re_view"})).await.expect("an answer");
        assert_eq!((answer.status.as_u16(), answer.rpc()["error"]["code"].as_i64()), (404, Some(-32601)), "{method}");
    }
    let reference = json!({"ref": {"type": "ref/prompt", "name": "re.view"}, "argument": {"name": "a", "value": ""}});
    let completed = modern(&agent, "/servers/lib/mcp", "completion/complete", reference).await;
    assert_eq!(completed["error"]["code"], -32602, "{completed}");
    for method in ["resources/read", "prompts/get", "completion/complete"] {
        assert_eq!(upstream.asked_for(method).len(), 0, "none of it reached the server: {method}");
    }

    // The admin sees the same, and why.
    let view = system.admin(Method::GET, "tenants/acme/sessions/s/view", Value::Null).await.json();
    assert_eq!(view["resources"], json!(["rollcall://lib/file%3A%2F%2F%2Fa"]), "{view}");
    assert_eq!((&view["prompts"], view["resource_templates"].as_array().map(Vec::len)), (&json!([]), Some(1)));
    let secret = "rollcall%3A%2F%2Flib%2Ffile%253A%252F%252F%252Fsecret";
    let why = system.admin(Method::GET, &format!("tenants/acme/explain?session=s&name={secret}"), Value::Null).await;
    let why = why.json();
    let expected = (&json!("resource"), &json!("not_allowed"), &json!(["resource:rollcall://lib/*secret*"]));
    assert_eq!((&why["kind"], &why["verdict"], &why["denied_by"]), expected, "{why}");

    // An allow list of tools allows nothing else.
    system.put("tenants/acme/sessions/tools/policy", json!({"allow": ["lib__*"]})).await;
    let tools_alone = system.agent("acme", "tools");
    assert_eq!(tools_alone.names().await, ["get_api_spec", "lib__t"]);
    let answer = tools_alone.client.modern("/mcp", "resources/list", json!({})).await.expect("an answer");
    assert_eq!(answer.status, 404);
    system.stop().await;
}

#[tokio::test]
async fn a_bare_uri_that_two_servers_have_is_nobodys() {
    let (one, two) = (library(Speaks::Modern).await, library(Speaks::Modern).await);
    let tenants = format!(
        "{{acme: {{servers: [{{id: one, url: \"{}\"}}, {{id: two, url: \"{}\"}}], default_policy: {{}}}}}}",
        one.url(),
        two.url()
    );
    let system = setup(&tenants).start().await;
    let agent = system.agent("acme", "s");
    for uri in ["file:///a", "db://x/row"] {
        assert_eq!(
            modern(&agent, "/mcp", "resources/read", json!({"uri": uri})).await["error"]["code"],
            -32602,
            "{uri}"
        );
    }
    let read = modern(&agent, "/mcp", "resources/read", json!({"uri": "rollcall://two/file%3A%2F%2F%2Fa"})).await;
    assert_eq!(read["result"]["contents"][0]["uri"], "file:///a");
    assert_eq!((one.asked_for("resources/read").len(), two.asked_for("resources/read").len()), (0, 1));
    // Where the session may use one of them alone, the URI is that one's.
    system.put("tenants/acme/sessions/s/policy", json!({"deny": ["resource:server:one"]})).await;
    let read = modern(&agent, "/mcp", "resources/read", json!({"uri": "file:///a"})).await;
    assert_eq!(read["result"]["contents"][0]["uri"], "file:///a", "{read}");
    system.stop().await;
}

#[tokio::test]
async fn what_a_caller_says_of_itself_arrives_as_it_was_written() {
    let upstream = library(Speaks::Modern).await;
    let system = setup(&tenants(&upstream, "{}")).start().await;
    let agent = system.agent("acme", "s");
    let capabilities = r#"{"sampling":{ },"extensions":{"com.example/x":{"n":9007199254740993}},"x":1.50}"#;
    let meta = format!(
        r#"{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{capabilities},"com.example/kept":[1.50]}}"#
    );
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"lib__t","arguments":{{}},"_meta":{meta}}}}}"#
    );
    let headers = [
        ("content-type", "application/json"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", "lib__t"),
    ];
    let answer = agent.client.send(Method::POST, "/mcp", &headers, body).await.expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let call = upstream.seen().into_iter().find(|seen| seen.body.contains("tools/call")).expect("a call");
    assert!(
        call.body.contains(&format!(r#""io.modelcontextprotocol/clientCapabilities":{capabilities}"#)),
        "{}",
        call.body
    );
    assert!(call.body.contains(r#""com.example/kept":[1.50]"#), "{}", call.body);
    system.stop().await;
}

async fn call_with(client: &Client, param: Option<&str>, arguments: Value) -> (u16, Value) {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params":
        rollcall_loadtest::client::modern_params(json!({"name": "lib__region", "arguments": arguments}))});
    let mut headers = vec![
        ("content-type", "application/json"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", "lib__region"),
    ];
    headers.extend(param.map(|value| ("mcp-param-region", value)));
    let answer = client.send(Method::POST, "/mcp", &headers, body.to_string()).await.expect("an answer");
    (answer.status.as_u16(), answer.rpc())
}

#[tokio::test]
async fn mirrored_arguments_are_checked_and_mirrored_again() {
    let upstream = library(Speaks::Modern).await;
    let schema = |property: Value| json!({"type": "object", "properties": {"region": property}});
    upstream.set_tools(vec![
        json!({"name": "region", "inputSchema": schema(json!({"type": "string", "x-mcp-header": "Region"}))}),
        json!({"name": "broken", "inputSchema": schema(json!({"type": "number", "x-mcp-header": "Region"}))}),
    ]);
    let system = setup(&tenants(&upstream, "{}")).start().await;
    let agent = system.agent("acme", "s");
    assert_eq!(agent.names().await, ["get_api_spec", "lib__region"], "the broken one is left out");
    for (param, arguments) in [
        (None, json!({"region": "eu"})),
        (Some("us"), json!({"region": "eu"})),
        (Some("eu"), json!({})),
        (Some("=?base64?***?="), json!({"region": "eu"})),
    ] {
        let (status, answer) = call_with(&agent.client, param, arguments.clone()).await;
        assert_eq!((status, answer["error"]["code"].as_i64()), (400, Some(-32020)), "{param:?} {arguments}");
    }
    assert_eq!(upstream.calls().len(), 0, "nothing of it was forwarded");
    for (param, region) in [(Some("eu"), json!("eu")), (Some("=?base64?w7w=?="), json!("ü")), (None, Value::Null)] {
        let (status, answer) = call_with(&agent.client, param, json!({"region": region})).await;
        assert_eq!(status, 200, "{answer}");
        let seen = upstream.seen().pop().expect("a call");
        let given = seen.headers.get("mcp-param-region").and_then(|value| value.to_str().ok());
        assert_eq!(given, param, "computed from the body");
    }
    // A legacy caller has no such headers; a modern server gets them all the same.
    agent.call("lib__region", json!({"region": "eu"})).await;
    assert_eq!(upstream.seen().pop().expect("a call").headers["mcp-param-region"], "eu");
    system.stop().await;
}

#[tokio::test]
async fn a_failing_list_of_prompts_costs_no_tool() {
    let upstream = library(Speaks::Legacy).await;
    upstream.answers_to("prompts/list", |_| Reply::Error(r#"{"code":-32603,"message":"no"}"#.to_owned()));
    let system = setup(&tenants(&upstream, "{}")).start().await;
    let agent = system.agent("acme", "s");
    assert_eq!(agent.names().await, ["get_api_spec", "lib__t"]);
    let resources = modern(&agent, "/mcp", "resources/list", json!({})).await;
    assert_eq!(all(&resources, "resources", "uri").len(), 2);
    system.stop().await;
}

/// Agents that have HTTP alone reach prompts and resources through tools of our own, which exist where there are any.
#[tokio::test]
async fn code_reaches_prompts_and_resources_where_there_are_any_and_reads_of_them_nowhere_else() {
    over_both(async |link| {
        let upstream = library(Speaks::Modern).await;
        let system = setup(&tenants(&upstream, "{}")).link(link).start().await;
        let agent = system.agent("acme", "s");
        let post = async |tool: &str, arguments: Value| {
            let headers = [("content-type", "application/json")];
            let path = format!("/tools/{tool}");
            agent.client.send(Method::POST, &path, &headers, arguments.to_string()).await.expect("an answer")
        };
        let told = async || {
            let headers = [("accept", "text/plain")];
            let manifest =
                agent.client.send(Method::GET, "/v1/manifest", &headers, "").await.expect("an answer").text();
            let listed = agent.names().await.join(" ");
            let opened = modern(&agent, "/mcp", "server/discover", json!({})).await.to_string();
            format!("{manifest}\n{listed}\n{opened}")
        };
        let prompts = modern(&agent, "/mcp", "prompts/list", json!({})).await;
        let [prompt] = all(&prompts, "prompts", "name")[..] else { panic!("{prompts}") };
        let answer = post("get_prompt", json!({"name": prompt, "arguments": {"a": "b"}})).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["result"]["messages"][0]["content"]["text"], r#"re.view {"a":"b"}"#);
        let resources = modern(&agent, "/mcp", "resources/list", json!({})).await;
        let uri = all(&resources, "resources", "uri")[0].to_owned();
        let answer = post("get_resource", json!({"uri": uri})).await;
        assert!(answer.status == 200 && answer.text().contains(r#""n":9007199254740993"#), "{}", answer.text());
        let text = told().await;
        assert!(
            text.contains("POST") && text.contains("/tools/get_prompt") && text.contains("/tools/get_resource"),
            "{text}"
        );
        for (tool, arguments) in
            [("get_prompt", json!({"name": "nothing"})), ("get_resource", json!({"uri": "rollcall://lib/nothing"}))]
        {
            let answer = post(tool, arguments).await;
            assert!(answer.status == 404 && answer.json()["success"] == false, "{tool}: {}", answer.text());
        }
        assert_eq!(post("get_prompt", json!({})).await.status, 422);
        // Where a policy leaves none, neither tool is there, and no text speaks of it.
        let policy = json!({"deny": ["prompt:*", "resource:*"]});
        system.put("tenants/acme/sessions/s/policy", policy).await;
        for (tool, arguments) in [("get_prompt", json!({"name": prompt})), ("get_resource", json!({"uri": uri}))] {
            let answer = post(tool, arguments).await;
            assert_eq!((answer.status.as_u16(), &answer.json()["unknown"]), (404, &json!([tool])), "{}", answer.text());
            assert!(!told().await.contains(tool), "{tool}");
        }
        system.stop().await;
    })
    .await;
}
