//! How a conversation opens: `server/discover` in the modern era, `initialize` in the legacy ones.

use http::{HeaderValue, Response};
use rollcall_shared::mcp::era::{Era, REVISIONS, legacy_answer};
use rollcall_shared::mcp::{headers, raw};

use super::offers::Offers;
use super::{Ask, session};
use crate::body::Body;
use crate::live::store_refusal;
use crate::refusal::Refusal;
use crate::surface::instructions;
use crate::surface::manifest::Manifest;

pub(super) async fn discover(ask: &Ask<'_>) -> Result<Response<Body>, Refusal> {
    let offers = ask.offers()?;
    let versions = serde_json::to_string(&REVISIONS).unwrap_or_default();
    let mut members = format!(
        r#""supportedVersions":{versions},"capabilities":{},"ttlMs":0,"cacheScope":"private""#,
        offers.capabilities(Era::Modern)
    );
    members.push_str(&instructions(ask, &offers).await?);
    Ok(ask.result(&members, ""))
}

/// The answer carries a session, which is its sealed id and nothing else: any node knows it again.
pub(super) async fn initialize(ask: &Ask<'_>) -> Result<Response<Body>, Refusal> {
    let offers = ask.offers()?;
    let asked = ask.params.text("protocolVersion")?.unwrap_or_default();
    let version = legacy_answer(&asked);
    let mut members = format!(
        r#""protocolVersion":"{version}","capabilities":{},"serverInfo":{}"#,
        offers.capabilities(Era::Legacy),
        offers.info()
    );
    members.push_str(&instructions(ask, &offers).await?);
    let mut response = ask.result(&members, "");
    let id = session::begin(ask, version).and_then(|id| HeaderValue::from_str(&id).ok());
    response.headers_mut().extend(id.map(|id| (http::HeaderName::from_static(headers::SESSION_ID), id)));
    Ok(response)
}

/// `,"instructions":…`: of the one server of the endpoint as it gave them; else what this session is told. A legacy client
/// is told once, so it reads no names.
async fn instructions(ask: &Ask<'_>, offers: &Offers) -> Result<String, Refusal> {
    if ask.endpoint.server.is_some() {
        return Ok(offers.instructions().map(|member| format!(",{member}")).unwrap_or_default());
    }
    let (app, tenant) = (ask.app, &ask.principal.tenant);
    let written = app.live.tenants().instructions(tenant, &ask.principal.session_id()).await;
    let written = written.map_err(|e| store_refusal(&e))?;
    let of_servers = instructions::of_servers(&ask.sight);
    let text = match ask.message.era {
        Era::Legacy => instructions::compose_once(&written, &of_servers, &app.public_url),
        Era::Modern => {
            let unreachable = |server: &_| app.live.unreachable(tenant, server);
            let manifest = Manifest::new(&ask.sight, &app.public_url, &unreachable);
            instructions::compose(&written, &of_servers, &app.public_url, &manifest.text())
        }
    };
    Ok(format!(r#","instructions":{}"#, raw::quote(&text)))
}
