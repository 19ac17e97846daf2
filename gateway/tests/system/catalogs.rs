//! Real catalogs as one tenant's registry: a set of our own always, and the public one where `ROLLCALL_CATALOGS` names it.
//!
//! What is listed and described is compared with the files, not with what the program made of them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use rollcall_loadtest::upstream::{Speaks, Upstream};
use serde_json::{Value, json};

use crate::harness::{setup, text_of};

/// Server name → its tools, as the file has them.
type Catalogs = BTreeMap<String, Vec<Value>>;

fn read(folder: &Path) -> Catalogs {
    let mut out = Catalogs::new();
    let mut folders = vec![folder.to_owned()];
    folders.extend(Some(folder.join("large")).filter(|f| f.is_dir()));
    for entry in
        folders.iter().flat_map(|f| std::fs::read_dir(f).expect("a folder")).map(|e| e.expect("an entry").path())
    {
        let name = entry.file_name().expect("a name").to_string_lossy().into_owned();
        let text = if let Some(_stem) = name.strip_suffix(".json.gz") {
            let output = std::process::Command::new("gzip").args(["-dc"]).arg(&entry).output().expect("gzip");
            String::from_utf8(output.stdout).expect("text")
        } else if name.ends_with(".json") {
            let mut text = String::new();
            std::fs::File::open(&entry).and_then(|mut f| f.read_to_string(&mut text)).expect("a file");
            text
        } else {
            continue;
        };
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        if let Some(tools) = value["tools"].as_array() {
            let server = name.trim_end_matches(".gz").trim_end_matches(".json").to_owned();
            out.insert(server, tools.clone());
        }
    }
    out
}

/// Every tool of every catalog is listed, callable by its own name, and described with the schema that was sent.
async fn serve_all(catalogs: &Catalogs) {
    let mut upstreams = Vec::new();
    let mut servers = Vec::new();
    for (name, tools) in catalogs {
        let upstream = Upstream::start(Speaks::Modern, &[]).await.expect("an upstream");
        upstream.set_tools(tools.clone());
        servers.push(format!("{{id: {name}, url: \"{}\"}}", upstream.url()));
        upstreams.push(upstream);
    }
    let system =
        setup(&format!("{{acme: {{servers: [{}], defer_above: 100000, default_policy: {{}}}}}}", servers.join(", ")))
            .start()
            .await;
    let agent = system.agent("acme", "s");
    let total: usize = catalogs.values().map(Vec::len).sum();
    crate::harness::until("all are listed", async || list_all(&agent).await.len() == total + 1).await;
    let listed = list_all(&agent).await;
    let names: Vec<&str> = listed.iter().filter_map(|t| t["name"].as_str()).collect();
    let distinct: BTreeSet<&&str> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "all names are distinct");
    for name in &names {
        assert!(name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)), "{name}");
    }
    // Each tool once, untouched but for its name.
    let nameless = |tool: &Value| {
        let mut tool = tool.clone();
        tool["name"] = Value::Null;
        tool.to_string()
    };
    let mut expected: Vec<String> = catalogs.values().flatten().map(nameless).collect();
    let mut found: Vec<String> = listed.iter().filter(|t| t["name"] != "get_api_spec").map(nameless).collect();
    expected.sort();
    found.sort();
    assert!(expected == found, "every member of every definition is relayed");
    for (server, tools) in catalogs {
        let own = agent.list(&format!("/servers/{server}/mcp")).await;
        assert!(own == *tools, "{server}: the server's own list, in its own order");
        let Some(first) = tools.first().and_then(|t| t["name"].as_str()) else { continue };
        let called = agent.call_at(&format!("/servers/{server}/mcp"), first, json!({})).await;
        assert_eq!(text_of(&called), format!("{first} {{}}"), "{server}");
    }
    describe_all(&agent, &listed).await;
    system.stop().await;
}

async fn list_all(agent: &crate::harness::Agent) -> Vec<Value> {
    let mut all = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
        let answer = agent.client.legacy("/mcp", "tools/list", params).await.expect("an answer").json();
        all.extend(answer["result"]["tools"].as_array().expect("tools").iter().cloned());
        match answer["result"].get("nextCursor") {
            Some(next) => cursor = next.clone(),
            None => return all,
        }
    }
}

/// Specs in hundreds. A schema without references is the one that was sent; one with them is so once they are resolved.
async fn describe_all(agent: &crate::harness::Agent, listed: &[Value]) {
    let tools: Arc<Vec<&Value>> = Arc::new(listed.iter().filter(|t| t["name"] != "get_api_spec").collect());
    for chunk in tools.chunks(100) {
        let names: Vec<&Value> = chunk.iter().map(|t| &t["name"]).collect();
        let answer = agent.call("get_api_spec", json!({"tool_names": names})).await;
        let document: Value = serde_json::from_str(&text_of(&answer)).expect("a document");
        assert_eq!(document["paths"].as_object().map(serde_json::Map::len), Some(chunk.len()));
        for tool in chunk {
            let name = tool["name"].as_str().expect("a name");
            let pointer = format!("#/components/schemas/{name}.input");
            let schema = &document["components"]["schemas"][format!("{name}.input")];
            let restored: Value = serde_json::from_str(&schema.to_string().replace(&pointer, "#")).expect("JSON");
            let mut sent = tool["inputSchema"].clone();
            if let Some(id) = sent.get("$id").and_then(Value::as_str).map(str::to_owned) {
                assert!(!id.is_empty());
                sent["$id"] = "#".into();
            }
            assert_eq!(restored, sent, "{name}");
            for reference in references(schema) {
                let path = reference.strip_prefix('#').expect("local");
                assert!(document.pointer(&percent_decode(path)).is_some(), "{name}: {reference} leads nowhere");
            }
        }
    }
}

fn percent_decode(text: &str) -> String {
    text.replace("%20", " ").replace("%25", "%")
}

/// Local references of a schema, wherever they stand.
fn references(schema: &Value) -> Vec<String> {
    match schema {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| match value.as_str() {
                Some(text) if key == "$ref" && text.starts_with('#') => vec![text.to_owned()],
                _ => references(value),
            })
            .collect(),
        Value::Array(list) => list.iter().flat_map(references).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

#[tokio::test]
async fn a_set_of_our_own_is_served_faithfully() {
    let catalogs = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/catalogs"));
    assert!(catalogs.values().map(Vec::len).sum::<usize>() >= 20, "the set is there");
    serve_all(&catalogs).await;
}

#[tokio::test]
async fn every_public_catalog_is_served_faithfully_where_it_is_at_hand() {
    match std::env::var_os("ROLLCALL_CATALOGS") {
        Some(folder) => {
            let catalogs = read(Path::new(&folder));
            assert_eq!(catalogs.values().map(Vec::len).sum::<usize>(), 3682);
            serve_all(&catalogs).await;
        }
        // Said aloud: without the folder only our own set was checked.
        None => println!("ROLLCALL_CATALOGS is not set: the public catalogs were not checked"),
    }
}
