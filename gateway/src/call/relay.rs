//! Relay: the answer goes back as one JSON object, or as a stream once there is something to tell before the end.
//!
//! A modern client that goes away cancels its call: the future is dropped, and with it the upstream request. A legacy
//! client that goes away does not: its call runs on to its end or deadline (specification 2025-11-25, transports).

use std::any::Any;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream;
use http::{HeaderValue, Response, header};
use rollcall_shared::limits;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::{jsonrpc, raw, sse};
use rollcall_shared::task::Tasks;
use rollcall_shared::wire::{Failure, Final, Reason};
use smallvec::{SmallVec, smallvec};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::admit::Held;
use super::forward::Forwarded;
use super::record::Record;
use super::settle;
use crate::app::App;
use crate::body::Body;
use crate::surface::recovery;

/// How the caller wants to be answered.
pub(crate) struct Reply {
    pub(crate) id: String,
    pub(crate) era: Era,
    pub(crate) takes_stream: bool,
    pub(crate) takes_json: bool,
    /// Cancelled by the caller's `notifications/cancelled`.
    pub(crate) cancelled: CancellationToken,
}

/// The call under way. Dropped early, it is cancelled or runs on, as its era says.
struct InFlight {
    call: Option<BoxFuture<'static, Final>>,
    runs_on: bool,
    tasks: Tasks,
    /// Its share of the budgets, and its place on the list of calls that can be cancelled: held while it runs.
    held: Option<Box<dyn Any + Send>>,
    cancelled: CancellationToken,
}

impl std::future::Future for InFlight {
    type Output = Final;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Final> {
        let Some(call) = &mut self.call else { return Poll::Pending };
        let polled = call.as_mut().poll(cx);
        if polled.is_ready() {
            self.call = None;
        }
        polled
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(call) = self.call.take().filter(|_| self.runs_on) {
            let (held, cancelled) = (self.held.take(), self.cancelled.clone());
            self.tasks.spawn_until_stop("call without its caller", async move {
                let _held = held;
                tokio::select! {
                    _ = call => {}
                    () = cancelled.cancelled() => {}
                }
            });
        }
    }
}

/// The facts that turn an end into an answer.
struct Facts {
    app: Arc<App>,
    tenant: rollcall_shared::ids::TenantId,
    server: Option<rollcall_shared::ids::ServerId>,
    alias: String,
    visible: String,
    reply: Reply,
}

