//! Threads of legacy calls: the names of their events and questions, and what a client does with them.
//!
//! Both names are sealed handles (worker incarnation, call, number), bound to the session: whichever node gets one back
//! finds the worker where the call lives.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Response};
use rollcall_shared::limits;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::jsonrpc::Outcome;
use rollcall_shared::mcp::raw;
use rollcall_shared::model::EntryKind;
use rollcall_shared::wire::{
    CallId, Caller, Envelope, Final, Interim, Member, Method, Op, Params, Reason, Route, Run, TraceContext,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::session::Session;
use super::tell;
use crate::app::App;
use crate::body::Body;
use crate::call::Record;
use crate::call::answer::Facts;
use crate::call::forward::head;
use crate::call::relay::{Running, stream_of};
use crate::call::settle::Recording;
use crate::handle::{Owner, Purpose};
use crate::identity::Principal;
use crate::refusal::Refusal;

/// Names the events and questions of calls of one session.
pub(crate) struct Thread {
    session: String,
}

/// A place in a call, which is what is inside the id of a question: which run of which worker, which call, after which
/// news.
#[derive(Serialize, Deserialize)]
struct Place {
    #[serde(rename = "w")]
    incarnation: u64,
    #[serde(rename = "c")]
    call: CallId,
    #[serde(rename = "q")]
    seq: u64,
}

/// What is inside the id of an event: enough to go on with the stream behind it.
#[derive(Serialize, Deserialize)]
struct EventInside {
    #[serde(rename = "p")]
    place: Place,
    /// The request's own id, for its answer.
    #[serde(rename = "r")]
    request: String,
    #[serde(rename = "m")]
    method: Method,
    #[serde(rename = "n")]
    visible: String,
}

impl Thread {
    pub(crate) fn new(session: &str) -> Self {
        Self { session: session.to_owned() }
    }

    fn seal(&self, facts: &Facts, purpose: Purpose, content: &impl Serialize) -> Option<String> {
        let scope = [self.session.as_str()];
        let owner = Owner { principal: &facts.principal, scope: &scope };
        let content = serde_json::to_vec(content).ok()?;
        facts.app.seals.seal(purpose, owner, &content, limits::PARKED_FOR.as_secs())
    }

    pub(crate) fn event_id(&self, facts: &Facts, seq: u64) -> Option<String> {
        let inside = EventInside {
            place: place(facts, seq)?,
            request: facts.id.clone(),
            method: facts.method,
            visible: facts.visible.clone(),
        };
        self.seal(facts, Purpose::Event, &inside)
    }

    pub(crate) fn question_id(&self, facts: &Facts, seq: u64) -> Option<String> {
        self.seal(facts, Purpose::Question, &place(facts, seq)?)
    }
}

/// None before a worker was asked.
fn place(facts: &Facts, seq: u64) -> Option<Place> {
    Some(Place { incarnation: facts.run.get()?, call: facts.call, seq })
}

/// A client answers a question of ours.
pub(super) async fn answer(
    app: &App,
    principal: &Principal,
    session: &Session,
    id: Option<&RawValue>,
    outcome: Outcome<'_>,
) -> Result<(), Refusal> {
    let unknown = || Refusal::InvalidRequest("this answers no question that is open".to_owned());
    let handle = id.and_then(raw::string).ok_or_else(unknown)?;
    let scope = [session.number()];
    let owner = Owner { principal, scope: &scope };
    let content = app.seals.open(Purpose::Question, owner, &handle).ok_or_else(unknown)?;
    let inside: Place = serde_json::from_slice(&content).map_err(|_| unknown())?;
    let mut params = Params::default();
    match outcome {
        Outcome::Result(result) => params.push(Member::Result, Bytes::copy_from_slice(result.get().as_bytes())),
        Outcome::Error(error) => params.push(Member::Error, Bytes::copy_from_slice(error.get().as_bytes())),
    }
    let op = Op::Answer { call: inside.call, seq: inside.seq };
    match tell(app, principal, Route::Run(inside.incarnation), op, params).await {
        Final::Result(_) => Ok(()),
        Final::Error(_) | Final::Parked { .. } | Final::Failed(_) => Err(unknown()),
    }
}

/// A client comes back to a stream that broke.
pub(super) async fn resume(
    app: &Arc<App>,
    principal: &Arc<Principal>,
    session: &Session,
    headers: &HeaderMap,
    stands: impl std::any::Any + Send,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let unknown = || Refusal::InvalidRequest("this Last-Event-ID names no stream that can be taken up".to_owned());
    let last = headers.get(rollcall_shared::mcp::headers::LAST_EVENT_ID).and_then(|v| v.to_str().ok());
    let scope = [session.number()];
    let owner = Owner { principal, scope: &scope };
    let content = last.and_then(|last| app.seals.open(Purpose::Event, owner, last)).ok_or_else(unknown)?;
    let inside: EventInside = serde_json::from_slice(&content).map_err(|_| unknown())?;
    let sight = app.live.sight(principal).await?;
    let kinds: &[EntryKind] = match inside.method {
        Method::GetPrompt => &[EntryKind::Prompt],
        Method::ReadResource => &[EntryKind::Resource, EntryKind::Template],
        Method::Complete => &[EntryKind::Prompt, EntryKind::Template, EntryKind::Resource],
        Method::CallTool | Method::GetTask | Method::UpdateTask | Method::CancelTask => &[EntryKind::Tool],
    };
    let permit = kinds.iter().find_map(|kind| sight.permit(*kind, &inside.visible));
    let permit = permit.ok_or_else(unknown)?;
    let mut caller = Caller { era: Some(Era::Legacy), converses: true, ..Caller::default() };
    session.speaks_for(&mut caller);
    let op = Op::Replay { call: inside.place.call, after: inside.place.seq };
    let head = head(principal, op, inside.place.call, limits::PARKED_FOR, TraceContext::fresh(), caller);
    let (interim, news) = Interim::channel();
    let run = Run::of(inside.place.incarnation);
    let route = Route::Run(inside.place.incarnation);
    let mut end = app.link.send(route, Envelope { head, params: Params::default() }, interim);
    match (&mut end).now_or_never() {
        // The call is nowhere any more: there is no stream to go on with.
        Some(Final::Failed(failure)) if failure.reason == Reason::NoSuchCall => return Err(unknown()),
        Some(ended) => end = std::future::ready(ended).boxed(),
        None => {}
    }
    record.name = Some(inside.visible.as_str().into());
    let facts = Facts {
        app: app.clone(),
        principal: principal.clone(),
        era: Era::Legacy,
        id: inside.request,
        method: inside.method,
        call: inside.place.call,
        run,
        server: permit.server().map(|server| server.id.clone()),
        alias: permit.alias().map(ToString::to_string).unwrap_or_default(),
        visible: inside.visible,
        real: permit.definition().real.to_string(),
        task: None,
    };
    let thread = Some(Thread::new(session.number()));
    let recording = Recording::new(app.clone(), record.hand_on());
    let state = Running { end, news, facts, thread, last: inside.place.seq, recording, _held: Box::new(stands) };
    Ok(stream_of(state, None, None))
}
