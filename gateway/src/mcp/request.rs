//! Requests that go upstream: resolve, forward, relay; and Rollcall's own tools, of which one stands for another tool.

use bytes::Bytes;
use http::Response;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::raw;
use rollcall_shared::wire::{CallId, Member, Method, Params};

use super::resume::Thread;
use super::{Ask, members, quoted, target};
use crate::body::Body;
use crate::call::Record;
use crate::call::answer::{Facts, StateInside};
use crate::call::arguments::problems;
use crate::call::decode::check_param;
use crate::call::forward::{Request, forward};
use crate::call::relay::{Relayed, Reply, relay};
use crate::handle::{Owner, Purpose};
use crate::own_tools::{self, By, Own};
use crate::refusal::Refusal;
use crate::view::Permit;

/// `tools/call`
pub(super) async fn call_tool(
    ask: &Ask<'_>,
    held: impl std::any::Any + Send,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let (mut name, mut arguments) = (ask.required("name")?, ask.object("arguments")?);
    record.is_for(&name);
    // What is meant by `tool_call` goes the way of a direct call from here on.
    let mut direct = true;
    while ask.endpoint.server.is_none() && ask.sight.view.bridge_tools().any(|own| own == name) {
        let by = By { app: ask.app, tenant: &ask.principal.tenant, sight: &ask.sight };
        match own_tools::answer(by, &name, arguments.as_ref()).await? {
            Own::Text { text, is_error } => return Ok(tool_result(ask, &text, is_error)),
            Own::Call { name: inner, arguments: of_inner } => {
                (name, arguments, direct) = (inner, of_inner, false);
                record.is_for(&name);
            }
            Own::Prompt { .. } | Own::Resource { .. } => return Err(Refusal::Internal),
        }
    }
    let permit = match target::tool(ask.reach(), &name) {
        Ok(permit) => permit,
        // What is only unavailable is told to the model, not to its client: waiting helps, other names do not.
        Err(Refusal::Tools(refused)) if refused.unknown.is_empty() && refused.not_allowed.is_empty() => {
            record.is_refused(&ask.app.metrics, "unavailable");
            let members = format!(
                r#""content":[{{"type":"text","text":{}}}],"isError":true,"structuredContent":{}"#,
                raw::quote(&refused.message),
                refused.to_json()
            );
            return Ok(ask.result(&members, ""));
        }
        Err(refusal) => return Err(refusal),
    };
    if let Some(text) = problems(ask.app, permit, arguments.as_deref()) {
        record.is_refused(&ask.app.metrics, "arguments");
        return Ok(tool_result(ask, &text, true));
    }
    let headers = mirrored(ask, permit, arguments.as_deref(), direct)?;
    let real = permit.definition().real.to_string();
    let params = members([(Member::Name, Some(quoted(&real))), (Member::Arguments, arguments)]);
    send(ask, permit, Sent { method: Method::CallTool, real, params, headers }, held, record).await
}

