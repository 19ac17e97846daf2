//! The pipes of a child: one task writes lines, one reads them, and answers find their requests by our ids.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use dashmap::DashMap;
use rollcall_shared::digest::unguessable;
use rollcall_shared::limits;
use rollcall_shared::mcp::era::META_SUBSCRIPTION;
use rollcall_shared::mcp::jsonrpc::{self, Message};
use rollcall_shared::mcp::raw;
use rollcall_shared::wire::Final;
use serde_json::value::RawValue;
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::upstream::bulletin::{Bulletin, text_member};
use crate::upstream::http::to_final;
use crate::upstream::lines::{Line, next_line};
use crate::upstream::{self, Hear, Question};

/// What writer, reader and requests share.
pub(super) struct Wire {
    pub(super) name: String,
    pub(super) lines: mpsc::Sender<(Bytes, oneshot::Sender<bool>)>,
    pub(super) pending: DashMap<String, Pending>,
    pub(super) bulletin: Arc<Bulletin>,
    id_prefix: String,
    next_id: AtomicU64,
    /// The child's output ended: nothing will be answered any more.
    pub(super) closed: CancellationToken,
}

pub(super) struct Pending {
    pub(super) answer: oneshot::Sender<Final>,
    pub(super) hear: Arc<dyn Hear>,
    /// Our token, by which progress finds this request.
    pub(super) progress: Option<String>,
}

/// The way back to a child that asked something.
#[derive(Clone)]
pub(crate) struct ReplyTo(Arc<Wire>);

impl ReplyTo {
    pub(crate) async fn send(&self, answer: Bytes) {
        self.0.send(answer).await;
    }
}

impl Wire {
    pub(super) fn new(
        name: String,
        lines: mpsc::Sender<(Bytes, oneshot::Sender<bool>)>,
        bulletin: Arc<Bulletin>,
    ) -> Self {
        Self {
            name,
            lines,
            bulletin,
            pending: DashMap::new(),
            id_prefix: unguessable(),
            next_id: AtomicU64::new(0),
            closed: CancellationToken::new(),
        }
    }

    pub(super) fn new_id(&self) -> String {
        format!("{}-{}", self.id_prefix, self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether the whole line was written. `false` means that no whole line was, so that nothing can have run.
    pub(super) async fn send(&self, line: Bytes) -> bool {
        let (written, result) = oneshot::channel();
        if self.lines.send((line, written)).await.is_err() {
            return false;
        }
        result.await.unwrap_or(false)
    }

    fn take(self: &Arc<Self>, line: Bytes) {
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
            Ok(Message::Request { id, method, params }) => {
                let question = Question { id, method: &method, params };
                let reply = upstream::ReplyTo::Stdio(ReplyTo(self.clone()));
                if let Some(answer) = self.bulletin.asked(&question, &reply) {
                    let (written, _) = oneshot::channel();
                    self.lines.try_send((answer, written)).ok();
                }
            }
            Ok(Message::Notification { method, params }) => self.notice(&method, params),
            Err(_) => {
                let shown: String = String::from_utf8_lossy(&line).chars().take(200).collect();
                tracing::warn!(server = %self.name, line = shown, "a line on standard output is no message");
            }
        }
    }

    fn notice(&self, method: &str, params: Option<&RawValue>) {
        // What answers a subscription names the request that made it.
        let listening = params.and_then(|p| raw::members(p.get()).ok()).and_then(|members| {
            let meta =
                members.iter().find(|(key, _)| key == "_meta").and_then(|(_, meta)| raw::members(meta.get()).ok())?;
            let id = meta.iter().find(|(key, _)| key == META_SUBSCRIPTION).and_then(|(_, id)| raw::string(id))?;
            self.pending.get(&id).map(|pending| pending.hear.clone())
        });
        let hear = match listening {
            Some(hear) => Some(hear),
            None if method == "notifications/progress" => {
                let token = params.and_then(|params| text_member(params, "progressToken"));
                token.and_then(|token| {
                    let of = |p: &Pending| p.progress.as_deref() == Some(token.as_str());
                    self.pending.iter().find(|entry| of(entry.value())).map(|entry| entry.hear.clone())
                })
            }
            None => {
                self.bulletin.heard(method, params);
                None
            }
        };
        if let Some(hear) = hear {
            hear.hear(method, params);
        }
    }
}

pub(super) async fn write_lines(
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
        let mut framed = Vec::with_capacity(line.len() + 1);
        framed.extend_from_slice(&line);
        framed.push(b'\n');
        let writing = async {
            stdin.write_all(&framed).await?;
            stdin.flush().await
        };
        let result = tokio::select! {
            () = stop.cancelled() => {
                // Nobody knows how much of it was read.
                written.send(true).ok();
                return;
            }
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

pub(super) async fn read_lines(mut reader: BufReader<ChildStdout>, wire: Arc<Wire>) {
    loop {
        match next_line(&mut reader, limits::UPSTREAM_MESSAGE_BYTES).await {
            Ok(Some(Line::Whole(line))) if line.is_empty() => {}
            Ok(Some(Line::Whole(line))) => wire.take(line.into()),
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
