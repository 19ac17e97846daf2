//! Relay: the answer goes back as one JSON object, or as a stream once there is something to tell before the end.
//!
//! A modern client that goes away cancels its request: the future is dropped, and with it the upstream request. A legacy
//! client that goes away does not: its call runs on at the worker to its end or deadline, and where it has a session its
//! stream can be taken up again (specification 2025-11-25, basic/transports).

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream;
use http::{HeaderValue, Response, header};
use rollcall_shared::limits;
use rollcall_shared::mcp::{raw, sse};
use rollcall_shared::wire::{Final, News, Told};
use tokio::sync::mpsc;

use super::admit::Held;
use super::answer::Facts;
use super::record::Record;
use super::settle;
use crate::app::App;
use crate::body::Body;
use crate::mcp::resume::Thread;

/// How the caller wants to be answered.
#[derive(Clone, Copy)]
pub(crate) struct Reply {
    pub(crate) takes_stream: bool,
    pub(crate) takes_json: bool,
    /// The first event of a stream says how to come back to it (2025-11-25 and later).
    pub(crate) primes: bool,
}

/// A request on its way, and all that its answer needs.
pub(crate) struct Relayed {
    pub(crate) end: BoxFuture<'static, Final>,
    pub(crate) news: mpsc::Receiver<News>,
    pub(crate) facts: Facts,
    pub(crate) reply: Reply,
    /// For a legacy caller with a session: its questions and events have names by which they are found again.
    pub(crate) thread: Option<Thread>,
}

pub(crate) async fn relay(
    app: &Arc<App>,
    relayed: Relayed,
    held: impl Any + Send,
    record: &mut Record,
) -> Response<Body> {
    let Relayed { mut end, mut news, facts, reply, thread } = relayed;
    let held: Box<dyn Any + Send> = Box::new(held);
    let mut first = None;
    if reply.takes_json {
        let patience = if thread.is_some() { limits::RESUMABLE_AFTER } else { limits::STREAM_AFTER };
        let stream_after = tokio::time::sleep(patience);
        tokio::pin!(stream_after);
        loop {
            tokio::select! {
                biased;
                Some(told) = news.recv() => {
                    if reply.takes_stream {
                        first = Some(told);
                        break;
                    }
                }
                end = &mut end => return json(&facts, end, record).map(|body| body.holding(held)),
                () = &mut stream_after, if reply.takes_stream => break,
            }
        }
    }
    if thread.is_some() && reply.primes && first.is_none() {
        // The first event says where to come back to, and so who has the call.
        tokio::select! {
            biased;
            () = facts.run.known() => {}
            ended = &mut end => end = std::future::ready(ended).boxed(),
            () = tokio::time::sleep(limits::WORKER_WAIT) => {}
        }
    }
    let recording = settle::Recording::new(app.clone(), record.hand_on());
    let begin = match &thread {
        Some(thread) if reply.primes => thread.event_id(&facts, 0).map(|id| sse::priming(&id, limits::STREAM_RETRY)),
        _ => None,
    };
    let state = Running { end, news, facts, thread, last: 0, recording, _held: held };
    stream_of(state, begin, first)
}

/// The stream of a call that is under way.
pub(crate) fn stream_of(mut state: Running, begin: Option<Bytes>, first: Option<News>) -> Response<Body> {
    // The first byte goes at once: some intermediaries withhold the status until it comes.
    let mut ready = VecDeque::from([begin.unwrap_or_else(|| Bytes::from_static(sse::COMMENT))]);
    ready.extend(first.map(|told| state.event(told)));
    let events = Events::Running { state: Box::new(state), ready };
    let mut response = Response::new(Body::events(stream::unfold(events, Events::next)));
    event_stream(response.headers_mut());
    response
}

/// The headers of every stream of events.
pub(crate) fn event_stream(headers: &mut http::HeaderMap) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
}

/// A call whose answer is a stream.
pub(crate) struct Running {
    pub(crate) end: BoxFuture<'static, Final>,
    pub(crate) news: mpsc::Receiver<News>,
    pub(crate) facts: Facts,
    pub(crate) thread: Option<Thread>,
    /// The number of the last news.
    pub(crate) last: u64,
    pub(crate) recording: settle::Recording,
    pub(crate) _held: Box<dyn Any + Send>,
}

impl Running {
    fn event(&mut self, told: News) -> Bytes {
        self.last = self.last.max(told.seq);
        let id = self.thread.as_ref().and_then(|thread| thread.event_id(&self.facts, told.seq));
        let message = match told.told {
            Told::Notification(message) => message,
            Told::Request { asked, params } => {
                // Only a caller with a session is asked.
                let question = self.thread.as_ref().and_then(|thread| thread.question_id(&self.facts, told.seq));
                let params = String::from_utf8_lossy(&params);
                let params = if params == "{}" { String::new() } else { format!(r#","params":{params}"#) };
                let id = raw::quote(&question.unwrap_or_default());
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{}"{params}}}"#, asked.method()).into()
            }
        };
        [&sse::head(id.as_deref())[..], &raw::one_line(&message), sse::END].concat().into()
    }

    fn last_event(&self, parts: &[Bytes]) -> Bytes {
        let id = self.thread.as_ref().and_then(|thread| thread.event_id(&self.facts, self.last));
        let answer = parts.concat();
        [&sse::head(id.as_deref())[..], &raw::one_line(&answer), sse::END].concat().into()
    }
}

/// The events of a stream: what is ready, then the call as it goes on, then nothing.
enum Events {
    Running { state: Box<Running>, ready: VecDeque<Bytes> },
    Ended { ready: VecDeque<Bytes>, held: Option<Held> },
}

impl Events {
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
        tokio::select! {
            biased;
            end = &mut state.end => {
                // What was reported before the end is told before the end.
                let mut ready: VecDeque<Bytes> = VecDeque::new();
                while let Ok(told) = state.news.try_recv() {
                    ready.push_back(state.event(told));
                }
                let mut held = None;
                match state.facts.answer(end) {
                    Some(answer) => {
                        state.recording.ends(answer.verdict, answer.reason);
                        ready.push_back(state.last_event(&answer.parts));
                        held = answer.held;
                    }
                    None => state.recording.ends("cancelled", "by_the_caller"),
                }
                ready.pop_front().map(|event| (event, Events::Ended { ready, held }))
            }
            // Behind the end, so that a flood of news cannot keep a call past its deadline.
            Some(told) = state.news.recv() => {
                let event = state.event(told);
                Some((event, Events::Running { state, ready: VecDeque::new() }))
            }
            () = tokio::time::sleep(limits::STREAM_COMMENT) => {
                Some((Bytes::from_static(sse::COMMENT), Events::Running { state, ready: VecDeque::new() }))
            }
        }
    }
}

fn json(facts: &Facts, end: Final, record: &mut Record) -> Response<Body> {
    let Some(answer) = facts.answer(end) else { return settle::cancelled(record) };
    record.verdict = answer.verdict;
    record.reason = answer.reason;
    let mut response = Response::new(Body::parts(answer.parts).holding(answer.held));
    *response.status_mut() = answer.status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// How long a standing stream may be silent.
pub(crate) const SILENCE: Duration = limits::STREAM_COMMENT;
