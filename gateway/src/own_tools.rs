//! What Rollcall's own tools answer, over MCP and over HTTP alike: the same view, the same resolution, the same words.

use bytes::Bytes;
use rollcall_shared::ids::TenantId;
use rollcall_shared::limits;
use rollcall_shared::mcp::raw;
use rollcall_shared::telemetry::label;
use serde_json::value::RawValue;

use crate::app::App;
use crate::refusal::Refusal;
use crate::surface::search::found::{self, Found};
use crate::surface::spec_arguments::{self, Asked, ServerNameEffect};
use crate::view::{Permit, Sight};

/// What came of a call of one of our own tools.
pub(crate) enum Own {
    /// Its text; what the model did wrong is told to the model.
    Text { text: String, is_error: bool },
    /// `tool_call`: another tool is meant.
    Call { name: String, arguments: Option<Bytes> },
    /// `get_prompt`
    Prompt { name: String, arguments: Option<Bytes> },
    /// `get_resource`
    Resource { uri: String },
}

impl Own {
    fn wrong(what: impl Into<String>) -> Self {
        Self::Text { text: what.into(), is_error: true }
    }
}

/// Who calls.
#[derive(Clone, Copy)]
pub(crate) struct By<'s> {
    pub(crate) app: &'s App,
    pub(crate) tenant: &'s TenantId,
    pub(crate) sight: &'s Sight,
}

/// Answers a call of a tool that the view offers. `arguments` is a JSON object.
pub(crate) async fn answer(by: By<'_>, name: &str, arguments: Option<&Bytes>) -> Result<Own, Refusal> {
    let text = arguments.map(|bytes| std::str::from_utf8(bytes)).transpose().map_err(|_| Refusal::Internal)?;
    match name {
        "get_api_spec" => api_spec(by, text),
        "tool_search" => search(by, text.unwrap_or("{}")).await,
        "tool_describe" => describe(by, text),
        "tool_call" => Ok(call(by, arguments).unwrap_or_else(Own::wrong)),
        "get_prompt" => {
            let prompt = named(arguments, "name").map(|(name, arguments)| Own::Prompt { name, arguments });
            Ok(prompt.unwrap_or_else(Own::wrong))
        }
        "get_resource" => Ok(named(arguments, "uri").map_or_else(Own::wrong, |(uri, _)| Own::Resource { uri })),
        _ => Err(Refusal::Internal),
    }
}

/// The permits of what was asked for, by the rules of `get_api_spec`, with `server_name` counted.
pub(crate) fn permits<'s>(by: By<'s>, asked: &Asked) -> Result<Vec<Permit<'s>>, Refusal> {
    let availability = |server: &_| by.app.live.availability(by.tenant, server);
    let (resolved, effect) = spec_arguments::resolve(by.sight, asked, &availability);
    let used = &by.app.metrics.server_name_used;
    match effect {
        ServerNameEffect::Unused => {}
        ServerNameEffect::Settled => used.add(1, &[label("effect", "settled")]),
        ServerNameEffect::Ignored => used.add(1, &[label("effect", "ignored")]),
    }
    resolved.map_err(Refusal::Tools)
}

/// What is asked of `get_api_spec`; a text for the model where that is not clear.
pub(crate) fn read_asked(by: By<'_>, arguments: Option<&str>) -> Result<Asked, String> {
    let asked = spec_arguments::read(arguments)?;
    if asked.server_name.is_some() && by.sight.registry.settings().reject_server_name {
        by.app.metrics.server_name_used.add(1, &[label("effect", "rejected")]);
        return Err("`server_name` is not taken: the tool name is the only address".to_owned());
    }
    Ok(asked)
}

fn api_spec(by: By<'_>, arguments: Option<&str>) -> Result<Own, Refusal> {
    let asked = match read_asked(by, arguments) {
        Ok(asked) => asked,
        Err(what) => return Ok(Own::wrong(what)),
    };
    Ok(Own::Text { text: document(by, &asked)?, is_error: false })
}

/// An OpenAPI document of what was asked for: tools of the view, and our own that it offers.
pub(crate) fn document(by: By<'_>, asked: &Asked) -> Result<String, Refusal> {
    let (own, others): (Vec<&String>, Vec<&String>) =
        asked.names.iter().partition(|name| by.sight.view.bridge_tools_over_http().any(|own| own == *name));
    let own: Vec<&str> = own.into_iter().map(String::as_str).collect();
    let permits = match others.is_empty() {
        true => Vec::new(),
        false => {
            let names = others.into_iter().cloned().collect();
            permits(by, &Asked { names, server_name: asked.server_name.clone() })?
        }
    };
    Ok(by.app.specs.document(&permits, &by.sight.view, &own, &by.app.public_url))
}

