//! A platform tool: one HTTP request, its arguments as the JSON body.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use rollcall_shared::limits;
use rollcall_shared::mcp::raw;
use rollcall_shared::model::PlatformTool;
use rollcall_shared::tenants::Owner;
use rollcall_shared::wire::{Failure, Final, Member, Reason};

use super::accept::Accepted;
use crate::credentials;
use crate::upstream::net::{ReadError, read_capped, send_failure};
use crate::worker::Shared;

pub(crate) async fn call(shared: &Shared, call: &Accepted, tool: &PlatformTool, owner: Owner) -> Final {
    match run(shared, call, tool, owner).await {
        Ok(result) => Final::Result(result),
        Err(failure) => Final::Failed(failure),
    }
}

async fn run(shared: &Shared, call: &Accepted, tool: &PlatformTool, owner: Owner) -> Result<Bytes, Failure> {
    let mut request = Request::builder()
        .method(Method::from_bytes(tool.http.method.as_bytes()).unwrap_or(Method::POST))
        .uri(tool.http.url.as_str())
        .header(http::header::CONTENT_TYPE, "application/json")
        .header(http::header::ACCEPT, "application/json")
        .header("traceparent", call.trace.to_string());
    for (name, value) in &tool.http.headers {
        let value = credentials::resolve(value, owner, &shared.environment)?;
        request = request.header(name, value.expose());
    }
    let body = call.params.get(Member::Arguments).cloned().unwrap_or_else(|| Bytes::from_static(b"{}"));
    let request = request
        .body(Full::new(body))
        .map_err(|e| Failure::unsent(Reason::CredentialMissing, format!("a header value is not valid: {e}")))?;
    call.may_have_run.store(true, Ordering::Release);
    let response = shared.clients.of(owner).request(request).await.map_err(|e| send_failure(&e))?;
    let status = response.status();
    let body = read_capped(response.into_body(), limits::UPSTREAM_MESSAGE_BYTES).await.map_err(|e| match e {
        ReadError::TooLarge => Failure::sent(Reason::TooLarge, "the platform's answer"),
        ReadError::Broken(detail) => Failure::sent(Reason::ConnectionLost, detail),
    })?;
    if status.is_server_error() {
        return Err(Failure::sent(Reason::Unreachable, format!("the platform answers {status}")));
    }
    Ok(as_result(status, &body).into())
}

/// The platform's answer as a tool result: a JSON object is structured content too, a 4xx the tool's own error.
fn as_result(status: StatusCode, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let object = serde_json::from_slice::<&serde_json::value::RawValue>(body).is_ok_and(|v| v.get().starts_with('{'));
    let structured =
        if object && status.is_success() { format!(r#","structuredContent":{text}"#) } else { String::new() };
    format!(
        r#"{{"content":[{{"type":"text","text":{}}}]{structured},"isError":{}}}"#,
        raw::quote(&text),
        !status.is_success()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_results() {
        let case = |status: u16, body: &str, expected: &str| {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(as_result(status, body.as_bytes()), expected);
        };
        let rows = r#"{"rows":[9007199254740993]}"#;
        case(
            200,
            rows,
            &format!(
                r#"{{"content":[{{"type":"text","text":{}}}],"structuredContent":{rows},"isError":false}}"#,
                raw::quote(rows)
            ),
        );
        case(200, "plain \"text\"", r#"{"content":[{"type":"text","text":"plain \"text\""}],"isError":false}"#);
        case(422, r#"{"e":1}"#, r#"{"content":[{"type":"text","text":"{\"e\":1}"}],"isError":true}"#);
    }
}
