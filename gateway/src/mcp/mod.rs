//! MCP towards agents: what each method answers. Both eras are served on the same endpoint.
//!
//! Methods that are not offered are answered as the specification says for what is not offered.

mod describe;
mod list;
mod tools;

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use rollcall_shared::limits;
use rollcall_shared::mcp::era::{Era, META_SERVER, MODERN, REVISIONS, legacy_answer};

use crate::app::App;
use crate::body::Body;
use crate::call::decode::{Decoded, Kind, Params};
use crate::call::{Record, settle_json};
use crate::http::Endpoint;
use crate::identity::Principal;
use crate::refusal::Refusal;
use crate::view::Sight;

pub(crate) use tools::LegacyCalls;

/// Who we say we are.
const SERVER_INFO: &str = concat!(r#"{"name":"rollcall","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);
const CAPABILITIES: &str = r#"{"tools":{}}"#;

/// One message and all that answers it.
pub(crate) struct Ask<'a> {
    pub(crate) app: &'a Arc<App>,
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) principal: &'a Principal,
    pub(crate) sight: Arc<Sight>,
    pub(crate) message: &'a Decoded<'a>,
    pub(crate) body: &'a Bytes,
    pub(crate) id: &'a str,
    pub(crate) params: &'a Params<'a>,
}

pub(crate) async fn answer(
    parts: Parts<'_>,
    sight: Arc<Sight>,
    message: &Decoded<'_>,
    held: impl std::any::Any + Send,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let Parts { app, endpoint, principal, body } = parts;
    let (id, method, params) = match &message.kind {
        Kind::Request { id, method, params } => (id.get(), method.as_str(), params),
        Kind::Notification { method, params } => {
            if method == "notifications/cancelled" && message.era == Era::Legacy {
                app.legacy_calls.cancel(principal, params.get("requestId").map(serde_json::value::RawValue::get));
            }
            return Ok(accepted());
        }
        Kind::Response if message.era == Era::Legacy => return Ok(accepted()),
        Kind::Response => {
            return Err(Refusal::InvalidRequest(
                "this revision knows no requests of a server to be answered".to_owned(),
            ));
        }
    };
    let ask = Ask { app, endpoint, principal, sight, message, body, id, params };
    match (message.era, method) {
        (Era::Modern, "server/discover") => Ok(ask.result(&discover(), "")),
        (Era::Legacy, "initialize") => {
            let asked = params.text("protocolVersion")?.unwrap_or_default();
            Ok(ask.result(&initialize(&asked), ""))
        }
        (Era::Legacy, "ping") => Ok(ask.result("", "")),
        (_, "tools/list") => list::list(&ask, record),
        (_, "tools/call") => tools::call(&ask, held, record).await,
        _ => Err(Refusal::MethodNotFound(method.chars().take(limits::LOGGED_CHARS).collect())),
    }
}

/// What a request brought along besides its message.
pub(crate) struct Parts<'a> {
    pub(crate) app: &'a Arc<App>,
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) principal: &'a Principal,
    pub(crate) body: &'a Bytes,
}

fn accepted() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

fn discover() -> String {
    format!(r#""supportedVersions":["{MODERN}"],"capabilities":{CAPABILITIES},"ttlMs":0,"cacheScope":"private""#)
}

/// Answered for each request anew: without a session there is nothing to remember.
fn initialize(asked: &str) -> String {
    let version = legacy_answer(asked);
    debug_assert!(REVISIONS.contains(&version));
    format!(r#""protocolVersion":"{version}","capabilities":{CAPABILITIES},"serverInfo":{SERVER_INFO}"#)
}

impl Ask<'_> {
    /// A complete result of our own making: `members` is the inside of the object, `meta` the inside of its `_meta`.
    pub(crate) fn result(&self, members: &str, meta: &str) -> Response<Body> {
        let parts = self.wrap([Bytes::from(members.to_owned())], meta);
        let mut response = settle_json(StatusCode::OK, String::new());
        *response.body_mut() = Body::parts(parts);
        response
    }

    /// The JSON-RPC answer around slices that form the inside of a result object.
    pub(crate) fn wrap(&self, members: impl IntoIterator<Item = Bytes>, meta: &str) -> Vec<Bytes> {
        let modern = self.message.era == Era::Modern;
        let mut all_meta = String::new();
        if modern {
            all_meta.push_str(&format!(r#""{META_SERVER}":{SERVER_INFO}"#));
        }
        if !meta.is_empty() {
            if modern {
                all_meta.push(',');
            }
            all_meta.push_str(meta);
        }
        let mut head = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"#, self.id);
        let mut members: Vec<Bytes> = members.into_iter().filter(|m| !m.is_empty()).collect();
        if modern {
            head.push_str(r#""resultType":"complete""#);
            if !members.is_empty() || !all_meta.is_empty() {
                head.push(',');
            }
        }
        let tail = match (all_meta.is_empty(), members.is_empty()) {
            (true, _) => "}}".to_owned(),
            (false, true) => format!(r#""_meta":{{{all_meta}}}}}}}"#),
            (false, false) => format!(r#","_meta":{{{all_meta}}}}}}}"#),
        };
        members.insert(0, Bytes::from(head));
        members.push(Bytes::from(tail));
        members
    }
}
