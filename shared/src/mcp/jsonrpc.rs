//! JSON-RPC 2.0 envelopes over raw values (https://www.jsonrpc.org/specification).
//!
//! A duplicate `method`, `id` or `params` is refused: two readers of one message must not see two requests.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::raw;

/// Standard codes, and MCP's own (specification 2026-07-28, basic, section Errors).
pub mod code {
    pub const PARSE: i32 = -32700;
    pub const INVALID_REQUEST: i32 = -32600;
    pub const METHOD_NOT_FOUND: i32 = -32601;
    pub const INVALID_PARAMS: i32 = -32602;
    pub const INTERNAL: i32 = -32603;
    /// Of the legacy eras; the modern one says `INVALID_PARAMS`.
    pub const RESOURCE_NOT_FOUND: i32 = -32002;
    /// Of 2025-11-25; the modern era says `input_required`.
    pub const URL_ELICITATION_REQUIRED: i32 = -32042;
    pub const HEADER_MISMATCH: i32 = -32020;
    pub const MISSING_CAPABILITY: i32 = -32021;
    pub const UNSUPPORTED_VERSION: i32 = -32022;
}

/// Longest id that is repeated in an answer; a longer one is an attempt to be amplified.
const ID_BYTES: usize = 256;

/// What one JSON text is, as JSON-RPC.
#[derive(Debug)]
pub enum Message<'a> {
    Request { id: &'a RawValue, method: String, params: Option<&'a RawValue> },
    Notification { method: String, params: Option<&'a RawValue> },
    Response { id: Option<&'a RawValue>, outcome: Outcome<'a> },
}

/// The end of a request.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    Result(&'a RawValue),
    Error(&'a RawValue),
}

/// Why a text is no message. `id` is given where it could be read, to be repeated in the answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Malformed {
    NotJson(String),
    NotRequest { id: Option<String>, what: String },
}

#[derive(Deserialize)]
struct Envelope<'a> {
    jsonrpc: Option<String>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    method: Option<String>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// Keeps `null` apart from absent.
fn present<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(input).map(Some)
}

/// Reads one message. Costs one pass over the text and no copy but the method's name.
pub fn parse(text: &[u8]) -> Result<Message<'_>, Malformed> {
    let text = std::str::from_utf8(text).map_err(|e| Malformed::NotJson(format!("not UTF-8: {e}")))?;
    let envelope: Envelope<'_> = match serde_json::from_str(text) {
        Ok(envelope) => envelope,
        Err(error) => return Err(diagnose(text, &error)),
    };
    let id_text = envelope.id.filter(|id| valid_id(id)).map(|id| id.get().to_owned());
    let refuse = |what: &str| Malformed::NotRequest { id: id_text.clone(), what: what.to_owned() };
    if envelope.jsonrpc.as_deref() != Some("2.0") {
        return Err(refuse("`jsonrpc` must be \"2.0\""));
    }
    match (envelope.method, envelope.id, envelope.result, envelope.error) {
        (Some(_), _, Some(_), _) | (Some(_), _, _, Some(_)) => Err(refuse("`method` beside `result` or `error`")),
        (Some(method), Some(id), None, None) => {
            if !valid_id(id) {
                return Err(refuse("`id` must be a string or an integer of at most 256 bytes"));
            }
            if envelope.params.is_some_and(|p| !p.get().starts_with('{')) {
                return Err(refuse("`params` must be an object"));
            }
            Ok(Message::Request { id, method, params: envelope.params })
        }
        (Some(method), None, None, None) => {
            if envelope.params.is_some_and(|p| !p.get().starts_with('{')) {
                return Err(refuse("`params` must be an object"));
            }
            Ok(Message::Notification { method, params: envelope.params })
        }
        (None, id, Some(result), None) => Ok(Message::Response { id, outcome: Outcome::Result(result) }),
        (None, id, None, Some(error)) => Ok(Message::Response { id, outcome: Outcome::Error(error) }),
        (None, _, Some(_), Some(_)) => Err(refuse("both `result` and `error`")),
        (None, _, None, None) => Err(refuse("`method` is missing")),
    }
}

