//! Who may use what, live: tenants apart, narrowing at once, denial by loss.

use std::time::Duration;

use http::Method;
use rollcall_loadtest::upstream::{Speaks, Upstream};
use rollcall_shared::clock::unix_s;
use serde_json::{Value, json};

use crate::harness::{over_both, setup, text_of};

#[tokio::test]
async fn a_narrowed_session_loses_a_tool_in_its_next_request() {
    over_both(async |link| {
        let upstream = Upstream::start(Speaks::Modern, &["keep", "lose"]).await.expect("an upstream");
        let tenants = format!("{{acme: {{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}}}", upstream.url());
        let system = setup(&tenants).link(link).start().await;
        let (agent, other) = (system.agent("acme", "one"), system.agent("acme", "two"));
        assert_eq!(agent.names().await, ["get_api_spec", "s__keep", "s__lose"]);
        assert_eq!(agent.text("s__lose", json!({})).await, "lose {}");
        let written = system.put("tenants/acme/sessions/one/policy", json!({"deny": ["s__lose"]})).await;
        assert_eq!((&written["changed"], &written["warnings"]), (&json!(true), &json!([])));
        assert_eq!(agent.names().await, ["get_api_spec", "s__keep"]);
        let refused = agent.call("s__lose", json!({})).await;
        assert_eq!(refused["error"]["code"], -32602);
        assert_eq!(refused["error"]["data"]["not_allowed"], json!(["s__lose"]));
        assert_eq!(upstream.calls().len(), 1, "a refused call reaches nobody");
        assert_eq!(other.names().await.len(), 3, "another session is not touched");
        system.put("tenants/acme/sessions/one/policy", json!({})).await;
        assert_eq!(agent.text("s__lose", json!({})).await, "lose {}");
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn two_tenants_with_the_same_names_never_see_each_other() {
    over_both(async |link| {
        let a = Upstream::start(Speaks::Legacy, &["search"]).await.expect("an upstream");
        let b = Upstream::start(Speaks::Legacy, &["search"]).await.expect("an upstream");
        let tenant = |url: &str, key: &str| {
            format!("{{servers: [{{id: prod, url: \"{url}\", headers: {{X-Key: {key}}}}}], default_policy: {{}}}}")
        };
        let tenants = format!("{{a: {}, b: {}}}", tenant(&a.url(), "key-of-a"), tenant(&b.url(), "key-of-b"));
        let system = setup(&tenants).link(link).start().await;
        let (of_a, of_b) = (system.agent("a", "session"), system.agent("b", "session"));
        assert_eq!(of_a.names().await, of_b.names().await);
        let calls = (0..20).map(|n| {
            let (agent, who) = if n % 2 == 0 { (of_a.clone(), "a") } else { (of_b.clone(), "b") };
            async move { agent.text("prod__search", json!({"who": who})).await }
        });
        for (n, text) in futures_util::future::join_all(calls).await.into_iter().enumerate() {
            assert_eq!(text, format!(r#"search {{"who":"{}"}}"#, if n % 2 == 0 { "a" } else { "b" }));
        }
        for (upstream, own, foreign) in [(&a, "a", "b"), (&b, "b", "a")] {
            assert_eq!(upstream.calls().len(), 10);
            for seen in upstream.seen() {
                let everything = format!("{:?} {}", seen.headers, seen.body);
                assert!(
                    everything.contains(&format!("key-of-{own}")) && !everything.contains(&format!("key-of-{foreign}"))
                );
            }
        }
        system.put("tenants/a/sessions/session/policy", json!({"allow": []})).await;
        assert!(of_a.names().await.is_empty());
        assert_eq!(of_b.names().await.len(), 2);
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn what_is_expired_deleted_revoked_or_never_written_allows_nothing() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    let servers = format!("servers: [{{id: s, url: \"{}\"}}]", upstream.url());
    let tenants = format!("{{acme: {{{servers}, default_policy: {{}}}}, strict: {{{servers}}}}}");
    let system = setup(&tenants).start().await;
    let nothing = "This session has no tools. Do not retry, and do not try other names.";
    let never = system.agent("strict", "s");
    assert!(never.names().await.is_empty(), "no policy and no default");
    assert_eq!(text_of(&never.call("s__t", json!({})).await), nothing);

    let agent = system.agent("acme", "s");
    system.put("tenants/acme/sessions/s/policy", json!({"expires_at": unix_s() + 5})).await;
    assert_eq!(agent.names().await.len(), 2);
    tokio::time::sleep(Duration::from_millis(5_100)).await;
    assert!(agent.names().await.is_empty(), "an expired policy denies, also where a default would allow");
    system.put("tenants/acme/sessions/s/policy", json!({})).await;
    assert_eq!(agent.names().await.len(), 2);
    system.admin(Method::DELETE, "tenants/acme/sessions/s/policy", Value::Null).await;
    assert!(agent.names().await.is_empty(), "a deleted policy denies");

    let other = system.agent("acme", "other");
    assert_eq!(other.names().await.len(), 2);
    system.put("tenants/acme/revoked", json!({"entries": ["s__*"]})).await;
    assert!(other.names().await.is_empty(), "a revoked tool is gone for every session");
    system.put("tenants/acme/revoked", json!({})).await;
    assert_eq!(other.names().await.len(), 2);
    system.put("tenants/acme/sessions/other/revoked", Value::Null).await;
    assert!(other.names().await.is_empty());
    system.put("tenants/acme/sessions/other/policy", json!({})).await;
    assert!(other.names().await.is_empty(), "a new policy takes no revocation back");
    system.put("tenants/acme/sessions/other/policy", json!({"allow": []})).await;
    system.admin(Method::DELETE, "tenants/acme/sessions/other/revoked", Value::Null).await;
    assert!(other.names().await.is_empty(), "taking it back gives what the policy says, not what the default would");
    system.put("tenants/acme/sessions/other/policy", json!({})).await;
    assert_eq!(other.names().await.len(), 2);
    system.put("tenants/acme/revoked", json!({"tenant": true})).await;
    assert!(other.names().await.is_empty(), "a revoked tenant has nothing");
    assert!(upstream.calls().is_empty());
    system.stop().await;
}

#[tokio::test]
async fn two_connections_and_a_platform_tool_share_a_name_and_all_are_called() {
    over_both(async |link| {
        let one = Upstream::start(Speaks::Legacy, &["delete_function"]).await.expect("an upstream");
        let two = Upstream::start(Speaks::Modern, &["delete_function"]).await.expect("an upstream");
        let platform = Upstream::start(Speaks::Modern, &[]).await.expect("an upstream");
        platform.breaks(Some(rollcall_loadtest::upstream::Reply::Raw(200, "application/json", r#"{"deleted":true}"#.into())));
        let owner = "ue03d5aec0000000000000000000000aa__neon";
        let tenants = format!(
            "{{acme: {{servers: [{{id: {owner}_46fb2cad6010, url: \"{}\"}}, {{id: {owner}_9c1d00aa11bb, url: \"{}\"}}], \
             tools: [{{name: delete_function, description: d, input_schema: {{type: object}}, http: {{url: \"{}\"}}}}], \
             default_policy: {{}}}}}}",
            one.url(),
            two.url(),
            platform.url()
        );
        let system = setup(&tenants).link(link).start().await;
        let agent = system.agent("acme", "s");
        let names = ["delete_function", "neon_46fb__delete_function", "neon_9c1d__delete_function"];
        let listed: Vec<String> = agent.names().await.into_iter().filter(|n| n != "get_api_spec").collect();
        assert_eq!(listed, names);
        let answer = |name: &'static str| {
            let agent = agent.clone();
            async move { agent.call(name, json!({"which": name})).await }
        };
        for name in names {
            answer(name).await;
        }
        let at_once = futures_util::future::join_all((0..30).map(|n| answer(names[n % 3]))).await;
        for (n, answer) in at_once.iter().enumerate() {
            let expected = match n % 3 {
                0 => r#"{"deleted":true}"#.to_owned(),
                i => format!(r#"delete_function {{"which":"{}"}}"#, names[i]),
            };
            assert_eq!(text_of(answer), expected);
        }
        assert_eq!(at_once[0]["result"]["structuredContent"], json!({"deleted": true}));
        for (upstream, name) in [(&one, names[1]), (&two, names[2])] {
            let calls = upstream.calls();
            assert_eq!(calls.len(), 11);
            assert!(calls.iter().all(|c| c["name"] == "delete_function" && c["arguments"]["which"] == name));
        }
        assert_eq!(platform.seen().len(), 11);
        assert!(platform.seen().iter().all(|s| s.json() == json!({"which": "delete_function"})));
        // The sessions of one server are lost: the next call finds its way by itself, and runs once.
        one.forget_sessions();
        assert_eq!(text_of(&answer(names[1]).await), format!(r#"delete_function {{"which":"{}"}}"#, names[1]));
        assert_eq!(one.sessions().0, 2, "opened anew, once");
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_renamed_server_keeps_its_denials_and_answers_under_its_new_name() {
    let upstream = Upstream::start(Speaks::Modern, &["run", "drop"]).await.expect("an upstream");
    let system = setup("{acme: {}}").more("upstream: {allow_networks: [127.0.0.0/8]}").start().await;
    system.put("tenants/acme/servers/neon_46fb2cad", json!({"url": upstream.url()})).await;
    system.put("tenants/acme/sessions/s/policy", json!({"deny": ["neon__drop"]})).await;
    let agent = system.agent("acme", "s");
    assert_eq!(agent.names().await, ["get_api_spec", "neon__run"]);
    let renamed = system.put("tenants/acme/servers/neon_46fb2cad", json!({"url": upstream.url(), "alias": "db"})).await;
    assert_eq!((&renamed["alias"], &renamed["renamed_from"]), (&json!("db"), &json!("neon")));
    assert_eq!(agent.names().await, ["db__run", "get_api_spec"], "no rename slips past a denial");
    let old = agent.call("neon__run", json!({})).await;
    assert_eq!(old["error"]["data"]["nearest"]["neon__run"], json!(["db__run"]));
    system.stop().await;
}

#[tokio::test]
async fn a_restart_changes_nothing_and_touches_no_upstream() {
    let upstream = Upstream::start(Speaks::Modern, &["b", "a"]).await.expect("an upstream");
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("file:{}", folder.path().join("data").display());
    let networks = "upstream: {allow_networks: [127.0.0.0/8]}";
    let system = setup("{acme: {default_policy: {}}}").store(&store).more(networks).start().await;
    system.put("tenants/acme/servers/x_46fb2cad", json!({"url": upstream.url()})).await;
    system.put("tenants/acme/sessions/s/policy", json!({"deny": ["x__b"]})).await;
    let list = async |system: &crate::harness::System| {
        let agent = system.agent("acme", "s");
        agent.client.legacy("/mcp", "tools/list", json!({})).await.expect("an answer").text()
    };
    let before = list(&system).await;
    let (_, issuer) = system.stop().await;
    let seen = upstream.seen().len();
    let system = setup("{acme: {default_policy: {}}}").store(&store).more(networks).issuer(issuer).start().await;
    assert_eq!(list(&system).await, before, "byte for byte");
    assert_eq!(upstream.seen().len(), seen, "no upstream was asked");
    assert_eq!(system.agent("acme", "s").text("x__a", json!({})).await, "a {}");
    system.stop().await;
}

#[tokio::test]
async fn a_tenant_whose_file_contradicts_itself_answers_503_and_the_others_run() {
    let tenants = r#"{
      broken: {servers: [{id: a, url: "http://127.0.0.1:1"}, {id: a, url: "http://127.0.0.1:2"}], default_policy: {}},
      reserved: {tools: [{name: tool_call, description: d, input_schema: {type: object}, http: {url: "http://127.0.0.1:1"}}]},
      good: {default_policy: {}}}"#;
    let system = setup(tenants).start().await;
    for (tenant, cause) in [("broken", "two servers claim the id a"), ("reserved", "tool_call")] {
        let answer = system.agent(tenant, "s").client.legacy("/mcp", "tools/list", json!({})).await.expect("an answer");
        assert_eq!(answer.status, 503);
        assert!(answer.text().contains(cause) && answer.headers.contains_key("retry-after"), "{}", answer.text());
    }
    assert!(system.agent("good", "s").names().await.is_empty());
    system.stop().await;
}

#[tokio::test]
async fn a_lost_bundle_narrows_where_it_was_denied() {
    let upstream = Upstream::start(Speaks::Modern, &["t", "u"]).await.expect("an upstream");
    let tenants = format!("{{acme: {{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}}}", upstream.url());
    let system = setup(&tenants).start().await;
    system.put("tenants/acme/bundles/dangerous", json!(["s__u"])).await;
    system.put("tenants/acme/sessions/s/policy", json!({"deny": ["bundle:dangerous"]})).await;
    let agent = system.agent("acme", "s");
    assert_eq!(agent.names().await, ["get_api_spec", "s__t"]);
    system.admin(Method::DELETE, "tenants/acme/bundles/dangerous", Value::Null).await;
    assert!(agent.names().await.is_empty(), "nobody knows any more what was denied");
    system.stop().await;
}

#[tokio::test]
async fn changes_under_load_are_never_missed() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    let folder = tempfile::tempdir().expect("a folder");
    for store in ["memory:".to_owned(), format!("file:{}", folder.path().join("data").display())] {
        let tenants = format!("{{acme: {{servers: [{{id: s, url: \"{}\"}}]}}}}", upstream.url());
        let system = std::sync::Arc::new(setup(&tenants).store(&store).start().await);
        let sessions = (0..12).map(|n| {
            let system = system.clone();
            async move {
                let session = format!("s{n}");
                let agent = system.agent("acme", &session);
                let path = format!("tenants/acme/sessions/{session}/policy");
                for round in 0..10 {
                    system.put(&path, json!({"allow": ["s__*"], "pinned": [round.to_string()]})).await;
                    assert_eq!(agent.names().await.len(), 2, "{session} {round}: allowed");
                    system.put(&path, json!({"allow": []})).await;
                    assert!(agent.names().await.is_empty(), "{session} {round}: what was answered is in effect");
                }
            }
        });
        futures_util::future::join_all(sessions).await;
        std::sync::Arc::into_inner(system).expect("the last one").stop().await;
    }
}
