//! Descriptions of HTTP APIs as platform tools. Real ones are called as swagger-client calls them.

use std::collections::BTreeMap;

use http::Method;
use rollcall_loadtest::upstream::{Reply, Seen, Speaks, Upstream};
use serde_json::{Value, json};

use crate::harness::{Agent, peers_folder, setup, text_of};
use crate::peers::{install, node};

const NETWORKS: &str = "upstream: {allow_networks: [127.0.0.0/8]}";

/// An HTTP service that takes everything, and its address.
async fn service() -> (Upstream, String) {
    let service = Upstream::start(Speaks::Modern, &[]).await.expect("a service");
    service.breaks(Some(Reply::Raw(200, "application/json", "{}".into())));
    let base = service.url().trim_end_matches("/mcp").to_owned();
    (service, base)
}

fn shop(paths: Value) -> Value {
    json!({"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"}, "paths": paths})
}

fn operation(id: &str) -> Value {
    json!({"operationId": id, "summary": format!("Does {id}.")})
}

/// A query or a form as its pairs, in order.
fn pairs(text: &str) -> Vec<(String, String)> {
    let mut pairs: Vec<_> = url::form_urlencoded::parse(text.as_bytes()).into_owned().collect();
    pairs.sort();
    pairs
}

/// Whether what arrived is what another client would have sent; nothing if it is, both otherwise.
fn differs(seen: &Seen, request: &Value) -> Option<String> {
    let url = url::Url::parse(request["url"].as_str().unwrap_or_default()).expect("an address");
    let here = url::Url::parse("http://h").and_then(|base| base.join(&seen.path)).expect("an address");
    // Encodings may differ where they mean the same.
    let segments = |url: &url::Url| -> Vec<String> {
        let parts = url.path_segments().into_iter().flatten();
        parts.map(|part| percent_encoding::percent_decode_str(part).decode_utf8_lossy().into_owned()).collect()
    };
    let there = segments(&url);
    // The server of the description may have a path; ours has none.
    let path = segments(&here);
    let header = |name: &str| seen.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let wanted = request["body"].as_str().unwrap_or_default();
    let body = match header("content-type").starts_with("application/x-www-form-urlencoded") {
        true => pairs(&seen.body) == pairs(wanted),
        false => seen.json() == serde_json::from_str::<Value>(wanted).unwrap_or_default(),
    };
    let headers = request["headers"].as_object().into_iter().flatten();
    let headers = headers.filter(|(name, _)| !["accept", "content-type"].contains(&name.to_ascii_lowercase().as_str()));
    let no_space = |text: &str| text.replace(", ", ",");
    let headers = headers
        .into_iter()
        .all(|(name, value)| no_space(&header(name)) == no_space(value.as_str().unwrap_or_default()));
    let same = there.ends_with(&path)
        && pairs(url.query().unwrap_or_default()) == pairs(here.query().unwrap_or_default())
        && request["method"].as_str() == Some(seen.method.as_str())
        && body
        && headers;
    (!same).then(|| format!("sent {} {} {}\nwant {request}", seen.method, seen.path, seen.body))
}

/// The name that an operation gets, by the plain rule.
fn named(operation: &str, description: &Value) -> String {
    let (method, path) = operation.split_once(' ').expect("a method");
    let id = description["paths"][path][method.to_ascii_lowercase()]["operationId"].as_str();
    let plain = |text: &str| text.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_");
    match id {
        Some(id) => plain(id),
        None => {
            let words = plain(path);
            let words: Vec<&str> = words.split('_').filter(|word| !word.is_empty()).collect();
            format!("{}_{}", method.to_ascii_lowercase(), words.join("_"))
        }
    }
}

