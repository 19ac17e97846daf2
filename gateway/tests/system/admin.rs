//! The admin API: who may write what, what a write answers, and that no answer shows a secret.

use http::Method;
use rollcall_loadtest::upstream::{Speaks, Upstream, tool};
use serde_json::{Value, json};

use crate::harness::{setup, text_of, until};

const NETWORKS: &str = "upstream: {allow_networks: [127.0.0.0/8]}";
const NEON: &str = "tenants/acme/servers/neon";

#[tokio::test]
async fn a_tenant_is_built_over_the_api_and_taken_down_again() {
    let upstream = Upstream::start(Speaks::Legacy, &["run"]).await.expect("an upstream");
    let system = setup("{}").more(NETWORKS).start().await;
    let agent = system.agent("acme", "s");
    let unknown = agent.client.legacy("/mcp", "tools/list", json!({})).await.expect("an answer");
    assert_eq!(unknown.status, 403, "a tenant that nobody configured");
    system.put("tenants/acme", json!({"default_policy": {"allow": ["bundle:all"]}})).await;
    assert!(agent.names().await.is_empty());
    let written = system.put(NEON, json!({"url": upstream.url(), "headers": {"X-Key": "canary-secret"}})).await;
    assert_eq!((&written["alias"], &written["warnings"]), (&json!("neon"), &json!([])));
    system.put("tenants/acme/bundles/all", json!(["neon__*", "ask"])).await;
    assert_eq!(agent.names().await, ["get_api_spec", "neon__run"]);
    let ask = json!({"description": "d", "input_schema": {"type": "object"}, "http": {"url": "http://127.0.0.1:1/", "headers": {"x": "canary-secret"}}});
    system.put("tenants/acme/tools/ask", ask).await;
    assert_eq!(agent.names().await, ["ask", "get_api_spec", "neon__run"]);
    for path in
        [NEON, "tenants/acme/servers", "tenants/acme/tools/ask", "tenants/acme", "tenants/acme/bundles/all", "tenants"]
    {
        let shown = system.admin(Method::GET, path, Value::Null).await;
        assert_eq!(shown.status, 200, "{path}");
        assert!(!shown.text().contains("canary"), "{path}: {}", shown.text());
    }
    assert_eq!(system.admin(Method::DELETE, "tenants/acme/tools/ask", Value::Null).await.status, 200);
    assert_eq!(system.admin(Method::DELETE, NEON, Value::Null).await.status, 200);
    assert!(agent.names().await.is_empty());
    until("the upstream's session is deleted", async || upstream.sessions().1 == 0).await;
    system.put("tenants/acme/sessions/s/policy", json!({"allow": []})).await;
    system.put("tenants/acme/sessions/revoked/revoked", Value::Null).await;
    assert_eq!(system.admin(Method::DELETE, "tenants/acme", Value::Null).await.status, 200);
    let gone = agent.client.legacy("/mcp", "tools/list", json!({})).await.expect("an answer");
    assert_eq!(gone.status, 403);
    assert_eq!(system.admin(Method::GET, "tenants/acme", Value::Null).await.status, 404);
    // Its successor of the same name inherits no rights, and no revocation is lost.
    system.put("tenants/acme", json!({"default_policy": {}})).await;
    system.put(NEON, json!({"url": upstream.url()})).await;
    assert!(agent.names().await.is_empty(), "a session of the old tenant has no rights in the new one");
    assert!(!system.agent("acme", "new").names().await.is_empty());
    assert!(system.agent("acme", "revoked").names().await.is_empty(), "a revocation outlives the tenant's documents");
    system.stop().await;
}

