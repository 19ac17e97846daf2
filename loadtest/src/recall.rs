//! `recall`: how well the search finds what people ask for. Every catalog becomes an MCP server behind a real Rollcall, and
//! every query is asked over HTTP as an agent asks it.
//!
//! A query is found at k if one of its right tools is among the first k. Tokens are counted as bytes of what a model reads
//! of an answer of five tools, divided by four.

#![expect(clippy::indexing_slicing, reason = "reading a member that is not there gives null")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use http::Method;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::Instant;

use crate::client::Client;
use crate::issuer::Issuer;
use crate::programs::{self, Running};
use crate::redis::free_port;
use crate::upstream::{Speaks, Upstream, tool};

const ADMIN_KEY: &str = "an-operators-key-for-tests";
const TENANT: &str = "recall";
/// Longest wait until every server is listed.
const LISTED: Duration = Duration::from_secs(120);
/// How many are asked for.
const ASKED_FOR: usize = 5;

#[derive(Args, Clone, Debug)]
pub struct Options {
    /// A folder of `tools/list` results, `.json` or `.json.gz`: a file is a server of that name.
    #[arg(long)]
    catalogs: PathBuf,
    /// A line is a query, a tab, and its right tools as `<server>/<tool>`, separated by spaces.
    #[arg(long)]
    queries: PathBuf,
    /// Fails where the share of queries that are found at 3 is less.
    #[arg(long, default_value_t = 0.0)]
    at_least: f64,
    /// Tools to fill up to with generated ones, to see how the latency grows.
    #[arg(long, default_value_t = 0)]
    fill: usize,
    /// Prints the queries whose right tools are not among the first five.
    #[arg(long)]
    misses: bool,
}

struct Query {
    text: String,
    right: BTreeSet<String>,
}

/// The tools of a catalog, however it is wrapped.
fn tools_of(path: &Path) -> Result<Vec<Value>, String> {
    let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let bytes = std::fs::read(path).map_err(|e| failed(&e))?;
    let text = if path.extension().is_some_and(|end| end == "gz") {
        let mut text = String::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).map_err(|e| failed(&e))?;
        text
    } else {
        String::from_utf8(bytes).map_err(|e| failed(&e))?
    };
    let value: Value = serde_json::from_str(&text).map_err(|e| failed(&e))?;
    let list = ["/tools", "/result/tools", ""].into_iter().find_map(|at| value.pointer(at)?.as_array());
    list.cloned().ok_or_else(|| failed(&"no list of tools"))
}

/// Catalogs by server. Files that hold none, such as an index, are passed over.
fn catalogs(folder: &Path) -> Result<BTreeMap<String, Vec<Value>>, String> {
    let mut out = BTreeMap::new();
    let files = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for file in files {
        let path = file.map_err(|e| e.to_string())?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let server = name.strip_suffix(".json.gz").or_else(|| name.strip_suffix(".json"));
        if let Some(server) = server
            && let Ok(tools) = tools_of(&path)
        {
            out.insert(server.to_owned(), tools);
        }
    }
    if out.is_empty() { Err(format!("{}: no catalogs", folder.display())) } else { Ok(out) }
}

fn queries(file: &Path, catalogs: &BTreeMap<String, Vec<Value>>) -> Result<Vec<Query>, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let mut out = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |what: &str| format!("{}:{}: {what}", file.display(), number + 1);
        let (query, right) = line.split_once('\t').ok_or_else(|| wrong("no tab"))?;
        let right: BTreeSet<String> = right.split_whitespace().map(str::to_owned).collect();
        for named in &right {
            let (server, name) = named.split_once('/').ok_or_else(|| wrong("a tool is <server>/<tool>"))?;
            let listed = catalogs.get(server).is_some_and(|tools| tools.iter().any(|tool| tool["name"] == name));
            if !listed {
                return Err(wrong(&format!("there is no {named}")));
            }
        }
        if right.is_empty() {
            return Err(wrong("no right tool"));
        }
        out.push(Query { text: query.to_owned(), right });
    }
    if out.is_empty() { Err(format!("{}: no queries", file.display())) } else { Ok(out) }
}

/// One Rollcall with a server for each catalog.
struct Bed {
    agent: Client,
    /// The file's name of each server, by its alias.
    servers: BTreeMap<String, String>,
    rollcall: Running,
    _upstreams: Vec<Upstream>,
    _folder: tempfile::TempDir,
}

