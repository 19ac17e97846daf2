//! Where the arguments of a platform tool go: path, query, headers, body. What does not fit is told to the model.

use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rollcall_shared::mcp::raw;
use rollcall_shared::model::HttpCall;
use rollcall_shared::model::http_call::{BodyOf, Part, Style, parts};
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
    let style = |argument: &str| call.styles.get(argument).copied().unwrap_or_default();
    let mut query = Form::default();
    for (parameter, argument) in &call.query {
        if let Some(value) = get(argument) {
            query.add(parameter, value, style(argument));
        }
    }
    if call.rest_is_query() {
        rest().for_each(|(name, value)| query.add(name, value, style(name)));
    }
    if !query.0.is_empty() {
        url.push(if url.contains('?') { '&' } else { '?' });
        url.push_str(&query.0);
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
        BodyOf::Argument(name) if call.is_form() => get(name).map(|value| {
            let members = raw::members(value.get()).unwrap_or_default();
            form(members.iter().map(|(name, value)| (name.as_ref(), *value, Style::Repeat)))
        }),
        BodyOf::Argument(name) => get(name).map(|value| Bytes::copy_from_slice(value.get().as_bytes())),
        BodyOf::Rest if call.rest_is_query() => None,
        BodyOf::Rest if call.is_form() => Some(form(rest().map(|(name, value)| (name.as_ref(), *value, style(name))))),
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
                let text = get(name).map(|value| joined(&texts(value), ",")).filter(|text| !text.is_empty());
                url.push_str(&text.ok_or_else(|| format!("`{name}` is missing"))?);
            }
        }
    }
    let path = url.split('?').next().unwrap_or_default();
    if path.split('/').skip(3).any(|segment| segment == "." || segment == "..") {
        return Err("an argument must not be `.` or `..` in a path".to_owned());
    }
    Ok(url)
}

/// `name=value` pairs, of a query or of a body.
#[derive(Default)]
struct Form(String);

impl Form {
    /// Writes a value under a name; `null` is left out.
    fn add(&mut self, name: &str, value: &RawValue, style: Style) {
        if value.get() == "null" {
            return;
        }
        let members = raw::members(value.get()).ok();
        match (style, members) {
            (Style::Json, _) => self.pair(name, &escaped(value.get())),
            (Style::Spread, Some(members)) => {
                members.iter().for_each(|(key, value)| self.add(key, value, Style::Repeat));
            }
            (Style::Deep, Some(members)) => {
                members.iter().for_each(|(key, value)| self.add(&format!("{name}[{key}]"), value, Style::Deep));
            }
            (Style::Comma | Style::Space | Style::Pipe, members) => {
                let texts = match members {
                    Some(members) => members.iter().flat_map(|(key, value)| [key.to_string(), text(value)]).collect(),
                    None => texts(value),
                };
                let separator = match style {
                    Style::Space => "%20",
                    Style::Pipe => "%7C",
                    Style::Comma | Style::Repeat | Style::Spread | Style::Deep | Style::Json => ",",
                };
                self.pair(name, &joined(&texts, separator));
            }
            (Style::Repeat | Style::Spread | Style::Deep, _) => {
                texts(value).iter().for_each(|text| self.pair(name, &escaped(text)));
            }
        }
    }

    /// `value` is escaped already.
    fn pair(&mut self, name: &str, value: &str) {
        if !self.0.is_empty() {
            self.0.push('&');
        }
        self.0.push_str(&escaped(name));
        self.0.push('=');
        self.0.push_str(value);
    }
}

fn form<'a>(pairs: impl Iterator<Item = (&'a str, &'a RawValue, Style)>) -> Bytes {
    let mut form = Form::default();
    pairs.for_each(|(name, value, style)| form.add(name, value, style));
    Bytes::from(form.0)
}

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// The separator says where a value ends, so that it stays as it is while the values are escaped.
fn joined(texts: &[String], separator: &str) -> String {
    texts.iter().map(|text| escaped(text)).collect::<Vec<_>>().join(separator)
}

/// A value as texts: an array is one for each element, an object its JSON.
fn texts(value: &RawValue) -> Vec<String> {
    match raw::elements(value.get()) {
        Ok(elements) => elements.into_iter().map(text).collect(),
        Err(_) => vec![text(value)],
    }
}

fn text(value: &RawValue) -> String {
    raw::string(value).unwrap_or_else(|| value.get().to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn call(method: &str, url: &str) -> HttpCall {
        HttpCall { method: method.to_owned(), url: url.to_owned(), ..HttpCall::default() }
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
    fn values_are_written_in_their_style() {
        let value = |style: Style| {
            let mut get = call("GET", "https://h/{l}");
            get.query = ["s", "l", "o"].map(|name| (name.to_owned(), name.to_owned())).into();
            get.styles = ["s", "l", "o"].map(|name| (name.to_owned(), style)).into();
            let arguments = r#"{"s":"a b","l":["x,y",2],"o":{"k":"v&w","n":[1,{"d":true}]}}"#;
            let url = place(&get, arguments).unwrap_or_else(|e| panic!("{e}")).url;
            url.strip_prefix("https://h/x%2Cy,2?").unwrap_or(&url).to_owned()
        };
        // RFC 6570, section 3.2, and the table "Style Examples" of OpenAPI 3.1.1, section 4.8.12.
        let list = "l=x%2Cy&l=2";
        let object = "o=%7B%22k%22%3A%22v%26w%22%2C%22n%22%3A%5B1%2C%7B%22d%22%3Atrue%7D%5D%7D";
        assert_eq!(value(Style::Repeat), format!("{list}&{object}&s=a%20b"));
        assert_eq!(value(Style::Spread), format!("{list}&k=v%26w&n=1&n=%7B%22d%22%3Atrue%7D&s=a%20b"));
        let members = |of: &str| format!("k{of}v%26w{of}n{of}%5B1%2C%7B%22d%22%3Atrue%7D%5D");
        assert_eq!(value(Style::Comma), format!("l=x%2Cy,2&o={}&s=a%20b", members(",")));
        assert_eq!(value(Style::Space), format!("l=x%2Cy%202&o={}&s=a%20b", members("%20")));
        assert_eq!(value(Style::Pipe), format!("l=x%2Cy%7C2&o={}&s=a%20b", members("%7C")));
        let deep = "o%5Bk%5D=v%26w&o%5Bn%5D=1&o%5Bn%5D=%7B%22d%22%3Atrue%7D";
        assert_eq!(value(Style::Deep), format!("{list}&{deep}&s=a%20b"));
        assert_eq!(value(Style::Json), format!("l=%5B%22x%2Cy%22%2C2%5D&{object}&s=%22a%20b%22"));
    }

    #[test]
    fn a_body_may_be_a_form() {
        let mut post = call("POST", "https://h/{id}");
        post.content_type = Some("application/x-www-form-urlencoded".to_owned());
        post.styles = [("o".to_owned(), Style::Deep)].into();
        let arguments = r#"{"id":1,"a":["x","y z"],"n":null,"o":{"k":"="}}"#;
        let body = place(&post, arguments).map(|placed| placed.body);
        assert_eq!(body, Ok(Some(Bytes::from_static(b"a=x&a=y%20z&o%5Bk%5D=%3D"))));
        post.body = BodyOf::Argument("f".to_owned());
        let body = place(&post, r#"{"id":1,"f":{"a":1,"b":"&"}}"#).map(|placed| placed.body);
        assert_eq!(body, Ok(Some(Bytes::from_static(b"a=1&b=%26"))));
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
