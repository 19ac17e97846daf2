//! MCP towards agents: what each method answers. Both eras are served on the same endpoint.
//!
//! Methods that are not offered are answered as the specification says for what is not offered.

mod batch;
mod feed;
mod list;
pub(crate) mod listen;
mod offers;
mod open;
mod request;
pub(crate) mod resume;
pub(crate) mod session;
pub(crate) mod target;
pub(crate) mod tasks;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use rollcall_shared::limits;
use rollcall_shared::mcp::era::{Era, META_SERVER};
use rollcall_shared::mcp::{raw, sse};
use rollcall_shared::model::EntryKind;
use rollcall_shared::wire::{
    CallId, Caller, Envelope, Failure, Final, Interim, Member, Op, Params as Members, Reason, Route,
};
use serde_json::value::RawValue;

use crate::app::App;
use crate::body::Body;
use crate::call::decode::{Decoded, Kind, Params};
use crate::call::forward::head;
use crate::call::relay::event_stream;
use crate::call::{Record, settle_json};
use crate::http::Endpoint;
use crate::identity::Principal;
use crate::refusal::Refusal;
use crate::view::Sight;

pub(crate) use batch::{is_batch, serve as serve_batch};
use offers::Offers;
use session::Session;

/// Who we say we are.
const SERVER_INFO: &str = concat!(r#"{"name":"rollcall","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

/// One message and all that answers it.
pub(crate) struct Ask<'a> {
    pub(crate) app: &'a Arc<App>,
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) principal: &'a Arc<Principal>,
    pub(crate) sight: Arc<Sight>,
    pub(crate) message: &'a Decoded<'a>,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a Bytes,
    pub(crate) session: Option<&'a Session>,
    pub(crate) id: &'a str,
    pub(crate) params: &'a Params<'a>,
}

/// What a request brought along besides its message.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub(crate) app: &'a Arc<App>,
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) principal: &'a Arc<Principal>,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a Bytes,
}

pub(crate) async fn answer(
    parts: Parts<'_>,
    sight: Arc<Sight>,
    message: &Decoded<'_>,
    held: impl std::any::Any + Send,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let Parts { app, endpoint, principal, headers, body } = parts;
    let opens = message.method() == "initialize";
    let session = match message.era {
        Era::Legacy if !opens => session::find(app, principal, endpoint, headers).await?,
        Era::Legacy | Era::Modern => None,
    };
    let (id, method, params) = match &message.kind {
        Kind::Request { id, method, params } => (id.get(), method.as_str(), params),
        Kind::Notification { method, params } => {
            if method == "notifications/cancelled" && message.era == Era::Legacy {
                cancel(app, principal, session.as_ref(), params.get("requestId")).await;
            }
            return Ok(accepted());
        }
        Kind::Response { id, outcome } if message.era == Era::Legacy => {
            let session = session.as_ref().ok_or(Refusal::NoSuchSession)?;
            resume::answer(app, principal, session, *id, *outcome).await?;
            return Ok(accepted());
        }
        Kind::Response { .. } => {
            return Err(Refusal::InvalidRequest(
                "this revision knows no requests of a server to be answered".to_owned(),
            ));
        }
    };
    record.server = endpoint.server.as_deref().map(Into::into);
    let session = session.as_ref();
    let ask = Ask { app, endpoint, principal, sight, message, headers, body, session, id, params };
    match (message.era, method) {
        (Era::Modern, "server/discover") => open::discover(&ask).await,
        (Era::Legacy, "initialize") => open::initialize(&ask).await,
        (Era::Legacy, "ping") => Ok(ask.result("", "")),
        (_, "tools/list") => list::list(&ask, EntryKind::Tool),
        (_, "tools/call") => request::call_tool(&ask, held, record).await,
        (_, "prompts/list") if ask.offers()?.prompts => list::list(&ask, EntryKind::Prompt),
        (_, "prompts/get") if ask.offers()?.prompts => request::get_prompt(&ask, held, record).await,
        (_, "resources/list") if ask.offers()?.resources => list::list(&ask, EntryKind::Resource),
        (_, "resources/templates/list") if ask.offers()?.resources => list::list(&ask, EntryKind::Template),
        (_, "resources/read") if ask.offers()?.resources => request::read_resource(&ask, held, record).await,
        (_, "completion/complete") if ask.offers()?.completions => request::complete(&ask, held, record).await,
        (Era::Legacy, "logging/setLevel") if ask.offers()?.logging => session::set_level(&ask).await,
        (Era::Legacy, "resources/subscribe") if ask.offers()?.subscribe => session::subscribe(&ask, true).await,
        (Era::Legacy, "resources/unsubscribe") if ask.offers()?.subscribe => session::subscribe(&ask, false).await,
        (Era::Modern, "subscriptions/listen") => listen::listen(&ask, record),
        (Era::Modern, "tasks/get" | "tasks/update" | "tasks/cancel") if ask.offers()?.tasks() => {
            tasks::ask(&ask, held, record).await
        }
        _ => Err(Refusal::MethodNotFound(method.chars().take(limits::LOGGED_CHARS).collect())),
    }
}

