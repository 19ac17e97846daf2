//! Parameters of an operation: which argument each is, and where and how it is written.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::document::{Document, Found, list, map};
use super::options::Api;
use super::schema::{Schemas, types};
use super::{Remarks, document};
use crate::model::http_call::Style;
use crate::model::server::OURS;

/// Where a parameter goes; in this order, arguments of one name keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum In {
    Path,
    Query,
    Header,
}

/// One parameter that becomes an argument.
pub(super) struct Parameter<'d> {
    pub(super) name: &'d str,
    pub(super) place: In,
    pub(super) argument: String,
    pub(super) required: bool,
    pub(super) style: Style,
    pub(super) schema: Option<&'d Value>,
    pub(super) description: Option<&'d str>,
    pub(super) deprecated: bool,
}

impl Parameter<'_> {
    /// As a property of the arguments.
    pub(super) fn property<'d>(&self, schemas: &mut Schemas<'d>, own: Option<&'d Value>) -> Result<Value, String> {
        let mut property = own.map_or_else(|| Ok(json!({})), |schema| schemas.convert(schema))?;
        if property == Value::Bool(true) {
            property = json!({});
        }
        if let Some(members) = property.as_object_mut() {
            members.extend(self.description.map(|text| ("description".to_owned(), json!(text))));
            if self.deprecated {
                members.insert("deprecated".to_owned(), json!(true));
            }
        }
        Ok(property)
    }
}

/// The parameters of an operation in the order of their places. What cannot be given and is not required is left out.
pub(super) fn parameters<'d>(
    document: &Document<'d>,
    found: &Found<'d>,
    api: &Api,
    remarks: &mut Remarks,
) -> Result<Vec<Parameter<'d>>, String> {
    let mut written: BTreeMap<(&str, &str), &Value> = BTreeMap::new();
    for value in list(found.item, "parameters").chain(list(found.value, "parameters")) {
        let value = document.resolve(value)?;
        let text = |key: &str| value.get(key).and_then(Value::as_str).ok_or(format!("a parameter without `{key}`"));
        written.insert((text("in")?, text("name")?), value);
    }
    let mut out = Vec::new();
    for ((place, name), value) in written {
        let required = place == "path" || value.get("required") == Some(&Value::Bool(true));
        match parameter(document, place, name, value, api) {
            Ok(Some(parameter)) => out.push(Parameter { required, ..parameter }),
            Ok(None) => {}
            Err(reason) if required => return Err(format!("{place} parameter `{name}`: {reason}")),
            Err(reason) => remarks.add(format!("an optional {place} parameter is left out: {reason}")),
        }
    }
    out.sort_by(|a, b| (a.place, a.name).cmp(&(b.place, b.name)));
    let mut taken = BTreeSet::new();
    for parameter in &mut out {
        let suffix = match parameter.place {
            In::Path => "path",
            In::Query => "query",
            In::Header => "header",
        };
        parameter.argument = free(argument(parameter.name), suffix, &taken);
        taken.insert(parameter.argument.clone());
    }
    Ok(out)
}

/// A name of an argument that is not taken yet.
pub(super) fn free(wanted: String, suffix: &str, taken: &BTreeSet<String>) -> String {
    let mut name = wanted.clone();
    let mut number = 2;
    while taken.contains(&name) {
        name = if number == 2 { format!("{wanted}_{suffix}") } else { format!("{wanted}_{suffix}{number}") };
        number += 1;
    }
    name
}

/// What model APIs take as the name of an argument: `[a-zA-Z0-9_.-]{1,64}`.
pub(super) fn argument(name: &str) -> String {
    let grammar = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let text: String = name.chars().map(|c| if grammar(c) { c } else { '_' }).take(56).collect();
    if text.is_empty() { "_".to_owned() } else { text }
}

/// Nothing where the description says that it is to be ignored, or where the operator gives it.
fn parameter<'d>(
    document: &Document<'d>,
    place: &str,
    name: &'d str,
    value: &'d Value,
    api: &Api,
) -> Result<Option<Parameter<'d>>, String> {
    let style = value.get("style").and_then(Value::as_str);
    let explode = value.get("explode").and_then(Value::as_bool);
    let content = map(value, "content").next();
    let schema = value.get("schema").or_else(|| content.and_then(|(_, media)| media.get("schema")));
    let types = schema.map(|schema| types(document, schema)).unwrap_or_default();
    let (place, style) = match place {
        "path" => {
            simple(style, content.is_some(), &types)?;
            (In::Path, Style::Repeat)
        }
        "header" => {
            let lower = name.to_ascii_lowercase();
            // Section 4.8.12.1 of 3.1.1 says so of the first three.
            let ignored = ["accept", "content-type", "authorization"].contains(&lower.as_str());
            if ignored || api.headers.contains_key(&lower) {
                return Ok(None);
            }
            if OURS.contains(&lower.as_str()) || http::HeaderName::from_bytes(name.as_bytes()).is_err() {
                return Err("no caller may set this header".to_owned());
            }
            simple(style, content.is_some(), &types)?;
            (In::Header, Style::Repeat)
        }
        "query" => (In::Query, in_query(style, explode, content.map(|(media, _)| media.as_str()), &types)?),
        "cookie" => return Err("cookies are not sent".to_owned()),
        other => return Err(format!("`in` is {other:?}")),
    };
    let description = value.get("description").and_then(Value::as_str);
    let deprecated = value.get("deprecated") == Some(&Value::Bool(true));
    let argument = String::new(); // once all are known
    Ok(Some(Parameter { name, place, argument, required: false, style, schema, description, deprecated }))
}

/// Path and header have one style that is supported.
fn simple(style: Option<&str>, is_content: bool, types: &[&str]) -> Result<(), String> {
    match style {
        None | Some("simple") if is_content => Err("`content` is supported in the query alone".to_owned()),
        None | Some("simple") if types.contains(&"object") => {
            Err("an object is supported in the query alone".to_owned())
        }
        None | Some("simple") => Ok(()),
        Some(style) => Err(format!("style {style} is not supported")),
    }
}

fn in_query(style: Option<&str>, explode: Option<bool>, media: Option<&str>, types: &[&str]) -> Result<Style, String> {
    if let Some(media) = media {
        return match document::is_json(media) {
            true => Ok(Style::Json),
            false => Err(format!("`content` of {media} is not supported")),
        };
    }
    // Where a value is surely no object, the usual way does the same, and need not be written down.
    let spread = if types.is_empty() || types.contains(&"object") { Style::Spread } else { Style::Repeat };
    match (style.unwrap_or("form"), explode) {
        ("form", None | Some(true)) | ("spaceDelimited" | "pipeDelimited", Some(true)) => Ok(spread),
        ("form", Some(false)) => Ok(Style::Comma),
        ("spaceDelimited", _) => Ok(Style::Space),
        ("pipeDelimited", _) => Ok(Style::Pipe),
        ("deepObject", _) => Ok(Style::Deep),
        (other, _) => Err(format!("style {other} is not supported")),
    }
}
