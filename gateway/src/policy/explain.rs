//! Why a name is or is not in a view: each rule by itself, asked with the same compiler.

use std::collections::BTreeSet;

use rollcall_shared::model::{Denial, Entry, EntryKind, Policy};
use serde_json::{Value, json};

use super::compile::compile;
use crate::registry::{Binding, Place};
use crate::view::Sight;

/// `{name, verdict, server, allowed_by, denied_by, revoked_by, missing_scopes, …}`.
pub fn explain(sight: &Sight, name: &str, scopes: &BTreeSet<String>) -> Value {
    let found = EntryKind::ALL.into_iter().find_map(|kind| Some((kind, sight.view.roster.find_of(kind, name)?)));
    let Some((kind, place)) = found else {
        let successor = sight.registry.successor(name).and_then(|p| sight.registry.definition(p));
        let missing = sight.registry.missing.iter().find(|m| name.starts_with(&format!("{}__", m.alias)));
        return json!({
            "name": name,
            "verdict": if missing.is_some() { "unavailable" } else { "unknown" },
            "server_without_catalog": missing.map(|m| m.server.id.as_str()),
            "renamed_to": successor.map(|d| &*d.visible),
        });
    };
    let required = required(sight, place);
    let everything: BTreeSet<String> = required.iter().cloned().collect();
    let alone = |rules: Policy| {
        let compiled = compile(&sight.registry, &rules, &everything);
        compiled.get(place.segment as usize).is_some_and(|set| set.contains(place.local as usize))
    };
    let only = |entry: &Entry| Policy { allow: Some(vec![entry.clone()]), ..Policy::default() };
    let without = |denial: &Denial| Policy { deny: vec![denial.clone()], ..Policy::default() };
    let open = alone(Policy::default());
    let allowed_by: Vec<&str> =
        sight.policy.allow.iter().flatten().filter(|e| alone(only(e))).map(Entry::as_str).collect();
    let denied_by: Vec<&str> =
        sight.policy.deny.iter().filter(|d| open && !alone(without(d))).map(|d| d.entry.as_str()).collect();
    let read_only = sight.policy.read_only && !alone(Policy { read_only: true, ..Policy::default() });
    json!({
        "name": name,
        "kind": kind.label(),
        "verdict": if sight.view.allows(place) { "allowed" } else { "not_allowed" },
        "server": sight.registry.server(place).map(|s| s.id.as_str()),
        "real_name": sight.registry.definition(place).map(|d| &*d.real),
        "allow_is_absent": sight.policy.allow.is_none(),
        "allowed_by": allowed_by,
        "denied_by": denied_by,
        "revoked": !open && !sight.view.roster.is_shadowed(place),
        "shadowed": sight.view.roster.is_shadowed(place),
        "not_read_only": read_only,
        "missing_scopes": required.iter().filter(|s| !scopes.contains(*s)).collect::<Vec<_>>(),
    })
}

fn required(sight: &Sight, place: Place) -> Vec<String> {
    match sight.registry.binding(place) {
        Some(Binding::Server { server, .. }) => server.requires.clone(),
        Some(Binding::Platform) => sight
            .registry
            .definition(place)
            .and_then(|d| sight.registry.docs.tools.get(&*d.real))
            .map(|tool| tool.value.requires.clone())
            .unwrap_or_default(),
        None => Vec::new(),
    }
}
