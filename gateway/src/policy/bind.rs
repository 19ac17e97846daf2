//! What happens to a policy when it is written: denials are bound to what they match, entries that match nothing are named.

use rollcall_shared::ids::Alias;
use rollcall_shared::model::{Bound, Entry, EntryKind, Policy, Target};

use super::compile::compile;
use crate::registry::{Missing, Place, Registry, uri};

/// Binds each name or glob of `deny` to the servers that it matches today, so that no rename slips past it.
pub fn bind(registry: &Registry, policy: &mut Policy) {
    for denial in &mut policy.deny {
        let Target::Names(glob) = &denial.entry.target else { continue };
        denial.bound = match glob.literal() {
            Some(name) => EntryKind::ALL
                .into_iter()
                .filter(|kind| denial.entry.kind.covers(*kind))
                .filter_map(|kind| registry.roster.find_of(kind, name))
                .filter_map(|place| {
                    let server = registry.server(place)?.id.clone();
                    Some(Bound::Tool { server, real: registry.definition(place)?.real.to_string() })
                })
                .collect(),
            None => registry
                .servers()
                .filter_map(|(segment, server, _)| {
                    let place = Place { segment, local: 0 };
                    Some((server, registry.alias(place)?))
                })
                .filter(|(_, alias)| could_match(denial.entry.kind, glob.prefix(), alias))
                .map(|(server, alias)| Bound::NamedAs {
                    server: server.id.clone(),
                    alias: alias.to_string(),
                    budget: registry.settings().name_budget,
                })
                .collect(),
        };
    }
}

/// Whether a policy could allow anything of a server that never listed anything.
pub fn could_reach(registry: &Registry, policy: &Policy, missing: &Missing) -> bool {
    let fits = |entry: &Entry| entry_could_reach(registry, entry, missing);
    let whole = |entry: &Entry| matches!(&entry.target, Target::Server(id, None) if *id == missing.server.id);
    policy.allow.as_ref().is_none_or(|list| list.iter().any(fits)) && !policy.deny.iter().any(|d| whole(&d.entry))
}

fn entry_could_reach(registry: &Registry, entry: &Entry, missing: &Missing) -> bool {
    if entry.kind != EntryKind::Tool {
        return false;
    }
    match &entry.target {
        Target::Names(glob) => could_match(EntryKind::Tool, glob.prefix(), &missing.alias),
        Target::Server(id, _) => *id == missing.server.id,
        Target::Group(group) => missing.server.group.as_ref() == Some(group),
        Target::Bundle(bundle) => registry.docs.bundles.get(bundle).is_some_and(|b| {
            let entries = b.value.entries.iter();
            entries.filter(|e| !matches!(e.target, Target::Bundle(_))).any(|e| entry_could_reach(registry, e, missing))
        }),
    }
}

/// Whether a glob with this literal prefix can match a name under this alias.
fn could_match(kind: EntryKind, prefix: &str, alias: &Alias) -> bool {
    let start = match kind {
        EntryKind::Tool | EntryKind::Prompt => format!("{alias}{}", crate::registry::naming::SEPARATOR),
        EntryKind::Resource | EntryKind::Template => uri::prefix(alias),
    };
    start.starts_with(prefix) || prefix.starts_with(&start)
}

/// Warnings: entries of a policy that match nothing today.
pub fn unmatched(registry: &Registry, policy: &Policy) -> Vec<String> {
    let entries = policy.allow.iter().flatten().chain(policy.deny.iter().map(|d| &d.entry));
    entries
        .filter(|entry| !matches_any(registry, entry))
        .map(|entry| format!("`{entry}` matches nothing today"))
        .collect()
}

fn matches_any(registry: &Registry, entry: &Entry) -> bool {
    let alone = Policy { allow: Some(vec![entry.clone()]), ..Policy::default() };
    let scopes = registry
        .docs
        .tools
        .values()
        .flat_map(|t| t.value.requires.clone())
        .chain(registry.docs.servers.values().flat_map(|s| s.value.requires.clone()))
        .collect();
    compile(registry, &alone, &scopes).iter().any(|set| !set.is_clear())
}
