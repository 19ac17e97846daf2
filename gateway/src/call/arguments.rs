//! Arguments of servers' tools against the schemas that the servers gave, for tenants that ask for it.
//!
//! Servers check for themselves, in their own words; a tenant that pays for each call, or whose servers fail badly, has it
//! done before anything is sent. Platform tools are always checked, by the worker that calls them.

use rollcall_shared::schema::misfit;

use crate::app::App;
use crate::view::Permit;

/// What of the arguments of a tool does not fit, as text for the model; nothing where they fit or nobody asked. A schema that
/// cannot be compiled (it leads elsewhere, or has patterns that need more than linear time) checks nothing.
pub(crate) fn problems(app: &App, permit: Permit<'_>, arguments: Option<&[u8]>) -> Option<String> {
    if !permit.registry().settings().check_arguments || permit.server().is_none() {
        return None;
    }
    let definition = permit.definition();
    let schema = app.schemas.of(definition.digest, || definition.member("inputSchema").unwrap_or("{}"));
    let Ok(schema) = &*schema else { return None };
    let arguments = std::str::from_utf8(arguments.unwrap_or(b"{}")).ok()?;
    schema.check(arguments).err().map(|problems| misfit(&definition.visible, &problems))
}
