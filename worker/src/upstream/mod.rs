//! Upstream connections: HTTP and stdio, both eras, behind one small interface.

pub(crate) mod bulletin;
pub(crate) mod client;
pub(crate) mod handshake;
pub(crate) mod http;
pub(crate) mod lines;
pub(crate) mod message;
pub(crate) mod net;
pub(crate) mod pool;
pub(crate) mod stdio;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::wire::{Failure, Final};
use serde_json::value::RawValue;

use self::bulletin::Bulletin;
use self::handshake::Peer;
use self::http::HttpConnection;
use self::stdio::StdioConnection;

/// A request to an upstream, before it has an id.
#[derive(Default)]
pub(crate) struct Outgoing<'a> {
    pub(crate) method: &'static str,
    /// What `Mcp-Name` says: the upstream's own name of what is asked for.
    pub(crate) name: Option<&'a str>,
    /// What goes into `Mcp-Param-*`.
    pub(crate) headers: &'a [(String, String)],
    /// The raw object of params, complete for the connection's era.
    pub(crate) params: String,
    /// Our progress token, by which progress on a shared pipe finds its request.
    pub(crate) progress: Option<&'a str>,
}

/// What an upstream asks in the course of a request.
pub(crate) struct Question<'a> {
    pub(crate) id: &'a RawValue,
    pub(crate) method: &'a str,
    pub(crate) params: Option<&'a RawValue>,
}

/// Hears what belongs to one request.
pub(crate) trait Hear: Send + Sync {
    fn hear(&self, method: &str, params: Option<&RawValue>);

    /// The upstream asks something. Gives the answer where it is known at once; else it goes through `reply` later.
    fn asked(&self, question: &Question<'_>, _reply: &ReplyTo) -> Option<Bytes> {
        Some(message::answer_upstream(question.id, question.method))
    }

    /// Whether a message on a pipe that one session has for itself may be taken for this request's.
    fn takes_all(&self) -> bool {
        false
    }

    /// Whether it waits for its caller's input already, so that another question is more likely another request's.
    fn is_busy(&self) -> bool {
        false
    }
}

/// For requests that expect nothing.
pub(crate) struct Deaf;

impl Hear for Deaf {
    fn hear(&self, _: &str, _: Option<&RawValue>) {}
}

/// The way back to an upstream that asked something.
#[derive(Clone)]
pub(crate) enum ReplyTo {
    Http(http::ReplyTo),
    Stdio(stdio::ReplyTo),
}

impl ReplyTo {
    pub(crate) async fn send(&self, answer: Bytes) {
        match self {
            ReplyTo::Http(http) => http.send(answer).await,
            ReplyTo::Stdio(stdio) => stdio.send(answer).await,
        }
    }
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Broken {
    /// Surely not delivered, and the connection is of no more use.
    Unsent(Failure),
    /// The upstream forgot the session, which proves that nothing ran.
    LostSession,
    /// Reported as it is.
    Failed(Failure),
}

/// An open connection.
pub(crate) enum Connection {
    Http(HttpConnection),
    Stdio(StdioConnection),
}

impl Connection {
    pub(crate) fn peer(&self) -> &Peer {
        match self {
            Connection::Http(http) => http.peer(),
            Connection::Stdio(stdio) => stdio.peer(),
        }
    }

    pub(crate) fn era(&self) -> Era {
        self.peer().era
    }

    /// What the upstream tells apart from any request.
    pub(crate) fn bulletin(&self) -> &Arc<Bulletin> {
        match self {
            Connection::Http(http) => http.bulletin(),
            Connection::Stdio(stdio) => stdio.bulletin(),
        }
    }

    /// Whether messages during a request surely belong to it, or at least to its session.
    pub(crate) fn ties_messages(&self) -> bool {
        match self {
            Connection::Http(_) => true,
            Connection::Stdio(stdio) => stdio.bulletin().is_of_one_session(),
        }
    }

    /// Whether the server can ask in the course of a call: over HTTP that takes a session in the legacy era.
    pub(crate) fn keeps_session(&self) -> bool {
        match self {
            Connection::Http(http) => http.keeps_session(),
            Connection::Stdio(_) => true,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Connection::Http(http) => http.is_closed(),
            Connection::Stdio(stdio) => stdio.is_closed(),
        }
    }

    /// Whether it ever was of use: one that never was, and ends, counts as a failed start.
    pub(crate) fn ever_answered(&self) -> bool {
        match self {
            Connection::Http(_) => true,
            Connection::Stdio(stdio) => stdio.ever_answered(),
        }
    }

    pub(crate) fn transport(&self) -> &'static str {
        match self {
            Connection::Http(_) => "http",
            Connection::Stdio(_) => "stdio",
        }
    }

    /// Sends one request and waits for its answer. Dropping the future cancels the request at the upstream.
    /// `sent` is set before the first byte may leave.
    pub(crate) async fn ask(
        &self,
        outgoing: Outgoing<'_>,
        hear: Arc<dyn Hear>,
        sent: &AtomicBool,
    ) -> Result<Final, Broken> {
        match self {
            Connection::Http(http) => http.ask(outgoing, &hear, sent).await,
            Connection::Stdio(stdio) => {
                let asked = stdio.ask(outgoing, hear, sent).await;
                if asked.is_ok() {
                    stdio.has_answered();
                }
                asked
            }
        }
    }

    /// A request of our own in the course of things, such as `resources/subscribe`.
    pub(crate) async fn ask_ourselves(&self, method: &'static str, members: &str) -> Result<Final, Broken> {
        let params = message::own_params(self.era(), members);
        let outgoing = Outgoing { method, params, ..Outgoing::default() };
        self.ask(outgoing, Arc::new(Deaf), &AtomicBool::new(false)).await
    }

    /// The session that it holds at the upstream, by the upstream's own name.
    pub(crate) fn upstream_session(&self) -> Option<String> {
        match self {
            Connection::Http(http) => http.session(),
            Connection::Stdio(_) => None,
        }
    }

    /// Ends the connection at once, without a word to the upstream: it may be another's by now.
    pub(crate) fn kill(&self) {
        match self {
            Connection::Http(http) => http.kill(),
            Connection::Stdio(stdio) => stdio.kill(),
        }
    }

    /// Ends the connection: a session is deleted, a child is given time to end.
    pub(crate) async fn close(&self) {
        match self {
            Connection::Http(http) => http.close().await,
            Connection::Stdio(stdio) => stdio.close().await,
        }
    }
}