#[tokio::test]
async fn keys_reach_their_tenants_only_and_readers_do_not_write() {
    let keys = "admin: {listen: 127.0.0.1:0, keys: [{id: a, secret: key-of-acme-admin, tenants: [acme]}, {id: r, secret: key-of-the-reader, tenants: [\"*\"], role: reader}]}";
    let system = setup("{acme: {}, other: {}}")
        .environment("ROLLCALL__ADMIN", keys.strip_prefix("admin: ").expect("a key"))
        .start()
        .await;
    let status = async |key: &str, method: Method, path: &str, body: Value| {
        system.admin_with(key, method, path, &[], body).await.status.as_u16()
    };
    let policy = "tenants/acme/sessions/s/policy";
    assert_eq!(status("key-of-acme-admin", Method::PUT, policy, json!({})).await, 200);
    assert_eq!(status("key-of-acme-admin", Method::PUT, "tenants/other/sessions/s/policy", json!({})).await, 403);
    assert_eq!(status("key-of-acme-admin", Method::GET, "tenants/other", Value::Null).await, 403);
    assert_eq!(status("key-of-the-reader", Method::GET, policy, Value::Null).await, 200);
    assert_eq!(status("key-of-the-reader", Method::PUT, policy, json!({})).await, 403);
    assert_eq!(status("key-of-the-reader", Method::POST, "tenants/acme/resolve", json!({"names": []})).await, 200);
    for path in [
        "tenants/acme/tools/resolve",
        "tenants/acme/bundles/resolve",
        "tenants/resolve",
        "tenants/acme/servers/resolve",
    ] {
        for method in [Method::PUT, Method::DELETE] {
            assert_eq!(status("key-of-the-reader", method, path, json!([])).await, 403, "{path}");
        }
    }
    for key in ["", "wrong", "key-of-acme-admi", "key-of-acme-adminx"] {
        assert_eq!(status(key, Method::GET, policy, Value::Null).await, 401, "{key}");
    }
    let listed = system.admin_with("key-of-acme-admin", Method::GET, "tenants", &[], Value::Null).await.json();
    assert_eq!(listed["tenants"], json!(["acme"]));
    let agent_side =
        system.client().with_token("key-of-acme-admin").send(Method::GET, "/admin/v1/tenants", &[], "").await;
    assert_eq!(agent_side.expect("an answer").status, 404, "the admin API has a listener of its own");
    system.stop().await;
}

#[tokio::test]
async fn what_the_file_owns_cannot_be_written_and_commands_come_from_it_alone() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    let tenants = format!(
        "{{acme: {{servers: [{{id: neon, url: \"{}\"}}], bundles: {{b: []}}, tools: [{{name: t, description: d, input_schema: {{type: object}}, http: {{url: \"http://127.0.0.1:1\"}}}}]}}}}",
        upstream.url()
    );
    let system = setup(&tenants).more(NETWORKS).start().await;
    let ask = json!({"description": "d", "input_schema": {"type": "object"}, "http": {"url": "http://127.0.0.1:1/"}});
    for (path, body) in [
        (NEON, json!({"url": upstream.url()})),
        ("tenants/acme", json!({})),
        ("tenants/acme/bundles/b", json!([])),
        ("tenants/acme/tools/t", ask),
    ] {
        let put = system.admin(Method::PUT, path, body).await;
        assert_eq!(
            (put.status.as_u16(), put.json()["managed_by"].as_str()),
            (409, Some("file")),
            "{path}: {}",
            put.text()
        );
        assert_eq!(system.admin(Method::DELETE, path, Value::Null).await.status, 409, "{path}");
    }
    let run = system.admin(Method::PUT, "tenants/acme/servers/evil", json!({"command": ["sh", "-c", "id"]})).await;
    assert_eq!(run.status, 422);
    assert!(run.text().contains("a command comes from the configuration file alone"), "{}", run.text());
    let literal = json!({"url": upstream.url(), "headers": {"X-Secret": "${HOME}"}});
    system.put("tenants/acme/servers/literal", literal).await;
    let sent = upstream.seen().into_iter().filter_map(|s| s.headers.get("x-secret").cloned()).next().expect("a header");
    assert_eq!(sent, "${HOME}", "nothing that was written over the API is expanded");
    system.stop().await;
}

#[tokio::test]
async fn addresses_inside_are_out_of_reach_of_what_the_api_writes() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    let system = setup("{acme: {default_policy: {}}}").start().await;
    for url in [
        upstream.url(),
        upstream.url().replace("127.0.0.1", "localhost"),
        upstream.url().replace("127.0.0.1", "[::ffff:127.0.0.1]"),
        "http://169.254.169.254/latest".into(),
        "http://10.0.0.1/".into(),
    ] {
        let written = system.put("tenants/acme/servers/inside", json!({"url": url})).await;
        assert_eq!(written["warnings"], json!(["the server is not available now: address_forbidden"]), "{url}");
    }
    assert!(upstream.seen().is_empty());
    system.stop().await;
}

