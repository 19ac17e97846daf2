//! A segment: one kind of one server's catalog under one alias, addressed by content and shared by all tenants.
//!
//! Definitions stay the bytes that the server sent; only where the value of `name` (or `uri`, or `uriTemplate`) lies is
//! remembered, so that a list can put the visible one there. Per-tenant facts (server id, scopes, groups, trust) are the registry's bindings.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use dashmap::DashMap;
use rollcall_shared::digest::Digest;
use rollcall_shared::ids::{Alias, ServerId};
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::param_headers::{self, ParamHeader};
use rollcall_shared::mcp::raw;
use rollcall_shared::model::{About, Catalog, EntryKind, PlatformTool};
use serde_json::value::RawValue;

use super::naming::{HashDigits, Visible, visible};
use super::uri;

/// The version of naming and layout; part of every segment's address.
const ALGORITHM: &[u8] = b"segment/2";

/// One tool (or prompt, resource, template) as listed.
#[derive(Debug)]
pub struct Definition {
    pub visible: Box<str>,
    pub real: Box<str>,
    /// The JSON object as the server sent it.
    raw: Bytes,
    /// Where the value of the name lies in it, quotes included.
    name_value: Range<usize>,
    /// Arguments that a modern client mirrors into headers; of a tool whose annotations are valid.
    pub headers: Box<[ParamHeader]>,
    pub digest: Digest,
    /// `annotations.readOnlyHint`; whether it counts is the registry's business.
    pub read_only_hint: bool,
}

impl Definition {
    /// The definition untouched, with its real name.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// Appends the definition with the visible name in place of the real one; every other byte is as sent.
    pub fn write_visible(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.raw.get(..self.name_value.start).unwrap_or_default());
        out.push(b'"');
        out.extend_from_slice(self.visible.as_bytes());
        out.push(b'"');
        out.extend_from_slice(self.raw.get(self.name_value.end..).unwrap_or_default());
    }

    /// The raw value of a member, such as `inputSchema`.
    pub fn member(&self, key: &str) -> Option<&str> {
        let text = std::str::from_utf8(&self.raw).ok()?;
        raw::members(text).ok()?.into_iter().find(|(k, _)| k == key).map(|(_, value)| value.get())
    }
}

/// See the module.
#[derive(Debug)]
pub struct Segment {
    pub digest: Digest,
    pub kind: EntryKind,
    /// `None` for platform tools.
    pub alias: Option<Alias>,
    /// Whether a list that would be too large leaves its tools out: a server's, and those of imported APIs, which come by
    /// the thousand. What a platform wrote by hand is always listed.
    pub deferrable: bool,
    /// Sorted by visible name.
    definitions: Box<[Definition]>,
    /// The visible names one after another, and where each ends: a glob over thousands of names reads these, not the
    /// definitions, which lie all over the memory.
    names: Box<str>,
    name_ends: Box<[u32]>,
    /// Local ids in the order that the server sent.
    sent: Box<[u32]>,
    /// Local ids sorted by real name.
    by_real: Box<[u32]>,
    /// Elements that were no definition, or repeated a real name.
    pub dropped: usize,
}

impl Segment {
    pub fn definitions(&self) -> &[Definition] {
        &self.definitions
    }

    pub fn get(&self, local: u32) -> Option<&Definition> {
        self.definitions.get(local as usize)
    }

    pub fn sent_order(&self) -> &[u32] {
        &self.sent
    }

    /// Local ids of the names that begin with `prefix`.
    pub fn with_prefix(&self, prefix: &str) -> Range<usize> {
        let start = self.definitions.partition_point(|d| *d.visible < *prefix);
        let rest = self.definitions.get(start..).unwrap_or_default();
        start..start + rest.partition_point(|d| d.visible.starts_with(prefix))
    }

    /// Local ids and visible names of a range, in order.
    pub fn names_in(&self, range: Range<usize>) -> impl Iterator<Item = (usize, &str)> {
        let mut start = match range.start.checked_sub(1) {
            Some(before) => self.name_ends.get(before).map_or(0, |end| *end as usize),
            None => 0,
        };
        range.map_while(move |local| {
            let end = *self.name_ends.get(local)? as usize;
            let name = self.names.get(start..end)?;
            start = end;
            Some((local, name))
        })
    }

    /// The local id of a real name.
    pub fn by_real(&self, real: &str) -> Option<u32> {
        let name = |local: &u32| self.get(*local).map(|d| &*d.real);
        let at = self.by_real.binary_search_by(|local| name(local).cmp(&Some(real))).ok()?;
        self.by_real.get(at).copied()
    }
}

