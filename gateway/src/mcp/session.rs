//! Legacy sessions (specification 2025-11-25, basic/transports, section Session Management).
//!
//! A session is its sealed id: revision, what its client can be asked, who it says it is. No node keeps it; only what a
//! client changes afterwards (log level, subscriptions, the end) is a small document in the store. A client that does
//! not send the id is served without one, and can be asked for nothing.

use std::sync::Arc;

use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use rollcall_shared::clock::unix_s;
use rollcall_shared::digest::unguessable;
use rollcall_shared::limits;
use rollcall_shared::mcp::{headers, raw};
use rollcall_shared::model::McpSession;
use rollcall_shared::store::{self, Expect, Key, Kind, StoreError, Write};
use rollcall_shared::wire::Caller;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Ask, target};
use crate::app::App;
use crate::body::Body;
use crate::call::{Record, admit, authenticate};
use crate::handle::{Owner, Purpose};
use crate::http::Endpoint;
use crate::identity::Principal;
use crate::refusal::Refusal;

/// What is inside a session's id.
#[derive(Serialize, Deserialize)]
struct Inside {
    #[serde(rename = "n")]
    number: String,
    #[serde(rename = "v")]
    version: String,
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    capabilities: Option<Box<RawValue>>,
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    info: Option<Box<RawValue>>,
}

/// A session that goes on.
pub(crate) struct Session {
    inside: Inside,
    remembered: Arc<McpSession>,
}

impl Session {
    /// Under which its document is stored, and to which its handles are bound.
    pub(crate) fn number(&self) -> &str {
        &self.inside.number
    }

    pub(crate) fn remembered(&self) -> &McpSession {
        &self.remembered
    }

    /// Whether its client knows streams that say how to come back to them.
    pub(crate) fn primes(&self) -> bool {
        self.inside.version.as_str() >= "2025-11-25"
    }

    pub(crate) fn speaks_for(&self, caller: &mut Caller) {
        caller.capabilities.clone_from(&self.inside.capabilities);
        caller.info.clone_from(&self.inside.info);
        let level = self.remembered.log_level.as_ref();
        caller.log_level = level.and_then(|level| RawValue::from_string(raw::quote(level)).ok());
    }
}

fn owner<'a>(principal: &'a Principal, scope: &'a [&'a str]) -> Owner<'a> {
    Owner { principal, scope }
}

fn scope(endpoint: &Endpoint) -> [&str; 1] {
    [endpoint.server.as_deref().unwrap_or_default()]
}

/// The id of a new session.
pub(super) fn begin(ask: &Ask<'_>, version: &str) -> Option<String> {
    let inside = Inside {
        number: unguessable(),
        version: version.to_owned(),
        capabilities: ask.params.get("capabilities").and_then(askable),
        info: ask
            .params
            .get("clientInfo")
            .filter(|info| info.get().len() <= limits::SESSION_CAPABILITIES_BYTES)
            .map(ToOwned::to_owned),
    };
    let content = serde_json::to_vec(&inside).ok()?;
    let scope = scope(ask.endpoint);
    let lifetime = limits::MCP_SESSION_LIFETIME.as_secs();
    ask.app.seals.seal(Purpose::Session, owner(ask.principal, &scope), &content, lifetime)
}

