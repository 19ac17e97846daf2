//! A server as a child process: JSON-RPC, one message a line (specification 2026-07-28, basic/transports/stdio).
//!
//! The child runs in its own process group with a cleared environment; its standard error is logged; it is reaped. One
//! task writes, one reads; requests find their answers by ids that are ours alone. A line that is no message is logged
//! and passed over: what a child prints by accident must not end its calls.

mod child;
mod wire;

pub(crate) use wire::ReplyTo;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rollcall_shared::limits;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::raw;
use rollcall_shared::model::{Isolation, Server, ServerEra};
use rollcall_shared::tenants::Owned;
use rollcall_shared::wire::{Failure, Final, Reason};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::BufReader;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use self::child::{log_errors, spawn, supervise};
use self::wire::{Pending, Wire, read_lines, write_lines};
use super::bulletin::Bulletin;
use super::handshake::{self, Peer, Probed};
use super::{Broken, Deaf, Hear, Outgoing, message};
use crate::worker::Shared;

/// See the module.
pub(crate) struct StdioConnection {
    wire: Arc<Wire>,
    peer: Peer,
    /// Cancelled to end the child; `ended` is cancelled once it is reaped.
    stop: CancellationToken,
    ended: CancellationToken,
    group: Pid,
    probe_killed: bool,
    /// It answered a request that was no handshake.
    answered: AtomicBool,
}

impl Drop for StdioConnection {
    fn drop(&mut self) {
        // However it came to be dropped, the child must not outlive it.
        self.stop.cancel();
    }
}

impl StdioConnection {
    /// Starts the child and opens the conversation.
    pub(crate) async fn open(
        shared: &Shared,
        server: &Owned<Server>,
        era: ServerEra,
        changed: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Self, Failure> {
        match Self::start(shared, server, era, changed.clone()).await {
            Ok(connection) => Ok(connection),
            Err((_, true)) => {
                Self::start(shared, server, ServerEra::Legacy, changed).await.map_err(|(failure, _)| failure)
            }
            Err((failure, false)) => Err(failure),
        }
    }

    /// The failure comes with whether the probe for the modern era may be to blame.
    async fn start(
        shared: &Shared,
        server: &Owned<Server>,
        era: ServerEra,
        changed: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Self, (Failure, bool)> {
        let name = server.value.id.to_string();
        let mut child = spawn(shared, server).map_err(|failure| (failure, false))?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let (Some(stdin), Some(stdout), Some(stderr), Some(group)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take(), group)
        else {
            return Err((Failure::unsent(Reason::StartFailed, "no pipes"), false));
        };
        let (lines, queue) = mpsc::channel(limits::STDIO_QUEUE);
        let one_session = server.value.isolation == Isolation::Session;
        let wire = Arc::new(Wire::new(name.clone(), lines, Bulletin::new(changed, one_session)));
        let wire_of_reader = wire.clone();
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        let tasks = &shared.tasks;
        tasks.spawn("stdio writer", write_lines(queue, stdin, wire.closed.clone(), stop.clone()));
        let (drained, output) = oneshot::channel();
        tasks.spawn("stdio reader", async move {
            read_lines(BufReader::new(stdout), wire_of_reader).await;
            drop(drained);
        });
        tasks.spawn("stdio errors", log_errors(stderr, name));
        tasks.spawn("stdio child", supervise(child, group, output, wire.closed.clone(), stop.clone(), ended.clone()));
        let mut connection = Self {
            wire,
            peer: Peer::unknown(),
            stop,
            ended,
            group,
            probe_killed: false,
            answered: AtomicBool::new(false),
        };
        match connection.shake_hands(era).await {
            Ok(()) => Ok(connection),
            Err(failure) => {
                // Gone before another is started: two at once might fight over a file.
                connection.close().await;
                Err((failure, connection.probe_killed))
            }
        }
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) fn bulletin(&self) -> &Arc<Bulletin> {
        &self.wire.bulletin
    }

    pub(super) fn has_answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    pub(super) fn ever_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.wire.closed.is_cancelled()
    }

    pub(crate) fn kill(&self) {
        self.stop.cancel();
        if !self.ended.is_cancelled() {
            kill_process_group(self.group, Signal::KILL).ok();
        }
    }

    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.ended.cancelled().await;
    }

