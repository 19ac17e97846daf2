//! One operation as one platform tool.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use url::Url;

use super::document::{Document, Found, is_json, list, map};
use super::options::Api;
use super::parameters::{In, Parameter, argument, free, parameters};
use super::schema::Schemas;
use super::{Remarks, security};
use crate::ids::PlatformName;
use crate::limits;
use crate::model::http_call::{BodyOf, FORM, Style, parse_template};
use crate::model::server::parse_url;
use crate::model::{HttpCall, PlatformTool};
use crate::schema::Schema;

/// The body of a request: its media type, and how the arguments make it.
struct Body<'d> {
    media: &'d str,
    schema: Option<&'d Value>,
    required: bool,
    /// The argument that is the whole body; none where its properties are arguments.
    argument: Option<String>,
    encoding: BTreeMap<&'d str, Style>,
}

pub(super) fn tool<'d>(
    document: &Document<'d>,
    found: &Found<'d>,
    name: PlatformName,
    api: &Api,
    remarks: &mut Remarks,
) -> Result<PlatformTool, String> {
    let parameters = parameters(document, found, api, remarks)?;
    let body = body(document, found, &parameters, remarks)?;
    let url = url(document, found, api, &parameters)?;
    let mut input_schema = input_schema(document, &parameters, body.as_ref(), true)?;
    if Schema::compile(&input_schema).is_err() {
        input_schema = self::input_schema(document, &parameters, body.as_ref(), false)?;
        Schema::compile(&input_schema).map_err(|error| format!("its schema is not valid: {error}"))?;
        remarks.add("patterns that need more than linear time are left out");
    }
    if input_schema.len() > limits::IMPORTED_SCHEMA_BYTES {
        return Err(format!("its schema is larger than {} bytes", limits::IMPORTED_SCHEMA_BYTES));
    }
    if let Some(missing) = security::missing(document, found, api) {
        remarks.add(missing);
    }
    let http = call(found, url, api, &parameters, body.as_ref());
    if let Some(problem) = http.unplaced(&input_schema).into_iter().next() {
        return Err(problem);
    }
    Ok(PlatformTool {
        name,
        api: Some(api.id.clone()),
        group: api.group.clone(),
        title: None,
        description: description(found),
        input_schema,
        read_only: found.method == "GET",
        requires: api.requires.clone(),
        http,
    })
}

/// Summary and description, or the route where there is neither.
fn description(found: &Found<'_>) -> String {
    let texts = [found.text("summary"), found.text("description")].into_iter().flatten().map(str::trim);
    let mut texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
    texts.dedup();
    let mut out = if texts.is_empty() { found.to_string() } else { texts.join("\n\n") };
    if found.value.get("deprecated") == Some(&Value::Bool(true)) {
        out.insert_str(0, "Deprecated. ");
    }
    out.chars().take(limits::DESCRIPTION_CHARS).collect()
}

/// The address with arguments in place of the path's parameters.
fn url<'d>(
    document: &Document<'d>,
    found: &Found<'d>,
    api: &Api,
    parameters: &[Parameter<'d>],
) -> Result<String, String> {
    let base = match &api.url {
        Some(url) => url.to_string(),
        None => server(document, found)?,
    };
    let mut path = found.path.to_owned();
    if path.contains(['?', '#']) {
        return Err("a path with a query or a fragment".to_owned());
    }
    let in_path = || parameters.iter().filter(|parameter| parameter.place == In::Path);
    for parameter in in_path() {
        path = path.replace(&format!("{{{}}}", parameter.name), &format!("{{\0{}}}", parameter.argument));
    }
    // What is left was not declared; a mark keeps one replacement from touching another's result.
    if path.split('{').skip(1).any(|part| !part.starts_with('\0')) {
        return Err("the path holds a parameter that is not declared".to_owned());
    }
    if let Some(unused) = in_path().find(|parameter| !path.contains(&format!("{{\0{}}}", parameter.argument))) {
        return Err(format!("the path parameter `{}` is not in the path", unused.name));
    }
    parse_template(&format!("{}{}", base.trim_end_matches('/'), path.replace('\0', "")))
}

