//! `get_api_spec`: the name is the only address, all or nothing, and authorization before any look-up.

use rollcall_loadtest::upstream::{Speaks, Upstream};
use serde_json::{Value, json};

use crate::harness::{Agent, System, setup, text_of};

/// Two servers and two platform tools in two groups.
async fn system() -> (System, Vec<Upstream>) {
    let neon = Upstream::start(Speaks::Modern, &[]).await.expect("an upstream");
    let schema =
        json!({"type": "object", "properties": {"q": {"$ref": "#/$defs/Q"}}, "$defs": {"Q": {"type": "string"}}});
    neon.set_tools(vec![
        json!({"name": "run_sql", "description": "Runs SQL.", "inputSchema": schema}),
        json!({"name": "search", "inputSchema": {"type": "object"}}),
    ]);
    let notion = Upstream::start(Speaks::Legacy, &["search", "create_page"]).await.expect("an upstream");
    let tool = |name: &str, group: &str| {
        format!(
            "{{name: {name}, group: {group}, description: d, input_schema: {{type: object}}, http: {{url: \"http://127.0.0.1:9/\"}}}}"
        )
    };
    let tenants = format!(
        "{{acme: {{servers: [{{id: neon, url: \"{}\"}}, {{id: notion, url: \"{}\"}}], tools: [{}, {}], default_policy: {{}}}}}}",
        neon.url(),
        notion.url(),
        tool("query_db", "workflow_db"),
        tool("mark_human_input_consumed", "human_input")
    );
    (setup(&tenants).start().await, vec![neon, notion])
}

async fn describe(agent: &Agent, arguments: Value) -> Result<Vec<String>, Value> {
    let answer = agent.call("get_api_spec", arguments).await;
    if answer.get("error").is_some() {
        return Err(answer["error"]["data"].clone());
    }
    let document: Value = serde_json::from_str(&text_of(&answer)).unwrap_or_else(|_| panic!("{answer}"));
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().expect("paths");
    Ok(paths.keys().map(|path| path.strip_prefix("/tools/").expect("a path").to_owned()).collect())
}

/// What a name resolves to whatever is said beside it.
async fn described(arguments: Value, expected: &[&str]) {
    let (system, _upstreams) = system().await;
    let agent = system.agent("acme", "s");
    assert_eq!(
        describe(&agent, arguments.clone()).await,
        Ok(expected.iter().map(|n| (*n).to_owned()).collect()),
        "{arguments}"
    );
    system.stop().await;
}

#[tokio::test]
async fn the_literal_custom_as_server_name_is_ignored() {
    described(json!({"tool_names": ["query_db"], "server_name": "custom"}), &["query_db"]).await;
}

#[tokio::test]
async fn a_valid_but_wrong_group_as_server_name_is_ignored() {
    described(json!({"tool_names": ["query_db"], "server_name": "human_input"}), &["query_db"]).await;
}

#[tokio::test]
async fn a_tools_name_as_server_name_is_ignored() {
    described(json!({"tool_names": ["query_db"], "server_name": "query_db"}), &["query_db"]).await;
}

#[tokio::test]
async fn a_stale_server_as_server_name_is_ignored() {
    described(json!({"tool_names": ["neon__run_sql"], "server_name": "neon_old"}), &["neon__run_sql"]).await;
}

#[tokio::test]
async fn a_request_across_groups_is_one_answer() {
    described(
        json!({"tool_names": ["query_db", "mark_human_input_consumed", "notion__create_page"]}),
        &["mark_human_input_consumed", "notion__create_page", "query_db"],
    )
    .await;
}

#[tokio::test]
async fn a_serialized_array_is_an_array() {
    described(json!({"tool_names": "[\"query_db\",\"neon__run_sql\"]"}), &["neon__run_sql", "query_db"]).await;
}

#[tokio::test]
async fn a_server_name_settles_a_real_name_that_it_holds() {
    described(json!({"tool_name": "search", "server_name": "notion"}), &["notion__search"]).await;
}

#[tokio::test]
async fn a_bare_real_name_of_one_server_alone_is_understood_and_of_two_is_not() {
    let (system, _upstreams) = system().await;
    let agent = system.agent("acme", "s");
    assert_eq!(
        describe(&agent, json!({"tool_names": ["create_page"]})).await,
        Ok(vec!["notion__create_page".to_owned()])
    );
    let refused = describe(&agent, json!({"tool_names": ["search"]})).await.expect_err("two servers have it");
    assert_eq!(refused["unknown"], json!(["search"]));
    assert_eq!(refused["nearest"]["search"], json!(["neon__search", "notion__search"]));
    system.stop().await;
}

#[tokio::test]
async fn mixed_known_and_unknown_names_are_one_refusal() {
    let (system, _upstreams) = system().await;
    let agent = system.agent("acme", "s");
    let refused = describe(&agent, json!({"tool_names": ["query_db", "no_such_tool"]})).await.expect_err("a refusal");
    assert_eq!((&refused["unknown"], &refused["not_allowed"]), (&json!(["no_such_tool"]), &json!([])));
    assert_eq!((&refused["success"], &refused["error"]), (&json!(false), &json!("tools_unavailable")));
    system.stop().await;
}

