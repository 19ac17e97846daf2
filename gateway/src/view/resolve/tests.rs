//! Resolution against a naive evaluator, and the recovery text word by word.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rollcall_shared::model::{Catalog, EntryKind, Glob, Settings, Target};
use serde_json::Value;

use crate::fixture::{Fixture, names, policy};
use crate::policy::{bind, unmatched};
use crate::registry::naming::{HashDigits, visible};
use crate::surface::list::Lists;

const UP: super::Availability<'_> = &|_| ("unreachable", Some(5));

const TENANT: &str = r#"{
  servers: [{id: neon_46fb2cad, url: "http://x", group: db}, {id: files, url: "http://x", trust_annotations: true, requires: [fs]},
            {id: sheets, url: "http://x"}],
  tools: [{name: query_db, group: db, description: d, input_schema: {type: object}, http: {url: "http://x"}, read_only: true},
          {name: delete_function, description: d, input_schema: {type: object}, http: {url: "http://x"}}],
  bundles: {support: ["neon__get_*", query_db]}}"#;

fn tenant() -> Fixture {
    Fixture::new(TENANT)
        .catalog("neon_46fb2cad", &["run_sql", "get_tables", "delete_function", "get_db"])
        .catalog("files", &[r#"{"name":"read","annotations":{"readOnlyHint":true}}"#, "write"])
}

#[test]
fn entries_mean_what_they_say() {
    let fixture = tenant();
    let case = |json: &str, scopes: &[&str], expected: &[&str]| {
        assert_eq!(names(&fixture.sight_with(policy(json), scopes)), expected, "{json}");
    };
    case(
        "{}",
        &["fs"],
        &[
            "delete_function",
            "files__read",
            "files__write",
            "neon__delete_function",
            "neon__get_db",
            "neon__get_tables",
            "neon__run_sql",
            "query_db",
        ],
    );
    case(r#"{"allow":[]}"#, &["fs"], &[]);
    case(
        r#"{"allow":["neon__*"],"deny":["*_sql"]}"#,
        &[],
        &["neon__delete_function", "neon__get_db", "neon__get_tables"],
    );
    case(r#"{"allow":["bundle:support"]}"#, &[], &["neon__get_db", "neon__get_tables", "query_db"]);
    case(
        r#"{"allow":["group:db"],"deny":["server:neon_46fb2cad/get_*"]}"#,
        &[],
        &["neon__delete_function", "neon__run_sql", "query_db"],
    );
    case(r#"{"allow":["server:files"]}"#, &["fs"], &["files__read", "files__write"]);
    case(r#"{"allow":["server:files"]}"#, &[], &[]);
    case(r#"{"require":{"read_only":true}}"#, &["fs"], &["files__read", "query_db"]);
    case(r#"{"allow":["prompt:neon__*"]}"#, &[], &[]);
    case(r#"{"allow":["group:none","bundle:none","nothing"]}"#, &[], &[]);
}

#[test]
fn resolution_is_atomic_with_exact_lists() {
    let fixture = tenant();
    let sight = fixture.sight(policy(r#"{"allow":["neon__*","sheets__*"],"deny":["neon__run_sql"]}"#));
    let permits = sight.resolve(&["neon__get_db", "neon__get_tables"], UP).map_err(|r| r.message.clone());
    assert_eq!(permits.map(|p| p.len()), Ok(2));
    let refused = sight
        .resolve(
            &["neon__get_db", "neon__run_sql", "no_such_tool", "sheets__batch_update", "query_db", "no_such_tool"],
            UP,
        )
        .err()
        .expect("a refusal");
    let json: Value = serde_json::from_str(&refused.to_json()).expect("JSON");
    assert_eq!(json["unknown"], serde_json::json!(["no_such_tool"]));
    assert_eq!(json["not_allowed"], serde_json::json!(["neon__run_sql", "query_db"]));
    let sheets = serde_json::json!(
        [{"name": "sheets__batch_update", "server": "sheets", "reason": "unreachable", "retry_after_s": 5}]
    );
    assert_eq!((&json["unavailable"], &json["success"]), (&sheets, &Value::Bool(false)));
}

#[test]
fn a_server_that_the_policy_does_not_reach_is_not_unavailable_but_unknown() {
    let fixture = tenant();
    for json in [r#"{"allow":["neon__*"]}"#, r#"{"deny":["sheets__*"]}"#, r#"{"deny":["server:sheets"]}"#] {
        let refused = fixture.sight(policy(json)).resolve(&["sheets__x"], UP).err().expect("a refusal");
        assert_eq!((refused.unknown.len(), refused.unavailable.len()), (1, 0), "{json}");
    }
}

#[test]
fn a_hidden_denial_reads_like_an_unknown_name() {
    let settings = Settings { hide_denied: true, ..Settings::default() };
    let fixture = tenant().settings(settings);
    let sight = fixture.sight(policy(r#"{"deny":["neon__run_sql"]}"#));
    let answer = |name: &str| {
        let refused = sight.resolve(&[name], UP).err().expect("a refusal");
        refused.to_json().replace(name, "NAME")
    };
    assert_eq!(answer("neon__run_sql"), answer("neon__run_sqx").replace("neon__run_sqx", "NAME"));
    assert!(answer("neon__run_sql").contains(r#""not_allowed":[]"#));
}

#[test]
fn a_denial_survives_renames() {
    let mut fixture = tenant();
    let mut rules = policy(r#"{"deny":["neon__run_sql","neon__get_*"]}"#);
    bind(&fixture.registry(), &mut rules);
    let mut allotment = (*fixture.docs.allotment).clone();
    let id = rollcall_shared::ids::ServerId::parse("neon_46fb2cad").expect("an id");
    let allotted = allotment.servers.get_mut(&id).expect("the server");
    allotted.alias = rollcall_shared::ids::Alias::parse("db").expect("an alias");
    // Even where the former alias is forgotten, the binding holds.
    fixture.docs.allotment = std::sync::Arc::new(allotment.clone());
    let fixture = fixture.catalog("neon_46fb2cad", &["run_sql", "get_tables", "delete_function"]);
    assert_eq!(names(&fixture.sight(rules)), ["db__delete_function", "delete_function", "query_db"]);
    // A denial that was never bound follows the former alias.
    let mut fixture = fixture;
    let allotted = allotment.servers.get_mut(&id).expect("the server");
    allotted.former = vec![rollcall_shared::ids::Alias::parse("neon").expect("an alias")];
    fixture.docs.allotment = std::sync::Arc::new(allotment);
    let unbound = policy(r#"{"deny":["neon__run_sql","neon__get_*"]}"#);
    let sight = fixture.sight(unbound);
    assert_eq!(names(&sight), ["db__delete_function", "delete_function", "query_db"]);
    let refused = sight.resolve(&["neon__delete_function"], UP).err().expect("a refusal");
    assert_eq!(refused.nearest["neon__delete_function"], ["db__delete_function"], "an old name leads to its successor");
}

#[test]
fn entries_that_match_nothing_are_named() {
    let rules = policy(r#"{"allow":["neon__*","nope","server:files","group:x"],"deny":["neon__zzz","query_db"]}"#);
    let warnings = unmatched(&tenant().registry(), &rules);
    assert_eq!(
        warnings,
        ["`nope` matches nothing today", "`group:x` matches nothing today", "`neon__zzz` matches nothing today",]
    );
}

#[test]
fn a_configured_name_shadows_a_discovered_one() {
    let fixture = Fixture::new(
        r#"{servers: [{id: a, url: "http://x"}],
            tools: [{name: a__t, description: d, input_schema: {type: object}, http: {url: "http://x"}}]}"#,
    )
    .catalog("a", &["t", "u"]);
    let registry = fixture.registry();
    assert_eq!(registry.shadowed.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["a__t"]);
    let sight = fixture.sight(policy("{}"));
    assert_eq!(names(&sight), ["a__t", "a__u"]);
    let permit = sight.resolve_one("a__t", UP).map_err(|r| r.message.clone()).expect("resolved");
    assert!(permit.server().is_none(), "the platform's tool");
}

fn many(count: usize) -> Fixture {
    let tools: Vec<String> = (0..count).map(|n| format!("t{n:03}")).collect();
    let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
    Fixture::new(r#"{servers: [{id: s, url: "http://x"}]}"#).catalog("s", &tools)
}

fn recovery(fixture: &Fixture, rules: &str, name: &str) -> String {
    fixture.sight(policy(rules)).resolve(&[name], UP).err().expect("a refusal").message.clone()
}

#[test]
fn recovery_for_an_unregistered_bridge_tool_does_not_suggest_it() {
    let text = recovery(&many(2), "{}", "tool_search");
    assert_eq!(text, "There is no tool tool_search. This session has 3 tools: s__t000, s__t001, get_api_spec.");
}

#[test]
fn recovery_for_an_allow_list_names_only_what_it_allows() {
    let text = recovery(&many(3), r#"{"allow":["s__t001"],"bridge_tools":"none"}"#, "s__t000");
    assert_eq!(text, "This session may not use s__t000. This session has 1 tool: s__t001.");
}

#[test]
fn recovery_for_an_agent_without_tools_says_not_to_retry() {
    let expected = "This session has no tools. Do not retry, and do not try other names.";
    assert_eq!(recovery(&many(3), r#"{"allow":[]}"#, "s__t000"), expected);
}

#[test]
fn recovery_lists_sixty_names_and_counts_the_sixty_first() {
    let sixty = recovery(&many(60), r#"{"bridge_tools":"none"}"#, "zzz");
    assert!(sixty.ends_with("s__t058, s__t059."), "{sixty}");
    let more = recovery(&many(61), r#"{"bridge_tools":"none"}"#, "zzz");
    assert!(more.contains("has 61 tools") && more.ends_with("s__t058, s__t059, and 1 more."), "{more}");
}

#[test]
fn recovery_during_an_outage_says_that_other_names_will_not_help() {
    let fixture =
        Fixture::new(r#"{servers: [{id: s, url: "http://x"}, {id: down, url: "http://x"}]}"#).catalog("s", &["t"]);
    assert_eq!(
        recovery(&fixture, "{}", "down__x"),
        "down__x cannot be used now: its server down is not available (unreachable). Other names will not help. \
         Try again in 5 s."
    );
}

#[test]
fn recovery_offers_the_nearest_names_first() {
    let fixture = tenant();
    let text = recovery(&fixture, "{}", "run_sql");
    assert!(text.contains("Nearest: neon__run_sql."), "{text}");
    let text = recovery(&fixture, "{}", "other__get_tabels");
    assert!(text.contains("Nearest: neon__get_tables"), "{text}");
    assert!(text.contains("tools: neon__get_tables"), "{text}");
    let long = "x".repeat(5_000);
    let text = recovery(&fixture, "{}", &long);
    assert!(text.len() < 1_000, "a long name is not repeated");
}

/// What a policy means, without sets, indexes or interning.
fn naive(fixture: &Fixture, rules: &str, scopes: &BTreeSet<String>) -> BTreeSet<String> {
    let rules = policy(rules);
    let mut out = BTreeSet::new();
    let docs = &fixture.docs;
    for (name, tool) in &docs.tools {
        let facts =
            Facts { name: name.to_string(), server: None, real: name.to_string(), group: tool.value.group.clone() };
        let permitted =
            tool.value.requires.iter().all(|s| scopes.contains(s)) && (!rules.read_only || tool.value.read_only);
        if permitted && facts.allowed(docs, &rules) {
            out.insert(name.to_string());
        }
    }
    for (id, reals) in [
        ("neon_46fb2cad", ["run_sql", "get_tables", "delete_function", "get_db"].as_slice()),
        ("files", &["read", "write"]),
    ] {
        let id = rollcall_shared::ids::ServerId::parse(id).expect("an id");
        let server = &docs.servers[&id].value;
        let alias = &docs.allotment.servers[&id].alias;
        for real in reals {
            let facts = Facts {
                name: visible(alias, real, 64, &id, HashDigits::SHORT).name,
                server: Some(id.clone()),
                real: (*real).to_owned(),
                group: server.group.clone(),
            };
            let read_only = !rules.read_only || server.trust_annotations && *real == "read";
            if read_only && server.requires.iter().all(|s| scopes.contains(s)) && facts.allowed(docs, &rules) {
                out.insert(facts.name);
            }
        }
    }
    out
}

struct Facts {
    name: String,
    server: Option<rollcall_shared::ids::ServerId>,
    real: String,
    group: Option<rollcall_shared::ids::GroupName>,
}

impl Facts {
    fn allowed(&self, docs: &rollcall_shared::tenants::TenantDocs, rules: &rollcall_shared::model::Policy) -> bool {
        rules.allow.as_ref().is_none_or(|list| list.iter().any(|e| self.fits(docs, e)))
            && !rules.deny.iter().any(|d| self.fits(docs, &d.entry))
    }

    fn fits(&self, docs: &rollcall_shared::tenants::TenantDocs, entry: &rollcall_shared::model::Entry) -> bool {
        match &entry.target {
            Target::Names(glob) => glob.matches(&self.name),
            Target::Server(id, glob) => {
                self.server.as_ref() == Some(id) && glob.as_ref().is_none_or(|g| g.matches(&self.real))
            }
            Target::Group(group) => self.group.as_ref() == Some(group),
            Target::Bundle(bundle) => {
                docs.bundles.get(bundle).is_some_and(|b| b.value.entries.iter().any(|e| self.fits(docs, e)))
            }
        }
    }
}

fn entry() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "neon__run_sql",
            "neon__*",
            "*_get_*",
            "*delete*",
            "files__*",
            "query_db",
            "*",
            "server:files",
            "server:neon_46fb2cad/get_*",
            "server:neon_46fb2cad",
            "group:db",
            "bundle:support",
            "nothing",
            "*__*",
            "n*l",
        ])
        .prop_map(str::to_owned),
        "[a-z_]{1,4}\\*?[a-z_]{0,3}",
    ]
}

proptest! {
    #[test]
    fn listed_is_described_is_callable_and_equals_the_naive_evaluator(
        allow in proptest::option::of(proptest::collection::vec(entry(), 0..5)),
        deny in proptest::collection::vec(entry(), 0..4),
        read_only in any::<bool>(),
        fs in any::<bool>(),
    ) {
        let fixture = tenant();
        let mut json = serde_json::json!({"deny": deny, "require": {"read_only": read_only}});
        if let Some(allow) = &allow {
            json["allow"] = serde_json::json!(allow);
        }
        let json = json.to_string();
        let scopes: BTreeSet<String> = fs.then(|| "fs".to_owned()).into_iter().collect();
        let scope_list: Vec<&str> = scopes.iter().map(String::as_str).collect();
        let sight = fixture.sight_with(policy(&json), &scope_list);
        let expected = naive(&fixture, &json, &scopes);

        let rendered = Lists::default().of(&sight.view, rollcall_shared::model::EntryKind::Tool);
        let text = format!("[{}]", String::from_utf8_lossy(&rendered.pages[0]));
        let listed: Vec<Value> = serde_json::from_str(&text).expect("a list");
        let listed: Vec<String> = listed.iter().map(|t| t["name"].as_str().expect("a name").to_owned()).collect();
        let own: Vec<String> = listed.iter().filter(|n| *n != "get_api_spec").cloned().collect();
        prop_assert_eq!(own.iter().cloned().collect::<BTreeSet<_>>(), expected.clone());
        let mut sorted = listed.clone();
        sorted.sort();
        prop_assert_eq!(&listed, &sorted, "the order is that of bytes");

        let everything = ["delete_function", "files__read", "files__write", "neon__delete_function", "neon__get_db",
            "neon__get_tables", "neon__run_sql", "query_db", "sheets__x", "nothing"];
        for name in everything {
            let callable = sight.resolve_one(name, UP).is_ok();
            let described = sight.resolve(&[name], UP).is_ok();
            prop_assert_eq!(callable, expected.contains(name), "{}", name);
            prop_assert_eq!(described, callable);
        }
        if !own.is_empty() {
            let all: Vec<&str> = own.iter().map(String::as_str).collect();
            prop_assert!(sight.resolve(&all, UP).is_ok());
        }
    }

    #[test]
    fn views_are_equal_exactly_when_what_they_show_is(
        a in proptest::collection::vec(entry(), 0..4), b in proptest::collection::vec(entry(), 0..4),
    ) {
        let fixture = tenant();
        let sight = |allow: &Vec<String>| fixture.sight(policy(&serde_json::json!({"allow": allow}).to_string()));
        let (x, y) = (sight(&a), sight(&b));
        prop_assert_eq!(names(&x) == names(&y), x.view.digest == y.view.digest);
        prop_assert_eq!(std::sync::Arc::ptr_eq(&x.view, &y.view), x.view.digest == y.view.digest);
    }
}

#[test]
fn resolving_allocates_nothing_when_it_succeeds() {
    let names: Vec<String> = (0..10_000).map(|n| format!("tool_{n:05}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let fixture = Fixture::new(r#"{servers: [{id: s, url: "http://x"}]}"#).catalog("s", &names);
    let sight = fixture.sight(policy("{}"));
    let counted = allocation_counter::measure(|| {
        for name in ["s__tool_00000", "s__tool_05000", "s__tool_09999"] {
            assert!(sight.resolve_one(std::hint::black_box(name), UP).is_ok());
        }
    });
    assert_eq!(counted.count_total, 0);
}

#[test]
fn a_second_session_with_the_same_rules_costs_less_than_a_kibibyte_in_another_tenant_too() {
    let names: Vec<String> = (0..5_000).map(|n| format!("tool_{n:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let fixture = Fixture::new(r#"{servers: [{id: s, url: "http://x"}]}"#).catalog("s", &names);
    let (registry, other) = (fixture.registry(), fixture.registry());
    let rules = std::sync::Arc::new(policy(r#"{"allow":["s__tool_0*"]}"#));
    let scopes = BTreeSet::new();
    let mut sights = Vec::with_capacity(3);
    sights.push(fixture.views.sight(registry.clone(), rules.clone(), &scopes));
    for registry in [registry, other] {
        let counted =
            allocation_counter::measure(|| sights.push(fixture.views.sight(registry, rules.clone(), &scopes)));
        assert!(counted.bytes_current < 1024, "{counted:?}");
    }
    assert!(sights.windows(2).all(|pair| std::sync::Arc::ptr_eq(&pair[0].view, &pair[1].view)));
    assert_eq!(fixture.views.live(), (1, 1));
}

/// A tenant whose two servers have prompts, resources and templates.
fn library() -> Fixture {
    let all = |texts: &[&str]| crate::fixture::raw_values(texts.iter().map(|text| (*text).to_owned()));
    let catalog = |prefix: &str| Catalog {
        tools: all(&[r#"{"name":"read"}"#]),
        prompts: all(&[r#"{"name":"review"}"#, r#"{"name":"plan.b"}"#]),
        resources: all(&[&format!(r#"{{"uri":"{prefix}:///a b"}}"#), &format!(r#"{{"uri":"{prefix}:///secret"}}"#)]),
        templates: all(&[&format!(r#"{{"uriTemplate":"{prefix}://{{+path}}"}}"#)]),
        ..Catalog::default()
    };
    let tenant = r#"{servers: [{id: neon_46fb2cad, url: "http://a.example/", group: db}, {id: files, url: "http://b.example/"}],
        bundles: {support: ["neon__*", "prompt:neon__*", "resource:rollcall://files/*"]}}"#;
    Fixture::new(tenant).listing("neon_46fb2cad", catalog("db")).listing("files", catalog("file"))
}

fn entry_of_any_kind() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "*",
        "neon__*",
        "prompt:*",
        "prompt:neon__*",
        "prompt:files__review",
        "prompt:server:files",
        "prompt:server:neon_46fb2cad/plan*",
        "prompt:group:db",
        "prompt:bundle:support",
        "resource:*",
        "resource:rollcall://neon/*",
        "resource:*secret",
        "resource:rollcall://files/file%3A%2F%2F%2Fsecret",
        "resource:server:files/file:///*",
        "resource:server:neon_46fb2cad",
        "resource:group:db",
        "resource:bundle:support",
        "bundle:support",
        "group:db",
    ])
    .prop_map(str::to_owned)
}

/// What an entry says of one thing of a server, written from the definition of entries alone.
fn speaks_of(entry: &str, kind: &str, server: &str, alias: &str, real: &str, visible: &str) -> bool {
    let (of, rest) = match entry.split_once(':') {
        Some((of @ ("prompt" | "resource"), rest)) => (of, rest),
        _ => ("tool", entry),
    };
    let matches = |glob: &str, text: &str| Glob::parse(glob).expect("a glob").matches(text);
    if let Some(bundle) = rest.strip_prefix("bundle:") {
        assert_eq!(bundle, "support");
        return ["neon__*", "prompt:neon__*", "resource:rollcall://files/*"].iter().any(|inner| match of {
            "tool" => speaks_of(inner, kind, server, alias, real, visible),
            _ => {
                let bare = inner.trim_start_matches("prompt:").trim_start_matches("resource:");
                speaks_of(&format!("{of}:{bare}"), kind, server, alias, real, visible)
            }
        });
    }
    of == kind
        && match rest.split_once(':') {
            Some(("server", target)) => match target.split_once('/') {
                Some((id, glob)) => id == server && matches(glob, real),
                None => target == server,
            },
            Some(("group", group)) => group == "db" && alias == "neon",
            _ => matches(rest, visible),
        }
}

proptest! {
    #[test]
    fn prompts_and_resources_are_allowed_as_the_naive_evaluator_says(
        allow in proptest::option::of(proptest::collection::vec(entry_of_any_kind(), 0..4)),
        deny in proptest::collection::vec(entry_of_any_kind(), 0..3),
    ) {
        let mut json = serde_json::json!({"deny": deny});
        if let Some(allow) = &allow {
            json["allow"] = serde_json::json!(allow);
        }
        let sight = library().sight(policy(&json.to_string()));
        let encoded = |text: &str| text.replace('%', "%25").replace(':', "%3A").replace('/', "%2F").replace(' ', "%20");
        let mut expected: Vec<(EntryKind, String)> = Vec::new();
        for (server, alias, prefix) in [("neon_46fb2cad", "neon", "db"), ("files", "files", "file")] {
            let plan = format!("{alias}__plan_b_{}", rollcall_shared::digest::Digest::of(b"plan.b").hex(6));
            let template = format!("rollcall://{alias}/{prefix}%3A%2F%2F{{+path}}");
            let listed = |uri: &str| format!("rollcall://{alias}/{}", encoded(uri));
            let things = [
                (EntryKind::Tool, "tool", "read".to_owned(), format!("{alias}__read")),
                (EntryKind::Prompt, "prompt", "review".to_owned(), format!("{alias}__review")),
                (EntryKind::Prompt, "prompt", "plan.b".to_owned(), plan),
                (EntryKind::Resource, "resource", format!("{prefix}:///a b"), listed(&format!("{prefix}:///a b"))),
                (EntryKind::Resource, "resource", format!("{prefix}:///secret"), listed(&format!("{prefix}:///secret"))),
                (EntryKind::Template, "resource", format!("{prefix}://{{+path}}"), template),
            ];
            for (kind, word, real, visible) in things {
                let of = |entry: &String| speaks_of(entry, word, server, alias, &real, &visible);
                if allow.as_ref().is_none_or(|list| list.iter().any(of)) && !deny.iter().any(of) {
                    expected.push((kind, visible));
                }
            }
        }
        for kind in EntryKind::ALL {
            let seen: Vec<String> =
                sight.view.all(kind).filter_map(|p| sight.registry.definition(p)).map(|d| d.visible.to_string()).collect();
            let mut wanted: Vec<String> =
                expected.iter().filter(|(of, _)| *of == kind).map(|(_, visible)| visible.clone()).collect();
            wanted.sort();
            prop_assert_eq!(&seen, &wanted, "{:?}", kind);
            for name in &wanted {
                prop_assert!(sight.permit(kind, name).is_some(), "{}", name);
            }
            prop_assert_eq!(sight.view.has(kind), !wanted.is_empty());
        }
    }
}
