//! Batches (specification 2025-03-26, basic, section Batching): several messages of a legacy client in one array, their
//! answers in another. Later revisions have none.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;
use rollcall_shared::limits;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::{headers, raw};
use serde_json::value::RawValue;

use super::Parts;
use crate::app::App;
use crate::body::Body;
use crate::call::decode::{self, Misread};
use crate::call::{Record, settle_json};
use crate::http::Endpoint;
use crate::identity::Principal;
use crate::refusal::Refusal;
use crate::view::Sight;

/// Whether a body is an array, of a client that may send one.
pub(crate) fn is_batch(body: &[u8], headers: &HeaderMap) -> bool {
    let version = headers.get(headers::PROTOCOL_VERSION);
    body.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'[') && version.is_none_or(|v| v == "2025-03-26")
}

/// Serves each message in turn. What is no message is answered as such, in its place.
pub(crate) async fn serve(
    app: &Arc<App>,
    endpoint: &Endpoint,
    principal: &Arc<Principal>,
    headers: &HeaderMap,
    body: &Bytes,
    sight: &Arc<Sight>,
) -> Result<Response<Body>, Misread> {
    let text = std::str::from_utf8(body).map_err(|e| Refusal::Parse(e.to_string()))?;
    let messages = raw::elements(text).map_err(|e| Refusal::Parse(e.to_string()))?;
    if messages.is_empty() || messages.len() > limits::BATCH {
        let what = format!("a batch holds 1 to {} messages", limits::BATCH);
        return Err(Misread { era: Era::Legacy, ..Refusal::InvalidRequest(what).into() });
    }
    let mut answers: Vec<Bytes> = Vec::new();
    let mut size = 0;
    for message in messages {
        if size > limits::UPSTREAM_MESSAGE_BYTES {
            let what = "the answers of this batch are too large to be given at once".to_owned();
            return Err(Misread { era: Era::Legacy, ..Refusal::InvalidRequest(what).into() });
        }
        let body = body.slice_ref(message.get().as_bytes());
        let parts = Parts { app, endpoint, principal, headers, body: &body };
        let mut recording = crate::call::settle::Recording::new(app.clone(), Record::open("mcp"));
        recording.record().is_of(principal);
        let wants_answer = !is_notification(message);
        let answer = match one(parts, message, sight, recording.record()).await {
            Ok(response) => response.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default(),
            Err(refused) => {
                let mut refused = crate::call::settle::refuse(app, endpoint, recording.record(), refused);
                let body = std::mem::take(refused.body_mut()).collect().await;
                body.map(|b| b.to_bytes()).unwrap_or_default()
            }
        };
        crate::call::settle::settle(recording, &mut Response::new(Body::empty()));
        if !answer.is_empty() && wants_answer {
            size += answer.len();
            answers.push(answer);
        }
    }
    if answers.is_empty() {
        return Ok(super::accepted());
    }
    let mut response = settle_json(StatusCode::OK, String::new());
    let mut slices = vec![Bytes::from_static(b"[")];
    for answer in answers {
        if slices.len() > 1 {
            slices.push(Bytes::from_static(b","));
        }
        slices.push(answer);
    }
    slices.push(Bytes::from_static(b"]"));
    *response.body_mut() = Body::parts(slices);
    Ok(response)
}

/// A message without an id is answered by nothing, whatever is wrong with it.
fn is_notification(message: &RawValue) -> bool {
    let members = raw::members(message.get()).unwrap_or_default();
    let has = |name: &str| members.iter().any(|(key, _)| key == name);
    has("method") && !has("id")
}

async fn one(
    parts: Parts<'_>,
    message: &RawValue,
    sight: &Arc<Sight>,
    record: &mut Record,
) -> Result<Response<Body>, Misread> {
    let mut decoded = decode::decode(message.get().as_bytes(), parts.headers)?;
    if decoded.era == Era::Modern || decoded.method() == "initialize" {
        let what = "this message does not belong into a batch".to_owned();
        return Err(decoded.misread(Refusal::InvalidRequest(what)));
    }
    // One array is the whole answer: nothing is told before the end.
    decoded.takes_stream = false;
    decoded.takes_json = true;
    decoded.prefers_stream = false;
    record.asks(&decoded);
    let answered = super::answer(parts, sight.clone(), &decoded, (), record).await;
    answered.map_err(|refusal| {
        // Among messages every refusal is a message.
        let refusal =
            if refusal.code(Era::Legacy).is_some() { refusal } else { Refusal::InvalidRequest(refusal.text()) };
        decoded.misread(refusal)
    })
}
