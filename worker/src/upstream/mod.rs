//! Upstream connections: HTTP and stdio, both eras, behind one small interface.

pub(crate) mod handshake;
pub(crate) mod http;
pub(crate) mod lines;
pub(crate) mod message;
pub(crate) mod net;
pub(crate) mod pool;
pub(crate) mod stdio;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rollcall_shared::mcp::era::Era;
use rollcall_shared::wire::{Failure, Final};
use serde_json::value::RawValue;

use self::http::HttpConnection;
use self::stdio::StdioConnection;

/// A request to an upstream, before it has an id.
pub(crate) struct Outgoing<'a> {
    pub(crate) method: &'static str,
    /// What `Mcp-Name` says: the upstream's own name of what is asked for.
    pub(crate) name: Option<&'a str>,
    /// The raw object of params, complete for the connection's era.
    pub(crate) params: String,
    /// Our progress token, by which progress on a shared pipe finds its request.
    pub(crate) progress: Option<&'a str>,
}

/// Hears notifications that belong to one request.
pub(crate) trait Hear: Send + Sync {
    fn hear(&self, method: &str, params: Option<&RawValue>);
}

/// For requests that expect none.
pub(crate) struct Deaf;

impl Hear for Deaf {
    fn hear(&self, _: &str, _: Option<&RawValue>) {}
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
    pub(crate) fn era(&self) -> Era {
        match self {
            Connection::Http(http) => http.era(),
            Connection::Stdio(stdio) => stdio.era(),
        }
    }

    /// Whether messages during a request surely belong to it.
    pub(crate) fn has_own_streams(&self) -> bool {
        matches!(self, Connection::Http(_))
    }

    /// Whether the upstream said that it offers tools.
    pub(crate) fn offers_tools(&self) -> bool {
        match self {
            Connection::Http(http) => http.offers_tools(),
            Connection::Stdio(stdio) => stdio.offers_tools(),
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
            Connection::Http(http) => http.ask(outgoing, &*hear, sent).await,
            Connection::Stdio(stdio) => {
                let asked = stdio.ask(outgoing, hear, sent).await;
                if asked.is_ok() {
                    stdio.has_answered();
                }
                asked
            }
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
