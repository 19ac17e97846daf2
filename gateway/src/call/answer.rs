//! Answer: what an upstream said, as this caller may read it. Bytes pass as they came but for a few members: handles are
//! sealed, and a modern caller finds the members that a legacy upstream does not give.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use rollcall_shared::ids::{ServerId, TenantId};
use rollcall_shared::limits;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::jsonrpc::{ErrorObject, code};
use rollcall_shared::mcp::raw;
use rollcall_shared::wire::{CallId, Failure, Final, Method, Reason, Run};
use serde_json::value::RawValue;
use smallvec::{SmallVec, smallvec};

use super::admit::Held;
use crate::app::App;
use crate::handle::{Owner, Purpose};
use crate::identity::Principal;
use crate::mcp::tasks::TaskHandle;
use crate::surface::recovery;

type Parts = SmallVec<[Bytes; 4]>;

/// What must be known to answer one request.
pub(crate) struct Facts {
    pub(crate) app: Arc<App>,
    pub(crate) principal: Arc<Principal>,
    pub(crate) era: Era,
    /// The request's id, as JSON.
    pub(crate) id: String,
    pub(crate) method: Method,
    pub(crate) call: CallId,
    /// The worker that has it.
    pub(crate) run: Run,
    pub(crate) server: Option<ServerId>,
    pub(crate) alias: String,
    pub(crate) visible: String,
    /// The upstream's own name of what was asked for.
    pub(crate) real: String,
    /// The handle by which the caller knows the task that it asks about.
    pub(crate) task: Option<String>,
}

/// The JSON-RPC answer in slices, and how the request is counted.
pub(crate) struct Answer {
    pub(super) parts: Parts,
    pub(super) status: StatusCode,
    pub(super) verdict: &'static str,
    pub(super) reason: &'static str,
    /// The result's share of the byte budget, until it is sent.
    pub(super) held: Option<Held>,
}

impl Facts {
    fn tenant(&self) -> &TenantId {
        &self.principal.tenant
    }

    fn server_id(&self) -> &str {
        self.server.as_ref().map_or("", ServerId::as_str)
    }

    /// The answer to an end; none where the caller took its request back.
    pub(super) fn answer(&self, end: Final) -> Option<Answer> {
        let end = match end {
            Final::Failed(failure) if failure.reason == Reason::Cancelled => return None,
            // MCP results are objects; anything else is no answer.
            Final::Result(result) if !result.starts_with(b"{") => {
                Final::Failed(Failure::sent(Reason::BadAnswer, "the result is no object"))
            }
            end @ (Final::Result(_) | Final::Error(_) | Final::Parked { .. } | Final::Failed(_)) => end,
        };
        let bytes = end_bytes(&end);
        note(&self.app, self.tenant(), self.server.as_ref(), &end);
        let held = self.app.load.hold(self.tenant(), bytes);
        let end = match held {
            Some(_) => end,
            None => {
                Final::Failed(Failure::sent(Reason::Overloaded, "the result does not fit the budget").retry_after(1))
            }
        };
        let answer = match end {
            Final::Result(result) => self.result(result),
            Final::Parked { round, requests } => self.parked(round, &requests),
            Final::Error(error) => self.error(error),
            Final::Failed(failure) => self.failed(&failure),
        };
        Some(Answer { held, ..answer })
    }

