//! A call between gateway and worker: an [`Envelope`] goes, [`News`] and one [`Final`] come back.
//!
//! The same trait is a function call in one process and HTTP/1.1 over a socket between two, by a gateway that knows where
//! each thing is placed. What arrives at a worker was
//! authorized: the worker decides nothing about who may call what.

mod client;
mod codec;
mod envelope;
mod seal;
mod server;
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, mpsc};

pub use client::{Dialer, Unsent, VERSIONS, WorkerClient};
pub use codec::{Frame, FrameError, FrameReader};
pub use envelope::{CallId, Caller, Envelope, Head, Member, Method, Op, Params, TraceContext};
pub use seal::WireKeys;
pub use server::{Incarnate, LinkServer};
pub use tls::WireTls;

use crate::placement::Thing;

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Final {
    /// The upstream's `result`, as the bytes that it sent.
    Result(Bytes),
    /// The upstream's JSON-RPC `error` object, as the bytes that it sent.
    Error(Bytes),
    /// The upstream needs input before it can go on, and the call waits for it at the worker: `requests` is the object of
    /// `inputRequests`, and `round` what a handle for going on must name.
    Parked { round: u32, requests: Bytes },
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
    /// With [`Reason::Elsewhere`]: the run of the worker that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<u64>,
    /// For logs only: never shown to a caller, since it may hold upstream text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

impl Failure {
    /// A failure before anything was sent.
    pub fn unsent(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, may_have_run: false, retry_after_s: None, elsewhere: None, detail: detail.into() }
    }

    /// A failure after the call may have reached the upstream.
    pub fn sent(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, may_have_run: true, retry_after_s: None, elsewhere: None, detail: detail.into() }
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
    /// The caller took the call back.
    Cancelled,
    /// The handle names no call that waits here.
    NoSuchCall,
    /// Another worker holds what only one may hold.
    Elsewhere,
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
            Reason::Cancelled => "cancelled",
            Reason::NoSuchCall => "no_such_call",
            Reason::Elsewhere => "elsewhere",
        }
    }
}

/// What an upstream may ask a caller for, in the course of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Elicitation,
    Sampling,
    Roots,
}

impl Asked {
    const ALL: [Asked; 3] = [Asked::Elicitation, Asked::Sampling, Asked::Roots];

    pub fn method(self) -> &'static str {
        match self {
            Asked::Elicitation => "elicitation/create",
            Asked::Sampling => "sampling/createMessage",
            Asked::Roots => "roots/list",
        }
    }

    pub fn of_method(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|asked| asked.method() == method)
    }

    /// The capability by which a caller says that it can be asked.
    pub fn capability(self) -> &'static str {
        match self {
            Asked::Elicitation => "elicitation",
            Asked::Sampling => "sampling",
            Asked::Roots => "roots",
        }
    }

    fn code(self) -> u8 {
        match self {
            Asked::Elicitation => 0,
            Asked::Sampling => 1,
            Asked::Roots => 2,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|asked| asked.code() == code)
    }
}

/// What a caller is told before the end, numbered from 1 within its call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    pub seq: u64,
    pub told: Told,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// A whole JSON-RPC notification, ready for the caller.
    Notification(Bytes),
    /// A request that the caller answers by the number of these news; `params` is the raw object.
    Request { asked: Asked, params: Bytes },
}

impl Told {
    /// Bytes of what is told.
    pub fn len(&self) -> usize {
        match self {
            Told::Notification(bytes) | Told::Request { params: bytes, .. } => bytes.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where news of a call go. A reader that is too slow loses notifications: they are news, not the answer.
#[derive(Clone)]
pub struct Interim {
    news: Option<mpsc::Sender<News>>,
    run: Run,
}

/// Which run of which worker does something; known from the moment at which it is asked. Handles name it, so that whichever
/// node gets one back finds the worker where a call lives.
#[derive(Debug, Clone, Default)]
pub struct Run(Arc<RunCell>);

#[derive(Debug, Default)]
struct RunCell {
    incarnation: AtomicU64,
    told: Notify,
}

impl Run {
    pub fn of(incarnation: u64) -> Self {
        let run = Self::default();
        run.set(incarnation);
        run
    }

    pub fn get(&self) -> Option<u64> {
        Some(self.0.incarnation.load(Ordering::Acquire)).filter(|run| *run != 0)
    }

    /// Resolves once it is known.
    pub async fn known(&self) {
        let told = self.0.told.notified();
        tokio::pin!(told);
        // Registered before the look, so that nothing comes between.
        told.as_mut().enable();
        if self.get().is_none() {
            told.await;
        }
    }

    fn set(&self, incarnation: u64) {
        self.0.incarnation.store(incarnation, Ordering::Release);
        self.0.told.notify_waiters();
    }
}

impl Interim {
    /// A bounded channel of news.
    pub fn channel() -> (Self, mpsc::Receiver<News>) {
        let (sender, receiver) = mpsc::channel(crate::limits::INTERIM_QUEUE);
        (Self { news: Some(sender), run: Run::default() }, receiver)
    }

    /// For calls whose caller reads none.
    pub fn none() -> Self {
        Self { news: None, run: Run::default() }
    }

    pub fn run(&self) -> Run {
        self.run.clone()
    }

    /// Told by whoever does the work.
    pub fn is_served_by(&self, incarnation: u64) {
        self.run.set(incarnation);
    }

    /// Whether the news were taken.
    pub fn send(&self, news: News) -> bool {
        self.news.as_ref().is_some_and(|sender| sender.try_send(news).is_ok())
    }

    /// Whether nobody reads any more.
    pub fn is_gone(&self) -> bool {
        self.news.as_ref().is_none_or(mpsc::Sender::is_closed)
    }
}

/// Whom an envelope is for.
#[derive(Debug, Clone)]
pub enum Route {
    /// Whoever owns this.
    Owner(Thing),
    /// The run of a worker in which a call lives.
    Run(u64),
    /// Every worker: it is not known where the call lives.
    Everyone,
    /// The worker that was reached.
    Here,
}

/// The way to workers. Dropping the future of a modern caller's request cancels it at the upstream; what a legacy
/// caller asked runs on.
pub trait WorkerLink: Send + Sync + 'static {
    fn send(&self, route: Route, envelope: Envelope, interim: Interim) -> BoxFuture<'static, Final>;
}

#[cfg(test)]
mod tests;