/// Imports a description, calls each of its tools, and gives (tools, skipped, compared, arguments that did not fit).
async fn compare(file: &str, as_text: Option<&str>) -> (usize, usize, usize, usize) {
    let folder = peers_folder().join("node_modules");
    let json_file = folder.join(file);
    let description: Value = serde_json::from_slice(&std::fs::read(&json_file).expect("a file")).expect("JSON");
    let made = std::process::Command::new(node())
        .arg(peers_folder().join("openapi_requests.mjs"))
        .arg(&json_file)
        .output()
        .expect("Node");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let cases: Vec<Value> = serde_json::from_slice(&made.stdout).expect("JSON");
    let (service, base) = service().await;
    let system = setup("{}").more(NETWORKS).start().await;
    system.put("tenants/acme", json!({"default_policy": {}, "defer_above": 100_000})).await;
    let document = match as_text {
        Some(file) => json!(std::fs::read_to_string(folder.join(file)).expect("a file")),
        None => description.clone(),
    };
    let answer = system.put("tenants/acme/apis/real", json!({"document": document, "url": base})).await;
    let count = |key: &str| answer[key].as_array().expect("a list").len();
    let counts = (count("tools"), count("skipped"));
    // Every operation is a tool or is named with the reason why it is none.
    let methods = ["get", "put", "post", "delete", "patch", "head", "options", "trace"];
    let items = description["paths"].as_object().expect("paths").values();
    let all: usize = items.map(|item| methods.iter().filter(|m| item.get(**m).is_some()).count()).sum();
    assert_eq!(counts.0 + counts.1, all, "{file}");

    let agent = system.agent("acme", "s");
    let tools: BTreeMap<String, Value> =
        agent.list("/mcp").await.into_iter().map(|t| (t["name"].as_str().expect("a name").to_owned(), t)).collect();
    let skipped: Vec<&str> =
        answer["skipped"].as_array().expect("a list").iter().filter_map(|s| s["operation"].as_str()).collect();
    let (mut compared, mut unfit) = (0, 0);
    for case in &cases {
        let operation = case["operation"].as_str().expect("an operation");
        if skipped.contains(&operation) {
            continue;
        }
        let name = named(operation, &description);
        // One that is too long ends in a hash.
        let fits =
            |tool: &&String| **tool == name || name.len() > 64 && tool.len() == 64 && name.starts_with(&tool[..55]);
        let described = &description["paths"][operation.split_once(' ').expect("a path").1];
        let described = described[case["request"]["method"].as_str().expect("a method").to_ascii_lowercase()].clone();
        let is_of = |tool: &&String| {
            let text = tools[*tool]["description"].as_str().expect("a description");
            described["summary"].as_str().is_none_or(|summary| text.contains(summary.trim()))
        };
        let found: Vec<&String> = tools.keys().filter(fits).filter(is_of).collect();
        let [name] = found[..] else { panic!("{file}: {found:?} for {operation}, which is {name}") };
        let tool = &tools[name];
        let mut arguments = serde_json::Map::new();
        for (name, value) in case["parameters"].as_object().expect("parameters") {
            arguments
                .insert(name.replace(|c: char| !c.is_ascii_alphanumeric() && !"-._".contains(c), "_"), value.clone());
        }
        let properties = &tool["inputSchema"]["properties"];
        if let Some(body) = case.get("body") {
            let apart = body.as_object().filter(|members| members.keys().all(|key| properties.get(key).is_some()));
            match apart.filter(|members| properties.get("body").is_none() || members.contains_key("body")) {
                Some(members) => arguments.extend(members.clone()),
                None => drop(arguments.insert("body".to_owned(), body.clone())),
            }
        }
        let before = service.seen().len();
        let called = agent.call(name, Value::Object(arguments)).await;
        let text = text_of(&called);
        if text.contains("do not fit") {
            unfit += 1;
            continue;
        }
        let seen = service.seen();
        assert_eq!(seen.len(), before + 1, "{file}: {operation}: {called}");
        if let Some(difference) = differs(&seen[before], &case["request"]) {
            panic!("{file}: {operation}\n{difference}");
        }
        compared += 1;
    }
    system.stop().await;
    (counts.0, counts.1, compared, unfit)
}

#[tokio::test]
async fn real_descriptions_are_called_as_another_client_calls_them() {
    install();
    let of_readme = |name: &str| format!("@readme/oas-examples/{name}");
    let cases = [
        ("@octokit/openapi/generated/api.github.com.json".to_owned(), None),
        (of_readme("3.0/json/petstore.json"), None),
        (of_readme("3.0/json/star-trek.json"), Some(of_readme("3.0/yaml/star-trek.yaml"))),
        (of_readme("3.0/json/parameters-style.json"), None),
        (of_readme("3.1/json/parameters-style.json"), None),
        (of_readme("3.0/json/circular.json"), None),
        (of_readme("3.1/json/train-travel.json"), Some(of_readme("3.1/yaml/train-travel.yaml"))),
        (of_readme("3.1/json/readme.json"), None),
        ("@scalar/galaxy/dist/3.1.json".to_owned(), Some("@scalar/galaxy/dist/3.1.yaml".to_owned())),
    ];
    let mut total = (0, 0);
    for (file, yaml) in &cases {
        let (tools, skipped, compared, unfit) = compare(file, yaml.as_deref()).await;
        println!(
            "{file}: {tools} tools, {skipped} skipped, {compared} requests alike, {unfit} samples that did not fit"
        );
        assert_eq!(compared + unfit, tools, "{file}");
        total = (total.0 + compared, total.1 + unfit);
    }
    assert!(total.0 > 1_250 && total.1 * 20 < total.0, "{total:?}");
}

