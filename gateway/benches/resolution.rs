//! Benches for people: what resolution and its neighbours cost, with the code that ships.
//!
//! `cargo bench` measures; `cargo bench -- --test` only runs each once.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    reason = "a bench that cannot be set up must end"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rollcall_gateway::answer_for_bench;
use rollcall_gateway::identity::Issuers;
use rollcall_gateway::policy::compile;
use rollcall_gateway::registry::{Listed, Listing, Registry, Segments};
use rollcall_gateway::surface::list::Lists;
use rollcall_gateway::surface::search::Index;
use rollcall_gateway::surface::spec::SpecCache;
use rollcall_gateway::view::{Sight, Views};
use rollcall_loadtest::client::modern_params;
use rollcall_loadtest::issuer::Issuer;
use rollcall_shared::config::{Config, Environment};
use rollcall_shared::document::{Problems, from_json};
use rollcall_shared::ids::{Alias, ServerId, TenantId};
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::{jsonrpc, raw};
use rollcall_shared::model::tenant::{Allotment, Allotted};
use rollcall_shared::model::{Catalog, EntryKind, Policy};
use rollcall_shared::task::Tasks;
use rollcall_shared::telemetry::Metrics;
use rollcall_shared::tenants::{Owned, Owner, TenantDocs};
use serde_json::json;
use serde_json::value::RawValue;

/// Tools of one server.
const PER_SERVER: usize = 100;

struct Bed {
    segments: Segments,
    views: Views,
    docs: Arc<TenantDocs>,
    catalogs: Vec<(ServerId, Alias, Catalog, rollcall_shared::digest::Digest)>,
}

impl Bed {
    /// `tools` tools on servers of a hundred each, with schemas of a usual size.
    fn new(tools: usize) -> Self {
        let mut docs = TenantDocs::default();
        let mut allotment = Allotment::default();
        let mut catalogs = Vec::new();
        for server in 0..tools.div_ceil(PER_SERVER) {
            let id = ServerId::parse(&format!("server-{server:03}")).expect("an id");
            let alias = Alias::parse(&format!("server_{server:03}")).expect("an alias");
            let list = (0..PER_SERVER.min(tools - server * PER_SERVER)).map(|n| {
                let text = json!({
                    "name": format!("do_thing_{n:02}"),
                    "description": "Does a thing, and says how it went in a few words that a model can read.",
                    "inputSchema": {"type": "object", "required": ["id"], "properties": {
                        "id": {"type": "string", "description": "Which thing"},
                        "options": {"type": "object", "properties": {"force": {"type": "boolean"}, "limit": {"type": "integer"}}},
                    }},
                    "annotations": {"readOnlyHint": n % 2 == 0},
                });
                RawValue::from_string(text.to_string()).expect("JSON")
            });
            let catalog = Catalog { tools: list.collect(), ..Catalog::default() };
            let digest = catalog.pack().expect("packed").0;
            let problems = Problems::new();
            let node = from_json(&json!({"id": id.as_str(), "url": "http://127.0.0.1/"}).to_string(), &problems);
            let value = rollcall_shared::model::Server::read(&node.expect("JSON"), "", None, false, &problems);
            let owned = Owned { owner: Owner::File, value: Arc::new(value.expect("a server")) };
            docs.servers.insert(id.clone(), owned);
            allotment
                .servers
                .insert(id.clone(), Allotted { alias: alias.clone(), explicit: false, former: Vec::new() });
            catalogs.push((id, alias, catalog, digest));
        }
        docs.allotment = Arc::new(allotment);
        Self { segments: Segments::default(), views: Views::default(), docs: Arc::new(docs), catalogs }
    }

    fn registry(&self) -> Arc<Registry> {
        let segments: BTreeMap<_, _> = self
            .catalogs
            .iter()
            .map(|(id, alias, catalog, digest)| {
                (id.clone(), listed(self.segments.listing(alias, 64, id, catalog, digest)))
            })
            .collect();
        let tenant = TenantId::parse("acme").expect("an id");
        Arc::new(Registry::new(tenant, self.docs.clone(), &segments, &self.segments, |list| self.views.roster(list)))
    }

    fn sight(&self, rules: &str) -> Sight {
        self.views.sight(self.registry(), Arc::new(policy(rules)), &BTreeSet::new())
    }
}

fn listed(listing: Arc<Listing>) -> Listed {
    Listed { listing, era: Era::Modern }
}

fn policy(rules: &str) -> Policy {
    let problems = Problems::new();
    let node = from_json(rules, &problems).expect("JSON");
    Policy::read(&node, "", &problems).expect("a policy")
}