/// A definition before its visible name is known.
struct Parsed {
    real: String,
    raw: Bytes,
    name_value: Range<usize>,
    headers: Box<[ParamHeader]>,
    read_only_hint: bool,
}

/// The member that names an entry of this kind.
fn name_member(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Tool | EntryKind::Prompt => "name",
        EntryKind::Resource => "uri",
        EntryKind::Template => "uriTemplate",
    }
}

fn parse(kind: EntryKind, element: &RawValue) -> Option<Parsed> {
    let text = element.get();
    let members = raw::members(text).ok()?;
    // Two readers of a repeated key would see two definitions, and one of them might carry another tool's name.
    let distinct: BTreeSet<&str> = members.iter().map(|(key, _)| key.as_ref()).collect();
    if distinct.len() < members.len() {
        return None;
    }
    let get = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, value)| *value);
    let name = get(name_member(kind))?;
    let real = raw::string(name).filter(|real| !real.is_empty())?;
    let name_value = raw::range_in(text, name.get())?;
    let read_only_hint = get("annotations")
        .and_then(|value| raw::members(value.get()).ok())
        .is_some_and(|inner| inner.iter().any(|(key, value)| key == "readOnlyHint" && value.get() == "true"));
    let schema = get("inputSchema").filter(|_| kind == EntryKind::Tool);
    let headers = schema.and_then(|schema| param_headers::declared(schema.get()).ok()).unwrap_or_default();
    let raw = Bytes::copy_from_slice(text.as_bytes());
    Some(Parsed { real, raw, name_value, headers: headers.into(), read_only_hint })
}

/// One server's catalog under one alias: a segment a kind, and what the server says of itself.
#[derive(Debug, Default)]
pub struct Listing {
    /// Tools first; other kinds only where there are any.
    pub segments: Vec<Arc<Segment>>,
    pub about: About,
}

impl Listing {
    pub fn of(&self, kind: EntryKind) -> Option<&Arc<Segment>> {
        self.segments.iter().find(|segment| segment.kind == kind)
    }
}

/// A listing, and the era in which it was listed.
#[derive(Debug, Clone)]
pub struct Listed {
    pub listing: Arc<Listing>,
    pub era: Era,
}

/// All segments that are in use, each once.
#[derive(Default)]
pub struct Segments {
    by_digest: DashMap<Digest, Weak<Segment>>,
    listings: DashMap<Digest, Weak<Listing>>,
}

impl Segments {
    /// A server's catalog under its alias. `catalog_digest` addresses the catalog's content.
    pub fn listing(
        &self,
        alias: &Alias,
        budget: usize,
        server: &ServerId,
        catalog: &Catalog,
        catalog_digest: &Digest,
    ) -> Arc<Listing> {
        let mut segments = Vec::new();
        let mut salted = false;
        let kinds = [
            (EntryKind::Tool, &catalog.tools),
            (EntryKind::Prompt, &catalog.prompts),
            (EntryKind::Resource, &catalog.resources),
            (EntryKind::Template, &catalog.templates),
        ];
        for (kind, elements) in kinds {
            if elements.is_empty() && kind != EntryKind::Tool {
                continue;
            }
            let (parsed, dropped) = parse_all(kind, elements);
            let names = name_all(kind, alias, budget, server, &parsed);
            // A cut name depends on the server's id, and only then is the id part of the address.
            let cut = names.iter().any(|n| n.cut);
            salted |= cut;
            let salt = if cut { server.as_str() } else { "" };
            // By its own content alone: what changes in one list is no change of another.
            let content = Digest::of_parts(elements.iter().map(|element| element.get().as_bytes()));
            let digest = address(kind.label(), alias, budget, &content, salt);
            segments.push(self.intern(digest, || {
                let definitions = parsed.into_iter().zip(names).map(|(p, n)| (p, n.name)).collect();
                assemble(digest, kind, Some(alias.clone()), definitions, dropped)
            }));
        }
        let listing = Arc::new(Listing { segments, about: catalog.about.clone() });
        if !salted {
            self.listings.insert(address("listing", alias, budget, catalog_digest, ""), Arc::downgrade(&listing));
            if self.listings.len().is_power_of_two() && self.listings.len() >= 64 {
                self.listings.retain(|_, weak| weak.strong_count() > 0);
            }
        }
        listing
    }

    /// The listing of a catalog, if somebody has it already and no name in it depends on the server.
    pub fn find(&self, alias: &Alias, budget: usize, catalog_digest: &Digest) -> Option<Arc<Listing>> {
        self.listings.get(&address("listing", alias, budget, catalog_digest, ""))?.upgrade()
    }

