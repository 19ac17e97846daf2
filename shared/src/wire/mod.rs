//! A call between gateway and worker: an [`Envelope`] goes, interim messages and one [`Final`] come back.
//!
//! The same trait is a function call in one process and HTTP/1.1 over a socket between two. What arrives at a worker was
//! authorized: the worker decides nothing about who may call what.

mod codec;
mod envelope;
mod remote;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use crate::ids::{ServerId, TenantId};

pub use codec::{Frame, FrameError, FrameReader};
pub use envelope::{Caller, Envelope, Head, Target, TraceContext};
pub use remote::{RemoteLink, serve_link};

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Final {
    /// The upstream's `result`, as the bytes that it sent.
    Result(Bytes),
    /// The upstream's JSON-RPC `error` object, as the bytes that it sent.
    Error(Bytes),
    /// There is no answer of the upstream.
    Failed(Failure),
}

/// Why there is no answer, and whether the tool may have run.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Failure {
    pub reason: Reason,
    /// Whether a byte of the call may have reached the upstream.
    pub may_have_run: bool,
    /// Seconds after which another attempt makes sense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
    /// For logs only: never shown to a caller, since it may hold upstream text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

impl Failure {
    /// A failure before anything was sent.
    pub fn unsent(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, may_have_run: false, retry_after_s: None, detail: detail.into() }
    }

    /// A failure after the call may have reached the upstream.
    pub fn sent(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, may_have_run: true, retry_after_s: None, detail: detail.into() }
    }

    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(u32::try_from(seconds.max(1)).unwrap_or(u32::MAX));
        self
    }
}

/// The closed list of causes. What an agent or a metric sees is one of these words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It cannot be connected to.
    Unreachable,
    /// Its process does not start, or ends at once.
    StartFailed,
    /// No answer within the time.
    TimedOut,
    /// It asks for credentials that it was not given.
    AuthRequired,
    /// What it answers is no MCP.
    BadAnswer,
    /// What it answers is larger than allowed.
    TooLarge,
    /// The connection broke while the call was under way.
    ConnectionLost,
    /// Too many calls wait for it already.
    Overloaded,
    /// A credential that its settings name is not there.
    CredentialMissing,
    /// Its address is one that may not be reached from here.
    AddressForbidden,
    /// It is not configured any more.
    NotConfigured,
    /// No worker takes the call.
    NoWorker,
}

impl Reason {
    pub fn label(self) -> &'static str {
        match self {
            Reason::Unreachable => "unreachable",
            Reason::StartFailed => "start_failed",
            Reason::TimedOut => "timed_out",
            Reason::AuthRequired => "upstream_auth_required",
            Reason::BadAnswer => "bad_answer",
            Reason::TooLarge => "too_large",
            Reason::ConnectionLost => "connection_lost",
            Reason::Overloaded => "overloaded",
            Reason::CredentialMissing => "credential_missing",
            Reason::AddressForbidden => "address_forbidden",
            Reason::NotConfigured => "not_configured",
            Reason::NoWorker => "no_worker",
        }
    }
}

/// Where interim messages of a call go: whole JSON-RPC notifications, ready for the caller.
///
/// A reader that is too slow loses them: they are news, not the answer.
#[derive(Clone)]
pub struct Interim(Option<mpsc::Sender<Bytes>>);

impl Interim {
    /// A bounded channel of interim messages.
    pub fn channel() -> (Self, mpsc::Receiver<Bytes>) {
        let (sender, receiver) = mpsc::channel(crate::limits::INTERIM_QUEUE);
        (Self(Some(sender)), receiver)
    }

    /// For calls whose caller reads none.
    pub fn none() -> Self {
        Self(None)
    }

    /// Whether the message was taken.
    pub fn send(&self, message: Bytes) -> bool {
        self.0.as_ref().is_some_and(|sender| sender.try_send(message).is_ok())
    }
}

/// The way to a worker. Dropping the future of a call cancels it at the upstream.
pub trait WorkerLink: Send + Sync + 'static {
    fn call(&self, envelope: Envelope, interim: Interim) -> BoxFuture<'static, Final>;
    /// Lists a server anew; when this returns, the catalog is published or the failure known.
    fn refresh(&self, tenant: TenantId, server: ServerId) -> BoxFuture<'static, Result<(), Failure>>;
}

#[cfg(test)]
mod tests;
