//! Messages to upstreams, built from known parts; and what of theirs a caller gets to hear.

use bytes::Bytes;
use rollcall_shared::mcp::era::{Era, META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL, META_VERSION, MODERN};
use rollcall_shared::mcp::jsonrpc::{self, code};
use rollcall_shared::mcp::raw;
use rollcall_shared::wire::{Caller, Member, Params, TraceContext};
use serde_json::value::RawValue;

/// Who we say we are where the caller did not say.
pub(crate) const CLIENT_INFO: &str = concat!(r#"{"name":"rollcall","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

/// What we ask every modern server to tell of.
pub(crate) const ALL_LISTS: &str =
    r#""notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true}"#;

/// Severities in rising order (RFC 5424, section 6.2.1, as MCP names them).
const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
/// What a legacy session hears of a modern server before it asked for a level: those servers send nothing unasked.
const LEVEL_UNASKED: &str = r#""info""#;

/// The place of a severity, given as JSON, among the severities.
pub(crate) fn severity(level: &str) -> Option<usize> {
    let level = raw::string_of(level)?;
    LEVELS.iter().position(|l| *l == level)
}

/// The parts of `params` of a caller's request.
pub(crate) struct CallParams<'a> {
    pub(crate) params: &'a Params,
    pub(crate) caller: &'a Caller,
    pub(crate) trace: &'a TraceContext,
    pub(crate) progress_token: Option<&'a str>,
}

impl CallParams<'_> {
    /// The object of params for an upstream of `era`.
    pub(crate) fn build(&self, era: Era) -> String {
        let size: usize = self.params.0.iter().map(|(_, value)| value.len() + 20).sum();
        let mut out = String::with_capacity(512 + size);
        out.push('{');
        for (member, value) in &self.params.0 {
            // A legacy server asks on the way and knows no second round.
            if era == Era::Legacy && matches!(member, Member::InputResponses | Member::RequestState) {
                continue;
            }
            out.push('"');
            out.push_str(member.as_str());
            out.push_str("\":");
            out.push_str(&String::from_utf8_lossy(value));
            out.push(',');
        }
        out.push_str(r#""_meta":{"#);
        let mut first = true;
        let mut member = |key: &str, value: &str| {
            if !std::mem::take(&mut first) {
                out.push(',');
            }
            out.push_str(&raw::quote(key));
            out.push(':');
            out.push_str(value);
        };
        for (key, value) in &self.caller.meta {
            member(key, value.get());
        }
        if era == Era::Modern {
            let capabilities = self.caller.capabilities.as_deref().map_or("{}", RawValue::get);
            modern_meta(self.caller.info.as_deref(), capabilities, &mut member);
            let unasked = (self.caller.era == Some(Era::Legacy)).then_some(LEVEL_UNASKED);
            if let Some(level) = self.caller.log_level.as_deref().map(RawValue::get).or(unasked) {
                member(META_LOG_LEVEL, level);
            }
        }
        if let Some(token) = self.progress_token {
            member("progressToken", &raw::quote(token));
        }
        member("traceparent", &raw::quote(&self.trace.to_string()));
        out.push_str("}}");
        out
    }
}

fn modern_meta(info: Option<&RawValue>, capabilities: &str, member: &mut impl FnMut(&str, &str)) {
    member(META_VERSION, &raw::quote(MODERN));
    member(META_CAPABILITIES, capabilities);
    member(META_CLIENT, info.map_or(CLIENT_INFO, RawValue::get));
}

/// Params of a request of our own, such as a listing: `members` is the inside of the object, or nothing.
pub(crate) fn own_params(era: Era, members: &str) -> String {
    own_params_declaring(era, members, "{}")
}

