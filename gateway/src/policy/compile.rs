//! From rules to sets: pure, and done once per registry content.
//!
//! allowed = (allow or everything) − deny − revoked − shadowed, narrowed to read-only tools where the policy says so and
//! to what the token's scopes reach. Prompts and resources follow the same rules through their own entries.

use std::collections::BTreeSet;

use fixedbitset::FixedBitSet;
use rollcall_shared::ids::{Alias, GroupName};
use rollcall_shared::model::{Bound, Entry, EntryKind, Glob, Policy, Server, Target};

use crate::registry::naming::SEPARATOR;
use crate::registry::{Binding, Missing, Place, Registry, name_of};

/// One set a segment of the roster, in its order.
pub type Allowed = Box<[FixedBitSet]>;

/// Compiles a policy over a registry for a token with these scopes.
pub fn compile(registry: &Registry, policy: &Policy, scopes: &BTreeSet<String>) -> Allowed {
    let mut allowed = Sets::new(registry, policy.allow.is_none());
    for entry in policy.allow.iter().flatten() {
        allowed.each(entry, Names::Current, &mut |set, local| set.insert(local));
    }
    let denied = policy.deny.iter().map(|d| &d.entry).chain(registry.revoked_entries());
    if denied.into_iter().any(|entry| names_lost_bundle(registry, entry)) {
        // Nobody knows any more what was denied: everything is.
        allowed.sets.iter_mut().for_each(FixedBitSet::clear);
    }
    let remove = &mut |set: &mut FixedBitSet, local: usize| set.remove(local);
    for denial in &policy.deny {
        allowed.each(&denial.entry, Names::CurrentAndFormer, remove);
        for bound in &denial.bound {
            allowed.each_bound(&denial.entry, bound, remove);
        }
    }
    for entry in registry.revoked_entries() {
        allowed.each(entry, Names::CurrentAndFormer, remove);
    }
    allowed.narrow(policy.read_only, scopes);
    allowed.sets
}

/// Whether an entry names a bundle that is not there (any more). In `allow` that reaches nothing; in `deny` it must not.
fn names_lost_bundle(registry: &Registry, entry: &Entry) -> bool {
    matches!(&entry.target, Target::Bundle(name) if !registry.docs.bundles.contains_key(name))
}

/// Which names of a definition an entry is compared with: a deny follows a renamed server, an allow does not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    Current,
    CurrentAndFormer,
}

struct Sets<'a> {
    registry: &'a Registry,
    sets: Allowed,
}

impl<'a> Sets<'a> {
    fn new(registry: &'a Registry, full: bool) -> Self {
        let sets = registry
            .roster
            .segments()
            .iter()
            .map(|segment| {
                let mut set = FixedBitSet::with_capacity(segment.definitions().len());
                set.set_range(.., full);
                set
            })
            .collect();
        Self { registry, sets }
    }

    /// Applies `act` to everything that an entry matches.
    fn each(&mut self, entry: &Entry, names: Names, act: &mut dyn FnMut(&mut FixedBitSet, usize)) {
        match &entry.target {
            Target::Names(glob) => self.each_name(entry.kind, glob, names, act),
            Target::Server(id, glob) => {
                let registry = self.registry;
                for (index, set, segment) in self.of_kind(entry.kind) {
                    let binding = registry.bindings().get(index);
                    if !matches!(binding, Some(Binding::Server { server, .. }) if server.id == *id) {
                        continue;
                    }
                    for (local, definition) in segment.definitions().iter().enumerate() {
                        if glob.as_ref().is_none_or(|glob| glob.matches(&definition.real)) {
                            act(set, local);
                        }
                    }
                }
            }
            Target::Group(group) => self.each_of_group(entry.kind, group, act),
            Target::Bundle(name) => {
                let Some(bundle) = self.registry.docs.bundles.get(name).map(|b| b.value.clone()) else { return };
                for inner in &bundle.entries {
                    // Bundles do not nest, which their reader checks; a stored one that does reaches nothing.
                    if matches!(inner.target, Target::Bundle(_)) {
                        continue;
                    }
                    let kind = if entry.kind == EntryKind::Tool { inner.kind } else { entry.kind };
                    self.each(&inner.as_kind(kind), names, act);
                }
            }
        }
    }

