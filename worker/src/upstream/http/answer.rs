//! Reading what a server answers: a JSON object, an event stream, or a status that says why there is neither.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::BodyExt;
use rollcall_shared::limits;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::jsonrpc::{self, Message, Outcome};
use rollcall_shared::mcp::{headers, sse};
use rollcall_shared::wire::{Failure, Final, Reason};

use super::{Inner, ReplyTo};
use crate::upstream::client::Arriving;
use crate::upstream::net::{ReadError, read_capped};
use crate::upstream::{self, Broken, Hear, Question};

/// Codes by which a server says, with status 400, that what *we* sent was not as it must be: it is another server than
/// the one we opened the connection with. The caller did nothing wrong, and nothing ran.
const OUR_FAULT: [i64; 2] = [jsonrpc::code::HEADER_MISMATCH as i64, jsonrpc::code::UNSUPPORTED_VERSION as i64];

impl Inner {
    pub(super) async fn read_answer(
        self: &Arc<Self>,
        id: &str,
        method: &str,
        response: Response<Arriving>,
        hear: &dyn Hear,
    ) -> Result<Final, Broken> {
        let status = response.status();
        let kind = response.headers().get(http::header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
        let kind = kind.unwrap_or_default().to_owned();
        let is = |expected: &str| kind.split(';').next().is_some_and(|k| k.trim().eq_ignore_ascii_case(expected));
        if status.is_success() && is("text/event-stream") {
            return self.read_answer_stream(id, response.into_body(), hear).await;
        }
        let retry_after = response
            .headers()
            .get(http::header::RETRY_AFTER)
            .and_then(|v| v.to_str().ok())
            .and_then(|v| v.parse::<u64>().ok());
        let json = is("application/json");
        let body = read_capped(response.into_body(), limits::UPSTREAM_MESSAGE_BYTES).await.map_err(|error| {
            Broken::Failed(match error {
                ReadError::TooLarge => Failure::sent(Reason::TooLarge, "the answer"),
                ReadError::Broken(detail) => Failure::sent(Reason::ConnectionLost, detail),
            })
        })?;
        if status.is_success() {
            let bad = |detail: String| Broken::Failed(Failure::sent(Reason::BadAnswer, detail));
            if !json {
                return Err(bad(format!("{status} with content type {kind:?}")));
            }
            return match jsonrpc::parse(&body) {
                Ok(Message::Response { id: Some(answered), outcome }) if is_id(answered.get(), id) => {
                    Ok(to_final(&body, outcome))
                }
                Ok(_) => Err(bad("an answer to another request".to_owned())),
                Err(malformed) => Err(bad(format!("{malformed:?}"))),
            };
        }
        self.read_refusal(status, id, method, &body, retry_after)
    }

    /// An answer that is no success: an error object for our request is relayed, the rest says what it means.
    fn read_refusal(
        &self,
        status: StatusCode,
        id: &str,
        method: &str,
        body: &Bytes,
        retry: Option<u64>,
    ) -> Result<Final, Broken> {
        let shown: String = String::from_utf8_lossy(body).chars().take(200).collect();
        let detail = format!("{status}: {shown}");
        let failed = |failure: Failure| {
            Err(Broken::Failed(match retry {
                Some(seconds) => failure.retry_after(seconds),
                None => failure,
            }))
        };
        if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
            return failed(Failure::unsent(Reason::AuthRequired, detail));
        }
        if status == StatusCode::TOO_MANY_REQUESTS {
            return failed(Failure::unsent(Reason::Overloaded, detail));
        }
        let error = match jsonrpc::parse(body) {
            Ok(Message::Response { id: answered, outcome: Outcome::Error(error) }) => Some((answered, error)),
            _ => None,
        };
        let object = error.and_then(|(_, e)| serde_json::from_str::<jsonrpc::ErrorObject>(e.get()).ok());
        let ours = error.is_some_and(|(answered, _)| answered.is_some_and(|a| is_id(a.get(), id)));
        let bad_request = status == StatusCode::BAD_REQUEST;
        // While the era is being found out, every answer is information and none means that the connection is lost.
        let opening = matches!(method, "server/discover" | "initialize");
        if self.session.is_some() && matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE) {
            return Err(Broken::LostSession);
        }
        if bad_request && !opening && object.as_ref().is_some_and(|e| OUR_FAULT.contains(&e.code)) {
            return Err(Broken::Unsent(Failure::unsent(Reason::BadAnswer, detail)));
        }
        let says_session = object.as_ref().is_some_and(|e| e.message.to_ascii_lowercase().contains("session"));
        if let Some((_, error)) = error.filter(|_| ours && status.is_client_error()) {
            // An error that answers our request is an answer, whatever it speaks of. Where it may mean that the server
            // knows us no more, the next caller opens anew.
            // In the modern era "not found" is how a method is answered that a server does not have.
            let not_found = self.peer.era == Era::Legacy || method == "tools/call";
            let unsure = object
                .is_some_and(|e| matches!(e.code, -32000 | -32600) || e.code == -32601 && not_found || says_session);
            if unsure && !opening && (bad_request || status == StatusCode::NOT_FOUND) {
                self.closed.store(true, Ordering::Release);
            }
            return Ok(to_final(body, Outcome::Error(error)));
        }
        if self.session.is_some() && bad_request && says_session {
            return Err(Broken::LostSession);
        }
        if self.peer.era == Era::Modern && matches!(status.as_u16(), 400 | 404 | 405 | 406) && !opening {
            return Err(Broken::Unsent(Failure::unsent(Reason::BadAnswer, detail)));
        }
        // Only statuses that are given before anything is done prove that nothing was.
        match status.as_u16() {
            400 | 404 | 405 | 406 | 413 | 415 | 421 => failed(Failure::unsent(Reason::BadAnswer, detail)),
            500..=599 => failed(Failure::sent(Reason::Unreachable, detail)),
            _ => failed(Failure::sent(Reason::BadAnswer, detail)),
        }
    }

    /// The answer on a stream. A legacy stream that ends before it, and that can be resumed, is resumed where the server
    /// says and when (specification 2025-11-25, basic/transports, section Resumability).
    async fn read_answer_stream(self: &Arc<Self>, id: &str, body: Arriving, hear: &dyn Hear) -> Result<Final, Broken> {
        let mut ended = match self.read_stream(id, body, hear).await? {
            Streamed::Answer(end) => return Ok(end),
            Streamed::Ended(ended) => ended,
        };
        let mut attempts = 0u32;
        loop {
            let lost = |detail: String| Broken::Failed(Failure::sent(Reason::ConnectionLost, detail));
            let Some(last_id) = ended.last_id.take().filter(|_| self.session.is_some()) else {
                return Err(lost(ended.why));
            };
            tokio::time::sleep(ended.pause(attempts)).await;
            let mut request = self.request(Method::GET, Bytes::new(), None).map_err(Broken::Failed)?;
            let value = HeaderValue::from_str(&last_id).map_err(|e| lost(e.to_string()))?;
            request.headers_mut().insert(headers::LAST_EVENT_ID, value);
            let response = match self.client.request(request).await {
                Ok(response) => response,
                Err(error) => {
                    tracing::debug!(%error, "a stream cannot be resumed yet");
                    ended.last_id = Some(last_id);
                    continue;
                }
            };
            let kind = response.headers().get(http::header::CONTENT_TYPE);
            let streams = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
            if !response.status().is_success() || !streams {
                return Err(lost(format!("{} to the resumption of a stream", response.status())));
            }
            attempts += 1;
            match self.read_stream(id, response.into_body(), hear).await? {
                Streamed::Answer(end) => return Ok(end),
                Streamed::Ended(again) => {
                    let last_id = again.last_id.or(Some(last_id));
                    ended = Ended { last_id, retry_ms: again.retry_ms.or(ended.retry_ms), why: again.why };
                }
            }
        }
    }

    pub(super) async fn read_stream(
        self: &Arc<Self>,
        id: &str,
        mut body: Arriving,
        hear: &dyn Hear,
    ) -> Result<Streamed, Broken> {
        let failed = |reason, detail: String| Broken::Failed(Failure::sent(reason, detail));
        let mut events = sse::Reader::new(limits::UPSTREAM_MESSAGE_BYTES);
        let why = loop {
            let data = match body.frame().await {
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => break error.to_string(),
                None => break "the stream ended without an answer".to_owned(),
            };
            events.push(&data).map_err(|_| failed(Reason::TooLarge, "an event".to_owned()))?;
            while let Some(event) = events.next_event() {
                if event.is_empty() {
                    continue; // the priming event of a resumable stream
                }
                let event = Bytes::from(event);
                match jsonrpc::parse(&event) {
                    Ok(Message::Response { id: Some(answered), outcome }) if is_id(answered.get(), id) => {
                        let end = to_final(&event, outcome);
                        // Read to its end, so that the socket can be used again.
                        let drained = tokio::time::timeout(limits::DEADLINE_SLACK, body.collect());
                        drained.await.ok();
                        return Ok(Streamed::Answer(end));
                    }
                    Ok(Message::Notification { method, params }) => {
                        // A subscription's stream brings the same news for whoever asked for it.
                        self.bulletin.is_news(&method, params);
                        hear.hear(&method, params);
                    }
                    Ok(Message::Request { id, method, params }) => {
                        let question = Question { id, method: &method, params };
                        if let Some(answer) = hear.asked(&question, &upstream::ReplyTo::Http(ReplyTo(self.clone()))) {
                            self.post_and_forget(answer).await;
                        }
                    }
                    Ok(Message::Response { .. }) => {}
                    Err(malformed) => return Err(failed(Reason::BadAnswer, format!("{malformed:?}"))),
                }
            }
        };
        let (last_id, retry_ms) = events.resume();
        Ok(Streamed::Ended(Ended { last_id: last_id.map(str::to_owned), retry_ms, why }))
    }
}

