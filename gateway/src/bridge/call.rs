//! A call by name: arguments in, result out.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::raw;
use rollcall_shared::wire::{Caller, Failure, Final, Member, Method, Params, Reason};
use serde_json::json;

use super::{By, Target};
use crate::body::Body;
use crate::call::answer::{end_bytes, is_complete, note};
use crate::call::arguments::problems;
use crate::call::forward::{self, forward};
use crate::call::{Record, settle_json};
use crate::http::Endpoint;
use crate::mcp::target::{self, Reach};
use crate::own_tools::{self, By as ByOwn, Own};
use crate::refusal::Refusal;
use crate::registry::naming::SEPARATOR;
use crate::surface::recovery;
use crate::view::{Permit, Sight};

/// What is asked of a permitted entry, and under which member of the params it is named.
struct Wanted<'s> {
    permit: Permit<'s>,
    method: Method,
    real: String,
    arguments: Option<Bytes>,
}

pub(super) async fn call(
    by: By<'_>,
    target: &Target,
    body: Bytes,
    held: impl std::any::Any + Send + Sync + 'static,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let arguments = read_arguments(body)?;
    let sight = by.app.live.sight(by.principal).await?;
    let wanted = match target {
        Target::OfServer { server, tool } => {
            let permit = of_server(by, &sight, server, tool)?;
            Wanted { permit, method: Method::CallTool, real: permit.definition().real.to_string(), arguments }
        }
        Target::Tool(name) => match own_or_other(by, &sight, name.clone(), arguments, record).await? {
            Ok(wanted) => wanted,
            Err(answer) => return Ok(answer),
        },
        Target::Specs | Target::Manifest | Target::Instructions | Target::Search => return Err(Refusal::Internal),
    };
    send(by, wanted, held, record).await
}

/// The tool that a server knows by this name; or by what its visible name makes of it, as the manifest writes names that
/// could not stand in a text.
fn of_server<'s>(by: By<'_>, sight: &'s Arc<Sight>, server: &str, tool: &str) -> Result<Permit<'s>, Refusal> {
    let alias = sight.registry.segment_of(server).and_then(|segment| {
        sight.registry.alias(crate::registry::Place { segment, local: 0 }).map(ToString::to_string)
    });
    let endpoint = Endpoint { path: String::new(), tenant: None, server: Some(server.to_owned()) };
    let reach = Reach { app: by.app, tenant: &by.principal.tenant, endpoint: &endpoint, sight };
    target::tool(reach, tool).or_else(|refusal| {
        let named = alias.and_then(|alias| {
            sight.permit(rollcall_shared::model::EntryKind::Tool, &format!("{alias}{SEPARATOR}{tool}"))
        });
        named.ok_or(refusal)
    })
}

/// What goes upstream; or the answer of one of our own tools.
async fn own_or_other<'s>(
    by: By<'_>,
    sight: &'s Arc<Sight>,
    mut name: String,
    mut arguments: Option<Bytes>,
    record: &mut Record,
) -> Result<Result<Wanted<'s>, Response<Body>>, Refusal> {
    let endpoint = Endpoint { path: String::new(), tenant: None, server: None };
    let reach = Reach { app: by.app, tenant: &by.principal.tenant, endpoint: &endpoint, sight };
    while sight.view.bridge_tools_over_http().any(|own| own == name) {
        let own = ByOwn { app: by.app, tenant: &by.principal.tenant, sight };
        match own_tools::answer(own, &name, arguments.as_ref()).await? {
            Own::Text { text, is_error } => return Ok(Err(own_answer(&text, is_error))),
            Own::Call { name: inner, arguments: of_inner } => {
                record.is_call(&inner);
                (name, arguments) = (inner, of_inner);
            }
            Own::Prompt { name, arguments } => {
                let permit = target::prompt(reach, &name)?;
                let real = permit.definition().real.to_string();
                return Ok(Ok(Wanted { permit, method: Method::GetPrompt, real, arguments }));
            }
            Own::Resource { uri } => {
                let (permit, real) = target::resource(reach, &uri)?;
                return Ok(Ok(Wanted { permit, method: Method::ReadResource, real, arguments: None }));
            }
        }
    }
    let permit = target::tool(reach, &name)?;
    let real = permit.definition().real.to_string();
    Ok(Ok(Wanted { permit, method: Method::CallTool, real, arguments }))
}

fn own_answer(text: &str, is_error: bool) -> Response<Body> {
    let result = json!({"content": [{"type": "text", "text": text}], "isError": is_error});
    if is_error {
        let body = json!({"success": false, "error": "tool_error", "message": text, "result": result});
        return settle_json(StatusCode::UNPROCESSABLE_ENTITY, body.to_string());
    }
    settle_json(StatusCode::OK, json!({"success": true, "result": result}).to_string())
}

async fn send(
    by: By<'_>,
    wanted: Wanted<'_>,
    held: impl std::any::Any + Send + Sync + 'static,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let By { app, principal } = by;
    let Wanted { permit, method, real, arguments } = wanted;
    if let (Method::CallTool, Some(text)) = (method, problems(app, permit, arguments.as_deref())) {
        record.is_refused(&app.metrics, "arguments");
        return Ok(own_answer(&text, true));
    }
    // Such a caller hears no notifications, and going away cancels its call.
    let caller = Caller { era: Some(Era::Modern), ..Caller::default() };
    let mut params = Params::default();
    let named = if method == Method::ReadResource { Member::Uri } else { Member::Name };
    params.push(named, raw::quote(&real));
    if let Some(arguments) = &arguments {
        params.push(Member::Arguments, arguments.clone());
    }
    let text = arguments.as_deref().and_then(|arguments| std::str::from_utf8(arguments).ok());
    let mirrored = permit.definition().headers.iter();
    let headers = mirrored.filter_map(|header| Some((header.name.clone(), header.value(text)?.text))).collect();
    let request = forward::Request { method, name: Some(real), params, headers, resumes: None };
    let forwarded = forward(app, principal, permit, request, caller, record)?;
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
