//! Settle: refusals become answers in one place; every request is counted and put on record once.

use std::sync::Arc;

use http::{HeaderValue, Response, StatusCode, header};
use opentelemetry::KeyValue;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::{jsonrpc, raw};
use rollcall_shared::telemetry::label;

use super::decode::Misread;
use super::record::Record;
use crate::app::App;
use crate::body::Body;
use crate::http::Endpoint;
use crate::identity::challenge;
use crate::refusal::Refusal;

/// The answer to a refused request.
pub(crate) fn refuse(app: &App, endpoint: &Endpoint, record: &mut Record, refused: Misread) -> Response<Body> {
    let Misread { refusal, id, era } = refused;
    let body = match refusal.code(era) {
        Some(code) => jsonrpc::error(id.as_deref(), code, &refusal.text(), refusal.data().as_deref()),
        None => plain(&refusal),
    };
    refused_with(app, &endpoint.path, record, &refusal, refusal.status(era), body)
}

/// The answer to a request of the bridge for code that was refused: the status says it all, so that scripts fail.
pub(crate) fn refuse_plainly(app: &App, path: &str, record: &mut Record, refusal: &Refusal) -> Response<Body> {
    let (status, body) = if let Refusal::Tools(refused) = refusal {
        let status = match (refused.unknown.is_empty(), refused.not_allowed.is_empty()) {
            (false, _) => 404,
            (true, false) => 403,
            (true, true) => 503,
        };
        (status, refused.to_json())
    } else if matches!(refusal, Refusal::InvalidParams(_)) {
        (400, plain(refusal))
    } else if matches!(refusal, Refusal::NoSuchResource(_) | Refusal::NoSuchPrompt(_)) {
        (404, plain(refusal))
    } else {
        (refusal.status(Era::Modern), plain(refusal))
    };
    refused_with(app, path, record, refusal, status, body)
}

/// Counts and records a refusal, and gives its answer the headers that belong to it.
fn refused_with(
    app: &App,
    path: &str,
    record: &mut Record,
    refusal: &Refusal,
    status: u16,
    body: String,
) -> Response<Body> {
    record.verdict = "refused";
    record.reason = refusal.label();
    app.metrics.refusals.add(1, &[label("surface", record.surface), label("reason", refusal.label())]);
    if matches!(refusal, Refusal::Internal) {
        tracing::error!(trace = record.trace.trace_id(), "a request ended in an internal error");
    }
    let mut response = json(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body);
    let headers = response.headers_mut();
    if let Refusal::Unauthenticated { presented, why } = refusal {
        let value = challenge::www_authenticate(&app.public_url, path, *presented, why);
        headers.extend(HeaderValue::from_str(&value).ok().map(|v| (header::WWW_AUTHENTICATE, v)));
    }
    if let Some(seconds) = refusal.retry_after_s() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Refusal::Method(allow) = refusal {
        headers.insert(header::ALLOW, HeaderValue::from_static(allow));
    }
    response
}

/// `{"success":false,"error":…,"message":…}`, for refusals that answer no message.
pub(crate) fn plain(refusal: &Refusal) -> String {
    format!(r#"{{"success":false,"error":{},"message":{}}}"#, raw::quote(refusal.label()), raw::quote(&refusal.text()))
}

pub(crate) fn json(status: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A legacy request that its caller took back gets no JSON-RPC answer (specification 2025-11-25, cancellation).
pub(super) fn cancelled(record: &mut Record) -> Response<Body> {
    record.verdict = "cancelled";
    record.reason = "by_the_caller";
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

/// Counts and records a request whose answer is ready.
pub(crate) fn settle(mut recording: Recording, answer: &mut Response<Body>) {
    if !answer.headers().contains_key(header::CACHE_CONTROL) {
        answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    recording.is_complete();
}

fn write(app: &App, record: Record) {
    let labels =
        [label("surface", record.surface), label("method", record.method.label()), label("outcome", record.verdict)];
    app.metrics.requests.add(1, &labels);
    if record.method.label() == "tools/call" {
        let outcome: [KeyValue; 1] = [label("outcome", record.verdict)];
        app.metrics.call_seconds.record(record.started.elapsed().as_secs_f64(), &outcome);
    }
    app.audit.put(record);
}

/// A record that is written once: at the end of its request or stream, or when its caller is gone.
pub(crate) struct Recording {
    app: Arc<App>,
    record: Record,
    written: bool,
}

impl Recording {
    pub(crate) fn new(app: Arc<App>, record: Record) -> Self {
        Self { app, record, written: false }
    }

    pub(crate) fn record(&mut self) -> &mut Record {
        &mut self.record
    }

    /// Writes the record as it stands.
    fn is_complete(&mut self) {
        // A record that was handed on to a stream is the stream's to write.
        if !std::mem::replace(&mut self.written, true) && !self.record.handed_on {
            write(&self.app, self.record.hand_on());
        }
    }

    pub(super) fn ends(&mut self, verdict: &'static str, reason: &'static str) {
        self.record.verdict = verdict;
        self.record.reason = reason;
        self.is_complete();
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.written {
            self.ends("cancelled", "the_caller_went_away");
        }
    }
}
