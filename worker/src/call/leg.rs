//! A leg of a call: from the caller's request to an answer, or to the point where the caller must be asked.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rollcall_shared::limits;
use rollcall_shared::wire::{CallId, Failure, Final, Head, Interim, Params, Reason};

use super::conversation::Conversation;
use super::{accept, deliver, finish, no_such_call};
use crate::worker::Shared;

/// A call under way, and whose it is. Dropped, it is cancelled at its upstream.
pub(super) struct Leg {
    pub(super) conversation: Arc<Conversation>,
    work: BoxFuture<'static, Final>,
    /// The configured name of the target, for logs and metrics.
    name: String,
    ran: Arc<AtomicBool>,
    patience: Duration,
    round: u32,
}

/// The first leg.
pub(super) async fn first(shared: Arc<Shared>, head: Head, params: Params, interim: Interim) -> Final {
    let asking = shared.conversations.asking.clone();
    let conversation = Conversation::open(&head, &params, interim, asking, shared.metrics.clone());
    let accepted = match accept::accept(&shared, head, params).await {
        Ok(accepted) => accepted,
        Err(failure) => return Final::Failed(failure),
    };
    let (name, ran, patience) = (accepted.name(), accepted.may_have_run.clone(), accepted.patience);
    let work = {
        let (shared, conversation) = (shared.clone(), conversation.clone());
        async move { deliver::deliver(&shared, accepted, &conversation).await }.boxed()
    };
    let leg = Leg { conversation: conversation.clone(), work, name, ran, patience, round: 0 };
    if !conversation.is_legacy() {
        return go_on(&shared, leg).await;
    }
    shared.conversations.begin(&conversation);
    let ending = Ending { shared: shared.clone(), conversation: conversation.clone(), over: false };
    let worker = shared.clone();
    let work = async move {
        let mut ending = ending;
        let end = go_on(&worker, leg).await;
        ending.ends(&end);
        end
    };
    RunsOn { work: Some(work.boxed()), shared, conversation }.await
}

/// Ends the conversation in any case: whoever came back to it must not wait for ever.
struct Ending {
    shared: Arc<Shared>,
    conversation: Arc<Conversation>,
    over: bool,
}

impl Ending {
    fn ends(&mut self, end: &Final) {
        if !std::mem::replace(&mut self.over, true) {
            self.shared.conversations.end(&self.conversation, end);
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.ends(&Final::Failed(Failure::sent(Reason::ConnectionLost, "the call was given up")));
    }
}

/// The next leg of a call that was parked.
pub(super) async fn next(
    shared: Arc<Shared>,
    call: CallId,
    round: u32,
    head: &Head,
    answers: Option<Bytes>,
    interim: Interim,
) -> Final {
    let Some(parked) = shared.conversations.take(&head.tenant, &head.session, call, round) else {
        return no_such_call();
    };
    let mut leg = parked.leg;
    leg.round = parked.round;
    leg.patience = leg.patience.min(Duration::from_millis(head.deadline_ms));
    leg.conversation.goes_on(&head.caller, interim);
    leg.conversation.answers(answers.as_ref()).await;
    if leg.conversation.is_waiting() {
        return park(&shared, leg);
    }
    go_on(&shared, leg).await
}

async fn go_on(shared: &Arc<Shared>, mut leg: Leg) -> Final {
    let conversation = leg.conversation.clone();
    let parks = !conversation.is_legacy();
    tokio::select! {
        biased;
        () = conversation.cancelled.cancelled() => {
            Final::Failed(Failure::sent(Reason::Cancelled, "the caller took it back"))
        }
        end = &mut leg.work => finish::finish(shared, &leg.name, Some(end), &leg.ran),
        () = conversation.until_asked(), if parks => park(shared, leg),
        // Who is waited for may come in minutes; a worker that ends does not wait for that.
        () = shut_down_while_asking(shared, &conversation) => {
            Final::Failed(Failure::sent(Reason::NoWorker, "the worker is shutting down"))
        }
        () = conversation.clock(leg.patience) => finish::finish(shared, &leg.name, None, &leg.ran),
    }
}

async fn shut_down_while_asking(shared: &Shared, conversation: &Conversation) {
    shared.tasks.closing().cancelled().await;
    conversation.until(|open| open > 0).await;
}

/// The call waits until its caller comes with the answers.
fn park(shared: &Arc<Shared>, mut leg: Leg) -> Final {
    if leg.round >= limits::INPUT_ROUNDS {
        return Final::Failed(Failure::sent(Reason::BadAnswer, "the server asks for input again and again"));
    }
    leg.round += 1;
    let (round, requests) = (leg.round, leg.conversation.requests());
    if shared.conversations.park(shared, leg, round) {
        return Final::Parked { round, requests };
    }
    Final::Failed(Failure::sent(Reason::Overloaded, "too many calls wait for input").retry_after(1))
}

/// Work that goes on when nobody waits for it any more, unless its tenant has too much of that.
struct RunsOn {
    work: Option<BoxFuture<'static, Final>>,
    shared: Arc<Shared>,
    conversation: Arc<Conversation>,
}

impl Future for RunsOn {
    type Output = Final;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Final> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let polled = work.as_mut().poll(cx);
        if polled.is_ready() {
            self.work = None;
        }
        polled
    }
}

impl Drop for RunsOn {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        if let Some(detached) = self.shared.conversations.detach(&self.shared, &self.conversation) {
            // It ends by its own clock, also at the end of the worker.
            self.shared.tasks.spawn("call without its caller", async move {
                let _detached = detached;
                drop(work.await);
            });
        }
    }
}
