//! Deliver: borrow a connection, send the call once, examine the answer.
//!
//! A call is sent again only if the first attempt surely did not reach the upstream, if the answer itself proves that
//! nothing ran (a lost session), or if the answer asks for it (a round of input). Everything else is reported, with
//! whether it may have run.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rollcall_shared::ids::{ServerId, TenantId};
use rollcall_shared::limits;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::raw;
use rollcall_shared::model::Server;
use rollcall_shared::tenants::Owned;
use rollcall_shared::wire::{Failure, Final, Method, Params, Reason};

use super::accept::{Accepted, Found};
use super::conversation::{Conversation, Hearing};
use super::{platform, rounds};
use crate::upstream::message::{self, CallParams};
use crate::upstream::pool::Wanted;
use crate::upstream::{Broken, Connection, Outgoing};
use crate::worker::Shared;

pub(crate) async fn deliver(shared: &Arc<Shared>, call: Accepted, conversation: &Arc<Conversation>) -> Final {
    let method = match &call.target {
        Found::Platform { tool, owner } => return platform::call(shared, &call, tool, *owner).await,
        Found::Server { method, .. } => *method,
    };
    let mut params = Cow::Borrowed(&call.params);
    for round in 0..limits::INPUT_ROUNDS {
        let (end, era) = to_server(shared, &call, conversation, &params, round).await;
        let end = if round > 0 { of_later_round(end) } else { end };
        match (end, era, call.caller.era.unwrap_or(Era::Legacy)) {
            // The server asks by its answer, and the caller is asked on its stream.
            (Final::Result(result), Era::Modern, Era::Legacy) => match rounds::input_required(&result) {
                None => return Final::Result(result),
                Some(input) => match rounds::answer(conversation, &input).await {
                    Ok(responses) => rounds::put(params.to_mut(), responses, input.state),
                    Err(end) => return end,
                },
            },
            (Final::Error(error), Era::Legacy, Era::Modern) if method == Method::CallTool => {
                return rounds::url_required(conversation, error);
            }
            (end @ (Final::Result(_) | Final::Error(_) | Final::Parked { .. } | Final::Failed(_)), _, _) => return end,
        }
    }
    Final::Failed(Failure::sent(Reason::BadAnswer, "the server asks for input again and again"))
}

/// In a later round the first one has reached the tool: whatever fails now, nobody may begin anew elsewhere.
fn of_later_round(end: Final) -> Final {
    match end {
        Final::Failed(failure) => {
            let elsewhere = matches!(failure.reason, Reason::NoWorker | Reason::Elsewhere);
            let reason = if elsewhere { Reason::ConnectionLost } else { failure.reason };
            Final::Failed(Failure { reason, may_have_run: true, elsewhere: None, ..failure })
        }
        end @ (Final::Result(_) | Final::Error(_) | Final::Parked { .. }) => end,
    }
}

/// One exchange with the server. Says which era it speaks.
async fn to_server(
    shared: &Arc<Shared>,
    call: &Accepted,
    conversation: &Arc<Conversation>,
    params: &Params,
    round: u32,
) -> (Final, Era) {
    let gone = || (Final::Failed(Failure::unsent(Reason::NotConfigured, "no server")), Era::Modern);
    let Found::Server { server, speaks, method, name, headers } = &call.target else { return gone() };
    // Its settings may have changed while the caller was waited for.
    let now = match round {
        0 => None,
        _ => match current(shared, &call.tenant, &server.value.id).await {
            Some(now) => Some(now),
            None => return gone(),
        },
    };
    let server = now.as_ref().unwrap_or(server);
    let mut attempts = 0;
    loop {
        attempts += 1;
        // A server that is known for its legacy era has but one connection; one that speaks both is met in the caller's.
        let legacy = call.caller.converses && *speaks != Some(Era::Legacy);
        let wanted = Wanted { tenant: &call.tenant, server, session: &call.session, legacy };
        let borrowed = match shared.pool.borrow(shared, wanted).await {
            Ok(borrowed) => borrowed,
            Err(failure) => return (Final::Failed(failure), Era::Modern),
        };
        shared.catalogs.used(shared, &call.tenant, server);
        let connection = borrowed.connection();
        let era = connection.era();
        set_level(connection, call).await;
        let token = call.caller.progress_token.is_some().then(rollcall_shared::digest::unguessable);
        let built = CallParams { params, caller: &call.caller, trace: &call.trace, progress_token: token.as_deref() };
        let outgoing = Outgoing {
            method: method.as_str(),
            name: name.as_deref(),
            headers,
            params: built.build(era),
            progress: token.as_deref(),
        };
        let tied = connection.ties_messages();
        let hear = Hearing { conversation: conversation.clone(), ours: token.clone(), tied };
        // The last look before the first byte: a worker that stood still may have lost its lease meanwhile.
        if !borrowed.may_act(shared) {
            let failure = Failure::unsent(Reason::NoWorker, "this worker's lease may have ended").retry_after(1);
            return (Final::Failed(failure), era);
        }
        let asked = connection.ask(outgoing, Arc::new(hear), &call.may_have_run).await;
        match asked {
            Ok(end) => return (end, era),
            Err(Broken::Failed(failure)) => return (Final::Failed(failure), era),
            Err(broken) => {
                // A connect failure says nothing of a session that others use; the client's pool connects anew by itself.
                let only_unreachable = matches!(&broken, Broken::Unsent(f) if f.reason == Reason::Unreachable);
                if !only_unreachable {
                    borrowed.discard(shared);
                }
                // Nothing of this attempt reached a tool, so the next one starts from a clean slate.
                call.may_have_run.store(round > 0, Ordering::Release);
                if attempts >= 2 {
                    let end = match broken {
                        Broken::Unsent(failure) | Broken::Failed(failure) => failure,
                        Broken::LostSession => Failure::unsent(Reason::ConnectionLost, "the session was lost twice"),
                    };
                    return (Final::Failed(end), era);
                }
                tracing::info!(server = %server.value.id, "the connection was stale; trying once more on a new one");
            }
        }
    }
}

/// The server as it is configured now.
pub(super) async fn current(shared: &Shared, tenant: &TenantId, server: &ServerId) -> Option<Owned<Server>> {
    shared.tenants.get(tenant).await.ok().flatten()?.docs().servers.get(server).cloned()
}

/// A legacy server logs from one severity on for all who share it: from the least that any of them asked for. Each is
/// then told from its own on.
async fn set_level(connection: &Connection, call: &Accepted) {
    if connection.era() == Era::Modern || !connection.peer().offers("logging") {
        return;
    }
    let Some(level) = &call.caller.log_level else { return };
    let Some(severity) = message::severity(level.get()) else { return };
    if connection.bulletin().lowers_level(severity) {
        let members = format!(r#""level":{}"#, raw::quote(&raw::string(level).unwrap_or_default()));
        if let Err(error) = connection.ask_ourselves("logging/setLevel", &members).await {
            tracing::debug!(?error, "a server does not take a log level");
        }
    }
}
