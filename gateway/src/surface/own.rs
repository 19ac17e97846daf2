//! How Rollcall's own tools are listed. What they say of the view is made of the view: which servers, how many tools.
//!
//! A description is all that a model reads before its first call, so it names what there is to look for.

use rollcall_shared::limits;
use rollcall_shared::mcp::raw;
use serde_json::{Value, json};

use crate::view::View;

/// A bridge tool as `tools/list` shows it, as JSON.
pub fn definition(view: &View, name: &str) -> String {
    let (description, properties, required, annotations) = match name {
        "get_api_spec" => (
            "Gives the OpenAPI 3.1 description of tools of this session, by their whole names. All names must exist, or none \
             is described."
                .to_owned(),
            json!({"tool_names": names("Whole tool names")}),
            json!(["tool_names"]),
            reads(),
        ),
        "tool_search" => (
            format!(
                "Finds tools of this session by what they do. {} Give a few words or a sentence; what is found comes with \
                 its whole name and its parameters.",
                servers(view)
            ),
            json!({
                "query": {"type": "string", "minLength": 1, "description": "What the tool should do, or a part of its name"},
                "limit": {"type": "integer", "minimum": 1, "maximum": limits::SEARCH_FOUND_MOST,
                          "default": limits::SEARCH_FOUND, "description": "How many tools at most"},
            }),
            json!(["query"]),
            reads(),
        ),
        "tool_describe" => (
            "Gives the whole definitions of tools of this session, with their schemas, by their whole names. All names must \
             exist, or none is described."
                .to_owned(),
            json!({"names": names("Whole tool names")}),
            json!(["names"]),
            reads(),
        ),
        "tool_call" => (
            format!(
                "Calls one tool of this session by its whole name. {} Find names by what tools do with tool_search.",
                servers(view)
            ),
            json!({
                "name": {"type": "string", "minLength": 1, "description": "The whole name of the tool"},
                // Without this, backends that generate by grammar can give nothing but {}.
                "arguments": {"type": "object", "additionalProperties": true, "description": "The tool's own arguments"},
            }),
            json!(["name"]),
            json!({"openWorldHint": true}),
        ),
        "get_prompt" => (
            "Gives a prompt of this session, filled in with its arguments.".to_owned(),
            json!({
                "name": {"type": "string", "minLength": 1, "description": "The whole name of the prompt"},
                "arguments": {"type": "object", "additionalProperties": {"type": "string"},
                              "description": "The prompt's own arguments"},
            }),
            json!(["name"]),
            reads(),
        ),
        "get_resource" => (
            "Reads a resource of this session.".to_owned(),
            json!({"uri": {"type": "string", "minLength": 1, "description": "Its URI, as it is listed or as a template makes it"}}),
            json!(["uri"]),
            reads(),
        ),
        _ => return "null".to_owned(),
    };
    let schema = json!({"type": "object", "properties": properties, "required": required});
    format!(
        r#"{{"name":{},"description":{},"inputSchema":{schema},"annotations":{annotations}}}"#,
        raw::quote(name),
        raw::quote(&description)
    )
}

fn names(description: &str) -> Value {
    json!({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": limits::RESOLVE_NAMES,
           "description": description})
}

fn reads() -> Value {
    json!({"readOnlyHint": true, "openWorldHint": false})
}

/// The servers of a view and what they have, as a sentence.
pub fn servers(view: &View) -> String {
    let servers = view.servers();
    let of_servers: usize = servers.iter().map(|(_, count)| count).sum();
    if of_servers == 0 {
        return format!("It has {} of the platform.", tools(view.count));
    }
    let imported = match view.deferrable - of_servers {
        0 => String::new(),
        count => format!(" The platform has {} more that are not listed.", tools(count)),
    };
    let shown: Vec<String> =
        servers.iter().take(limits::RECOVERY_NAMES).map(|(alias, count)| format!("{alias} ({count})")).collect();
    let rest = servers.len().saturating_sub(shown.len());
    let more = if rest == 0 { String::new() } else { format!(", and {rest} more servers") };
    format!("Its servers have {}: {}{more}.{imported}", tools(of_servers), shown.join(", "))
}

/// `1 tool`, `2 tools`
pub fn tools(count: usize) -> String {
    if count == 1 { "1 tool".to_owned() } else { format!("{count} tools") }
}
