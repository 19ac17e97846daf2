//! Forward: a permitted request becomes an envelope on the link. Nothing of the caller's headers or token is in it.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rollcall_shared::clock::unix_s;
use rollcall_shared::ids::ServerId;
use rollcall_shared::limits;
use rollcall_shared::placement::Thing;
use rollcall_shared::telemetry::{set_parent, trace_of};
use rollcall_shared::wire::{
    CallId, Caller, Envelope, Failure, Final, Head, Interim, Method, News, Op, Params, Reason, Route, Run, TraceContext,
};
use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::record::Record;
use crate::app::App;
use crate::identity::Principal;
use crate::refusal::Refusal;
use crate::view::Permit;

/// What is asked of the permitted entry.
pub(crate) struct Request {
    pub(crate) method: Method,
    /// The upstream's own name of what is asked for, where the method has one.
    pub(crate) name: Option<String>,
    pub(crate) params: Params,
    /// Arguments that are mirrored into headers.
    pub(crate) headers: Vec<(String, String)>,
    /// A call that is parked goes on instead of a new one: at which run of which worker, and in which round.
    pub(crate) resumes: Option<(u64, CallId, u32)>,
}

/// A request that is on its way.
pub(crate) struct Forwarded {
    pub(crate) end: BoxFuture<'static, Final>,
    pub(crate) news: mpsc::Receiver<News>,
    pub(crate) call: CallId,
    /// The worker that has it.
    pub(crate) run: Run,
    /// Whom it went to; none for the platform.
    pub(crate) server: Option<ServerId>,
    /// How the server is called towards agents.
    pub(crate) alias: String,
    pub(crate) visible: String,
}

pub(crate) fn forward(
    app: &App,
    principal: &Principal,
    permit: Permit<'_>,
    request: Request,
    caller: Caller,
    record: &mut Record,
) -> Result<Forwarded, Refusal> {
    let definition = permit.definition();
    let (mut op, timeout, thing) = match permit.server() {
        Some(server) => {
            let Request { method, name, headers, .. } = &request;
            let op =
                Op::Ask { server: server.id.clone(), method: *method, name: name.clone(), headers: headers.clone() };
            let thing = Thing::connection(&principal.tenant, server, &principal.session_digest());
            (op, server.call_timeout(), thing)
        }
        None => {
            let tool = permit.registry().docs.tools.get(&*definition.real).ok_or(Refusal::Internal)?.value.clone();
            let thing = Thing::tool(&principal.tenant, &tool.name);
            (Op::Platform { tool: tool.name.clone() }, tool.call_timeout(), thing)
        }
    };
    // A call keeps the id of its first leg.
    let mut call = CallId::fresh();
    let mut route = Route::Owner(thing);
    if let Some((run, parked, round)) = request.resumes {
        op = Op::Resume { call: parked, round };
        call = parked;
        route = Route::Run(run);
    }
    record.name = Some(definition.visible.clone());
    record.server = permit.server().map(|s| s.id.shared());
    let span = tracing::info_span!(target: "rollcall", "call", otel.kind = "server", tool = &*definition.visible);
    set_parent(&span, &record.trace);
    if let Some(trace) = trace_of(&span) {
        record.trace = trace;
    }
    // The worker stops the clock while it waits for a caller; this bound is for a worker that does not answer at all.
    let waits = if caller.converses { limits::PARKED_FOR * limits::INPUT_ROUNDS } else { Duration::ZERO };
    let head = head(principal, op, call, timeout, record.trace, caller);
    let (interim, news) = Interim::channel();
    let run = interim.run();
    let sent = app.link.send(route, Envelope { head, params: request.params }, interim);
    let end = within(sent, timeout + waits + limits::DEADLINE_SLACK).instrument(span).boxed();
    let alias = permit.alias().map(ToString::to_string).unwrap_or_default();
    let visible = definition.visible.to_string();
    Ok(Forwarded { end, news, call, run, server: permit.server().map(|s| s.id.clone()), alias, visible })
}

/// The head of an envelope for this principal.
pub(crate) fn head(
    principal: &Principal,
    op: Op,
    call: CallId,
    timeout: Duration,
    trace: TraceContext,
    caller: Caller,
) -> Head {
    Head {
        tenant: principal.tenant.clone(),
        op,
        call,
        session: principal.session_digest(),
        sent_at: unix_s(),
        deadline_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        trace,
        caller,
    }
}

/// The worker reports a deadline itself; this is for a worker that does not.
async fn within(call: BoxFuture<'static, Final>, bound: Duration) -> Final {
    tokio::time::timeout(bound, call)
        .await
        .unwrap_or_else(|_| Final::Failed(Failure::sent(Reason::TimedOut, "the worker missed the deadline")))
}
