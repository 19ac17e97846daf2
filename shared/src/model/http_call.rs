//! The HTTP call behind a platform tool: where each argument goes, and what its answer says.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::server::{parse_url, read_headers};
use crate::document::{Kind, Node, Problems};
use crate::limits;
use crate::mcp::raw;
use crate::secret::Secret;

/// What the body of the request is made of.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BodyOf {
    /// A JSON object of all arguments that go nowhere else. In a GET or DELETE they go into the query.
    #[default]
    Rest,
    /// There is none; arguments that go nowhere else are left out.
    None,
    /// The value of this argument.
    Argument(String),
}

/// How a value is written into the query, or into a body that is a form. The names of OpenAPI 3 (style, explode) behind each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Style {
    /// `a=1&a=2` for a list, its JSON for an object.
    #[default]
    Repeat,
    /// The same for a list, `k=v` for each member of an object (form, explode).
    Spread,
    /// `a=1,2`, and `a=k,v` for an object (form).
    Comma,
    /// `a=1%202` (spaceDelimited).
    Space,
    /// `a=1%7C2` (pipeDelimited).
    Pipe,
    /// `a[k]=v` (deepObject).
    Deep,
    /// `a=` and the value's JSON.
    Json,
}

impl Style {
    const WORDS: [(&str, Self); 7] = [
        ("repeat", Self::Repeat),
        ("spread", Self::Spread),
        ("comma", Self::Comma),
        ("space", Self::Space),
        ("pipe", Self::Pipe),
        ("deep", Self::Deep),
        ("json", Self::Json),
    ];
}

/// The media type of a body that is a form (WHATWG URL, section 5).
pub const FORM: &str = "application/x-www-form-urlencoded";

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HttpCall {
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
    pub method: String,
    /// May hold `{argument}` in its path.
    pub url: String,
    /// Values that the operator wrote, secrets among them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Secret>,
    /// Query parameters and the arguments that they take.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub query: BTreeMap<String, String>,
    /// Headers and the arguments that they take.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub header_arguments: BTreeMap<String, String>,
    /// How arguments are written where it is not the usual way.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub styles: BTreeMap<String, Style>,
    #[serde(default)]
    pub body: BodyOf,
    /// Of the body: `application/json` where absent, another type of JSON, or [`FORM`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// A JSON Pointer (RFC 6901) to the part of the answer that is the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// What the model is told at a status, instead of the body.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<u16, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// A URL as its text and its placeholders, in order.
pub enum Part<'u> {
    Text(&'u str),
    Argument(&'u str),
}

/// The parts of a template.
pub fn parts(url: &str) -> Vec<Part<'_>> {
    let mut out = Vec::new();
    let mut rest = url;
    while let Some((before, inside)) = rest.split_once('{') {
        out.push(Part::Text(before));
        let (name, after) = inside.split_once('}').unwrap_or((inside, ""));
        out.push(Part::Argument(name));
        rest = after;
    }
    out.push(Part::Text(rest));
    out
}

/// An address whose scheme, host and query are fixed; only segments of the path may be arguments.
pub fn parse_template(text: &str) -> Result<String, String> {
    let mut filled = String::new();
    if text.matches('{').count() != text.matches('}').count() {
        return Err("`{` and `}` must come in pairs".to_owned());
    }
    for part in parts(text) {
        match part {
            Part::Text(text) if text.contains('}') => return Err("`}` stands before `{`".to_owned()),
            Part::Text(text) => filled.push_str(text),
            Part::Argument(name) if name.is_empty() || name.contains(['/', '{', '?', '#']) => {
                return Err("`{` must be followed by the name of an argument and `}`".to_owned());
            }
            Part::Argument(_) => {
                let path = filled.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
                if path.is_none_or(|(_, path)| path.contains('?')) {
                    return Err("only the path may hold arguments; the query has a key of its own".to_owned());
                }
                filled.push('x');
            }
        }
    }
    parse_url(&filled)?;
    Ok(text.to_owned())
}

impl HttpCall {
    pub(super) fn read(node: &Node, path: &str, problems: &Problems) -> Option<Self> {
        const METHODS: [(&str, &str); 5] =
            [("GET", "GET"), ("POST", "POST"), ("PUT", "PUT"), ("PATCH", "PATCH"), ("DELETE", "DELETE")];
        let mut fields = node.fields(path, problems)?;
        let method = fields.optional("method").map_or(Some("POST"), |(n, p)| n.choice(&p, problems, &METHODS));
        let url = fields.required("url").and_then(|(n, p)| n.parsed(&p, problems, parse_template));
        let headers = fields.optional("headers").map(|(n, p)| read_headers(n, &p, problems)).unwrap_or_default();
        let query = fields.optional("query").map(|(n, p)| read_places(n, &p, problems)).unwrap_or_default();
        let header_arguments = fields.optional("header_arguments").map(|(n, p)| {
            let named = read_headers(n, &p, problems).into_keys();
            let places = read_places(n, &p, problems).into_iter().map(|(name, of)| (name.to_ascii_lowercase(), of));
            let places: BTreeMap<String, String> = places.collect();
            named.filter_map(|name| places.get(&name).cloned().map(|of| (name, of))).collect()
        });
        let body = fields.optional("body").and_then(|(n, p)| {
            let text = n.text(&p, problems)?;
            let argument = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
            match (text, argument) {
                ("rest", _) => Some(BodyOf::Rest),
                ("none", _) => Some(BodyOf::None),
                (_, Some(name)) if !name.is_empty() => Some(BodyOf::Argument(name.to_owned())),
                _ => {
                    problems.add(&n.place, &p, "expected rest, none, or \"{argument}\"");
                    None
                }
            }
        });
        let styles = fields.optional("styles").map(|(n, p)| {
            let entries = n.entries(&p, problems).iter();
            let read = |(name, value): &(String, Node)| {
                Some((name.clone(), value.choice(&format!("{p}.{name}"), problems, &Style::WORDS)?))
            };
            entries.filter_map(read).collect()
        });
        let content_type = fields.optional("content_type").and_then(|(n, p)| n.parsed(&p, problems, parse_media_type));
        let result = fields.optional("result").and_then(|(n, p)| n.parsed(&p, problems, parse_pointer));
        let errors = fields.optional("errors").map(|(n, p)| read_errors(n, &p, problems)).unwrap_or_default();
        let timeout_ms = fields
            .optional("timeout")
            .and_then(|(n, p)| n.duration(&p, problems))
            .map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
        fields.finish();
        Some(Self {
            method: method?.to_owned(),
            url: url?,
            headers,
            query,
            header_arguments: header_arguments.unwrap_or_default(),
            styles: styles.unwrap_or_default(),
            body: body.unwrap_or_default(),
            content_type,
            result,
            errors,
            timeout_ms,
        })
    }

    /// Whether the body is a form instead of JSON.
    pub fn is_form(&self) -> bool {
        self.content_type.as_deref().is_some_and(|text| text.to_ascii_lowercase().starts_with(FORM))
    }

    /// Whether arguments that go nowhere else go into the query.
    pub fn rest_is_query(&self) -> bool {
        self.body == BodyOf::Rest && matches!(self.method.as_str(), "GET" | "DELETE")
    }

    /// Arguments that have a place of their own, by what they are named.
    pub fn placed(&self) -> BTreeSet<&str> {
        let in_path = parts(&self.url).into_iter().filter_map(|part| match part {
            Part::Argument(name) => Some(name),
            Part::Text(_) => None,
        });
        let elsewhere = self.query.values().chain(self.header_arguments.values()).map(String::as_str);
        let body = match &self.body {
            BodyOf::Argument(name) => Some(name.as_str()),
            BodyOf::Rest | BodyOf::None => None,
        };
        in_path.chain(elsewhere).chain(body).collect()
    }

    /// What of the call does not fit the schema of the arguments: names it does not know, and parts of the path that a
    /// caller may leave out.
    pub fn unplaced(&self, schema: &str) -> Vec<String> {
        let members = raw::members(schema).unwrap_or_default();
        let get = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, value)| value.get());
        let known = get("properties").and_then(|p| raw::members(p).ok()).unwrap_or_default();
        let required: Vec<String> = get("required").and_then(|r| serde_json::from_str(r).ok()).unwrap_or_default();
        let mut out = Vec::new();
        for name in self.placed().into_iter().chain(self.styles.keys().map(String::as_str)) {
            if !known.iter().any(|(key, _)| key == name) {
                out.push(format!("`{{{name}}}` is no property of input_schema"));
            }
        }
        for part in parts(&self.url) {
            if let Part::Argument(name) = part
                && !required.iter().any(|required| required == name)
            {
                out.push(format!("`{{{name}}}` is part of the path, so input_schema must require it"));
            }
        }
        out
    }
}