#[tokio::test]
async fn an_api_comes_changes_and_goes_whole() {
    let (service, base) = service().await;
    let system = setup("{}").more(NETWORKS).start().await;
    system.put("tenants/acme", json!({"default_policy": {"allow": ["group:shop"]}})).await;
    let agent = system.agent("acme", "s");
    let body = |paths: Value| json!({"document": shop(paths), "url": base, "headers": {"X-Key": "canary"}});
    let first = json!({"/a": {"get": operation("list"), "post": operation("add")}, "/b": {"get": operation("count")}});

    let dry = system.admin(Method::PUT, "tenants/acme/apis/shop?dry_run=true", body(first.clone())).await.json();
    assert_eq!((&dry["dry_run"], &dry["tools"]), (&json!(true), &json!(["add", "count", "list"])), "{dry}");
    assert_eq!(agent.names().await, [] as [&str; 0], "a dry run writes nothing");
    let answer = system.put("tenants/acme/apis/shop", body(first.clone())).await;
    assert_eq!((&answer["changed"], &answer["removed"], &answer["skipped"]), (&json!(true), &json!([]), &json!([])));
    assert_eq!(agent.names().await, ["add", "count", "get_api_spec", "list"]);
    agent.call("list", json!({})).await;
    let seen = service.seen();
    assert_eq!((seen[0].path.as_str(), seen[0].headers["x-key"].to_str().ok()), ("/a", Some("canary")));
    let again = system.put("tenants/acme/apis/shop", body(first)).await;
    assert_eq!(again["changed"], false, "{again}");

    let second = json!({"/a": {"get": operation("list")}, "/c": {"delete": operation("drop")}});
    let answer = system.put("tenants/acme/apis/shop", body(second.clone())).await;
    assert_eq!(answer["removed"], json!(["add", "count"]), "{answer}");
    assert_eq!(agent.names().await, ["drop", "get_api_spec", "list"]);
    let listed = system.admin(Method::GET, "tenants/acme/apis", Value::Null).await.json();
    assert_eq!(listed, json!({"apis": [{"managed_by": "store", "value": {"id": "shop", "tools": ["drop", "list"]}}]}));

    // One of its tools is not touched by itself, and no other API takes its names.
    let tool = json!({"description": "d", "input_schema": {"type": "object"}, "http": {"url": base}});
    for (method, path, body) in [
        (Method::PUT, "tenants/acme/tools/list", tool.clone()),
        (Method::DELETE, "tenants/acme/tools/list", Value::Null),
        (Method::PUT, "tenants/acme/apis/other", body(second)),
        (Method::PUT, "tenants/acme/apis/other", body(json!({"/x": {"get": operation("tool_search")}}))),
    ] {
        let answer = system.admin(method.clone(), path, body).await;
        assert_eq!(answer.status, 409, "{method} {path}: {}", answer.text());
    }
    let shown = system.admin(Method::GET, "tenants/acme/tools/list", Value::Null).await.text();
    assert!(shown.contains(r#""api":"shop""#) && !shown.contains("canary"), "{shown}");
    system.admin(Method::DELETE, "tenants/acme/apis/shop", Value::Null).await;
    assert_eq!(agent.names().await, [] as [&str; 0]);
    assert_eq!(system.admin(Method::DELETE, "tenants/acme/apis/shop", Value::Null).await.status, 404);
    system.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_an_import_is_named_with_its_place() {
    let system = setup("{}").more(NETWORKS).start().await;
    system.put("tenants/acme", json!({})).await;
    let client =
        rollcall_loadtest::client::Client::new(format!("http://{}", system.inner().gateway.admin.expect("an address")));
    let client = client.with_token(crate::harness::ADMIN_KEY);
    let case = async |body: &str, status: u16, problem: &str| {
        let sent =
            client.send(Method::PUT, "/admin/v1/tenants/acme/apis/x", &[], body.to_owned()).await.expect("an answer");
        let text = sent.text();
        assert!(sent.status == status && text.contains(problem), "{body}: {} {text}", sent.status);
    };
    case("{}", 422, "line 1 column 1: `document` is missing").await;
    case(
        "{\"document\": {\"openapi\":\n \"3.1.0\", \"x\": \"ü\"}, \"urll\": 1}",
        422,
        "line 2 column 30: unknown key `urll`; did you mean `url`?",
    )
    .await;
    case(r#"{"document": {"swagger": "2.0"}}"#, 422, "document: this is Swagger 2.0").await;
    case(r#"{"document": "openapi: 3.1.0\npaths: ["}"#, 422, "document: line 2").await;
    case(r#"{"document": {"openapi": "3.1.0", "paths": {"/a": {"get": {}}}}}"#, 422, "GET /a: the server").await;
    case(r#"{"document": {}, "prefix": "ä", "include": ["FETCH /"], "url": "ftp://h"}"#, 422, "include[0]").await;
    case(r#"{"document": {}, "headers": {"Host": "x"}}"#, 422, "computed by Rollcall").await;
    let private = shop(json!({"/a": {"get": operation("a")}})).to_string();
    let large = format!(r#"{{"document": {private}, "url": "https://h", "pad": "{}"}}"#, "x".repeat(2 << 20));
    case(&large, 422, "unknown key `pad`").await;
    case(&format!("{}{}", " ".repeat(17 << 20), "{}"), 413, "too_large").await;
    system.stop().await;
}

/// What an agent with an API of a thousand operations is told.
#[tokio::test]
async fn a_large_api_is_deferred_like_a_large_server() {
    let (service, base) = service().await;
    let system = setup("{}").more(NETWORKS).start().await;
    system.put("tenants/acme", json!({"default_policy": {"pinned": ["op_7"]}})).await;
    let tool = json!({"group": "hand", "description": "d", "input_schema": {"type": "object"}, "http": {"url": base}});
    system.put("tenants/acme/tools/by_hand", tool).await;
    let paths: serde_json::Map<String, Value> =
        (0..111).map(|n| (format!("/op/{n}"), json!({"get": operation(&format!("op_{n}"))}))).collect();
    system.put("tenants/acme/apis/big", json!({"document": shop(Value::Object(paths)), "url": base})).await;
    let agent: Agent = system.agent("acme", "s");
    let listed = ["by_hand", "get_api_spec", "op_7", "tool_call", "tool_describe", "tool_search"];
    assert_eq!(agent.names().await, listed);
    let found = agent.text("tool_search", json!({"query": "op_42"})).await;
    assert!(found.contains("op_42"), "{found}");
    agent.call("tool_call", json!({"name": "op_42", "arguments": {}})).await;
    assert_eq!(service.seen().iter().map(|s| s.path.as_str()).collect::<Vec<_>>(), ["/op/42"]);
    let text = agent
        .client
        .send(Method::GET, "/v1/manifest", &[("accept", "text/plain")], "")
        .await
        .expect("an answer")
        .text();
    assert!(text.contains("\n- [big] op_7, and 110 tools that are not listed\n- [hand] by_hand\n"), "{text}");
    let json = agent.client.send(Method::GET, "/v1/manifest", &[], "").await.expect("an answer").json();
    assert_eq!(json["custom_tools"]["not_listed"], json!({"big": 110}), "{json}");
    system.stop().await;
}

#[tokio::test]
async fn an_api_of_the_file_is_the_files_own() {
    let (service, base) = service().await;
    let description = format!(
        "openapi: 3.0.3\nservers: [{{url: '{base}/v1'}}]\npaths:\n  /a/{{id}}:\n    get: {{operationId: a, parameters: [{{name: id, in: path, required: true}}]}}\n"
    );
    let tenants =
        "{acme: {apis: [{id: shop, file: shop.yaml, prefix: shop_, headers: {X-Key: '${KEY}'}}], default_policy: {}}}";
    let system = setup(tenants).file("shop.yaml", &description).environment("KEY", "canary").start().await;
    let agent = system.agent("acme", "s");
    assert_eq!(agent.names().await, ["get_api_spec", "shop_a"]);
    agent.call("shop_a", json!({"id": 7})).await;
    let seen = service.seen();
    assert_eq!((seen[0].path.as_str(), seen[0].headers["x-key"].to_str().ok()), ("/v1/a/7", Some("canary")));
    for method in [Method::PUT, Method::DELETE] {
        let body = json!({"document": shop(json!({"/a": {"get": operation("a")}})), "url": base});
        let answer = system.admin(method, "tenants/acme/apis/shop", body).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["managed_by"]), (409, &json!("file")));
    }
    system.stop().await;
}