/// The first server of the operation, else of its path, else of the description, with the defaults of its variables.
fn server(document: &Document<'_>, found: &Found<'_>) -> Result<String, String> {
    let servers = [found.value, found.item, document.root].into_iter();
    let server = servers.filter_map(|of| list(of, "servers").next()).next();
    let text = server.and_then(|server| server.get("url")).and_then(Value::as_str).unwrap_or("/");
    let mut out = text.to_owned();
    for (name, variable) in server.into_iter().flat_map(|server| map(server, "variables")) {
        let default = variable.get("default").and_then(Value::as_str);
        let default = default.ok_or_else(|| format!("the server variable `{name}` has no default"))?;
        out = out.replace(&format!("{{{name}}}"), default);
    }
    match Url::parse(&out) {
        Err(url::ParseError::RelativeUrlWithoutBase) => {
            Err(format!("the server {text:?} is no whole address; give `url`"))
        }
        _ => parse_url(&out).map(|_| out).map_err(|error| format!("the server {text:?}: {error}")),
    }
}

/// The body that an operation takes. One that cannot be made is an error where it is required.
fn body<'d>(
    document: &Document<'d>,
    found: &Found<'d>,
    parameters: &[Parameter<'d>],
    remarks: &mut Remarks,
) -> Result<Option<Body<'d>>, String> {
    let Some(value) = found.value.get("requestBody") else { return Ok(None) };
    let value = document.resolve(value)?;
    let required = value.get("required") == Some(&Value::Bool(true));
    let contents: Vec<(&String, &Value)> = map(value, "content").collect();
    let plain =
        |media: &str| media.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json");
    let chosen = contents
        .iter()
        .find(|(media, _)| plain(media))
        .or_else(|| contents.iter().find(|(media, _)| is_json(media)))
        .or_else(|| contents.iter().find(|(media, _)| media.to_ascii_lowercase().starts_with(FORM)));
    let Some((media, content)) = chosen else {
        let offered: Vec<&str> = contents.iter().map(|(media, _)| media.as_str()).collect();
        let reason = format!("a body of {} is not supported", offered.join(", "));
        if required {
            return Err(reason);
        }
        remarks.add(format!("an optional body is left out: {reason}"));
        return Ok(None);
    };
    let schema = content.get("schema");
    let encoding = map(content, "encoding").filter_map(|(name, encoding)| Some((name.as_str(), form_style(encoding)?)));
    let mut body = Body { media, schema, required, argument: None, encoding: encoding.collect() };
    let taken: BTreeSet<String> = parameters.iter().map(|parameter| parameter.argument.clone()).collect();
    if is_json(media) {
        body.encoding.clear();
    }
    // In a GET or DELETE, arguments without a place would go into the query.
    let is_query = matches!(found.method, "GET" | "DELETE");
    if is_query || !opens(document, &body, &taken) {
        body.argument = Some(free("body".to_owned(), "body", &taken));
    }
    Ok(Some(body))
}

/// How a property of a form is written, where its encoding says so.
fn form_style(encoding: &Value) -> Option<Style> {
    let explode = encoding.get("explode").and_then(Value::as_bool);
    match (encoding.get("style").and_then(Value::as_str), explode) {
        (Some("deepObject"), _) => Some(Style::Deep),
        (Some("spaceDelimited"), None | Some(false)) => Some(Style::Space),
        (Some("pipeDelimited"), None | Some(false)) => Some(Style::Pipe),
        (Some("form") | None, Some(false)) => Some(Style::Comma),
        (Some("form"), None | Some(true)) | (None, Some(true)) => Some(Style::Spread),
        _ => None,
    }
}