fn resolve(c: &mut Criterion) {
    let mut group = c.benchmark_group("resolve");
    for tools in [100, 1_000, 10_000] {
        let bed = Bed::new(tools);
        let sight = bed.sight("{}");
        let up = |_: &rollcall_shared::model::Server| ("", None);
        let all: Vec<&str> =
            sight.view.tools().filter_map(|p| sight.registry.definition(p)).map(|d| &*d.visible).collect();
        for names in [1, 10, 100] {
            let step = (all.len() / names).max(1);
            let asked: Vec<&str> = all.iter().step_by(step).take(names).copied().collect();
            group.throughput(Throughput::Elements(names as u64));
            let id = BenchmarkId::new(format!("{names} names"), format!("{tools} tools"));
            if names == 1 {
                group.bench_function(id, |b| b.iter(|| sight.resolve_one(black_box(asked[0]), &up).is_ok()));
            } else {
                group.bench_function(id, |b| b.iter(|| sight.resolve(black_box(&asked), &up).is_ok()));
            }
        }
    }
    group.finish();
}

fn compile_policies(c: &mut Criterion) {
    let bed = Bed::new(5_000);
    let registry = bed.registry();
    let exact: Vec<String> = (0..200).map(|n| format!("server_{:03}__do_thing_{:02}", n % 50, n % 100)).collect();
    let cases = [
        ("everything", "{}".to_owned()),
        ("globs", r#"{"allow":["server_00*","*_thing_1*","server:server-020"],"deny":["*_07"],"require":{"read_only":false}}"#.into()),
        ("200 names", json!({"allow": exact}).to_string()),
    ];
    let mut group = c.benchmark_group("compile a policy over 5,000 tools");
    for (name, rules) in cases {
        let rules = policy(&rules);
        group.bench_function(name, |b| b.iter(|| compile(&registry, black_box(&rules), &BTreeSet::new()).len()));
    }
    group.finish();
}

fn build(c: &mut Criterion) {
    let mut group = c.benchmark_group("build a registry of 5,000 tools");
    group.sample_size(20);
    let bed = Bed::new(5_000);
    group.bench_function("from catalogs", |b| {
        b.iter(|| {
            let fresh = Bed {
                segments: Segments::default(),
                views: Views::default(),
                docs: bed.docs.clone(),
                catalogs: Vec::new(),
            };
            let segments: BTreeMap<_, _> = bed
                .catalogs
                .iter()
                .map(|(id, alias, catalog, digest)| {
                    (id.clone(), listed(fresh.segments.listing(alias, 64, id, catalog, digest)))
                })
                .collect();
            let tenant = TenantId::parse("acme").expect("an id");
            Registry::new(tenant, fresh.docs.clone(), &segments, &fresh.segments, |list| fresh.views.roster(list))
                .missing
                .len()
        });
    });
    let kept = bed.registry();
    group.bench_function("from shared segments", |b| b.iter(|| Arc::strong_count(&bed.registry().roster)));
    drop(kept);
    group.finish();
}

fn decode(c: &mut Criterion) {
    let params =
        modern_params(json!({"name": "server_001__do_thing_01", "arguments": {"id": "x", "options": {"limit": 5}}}));
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let mut headers = http::HeaderMap::new();
    for (name, value) in [
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", "server_001__do_thing_01"),
        ("accept", "application/json, text/event-stream"),
    ] {
        headers.insert(name, http::HeaderValue::from_static(value));
    }
    c.bench_function("decode a call envelope", |b| {
        b.iter(|| assert!(rollcall_gateway::decode_for_bench(black_box(body.as_bytes()), &headers)));
    });
}

fn verify(c: &mut Criterion) {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let issuer = Issuer::new("https://id.example", "rollcall", "k1").expect("an issuer");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jwks.json");
    std::fs::write(&path, Issuer::jwks(&[&issuer]).to_string()).expect("a file");
    let yaml = format!(
        "issuers: [{{issuer: \"https://id.example\", audience: rollcall, jwks_file: \"{}\", tenant_claim: tenant, tenants: [\"*\"]}}]",
        path.display()
    );
    let config = Config::read(&yaml, &Environment::default()).expect("a configuration");
    let metrics = Arc::new(Metrics::new().expect("instruments"));
    let issuers = Issuers::new(config.issuers, metrics, Tasks::new()).expect("issuers");
    let token = issuer.token("acme", "s").expect("a token");
    let mut group = c.benchmark_group("verify a token (ES256)");
    group.bench_function("cached", |b| {
        b.to_async(&runtime).iter(|| async { issuers.authenticate(black_box(&token)).await.is_ok() });
    });
    let mut n = 0u64;
    group.bench_function("not cached", |b| {
        b.iter_batched(
            || {
                n += 1;
                issuer.token("acme", &format!("s{n}")).expect("a token")
            },
            |token| runtime.block_on(async { assert!(issuers.authenticate(&token).await.is_ok()) }),
            criterion::BatchSize::SmallInput,
        );
    });
    group.finish();
}

fn list(c: &mut Criterion) {
    let mut group = c.benchmark_group("gather tools/list");
    for tools in [100, 1_000, 5_000] {
        let bed = Bed::new(tools);
        let sight = bed.sight(r#"{"defer_above": 1000000}"#);
        let kept = Lists::default();
        let bytes: usize = kept.of(&sight.view, EntryKind::Tool).pages.iter().map(bytes::Bytes::len).sum();
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::new("known view", tools), |b| {
            b.iter(|| kept.of(&sight.view, EntryKind::Tool).pages.len())
        });
        group.bench_function(BenchmarkId::new("first time", tools), |b| {
            b.iter(|| Lists::default().of(&sight.view, EntryKind::Tool).pages.len());
        });
        let copy = kept.of(&sight.view, EntryKind::Tool);
        group.bench_function(BenchmarkId::new("copy of the same bytes", tools), |b| {
            b.iter(|| copy.pages.iter().map(|page| black_box(page.to_vec()).len()).sum::<usize>());
        });
    }
    group.finish();
}

fn search(c: &mut Criterion) {
    let bed = Bed::new(10_000);
    let sight = bed.sight("{}");
    let index = Index::new(&sight.view);
    let query = "please do the thing number 42 at server 7";
    c.bench_function("search of a sentence among 10,000 tools", |b| b.iter(|| index.search(black_box(query), 5).len()));
    c.bench_function("index of 10,000 tools", |b| b.iter(|| Index::new(black_box(&sight.view)).weight()));
}

fn specs(c: &mut Criterion) {
    let bed = Bed::new(5_000);
    let sight = bed.sight("{}");
    let metrics = Arc::new(Metrics::new().expect("instruments"));
    let cache = SpecCache::new(metrics);
    let url = url::Url::parse("https://gateway.example").expect("a URL");
    let up = |_: &rollcall_shared::model::Server| ("", None);
    let names: Vec<String> = (0..10).map(|n| format!("server_{n:03}__do_thing_{n:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    c.bench_function("get_api_spec of 10 names among 5,000, warm", |b| {
        b.iter(|| {
            let permits = sight.resolve(black_box(&names), &up).map_err(|r| r.message.clone()).expect("permits");
            cache.document(&permits, &sight.view, &[], &url).len()
        });
    });
}

/// A call's result of 146 KB: what a message of that size costs to be told apart (its envelope), what is done beyond
/// that, and what reading it once more would cost.
fn relay(c: &mut Criterion) {
    let mut group = c.benchmark_group("result of 146 KB");
    let text = r#"some text, \"quoted\" here and there; "#.repeat(146_000 / 38);
    let inner = format!(r#""content":[{{"type":"text","text":"{text}"}}],"structuredContent":{{"n":[1,2,3]}}"#);
    let modern = bytes::Bytes::from(format!(r#"{{"resultType":"complete",{inner}}}"#));
    let legacy = bytes::Bytes::from(format!("{{{inner}}}"));
    let message = format!(r#"{{"jsonrpc":"2.0","id":"x-1","result":{}}}"#, String::from_utf8_lossy(&modern));
    group.throughput(Throughput::Bytes(message.len() as u64));
    group.bench_function("its envelope", |b| b.iter(|| jsonrpc::parse(black_box(message.as_bytes())).is_ok()));
    group.bench_function("beyond it, from a modern server", |b| b.iter(|| answer_for_bench(black_box(&modern))));
    group.bench_function("beyond it, from a legacy server", |b| b.iter(|| answer_for_bench(black_box(&legacy))));
    group.bench_function("for comparison: its members", |b| {
        let text = std::str::from_utf8(&modern).expect("text");
        b.iter(|| raw::members(black_box(text)).map(|members| members.len()).unwrap_or_default());
    });
    group.bench_function("for comparison: as a value", |b| {
        b.iter(|| serde_json::from_slice::<serde_json::Value>(black_box(&modern)).is_ok());
    });
    group.finish();
}

criterion_group!(benches, relay, resolve, compile_policies, build, decode, verify, list, search, specs);
criterion_main!(benches);
