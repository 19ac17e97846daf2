//! The bridge for agents that write code: `POST /tools/{name}`, arguments in, result out, as `get_api_spec` describes it.
//!
//! The same steps as an MCP call, the same resolver, the same view; only the answer differs. Its status says how it went,
//! so that `curl --fail-with-body` fails where the call did.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::raw;
use rollcall_shared::wire::{Caller, Failure, Final, Member, Method, Params, Reason};

use crate::app::App;
use crate::body::Body;
use crate::call::answer::{end_bytes, is_complete, note};
use crate::call::forward::{self as call, forward};
use crate::call::settle::{Recording, refuse_plainly, settle};
use crate::call::{Record, admit, authenticate, budget, settle_json};
use crate::http::ToolAddress;
use crate::refusal::Refusal;
use crate::surface::recovery;

/// Serves one call by name.
pub(crate) async fn serve(app: &Arc<App>, address: &ToolAddress, request: Request<Incoming>) -> Response<Body> {
    let mut recording = Recording::new(app.clone(), Record::open("tools"));
    recording.record().is_call(&address.name);
    let mut answer = match steps(app, address, request, recording.record()).await {
        Ok(answer) => answer,
        Err(refusal) => refuse_plainly(app, &address.endpoint.path, recording.record(), &refusal),
    };
    settle(recording, &mut answer);
    answer
}

async fn steps(
    app: &Arc<App>,
    address: &ToolAddress,
    request: Request<Incoming>,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let admitted = admit::admit(app, &request)?;
    let principal = authenticate::authenticate(app, &address.endpoint, request.headers()).await?;
    record.is_of(&principal);
    let (_, body, held) = budget::read(app, admitted, &principal, request).await?;
    let arguments = read_arguments(body)?;
    let sight = app.live.sight(&principal).await?;
    let availability = |server: &_| app.live.availability(&principal.tenant, server);
    let permit = sight.resolve_one(&address.name, &availability).map_err(Refusal::Tools)?;
    // Such a caller hears no notifications, and going away cancels its call.
    let caller = Caller { era: Some(Era::Modern), ..Caller::default() };
    let real = permit.definition().real.to_string();
    let mut params = Params::default();
    params.push(Member::Name, raw::quote(&real));
    if let Some(arguments) = &arguments {
        params.push(Member::Arguments, arguments.clone());
    }
    let text = arguments.as_deref().and_then(|arguments| std::str::from_utf8(arguments).ok());
    let mirrored = permit.definition().headers.iter();
    let headers = mirrored.filter_map(|header| Some((header.name.clone(), header.value(text)?.text))).collect();
    let request = call::Request { method: Method::CallTool, name: Some(real), params, headers, resumes: None };
    let forwarded = forward(app, &principal, permit, request, caller, record)?;
    drop(forwarded.news);
    let end = forwarded.end.await;
    let result = app.load.hold(&principal.tenant, end_bytes(&end)).ok_or(Refusal::Overloaded)?;
    note(app, &principal.tenant, forwarded.server.as_ref(), &end);
    let answer = answer(end, &forwarded.visible, &forwarded.alias, record);
    Ok(answer.map(|body| body.holding((held, result))))
}

/// The body is the arguments: an object, or nothing.
fn read_arguments(body: Bytes) -> Result<Option<Bytes>, Refusal> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let value: &serde_json::value::RawValue =
        serde_json::from_slice(&body).map_err(|e| Refusal::Parse(e.to_string()))?;
    if value.get().starts_with('{') {
        Ok(Some(body.slice_ref(value.get().as_bytes())))
    } else {
        Err(Refusal::InvalidParams("the body must be an object of arguments".to_owned()))
    }
}

fn answer(end: Final, visible: &str, alias: &str, record: &mut Record) -> Response<Body> {
    match end {
        Final::Result(result) if result.starts_with(b"{") && is_complete(&result) => {
            let (status, head) = if is_error(&result) {
                (StatusCode::UNPROCESSABLE_ENTITY, &br#"{"success":false,"error":"tool_error","result":"#[..])
            } else {
                (StatusCode::OK, &br#"{"success":true,"result":"#[..])
            };
            let mut response = settle_json(status, String::new());
            *response.body_mut() = Body::parts([Bytes::from_static(head), result, Bytes::from_static(b"}")]);
            response
        }
        // Such a caller declares nothing that it can be asked for.
        Final::Result(_) | Final::Parked { .. } => {
            failed(&Failure::sent(Reason::BadAnswer, ""), visible, alias, record)
        }
        Final::Error(error) => {
            record.reason = "upstream_error";
            let mut response = settle_json(StatusCode::UNPROCESSABLE_ENTITY, String::new());
            let head = Bytes::from_static(br#"{"success":false,"error":"tool_error","cause":"#);
            *response.body_mut() = Body::parts([head, error, Bytes::from_static(b"}")]);
            response
        }
        Final::Failed(failure) => failed(&failure, visible, alias, record),
    }
}

fn is_error(result: &[u8]) -> bool {
    let members = std::str::from_utf8(result).ok().and_then(|text| raw::members(text).ok()).unwrap_or_default();
    members.iter().any(|(key, value)| key == "isError" && value.get() == "true")
}

fn failed(failure: &Failure, visible: &str, alias: &str, record: &mut Record) -> Response<Body> {
    record.verdict = "failed";
    record.reason = failure.reason.label();
    let timed_out = failure.reason == Reason::TimedOut;
    let status = if timed_out { StatusCode::GATEWAY_TIMEOUT } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = format!(
        r#"{{"success":false,"error":{},"may_have_run":{},"message":{}}}"#,
        raw::quote(failure.reason.label()),
        failure.may_have_run,
        raw::quote(&recovery::failure_text(visible, alias, failure))
    );
    let mut response = settle_json(status, body);
    if !timed_out {
        let seconds = failure.retry_after_s.unwrap_or(5);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