#[tokio::test]
async fn mixed_allowed_and_denied_names_are_one_refusal() {
    let (system, _upstreams) = system().await;
    system.put("tenants/acme/sessions/s/policy", json!({"deny": ["mark_human_input_consumed"]})).await;
    let agent = system.agent("acme", "s");
    let names = json!(["query_db", "mark_human_input_consumed"]);
    let refused = describe(&agent, json!({"tool_names": names})).await.expect_err("a refusal");
    assert_eq!((&refused["unknown"], &refused["not_allowed"]), (&json!([]), &json!(["mark_human_input_consumed"])));
    let by_server = json!({"tool_names": ["run_sql"], "server_name": "neon"});
    assert!(describe(&agent, by_server.clone()).await.is_ok());
    system.put("tenants/acme/sessions/s/policy", json!({"deny": ["server:neon"]})).await;
    let refused = describe(&agent, by_server).await.expect_err("a server name authorizes nothing");
    assert_eq!(refused["not_allowed"], json!(["neon__run_sql"]));
    system.stop().await;
}

#[tokio::test]
async fn a_denied_session_makes_no_spec_cache_look_up_at_all() {
    let (system, _upstreams) = system().await;
    system.put("tenants/acme/sessions/denied/policy", json!({"deny": ["neon__run_sql"]})).await;
    let names = json!({"tool_names": ["neon__run_sql", "query_db"]});
    let (allowed, denied) = (system.agent("acme", "allowed"), system.agent("acme", "denied"));
    assert!(describe(&allowed, names.clone()).await.is_ok(), "primes the cache");
    let primed = system.inner().gateway.spec_lookups();
    assert_eq!(primed, 2);
    assert!(describe(&denied, names.clone()).await.is_err());
    assert_eq!(system.inner().gateway.spec_lookups(), primed, "not even for the name that it may use");
    assert!(describe(&allowed, names).await.is_ok());
    assert_eq!(system.inner().gateway.spec_lookups(), primed + 2);
    let metrics = system.metrics().await;
    assert!(metrics.contains(r#"rollcall_spec_cache_lookups_total{outcome="hit"} 2"#), "{metrics}");
    system.stop().await;
}

#[tokio::test]
async fn a_changed_definition_changes_its_spec_and_references_are_rewritten() {
    let (system, upstreams) = system().await;
    let agent = system.agent("acme", "s");
    let document = async || {
        let answer = agent.call("get_api_spec", json!({"tool_names": ["neon__run_sql"]})).await;
        serde_json::from_str::<Value>(&text_of(&answer)).expect("a document")
    };
    let before = document().await;
    let input = &before["components"]["schemas"]["neon__run_sql.input"];
    let pointer = "#/components/schemas/neon__run_sql.input/$defs/Q";
    assert_eq!(input["properties"]["q"]["$ref"], pointer);
    assert_eq!(before.pointer(pointer.strip_prefix('#').expect("a pointer")), Some(&json!({"type": "string"})));
    assert_eq!(before["servers"][0]["url"], system.url(""));
    upstreams[0].set_tools(vec![json!({"name": "run_sql", "description": "New.", "inputSchema": {"type": "object"}})]);
    crate::harness::until("the new definition is described", async || {
        document().await["paths"]["/tools/neon__run_sql"]["post"]["description"] == "New."
    })
    .await;
    system.stop().await;
}

#[tokio::test]
async fn a_server_name_is_counted_and_can_be_refused() {
    let (system, _upstreams) = system().await;
    let agent = system.agent("acme", "s");
    describe(&agent, json!({"tool_names": ["query_db"], "server_name": "custom"})).await.expect("described");
    describe(&agent, json!({"tool_names": ["run_sql"], "server_name": "neon"})).await.expect("described");
    let metrics = system.metrics().await;
    for line in [
        r#"rollcall_server_name_used_total{effect="ignored"} 1"#,
        r#"rollcall_server_name_used_total{effect="settled"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    system.stop().await;
    let system = setup("{acme: {server_name: reject, tools: [{name: t, description: d, input_schema: {type: object}, http: {url: \"http://127.0.0.1:9\"}}], default_policy: {}}}").start().await;
    let answer = system.agent("acme", "s").call("get_api_spec", json!({"tool_names": ["t"], "server_name": "x"})).await;
    assert_eq!(answer["result"]["isError"], true);
    assert!(text_of(&answer).contains("server_name"));
    system.stop().await;
}

#[tokio::test]
async fn bad_arguments_are_the_tools_own_error() {
    let (system, _upstreams) = system().await;
    let agent = system.agent("acme", "s");
    for arguments in [json!({}), json!({"tool_names": []}), json!({"tool_names": 7})] {
        let answer = agent.call("get_api_spec", arguments.clone()).await;
        assert_eq!(answer["result"]["isError"], true, "{arguments}");
        assert!(text_of(&answer).contains("tool_names"));
    }
    system.stop().await;
}