fn tool_result(ask: &Ask<'_>, text: &str, is_error: bool) -> Response<Body> {
    let members = format!(r#""content":[{{"type":"text","text":{}}}],"isError":{is_error}"#, raw::quote(text));
    ask.result(&members, "")
}

/// The arguments that a modern caller mirrors into headers, checked against them where it knows the tool; for a modern
/// upstream.
fn mirrored(
    ask: &Ask<'_>,
    permit: Permit<'_>,
    arguments: Option<&[u8]>,
    direct: bool,
) -> Result<Vec<(String, String)>, Refusal> {
    let declared = &permit.definition().headers;
    if declared.is_empty() {
        return Ok(Vec::new());
    }
    let arguments = arguments.and_then(|arguments| std::str::from_utf8(arguments).ok());
    let mut out = Vec::new();
    for header in declared {
        let value = header.value(arguments);
        if ask.message.era == Era::Modern && direct {
            check_param(ask.headers, header, value.as_ref())?;
        }
        out.extend(value.map(|value| (header.name.clone(), value.text)));
    }
    Ok(out)
}

/// `prompts/get`
pub(super) async fn get_prompt(
    ask: &Ask<'_>,
    held: impl std::any::Any + Send,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let name = ask.required("name")?;
    let permit = target::prompt(ask.reach(), &name)?;
    let real = permit.definition().real.to_string();
    let params = members([(Member::Name, Some(quoted(&real))), (Member::Arguments, ask.object("arguments")?)]);
    send(ask, permit, Sent { method: Method::GetPrompt, real, params, headers: Vec::new() }, held, record).await
}

/// `resources/read`
pub(super) async fn read_resource(
    ask: &Ask<'_>,
    held: impl std::any::Any + Send,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let name = ask.required("uri")?;
    let (permit, real) = target::resource(ask.reach(), &name)?;
    let params = members([(Member::Uri, Some(quoted(&real)))]);
    send(ask, permit, Sent { method: Method::ReadResource, real, params, headers: Vec::new() }, held, record).await
}

/// `completion/complete`: of an argument of a prompt or of a template that this session may use.
pub(super) async fn complete(
    ask: &Ask<'_>,
    held: impl std::any::Any + Send,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let reference = ask.object("ref")?.ok_or_else(|| Refusal::InvalidParams("`ref` is missing".to_owned()))?;
    let inner = raw::members(std::str::from_utf8(&reference).unwrap_or("{}")).unwrap_or_default();
    let get = |name: &str| inner.iter().find(|(key, _)| key == name).and_then(|(_, value)| raw::string(value));
    let (permit, real) = match (get("type").as_deref(), get("name"), get("uri")) {
        (Some("ref/prompt"), Some(name), _) => {
            let permit = target::prompt(ask.reach(), &name)?;
            (permit, format!(r#"{{"type":"ref/prompt","name":{}}}"#, raw::quote(&permit.definition().real)))
        }
        (Some("ref/resource"), _, Some(uri)) => {
            let permit = target::template(ask.reach(), &uri)?;
            (permit, format!(r#"{{"type":"ref/resource","uri":{}}}"#, raw::quote(&permit.definition().real)))
        }
        _ => return Err(Refusal::InvalidParams("`ref` must name a prompt or a resource template".to_owned())),
    };
    let params = members([
        (Member::Ref, Some(Bytes::from(real))),
        (Member::Argument, ask.object("argument")?),
        (Member::Context, ask.object("context")?),
    ]);
    let sent = Sent { method: Method::Complete, real: String::new(), params, headers: Vec::new() };
    send(ask, permit, sent, held, record).await
}

/// What goes to a permitted entry.
pub(super) struct Sent {
    pub(super) method: Method,
    /// The upstream's own name of what is asked for.
    pub(super) real: String,
    pub(super) params: Params,
    pub(super) headers: Vec<(String, String)>,
}

async fn send(
    ask: &Ask<'_>,
    permit: Permit<'_>,
    mut sent: Sent,
    held: impl std::any::Any + Send,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let resumes = answered(ask, permit, &mut sent)?;
    relayed(ask, permit, sent, resumes, None, held, record).await
}

/// The second round of a request that needed input: its answers, and the state that goes with them.
fn answered(ask: &Ask<'_>, permit: Permit<'_>, sent: &mut Sent) -> Result<Option<(u64, CallId, u32)>, Refusal> {
    if ask.message.era == Era::Legacy || sent.method == Method::Complete {
        return Ok(None);
    }
    if let Some(responses) = ask.object("inputResponses")? {
        sent.params.push(Member::InputResponses, responses);
    }
    let Some(handle) = ask.params.text("requestState")? else { return Ok(None) };
    let server = permit.server().map_or("", |server| server.id.as_str());
    let scope = [server, sent.method.as_str(), &sent.real];
    let owner = Owner { principal: ask.principal, scope: &scope };
    let unknown = || Refusal::InvalidParams("`requestState` is not one of this request, or not any more".to_owned());
    let content = ask.app.seals.open(Purpose::State, owner, &handle).ok_or_else(unknown)?;
    match StateInside::read(&content).ok_or_else(unknown)? {
        StateInside::Upstream(state) => {
            sent.params.push(Member::RequestState, Bytes::copy_from_slice(state.as_bytes()));
            Ok(None)
        }
        StateInside::Parked { incarnation, call, round } => Ok(Some((incarnation, call, round))),
    }
}

/// Sends it, and relays what comes back.
pub(super) async fn relayed(
    ask: &Ask<'_>,
    permit: Permit<'_>,
    sent: Sent,
    resumes: Option<(u64, CallId, u32)>,
    task: Option<String>,
    held: impl std::any::Any + Send,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let caller = ask.caller()?;
    let Sent { method, real, params, headers } = sent;
    let name = (method != Method::Complete).then(|| real.clone());
    let request = Request { method, name, params, headers, resumes };
    let forwarded = forward(ask.app, ask.principal, permit, request, caller, record)?;
    let facts = Facts {
        app: ask.app.clone(),
        principal: ask.principal.clone(),
        era: ask.message.era,
        id: ask.id.to_owned(),
        method,
        call: forwarded.call,
        run: forwarded.run,
        server: forwarded.server,
        alias: forwarded.alias,
        visible: forwarded.visible,
        real,
        task,
    };
    let reply = Reply {
        takes_stream: ask.message.takes_stream,
        takes_json: ask.message.takes_json && !ask.message.prefers_stream,
        primes: ask.session.is_some_and(super::session::Session::primes),
    };
    let session = ask.session.filter(|_| ask.message.takes_stream);
    let thread = session.map(|session| Thread::new(session.number()));
    let relayed = Relayed { end: forwarded.end, news: forwarded.news, facts, reply, thread };
    Ok(relay(ask.app, relayed, held, record).await)
}