fn accepted() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

/// A legacy caller takes a request of its own back.
async fn cancel(app: &Arc<App>, principal: &Principal, session: Option<&Session>, request: Option<&RawValue>) {
    let Some(request) = request else { return };
    let request = within(session, request.get());
    tell(app, principal, Route::Everyone, Op::Cancel { request }, Members::default()).await;
}

/// A request's id as it is known to workers: two clients of one agent session may use the same.
fn within(session: Option<&Session>, id: &str) -> String {
    format!("{} {id}", session.map_or("", Session::number))
}

/// A word to a worker that concerns a call under way.
async fn tell(app: &App, principal: &Principal, route: Route, op: Op, params: Members) -> Final {
    let trace = rollcall_shared::wire::TraceContext::fresh();
    let head = head(principal, op, CallId::fresh(), limits::APPLY_TIMEOUT, trace, Caller::default());
    let told = app.link.send(route, Envelope { head, params }, Interim::none());
    let late = |_| Final::Failed(Failure::sent(Reason::TimedOut, "the worker does not answer"));
    tokio::time::timeout(limits::APPLY_TIMEOUT, told).await.unwrap_or_else(late)
}

impl Ask<'_> {
    /// What this endpoint offers to this session.
    pub(crate) fn offers(&self) -> Result<Offers, Refusal> {
        Offers::of(&self.sight, self.endpoint)
    }

    fn reach(&self) -> target::Reach<'_, '_> {
        let Self { app, endpoint, principal, sight, .. } = self;
        target::Reach { app, tenant: &principal.tenant, endpoint, sight }
    }

    /// A member of the params as a slice of the body, where it is there and not null.
    pub(crate) fn member(&self, name: &str) -> Option<Bytes> {
        let value = self.params.get(name).filter(|value| value.get() != "null")?;
        Some(self.body.slice_ref(value.get().as_bytes()))
    }

    /// The same for a member that must be an object.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Bytes>, Refusal> {
        match self.member(name) {
            Some(value) if !value.starts_with(b"{") => {
                Err(Refusal::InvalidParams(format!("`{name}` must be an object")))
            }
            member => Ok(member),
        }
    }

    /// A member that must be a text, and be there.
    pub(crate) fn required(&self, name: &str) -> Result<String, Refusal> {
        self.params.text(name)?.ok_or_else(|| Refusal::InvalidParams(format!("`{name}` is missing")))
    }

    /// What goes upstream of the caller: of a modern one what it said with this request, of a legacy one what its
    /// session knows.
    pub(crate) fn caller(&self) -> Result<Caller, Refusal> {
        let mut caller = self.params.meta.caller(self.message.era)?;
        if self.message.era == Era::Legacy {
            caller.request = within(self.session, self.id);
            if let Some(session) = self.session {
                session.speaks_for(&mut caller);
                caller.converses = self.message.takes_stream;
            }
            if !caller.converses {
                // Without a stream nobody can be asked for anything.
                caller.capabilities = None;
            }
        }
        Ok(caller)
    }

    /// A complete result of our own making: `members` is the inside of the object, `meta` the inside of its `_meta`.
    pub(crate) fn result(&self, members: &str, meta: &str) -> Response<Body> {
        self.respond([Bytes::from(members.to_owned())], meta)
    }

    /// The same around slices, in the form that the client wants.
    pub(crate) fn respond(&self, members: impl IntoIterator<Item = Bytes>, meta: &str) -> Response<Body> {
        let parts = self.wrap(members, meta);
        let mut response = settle_json(StatusCode::OK, String::new());
        if self.message.prefers_stream {
            let lines = parts.iter().map(|part| match raw::one_line(part) {
                Cow::Borrowed(_) => part.clone(),
                Cow::Owned(line) => line.into(),
            });
            let (begin, end) = ([sse::head(None)], [Bytes::from_static(sse::END)]);
            *response.body_mut() = Body::parts(begin.into_iter().chain(lines).chain(end));
            event_stream(response.headers_mut());
        } else {
            *response.body_mut() = Body::parts(parts);
        }
        response
    }

    /// The JSON-RPC answer around slices that form the inside of a result object.
    fn wrap(&self, members: impl IntoIterator<Item = Bytes>, meta: &str) -> Vec<Bytes> {
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

/// A text as a member's value.
fn quoted(text: &str) -> Bytes {
    Bytes::from(raw::quote(text))
}

/// Members of params, in order.
fn members(list: impl IntoIterator<Item = (Member, Option<Bytes>)>) -> Members {
    let mut out = Members::default();
    for (member, value) in list {
        if let Some(value) = value {
            out.push(member, value);
        }
    }
    out
}