    fn each_name(&mut self, kind: EntryKind, glob: &Glob, names: Names, act: &mut dyn FnMut(&mut FixedBitSet, usize)) {
        if let Some(name) = glob.literal() {
            for found in EntryKind::ALL.into_iter().filter(|other| kind.covers(*other)) {
                if let Some(place) = self.registry.roster.find_of(found, name)
                    && let Some(set) = self.sets.get_mut(place.segment as usize)
                {
                    act(set, place.local as usize);
                }
            }
        } else {
            for (_, set, segment) in self.of_kind(kind) {
                for (local, name) in segment.names_in(segment.with_prefix(glob.prefix())) {
                    if glob.matches(name) {
                        act(set, local);
                    }
                }
            }
        }
        if names == Names::CurrentAndFormer {
            let registry = self.registry;
            let budget = registry.settings().name_budget;
            for (index, set, segment) in self.of_kind(kind) {
                let Some(Binding::Server { server, former, .. }) = registry.bindings().get(index) else { continue };
                for old in former {
                    for (local, definition) in segment.definitions().iter().enumerate() {
                        if glob.matches(&name_of(segment.kind, old, &definition.real, budget, &server.id).name) {
                            act(set, local);
                        }
                    }
                }
            }
        }
    }

    fn each_of_group(&mut self, kind: EntryKind, group: &GroupName, act: &mut dyn FnMut(&mut FixedBitSet, usize)) {
        let registry = self.registry;
        let tools = &registry.docs.tools;
        for (index, set, segment) in self.of_kind(kind) {
            let binding = registry.bindings().get(index);
            for (local, definition) in segment.definitions().iter().enumerate() {
                let of = match binding {
                    Some(Binding::Server { server, .. }) => server.group.as_ref(),
                    Some(Binding::Platform) => {
                        tools.get(&*definition.visible).and_then(|tool| tool.value.group.as_ref())
                    }
                    None => None,
                };
                if of == Some(group) {
                    act(set, local);
                }
            }
        }
    }

    /// What a deny was bound to when it was written.
    fn each_bound(&mut self, entry: &Entry, bound: &Bound, act: &mut dyn FnMut(&mut FixedBitSet, usize)) {
        let (Bound::Tool { server: id, .. } | Bound::NamedAs { server: id, .. }) = bound;
        let registry = self.registry;
        for (index, set, segment) in self.of_kind(entry.kind) {
            let Some(Binding::Server { server, .. }) = registry.bindings().get(index) else { continue };
            if server.id != *id {
                continue;
            }
            match bound {
                Bound::Tool { real, .. } => {
                    if let Some(local) = segment.by_real(real) {
                        act(set, local as usize);
                    }
                }
                Bound::NamedAs { alias, budget, .. } => {
                    let (Target::Names(glob), Ok(alias)) = (&entry.target, rollcall_shared::ids::Alias::parse(alias))
                    else {
                        continue;
                    };
                    for (local, definition) in segment.definitions().iter().enumerate() {
                        if glob.matches(&name_of(segment.kind, &alias, &definition.real, *budget, &server.id).name) {
                            act(set, local);
                        }
                    }
                }
            }
        }
    }

    fn narrow(&mut self, read_only: bool, scopes: &BTreeSet<String>) {
        let tools = &self.registry.docs.tools;
        for (index, (set, binding)) in (0u32..).zip(self.sets.iter_mut().zip(self.registry.bindings())) {
            let Some(segment) = self.registry.roster.segments().get(index as usize) else { continue };
            let server_passes = match binding {
                Binding::Server { server, .. } => {
                    server.requires.iter().all(|scope| scopes.contains(scope))
                        && (!read_only || server.trust_annotations)
                }
                Binding::Platform => true,
            };
            if !server_passes {
                set.clear();
                continue;
            }
            for (local, definition) in (0u32..).zip(segment.definitions()) {
                let passes = match binding {
                    // To read a resource or a prompt is to read; of tools the server must say so.
                    Binding::Server { .. } => {
                        !read_only || segment.kind != EntryKind::Tool || definition.read_only_hint
                    }
                    Binding::Platform => tools.get(&*definition.visible).is_some_and(|t| {
                        (!read_only || t.value.read_only) && t.value.requires.iter().all(|scope| scopes.contains(scope))
                    }),
                };
                if !passes || self.registry.roster.is_shadowed(Place { segment: index, local }) {
                    set.remove(local as usize);
                }
            }
        }
    }

    fn of_kind(
        &mut self,
        kind: EntryKind,
    ) -> impl Iterator<Item = (usize, &mut FixedBitSet, &'a crate::registry::Segment)> {
        let registry = self.registry;
        self.sets
            .iter_mut()
            .zip(registry.roster.segments())
            .enumerate()
            .map(|(index, (set, segment))| (index, set, &**segment))
            .filter(move |(_, _, segment)| kind.covers(segment.kind))
    }
}