/// What a legacy client can be asked for by an upstream. Extensions need an era in which each request declares them,
/// those about the display of results apart.
fn askable(capabilities: &RawValue) -> Option<Box<RawValue>> {
    let members = raw::members(capabilities.get()).ok()?;
    let whole = capabilities.get().len() <= limits::SESSION_CAPABILITIES_BYTES;
    let mut out: Vec<String> = Vec::new();
    for (name, value) in members {
        match name.as_ref() {
            "extensions" if whole => {
                let inner = raw::members(value.get()).unwrap_or_default();
                let kept = inner.iter().filter(|(id, _)| id != super::offers::TASKS);
                let kept: Vec<String> = kept.map(|(id, v)| format!("{}:{}", raw::quote(id), v.get())).collect();
                out.push(format!(r#""extensions":{{{}}}"#, kept.join(",")));
            }
            "tasks" | "extensions" => {}
            "roots" | "sampling" | "elicitation" if !whole => out.push(format!(r#""{name}":{{}}"#)),
            _ if whole => out.push(format!("{}:{}", raw::quote(&name), value.get())),
            _ => {}
        }
    }
    RawValue::from_string(format!("{{{}}}", out.join(","))).ok()
}

/// The session that a request names. A foreign, altered, late or ended one is none that we know.
pub(crate) async fn find(
    app: &App,
    principal: &Principal,
    endpoint: &Endpoint,
    headers: &HeaderMap,
) -> Result<Option<Session>, Refusal> {
    let mut values = headers.get_all(headers::SESSION_ID).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let id = value.to_str().ok().filter(|_| values.next().is_none()).ok_or(Refusal::NoSuchSession)?;
    let scope = scope(endpoint);
    let content = app.seals.open(Purpose::Session, owner(principal, &scope), id).ok_or(Refusal::NoSuchSession)?;
    let inside: Inside = serde_json::from_slice(&content).map_err(|_| Refusal::NoSuchSession)?;
    let tenants = app.live.tenants();
    let remembered = tenants.mcp_session(&principal.tenant, &inside.number).await.map_err(|e| unavailable(&e))?;
    if remembered.ended {
        return Err(Refusal::NoSuchSession);
    }
    Ok(Some(Session { inside, remembered }))
}

fn unavailable(error: &StoreError) -> Refusal {
    tracing::error!(%error, "a session cannot be read or written");
    Refusal::StoreUnavailable
}

/// Changes what a session remembers.
async fn remember(
    app: &App,
    principal: &Principal,
    number: &str,
    change: impl Fn(&mut McpSession) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    const ATTEMPTS: usize = 8;
    let tenants = app.live.tenants();
    let key = Key::new(&principal.tenant, Kind::McpSession, number);
    for _ in 0..ATTEMPTS {
        let stored = tenants.documents().get(&key).await.map_err(|e| unavailable(&e))?;
        let mut session: McpSession =
            stored.as_ref().and_then(|document| store::decode(&document.body).ok()).unwrap_or_default();
        change(&mut session)?;
        let expect = stored.as_ref().map_or(Expect::Absent, |document| Expect::Version(document.version));
        let expires_at = Some(unix_s() + limits::MCP_SESSION_LIFETIME.as_secs());
        let write = Write { expires_at, ..Write::put(key.clone(), expect, store::encode(&session)) };
        match tenants.documents().write(&principal.tenant, vec![write]).await {
            Ok(version) => {
                tenants.applied(&principal.tenant, version).await;
                return Ok(());
            }
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(unavailable(&error)),
        }
    }
    Err(Refusal::StoreUnavailable)
}

/// `DELETE`: the session is over, for every node.
pub(crate) async fn delete(
    app: &Arc<App>,
    endpoint: &Endpoint,
    request: &Request<Incoming>,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let _admitted = admit::admit(app, request)?;
    let principal = authenticate::authenticate(app, endpoint, request.headers()).await?;
    record.is_of(&principal);
    let session = find(app, &principal, endpoint, request.headers()).await?;
    let session = session.ok_or(Refusal::Method("POST"))?;
    remember(app, &principal, session.number(), |remembered| {
        *remembered = McpSession { ended: true, ..McpSession::default() };
        Ok(())
    })
    .await?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

fn needed<'a>(ask: &Ask<'a>, what: &str) -> Result<&'a Session, Refusal> {
    let refusal =
        || Refusal::InvalidRequest(format!("{what} needs a session: initialize, and send its Mcp-Session-Id"));
    ask.session.ok_or_else(refusal)
}

/// `logging/setLevel`
pub(super) async fn set_level(ask: &Ask<'_>) -> Result<Response<Body>, Refusal> {
    const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
    let session = needed(ask, "logging/setLevel")?;
    let level = ask.required("level")?;
    if !LEVELS.contains(&level.as_str()) {
        return Err(Refusal::InvalidParams(format!("`level` must be one of {}", LEVELS.join(", "))));
    }
    if session.remembered.log_level.as_deref() != Some(&level) {
        remember(ask.app, ask.principal, session.number(), |remembered| {
            remembered.log_level = Some(level.clone());
            Ok(())
        })
        .await?;
    }
    Ok(ask.result("", ""))
}

/// `resources/subscribe` and `resources/unsubscribe`: the session's standing stream tells of updates.
pub(super) async fn subscribe(ask: &Ask<'_>, on: bool) -> Result<Response<Body>, Refusal> {
    let session = needed(ask, "a subscription")?;
    let uri = ask.required("uri")?;
    if uri.len() > limits::SUBSCRIBED_URI_BYTES {
        return Err(Refusal::InvalidParams(format!("`uri` is longer than {} bytes", limits::SUBSCRIBED_URI_BYTES)));
    }
    if on {
        target::resource(ask.reach(), &uri)?;
    }
    let change = |remembered: &mut McpSession| {
        if !on {
            remembered.subscriptions.remove(&uri);
        } else if remembered.subscriptions.len() >= limits::SUBSCRIPTIONS {
            return Err(Refusal::InvalidParams(format!("more than {} subscriptions", limits::SUBSCRIPTIONS)));
        } else {
            remembered.subscriptions.insert(uri.clone());
        }
        Ok(())
    };
    if session.remembered.subscriptions.contains(&uri) != on {
        remember(ask.app, ask.principal, session.number(), change).await?;
    }
    Ok(ask.result("", ""))
}