    fn wrap(&self, member: &str, value: impl IntoIterator<Item = Bytes>) -> Parts {
        let mut parts: Parts = smallvec![Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{},"{member}":"#, self.id))];
        parts.extend(value);
        parts.push(Bytes::from_static(b"}"));
        parts
    }

    fn done(parts: Parts, status: StatusCode, reason: &'static str) -> Answer {
        Answer { parts, status, verdict: "allowed", reason, held: None }
    }

    fn result(&self, result: Bytes) -> Answer {
        let slices: SmallVec<[Bytes; 3]> = match (self.era, self.method) {
            (Era::Modern, Method::GetTask) => smallvec![self.of_task(&result)],
            (Era::Modern, _) => match kind_of(&result) {
                Kind::Untyped | Kind::Complete if self.method == Method::ReadResource => smallvec![private(&result)],
                Kind::Untyped => with_result_type(result),
                Kind::Complete => smallvec![result],
                Kind::Other(kind) => match self.of_kind(&kind, &result) {
                    Some(result) => smallvec![result],
                    None => {
                        return self.failed(&Failure::sent(Reason::TooLarge, "a handle that cannot be carried"));
                    }
                },
            },
            (Era::Legacy, _) => smallvec![result],
        };
        Self::done(self.wrap("result", slices), StatusCode::OK, "")
    }

    /// A result that holds a handle of the upstream's.
    fn of_kind(&self, kind: &str, result: &Bytes) -> Option<Bytes> {
        match kind {
            "input_required" => rewrite(result, "requestState", |state| self.seal_state(&StateInside::Upstream(state))),
            "task" => rewrite(result, "taskId", |task| {
                let server = self.server_id().to_owned();
                let task = TaskHandle { server, tool: self.visible.clone(), id: raw::string_of(task)? };
                let content = serde_json::to_vec(&task).ok()?;
                let owner = Owner { principal: &self.principal, scope: &[] };
                self.app.seals.seal(Purpose::Task, owner, &content, limits::TASK_LIFETIME.as_secs())
            }),
            _ => Some(result.clone()),
        }
    }

    /// What a task's result says of itself, under the handle that the caller knows.
    fn of_task(&self, result: &Bytes) -> Bytes {
        let named = |_: &str| self.task.clone();
        rewrite(result, "taskId", named).unwrap_or_else(|| result.clone())
    }

    fn parked(&self, round: u32, requests: &Bytes) -> Answer {
        let run = self.run.get();
        let state =
            run.and_then(|incarnation| self.seal_state(&StateInside::Parked { incarnation, call: self.call, round }));
        let Some(state) = state else {
            return self.failed(&Failure::sent(Reason::Overloaded, "no handle"));
        };
        let requests = String::from_utf8_lossy(requests);
        let result = format!(
            r#"{{"resultType":"input_required","inputRequests":{requests},"requestState":{}}}"#,
            raw::quote(&state)
        );
        Self::done(self.wrap("result", [Bytes::from(result)]), StatusCode::OK, "input_required")
    }

    fn seal_state(&self, inside: &StateInside<'_>) -> Option<String> {
        let content = inside.write();
        if content.len() > limits::REQUEST_STATE_BYTES {
            return None;
        }
        let scope = [self.server_id(), self.method.as_str(), &self.real];
        let owner = Owner { principal: &self.principal, scope: &scope };
        self.app.seals.seal(Purpose::State, owner, &content, limits::REQUEST_STATE_LIFETIME.as_secs())
    }

    /// An upstream's error as this caller may read it, and the status that goes with its code.
    fn error(&self, error: Bytes) -> Answer {
        let object = serde_json::from_slice::<ErrorObject>(&error).ok();
        let Some(object) = object else {
            let json = format!(r#"{{"code":{},"message":"the server's error is not valid"}}"#, code::INTERNAL);
            return Self::done(self.wrap("error", [Bytes::from(json)]), StatusCode::OK, "upstream_error");
        };
        let is = |known: i32| object.code == i64::from(known);
        let replaced = |code: i32| {
            let data = object.data.as_ref().map_or_else(String::new, |data| format!(r#","data":{data}"#));
            Bytes::from(format!(r#"{{"code":{code},"message":{}{data}}}"#, raw::quote(&object.message)))
        };
        let (error, status) = match self.era {
            Era::Modern if is(code::METHOD_NOT_FOUND) => (error, StatusCode::NOT_FOUND),
            Era::Modern if is(code::MISSING_CAPABILITY) => (error, StatusCode::BAD_REQUEST),
            Era::Modern if is(code::RESOURCE_NOT_FOUND) && self.method == Method::ReadResource => {
                (replaced(code::INVALID_PARAMS), StatusCode::OK)
            }
            Era::Legacy if is(code::MISSING_CAPABILITY) && self.method == Method::CallTool => {
                // The model can do something else; its client knows no such code.
                let result = tool_error(&object.message);
                return Self::done(self.wrap("result", [Bytes::from(result)]), StatusCode::OK, "upstream_error");
            }
            // Codes that a legacy client does not know.
            Era::Legacy if (-32022..=-32020).contains(&object.code) => (replaced(code::INTERNAL), StatusCode::OK),
            Era::Modern | Era::Legacy => (error, StatusCode::OK),
        };
        Self::done(self.wrap("error", [error]), status, "upstream_error")
    }

    fn failed(&self, failure: &Failure) -> Answer {
        let text = if failure.reason == Reason::NoSuchCall {
            recovery::lost_text(&self.visible)
        } else {
            recovery::failure_text(&self.visible, &self.alias, failure)
        };
        let parts = if self.method == Method::CallTool {
            let kind = if self.era == Era::Modern { r#""resultType":"complete","# } else { "" };
            let result = tool_error(&text).replacen('{', &format!("{{{kind}"), 1);
            self.wrap("result", [Bytes::from(result)])
        } else {
            let error = format!(r#"{{"code":{},"message":{}}}"#, code::INTERNAL, raw::quote(&text));
            self.wrap("error", [Bytes::from(error)])
        };
        Answer { parts, status: StatusCode::OK, verdict: "failed", reason: failure.reason.label(), held: None }
    }
}

/// A result that tells a model that its call failed.
fn tool_error(text: &str) -> String {
    format!(r#"{{"content":[{{"type":"text","text":{}}}],"isError":true}}"#, raw::quote(text))
}

pub(crate) fn end_bytes(end: &Final) -> usize {
    match end {
        Final::Result(bytes) | Final::Error(bytes) | Final::Parked { requests: bytes, .. } => bytes.len(),
        Final::Failed(_) => 0,
    }
}

/// Remembers whether a server answers.
pub(crate) fn note(app: &App, tenant: &TenantId, server: Option<&ServerId>, end: &Final) {
    match (server, end) {
        (Some(_), Final::Failed(failure)) if failure.reason == Reason::NoSuchCall => {}
        (Some(server), Final::Failed(failure)) => app.live.note(tenant.clone(), server.clone(), failure),
        (Some(server), Final::Result(_) | Final::Error(_) | Final::Parked { .. }) => {
            app.live.note_good(tenant, server);
        }
        (None, _) => {}
    }
}

/// What is inside a sealed `requestState`.
pub(crate) enum StateInside<'a> {
    /// The upstream's own, as JSON.
    Upstream(&'a str),
    /// A call that waits at its worker.
    Parked { incarnation: u64, call: CallId, round: u32 },
}

impl<'a> StateInside<'a> {
    fn write(&self) -> Vec<u8> {
        match self {
            StateInside::Upstream(state) => [b"u", state.as_bytes()].concat(),
            StateInside::Parked { incarnation, call, round } => {
                [b"p", &incarnation.to_be_bytes()[..], call.as_bytes(), &round.to_be_bytes()].concat()
            }
        }
    }

    pub(crate) fn read(content: &'a [u8]) -> Option<Self> {
        match content.split_first()? {
            (b'u', state) => Some(StateInside::Upstream(std::str::from_utf8(state).ok()?)),
            (b'p', rest) => {
                let (incarnation, rest) = rest.split_first_chunk::<8>()?;
                let (call, rest) = rest.split_first_chunk::<16>()?;
                let round = u32::from_be_bytes(rest.try_into().ok()?);
                let incarnation = u64::from_be_bytes(*incarnation);
                Some(StateInside::Parked { incarnation, call: CallId::from_bytes(*call), round })
            }
            _ => None,
        }
    }
}

/// The slices of a result as a modern caller gets them; for benches.
pub(crate) fn slices_for_bench(result: &Bytes) -> usize {
    match kind_of(result) {
        Kind::Untyped => with_result_type(result.clone()).len(),
        Kind::Complete | Kind::Other(_) => 1,
    }
}

/// Whether a result is the end of its request.
pub(crate) fn is_complete(result: &[u8]) -> bool {
    matches!(kind_of(result), Kind::Complete | Kind::Untyped)
}

/// What a result says that it is.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Complete,
    /// It does not say: a legacy upstream's.
    Untyped,
    Other(String),
}

/// Finds out without reading the result where that is possible: at its start, at its end, or by its absence.
fn kind_of(result: &[u8]) -> Kind {
    const COMPLETE: &[u8] = br#""resultType":"complete""#;
    const KEY: &[u8] = br#""resultType""#;
    let ends = result.strip_suffix(b"}").and_then(|rest| rest.strip_suffix(COMPLETE));
    // Inside a text the quotes would be escaped, so that what precedes the key would be a backslash.
    if result.strip_prefix(b"{").is_some_and(|rest| rest.starts_with(COMPLETE))
        || ends.is_some_and(|rest| matches!(rest.last(), Some(b',' | b'{')))
    {
        return Kind::Complete;
    }
    if memchr::memmem::find(result, KEY).is_none() {
        return Kind::Untyped;
    }
    let members = std::str::from_utf8(result).ok().and_then(|text| raw::members(text).ok()).unwrap_or_default();
    let kind = members.iter().find(|(key, _)| key == "resultType").map(|(_, value)| raw::string(value));
    match kind {
        None => Kind::Untyped,
        Some(kind) if kind.as_deref() == Some("complete") => Kind::Complete,
        Some(kind) => Kind::Other(kind.unwrap_or_default()),
    }
}

/// A modern caller must find `resultType`. All other bytes pass as they came.
fn with_result_type(result: Bytes) -> SmallVec<[Bytes; 3]> {
    let inner = result.slice(1..);
    let is_empty = inner.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'}');
    let head: &[u8] = if is_empty { br#"{"resultType":"complete""# } else { br#"{"resultType":"complete","# };
    smallvec![Bytes::from_static(head), inner]
}

/// The object with one member's value replaced; itself where it has no such member, nothing where there is no new value.
fn rewrite(object: &Bytes, member: &str, new: impl FnOnce(&str) -> Option<String>) -> Option<Bytes> {
    let text = std::str::from_utf8(object).ok()?;
    let members = raw::members(text).ok()?;
    let Some((_, old)) = members.iter().find(|(key, _)| key == member) else { return Some(object.clone()) };
    let range = raw::range_in(text, old.get())?;
    let value = raw::quote(&new(old.get())?);
    Some(Bytes::from([text.get(..range.start)?, &value, text.get(range.end..)?].concat()))
}

/// A resource as this caller may keep it: for itself alone, whatever the upstream says, since a policy stands between
/// (specification 2026-07-28, server/utilities/caching).
fn private(result: &Bytes) -> Bytes {
    let text = std::str::from_utf8(result).unwrap_or("{}");
    let members = raw::members(text).unwrap_or_default();
    let get = |key: &str| members.iter().find(|(k, _)| k == key).map(|(_, value)| RawValue::get(value));
    let kept = members.iter().filter(|(key, _)| !matches!(key.as_ref(), "resultType" | "ttlMs" | "cacheScope"));
    let inner: Vec<String> = kept.map(|(key, value)| format!("{}:{}", raw::quote(key), value.get())).collect();
    let ttl = get("ttlMs").filter(|ttl| ttl.bytes().all(|b| b.is_ascii_digit())).unwrap_or("0");
    let head = format!(r#"{{"resultType":"complete","ttlMs":{ttl},"cacheScope":"private""#);
    let comma = if inner.is_empty() { "" } else { "," };
    Bytes::from(format!("{head}{comma}{}}}", inner.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_result_is_its_own_and_not_that_of_something_inside() {
        let case = |result: &str, expected: Kind| assert_eq!(kind_of(result.as_bytes()), expected, "{result}");
        case(r#"{"content":[]}"#, Kind::Untyped);
        case(r#"{"resultType":"complete","content":[]}"#, Kind::Complete);
        case(r#"{"content":[],"resultType":"complete"}"#, Kind::Complete);
        case(r#"{"content":[], "resultType" : "complete" }"#, Kind::Complete);
        case(r#"{"structuredContent":{"resultType":"task"}}"#, Kind::Untyped);
        case(r#"{"structuredContent":{"resultType":"complete"}}"#, Kind::Untyped);
        case(r#"{"a":",\"resultType\":\"complete\"}"}"#, Kind::Untyped);
        case(r#"{"resultType":"task","taskId":"1"}"#, Kind::Other("task".to_owned()));
        case(
            r#"{"a":{"resultType":"complete"},"resultType":"input_required"}"#,
            Kind::Other("input_required".to_owned()),
        );
        case(r#"{"resultType":7}"#, Kind::Other(String::new()));
    }

    #[test]
    fn a_large_result_is_not_read() {
        let text = "x".repeat(146_000);
        for result in [
            format!(r#"{{"resultType":"complete","content":[{{"type":"text","text":"{text}"}}]}}"#),
            format!(r#"{{"content":[{{"type":"text","text":"{text}"}}],"resultType":"complete"}}"#),
            format!(r#"{{"content":[{{"type":"text","text":"{text}"}}]}}"#),
        ] {
            let result = Bytes::from(result);
            let read = allocation_counter::measure(|| drop(kind_of(&result)));
            assert_eq!(read.count_total, 0, "members would be gathered on the heap");
            let kind = kind_of(&result);
            let answered = allocation_counter::measure(|| {
                drop(match kind {
                    Kind::Untyped => with_result_type(result.clone()),
                    Kind::Complete | Kind::Other(_) => smallvec![result.clone()],
                });
            });
            assert!(answered.bytes_total < 1024, "{}", answered.bytes_total);
        }
    }

    #[test]
    fn a_result_gets_its_type_and_keeps_every_other_byte() {
        let case = |result: &'static str, expected: &str| {
            let parts = with_result_type(Bytes::from_static(result.as_bytes()));
            assert_eq!(String::from_utf8(parts.concat()).expect("text"), expected);
        };
        case(
            r#"{"content":[],"n":9007199254740993}"#,
            r#"{"resultType":"complete","content":[],"n":9007199254740993}"#,
        );
        case("{ }", r#"{"resultType":"complete" }"#);
    }

    #[test]
    fn one_member_is_replaced_and_nothing_else() {
        let object = Bytes::from_static(br#"{ "a":{"taskId":"x"}, "taskId" : "t\u0031","n":1.50}"#);
        let out = rewrite(&object, "taskId", |old| raw::string_of(old).map(|id| format!("<{id}>"))).expect("an object");
        assert_eq!(out, Bytes::from_static(br#"{ "a":{"taskId":"x"}, "taskId" : "<t1>","n":1.50}"#));
        assert_eq!(rewrite(&object, "other", |_| None), Some(object.clone()));
        assert_eq!(rewrite(&object, "taskId", |_| None), None);
    }

    #[test]
    fn a_resource_is_its_readers_own() {
        let case = |result: &'static str, expected: &str| {
            let out = private(&Bytes::from_static(result.as_bytes()));
            assert_eq!(String::from_utf8_lossy(&out), expected);
        };
        case(
            r#"{"contents":[{"uri":"a"}]}"#,
            r#"{"resultType":"complete","ttlMs":0,"cacheScope":"private","contents":[{"uri":"a"}]}"#,
        );
        case(
            r#"{"contents":[],"ttlMs":500,"cacheScope":"public","resultType":"complete"}"#,
            r#"{"resultType":"complete","ttlMs":500,"cacheScope":"private","contents":[]}"#,
        );
    }

    #[test]
    fn the_inside_of_a_state_is_read_back() {
        let call = CallId::fresh();
        let parked = StateInside::Parked { incarnation: 7, call, round: 3 }.write();
        assert!(matches!(StateInside::read(&parked),
            Some(StateInside::Parked { incarnation: 7, call: c, round: 3 }) if c == call));
        let upstream = StateInside::Upstream(r#""abc""#).write();
        assert!(matches!(StateInside::read(&upstream), Some(StateInside::Upstream(r#""abc""#))));
        assert!(
            StateInside::read(b"").is_none() && StateInside::read(b"px").is_none() && StateInside::read(b"x").is_none()
        );
    }
}
