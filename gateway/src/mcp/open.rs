//! How a conversation opens: `server/discover` in the modern era, `initialize` in the legacy ones.

use http::{HeaderValue, Response};
use rollcall_shared::mcp::era::{Era, REVISIONS, legacy_answer};
use rollcall_shared::mcp::headers;

use super::{Ask, session};
use crate::body::Body;
use crate::refusal::Refusal;

pub(super) fn discover(ask: &Ask<'_>) -> Result<Response<Body>, Refusal> {
    let offers = ask.offers()?;
    let versions = serde_json::to_string(&REVISIONS).unwrap_or_default();
    let mut members = format!(
        r#""supportedVersions":{versions},"capabilities":{},"ttlMs":0,"cacheScope":"private""#,
        offers.capabilities(Era::Modern)
    );
    if let Some(instructions) = offers.instructions() {
        members.push(',');
        members.push_str(&instructions);
    }
    Ok(ask.result(&members, ""))
}

/// The answer carries a session, which is its sealed id and nothing else: any node knows it again.
pub(super) fn initialize(ask: &Ask<'_>) -> Result<Response<Body>, Refusal> {
    let offers = ask.offers()?;
    let asked = ask.params.text("protocolVersion")?.unwrap_or_default();
    let version = legacy_answer(&asked);
    let mut members = format!(
        r#""protocolVersion":"{version}","capabilities":{},"serverInfo":{}"#,
        offers.capabilities(Era::Legacy),
        offers.info()
    );
    if let Some(instructions) = offers.instructions() {
        members.push(',');
        members.push_str(&instructions);
    }
    let mut response = ask.result(&members, "");
    let id = session::begin(ask, version).and_then(|id| HeaderValue::from_str(&id).ok());
    response.headers_mut().extend(id.map(|id| (http::HeaderName::from_static(headers::SESSION_ID), id)));
    Ok(response)
}
