//! `x-mcp-header`: arguments that are mirrored into `Mcp-Param-*` headers (specification 2026-07-28,
//! basic/transports/streamable-http, section Custom Headers from Tool Parameters).
//!
//! A gateway checks the headers of its callers against the body; towards servers that are reached by HTTP it computes
//! them; a worker leaves out tools whose annotations are not valid.

use serde_json::Value;
use serde_json::value::RawValue;

use super::raw;

const KEYWORD: &str = "x-mcp-header";

/// One annotated parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamHeader {
    /// Behind the prefix `Mcp-Param-`.
    pub name: String,
    /// The chain of property names that leads to it in the arguments.
    path: Vec<String>,
}

/// The annotations of a tool's `inputSchema`, or why the tool must not be offered.
pub fn declared(input_schema: &str) -> Result<Vec<ParamHeader>, String> {
    if memchr::memmem::find(input_schema.as_bytes(), KEYWORD.as_bytes()).is_none() {
        return Ok(Vec::new());
    }
    let schema: Value = serde_json::from_str(input_schema).map_err(|e| e.to_string())?;
    let mut found = Vec::new();
    walk(&schema, &mut Vec::new(), true, &mut found)?;
    let mut names: Vec<String> = found.iter().map(|h| h.name.to_ascii_lowercase()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair.first() == pair.last()) {
        Some(pair) => Err(format!("{KEYWORD} {:?} is there twice", pair.first().map_or("", String::as_str))),
        None => Ok(found),
    }
}

