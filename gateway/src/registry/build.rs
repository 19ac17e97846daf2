//! A tenant's registry: its roster, and what binds each segment to the tenant. Built whole, immutable.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollcall_shared::ids::{Alias, ServerId, TenantId};
use rollcall_shared::model::{Entry, EntryKind, Server, Settings};
use rollcall_shared::tenants::TenantDocs;

use super::roster::{Place, Roster};
use super::segment::{Definition, Listed, Segments};

/// What binds one segment to the tenant.
#[derive(Debug, Clone)]
pub enum Binding {
    /// Platform tools: group, scopes and read-only marks are each tool's own.
    Platform,
    Server {
        server: Arc<Server>,
        alias: Alias,
        former: Vec<Alias>,
        listed: Listed,
    },
}

/// A configured server of which no catalog was ever had.
#[derive(Debug, Clone)]
pub struct Missing {
    pub server: Arc<Server>,
    pub alias: Alias,
    pub former: Vec<Alias>,
}

/// A discovered tool that is hidden behind a configured or earlier one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shadowed {
    pub name: String,
    pub server: Option<ServerId>,
}

/// See the module.
pub struct Registry {
    pub tenant: TenantId,
    pub roster: Arc<Roster>,
    /// As many as the roster has segments, in the same order.
    bindings: Vec<Binding>,
    pub missing: Vec<Missing>,
    pub shadowed: Vec<Shadowed>,
    pub docs: Arc<TenantDocs>,
}

impl Registry {
    /// `catalogs` are the listings of the servers that have one.
    pub fn new(
        tenant: TenantId,
        docs: Arc<TenantDocs>,
        catalogs: &BTreeMap<ServerId, Listed>,
        segments: &Segments,
        share: impl FnOnce(Vec<Arc<super::Segment>>) -> Arc<Roster>,
    ) -> Self {
        let (imported, written): (Vec<_>, Vec<_>) =
            docs.tools.values().map(|t| &*t.value).partition(|t| t.api.is_some());
        let mut list = vec![segments.platform(written.into_iter(), false)];
        let mut bindings = vec![Binding::Platform];
        if !imported.is_empty() {
            list.push(segments.platform(imported.into_iter(), true));
            bindings.push(Binding::Platform);
        }
        let mut missing = Vec::new();
        for (id, owned) in &docs.servers {
            // A server without an allotted alias is being registered at this moment: it is not part of the registry yet.
            let Some(allotted) = docs.allotment.servers.get(id) else { continue };
            let (server, alias, former) = (owned.value.clone(), allotted.alias.clone(), allotted.former.clone());
            match catalogs.get(id) {
                Some(listed) => {
                    let binding = Binding::Server { server, alias, former, listed: listed.clone() };
                    for segment in &listed.listing.segments {
                        list.push(segment.clone());
                        bindings.push(binding.clone());
                    }
                }
                None => missing.push(Missing { server, alias, former }),
            }
        }
        let roster = share(list);
        let mut registry = Self { tenant, roster, bindings, missing, shadowed: Vec::new(), docs };
        registry.shadowed = registry.find_shadowed();
        registry
    }

    fn find_shadowed(&self) -> Vec<Shadowed> {
        let mut out = Vec::new();
        for (index, segment) in (0u32..).zip(self.roster.segments()) {
            for (local, definition) in (0u32..).zip(segment.definitions()) {
                let place = Place { segment: index, local };
                if self.roster.is_shadowed(place) {
                    let server = self.server(place).map(|s| s.id.clone());
                    out.push(Shadowed { name: definition.visible.to_string(), server });
                }
            }
        }
        out
    }

    pub fn settings(&self) -> &Settings {
        &self.docs.settings
    }

    pub fn bindings(&self) -> &[Binding] {
        &self.bindings
    }

    pub fn binding(&self, place: Place) -> Option<&Binding> {
        self.bindings.get(place.segment as usize)
    }