impl Bed {
    async fn start(catalogs: &BTreeMap<String, Vec<Value>>) -> Result<Self, String> {
        let failed = |e: std::io::Error| e.to_string();
        let programs = programs::build().await.map_err(failed)?;
        let folder = tempfile::tempdir().map_err(failed)?;
        let issuer = Issuer::new("https://id.example", "rollcall", "k1")?;
        let keys = folder.path().join("jwks.json");
        std::fs::write(&keys, Issuer::jwks(&[&issuer]).to_string()).map_err(failed)?;
        let (mut upstreams, mut servers) = (Vec::new(), Vec::new());
        for (name, tools) in catalogs {
            let upstream = Upstream::start(Speaks::Modern, &[]).await.map_err(failed)?;
            upstream.set_tools_silently(tools.clone());
            servers.push(json!({"id": name, "url": upstream.url()}));
            upstreams.push(upstream);
        }
        let (listen, admin) = (free_port()?, free_port()?);
        let config = json!({
            "listen": format!("127.0.0.1:{listen}"),
            "public_url": format!("http://127.0.0.1:{listen}"),
            "admin": {"listen": format!("127.0.0.1:{admin}"), "keys": [{"id": "ops", "secret": ADMIN_KEY, "tenants": ["*"]}]},
            "store": "memory:",
            "issuers": [{"issuer": issuer.name, "audience": "rollcall", "jwks_file": keys, "tenant": TENANT}],
            "tenants": {TENANT: {"servers": servers, "default_policy": {}}},
        });
        let file = folder.path().join("rollcall.json");
        std::fs::write(&file, config.to_string()).map_err(failed)?;
        let mut command = Command::new(&programs.rollcall);
        command.arg("standalone").arg("--config").arg(&file).env("RUST_LOG", "warn");
        let log = folder.path().join("rollcall.log");
        let (rollcall, _) = Running::start(command, &log, "MCP endpoint").await.map_err(failed)?;
        let agent = Client::new(format!("http://127.0.0.1:{listen}")).with_token(issuer.token(TENANT, "recall")?);
        let expected: usize = catalogs.values().map(Vec::len).sum();
        let began = Instant::now();
        loop {
            let manifest = agent.send(Method::GET, "/v1/manifest", &[], "").await?.json();
            // Names that one catalog holds twice are one tool.
            if manifest["unavailable"].as_object().is_some_and(serde_json::Map::is_empty) {
                break;
            }
            if began.elapsed() > LISTED {
                return Err(format!(
                    "{} of {expected} tools are listed: {}",
                    manifest["count"], manifest["unavailable"]
                ));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let operator = Client::new(format!("http://127.0.0.1:{admin}")).with_token(ADMIN_KEY);
        let known = operator.send(Method::GET, &format!("/admin/v1/tenants/{TENANT}/servers"), &[], "").await?.json();
        let named = |server: &Value| {
            Some((server["status"]["alias"].as_str()?.to_owned(), server["value"]["id"].as_str()?.to_owned()))
        };
        let servers = known["servers"].as_array().into_iter().flatten().filter_map(named).collect();
        Ok(Self { agent, servers, rollcall, _upstreams: upstreams, _folder: folder })
    }

    /// What is found, best first, as `<server>/<tool>`; bytes that a model reads; and how long it took.
    async fn ask(&self, query: &str) -> Result<(Vec<String>, usize, Duration), String> {
        let encoded: String = url::form_urlencoded::byte_serialize(query.as_bytes()).collect();
        let began = Instant::now();
        let path = format!("/v1/tools/search?q={encoded}&limit={ASKED_FOR}");
        let answer = self.agent.send(Method::GET, &path, &[], "").await?;
        let took = began.elapsed();
        let answer = answer.json();
        let tools = answer["tools"].as_array().ok_or_else(|| format!("{query}: {answer}"))?;
        let text = |tool: &Value, member: &str| tool[member].as_str().unwrap_or_default().to_owned();
        let bytes = tools.iter().map(|tool| text(tool, "signature").len() + text(tool, "description").len() + 4).sum();
        let named = |tool: &Value| {
            let server = self.servers.get(&text(tool, "server")).cloned().unwrap_or_default();
            format!("{server}/{}", text(tool, "tool"))
        };
        Ok((tools.iter().map(named).collect(), bytes, took))
    }
}

/// Runs it, and says whether the floor is reached.
pub async fn run(options: &Options, say: impl Fn(&str)) -> Result<bool, String> {
    let mut catalogs = catalogs(&options.catalogs)?;
    let queries = queries(&options.queries, &catalogs)?;
    let listed: usize = catalogs.values().map(Vec::len).sum();
    for (at, count) in (0..).map_while(|at| Some((at, options.fill.checked_sub(listed + at * 1000)?.min(1000)))) {
        if count > 0 {
            let tools = (0..count).map(|n| filler(at * 1000 + n)).collect();
            catalogs.insert(format!("filler-{at}"), tools);
        }
    }
    let bed = Bed::start(&catalogs).await?;
    bed.ask("the first search makes the index").await?;
    let (mut at, mut bytes, mut times) = ([0usize; 3], 0, Vec::new());
    for query in &queries {
        let (found, read, took) = bed.ask(&query.text).await?;
        let first = found.iter().position(|tool| query.right.contains(tool));
        for (count, bound) in at.iter_mut().zip([1, 3, 5]) {
            *count += usize::from(first.is_some_and(|first| first < bound));
        }
        if options.misses && first.is_none() {
            say(&format!("{}\n    right: {:?}\n    found: {found:?}", query.text, query.right));
        }
        bytes += read;
        times.push(took);
    }
    bed.rollcall.end().await;
    times.sort_unstable();
    let time = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    let share = |count: usize| count as f64 / queries.len() as f64;
    let total: usize = catalogs.values().map(Vec::len).sum();
    say(&format!("{} queries, {} servers, {total} tools", queries.len(), catalogs.len()));
    let [one, three, five] = at.map(share);
    say(&format!("recall@1 {one:.3}, recall@3 {three:.3}, recall@5 {five:.3}"));
    say(&format!(
        "{} tokens an answer of {ASKED_FOR} tools; over HTTP {:?} at the median, {:?} at p99",
        bytes / queries.len() / 4,
        time(50),
        time(99)
    ));
    Ok(three >= options.at_least)
}

/// A tool that no query means, with words that queries use.
fn filler(n: usize) -> Value {
    const VERBS: [&str; 8] = ["list", "get", "create", "update", "delete", "search", "run", "export"];
    const THINGS: [&str; 11] =
        ["widget", "gadget", "sprocket", "flange", "gasket", "bobbin", "spindle", "bracket", "washer", "rivet", "cog"];
    let pick = |from: &'static [&'static str], by: usize| from.get(n / by % from.len()).copied().unwrap_or_default();
    let (verb, thing, of) = (pick(&VERBS, 1), pick(&THINGS, 8), pick(&THINGS, 88));
    let mut tool = tool(&format!("{verb}_{thing}_{of}_{n}"));
    tool["description"] = json!(format!("{verb}s the {thing} of a {of} in section {n}."));
    tool
}