async fn search(by: By<'_>, arguments: &str) -> Result<Own, Refusal> {
    let members = match known_members(arguments, &["query", "limit"]) {
        Ok(members) => members,
        Err(what) => return Ok(Own::wrong(what)),
    };
    let get = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, value)| *value);
    let Some(query) = get("query").and_then(raw::string).filter(|query| !query.trim().is_empty()) else {
        return Ok(Own::wrong("`query` is missing: say what the tool should do"));
    };
    let limit = match get("limit").map(|limit| serde_json::from_str(limit.get())) {
        None => limits::SEARCH_FOUND,
        Some(Ok(limit)) if (1..=limits::SEARCH_FOUND_MOST).contains(&limit) => limit,
        Some(_) => return Ok(Own::wrong(format!("`limit` must be between 1 and {}", limits::SEARCH_FOUND_MOST))),
    };
    Ok(Own::Text { text: find(by, &query, limit).await.text(), is_error: false })
}

/// Searches the view, and counts whether anything was found.
pub(crate) async fn find(by: By<'_>, query: &str, limit: usize) -> Found {
    let index = by.app.indices.of(by.sight).await;
    let found = found::find(by.sight, &index, query, limit);
    let outcome = if found.tools.is_empty() { "nothing" } else { "found" };
    by.app.metrics.searches.add(1, &[label("outcome", outcome)]);
    found
}

fn describe(by: By<'_>, arguments: Option<&str>) -> Result<Own, Refusal> {
    let members = match known_members(arguments.unwrap_or("{}"), &["names"]) {
        Ok(members) => members,
        Err(what) => return Ok(Own::wrong(what)),
    };
    let names = members.first().and_then(|(_, value)| spec_arguments::read_names(value.get())).unwrap_or_default();
    if names.is_empty() || names.len() > limits::RESOLVE_NAMES {
        return Ok(Own::wrong(format!("`names` must be a list of 1 to {} whole tool names", limits::RESOLVE_NAMES)));
    }
    let permits = permits(by, &Asked { names, server_name: None })?;
    let mut out = br#"{"tools":["#.to_vec();
    for (at, permit) in permits.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        permit.definition().write_visible(&mut out);
    }
    out.extend_from_slice(b"]}");
    Ok(Own::Text { text: String::from_utf8_lossy(&out).into_owned(), is_error: false })
}

fn call(by: By<'_>, arguments: Option<&Bytes>) -> Result<Own, String> {
    const NO_OBJECT: &str = "`arguments` must be an object: the tool's own arguments";
    let (name, arguments) = named(arguments, "name")?;
    if name == "tool_call" {
        return Err("tool_call does not call itself: give a tool's name".to_owned());
    }
    let arguments = match arguments {
        // Some clients write the inner arguments as a text.
        Some(text) if text.starts_with(b"\"") => {
            let inner = std::str::from_utf8(&text).ok().and_then(raw::string_of);
            let inner = inner.filter(|inner| raw::members(inner).is_ok()).ok_or(NO_OBJECT)?;
            by.app.metrics.arguments_as_text.add(1, &[]);
            Some(Bytes::from(inner))
        }
        Some(other) if !other.starts_with(b"{") => return Err(NO_OBJECT.to_owned()),
        arguments => arguments,
    };
    Ok(Own::Call { name, arguments })
}

/// The member that names what is meant, and `arguments` as they stand.
fn named(arguments: Option<&Bytes>, member: &str) -> Result<(String, Option<Bytes>), String> {
    let none = Bytes::from_static(b"{}");
    let bytes = arguments.unwrap_or(&none);
    let members = known_members(std::str::from_utf8(bytes).unwrap_or_default(), &[member, "arguments"])?;
    let get = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, value)| *value);
    let name = get(member).and_then(raw::string).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| format!("`{member}` is missing"))?;
    let inner = get("arguments").filter(|value| value.get() != "null");
    Ok((name, inner.map(|value| bytes.slice_ref(value.get().as_bytes()))))
}

/// The members of an object of arguments; one that the tool does not know is named.
fn known_members<'t>(
    arguments: &'t str,
    known: &[&str],
) -> Result<Vec<(std::borrow::Cow<'t, str>, &'t RawValue)>, String> {
    let members = raw::members(arguments).map_err(|e| format!("arguments: {e}"))?;
    match members.iter().find(|(key, _)| !known.contains(&key.as_ref())) {
        Some((key, _)) => {
            let shown = crate::surface::text::line(key, 64);
            Err(format!("`{shown}` is no argument of this tool; it takes: {}", known.join(", ")))
        }
        None => Ok(members),
    }
}
