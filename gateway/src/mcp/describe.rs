//! `get_api_spec` as a tool: the OpenAPI document as text, or the refusal as a JSON-RPC error.

use http::Response;
use rollcall_shared::mcp::raw;
use rollcall_shared::telemetry::label;

use super::Ask;
use crate::body::Body;
use crate::refusal::Refusal;
use crate::surface::spec_arguments::{self, ServerNameEffect};

pub(super) fn get_api_spec(ask: &Ask<'_>, arguments: Option<&[u8]>) -> Result<Response<Body>, Refusal> {
    let text = arguments.map(std::str::from_utf8).transpose().map_err(|_| Refusal::Internal)?;
    let asked = match spec_arguments::read(text) {
        Ok(asked) => asked,
        // Bad arguments are the tool's own error, so that the model sees them.
        Err(what) => return Ok(tool_result(ask, &what, true)),
    };
    if asked.server_name.is_some() && ask.sight.registry.settings().reject_server_name {
        ask.app.metrics.server_name_used.add(1, &[label("effect", "rejected")]);
        return Ok(tool_result(ask, "`server_name` is not taken: the tool name is the only address", true));
    }
    let availability = |server: &_| ask.app.live.availability(&ask.principal.tenant, server);
    let (resolved, effect) = spec_arguments::resolve(&ask.sight, &asked, &availability);
    match effect {
        ServerNameEffect::Unused => {}
        ServerNameEffect::Settled => ask.app.metrics.server_name_used.add(1, &[label("effect", "settled")]),
        ServerNameEffect::Ignored => ask.app.metrics.server_name_used.add(1, &[label("effect", "ignored")]),
    }
    let permits = resolved.map_err(Refusal::Tools)?;
    Ok(tool_result(ask, &ask.app.specs.document(&permits, &ask.app.public_url), false))
}

fn tool_result(ask: &Ask<'_>, text: &str, is_error: bool) -> Response<Body> {
    let members = format!(r#""content":[{{"type":"text","text":{}}}],"isError":{is_error}"#, raw::quote(text));
    ask.result(&members, "")
}
