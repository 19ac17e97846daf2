//! The way of a call through a worker: accept → borrow → deliver → examine → finish.
//!
//! A call may take several legs. An upstream that needs input of the caller asks for it on the way: a legacy caller is
//! asked on its own stream, and the leg goes on; for a modern caller the leg ends, the call is parked, and its next
//! request goes on with it. What a legacy caller asked runs on when it goes away (specification 2025-11-25,
//! basic/transports); what a modern one asked is cancelled by that.

mod accept;
mod asking;
mod conversation;
mod conversations;
mod declared;
mod deliver;
mod finish;
mod leg;
pub(crate) mod platform;
mod rounds;
mod watch;

pub(crate) use conversations::Conversations;
pub(crate) use finish::report as finish_report;
pub(crate) use watch::Topics;

use std::sync::Arc;

use bytes::Bytes;
use rollcall_shared::wire::{Envelope, Failure, Final, Interim, Member, Op, Reason};
use tracing::Instrument as _;

use crate::worker::Shared;

/// Does what an envelope asks for.
pub(crate) async fn serve(shared: Arc<Shared>, envelope: Envelope, interim: Interim) -> Final {
    let Envelope { head, params } = envelope;
    match &head.op {
        Op::Ask { .. } | Op::Platform { .. } => {
            let span = tracing::info_span!(target: "rollcall", "upstream call", otel.kind = "client");
            rollcall_shared::telemetry::set_parent(&span, &head.trace);
            leg::first(shared, head, params, interim).instrument(span).await
        }
        Op::Resume { call, round } => {
            let answers = params.get(Member::InputResponses).cloned();
            leg::next(shared, *call, *round, &head, answers, interim).await
        }
        Op::Replay { call, after } => {
            let found = shared.conversations.find(&head.tenant, &head.session, *call);
            match found {
                Some(conversation) => conversation.replay(*after, interim).await,
                None => no_such_call(),
            }
        }
        Op::Answer { call, seq } => {
            let found = shared.conversations.find(&head.tenant, &head.session, *call);
            let outcome = match (params.get(Member::Result), params.get(Member::Error)) {
                (Some(result), _) => Ok(result.clone()),
                (None, Some(error)) => Err(error.clone()),
                (None, None) => return no_such_call(),
            };
            match found {
                Some(conversation) if conversation.answer(*seq, outcome).await => done(),
                _ => no_such_call(),
            }
        }
        Op::Cancel { request } => {
            shared.conversations.cancel(&head.tenant, &head.session, request);
            done()
        }
        Op::Watch { server, uris, tasks } => {
            let (uris, tasks) = (uris.clone(), tasks.clone());
            watch::listen(shared, &head, server.clone(), uris, tasks, interim).await
        }
        Op::Refresh { server } => match shared.catalogs.refresh(&shared, &head.tenant, server).await {
            Ok(()) => done(),
            Err(failure) => Final::Failed(failure),
        },
    }
}

fn done() -> Final {
    Final::Result(Bytes::from_static(b"{}"))
}

pub(crate) fn no_such_call() -> Final {
    Final::Failed(Failure::unsent(Reason::NoSuchCall, "no call of this session waits for this here"))
}