/// `reachable`: from the root by `properties` alone.
fn walk(schema: &Value, path: &mut Vec<String>, reachable: bool, found: &mut Vec<ParamHeader>) -> Result<(), String> {
    match schema {
        Value::Array(list) => list.iter().try_for_each(|inner| walk(inner, path, false, found)),
        Value::Object(members) => {
            if let Some(annotation) = members.get(KEYWORD) {
                found.push(annotated(annotation, members.get("type"), path, reachable)?);
            }
            for (keyword, inner) in members {
                match (keyword.as_str(), inner) {
                    // Data, not schemas.
                    ("default" | "const" | "enum" | "examples" | KEYWORD, _) => {}
                    ("properties", Value::Object(properties)) => {
                        for (name, property) in properties {
                            path.push(name.clone());
                            walk(property, path, reachable, found)?;
                            path.pop();
                        }
                    }
                    // Their keys are names, not keywords.
                    ("$defs" | "definitions" | "patternProperties" | "dependentSchemas", Value::Object(schemas)) => {
                        schemas.values().try_for_each(|inner| walk(inner, path, false, found))?;
                    }
                    _ => walk(inner, path, false, found)?,
                }
            }
            Ok(())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

fn annotated(
    annotation: &Value,
    kind: Option<&Value>,
    path: &[String],
    reachable: bool,
) -> Result<ParamHeader, String> {
    let name = annotation.as_str().filter(|name| !name.is_empty() && name.bytes().all(is_tchar));
    let name = name.ok_or_else(|| format!("{KEYWORD} {annotation} is no header name"))?;
    if path.is_empty() || !reachable {
        return Err(format!("{KEYWORD} {name:?} is not reached by `properties` alone"));
    }
    let primitive = |kind: &str| matches!(kind, "string" | "integer" | "boolean");
    let is_primitive = match kind {
        Some(Value::String(kind)) => primitive(kind),
        Some(Value::Array(kinds)) => {
            let kinds: Vec<&str> = kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect();
            !kinds.is_empty() && kinds.into_iter().all(primitive)
        }
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => false,
    };
    if !is_primitive {
        return Err(format!("{KEYWORD} {name:?} is on a parameter that is no string, integer or boolean"));
    }
    Ok(ParamHeader { name: name.to_owned(), path: path.to_vec() })
}

/// RFC 9110, section 5.6.2.
fn is_tchar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The value of an annotated parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirrored {
    /// As it stands in a header before it is encoded.
    pub text: String,
    is_number: bool,
}

impl ParamHeader {
    /// The value in the arguments; none where it is absent or null.
    pub fn value(&self, arguments: Option<&str>) -> Option<Mirrored> {
        let mut at: &str = arguments?;
        for name in &self.path {
            let members = raw::members(at).ok()?;
            at = members.into_iter().find(|(key, _)| key == name).map(|(_, value)| RawValue::get(value))?;
        }
        match at.bytes().next()? {
            b'"' => raw::string_of(at).map(|text| Mirrored { text, is_number: false }),
            b'n' | b'{' | b'[' => None,
            first => Some(Mirrored { text: at.to_owned(), is_number: first == b'-' || first.is_ascii_digit() }),
        }
    }
}

impl Mirrored {
    /// Whether a header's decoded value says the same. Numbers are compared as such, texts as texts.
    pub fn agrees(&self, header: &str) -> bool {
        let numbers = || Some((header.trim().parse::<f64>().ok()?, self.text.parse::<f64>().ok()?));
        let equal = |(a, b): (f64, f64)| a.is_finite() && a.total_cmp(&b).is_eq();
        header == self.text || self.is_number && numbers().is_some_and(equal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_are_read_with_their_paths() {
        let schema = r#"{"type":"object","properties":{"x-mcp-header":{"type":"string"},
            "a":{"type":"string","x-mcp-header":"Region"},
            "o":{"type":"object","properties":{"n":{"type":["integer","null"],"x-mcp-header":"Count"}}}}}"#;
        let mut found = declared(schema).expect("valid");
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let [count, region] = found.as_slice() else { panic!("{found:?}") };
        let arguments = Some(r#"{"a":"\u00fc","o":{"n":42}}"#);
        let text = |header: &ParamHeader| header.value(arguments).map(|value| value.text);
        assert_eq!((text(region).as_deref(), text(count).as_deref()), (Some("ü"), Some("42")));
        assert_eq!((region.value(Some(r#"{"a":null}"#)), count.value(None)), (None, None));
    }

    #[test]
    fn a_tool_with_a_bad_annotation_is_named() {
        let case = |inner: &str, expected: &str| {
            let schema = format!(r#"{{"type":"object","properties":{{{inner}}}}}"#);
            let error = declared(&schema).expect_err(inner);
            assert!(error.contains(expected), "{inner}: {error}");
        };
        case(r#""a":{"type":"string","x-mcp-header":""}"#, "no header name");
        case(r#""a":{"type":"string","x-mcp-header":"a b"}"#, "no header name");
        case(r#""a":{"type":"string","x-mcp-header":7}"#, "no header name");
        case(r#""a":{"type":"number","x-mcp-header":"A"}"#, "is no string");
        case(r#""a":{"x-mcp-header":"A"}"#, "is no string");
        case(r#""a":{"type":[],"x-mcp-header":"A"}"#, "is no string");
        case(r#""a":{"type":["null"],"x-mcp-header":"A"}"#, "is no string");
        case(r#""a":{"type":["string","object"],"x-mcp-header":"A"}"#, "is no string");
        case(r#""a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}"#, "not reached");
        case(r#""a":{"anyOf":[{"type":"string","x-mcp-header":"A"}]}"#, "not reached");
        let twice = r#""a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}"#;
        case(twice, "twice");
        assert!(declared(r#"{"type":"object","x-mcp-header":"A"}"#).is_err());
        let data = r#"{"properties":{"a":{"type":"object","default":{"x-mcp-header":""}}}}"#;
        assert_eq!(declared(data), Ok(Vec::new()));
        let named = r#"{"$defs":{"x-mcp-header":{"type":"string"}},"patternProperties":{"x-mcp-header":{}}}"#;
        assert_eq!(declared(named), Ok(Vec::new()), "names, not keywords");
    }

    #[test]
    fn numbers_agree_as_numbers_and_texts_as_texts() {
        let own = ParamHeader { name: "X".to_owned(), path: vec!["x".to_owned()] };
        for (header, value, agree) in [
            ("42", "42", true),
            ("42.0", "42", true),
            ("-7", "-7.0", true),
            ("43", "42", false),
            ("1e999", "2e999", false),
            ("a", r#""a""#, true),
            ("A", r#""a""#, false),
            ("42", r#""42""#, true),
            ("42.0", r#""42""#, false),
            ("true", "true", true),
            ("1", "true", false),
        ] {
            let mirrored = own.value(Some(&format!(r#"{{"x":{value}}}"#))).expect("a value");
            assert_eq!(mirrored.agrees(header), agree, "{header} {value}");
        }
    }
}
