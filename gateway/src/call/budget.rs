//! Budget: room for the body is reserved before it is read, and the body is read whole within size and time.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use rollcall_shared::limits;

use super::admit::Admitted;
use crate::app::App;
use crate::identity::Principal;
use crate::refusal::Refusal;

pub(crate) async fn read(
    app: &App,
    mut admitted: Admitted,
    principal: &Principal,
    request: Request<Incoming>,
) -> Result<(Parts, Bytes, Admitted), Refusal> {
    admitted.for_tenant(&principal.tenant)?;
    check_content_type(request.headers())?;
    let (parts, body) = request.into_parts();
    let limit = app.load.limits().body_bytes;
    let hint = body.size_hint();
    // A body of unknown length may become as long as it may.
    let expected = hint.upper().map_or(limit, |n| usize::try_from(n).unwrap_or(usize::MAX));
    if hint.lower() > limit as u64 || expected > limit && hint.upper().is_some() {
        return Err(Refusal::TooLarge { limit });
    }
    if let Err(refusal) = admitted.reserve(expected) {
        discard(body, limit).await;
        return Err(refusal);
    }
    let reading = tokio::time::timeout(limits::BODY_TIMEOUT, Limited::new(body, limit).collect());
    match reading.await {
        Ok(Ok(collected)) => {
            let body = collected.to_bytes();
            admitted.shrink(body.len());
            Ok((parts, body, admitted))
        }
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::TooLarge { limit }),
        Ok(Err(_)) => Err(Refusal::BrokenBody),
        Err(_) => Err(Refusal::Slow),
    }
}

/// Reads what nobody keeps: a connection that is closed while its client still writes loses the answer that says why.
async fn discard(body: Incoming, limit: usize) {
    let mut body = Limited::new(body, limit);
    let reading = async { while let Some(Ok(_)) = body.frame().await {} };
    tokio::time::timeout(limits::LINGER, reading).await.ok();
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Refusal> {
    if headers.contains_key(http::header::CONTENT_ENCODING) {
        return Err(Refusal::MediaType); // a compressed body could grow without bound
    }
    let value = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = value.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") { Ok(()) } else { Err(Refusal::MediaType) }
}
