//! Where the arguments of a platform tool go: path, query, headers, body. What does not fit is told to the model.

use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rollcall_shared::mcp::raw;
use rollcall_shared::model::HttpCall;
use rollcall_shared::model::http_call::{BodyOf, Part, parts};
use serde_json::value::RawValue;

/// Everything but the unreserved characters (RFC 3986, section 2.3).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A request as far as its arguments make it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) url: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Option<Bytes>,
}

type Members<'a> = Vec<(std::borrow::Cow<'a, str>, &'a RawValue)>;

/// Puts the arguments, a JSON object, where the call wants them. Values that go into the body stay the bytes that came.
pub(super) fn place(call: &HttpCall, arguments: &str) -> Result<Placed, String> {
    let members: Members<'_> = raw::members(arguments).map_err(|e| format!("arguments: {e}"))?;
    let get = |name: &str| {
        let found = members.iter().find(|(key, _)| key == name).map(|(_, value)| *value);
        found.filter(|value| value.get() != "null")
    };
    let mut url = path(call, get)?;
    let placed = call.placed();
    let rest = || members.iter().filter(|(name, _)| !placed.contains(name.as_ref()));
    let mut pairs: Vec<(&str, String)> = Vec::new();
    for (parameter, argument) in &call.query {
        pairs.extend(get(argument).into_iter().flat_map(texts).map(|text| (parameter.as_str(), text)));
    }
    if call.rest_is_query() {
        for (name, value) in rest().filter(|(_, value)| value.get() != "null") {
            pairs.extend(texts(value).into_iter().map(|text| (name.as_ref(), text)));
        }
    }
    for (name, text) in pairs {
        url.push(if url.contains('?') { '&' } else { '?' });
        url.push_str(&format!("{}={}", utf8_percent_encode(name, ESCAPED), utf8_percent_encode(&text, ESCAPED)));
    }
    let mut headers = Vec::new();
    for (header, argument) in &call.header_arguments {
        let Some(value) = get(argument) else { continue };
        let text = texts(value).join(", ");
        if !text.bytes().all(|b| b == b'\t' || (0x20..0x7f).contains(&b)) {
            return Err(format!("`{argument}` goes into a header: plain ASCII on one line"));
        }
        headers.push((header.clone(), text));
    }
    let body = match &call.body {
        BodyOf::None => None,
        BodyOf::Argument(name) => get(name).map(|value| Bytes::copy_from_slice(value.get().as_bytes())),
        BodyOf::Rest if call.rest_is_query() => None,
        BodyOf::Rest => {
            let members: Vec<String> =
                rest().map(|(name, value)| format!("{}:{}", raw::quote(name), value.get())).collect();
            Some(Bytes::from(format!("{{{}}}", members.join(","))))
        }
    };
    Ok(Placed { url, headers, body })
}

/// The address with its arguments; none may lead to another path than the one that was written.
fn path<'a>(call: &HttpCall, get: impl Fn(&str) -> Option<&'a RawValue>) -> Result<String, String> {
    let mut url = String::new();
    for part in parts(&call.url) {
        match part {
            Part::Text(text) => url.push_str(text),
            Part::Argument(name) => {
                let text = get(name).map(|value| texts(value).join(",")).filter(|text| !text.is_empty());
                let text = text.ok_or_else(|| format!("`{name}` is missing"))?;
                url.push_str(&utf8_percent_encode(&text, ESCAPED).to_string());
            }
        }
    }
    let path = url.split('?').next().unwrap_or_default();
    if path.split('/').skip(3).any(|segment| segment == "." || segment == "..") {
        return Err("an argument must not be `.` or `..` in a path".to_owned());
    }
    Ok(url)
}

/// A value as texts: an array is one for each element, an object its JSON.
fn texts(value: &RawValue) -> Vec<String> {
    let one = |value: &RawValue| raw::string(value).unwrap_or_else(|| value.get().to_owned());
    match raw::elements(value.get()) {
        Ok(elements) => elements.into_iter().map(one).collect(),
        Err(_) => vec![one(value)],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn call(method: &str, url: &str) -> HttpCall {
        HttpCall {
            method: method.to_owned(),
            url: url.to_owned(),
            headers: BTreeMap::new(),
            query: BTreeMap::new(),
            header_arguments: BTreeMap::new(),
            body: BodyOf::Rest,
            result: None,
            errors: BTreeMap::new(),
            timeout_ms: None,
        }
    }

    #[test]
    fn arguments_go_where_the_call_wants_them() {
        let mut post = call("POST", "https://h/users/{id}/x?v=1");
        post.query = BTreeMap::from([("page".to_owned(), "p".to_owned())]);
        post.header_arguments = BTreeMap::from([("x-trace".to_owned(), "t".to_owned())]);
        let arguments = r#"{"id":"a/b ü","p":2,"t":"one","n":9007199254740993,"o":{"z":1,"a":[]},"m":null}"#;
        let placed = place(&post, arguments).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(placed.url, "https://h/users/a%2Fb%20%C3%BC/x?v=1&page=2");
        assert_eq!(placed.headers, [("x-trace".to_owned(), "one".to_owned())]);
        assert_eq!(placed.body.as_deref(), Some(&br#"{"n":9007199254740993,"o":{"z":1,"a":[]},"m":null}"#[..]));
        let get = call("GET", "https://h/search");
        let placed = place(&get, r#"{"q":"a&b=c","tags":["x","y"],"deep":{"k":1},"none":null}"#)
            .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(placed.url, "https://h/search?q=a%26b%3Dc&tags=x&tags=y&deep=%7B%22k%22%3A1%7D");
        assert_eq!(placed.body, None);
        let mut whole = call("PUT", "https://h/x");
        whole.body = BodyOf::Argument("payload".to_owned());
        assert_eq!(place(&whole, r#"{"payload":[1, 2]}"#).map(|p| p.body), Ok(Some(Bytes::from_static(b"[1, 2]"))));
    }

    #[test]
    fn no_argument_leads_to_another_path() {
        let get = call("GET", "https://h/a/{id}/b");
        for id in ["..", ".", "", "%2e%2e", "../../admin", "x?y=1", "x#y", "@evil.example"] {
            let placed = place(&get, &format!(r#"{{"id":"{id}"}}"#));
            if let Ok(placed) = placed {
                let url = url::Url::parse(&placed.url).unwrap_or_else(|e| panic!("{e}"));
                assert_eq!((url.host_str(), url.query(), url.fragment()), (Some("h"), None, None), "{id}");
                let segments: Vec<_> = url.path_segments().map(Iterator::collect).unwrap_or_default();
                assert!(
                    segments.len() == 3 && segments.first() == Some(&"a") && segments.last() == Some(&"b"),
                    "{id}: {url}"
                );
            } else {
                assert!([".", "..", ""].contains(&id), "{id}: {placed:?}");
            }
        }
        let mut header = call("GET", "https://h/");
        header.header_arguments = BTreeMap::from([("x-y".to_owned(), "v".to_owned())]);
        assert!(place(&header, r#"{"v":"a\r\nHost: evil"}"#).is_err());
    }
}
