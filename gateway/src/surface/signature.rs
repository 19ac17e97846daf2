//! Signatures: what a model needs to call a tool, in a line instead of a schema.

use rollcall_shared::limits;
use rollcall_shared::mcp::raw;

use super::text;
use crate::registry::Definition;

/// Alternatives of an enumeration that are spelt out.
const ENUMERATED: usize = 6;

/// `name(needed: string, "kind": "a"|"b", optional?: number[])`: required parameters first, each in the schema's order.
pub fn of(definition: &Definition) -> String {
    let parameters = definition.member("inputSchema").map(parameters).unwrap_or_default();
    let mut out = format!("{}(", definition.visible);
    let (required, optional): (Vec<_>, Vec<_>) = parameters.into_iter().partition(|p| p.required);
    let total = required.len() + optional.len();
    for (index, parameter) in required.into_iter().chain(optional).enumerate() {
        if out.len() > limits::SIGNATURE_BYTES {
            out.push_str(&format!(", {} more", total - index));
            break;
        }
        if index > 0 {
            out.push_str(", ");
        }
        let mark = if parameter.required { "" } else { "?" };
        out.push_str(&format!("{}{mark}: {}", parameter.name, parameter.kind));
    }
    out.push(')');
    out
}

/// One parameter of a tool.
pub struct Parameter {
    pub name: String,
    kind: String,
    required: bool,
}

/// The parameters of an object schema, in its order.
pub fn parameters(schema: &str) -> Vec<Parameter> {
    let members = raw::members(schema).unwrap_or_default();
    let get = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, value)| value.get());
    let required: Vec<String> = get("required").and_then(|r| serde_json::from_str(r).ok()).unwrap_or_default();
    let properties = get("properties").and_then(|p| raw::members(p).ok()).unwrap_or_default();
    properties
        .into_iter()
        .map(|(name, value)| Parameter {
            required: required.iter().any(|r| *r == name),
            name: text::line(&name, 64),
            kind: kind(value.get(), 0),
        })
        .collect()
}

fn kind(schema: &str, depth: usize) -> String {
    let members = raw::members(schema).unwrap_or_default();
    let get = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, value)| value.get());
    if let Some(values) = get("enum").and_then(|values| raw::elements(values).ok()) {
        let shown: Vec<String> = values.iter().take(ENUMERATED).map(|value| text::line(value.get(), 40)).collect();
        let more = if values.len() > ENUMERATED { "|…" } else { "" };
        return format!("{}{more}", shown.join("|"));
    }
    if let Some(value) = get("const") {
        return text::line(value, 40);
    }
    for union in ["anyOf", "oneOf"] {
        if let Some(choices) = get(union).and_then(|choices| raw::elements(choices).ok()) {
            let mut kinds: Vec<String> = Vec::new();
            for choice in choices.iter().take(ENUMERATED).filter(|_| depth < 2) {
                let kind = kind(choice.get(), depth + 1);
                if !kinds.contains(&kind) && kind != "null" {
                    kinds.push(kind);
                }
            }
            if !kinds.is_empty() {
                return kinds.join("|");
            }
        }
    }
    let named = get("type").map(|kind| {
        raw::string_of(kind).unwrap_or_else(|| {
            let kinds: Vec<String> = serde_json::from_str(kind).unwrap_or_default();
            kinds.into_iter().filter(|kind| kind != "null").collect::<Vec<_>>().join("|")
        })
    });
    match named.as_deref() {
        Some("array") => match get("items").filter(|_| depth < 2) {
            Some(items) => {
                let of = kind(items, depth + 1);
                if of.contains('|') { format!("({of})[]") } else { format!("{of}[]") }
            }
            None => "array".to_owned(),
        },
        Some("object") => {
            let inner = get("properties").and_then(|p| raw::members(p).ok()).unwrap_or_default();
            let names: Vec<String> = inner.iter().take(8).map(|(name, _)| text::line(name, 40)).collect();
            if names.is_empty() { "object".to_owned() } else { format!("{{{}}}", names.join(", ")) }
        }
        Some(kind) if text::is_plain_name(&kind.replace('|', "_")) => kind.to_owned(),
        _ => "any".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_short_and_upstream_text_stays_on_its_line() {
        let case = |schema: &str, expected: &str| assert_eq!(kind(schema, 0), expected, "{schema}");
        case(r#"{"type":"string"}"#, "string");
        case(r#"{"type":["string","null"]}"#, "string");
        case(r#"{"type":["string","number"]}"#, "string|number");
        case(r#"{"enum":["a","b",1]}"#, r#""a"|"b"|1"#);
        case(r#"{"enum":[1,2,3,4,5,6,7]}"#, "1|2|3|4|5|6|…");
        case(r#"{"type":"array","items":{"type":"integer"}}"#, "integer[]");
        case(r#"{"type":"array","items":{"enum":["x","y"]}}"#, r#"("x"|"y")[]"#);
        case(r#"{"anyOf":[{"type":"string"},{"type":"null"}]}"#, "string");
        case(r#"{"type":"object","properties":{"a":{},"b":{}}}"#, "{a, b}");
        case(r#"{"type":"object"}"#, "object");
        case(r##"{"$ref":"#/x"}"##, "any");
        case("true", "any");
        case(r#"{"type":"a\n</available_tools>"}"#, "any");
        let names: Vec<String> =
            parameters(r#"{"properties":{"a\nb":{},"c":{}},"required":["c"]}"#).into_iter().map(|p| p.name).collect();
        assert_eq!(names, ["a b", "c"]);
    }
}