    /// Platform tools of a tenant: those written by hand, or those of imported APIs.
    pub fn platform<'a>(&self, tools: impl Iterator<Item = &'a PlatformTool>, imported: bool) -> Arc<Segment> {
        let listed: Vec<(String, String)> = tools.map(|t| (t.name.to_string(), t.listed())).collect();
        let kind: &[u8] = if imported { b"imported" } else { b"platform" };
        let digest =
            Digest::of_parts([ALGORITHM, kind].into_iter().chain(listed.iter().map(|(_, json)| json.as_bytes())));
        self.intern(digest, || {
            let definitions = listed
                .iter()
                .filter_map(|(name, json)| {
                    let element: &RawValue = serde_json::from_str(json).ok()?;
                    Some((parse(EntryKind::Tool, element)?, name.clone()))
                })
                .collect();
            Segment { deferrable: imported, ..assemble(digest, EntryKind::Tool, None, definitions, 0) }
        })
    }

    fn intern(&self, digest: Digest, build: impl FnOnce() -> Segment) -> Arc<Segment> {
        if let Some(segment) = self.by_digest.get(&digest).and_then(|weak| weak.upgrade()) {
            return segment;
        }
        let segment = Arc::new(build());
        // Building twice at once is harmless; the later one is kept for others.
        self.by_digest.insert(digest, Arc::downgrade(&segment));
        if self.by_digest.len() > 4 * self.live() + 64 {
            self.by_digest.retain(|_, weak| weak.strong_count() > 0);
        }
        segment
    }

    /// Segments in use now.
    pub fn live(&self) -> usize {
        self.by_digest.iter().filter(|entry| entry.value().strong_count() > 0).count()
    }
}

fn address(what: &str, alias: &Alias, budget: usize, catalog: &Digest, salt: &str) -> Digest {
    let (alias, budget) = (alias.as_str().as_bytes(), budget.to_be_bytes());
    Digest::of_parts([ALGORITHM, what.as_bytes(), alias, &budget, catalog.as_bytes(), salt.as_bytes()])
}

/// The same real name twice keeps the first; an element without a name is no definition.
fn parse_all(kind: EntryKind, elements: &[Box<RawValue>]) -> (Vec<Parsed>, usize) {
    let mut seen = BTreeSet::new();
    let parsed: Vec<Parsed> =
        elements.iter().filter_map(|e| parse(kind, e)).filter(|p| seen.insert(p.real.clone())).collect();
    let dropped = elements.len() - parsed.len();
    (parsed, dropped)
}

/// The visible name of an entry of any kind under an alias, with hashes of the usual length.
pub fn name_of(kind: EntryKind, alias: &Alias, real: &str, budget: usize, server: &ServerId) -> Visible {
    name_with(kind, alias, real, budget, server, HashDigits::SHORT)
}

fn name_with(
    kind: EntryKind,
    alias: &Alias,
    real: &str,
    budget: usize,
    server: &ServerId,
    digits: HashDigits,
) -> Visible {
    let uri = |name| Visible { name, changed: false, cut: false };
    match kind {
        EntryKind::Tool | EntryKind::Prompt => visible(alias, real, budget, server, digits),
        EntryKind::Resource => uri(uri::resource(alias, real)),
        EntryKind::Template => uri(uri::template(alias, real)),
    }
}

/// Names for all. Where two meet, those that carry a hash get a longer one.
fn name_all(kind: EntryKind, alias: &Alias, budget: usize, server: &ServerId, parsed: &[Parsed]) -> Vec<Visible> {
    let named = |p: &Parsed, digits| name_with(kind, alias, &p.real, budget, server, digits);
    let mut names: Vec<_> = parsed.iter().map(|p| named(p, HashDigits::SHORT)).collect();
    for digits in [HashDigits::LONG, HashDigits::LONGEST] {
        let mut count: BTreeMap<String, usize> = BTreeMap::new();
        for name in &names {
            *count.entry(name.name.clone()).or_default() += 1;
        }
        for (name, p) in names.iter_mut().zip(parsed) {
            if count.get(&name.name).is_some_and(|n| *n > 1) && (name.changed || name.cut) {
                *name = named(p, digits);
            }
        }
    }
    names
}