/// Whether the properties of a body can be arguments of their own: it is plainly an object, and no name is in the way. A
/// body that may be left out has no place to say so then, so that nothing in it may be required.
fn opens(document: &Document<'_>, body: &Body<'_>, taken: &BTreeSet<String>) -> bool {
    const PLAIN: [&str; 12] = [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "title",
        "description",
        "example",
        "examples",
        "deprecated",
        "externalDocs",
        "xml",
        "$comment",
    ];
    let Some(Ok(Value::Object(members))) = body.schema.map(|schema| document.resolve(schema)) else { return false };
    let properties = members.get("properties").and_then(Value::as_object);
    members.get("type").and_then(Value::as_str) == Some("object")
        && properties
            .is_some_and(|p| !p.is_empty() && p.keys().all(|key| argument(key) == *key && !taken.contains(key)))
        && members.keys().all(|key| PLAIN.contains(&key.as_str()) || key.starts_with("x-"))
        && (body.required || members.get("required").and_then(Value::as_array).is_none_or(Vec::is_empty))
}

fn input_schema<'d>(
    document: &'d Document<'d>,
    parameters: &[Parameter<'d>],
    body: Option<&Body<'d>>,
    with_patterns: bool,
) -> Result<String, String> {
    let mut schemas = Schemas::new(document, with_patterns);
    let mut properties = Map::new();
    let mut required = BTreeSet::new();
    let mut additional = Some(Value::Bool(false));
    if let Some(body) = body {
        match &body.argument {
            Some(argument) => {
                let schema = body.schema.map_or_else(|| Ok(json!({})), |schema| schemas.convert(schema))?;
                properties.insert(argument.clone(), schema);
                required.extend(body.required.then(|| argument.clone()));
            }
            None => {
                let schema = body.schema.map_or(Ok(document.root), |schema| document.resolve(schema))?;
                let Value::Object(mut open) = schemas.convert(schema)? else {
                    return Err("the body's schema is no object".to_owned());
                };
                let own = open.remove("required").unwrap_or_default();
                required.extend(own.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned));
                additional = open.remove("additionalProperties");
                if let Some(Value::Object(own)) = open.remove("properties") {
                    properties = own;
                }
            }
        }
    }
    for parameter in parameters {
        properties.insert(parameter.argument.clone(), parameter.property(&mut schemas, parameter.schema)?);
        required.extend(parameter.required.then(|| parameter.argument.clone()));
    }
    let definitions = schemas.definitions()?;
    let mut out = Map::new();
    out.insert("type".to_owned(), json!("object"));
    out.insert("properties".to_owned(), Value::Object(properties));
    if !required.is_empty() {
        out.insert("required".to_owned(), json!(required));
    }
    out.extend(additional.map(|value| ("additionalProperties".to_owned(), value)));
    if !definitions.is_empty() {
        out.insert("$defs".to_owned(), Value::Object(definitions));
    }
    Ok(Value::Object(out).to_string())
}

fn call(found: &Found<'_>, url: String, api: &Api, parameters: &[Parameter<'_>], body: Option<&Body<'_>>) -> HttpCall {
    let at = |place: In| {
        let here = parameters.iter().filter(move |parameter| parameter.place == place);
        here.map(|parameter| (parameter.name.to_owned(), parameter.argument.clone()))
    };
    let styles = parameters.iter().filter(|parameter| parameter.style != Style::Repeat);
    let mut styles: BTreeMap<String, Style> = styles.map(|p| (p.argument.clone(), p.style)).collect();
    let open = body.filter(|body| body.argument.is_none());
    styles.extend(
        open.into_iter().flat_map(|body| body.encoding.iter().map(|(name, style)| ((*name).to_owned(), *style))),
    );
    HttpCall {
        method: found.method.to_owned(),
        url,
        headers: api.headers.clone(),
        query: at(In::Query).collect(),
        header_arguments: at(In::Header).map(|(name, argument)| (name.to_ascii_lowercase(), argument)).collect(),
        styles,
        body: match body {
            None => BodyOf::None,
            Some(Body { argument: Some(argument), .. }) => BodyOf::Argument(argument.clone()),
            Some(_) => BodyOf::Rest,
        },
        content_type: body.map(|body| body.media.to_owned()).filter(|media| media != "application/json"),
        timeout_ms: api.timeout_ms,
        ..HttpCall::default()
    }
}