/// Whether the policy would allow `name` if the server, which never listed anything, had it.
pub fn reaches(registry: &Registry, policy: &Policy, missing: &Missing, name: &str) -> bool {
    let tool = name.strip_prefix(missing.alias.as_str()).and_then(|t| t.strip_prefix(SEPARATOR)).unwrap_or(name);
    let matches = |entry: &Entry, deny: bool| matches_missing(registry, missing, entry, name, tool, deny);
    let allowed = policy.allow.as_ref().is_none_or(|list| list.iter().any(|entry| matches(entry, false)));
    let bound =
        |bound: &Bound| matches!(bound, Bound::Tool { server, real } if *server == missing.server.id && real == tool);
    let denies = |entry: &Entry| matches(entry, true) || names_lost_bundle(registry, entry);
    let denied = policy.deny.iter().any(|denial| denies(&denial.entry) || denial.bound.iter().any(bound))
        || registry.revoked_entries().any(denies);
    allowed && !denied && (!policy.read_only || missing.server.trust_annotations)
}

fn matches_missing(registry: &Registry, missing: &Missing, entry: &Entry, name: &str, tool: &str, deny: bool) -> bool {
    if entry.kind != EntryKind::Tool {
        return false;
    }
    match &entry.target {
        Target::Names(glob) => {
            glob.matches(name)
                || deny
                    && missing.former.iter().any(|old| {
                        let budget = registry.settings().name_budget;
                        glob.matches(&name_of(EntryKind::Tool, old, tool, budget, &missing.server.id).name)
                    })
        }
        Target::Server(id, glob) => *id == missing.server.id && glob.as_ref().is_none_or(|glob| glob.matches(tool)),
        Target::Group(group) => missing.server.group.as_ref() == Some(group),
        Target::Bundle(bundle) => registry.docs.bundles.get(bundle).is_some_and(|b| {
            b.value.entries.iter().any(|inner| {
                !matches!(inner.target, Target::Bundle(_))
                    && matches_missing(registry, missing, inner, name, tool, deny)
            })
        }),
    }
}

/// Whether a policy denies a resource or template by this name, listed or not: by its public form under any alias that
/// its server had, or by its real one. `kind` says how the public form is made.
pub fn denies_uri(registry: &Registry, policy: &Policy, segment: u32, kind: EntryKind, real: &str) -> bool {
    let Some(Binding::Server { server, alias, former, .. }) = registry.bindings().get(segment as usize) else {
        return true;
    };
    let named_as = |alias: &Alias| name_of(kind, alias, real, registry.settings().name_budget, &server.id).name;
    let names: Vec<String> = std::iter::once(alias).chain(former).map(named_as).collect();
    let by_entry =
        |entry: &Entry| entry_denies(registry, entry, server, &names, real) || names_lost_bundle(registry, entry);
    let by_bound = |entry: &Entry, bound: &Bound| match (bound, &entry.target) {
        (Bound::Tool { server: id, real: denied }, _) => *id == server.id && denied == real,
        (Bound::NamedAs { server: id, alias, .. }, Target::Names(glob)) => {
            *id == server.id && Alias::parse(alias).is_ok_and(|alias| glob.matches(&named_as(&alias)))
        }
        (Bound::NamedAs { .. }, Target::Server(..) | Target::Group(_) | Target::Bundle(_)) => false,
    };
    policy.deny.iter().any(|denial| {
        let of_resources = denial.entry.kind == EntryKind::Resource;
        by_entry(&denial.entry) || of_resources && denial.bound.iter().any(|bound| by_bound(&denial.entry, bound))
    }) || registry.revoked_entries().any(by_entry)
}

fn entry_denies(registry: &Registry, entry: &Entry, server: &Server, names: &[String], real: &str) -> bool {
    if let Target::Bundle(bundle) = &entry.target {
        let inner = registry.docs.bundles.get(bundle).map(|b| b.value.clone());
        return inner.is_some_and(|bundle| {
            let entries = bundle.entries.iter().filter(|inner| !matches!(inner.target, Target::Bundle(_)));
            entries.into_iter().any(|inner| {
                let kind = if entry.kind == EntryKind::Tool { inner.kind } else { entry.kind };
                entry_denies(registry, &inner.as_kind(kind), server, names, real)
            })
        });
    }
    entry.kind == EntryKind::Resource
        && match &entry.target {
            Target::Names(glob) => names.iter().any(|name| glob.matches(name)),
            Target::Server(id, glob) => *id == server.id && glob.as_ref().is_none_or(|glob| glob.matches(real)),
            Target::Group(denied) => server.group.as_ref() == Some(denied),
            Target::Bundle(_) => false,
        }
}