/// `{parameter: argument}`, or a list of arguments that are called as their parameters.
fn read_places(node: &Node, path: &str, problems: &Problems) -> BTreeMap<String, String> {
    if matches!(node.kind, Kind::List(_)) {
        let names = node.list(path, problems, |n, p| n.text(p, problems).map(str::to_owned));
        return names.into_iter().map(|name| (name.clone(), name)).collect();
    }
    let entries = node.entries(path, problems).iter();
    entries
        .filter_map(|(name, value)| Some((name.clone(), value.text(&format!("{path}.{name}"), problems)?.to_owned())))
        .collect()
}

/// A media type that a body of arguments can have.
pub fn parse_media_type(text: &str) -> Result<String, String> {
    let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = essence == "application/json" || essence.ends_with("+json");
    if (is_json || essence == FORM) && http::HeaderValue::from_str(text).is_ok() {
        Ok(text.to_owned())
    } else {
        Err(format!("expected a type of JSON, or {FORM}"))
    }
}

fn parse_pointer(text: &str) -> Result<String, String> {
    if text.is_empty() || text.starts_with('/') {
        Ok(text.to_owned())
    } else {
        Err("a JSON Pointer begins with `/`".to_owned())
    }
}

fn read_errors(node: &Node, path: &str, problems: &Problems) -> BTreeMap<u16, String> {
    let mut out = BTreeMap::new();
    for (status, value) in node.entries(path, problems) {
        let at = format!("{path}.{status}");
        let text = value.text(&at, problems);
        match status.parse::<u16>() {
            Ok(status) if (400..600).contains(&status) => {
                out.extend(text.map(|text| (status, text.chars().take(limits::DESCRIPTION_CHARS).collect())));
            }
            _ => problems.add(&value.place, &at, "expected a status from 400 to 599"),
        }
    }
    out
}
