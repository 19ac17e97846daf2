//! Messages to upstreams, built from known parts; and what of theirs a caller gets to hear.

use bytes::Bytes;
use rollcall_shared::mcp::era::{Era, META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL, META_VERSION, MODERN};
use rollcall_shared::mcp::raw;
use rollcall_shared::wire::{Caller, TraceContext};
use serde_json::value::RawValue;

/// Who we say we are where the caller did not say.
pub(crate) const CLIENT_INFO: &str = concat!(r#"{"name":"rollcall","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

/// The parts of `params` of a `tools/call`.
pub(crate) struct CallParams<'a> {
    /// The real name.
    pub(crate) tool: &'a str,
    pub(crate) arguments: Option<&'a [u8]>,
    pub(crate) caller: &'a Caller,
    pub(crate) trace: &'a TraceContext,
    pub(crate) progress_token: Option<&'a str>,
}

impl CallParams<'_> {
    /// The object of params for an upstream of `era`.
    pub(crate) fn build(&self, era: Era) -> String {
        let arguments = self.arguments.map(String::from_utf8_lossy);
        let mut out = String::with_capacity(512 + arguments.as_ref().map_or(0, |a| a.len()));
        out.push_str(r#"{"name":"#);
        out.push_str(&raw::quote(self.tool));
        if let Some(arguments) = arguments {
            out.push_str(r#","arguments":"#);
            out.push_str(&arguments);
        }
        out.push_str(r#","_meta":{"#);
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
            modern_meta(self.caller.info.as_deref(), &mut member);
            if let Some(level) = &self.caller.log_level {
                member(META_LOG_LEVEL, level.get());
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

fn modern_meta(info: Option<&RawValue>, member: &mut impl FnMut(&str, &str)) {
    member(META_VERSION, &raw::quote(MODERN));
    // Input requests of an upstream cannot be carried to a caller yet, so none is invited.
    member(META_CAPABILITIES, "{}");
    member(META_CLIENT, info.map_or(CLIENT_INFO, RawValue::get));
}

/// Params of a request of our own, such as a listing: `members` is the inside of the object, or nothing.
pub(crate) fn own_params(era: Era, members: &str) -> String {
    match era {
        Era::Legacy => format!("{{{members}}}"),
        Era::Modern => {
            let mut meta = String::new();
            modern_meta(None, &mut |key, value| {
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

/// The answer to a request that an upstream made of us: `ping` is answered, nothing else was offered.
pub(crate) fn answer_upstream(id: &RawValue, method: &str) -> Bytes {
    let text = if method == "ping" {
        format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, id.get())
    } else {
        rollcall_shared::mcp::jsonrpc::error(
            Some(id.get()),
            rollcall_shared::mcp::jsonrpc::code::METHOD_NOT_FOUND,
            "not offered by this client",
            None,
        )
    };
    raw::one_line(text.as_bytes()).into_owned().into()
}

/// The notification as its caller may read it: progress under the caller's own token, logs where they are wanted.
pub(crate) fn news_for_caller(
    method: &str,
    params: Option<&RawValue>,
    ours: Option<&str>,
    theirs: Option<&RawValue>,
    wants_logs: bool,
) -> Option<Bytes> {
    let params = params?.get();
    let text = match method {
        "notifications/progress" => {
            let (ours, theirs) = (ours?, theirs?);
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
        "notifications/message" if wants_logs => params.to_owned(),
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
            ..Caller::default()
        };
        let trace = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").expect("a context");
        let call = CallParams {
            tool: "a\"b",
            arguments: Some(arguments.as_bytes()),
            caller: &caller,
            trace: &trace,
            progress_token: Some("p"),
        };
        call.build(era)
    }

    #[test]
    fn params_are_built_from_known_parts_and_raw_arguments() {
        let expected = concat!(
            r#"{"name":"a\"b","arguments":{"n":9007199254740993},"_meta":{"com.example/x":[1.50],"#,
            r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"#,
            r#""io.modelcontextprotocol/clientInfo":{"name":"c"},"progressToken":"p","#,
            r#""traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}"#
        );
        assert_eq!(params(Era::Modern, r#"{"n":9007199254740993}"#), expected);
        assert!(!params(Era::Legacy, "{}").contains("io.modelcontextprotocol"));
    }

    #[test]
    fn a_newline_inside_arguments_never_frames_a_second_message() {
        let smuggled = "{\n}\r\n{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"tools/call\"}";
        let message = request("1", "tools/call", &params(Era::Legacy, smuggled));
        assert!(memchr::memchr2(b'\n', b'\r', &message).is_none());
    }

    #[test]
    fn progress_is_told_under_the_callers_token_only() {
        let theirs = raw_value("7");
        let news = |params: &str, ours: Option<&str>| {
            news_for_caller("notifications/progress", Some(&raw_value(params)), ours, Some(&theirs), false)
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
        let log = raw_value(r#"{"level":"info"}"#);
        assert_eq!(news_for_caller("notifications/message", Some(&log), None, None, false), None);
        assert!(news_for_caller("notifications/message", Some(&log), None, None, true).is_some());
        assert_eq!(news_for_caller("notifications/tools/list_changed", Some(&log), None, None, true), None);
    }
}