/// How a stream came to its end.
pub(super) enum Streamed {
    Answer(Final),
    Ended(Ended),
}

/// A stream that ended before the answer came.
pub(super) struct Ended {
    last_id: Option<String>,
    retry_ms: Option<u64>,
    why: String,
}

impl Ended {
    /// How long the server wants us to wait before we come back.
    fn pause(&self, attempts: u32) -> Duration {
        let asked = self.retry_ms.map_or(limits::STREAM_RETRY, Duration::from_millis);
        // A stream that ends at once again and again is not asked for without a pause.
        let least = limits::BACKOFF_FIRST / 50 * 2u32.saturating_pow(attempts.min(10));
        asked.max(least).min(limits::BACKOFF_LONGEST)
    }
}

/// Ids of ours are strings; a server must repeat them as such.
fn is_id(answered: &str, id: &str) -> bool {
    rollcall_shared::mcp::raw::string_of(answered).as_deref() == Some(id)
}

/// The outcome's bytes as a slice of the message that holds them: nothing is copied.
pub(in crate::upstream) fn to_final(message: &Bytes, outcome: Outcome<'_>) -> Final {
    match outcome {
        Outcome::Result(result) => Final::Result(message.slice_ref(result.get().as_bytes())),
        Outcome::Error(error) => Final::Error(message.slice_ref(error.get().as_bytes())),
    }
}