#[tokio::test]
async fn writes_are_versioned_validated_whole_and_can_be_tried() {
    let system = setup("{acme: {}}").more(NETWORKS).start().await;
    let policy = "tenants/acme/sessions/s/policy";
    let tried = system.admin(Method::PUT, &format!("{policy}?dry_run=true"), json!({"allow": ["nope"]})).await;
    assert_eq!(tried.json()["warnings"], json!(["`nope` matches nothing today"]));
    assert_eq!((&tried.json()["changed"], &tried.json()["dry_run"]), (&json!(true), &json!(true)));
    assert_eq!(system.admin(Method::GET, policy, Value::Null).await.status, 404, "a dry run writes nothing");
    let first = system.put(policy, json!({})).await;
    assert_eq!(system.put(policy, json!({})).await["changed"], false);
    let tag = format!("\"{}\"", first["version"]);
    let shown = system.admin(Method::GET, policy, Value::Null).await;
    assert_eq!(shown.headers["etag"], tag.as_str());
    let with = async |tag: &str, body: Value| {
        system.admin_with("an-admin-key-for-tests", Method::PUT, policy, &[("if-match", tag)], body).await
    };
    let second = with(&tag, json!({"allow": []})).await;
    assert_eq!(second.status, 200);
    let stale = with(&tag, json!({})).await;
    assert_eq!((stale.status.as_u16(), &stale.json()["version"]), (412, &second.json()["version"]));
    let bad = json!({"alow": [], "deny": ["a b", "*a*b*"], "require": {"readonly": true}, "expires_at": -1});
    let refused = system.admin(Method::PUT, policy, bad).await;
    assert_eq!(refused.status, 422);
    let problems = refused.json()["problems"].as_array().expect("problems").len();
    assert_eq!(problems, 5, "{}", refused.text());
    assert!(refused.text().contains("line 1 column"), "each has its place: {}", refused.text());
    for body in ["{", "[]", "", "{\"allow\":[],\"allow\":[]}"] {
        let client = rollcall_loadtest::client::Client::new(format!(
            "http://{}",
            system.inner().gateway.admin.expect("an address")
        ));
        let answer = client
            .with_token("an-admin-key-for-tests")
            .send(Method::PUT, &format!("/admin/v1/{policy}"), &[], body)
            .await;
        assert_eq!(answer.expect("an answer").status, 422, "{body}");
    }
    for (path, status) in [
        ("nothing", 404),
        ("tenants/a b/servers/x", 422),
        ("tenants/acme/servers/a%20b", 422),
        ("tenants/acme/servers/none", 404),
        ("tenants/acme/sessions/s/view/x", 404),
    ] {
        assert_eq!(system.admin(Method::GET, &path.replace(' ', "%20"), Value::Null).await.status, status, "{path}");
    }
    assert_eq!(system.admin(Method::POST, "tenants/acme", json!({})).await.status, 405);
    for query in ["dry_run", "dry_run=1", "dryrun=true"] {
        let answer = system.admin(Method::PUT, &format!("{policy}?{query}"), json!({})).await;
        assert_eq!(answer.status, 422, "a misspelt dry run must not write: {query}");
    }
    system.stop().await;
}

#[tokio::test]
async fn two_servers_cannot_take_one_alias() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    let system = setup("{acme: {}}").more(NETWORKS).start().await;
    system.put("tenants/acme/servers/a", json!({"url": upstream.url(), "alias": "neon"})).await;
    let taken =
        system.admin(Method::PUT, "tenants/acme/servers/b", json!({"url": upstream.url(), "alias": "neon"})).await;
    assert_eq!(taken.status, 409);
    assert!(taken.text().contains("the alias neon of the server b is taken by the server a"), "{}", taken.text());
    let tried = system
        .admin(Method::PUT, "tenants/acme/servers/neon_46fb2cad?dry_run=true", json!({"url": upstream.url()}))
        .await;
    assert_eq!(tried.json()["alias"], "neon_46fb", "a dry run tells the name that a server would get");
    system.put("tenants/acme/bundles/mine", json!(["neon__*", "other__x", "server:a"])).await;
    let renamed = json!({"url": upstream.url(), "alias": "db"});
    let tried = system.admin(Method::PUT, "tenants/acme/servers/a?dry_run=true", renamed).await.json();
    assert_eq!((&tried["renamed_from"], &tried["affected"]), (&json!("neon"), &json!(["bundle mine: neon__*"])));
    assert_eq!(system.admin(Method::GET, "tenants/acme/servers/neon_46fb2cad", Value::Null).await.status, 404);
    let reserved = json!({"description": "d", "input_schema": {"type": "object"}, "http": {"url": "http://x"}});
    assert_eq!(system.admin(Method::PUT, "tenants/acme/tools/tool_call", reserved).await.status, 409);
    system.stop().await;
}

