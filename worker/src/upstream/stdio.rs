//! A server as a child process: JSON-RPC, one message a line (specification 2026-07-28, basic/transports/stdio).
//!
//! The child runs in its own process group with a cleared environment; its standard error is logged; it is reaped. One
//! task writes, one reads; requests find their answers by ids that are ours alone. A line that is no message is logged
//! and passed over: what a child prints by accident must not end its calls.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use dashmap::DashMap;
use rollcall_shared::digest::unguessable;
use rollcall_shared::limits;
use rollcall_shared::mcp::era::{Era, MODERN};
use rollcall_shared::mcp::jsonrpc::{self, Message};
use rollcall_shared::mcp::raw;
use rollcall_shared::model::{Server, ServerEra, Transport};
use rollcall_shared::tenants::Owned;
use rollcall_shared::wire::{Failure, Final, Reason};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::handshake::{self, Peer};
use super::http::to_final;
use super::lines::{Line, next_line};
use super::message;
use super::{Broken, Deaf, Hear, Outgoing};
use crate::credentials;
use crate::worker::Shared;

/// Variables of the worker that every child gets: what programs need to find files and other programs, and no secret.
const PASSED_ON: [&str; 8] = ["PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "SSL_CERT_FILE"];

/// See the module.
pub(crate) struct StdioConnection {
    wire: Arc<Wire>,
    peer: Peer,
    /// Cancelled to end the child; `ended` is cancelled once it is reaped.
    stop: CancellationToken,
    ended: CancellationToken,
    probe_killed: bool,
}

impl Drop for StdioConnection {
    fn drop(&mut self) {
        // However it came to be dropped, the child must not outlive it.
        self.stop.cancel();
    }
}

/// What writer, reader and requests share.
struct Wire {
    name: String,
    lines: mpsc::Sender<(Bytes, oneshot::Sender<bool>)>,
    pending: DashMap<String, Pending>,
    id_prefix: String,
    next_id: AtomicU64,
    /// The child's output ended: nothing will be answered any more.
    closed: CancellationToken,
}

struct Pending {
    answer: oneshot::Sender<Final>,
    hear: Arc<dyn Hear>,
    /// Our token, by which progress finds this request.
    progress: Option<String>,
}

impl StdioConnection {
    /// Starts the child and opens the conversation.
    pub(crate) async fn open(
        shared: &Shared,
        server: &Owned<Server>,
        changed: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Self, Failure> {
        match Self::start(shared, server, server.value.era, changed.clone()).await {
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
        let wire = Arc::new(Wire {
            name: name.clone(),
            lines,
            pending: DashMap::new(),
            id_prefix: unguessable(),
            next_id: AtomicU64::new(0),
            closed: CancellationToken::new(),
        });
        let wire_of_reader = wire.clone();
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        let tasks = &shared.tasks;
        tasks.spawn("stdio writer", write_lines(queue, stdin, wire.closed.clone(), stop.clone()));
        let (drained, output) = oneshot::channel();
        tasks.spawn("stdio reader", async move {
            read_lines(BufReader::new(stdout), wire_of_reader, changed).await;
            drop(drained);
        });
        tasks.spawn("stdio errors", log_errors(stderr, name));
        tasks.spawn("stdio child", supervise(child, group, output, wire.closed.clone(), stop.clone(), ended.clone()));
        let mut connection = Self {
            wire,
            peer: Peer { era: Era::Modern, version: MODERN.to_owned(), offers_tools: false },
            stop,
            ended,
            probe_killed: false,
        };
        match connection.shake_hands(era).await {
            Ok(()) => Ok(connection),
            Err(failure) => Err((failure, connection.probe_killed)),
        }
    }

    pub(crate) fn era(&self) -> Era {
        self.peer.era
    }

    pub(crate) fn offers_tools(&self) -> bool {
        self.peer.offers_tools
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.wire.closed.is_cancelled()
    }

    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.ended.cancelled().await;
    }

    async fn shake_hands(&mut self, era: ServerEra) -> Result<(), Failure> {
        if era != ServerEra::Legacy {
            let params = message::own_params(Era::Modern, "");
            let probing = self.own("server/discover", params);
            let answer = tokio::time::timeout(limits::PROBE_TIMEOUT, probing).await;
            if let Ok(Err(failure)) = answer {
                // A legacy child may end over a question that it does not know: `open` starts it once more without.
                self.probe_killed = era == ServerEra::Auto;
                return Err(failure);
            }
            if let Some(peer) = answer.ok().and_then(Result::ok).as_ref().and_then(handshake::read_discover) {
                self.peer = peer;
                self.listen();
                return Ok(());
            }
            if era == ServerEra::Modern {
                return Err(Failure::unsent(Reason::BadAnswer, "the server does not speak 2026-07-28"));
            }
        }
        let opening = self.own("initialize", handshake::initialize_params());
        let end = tokio::time::timeout(limits::HANDSHAKE_TIMEOUT, opening)
            .await
            .map_err(|_| Failure::unsent(Reason::TimedOut, "no answer to initialize"))??;
        self.peer = handshake::read_initialize(&end)?;
        self.wire.send(message::notification("notifications/initialized", "{}")).await;
        Ok(())
    }

    /// A request of the handshake. A child that ends here never started.
    async fn own(&self, method: &'static str, params: String) -> Result<Final, Failure> {
        let outgoing = Outgoing { method, name: None, params, progress: None };
        self.ask(outgoing, Arc::new(Deaf), &AtomicBool::new(false)).await.map_err(|broken| match broken {
            Broken::Unsent(f) | Broken::Failed(f) => Failure::unsent(Reason::StartFailed, f.detail),
            Broken::LostSession => Failure::unsent(Reason::StartFailed, "the session was lost"),
        })
    }

    /// Asks a modern server to tell when its tools change. Its notifications come on the shared pipe.
    fn listen(&self) {
        let params = message::own_params(Era::Modern, r#""notifications":{"toolsListChanged":true}"#);
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
        wire.pending.insert(id.clone(), Pending { answer, hear, progress });
        let mut guard = ForgetOnDrop { wire, id: &id, sent: false };
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

impl Wire {
    fn new_id(&self) -> String {
        format!("{}-{}", self.id_prefix, self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether the whole line was written. `false` means that no whole line was, so that nothing can have run.
    async fn send(&self, line: Bytes) -> bool {
        let (written, result) = oneshot::channel();
        if self.lines.send((line, written)).await.is_err() {
            return false;
        }
        result.await.unwrap_or(false)
    }

    fn take(&self, line: Bytes, changed: &(dyn Fn() + Send + Sync)) {
        match jsonrpc::parse(&line) {
            Ok(Message::Response { id: Some(id), outcome }) => {
                let pending = raw::string(id).and_then(|id| self.pending.remove(&id));
                match pending {
                    // A caller that is gone by now needs no answer.
                    Some((_, pending)) => drop(pending.answer.send(to_final(&line, outcome))),
                    None => tracing::debug!(server = %self.name, "an answer to no request of ours"),
                }
            }
            Ok(Message::Response { id: None, .. }) => {
                tracing::debug!(server = %self.name, "an answer without an id");
            }
            Ok(Message::Request { id, method, .. }) => {
                let (written, _) = oneshot::channel();
                self.lines.try_send((message::answer_upstream(id, &method), written)).ok();
            }
            Ok(Message::Notification { method, params }) => match method.as_str() {
                "notifications/tools/list_changed" => changed(),
                "notifications/progress" => {
                    let token = params.and_then(|p| raw::members(p.get()).ok()).and_then(|members| {
                        members.iter().find(|(key, _)| key == "progressToken").and_then(|(_, value)| raw::string(value))
                    });
                    let hear = token.and_then(|token| {
                        let of = |p: &Pending| p.progress.as_deref() == Some(token.as_str());
                        self.pending.iter().find(|entry| of(entry.value())).map(|entry| entry.hear.clone())
                    });
                    if let Some(hear) = hear {
                        hear.hear(&method, params);
                    }
                }
                _ => {}
            },
            Err(_) => {
                let shown: String = String::from_utf8_lossy(&line).chars().take(200).collect();
                tracing::warn!(server = %self.name, line = shown, "a line on standard output is no message");
            }
        }
    }
}

fn spawn(shared: &Shared, server: &Owned<Server>) -> Result<Child, Failure> {
    let Transport::Command { program, args, env, directory } = &server.value.transport else {
        return Err(Failure::unsent(Reason::NotConfigured, "no command"));
    };
    let resolve = |value| credentials::resolve(value, server.owner, &shared.environment);
    let mut command = Command::new(program);
    command
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    for name in PASSED_ON {
        if let Some(value) = shared.environment.get(name) {
            command.env(name, value);
        }
    }
    for (name, value) in env {
        command.env(name, resolve(value)?.expose());
    }
    for argument in args {
        command.arg(resolve(argument)?.expose());
    }
    if let Some(directory) = directory {
        command.current_dir(directory);
    }
    command.spawn().map_err(|e| Failure::unsent(Reason::StartFailed, format!("{program}: {e}")))
}

async fn write_lines(
    mut queue: mpsc::Receiver<(Bytes, oneshot::Sender<bool>)>,
    mut stdin: ChildStdin,
    closed: CancellationToken,
    stop: CancellationToken,
) {
    loop {
        let (line, written) = tokio::select! {
            () = closed.cancelled() => return,
            () = stop.cancelled() => return,
            next = queue.recv() => match next {
                Some(next) => next,
                None => return,
            },
        };
        let writing = async {
            stdin.write_all(&line).await?;
            stdin.write_all(b"\n").await?;
            stdin.flush().await
        };
        let result = tokio::select! {
            () = stop.cancelled() => return,
            result = writing => result,
        };
        let ok = result.is_ok();
        written.send(ok).ok();
        if !ok {
            closed.cancel();
            return;
        }
    }
}

async fn read_lines(mut reader: BufReader<ChildStdout>, wire: Arc<Wire>, changed: Arc<dyn Fn() + Send + Sync>) {
    loop {
        match next_line(&mut reader, limits::UPSTREAM_MESSAGE_BYTES).await {
            Ok(Some(Line::Whole(line))) if line.is_empty() => {}
            Ok(Some(Line::Whole(line))) => wire.take(line.into(), &*changed),
            Ok(Some(Line::TooLong)) => {
                // Whose answer it was is not known: all that wait are told, and the next caller starts anew.
                tracing::warn!(server = %wire.name, "a message is larger than allowed");
                break;
            }
            Ok(None) => break,
            Err(error) => {
                tracing::warn!(server = %wire.name, %error, "the child's output cannot be read");
                break;
            }
        }
    }
    wire.closed.cancel();
}

async fn log_errors(stderr: ChildStderr, server: String) {
    let mut reader = BufReader::new(stderr);
    while let Ok(Some(line)) = next_line(&mut reader, limits::STDERR_LINE_BYTES).await {
        if let Line::Whole(line) = line {
            tracing::info!(server, line = %String::from_utf8_lossy(&line), "standard error of a child");
        }
    }
}

/// Waits for the child's end, or brings it about: input closed, then SIGTERM, then SIGKILL to the whole group.
async fn supervise(
    mut child: Child,
    group: Pid,
    output: oneshot::Receiver<()>,
    closed: CancellationToken,
    stop: CancellationToken,
    ended: CancellationToken,
) {
    let status = tokio::select! {
        status = child.wait() => status,
        () = stop.cancelled() => end(&mut child, group).await,
        // Its output ended while it lives on: it is of no more use.
        () = closed.cancelled() => end(&mut child, group).await,
    };
    // Helpers that outlive their leader go too.
    kill_process_group(group, Signal::KILL).ok();
    match status {
        Ok(status) => tracing::info!(%status, "a child ended"),
        Err(error) => tracing::warn!(%error, "a child could not be waited for"),
    }
    // What it answered before its end is still read.
    tokio::time::timeout(limits::CHILD_GRACE, output).await.ok();
    closed.cancel();
    ended.cancel();
}

/// The writer drops the child's input when `stop` or `closed` is cancelled, which is the polite request.
async fn end(child: &mut Child, group: Pid) -> std::io::Result<std::process::ExitStatus> {
    if let Ok(status) = tokio::time::timeout(limits::CHILD_GRACE, child.wait()).await {
        return status;
    }
    kill_process_group(group, Signal::TERM).ok();
    if let Ok(status) = tokio::time::timeout(limits::CHILD_GRACE, child.wait()).await {
        return status;
    }
    kill_process_group(group, Signal::KILL).ok();
    child.wait().await
}