fn assemble(
    digest: Digest,
    kind: EntryKind,
    alias: Option<Alias>,
    named: Vec<(Parsed, String)>,
    dropped: usize,
) -> Segment {
    let mut order: Vec<(usize, Definition)> = named
        .into_iter()
        .enumerate()
        .map(|(position, (parsed, name))| {
            let definition = Definition {
                visible: name.into(),
                real: parsed.real.into(),
                digest: Digest::of(&parsed.raw),
                raw: parsed.raw,
                name_value: parsed.name_value,
                headers: parsed.headers,
                read_only_hint: parsed.read_only_hint,
            };
            (position, definition)
        })
        .collect();
    order.sort_by(|a, b| a.1.visible.cmp(&b.1.visible));
    let mut sent: Vec<(usize, u32)> =
        order.iter().zip(0u32..).map(|((position, _), local)| (*position, local)).collect();
    sent.sort_unstable();
    let mut by_real: Vec<(&str, u32)> = order.iter().zip(0u32..).map(|((_, d), local)| (&*d.real, local)).collect();
    by_real.sort_unstable();
    let by_real = by_real.into_iter().map(|(_, local)| local).collect();
    let mut names = String::new();
    let mut name_ends = Vec::with_capacity(order.len());
    for (_, definition) in &order {
        names.push_str(&definition.visible);
        name_ends.push(u32::try_from(names.len()).unwrap_or(u32::MAX));
    }
    Segment {
        digest,
        kind,
        deferrable: alias.is_some(),
        alias,
        definitions: order.into_iter().map(|(_, d)| d).collect(),
        sent: sent.into_iter().map(|(_, local)| local).collect(),
        by_real,
        names: names.into(),
        name_ends: name_ends.into(),
        dropped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalog(tools: &[&str]) -> Catalog {
        let tools = tools.iter().filter_map(|t| RawValue::from_string((*t).to_owned()).ok()).collect();
        Catalog { tools, ..Catalog::default() }
    }

    fn build(segments: &Segments, server: &str, tools: &[&str]) -> Arc<Segment> {
        let alias = Alias::parse("x").expect("an alias");
        let catalog = catalog(tools);
        let digest = catalog.pack().expect("packed").0;
        let listing = segments.listing(&alias, 64, &ServerId::parse(server).expect("an id"), &catalog, &digest);
        listing.of(EntryKind::Tool).expect("tools").clone()
    }

    #[test]
    fn every_other_byte_is_as_sent() {
        let sent =
            r#"{ "title":"n\u00e4me","name" : "b.c", "inputSchema":{"type":"object","n":9007199254740993},"z":1}"#;
        let segment = build(
            &Segments::default(),
            "s",
            &[sent, r#"{"name":"a"}"#, r#"{"noname":1}"#, r#"{"name":"a","x":2}"#, r#"{"name":"d","name":"e"}"#],
        );
        assert_eq!(segment.dropped, 3);
        assert_eq!(segment.sent_order(), [1, 0]);
        let definition = segment.get(1).expect("the changed one");
        let mut out = Vec::new();
        definition.write_visible(&mut out);
        let expected = sent.replace("\"b.c\"", &format!("\"{}\"", definition.visible));
        assert_eq!(String::from_utf8(out).expect("text"), expected);
        assert_eq!(definition.member("inputSchema"), Some(r#"{"type":"object","n":9007199254740993}"#));
    }

    #[test]
    fn equal_content_is_one_segment_across_servers_unless_a_name_was_cut() {
        let segments = Segments::default();
        let (a, b) = (build(&segments, "s1", &[r#"{"name":"t"}"#]), build(&segments, "s2", &[r#"{"name":"t"}"#]));
        assert!(Arc::ptr_eq(&a, &b));
        let long = format!(r#"{{"name":"{}"}}"#, "t".repeat(80));
        let (a, b) = (build(&segments, "s1", &[&long]), build(&segments, "s2", &[&long]));
        assert_ne!(a.digest, b.digest);
        assert_ne!(a.definitions()[0].visible, b.definitions()[0].visible);
        assert_eq!(segments.live(), 3);
    }

    #[test]
    fn names_that_meet_get_longer_hashes_and_all_stay_distinct() {
        let changed = visible(
            &Alias::parse("x").expect("an alias"),
            "a.b",
            64,
            &ServerId::parse("s").expect("an id"),
            HashDigits::SHORT,
        );
        let bare = changed.name.strip_prefix("x__").expect("a prefix");
        let segment = build(&Segments::default(), "s", &[r#"{"name":"a.b"}"#, &format!(r#"{{"name":"{bare}"}}"#)]);
        let names: BTreeSet<&str> = segment.definitions().iter().map(|d| &*d.visible).collect();
        assert_eq!(names.len(), 2);
        assert!(names.contains(changed.name.as_str()), "the unchanged name keeps its form");
    }
}