    async fn shake_hands(&mut self, era: ServerEra) -> Result<(), Failure> {
        if era != ServerEra::Legacy {
            let probed = tokio::time::timeout(limits::PROBE_TIMEOUT, self.probe()).await;
            // A legacy child may end over a question that it does not know: `open` starts it once more without.
            let ended = matches!(&probed, Ok(Err(failure)) if failure.reason == Reason::StartFailed);
            self.probe_killed = era == ServerEra::Auto && ended;
            if let Probed::Modern(peer) = probed.unwrap_or(Ok(Probed::Other))? {
                self.peer = peer;
                self.listen();
                return Ok(());
            }
            if era == ServerEra::Modern {
                return Err(Failure::unsent(Reason::BadAnswer, "the server does not speak 2026-07-28"));
            }
        }
        let opening = self.own("initialize", handshake::initialize_params(self.wire.bulletin.is_of_one_session()));
        let end = tokio::time::timeout(limits::HANDSHAKE_TIMEOUT, opening)
            .await
            .map_err(|_| Failure::unsent(Reason::TimedOut, "no answer to initialize"))?;
        // Some answer the question that they do not know, and end.
        self.probe_killed = era == ServerEra::Auto && end.is_err();
        let end = end?;
        self.peer = handshake::read_initialize(&end)?;
        self.wire.send(message::notification("notifications/initialized", "{}")).await;
        Ok(())
    }

    async fn probe(&self) -> Result<Probed, Failure> {
        for _ in 0..handshake::PROBES {
            let end = self.own("server/discover", message::own_params(Era::Modern, "")).await?;
            let probed = handshake::read_discover(&end)?;
            if !matches!(probed, Probed::Refused) {
                return Ok(probed);
            }
        }
        Err(handshake::refused_again())
    }

    /// A request of the handshake. A child that ends here never started.
    async fn own(&self, method: &'static str, params: String) -> Result<Final, Failure> {
        let outgoing = Outgoing { method, params, ..Outgoing::default() };
        self.ask(outgoing, Arc::new(Deaf), &AtomicBool::new(false)).await.map_err(|broken| match broken {
            Broken::Unsent(f) | Broken::Failed(f) => Failure::unsent(Reason::StartFailed, f.detail),
            Broken::LostSession => Failure::unsent(Reason::StartFailed, "the session was lost"),
        })
    }

    /// Asks a modern server to tell when its lists change. Its notifications come on the shared pipe.
    fn listen(&self) {
        let params = message::own_params(Era::Modern, message::ALL_LISTS);
        let line = message::request(&self.wire.new_id(), "subscriptions/listen", &params);
        let (written, _) = oneshot::channel();
        // A full queue at this point means that nothing is read; the catalog's age does the rest.
        self.wire.lines.try_send((line, written)).ok();
    }

    pub(crate) async fn ask(
        &self,
        outgoing: Outgoing<'_>,
        hear: Arc<dyn Hear>,
        sent: &AtomicBool,
    ) -> Result<Final, Broken> {
        let wire = &self.wire;
        let id = wire.new_id();
        let (answer, waiting) = oneshot::channel();
        let progress = outgoing.progress.map(str::to_owned);
        wire.pending.insert(id.clone(), Pending { answer, hear: hear.clone(), progress });
        let mut guard = ForgetOnDrop { wire, id: &id, sent: false };
        let _attending = wire.bulletin.attend(&hear);
        let broken_pipe = || Broken::Unsent(Failure::unsent(Reason::ConnectionLost, "the child's input is closed"));
        if wire.closed.is_cancelled() {
            return Err(broken_pipe());
        }
        sent.store(true, Ordering::Release);
        guard.sent = true;
        if !wire.send(message::request(&id, outgoing.method, &outgoing.params)).await {
            guard.sent = false;
            return Err(broken_pipe());
        }
        let end = tokio::select! {
            biased;
            end = waiting => end.ok(),
            () = wire.closed.cancelled() => None,
        };
        guard.sent = false;
        end.ok_or_else(|| Broken::Failed(Failure::sent(Reason::ConnectionLost, "the child ended before it answered")))
    }
}

/// Forgets the request; one that was sent and has no answer yet is cancelled at the child.
struct ForgetOnDrop<'a> {
    wire: &'a Wire,
    id: &'a str,
    sent: bool,
}

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        self.wire.pending.remove(self.id);
        if self.sent {
            let params = format!(r#"{{"requestId":{}}}"#, raw::quote(self.id));
            let (written, _) = oneshot::channel();
            // Where the queue is full the child reads nothing, cancellations included.
            let line = message::notification("notifications/cancelled", &params);
            self.wire.lines.try_send((line, written)).ok();
        }
    }
}