/// The same, with what the server may count on.
pub(crate) fn own_params_declaring(era: Era, members: &str, capabilities: &str) -> String {
    match era {
        Era::Legacy => format!("{{{members}}}"),
        Era::Modern => {
            let mut meta = String::new();
            modern_meta(None, capabilities, &mut |key, value| {
                if !meta.is_empty() {
                    meta.push(',');
                }
                meta.push_str(&format!("{}:{value}", raw::quote(key)));
            });
            let comma = if members.is_empty() { "" } else { "," };
            format!(r#"{{{members}{comma}"_meta":{{{meta}}}}}"#)
        }
    }
}

/// A whole request on one line.
pub(crate) fn request(id: &str, method: &str, params: &str) -> Bytes {
    let text = format!(r#"{{"jsonrpc":"2.0","id":{},"method":"{method}","params":{params}}}"#, raw::quote(id));
    match raw::one_line(text.as_bytes()) {
        std::borrow::Cow::Borrowed(_) => text.into(),
        std::borrow::Cow::Owned(line) => line.into(),
    }
}

/// A whole notification on one line.
pub(crate) fn notification(method: &str, params: &str) -> Bytes {
    let text = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
    raw::one_line(text.as_bytes()).into_owned().into()
}

/// The answer to a request that an upstream made of us and that concerns no caller: `ping` is answered, nothing else.
pub(crate) fn answer_upstream(id: &RawValue, method: &str) -> Bytes {
    match method {
        "ping" => respond(id, Ok(b"{}")),
        _ => refuse_upstream(id, "not offered by this client"),
    }
}

pub(crate) fn refuse_upstream(id: &RawValue, why: &str) -> Bytes {
    raw::one_line(jsonrpc::error(Some(id.get()), code::METHOD_NOT_FOUND, why, None).as_bytes()).into_owned().into()
}

/// A caller's answer, under the id of the upstream's own request.
pub(crate) fn respond(id: &RawValue, outcome: Result<&[u8], &[u8]>) -> Bytes {
    let (member, value) = match outcome {
        Ok(result) => ("result", result),
        Err(error) => ("error", error),
    };
    let text = format!(r#"{{"jsonrpc":"2.0","id":{},"{member}":{}}}"#, id.get(), String::from_utf8_lossy(value));
    raw::one_line(text.as_bytes()).into_owned().into()
}

/// What a caller hears, and under which token.
pub(crate) struct Ear<'a> {
    pub(crate) ours: Option<&'a str>,
    pub(crate) theirs: Option<&'a RawValue>,
    /// The least severity that is passed on; none where logs are not.
    pub(crate) logs_from: Option<usize>,
}

/// The notification as its caller may read it: progress under the caller's own token, logs where they are wanted.
pub(crate) fn news_for_caller(method: &str, params: Option<&RawValue>, ear: &Ear<'_>) -> Option<Bytes> {
    let params = params?.get();
    let text = match method {
        "notifications/progress" => {
            let (ours, theirs) = (ear.ours?, ear.theirs?);
            let members = raw::members(params).ok()?;
            let mut out = String::from("{");
            let mut matched = false;
            for (key, value) in members {
                if out.len() > 1 {
                    out.push(',');
                }
                out.push_str(&raw::quote(&key));
                out.push(':');
                if key == "progressToken" {
                    matched = raw::string(value).as_deref() == Some(ours);
                    out.push_str(theirs.get());
                } else {
                    out.push_str(value.get());
                }
            }
            out.push('}');
            matched.then_some(out)?
        }
        "notifications/message" => {
            let from = ear.logs_from?;
            let members = raw::members(params).ok()?;
            let level = members.iter().find(|(key, _)| key == "level").and_then(|(_, value)| severity(value.get()));
            // A severity that nobody knows is passed on.
            level.is_none_or(|level| level >= from).then(|| params.to_owned())?
        }
        _ => return None,
    };
    Some(notification(method, &text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw_value(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).expect("JSON")
    }

    fn params(era: Era, arguments: &str) -> String {
        let caller = Caller {
            meta: vec![("com.example/x".to_owned(), raw_value("[1.50]"))],
            info: Some(raw_value(r#"{"name":"c"}"#)),
            capabilities: Some(raw_value(r#"{"sampling":{ }}"#)),
            ..Caller::default()
        };
        let trace = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").expect("a context");
        let mut params = Params::default();
        params.push(Member::Name, r#""a\"b""#);
        params.push(Member::Arguments, arguments.to_owned());
        params.push(Member::RequestState, r#""s""#);
        CallParams { params: &params, caller: &caller, trace: &trace, progress_token: Some("p") }.build(era)
    }

    #[test]
    fn params_are_built_from_known_members_with_raw_values() {
        let expected = concat!(
            r#"{"name":"a\"b","arguments":{"n":9007199254740993},"requestState":"s","_meta":{"com.example/x":[1.50],"#,
            r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
            r#""io.modelcontextprotocol/clientCapabilities":{"sampling":{ }},"#,
            r#""io.modelcontextprotocol/clientInfo":{"name":"c"},"progressToken":"p","#,
            r#""traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}"#
        );
        assert_eq!(params(Era::Modern, r#"{"n":9007199254740993}"#), expected);
        let legacy = params(Era::Legacy, "{}");
        assert!(!legacy.contains("io.modelcontextprotocol") && !legacy.contains("requestState"), "{legacy}");
    }

    #[test]
    fn a_newline_inside_arguments_never_frames_a_second_message() {
        let smuggled = "{\n}\r\n{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"tools/call\"}";
        let message = request("1", "tools/call", &params(Era::Legacy, smuggled));
        assert!(memchr::memchr2(b'\n', b'\r', &message).is_none());
        let answer = respond(&raw_value("7"), Ok(b"{\n\"a\":1}\n{}"));
        assert!(memchr::memchr2(b'\n', b'\r', &answer).is_none());
    }

    #[test]
    fn progress_is_told_under_the_callers_token_only() {
        let theirs = raw_value("7");
        let news = |params: &str, ours: Option<&str>| {
            let ear = Ear { ours, theirs: Some(&theirs), logs_from: None };
            news_for_caller("notifications/progress", Some(&raw_value(params)), &ear)
        };
        assert_eq!(
            news(r#"{"progressToken":"p","progress":0.50}"#, Some("p")).as_deref(),
            Some(
                &br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":0.50}}"#
                    [..]
            )
        );
        assert_eq!(news(r#"{"progressToken":"q","progress":1}"#, Some("p")), None);
        assert_eq!(news(r#"{"progressToken":"p","progress":1}"#, None), None);
    }

    #[test]
    fn logs_are_told_from_the_wanted_severity_on() {
        let news = |logs_from: Option<&str>, level: &str| {
            let logs_from = logs_from.and_then(severity);
            let params = raw_value(&format!(r#"{{"level":"{level}"}}"#));
            let ear = Ear { ours: None, theirs: None, logs_from };
            news_for_caller("notifications/message", Some(&params), &ear).is_some()
        };
        assert!(!news(None, "emergency"));
        assert!(news(Some(r#""warning""#), "warning") && news(Some(r#""warning""#), "alert"));
        assert!(!news(Some(r#""warning""#), "notice"));
        assert!(news(Some(r#""warning""#), "of another world"));
        let ear = Ear { ours: None, theirs: None, logs_from: Some(0) };
        assert_eq!(news_for_caller("notifications/tools/list_changed", Some(&raw_value("{}")), &ear), None);
    }
}
