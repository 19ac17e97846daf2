//! One immutable view, shared by every session and tenant with the same digest; and a session's sight of it.
//!
//! The digest holds no server id: tenants with the same catalogs and the same policy share one view and all that is
//! rendered from it. Availability and URLs are no part of it: a flapping server must not change lists or prompt caches.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock, Weak};

use dashmap::DashMap;
use fixedbitset::FixedBitSet;
use rollcall_shared::digest::Digest;
use rollcall_shared::limits;
use rollcall_shared::model::{BridgeTools, EntryKind, Policy};

use crate::policy::{Allowed, compile};
use crate::registry::naming::BRIDGE_TOOLS;
use crate::registry::{Place, Registry, Roster};

/// Bridge tools for agents that have HTTP alone: MCP has methods for what these give.
const OVER_HTTP: [&str; 2] = ["get_prompt", "get_resource"];

/// What a view tells of itself: part of its digest, since it changes what is rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disclosure {
    /// A denied name is answered exactly like an unknown one.
    pub hide_denied: bool,
    pub bridge: BridgeTools,
    /// Bridge tools that the policy denies by exact name.
    pub bridge_denied: BTreeSet<String>,
    pub defer_above: usize,
    pub pinned: Vec<String>,
}

/// See the module.
pub struct View {
    pub digest: Digest,
    pub roster: Arc<Roster>,
    allowed: Allowed,
    /// Tools in the view, bridge tools apart.
    pub count: usize,
    /// Those of them that a deferred list leaves out unless they are pinned.
    pub deferrable: usize,
    pub disclosure: Disclosure,
    pinned: Vec<Place>,
    lists: [OnceLock<Digest>; EntryKind::ALL.len()],
}

impl View {
    fn new(roster: Arc<Roster>, allowed: Allowed, disclosure: Disclosure) -> Self {
        let digest = digest(&roster, &allowed, &disclosure);
        let sets = || allowed.iter().zip(roster.segments()).filter(|(_, segment)| segment.kind == EntryKind::Tool);
        let count = sets().map(|(set, _)| set.count_ones(..)).sum();
        let deferrable = sets().filter(|(_, s)| s.deferrable).map(|(set, _)| set.count_ones(..)).sum();
        let pinned = disclosure.pinned.iter().filter_map(|name| roster.find(name)).collect();
        Self { digest, roster, allowed, count, deferrable, disclosure, pinned, lists: Default::default() }
    }

    /// How many entries of a segment are in the view.
    pub fn count_in(&self, segment: u32) -> usize {
        self.allowed.get(segment as usize).map_or(0, |set| set.count_ones(..))
    }

    /// The servers of which the view has tools, by alias, with how many.
    pub fn servers(&self) -> Vec<(&str, usize)> {
        let segments = (0u32..).zip(self.roster.segments()).filter(|(_, segment)| segment.kind == EntryKind::Tool);
        let mut servers: Vec<(&str, usize)> = segments
            .filter_map(|(number, segment)| Some((segment.alias.as_ref()?.as_str(), self.count_in(number))))
            .filter(|(_, count)| *count > 0)
            .collect();
        servers.sort_unstable();
        servers
    }

    /// Whether the list shows the way to the tools instead of the tools. Never where a policy takes that way away.
    pub fn is_deferred(&self) -> bool {
        self.is_large() && self.offers("tool_search") && self.offers("tool_call")
    }

    fn is_large(&self) -> bool {
        self.deferrable > self.disclosure.defer_above
    }

    /// Whether a tool is in the list itself: in a deferred one the platform's own are, and those that are pinned.
    pub fn lists(&self, place: Place) -> bool {
        let is_kept = || self.roster.segments().get(place.segment as usize).is_some_and(|s| !s.deferrable);
        !self.is_deferred() || is_kept() || self.pinned.contains(&place)
    }

    /// A place is only ever made by this view's roster.
    pub fn allows(&self, place: Place) -> bool {
        self.allowed.get(place.segment as usize).is_some_and(|set| set.contains(place.local as usize))
    }

    /// Whether anything of a segment is in the view.
    pub fn allows_any(&self, segment: u32) -> bool {
        self.allowed.get(segment as usize).is_some_and(|set| !set.is_clear())
    }

    /// The tools of the view in the byte order of their visible names.
    pub fn tools(&self) -> impl Iterator<Item = Place> {
        self.all(EntryKind::Tool)
    }

    /// The entries of a kind, in the byte order of their visible names.
    pub fn all(&self, kind: EntryKind) -> impl Iterator<Item = Place> {
        self.roster.in_order(kind).filter(|place| self.allows(*place))
    }

    /// Whether there is anything of a kind.
    pub fn has(&self, kind: EntryKind) -> bool {
        let sets = self.allowed.iter().zip(self.roster.segments());
        sets.into_iter().any(|(set, segment)| segment.kind == kind && !set.is_clear())
    }

    /// What a list of this kind shows, as a digest: where it stays, the list did not change. Made once a view.
    pub fn digest_of(&self, kind: EntryKind) -> Digest {
        let make = || {
            let mut parts: Vec<Vec<u8>> = Vec::new();
            for definition in self.all(kind).filter_map(|place| self.roster.get(place)) {
                parts.push(definition.visible.as_bytes().to_vec());
                parts.push(definition.digest.as_bytes().to_vec());
            }
            if kind == EntryKind::Tool {
                parts.push(format!("{:?}", self.disclosure).into_bytes());
            }
            Digest::of_parts(parts.iter().map(Vec::as_slice))
        };
        self.lists.get(kind as usize).map_or_else(make, |digest| *digest.get_or_init(make))
    }