pub(crate) async fn relay(
    app: &Arc<App>,
    tenant: &rollcall_shared::ids::TenantId,
    forwarded: Forwarded,
    reply: Reply,
    held: impl Any + Send,
    record: &mut Record,
) -> Response<Body> {
    let cancelled = reply.cancelled.clone();
    let mut call = InFlight {
        call: Some(forwarded.end),
        runs_on: reply.era == Era::Legacy,
        tasks: app.tasks.clone(),
        held: Some(Box::new(held)),
        cancelled: cancelled.clone(),
    };
    let mut news = forwarded.news;
    let context = Facts {
        app: app.clone(),
        tenant: tenant.clone(),
        server: forwarded.server,
        alias: forwarded.alias,
        visible: forwarded.visible,
        reply,
    };
    let mut first = None;
    if context.reply.takes_json {
        let stream_after = tokio::time::sleep(limits::STREAM_AFTER);
        tokio::pin!(stream_after);
        loop {
            tokio::select! {
                biased;
                () = cancelled.cancelled() => {
                    call.runs_on = false;
                    return settle::cancelled(record);
                }
                Some(message) = news.recv() => {
                    if context.reply.takes_stream {
                        first = Some(message);
                        break;
                    }
                }
                end = &mut call => {
                    let held = call.held.take();
                    return json(&context, end, record).map(|body| body.holding(held));
                }
                () = &mut stream_after, if context.reply.takes_stream => break,
            }
        }
    }
    let recording = settle::Recording::new(app.clone(), record.hand_on());
    let state = Running { call, news, cancelled, context, recording };
    let events = stream::unfold(Events::start(state, first), Events::next);
    let mut response = Response::new(Body::events(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Running {
    call: InFlight,
    news: mpsc::Receiver<Bytes>,
    cancelled: CancellationToken,
    context: Facts,
    recording: settle::Recording,
}

/// The events of a stream: what is ready, then the call as it goes on, then nothing.
enum Events {
    Running { state: Box<Running>, ready: VecDeque<Bytes> },
    Ended { ready: VecDeque<Bytes>, held: Option<Held> },
}

impl Events {
    fn start(state: Running, first: Option<Bytes>) -> Self {
        // The first byte goes at once: some intermediaries withhold the status until it comes.
        let first = first.map_or_else(|| Bytes::from_static(sse::COMMENT), |message| sse::event(&message));
        Self::Running { state: Box::new(state), ready: VecDeque::from([first]) }
    }

    async fn next(self) -> Option<(Bytes, Self)> {
        match self {
            Events::Running { state, mut ready } => match ready.pop_front() {
                Some(event) => Some((event, Events::Running { state, ready })),
                None => Self::go_on(state).await,
            },
            Events::Ended { mut ready, held } => ready.pop_front().map(|event| (event, Events::Ended { ready, held })),
        }
    }

    async fn go_on(mut state: Box<Running>) -> Option<(Bytes, Self)> {
        let cancelled = state.cancelled.clone();
        tokio::select! {
            biased;
            () = cancelled.cancelled() => {
                state.call.runs_on = false;
                state.recording.ends("cancelled", "by_the_caller");
                None
            }
            end = &mut state.call => {
                // What was reported before the end is told before the end.
                let mut ready: VecDeque<Bytes> = VecDeque::new();
                while let Ok(message) = state.news.try_recv() {
                    ready.push_back(sse::event(&message));
                }
                let answer = answer(&state.context, end);
                state.recording.ends(answer.verdict, answer.reason);
                ready.push_back(sse::event(&answer.parts.concat()));
                let held = answer.held;
                ready.pop_front().map(|event| (event, Events::Ended { ready, held }))
            }
            // Behind the end, so that a flood of news cannot keep a call past its deadline.
            Some(message) = state.news.recv() => {
                Some((sse::event(&message), Events::Running { state, ready: VecDeque::new() }))
            }
            () = tokio::time::sleep(limits::STREAM_COMMENT) => {
                Some((Bytes::from_static(sse::COMMENT), Events::Running { state, ready: VecDeque::new() }))
            }
        }
    }
}

fn json(context: &Facts, end: Final, record: &mut Record) -> Response<Body> {
    let answer = answer(context, end);
    record.verdict = answer.verdict;
    record.reason = answer.reason;
    let mut response = Response::new(Body::parts(answer.parts).holding(answer.held));
    *response.status_mut() = answer.status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The JSON-RPC answer in slices, and how the call is counted.
struct Answer {
    parts: SmallVec<[Bytes; 4]>,
    status: http::StatusCode,
    verdict: &'static str,
    reason: &'static str,
    /// The result's share of the byte budget, until it is sent.
    held: Option<Held>,
}

fn answer(context: &Facts, end: Final) -> Answer {
    let end = match end {
        // MCP results are objects; anything else is no answer.
        Final::Result(result) if !result.starts_with(b"{") => {
            Final::Failed(Failure::sent(Reason::BadAnswer, "the result is no object"))
        }
        end @ (Final::Result(_) | Final::Error(_) | Final::Failed(_)) => end,
    };
    let bytes = match &end {
        Final::Result(bytes) | Final::Error(bytes) => bytes.len(),
        Final::Failed(_) => 0,
    };
    let live = &context.app.live;
    match (&context.server, &end) {
        (Some(server), Final::Failed(failure)) => live.note(context.tenant.clone(), server.clone(), failure),
        (Some(server), Final::Result(_) | Final::Error(_)) => live.note_good(&context.tenant, server),
        (None, _) => {}
    }
    let held = context.app.load.hold(&context.tenant, bytes);
    let end = match held {
        Some(_) => end,
        None => Final::Failed(Failure::sent(Reason::Overloaded, "the result does not fit the budget").retry_after(1)),
    };
    let id = &context.reply.id;
    match end {
        Final::Result(result) => {
            let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"#);
            let mut parts: SmallVec<[Bytes; 4]> = smallvec![Bytes::from(head)];
            parts.extend(with_result_type(result, context.reply.era));
            parts.push(Bytes::from_static(b"}"));
            Answer { parts, status: http::StatusCode::OK, verdict: "allowed", reason: "", held }
        }
        Final::Error(error) => {
            let (error, status) = for_caller(error, context.reply.era);
            let head = Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":"#));
            let parts = smallvec![head, error, Bytes::from_static(b"}")];
            Answer { parts, status, verdict: "allowed", reason: "upstream_error", held }
        }
        Final::Failed(failure) => {
            let text = recovery::failure_text(&context.visible, &context.alias, &failure);
            let kind = if context.reply.era == Era::Modern { r#""resultType":"complete","# } else { "" };
            let json = format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{{kind}"content":[{{"type":"text","text":{}}}],"isError":true}}}}"#,
                raw::quote(&text)
            );
            let parts = smallvec![Bytes::from(json)];
            Answer { parts, status: http::StatusCode::OK, verdict: "failed", reason: failure.reason.label(), held }
        }
    }
}

/// A modern caller must find `resultType`, which a legacy upstream does not give. All other bytes pass as they came.
fn with_result_type(result: Bytes, era: Era) -> SmallVec<[Bytes; 3]> {
    const KEY: &[u8] = b"\"resultType\"";
    let lacks = || {
        memchr::memmem::find(&result, KEY).is_none()
            || std::str::from_utf8(&result)
                .ok()
                .and_then(|text| raw::members(text).ok())
                .is_some_and(|members| members.iter().all(|(key, _)| key != "resultType"))
    };
    if era == Era::Legacy || !lacks() {
        return smallvec![result];
    }
    let inner = result.slice(1..);
    let is_empty = inner.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'}');
    let head: &[u8] = if is_empty { br#"{"resultType":"complete""# } else { br#"{"resultType":"complete","# };
    smallvec![Bytes::from_static(head), inner]
}

/// An upstream's error as this caller may read it, and the status that goes with its code.
fn for_caller(error: Bytes, era: Era) -> (Bytes, http::StatusCode) {
    let code = serde_json::from_slice::<jsonrpc::ErrorObject>(&error).map(|e| e.code).ok();
    match (code, era) {
        (None, _) => {
            let json = format!(r#"{{"code":{},"message":"the server's error is not valid"}}"#, jsonrpc::code::INTERNAL);
            (json.into(), http::StatusCode::OK)
        }
        (Some(code), Era::Modern) if code == i64::from(jsonrpc::code::METHOD_NOT_FOUND) => {
            (error, http::StatusCode::NOT_FOUND)
        }
        (Some(-32021), Era::Modern) => (error, http::StatusCode::BAD_REQUEST),
        (Some(-32022..=-32020), Era::Legacy) => {
            // Codes that a legacy client does not know.
            let message = serde_json::from_slice::<jsonrpc::ErrorObject>(&error).map(|e| e.message).unwrap_or_default();
            let json = format!(r#"{{"code":{},"message":{}}}"#, jsonrpc::code::INTERNAL, raw::quote(&message));
            (json.into(), http::StatusCode::OK)
        }
        (Some(_), _) => (error, http::StatusCode::OK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_gets_its_type_only_where_it_lacks_one() {
        let case = |result: &'static str, era, expected: &str| {
            let parts = with_result_type(Bytes::from_static(result.as_bytes()), era);
            assert_eq!(String::from_utf8(parts.concat()).expect("text"), expected);
        };
        let plain = r#"{"content":[],"n":9007199254740993}"#;
        case(plain, Era::Legacy, plain);
        case(plain, Era::Modern, r#"{"resultType":"complete","content":[],"n":9007199254740993}"#);
        case("{ }", Era::Modern, r#"{"resultType":"complete" }"#);
        let typed = r#"{"resultType":"complete","content":[]}"#;
        case(typed, Era::Modern, typed);
        let nested = r#"{"structuredContent":{"resultType":1}}"#;
        case(nested, Era::Modern, r#"{"resultType":"complete","structuredContent":{"resultType":1}}"#);
    }
}
