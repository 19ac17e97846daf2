//! From a name or URI in a request to a permit: whole and visible on `/mcp`, real on `/servers/{server}/mcp`.

use rollcall_shared::ids::TenantId;
use rollcall_shared::limits;
use rollcall_shared::model::EntryKind;

use crate::app::App;
use crate::http::Endpoint;
use crate::policy;
use crate::refusal::Refusal;
use crate::registry::{Definition, Place, uri};
use crate::surface::recovery;
use crate::view::{Permit, Refused, Sight, Unavailable};

/// Who looks for something, and where.
#[derive(Clone, Copy)]
pub(crate) struct Reach<'r, 's> {
    pub(crate) app: &'r App,
    pub(crate) tenant: &'r TenantId,
    pub(crate) endpoint: &'r Endpoint,
    pub(crate) sight: &'s Sight,
}

/// The permit for a tool.
pub(crate) fn tool<'s>(at: Reach<'_, 's>, name: &str) -> Result<Permit<'s>, Refusal> {
    let availability = |server: &_| at.app.live.availability(at.tenant, server);
    let Some(server) = &at.endpoint.server else {
        return at.sight.resolve_one(name, &availability).map_err(Refusal::Tools);
    };
    let Some(segment) = at.sight.registry.segment_of(server) else {
        let registry = &at.sight.registry;
        let missing = registry.missing.iter().find(|m| {
            m.alias.as_str() == server
                || m.server.id.as_str() == server
                || m.server.name.as_deref() == Some(server.as_str())
        });
        let missing = missing
            .filter(|m| policy::could_reach(&at.sight.registry, &at.sight.policy, m))
            .ok_or(Refusal::NoSuchServer)?;
        let (reason, retry_after_s) = availability(&missing.server);
        let tool = Unavailable { name: shown(name), server: missing.alias.to_string(), reason, retry_after_s };
        let mut refused = Refused { unavailable: vec![tool], ..Refused::default() };
        refused.message = recovery::text(at.sight, &refused);
        return Err(Refusal::Tools(Box::new(refused)));
    };
    at.sight.resolve_real(segment, name).ok_or_else(|| {
        let exists = at.sight.view.roster.segments().get(segment as usize).is_some_and(|s| s.by_real(name).is_some());
        let known = exists && !at.sight.view.disclosure.hide_denied;
        let shown = shown(name);
        let message = recovery::server_text(at.sight, segment, &shown, known);
        let (unknown, not_allowed) = if known { (vec![], vec![shown]) } else { (vec![shown], vec![]) };
        Refusal::Tools(Box::new(Refused { unknown, not_allowed, message, ..Refused::default() }))
    })
}

fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(limits::NEAREST_NAME_BYTES).collect()
}

/// The segment of a kind of the endpoint's server.
fn segment(at: Reach<'_, '_>, server: &str, kind: EntryKind) -> Option<u32> {
    let registry = &at.sight.registry;
    registry.segment_beside(registry.segment_of(server)?, kind)
}

/// The permit for an entry that is named as it is listed.
fn listed<'s>(at: Reach<'_, 's>, kind: EntryKind, name: &str) -> Option<Permit<'s>> {
    match &at.endpoint.server {
        None => at.sight.permit(kind, name),
        Some(server) => at.sight.resolve_real(segment(at, server, kind)?, name),
    }
}

/// The permit for a prompt.
pub(crate) fn prompt<'s>(at: Reach<'_, 's>, name: &str) -> Result<Permit<'s>, Refusal> {
    listed(at, EntryKind::Prompt, name).ok_or_else(|| {
        let server = at.endpoint.server.as_deref().and_then(|server| segment(at, server, EntryKind::Prompt));
        let in_place = at.endpoint.server.is_some();
        let names = recovery::names(at.sight, EntryKind::Prompt, server, in_place);
        Refusal::NoSuchPrompt(recovery::entry_text("prompt", &shown(name), &names))
    })
}

