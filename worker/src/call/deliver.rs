//! Deliver: borrow a connection, send the call once, examine the answer.
//!
//! A call is sent again only if the first attempt surely did not reach the upstream, or the answer itself proves that
//! nothing ran (a lost session). Everything else is reported, with whether it may have run.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rollcall_shared::mcp::era::Era;
use rollcall_shared::wire::{Failure, Final, Interim, Reason};
use serde_json::value::RawValue;

use super::accept::{Accepted, Found};
use super::platform;
use crate::upstream::message::{CallParams, news_for_caller};
use crate::upstream::{Broken, Hear, Outgoing};
use crate::worker::Shared;

pub(crate) async fn deliver(shared: &Arc<Shared>, call: Accepted, interim: Interim) -> Final {
    match &call.target {
        Found::Platform { tool, owner } => platform::call(shared, &call, tool, *owner).await,
        Found::Server { .. } => to_server(shared, &call, &interim).await,
    }
}

async fn to_server(shared: &Arc<Shared>, call: &Accepted, interim: &Interim) -> Final {
    let Found::Server { server, tool } = &call.target else {
        return Final::Failed(Failure::unsent(Reason::NotConfigured, "no server"));
    };
    let mut attempts = 0;
    loop {
        attempts += 1;
        let borrowed = match shared.pool.borrow(shared, &call.tenant, server, &call.session).await {
            Ok(borrowed) => borrowed,
            Err(failure) => return Final::Failed(failure),
        };
        shared.catalogs.used(shared, &call.tenant, server);
        let era = borrowed.connection().era();
        let token = call.caller.progress_token.is_some().then(rollcall_shared::digest::unguessable);
        let params = CallParams {
            tool,
            arguments: call.arguments.as_deref(),
            caller: &call.caller,
            trace: &call.trace,
            progress_token: token.as_deref(),
        };
        let outgoing =
            Outgoing { method: "tools/call", name: Some(tool), params: params.build(era), progress: token.as_deref() };
        let hear = Hearing {
            shared,
            call,
            interim,
            token: token.clone(),
            own_stream: borrowed.connection().has_own_streams(),
        };
        let asked = borrowed.connection().ask(outgoing, Arc::new(hear.into_owned()), &call.may_have_run).await;
        match asked {
            Ok(end) => return end,
            Err(Broken::Failed(failure)) => return Final::Failed(failure),
            Err(broken) => {
                // A connect failure says nothing of a session that others use; the client's pool connects anew by itself.
                let only_unreachable = matches!(&broken, Broken::Unsent(f) if f.reason == Reason::Unreachable);
                if !only_unreachable {
                    borrowed.discard(shared);
                }
                // Nothing of this attempt reached a tool, so the next one starts from a clean slate.
                call.may_have_run.store(false, Ordering::Release);
                if attempts >= 2 {
                    return Final::Failed(match broken {
                        Broken::Unsent(failure) | Broken::Failed(failure) => failure,
                        Broken::LostSession => Failure::unsent(Reason::ConnectionLost, "the session was lost twice"),
                    });
                }
                tracing::info!(server = %server.value.id, "the connection was stale; trying once more on a new one");
            }
        }
    }
}

struct Hearing<'a> {
    shared: &'a Arc<Shared>,
    call: &'a Accepted,
    interim: &'a Interim,
    token: Option<String>,
    own_stream: bool,
}

impl Hearing<'_> {
    fn into_owned(self) -> CallHearing {
        CallHearing {
            metrics: self.shared.metrics.clone(),
            interim: self.interim.clone(),
            ours: self.token,
            theirs: self.call.caller.progress_token.clone(),
            // A message on a shared pipe cannot be tied to a call, and a modern caller must have asked for logs.
            wants_logs: self.own_stream
                && (self.call.caller.era != Some(Era::Modern) || self.call.caller.log_level.is_some()),
        }
    }
}

/// Hands what an upstream reports during a call to its caller.
struct CallHearing {
    metrics: Arc<rollcall_shared::telemetry::Metrics>,
    interim: Interim,
    ours: Option<String>,
    theirs: Option<Box<RawValue>>,
    wants_logs: bool,
}

impl Hear for CallHearing {
    fn hear(&self, method: &str, params: Option<&RawValue>) {
        let news = news_for_caller(method, params, self.ours.as_deref(), self.theirs.as_deref(), self.wants_logs);
        if let Some(message) = news
            && !self.interim.send(message)
        {
            self.metrics.interim_dropped.add(1, &[]);
        }
    }
}