/// Tells broken JSON from JSON that is no message.
fn diagnose(text: &str, error: &serde_json::Error) -> Malformed {
    match serde_json::from_str::<&RawValue>(text) {
        Err(syntax) => Malformed::NotJson(syntax.to_string()),
        Ok(value) if value.get().starts_with('[') => {
            Malformed::NotRequest { id: None, what: "a batch; this revision takes one message a request".to_owned() }
        }
        Ok(value) if !value.get().starts_with('{') => {
            Malformed::NotRequest { id: None, what: "not a JSON object".to_owned() }
        }
        Ok(_) => Malformed::NotRequest { id: None, what: error.to_string() },
    }
}

/// MCP ids are strings or integers, never null (specification 2026-07-28, basic, section Requests).
fn valid_id(id: &RawValue) -> bool {
    let text = id.get();
    if text.len() > ID_BYTES {
        return false;
    }
    if text.starts_with('"') {
        return raw::string(id).is_some();
    }
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// The members of an upstream's or our own error object.
#[derive(Debug, Deserialize)]
pub struct ErrorObject {
    pub code: i64,
    #[serde(default)]
    pub message: String,
    #[serde(default)]
    pub data: Option<serde_json::Value>,
}

/// `{"jsonrpc":"2.0","id":…,"error":{…}}`; an id of `None` is `null`, as for texts that could not be read.
pub fn error(id: Option<&str>, code: i32, message: &str, data: Option<&str>) -> String {
    let mut out = format!(
        r#"{{"jsonrpc":"2.0","id":{},"error":{{"code":{code},"message":{}"#,
        id.unwrap_or("null"),
        raw::quote(message)
    );
    if let Some(data) = data {
        out.push_str(r#","data":"#);
        out.push_str(data);
    }
    out.push_str("}}");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keep_their_form() {
        for id in ["1", "-7", "9007199254740993", r#""a\u00e9""#, r#""""#] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
            match parse(text.as_bytes()) {
                Ok(Message::Request { id: kept, .. }) => assert_eq!(kept.get(), id),
                other => panic!("{id}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_is_no_message_is_named() {
        let case = |text: &str, expected: &str| match parse(text.as_bytes()) {
            Err(Malformed::NotJson(what)) => assert!(format!("json: {what}").contains(expected), "{text}: {what}"),
            Err(Malformed::NotRequest { what, .. }) => assert!(what.contains(expected), "{text}: {what}"),
            Ok(message) => panic!("{text} was read as {message:?}"),
        };
        case("{", "json: ");
        case("\u{feff}{}", "json: ");
        case("[]", "batch");
        case("3", "not a JSON object");
        case(r#"{"id":1,"method":"x"}"#, "jsonrpc");
        case(r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, "`id` must");
        case(r#"{"jsonrpc":"2.0","id":1.5,"method":"x"}"#, "`id` must");
        case(r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#, "`id` must");
        case(r#"{"jsonrpc":"2.0","id":1}"#, "`method` is missing");
        case(r#"{"jsonrpc":"2.0","id":1,"method":"x","params":[1]}"#, "`params` must");
        case(r#"{"jsonrpc":"2.0","id":1,"method":"x","method":"y"}"#, "duplicate field");
        case(r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"y"}"#, "duplicate field");
        case(r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#, "both");
        case(r#"{"jsonrpc":"2.0","id":"\ud800","method":"x"}"#, "`id` must");
    }

    #[test]
    fn a_response_may_carry_null_as_its_result() {
        let text = br#"{"jsonrpc":"2.0","id":1,"result":null}"#;
        assert!(matches!(parse(text), Ok(Message::Response { outcome: Outcome::Result(_), .. })));
    }
}