    pub fn definition(&self, place: Place) -> Option<&Definition> {
        self.roster.get(place)
    }

    /// The server that a definition belongs to; none for platform tools.
    pub fn server(&self, place: Place) -> Option<&Arc<Server>> {
        match self.binding(place)? {
            Binding::Server { server, .. } => Some(server),
            Binding::Platform => None,
        }
    }

    /// The alias under which an entry's server is known; none for platform tools.
    pub fn alias(&self, place: Place) -> Option<&Alias> {
        match self.binding(place)? {
            Binding::Server { alias, .. } => Some(alias),
            Binding::Platform => None,
        }
    }

    /// What a server listed, and the era that it speaks; none for platform tools.
    pub fn listed(&self, segment: u32) -> Option<&Listed> {
        match self.bindings.get(segment as usize)? {
            Binding::Server { listed, .. } => Some(listed),
            Binding::Platform => None,
        }
    }

    /// Each server that has a catalog, by the number of its segment of tools.
    pub fn servers(&self) -> impl Iterator<Item = (u32, &Arc<Server>, &Listed)> {
        let numbered = (0u32..).zip(self.bindings.iter().zip(self.roster.segments()));
        numbered.filter_map(|(number, (binding, segment))| match binding {
            Binding::Server { server, listed, .. } if segment.kind == EntryKind::Tool => Some((number, server, listed)),
            Binding::Server { .. } | Binding::Platform => None,
        })
    }

    /// The segment of another kind of the server whose segment of tools is `tools`.
    pub fn segment_beside(&self, tools: u32, kind: EntryKind) -> Option<u32> {
        let segments = self.roster.segments();
        let server = match self.bindings.get(tools as usize)? {
            Binding::Server { server, .. } => server,
            Binding::Platform => return None,
        };
        let of_server = |n: &usize| matches!(self.bindings.get(*n), Some(Binding::Server { server: other, .. }) if Arc::ptr_eq(server, other));
        let from = tools as usize;
        (from..segments.len())
            .take_while(of_server)
            .find(|n| segments.get(*n).is_some_and(|s| s.kind == kind))
            .and_then(|n| u32::try_from(n).ok())
    }

    /// Number of a server's segment of tools, by alias, id or configured name.
    pub fn segment_of(&self, server: &str) -> Option<u32> {
        let position = |fits: &dyn Fn(&Server, &Alias) -> bool| {
            self.bindings.iter().position(|b| matches!(b, Binding::Server { server, alias, .. } if fits(server, alias)))
        };
        position(&|_, alias| alias.as_str() == server)
            .or_else(|| position(&|s, _| s.id.as_str() == server))
            .or_else(|| position(&|s, _| s.name.as_deref() == Some(server)))
            .and_then(|n| u32::try_from(n).ok())
    }

    /// Whether a configured server goes by this alias, id or name, whether or not it has a catalog.
    pub fn knows_server(&self, server: &str) -> bool {
        let fits = |s: &Server, alias: &Alias| {
            alias.as_str() == server || s.id.as_str() == server || s.name.as_deref() == Some(server)
        };
        self.segment_of(server).is_some() || self.missing.iter().any(|m| fits(&m.server, &m.alias))
    }

    /// The name that a former name leads to now: same server, same tool.
    pub fn successor(&self, name: &str) -> Option<Place> {
        for (index, binding) in (0u32..).zip(&self.bindings) {
            let Binding::Server { alias, former, .. } = binding else { continue };
            for old in former {
                if let Some(tool) =
                    name.strip_prefix(old.as_str()).and_then(|t| t.strip_prefix(super::naming::SEPARATOR))
                {
                    let now = format!("{alias}{}{tool}", super::naming::SEPARATOR);
                    return self.roster.find(&now).filter(|place| place.segment == index);
                }
            }
        }
        None
    }

    /// Entries that are revoked for every session of the tenant.
    pub fn revoked_entries(&self) -> impl Iterator<Item = &Entry> {
        self.docs.revoked_entries.values()
    }
}
