//! Rounds of input between a legacy caller and a modern server: `input_required` becomes requests on the caller's stream,
//! and their answers the retry (specification 2026-07-28, basic/patterns/mrtr).

use bytes::Bytes;
use rollcall_shared::limits;
use rollcall_shared::mcp::jsonrpc::{ErrorObject, code};
use rollcall_shared::mcp::raw;
use rollcall_shared::wire::{Asked, Failure, Final, Member, Params, Reason};

use super::conversation::Conversation;
use super::declared::mode_of;

/// What a server needs before it can answer.
pub(super) struct Input {
    /// By key: what is asked, and the raw params.
    requests: Vec<(String, Asked, Bytes)>,
    /// The raw `requestState`, to be given back as it is.
    pub(super) state: Option<Bytes>,
    /// A question of a kind that nobody knows.
    unknown: Option<String>,
}

/// The input that a result asks for, if it is one that does.
pub(super) fn input_required(result: &Bytes) -> Option<Input> {
    memchr::memmem::find(result, b"\"input_required\"")?;
    let members = raw::members(std::str::from_utf8(result).ok()?).ok()?;
    let get = |key: &str| members.iter().find(|(k, _)| k == key).map(|(_, value)| *value);
    if get("resultType").and_then(raw::string).as_deref() != Some("input_required") {
        return None;
    }
    let mut input = Input { requests: Vec::new(), state: None, unknown: None };
    input.state = get("requestState").map(|state| result.slice_ref(state.get().as_bytes()));
    for (key, request) in get("inputRequests").and_then(|r| raw::members(r.get()).ok()).unwrap_or_default() {
        let inner = raw::members(request.get()).unwrap_or_default();
        let of = |name: &str| inner.iter().find(|(k, _)| k == name).map(|(_, value)| *value);
        let method = of("method").and_then(raw::string).unwrap_or_default();
        let params =
            of("params").map_or_else(|| Bytes::from_static(b"{}"), |params| result.slice_ref(params.get().as_bytes()));
        match Asked::of_method(&method) {
            Some(asked) => input.requests.push((key.into_owned(), asked, for_legacy(asked, params))),
            None => input.unknown = Some(method),
        }
    }
    Some(input)
}

/// An elicitation by URL has an id in the legacy era, by which its completion could be told.
fn for_legacy(asked: Asked, params: Bytes) -> Bytes {
    let text = String::from_utf8_lossy(&params);
    let needs_id = asked == Asked::Elicitation && mode_of(&text).as_deref() == Some("url");
    match text.strip_prefix('{').filter(|_| needs_id && !text.contains("\"elicitationId\"")) {
        Some(rest) => format!(r#"{{"elicitationId":"{}",{rest}"#, rollcall_shared::digest::unguessable()).into(),
        None => params,
    }
}

/// Asks the caller for all of it. Gives the object of `inputResponses`, or how the call ends.
pub(super) async fn answer(conversation: &Conversation, input: &Input) -> Result<String, Final> {
    let cannot = |what: &str| {
        let detail = format!("the server asks for {what}, which its caller cannot be asked for");
        Final::Failed(Failure::sent(Reason::BadAnswer, detail))
    };
    if let Some(method) = &input.unknown {
        return Err(cannot(method));
    }
    if input.requests.len() > limits::INPUT_REQUESTS {
        return Err(cannot("too much at once"));
    }
    if input.requests.is_empty() {
        // The server wants nothing but to be called again.
        tokio::time::sleep(limits::STRAGGLERS).await;
    }
    let mut open = Vec::new();
    for (key, asked, params) in &input.requests {
        let receiver = conversation.ask_for_round(*asked, params.clone()).ok_or_else(|| cannot(asked.method()))?;
        open.push((key, receiver));
    }
    let mut out = String::from("{");
    for (key, receiver) in open {
        let outcome = receiver.await.map_err(|_| cannot("an answer that never came"))?;
        // A refusal has no place among the responses: it is the end.
        let result = outcome.map_err(Final::Error)?;
        if out.len() > 1 {
            out.push(',');
        }
        out.push_str(&format!("{}:{}", raw::quote(key), String::from_utf8_lossy(&result)));
    }
    out.push('}');
    Ok(out)
}

/// The params of the retry.
pub(super) fn put(params: &mut Params, responses: String, state: Option<Bytes>) {
    params.set(Member::InputResponses, responses);
    params.0.retain(|(member, _)| *member != Member::RequestState);
    if let Some(state) = state {
        params.push(Member::RequestState, state);
    }
}

/// A legacy server's error that a URL must be visited first, for a modern caller: `input_required` with that URL. The
/// retry is then a call like any other.
pub(super) fn url_required(conversation: &Conversation, error: Bytes) -> Final {
    let object = serde_json::from_slice::<ErrorObject>(&error).ok();
    let is_such = object.as_ref().is_some_and(|e| e.code == i64::from(code::URL_ELICITATION_REQUIRED));
    if !is_such || !conversation.allows(Asked::Elicitation, r#"{"mode":"url"}"#) {
        return Final::Error(error);
    }
    let data = object.and_then(|e| e.data).unwrap_or_default();
    let list = data.get("elicitations").and_then(|list| list.as_array()).cloned().unwrap_or_default();
    let requests: Vec<String> = list
        .iter()
        .take(limits::INPUT_REQUESTS)
        .enumerate()
        .filter_map(|(n, elicitation)| {
            let url = elicitation.get("url")?.as_str()?;
            let message = elicitation.get("message").and_then(|m| m.as_str()).unwrap_or_default();
            let params = format!(r#"{{"mode":"url","message":{},"url":{}}}"#, raw::quote(message), raw::quote(url));
            Some(format!(r#""u{n}":{{"method":"elicitation/create","params":{params}}}"#))
        })
        .collect();
    if requests.is_empty() {
        return Final::Error(error);
    }
    Final::Result(format!(r#"{{"resultType":"input_required","inputRequests":{{{}}}}}"#, requests.join(",")).into())
}
