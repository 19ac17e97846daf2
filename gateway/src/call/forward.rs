//! Forward: a permitted call becomes an envelope on the link. Nothing of the caller's headers or token is in it.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rollcall_shared::ids::ServerId;
use rollcall_shared::limits;
use rollcall_shared::telemetry::{set_parent, trace_of};
use rollcall_shared::wire::{Caller, Envelope, Failure, Final, Head, Interim, Reason, Target};
use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::record::Record;
use crate::app::App;
use crate::identity::Principal;
use crate::refusal::Refusal;
use crate::view::Permit;

/// A call that is on its way.
pub(crate) struct Forwarded {
    pub(crate) end: BoxFuture<'static, Final>,
    pub(crate) news: mpsc::Receiver<Bytes>,
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
    arguments: Option<Bytes>,
    caller: Caller,
    record: &mut Record,
) -> Result<Forwarded, Refusal> {
    let definition = permit.definition();
    let (target, timeout) = match permit.server() {
        Some(server) => {
            (Target::Server { id: server.id.clone(), tool: definition.real.to_string() }, server.call_timeout())
        }
        None => {
            let tool = permit.registry().docs.tools.get(&*definition.real).ok_or(Refusal::Internal)?.value.clone();
            (Target::Platform { tool: tool.name.clone() }, tool.call_timeout())
        }
    };
    record.name = Some(definition.visible.to_string());
    record.server = permit.server().map(|s| s.id.to_string());
    let span = tracing::info_span!(target: "rollcall", "call", otel.kind = "server", tool = &*definition.visible);
    set_parent(&span, &record.trace);
    if let Some(trace) = trace_of(&span) {
        record.trace = trace;
    }
    let head = Head {
        tenant: principal.tenant.clone(),
        target,
        session: principal.session_digest(),
        deadline_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
        trace: record.trace,
        caller,
    };
    let (interim, news) = Interim::channel();
    let call = app.link.call(Envelope { head, arguments }, interim);
    let end = within(call, timeout + limits::DEADLINE_SLACK).instrument(span).boxed();
    let alias = match permit.registry().binding(permit.place()) {
        Some(crate::registry::Binding::Server { alias, .. }) => alias.to_string(),
        Some(crate::registry::Binding::Platform) | None => String::new(),
    };
    let visible = definition.visible.to_string();
    Ok(Forwarded { end, news, server: permit.server().map(|s| s.id.clone()), alias, visible })
}

/// The worker reports a deadline itself; this is for a worker that does not.
async fn within(call: BoxFuture<'static, Final>, bound: Duration) -> Final {
    tokio::time::timeout(bound, call)
        .await
        .unwrap_or_else(|_| Final::Failed(Failure::sent(Reason::TimedOut, "the worker missed the deadline")))
}