/// The permit for a template, as a completion names it.
pub(crate) fn template<'s>(at: Reach<'_, 's>, name: &str) -> Result<Permit<'s>, Refusal> {
    let found = listed(at, EntryKind::Template, name).or_else(|| listed(at, EntryKind::Resource, name));
    found.ok_or_else(|| Refusal::InvalidParams(format!("there is no resource template {}", shown(name))))
}

/// The permit for a resource, and its real URI: one that is listed, or one that matches a template.
pub(crate) fn resource<'s>(at: Reach<'_, 's>, name: &str) -> Result<(Permit<'s>, String), Refusal> {
    let found = match &at.endpoint.server {
        Some(server) => of_server(at, server, name),
        None => at
            .sight
            .permit(EntryKind::Resource, name)
            .map(|permit| (permit, permit.definition().real.to_string()))
            .or_else(|| by_template(at, name, |definition| &definition.visible, |_| true))
            .or_else(|| bare(at, name)),
    };
    found.ok_or_else(|| Refusal::NoSuchResource(name.chars().take(limits::ENTRY_BYTES).collect()))
}

fn of_server<'s>(at: Reach<'_, 's>, server: &str, name: &str) -> Option<(Permit<'s>, String)> {
    if let Some(permit) = listed(at, EntryKind::Resource, name) {
        return Some((permit, name.to_owned()));
    }
    let own = segment(at, server, EntryKind::Template)?;
    by_template(at, name, |definition| &definition.real, |place| place.segment == own)
}

/// The first allowed template that a URI matches, where nothing denies the very URI.
fn by_template<'s>(
    at: Reach<'_, 's>,
    name: &str,
    form: impl Fn(&Definition) -> &str,
    here: impl Fn(Place) -> bool,
) -> Option<(Permit<'s>, String)> {
    let sight = at.sight;
    sight.view.all(EntryKind::Template).filter(|place| here(*place)).find_map(|place| {
        let definition = sight.registry.definition(place)?;
        let real = uri::expand(form(definition), &definition.real, name)?;
        (!has_own_verdict(sight, place, &real)).then_some(())?;
        Some((sight.permit_at(place)?, real))
    })
}

/// Whether a URI that matches a template may not be read by it: it is listed, and has a verdict of its own; it is denied;
/// or it matches another template of the server that is denied.
fn has_own_verdict(sight: &Sight, template: Place, real: &str) -> bool {
    let denies = |kind, real: &str| policy::denies_uri(&sight.registry, &sight.policy, template.segment, kind, real);
    let alias = sight.registry.alias(template);
    let own = (0u32..).zip(sight.view.roster.segments());
    let own = own.filter(|(number, _)| sight.registry.alias(Place { segment: *number, local: 0 }) == alias);
    denies(EntryKind::Resource, real)
        || own.into_iter().any(|(_, segment)| match segment.kind {
            EntryKind::Resource => segment.by_real(real).is_some(),
            EntryKind::Template => segment.definitions().iter().any(|other| {
                uri::expand(&other.real, &other.real, real).is_some() && denies(EntryKind::Template, &other.real)
            }),
            EntryKind::Tool | EntryKind::Prompt => false,
        })
}

/// A real URI on `/mcp`, such as a link inside a result: good where one server alone has it.
fn bare<'s>(at: Reach<'_, 's>, name: &str) -> Option<(Permit<'s>, String)> {
    let sight = at.sight;
    let mut found: Option<(Permit<'s>, String)> = None;
    for (tools, ..) in sight.registry.servers() {
        let own = |kind| sight.registry.segment_beside(tools, kind);
        let exact = own(EntryKind::Resource)
            .and_then(|segment| sight.resolve_real(segment, name))
            .map(|permit| (permit, name.to_owned()));
        let here = exact.or_else(|| {
            let templates = own(EntryKind::Template)?;
            by_template(at, name, |definition| &definition.real, |place| place.segment == templates)
        });
        if here.is_some() && found.is_some() {
            return None;
        }
        found = here.or(found);
    }
    found
}