#[tokio::test]
async fn view_resolve_and_explain_say_what_a_request_would_find() {
    let upstream = Upstream::start(Speaks::Modern, &["run", "drop"]).await.expect("an upstream");
    let system = setup("{acme: {default_policy: {allow: [\"neon__run\"]}}}").more(NETWORKS).start().await;
    system.put(NEON, json!({"url": upstream.url()})).await;
    system.put("tenants/acme/servers/down", json!({"url": "http://127.0.0.1:1/mcp"})).await;
    system.put("tenants/acme/sessions/s/policy", json!({"allow": ["neon__*", "down__*"], "deny": ["*__drop"]})).await;
    let agent = system.agent("acme", "s");
    let view = system.admin(Method::GET, "tenants/acme/sessions/s/view", Value::Null).await.json();
    let listed = agent.client.legacy("/mcp", "tools/list", json!({})).await.expect("an answer").json();
    assert_eq!(view["view"], listed["result"]["_meta"]["io.rollcall/view"]);
    assert_eq!(
        (&view["tools"], &view["policy"], &view["count"]),
        (&json!(["neon__run"]), &json!("session"), &json!(1))
    );
    let default = system.admin(Method::GET, "tenants/acme/sessions/another/view", Value::Null).await.json();
    assert_eq!(default["policy"], "default");
    let explain = async |name: &str| {
        system.admin(Method::GET, &format!("tenants/acme/explain?session=s&name={name}"), Value::Null).await.json()
    };
    let allowed = explain("neon__run").await;
    assert_eq!((&allowed["verdict"], &allowed["allowed_by"]), (&json!("allowed"), &json!(["neon__*"])));
    let denied = explain("neon__drop").await;
    assert_eq!(
        (&denied["verdict"], &denied["denied_by"], &denied["real_name"]),
        (&json!("not_allowed"), &json!(["*__drop"]), &json!("drop"))
    );
    assert_eq!(explain("down__x").await["verdict"], "unavailable");
    assert_eq!(explain("nothing").await["verdict"], "unknown");
    let resolve = async |body: Value| system.admin(Method::POST, "tenants/acme/resolve", body).await;
    let both = resolve(json!({"names": ["neon__run", "neon__drop"]})).await;
    assert_eq!(both.status, 200, "registered, whoever may use them");
    assert_eq!(both.json()["tools"][1]["real_name"], "drop");
    let of_session = resolve(json!({"names": ["neon__run", "neon__drop", "gone"], "session": "s"})).await;
    assert_eq!(of_session.status, 422);
    assert_eq!(
        (&of_session.json()["not_allowed"], &of_session.json()["unknown"]),
        (&json!(["neon__drop"]), &json!(["gone"]))
    );
    system.stop().await;
}

#[tokio::test]
async fn a_server_that_moves_does_not_keep_the_catalog_of_its_old_address() {
    let one = Upstream::start(Speaks::Modern, &["old"]).await.expect("an upstream");
    let two = Upstream::start(Speaks::Modern, &["new"]).await.expect("an upstream");
    let system = setup("{acme: {default_policy: {}}}").more(NETWORKS).start().await;
    system.put(NEON, json!({"url": one.url()})).await;
    let agent = system.agent("acme", "s");
    assert_eq!(agent.text("neon__old", json!({})).await, "old {}");
    system.put(NEON, json!({"url": two.url()})).await;
    assert_eq!(agent.names().await, ["get_api_spec", "neon__new"]);
    assert_eq!(agent.text("neon__new", json!({})).await, "new {}");
    two.set_tools_silently(vec![tool("newer")]);
    let refreshed = system.admin(Method::POST, "tenants/acme/servers/neon/refresh", Value::Null).await;
    assert_eq!(refreshed.status, 200);
    assert!(agent.names().await.contains(&"neon__newer".to_owned()));
    let gone = agent.call("neon__new", json!({})).await;
    assert!(text_of(&gone).contains("no tool neon__new"), "{gone}");
    system.stop().await;
}

#[tokio::test]
async fn probes_and_metrics_need_no_credentials() {
    let system = setup("{acme: {}}").start().await;
    for (path, status) in [("/livez", 200), ("/readyz", 200), ("/readyz/", 200), ("/metrics", 200), ("/x", 404)] {
        let answer = system.ops().send(Method::GET, path, &[], "").await.expect("an answer");
        assert_eq!(answer.status, status, "{path}");
    }
    assert!(system.metrics().await.contains("rollcall_panics 0"));
    assert_eq!(system.ops().send(Method::POST, "/livez", &[], "").await.expect("an answer").status, 405);
    system.stop().await;
}