    /// The bridge tools that are listed beside the view's tools, in the byte order of their names.
    pub fn bridge_tools(&self) -> impl Iterator<Item = &'static str> {
        BRIDGE_TOOLS.into_iter().filter(|name| !OVER_HTTP.contains(name) && self.offers(name))
    }

    /// The bridge tools that may be called over HTTP, where there is no other way to prompts and resources.
    pub fn bridge_tools_over_http(&self) -> impl Iterator<Item = &'static str> {
        BRIDGE_TOOLS.into_iter().filter(|name| self.offers(name))
    }

    /// Whether the view offers a bridge tool. They stand outside allow lists; one that could reach nothing is not offered.
    fn offers(&self, name: &str) -> bool {
        let (wanted, reaches) = match name {
            "get_api_spec" => (true, self.count > 0),
            "tool_search" | "tool_describe" | "tool_call" => (self.is_large(), self.count > 0),
            "get_prompt" => (true, self.has(EntryKind::Prompt)),
            "get_resource" => (true, self.has(EntryKind::Resource) || self.has(EntryKind::Template)),
            _ => (false, false),
        };
        let offered = match &self.disclosure.bridge {
            BridgeTools::Auto => wanted,
            BridgeTools::None => false,
            BridgeTools::Names(names) => names.iter().any(|offered| offered == name),
        };
        offered && reaches && !self.disclosure.bridge_denied.contains(name)
    }

    /// 16 hex digits that name the view to people, clients and caches.
    pub fn tag(&self) -> String {
        self.digest.hex(16)
    }
}

fn digest(roster: &Roster, allowed: &[FixedBitSet], disclosure: &Disclosure) -> Digest {
    let mut parts: Vec<Vec<u8>> = vec![b"view/2".to_vec(), roster.digest.as_bytes().to_vec()];
    for set in allowed {
        parts.push(set.as_slice().iter().flat_map(|block| (*block as u64).to_le_bytes()).collect());
    }
    // Debug of plain enums and sorted sets is a canonical form here; the tag above changes with it.
    parts.push(format!("{disclosure:?}").into_bytes());
    Digest::of_parts(parts.iter().map(Vec::as_slice))
}

/// What one session sees: a view, over its own tenant's registry.
pub struct Sight {
    pub registry: Arc<Registry>,
    pub view: Arc<View>,
    /// The rules that the view was compiled from; needed only to explain.
    pub policy: Arc<Policy>,
}

impl Sight {
    /// Whether anything of a server may be used, by the number of its segment of tools.
    pub fn reaches(&self, tools: u32) -> bool {
        let segments = EntryKind::ALL.into_iter().filter_map(|kind| self.registry.segment_beside(tools, kind));
        segments.into_iter().any(|segment| self.view.allows_any(segment))
    }
}

/// All views that are in use, each once.
#[derive(Default)]
pub struct Views {
    views: DashMap<Digest, Weak<View>>,
    rosters: DashMap<Digest, Weak<Roster>>,
}

impl Views {
    /// Compiles a policy over a registry, or finds the view that this yields.
    pub fn sight(&self, registry: Arc<Registry>, policy: Arc<Policy>, scopes: &BTreeSet<String>) -> Sight {
        let allowed = compile(&registry, &policy, scopes);
        let settings = registry.settings();
        let denied = policy.deny.iter().map(|d| &d.entry).chain(registry.revoked_entries()).map(|e| e.as_str());
        let disclosure = Disclosure {
            hide_denied: settings.hide_denied,
            bridge: policy.bridge_tools.clone(),
            bridge_denied: denied.filter(|name| BRIDGE_TOOLS.contains(name)).map(str::to_owned).collect(),
            defer_above: policy.defer_above.or(settings.defer_above).unwrap_or(limits::DEFER_ABOVE),
            pinned: policy.pinned.clone(),
        };
        let fresh = View::new(registry.roster.clone(), allowed, disclosure);
        let view = intern(&self.views, fresh.digest, fresh);
        Sight { registry, view, policy }
    }

    /// The roster of these segments, shared with whoever has the same ones.
    pub fn roster(&self, segments: Vec<Arc<crate::registry::Segment>>) -> Arc<Roster> {
        let digest = Digest::of_parts(segments.iter().map(|s| &s.digest.as_bytes()[..]));
        if let Some(roster) = self.rosters.get(&digest).and_then(|weak| weak.upgrade()) {
            return roster;
        }
        let fresh = Roster::new(segments);
        intern(&self.rosters, digest, fresh)
    }

    /// Views and rosters in use now.
    pub fn live(&self) -> (usize, usize) {
        let views = self.views.iter().filter(|e| e.value().strong_count() > 0).count();
        (views, self.rosters.iter().filter(|e| e.value().strong_count() > 0).count())
    }
}

fn intern<T>(map: &DashMap<Digest, Weak<T>>, digest: Digest, fresh: T) -> Arc<T> {
    let mut slot = map.entry(digest).or_default();
    if let Some(shared) = slot.upgrade() {
        return shared;
    }
    let shared = Arc::new(fresh);
    *slot = Arc::downgrade(&shared);
    drop(slot);
    // Dead entries are swept when the map has grown large, which keeps the cost of an insertion constant on average.
    if map.len().is_power_of_two() && map.len() >= 1024 {
        map.retain(|_, weak| weak.strong_count() > 0);
    }
    shared
}
