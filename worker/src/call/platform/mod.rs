//! A platform tool: one HTTP request, made of its arguments, and an answer that becomes a result.
//!
//! Arguments are checked against the tool's schema before anything is sent. What the model can mend is told to the model.

mod place;

use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use rollcall_shared::digest::Digest;
use rollcall_shared::limits;
use rollcall_shared::mcp::raw;
use rollcall_shared::model::{HttpCall, PlatformTool};
use rollcall_shared::schema::misfit;
use rollcall_shared::tenants::Owner;
use rollcall_shared::wire::{Failure, Final, Member, Reason};

use super::accept::Accepted;
use crate::credentials;
use crate::upstream::net::{ReadError, read_capped, send_failure};
use crate::worker::Shared;

pub(crate) async fn call(shared: &Shared, call: &Accepted, tool: &PlatformTool, owner: Owner) -> Final {
    let given = call.params.get(Member::Arguments).cloned().unwrap_or_else(|| Bytes::from_static(b"{}"));
    let arguments = String::from_utf8_lossy(&given);
    let placed = check(shared, tool, &arguments).and_then(|()| place::place(&tool.http, &arguments));
    let placed = match placed {
        Ok(placed) => placed,
        Err(what) => return Final::Result(tool_error(&what).into()),
    };
    match run(shared, call, tool, placed, owner).await {
        Ok(result) => Final::Result(result),
        Err(failure) => Final::Failed(failure),
    }
}

fn check(shared: &Shared, tool: &PlatformTool, arguments: &str) -> Result<(), String> {
    let schema = shared.schemas.of(Digest::of(tool.input_schema.as_bytes()), || &tool.input_schema);
    match &*schema {
        Ok(schema) => schema.check(arguments).map_err(|problems| misfit(tool.name.as_str(), &problems)),
        // It was valid when it was written; a reader that is older than its writer does not hold calls up.
        Err(error) => {
            tracing::error!(tool = %tool.name, error, "a schema cannot be compiled; its arguments are not checked");
            Ok(())
        }
    }
}

async fn run(
    shared: &Shared,
    call: &Accepted,
    tool: &PlatformTool,
    placed: place::Placed,
    owner: Owner,
) -> Result<Bytes, Failure> {
    let mut request = Request::builder()
        .method(Method::from_bytes(tool.http.method.as_bytes()).unwrap_or(Method::POST))
        .uri(placed.url)
        .header(http::header::ACCEPT, "application/json")
        .header("traceparent", call.trace.to_string());
    if placed.body.is_some() {
        let media_type = tool.http.content_type.as_deref().unwrap_or("application/json");
        request = request.header(http::header::CONTENT_TYPE, media_type);
    }
    for (name, value) in &tool.http.headers {
        let value = credentials::resolve(value, owner, &shared.environment)?;
        request = request.header(name, value.expose());
    }
    for (name, value) in &placed.headers {
        request = request.header(name, value);
    }
    let request = request
        .body(Full::new(placed.body.unwrap_or_default()))
        .map_err(|e| Failure::unsent(Reason::CredentialMissing, format!("a header value is not valid: {e}")))?;
    call.may_have_run.store(true, Ordering::Release);
    let response = shared.clients.of(owner).request(request).await.map_err(|e| send_failure(&e))?;
    let status = response.status();
    let body = read_capped(response.into_body(), limits::UPSTREAM_MESSAGE_BYTES).await.map_err(|e| match e {
        ReadError::TooLarge => Failure::sent(Reason::TooLarge, "the platform's answer"),
        ReadError::Broken(detail) => Failure::sent(Reason::ConnectionLost, detail),
    })?;
    if status.is_server_error() && !tool.http.errors.contains_key(&status.as_u16()) {
        return Err(Failure::sent(Reason::Unreachable, format!("the platform answers {status}")));
    }
    Ok(as_result(&tool.http, status, &body).into())
}

fn tool_error(text: &str) -> String {
    format!(r#"{{"content":[{{"type":"text","text":{}}}],"isError":true}}"#, raw::quote(text))
}

/// The platform's answer as a tool result: a JSON object is structured content too; a status above 399 is the tool's own
/// error, in the words that belong to it or in those of the answer.
fn as_result(call: &HttpCall, status: StatusCode, body: &[u8]) -> String {
    if let Some(said) = call.errors.get(&status.as_u16()) {
        return tool_error(said);
    }
    let text = String::from_utf8_lossy(body);
    if !status.is_success() {
        return tool_error(&text);
    }
    let wanted = match &call.result {
        None => Some(text.as_ref()),
        Some(pointer) => raw::pointer(&text, pointer),
    };
    let Some(wanted) = wanted else {
        return tool_error(&format!("the answer holds nothing at {}", call.result.as_deref().unwrap_or_default()));
    };
    let object = serde_json::from_str::<&serde_json::value::RawValue>(wanted).is_ok_and(|v| v.get().starts_with('{'));
    let structured = if object { format!(r#","structuredContent":{wanted}"#) } else { String::new() };
    format!(r#"{{"content":[{{"type":"text","text":{}}}]{structured},"isError":false}}"#, raw::quote(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_results() {
        let mut call = HttpCall {
            method: "POST".to_owned(),
            url: "https://h/".to_owned(),
            errors: [(404, "There is no such user.".to_owned())].into(),
            ..HttpCall::default()
        };
        let case = |call: &HttpCall, status: u16, body: &str, expected: &str| {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(as_result(call, status, body.as_bytes()), expected);
        };
        let rows = r#"{"rows":[9007199254740993]}"#;
        case(
            &call,
            200,
            rows,
            &format!(
                r#"{{"content":[{{"type":"text","text":{}}}],"structuredContent":{rows},"isError":false}}"#,
                raw::quote(rows)
            ),
        );
        case(&call, 200, "plain \"text\"", r#"{"content":[{"type":"text","text":"plain \"text\""}],"isError":false}"#);
        case(&call, 422, r#"{"e":1}"#, r#"{"content":[{"type":"text","text":"{\"e\":1}"}],"isError":true}"#);
        case(&call, 404, "<html>", r#"{"content":[{"type":"text","text":"There is no such user."}],"isError":true}"#);
        call.result = Some("/data/1".to_owned());
        case(
            &call,
            200,
            r#"{"data":[0,{"n":9007199254740993}]}"#,
            r#"{"content":[{"type":"text","text":"{\"n\":9007199254740993}"}],"structuredContent":{"n":9007199254740993},"isError":false}"#,
        );
        case(
            &call,
            200,
            "{}",
            r#"{"content":[{"type":"text","text":"the answer holds nothing at /data/1"}],"isError":true}"#,
        );
    }
}
