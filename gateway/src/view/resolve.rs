//! Resolution: from names to permits, all or nothing.
//!
//! A [`Permit`] is proof that one name was resolved and authorized in a view. Only this module makes one; the spec cache
//! and the forwarder take nothing else. That is how "authorize before any schema cache lookup" is kept: the compiler
//! keeps it.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollcall_shared::ids::Alias;
use rollcall_shared::limits;
use rollcall_shared::model::{EntryKind, Server};

use super::Sight;
use crate::policy::reaches;
use crate::registry::naming::SEPARATOR;
use crate::registry::{Definition, Place, Registry};
use crate::surface::recovery;

/// Proof of authorization for one name. Borrowed from the sight that gave it.
#[derive(Clone, Copy)]
pub struct Permit<'s> {
    sight: &'s Sight,
    place: Place,
}

impl<'s> Permit<'s> {
    pub fn registry(&self) -> &'s Arc<Registry> {
        &self.sight.registry
    }

    pub fn place(&self) -> Place {
        self.place
    }

    /// The definition; `resolve` found it, so it is there.
    pub fn definition(&self) -> &'s Definition {
        match self.sight.registry.definition(self.place) {
            Some(definition) => definition,
            None => unreachable_definition(),
        }
    }

    /// The alias of its server; none for platform tools.
    pub fn alias(&self) -> Option<&'s Alias> {
        self.sight.registry.alias(self.place)
    }

    /// The upstream server; none for platform tools.
    pub fn server(&self) -> Option<&'s Arc<Server>> {
        self.sight.registry.server(self.place)
    }
}

/// Places come from the roster that is asked for them, so this cannot be reached.
#[expect(clippy::panic, reason = "a place without definition would be a broken roster; one call ends, loudly")]
fn unreachable_definition() -> ! {
    panic!("a permit without a definition")
}

/// A tool that resolves in principle, but of which no definition was ever had.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Unavailable {
    pub name: String,
    /// The server's alias.
    pub server: String,
    /// From the closed list of reasons.
    pub reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
}

/// Why not every name resolved: exact lists, and a text for the agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct Refused {
    pub unknown: Vec<String>,
    pub not_allowed: Vec<String>,
    pub unavailable: Vec<Unavailable>,
    /// For the first unknown names: what may have been meant, nearest first.
    pub nearest: BTreeMap<String, Vec<String>>,
    pub message: String,
}

impl Refused {
    /// `{"success":false,"error":"tools_unavailable",…}`
    pub fn to_json(&self) -> String {
        #[derive(serde::Serialize)]
        struct Answer<'a> {
            success: bool,
            error: &'static str,
            #[serde(flatten)]
            refused: &'a Refused,
        }
        serde_json::to_string(&Answer { success: false, error: "tools_unavailable", refused: self }).unwrap_or_default()
    }
}

/// Availability of servers, asked only on the way to a refusal: reason, and seconds until another attempt makes sense.
pub type Availability<'a> = &'a dyn Fn(&Server) -> (&'static str, Option<u32>);

impl Sight {
    /// Resolves one name. Allocates nothing when it succeeds.
    pub fn resolve_one(&self, name: &str, availability: Availability<'_>) -> Result<Permit<'_>, Box<Refused>> {
        match self.lookup(name) {
            Some(permit) => Ok(permit),
            None => Err(self.refuse([name].into_iter(), availability)),
        }
    }

    /// Resolves all names, or gives one refusal with exact lists. Never a part of them.
    pub fn resolve(&self, names: &[&str], availability: Availability<'_>) -> Result<Vec<Permit<'_>>, Box<Refused>> {
        let permits: Option<Vec<_>> = names.iter().map(|name| self.lookup(name)).collect();
        permits.ok_or_else(|| self.refuse(names.iter().copied(), availability))
    }

    /// An entry of any kind by its whole visible name. Allocates nothing.
    pub fn permit(&self, kind: EntryKind, name: &str) -> Option<Permit<'_>> {
        let place = self.view.roster.find_of(kind, name)?;
        self.view.allows(place).then_some(Permit { sight: self, place })
    }

    /// An entry by its place.
    pub fn permit_at(&self, place: Place) -> Option<Permit<'_>> {
        self.view.allows(place).then_some(Permit { sight: self, place })
    }

    /// The entry of one server's segment under its real name, as `/servers/{server}/mcp` addresses it.
    pub fn resolve_real(&self, segment: u32, real: &str) -> Option<Permit<'_>> {
        let local = self.view.roster.segments().get(segment as usize)?.by_real(real)?;
        let place = Place { segment, local };
        self.view.allows(place).then_some(Permit { sight: self, place })
    }

    /// The tools of the view whose real name is `real`.
    pub fn permits_of_real<'s>(&'s self, real: &'s str) -> impl Iterator<Item = Permit<'s>> {
        (0u32..)
            .zip(self.view.roster.segments())
            .filter(|(_, segment)| segment.alias.is_some() && segment.kind == EntryKind::Tool)
            .filter_map(move |(index, _)| self.resolve_real(index, real))
    }

    fn lookup(&self, name: &str) -> Option<Permit<'_>> {
        self.permit(EntryKind::Tool, name)
    }

    /// Sorts the names that did not resolve, and says what can be done instead.
    pub fn refuse<'n>(&self, names: impl Iterator<Item = &'n str>, availability: Availability<'_>) -> Box<Refused> {
        let hide = self.view.disclosure.hide_denied;
        let mut refused = Refused::default();
        for name in names {
            if self.lookup(name).is_some() {
                continue;
            }
            let shown = shorten(name);
            match self.view.roster.find(name) {
                Some(_) if !hide => push_once(&mut refused.not_allowed, shown),
                Some(_) => push_once(&mut refused.unknown, shown),
                None => match self.unlisted(name, availability) {
                    Some(unavailable) if !refused.unavailable.contains(&unavailable) => {
                        refused.unavailable.push(unavailable);
                    }
                    Some(_) => {}
                    None => push_once(&mut refused.unknown, shown),
                },
            }
        }
        for name in refused.unknown.iter().take(limits::NEAREST_FOR) {
            if name.len() <= limits::NEAREST_NAME_BYTES {
                let near = recovery::nearest(self, name);
                if !near.is_empty() {
                    refused.nearest.insert(name.clone(), near);
                }
            }
        }
        refused.message = recovery::text(self, &refused);
        Box::new(refused)
    }

    /// A name whose server is configured and reached by the policy, but never listed anything.
    fn unlisted(&self, name: &str, availability: Availability<'_>) -> Option<Unavailable> {
        let missing = self.registry.missing.iter().find(|m| {
            name.strip_prefix(m.alias.as_str()).is_some_and(|rest| rest.len() > 2 && rest.starts_with(SEPARATOR))
        })?;
        if !reaches(&self.registry, &self.policy, missing, name) {
            return None;
        }
        let (reason, retry_after_s) = availability(&missing.server);
        Some(Unavailable { name: shorten(name), server: missing.alias.to_string(), reason, retry_after_s })
    }
}

fn push_once(list: &mut Vec<String>, name: String) {
    if !list.contains(&name) {
        list.push(name);
    }
}

/// A name as it is repeated to the caller: at most 128 bytes of it, without control characters.
fn shorten(name: &str) -> String {
    let mut out: String = name.chars().filter(|c| !c.is_control()).collect();
    if out.len() > limits::NEAREST_NAME_BYTES {
        let cut = (0..=limits::NEAREST_NAME_BYTES).rev().find(|n| out.is_char_boundary(*n)).unwrap_or(0);
        out.truncate(cut);
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests;
