//! A JSON Schema moved into another document: its local references are rewritten, everything else stays as sent.
//!
//! Schemas are walked as JSON Schema 2020-12 (and draft-07) nests them, so that a property that is called `$ref`, or a
//! `$ref` inside `default`, `const`, `enum` or `examples`, stays data. Numbers, key order and white space survive.

use std::collections::BTreeMap;

use rollcall_shared::limits;
use rollcall_shared::mcp::raw;

/// Keywords whose value is a schema.
const SCHEMA: [&str; 14] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "extends",
    "disallow",
];
/// Keywords whose value is a map of schemas.
const MAP: [&str; 6] = ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];
/// Keywords whose value is a list of schemas (`items` may be one too).
const LIST: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];

/// The schema `text` as it must read at `pointer` of the new document, such as `#/components/schemas/x`.
///
/// References to the schema itself (`#`, `#/…`, `#anchor`, and the same behind its own `$id`) are rewritten; those to
/// elsewhere stay. A nested schema with an `$id` of its own is its own document: what is inside stays.
pub fn relocate(text: &str, pointer: &str) -> String {
    let mut root = Root { id: None, anchors: BTreeMap::new(), pointer };
    if let Ok(members) = raw::members(text) {
        root.id = members.iter().find(|(key, _)| key == "$id").and_then(|(_, value)| raw::string(value));
    }
    root.find_anchors(text, "", 0);
    let mut out = String::with_capacity(text.len() + 256);
    root.write(text, 0, &mut out);
    out
}

struct Root<'a> {
    id: Option<String>,
    /// Anchor → JSON pointer within the schema.
    anchors: BTreeMap<String, String>,
    pointer: &'a str,
}

/// The subschemas of a schema: the key path below it, and the text.
fn children<'t>(key: &str, value: &'t str) -> Vec<(Vec<String>, &'t str)> {
    let step = |tail: String| vec![key.to_owned(), tail];
    if MAP.contains(&key) {
        return raw::members(value)
            .map(|m| m.into_iter().map(|(name, v)| (step(name.into_owned()), v.get())).collect())
            .unwrap_or_default();
    }
    if LIST.contains(&key) && value.starts_with('[') {
        return raw::elements(value)
            .map(|list| list.into_iter().enumerate().map(|(i, v)| (step(i.to_string()), v.get())).collect())
            .unwrap_or_default();
    }
    if SCHEMA.contains(&key) { vec![(vec![key.to_owned()], value)] } else { Vec::new() }
}

impl Root<'_> {
    fn find_anchors(&mut self, text: &str, path: &str, depth: usize) {
        if depth > limits::SCHEMA_DEPTH || !text.starts_with('{') {
            return;
        }
        let Ok(members) = raw::members(text) else { return };
        if depth > 0 && members.iter().any(|(key, value)| key == "$id" && !is_fragment(value.get())) {
            return;
        }
        for (key, value) in &members {
            let anchor = match (key.as_ref(), raw::string(value)) {
                ("$anchor" | "$dynamicAnchor", Some(name)) => Some(name),
                // Draft-07 names a place by an `$id` that is only a fragment.
                ("$id", Some(id)) => id.strip_prefix('#').map(str::to_owned),
                _ => None,
            };
            if let Some(name) = anchor {
                self.anchors.entry(name).or_insert_with(|| path.to_owned());
            }
            for (steps, child) in children(key, value.get()) {
                let below: String = steps.iter().map(|s| format!("/{}", escape(s))).collect();
                self.find_anchors(child, &format!("{path}{below}"), depth + 1);
            }
        }
    }

    fn write(&self, text: &str, depth: usize, out: &mut String) {
        let members = match raw::members(text) {
            Ok(members) if depth <= limits::SCHEMA_DEPTH && text.starts_with('{') => members,
            _ => return out.push_str(text),
        };
        if depth > 0 && members.iter().any(|(key, value)| key == "$id" && !is_fragment(value.get())) {
            return out.push_str(text);
        }
        let mut from = 0;
        for (key, value) in &members {
            let value = value.get();
            let Some(range) = raw::range_in(text, value) else { continue };
            out.push_str(text.get(from..range.start).unwrap_or_default());
            from = range.end;
            if depth == 0 && key == "$id" {
                // The schema becomes a part of another document: with its own `$id`, readers would look for `#/…` in vain.
                out.push_str(&raw::quote(self.pointer));
            } else if matches!(key.as_ref(), "$ref" | "$dynamicRef" | "$recursiveRef") {
                match raw::string_of(value).and_then(|target| self.target(&target)) {
                    Some(target) => out.push_str(&raw::quote(&target)),
                    None => out.push_str(value),
                }
            } else {
                self.write_children(key, value, depth, out);
            }
        }
        out.push_str(text.get(from..).unwrap_or_default());
    }

    fn write_children(&self, key: &str, value: &str, depth: usize, out: &mut String) {
        let mut from = 0;
        for (_, child) in children(key, value) {
            let Some(range) = raw::range_in(value, child) else { continue };
            out.push_str(value.get(from..range.start).unwrap_or_default());
            from = range.end;
            self.write(child, depth + 1, out);
        }
        out.push_str(value.get(from..).unwrap_or_default());
    }

    /// Where a reference leads in the new document; nothing if it leads elsewhere.
    fn target(&self, reference: &str) -> Option<String> {
        let fragment = match reference.strip_prefix('#') {
            Some(fragment) => fragment,
            None => {
                let (base, fragment) = reference.split_once('#').unwrap_or((reference, ""));
                let own = self.id.as_deref()?.trim_end_matches('#');
                (base == own).then_some(fragment)?
            }
        };
        if fragment.is_empty() || fragment.starts_with('/') {
            return Some(format!("{}{fragment}", self.pointer));
        }
        self.anchors.get(fragment).map(|path| format!("{}{path}", self.pointer))
    }
}

fn is_fragment(quoted: &str) -> bool {
    quoted.starts_with("\"#")
}

/// A reference token of a JSON pointer inside a URI fragment (RFC 6901, sections 3 and 6).
fn escape(token: &str) -> String {
    let mut out = String::new();
    for c in token.chars() {
        match c {
            '~' => out.push_str("~0"),
            '/' => out.push_str("~1"),
            c if c.is_ascii_alphanumeric() || "-._$!&'()*+,;=:@".contains(c) => out.push(c),
            c => {
                let mut buffer = [0; 4];
                for byte in c.encode_utf8(&mut buffer).bytes() {
                    out.push_str(&format!("%{byte:02X}"));
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_references_of_the_schema_are_rewritten() {
        let case = |text: &str, expected: &str| assert_eq!(relocate(text, "#/s/x"), expected);
        case(r##"{"$ref":"#"}"##, r##"{"$ref":"#/s/x"}"##);
        case(
            r##"{ "properties":{"a" : {"$ref":"#/$defs/A~1b"},"$ref":{"type":"string"}}, "$defs":{"A/b":{"n":9007199254740993}}}"##,
            r##"{ "properties":{"a" : {"$ref":"#/s/x/$defs/A~1b"},"$ref":{"type":"string"}}, "$defs":{"A/b":{"n":9007199254740993}}}"##,
        );
        case(
            r##"{"default":{"$ref":"#/a"},"enum":[{"$ref":"#/a"}],"const":{"$ref":"#/a"},"examples":[{"$ref":"#/a"}]}"##,
            r##"{"default":{"$ref":"#/a"},"enum":[{"$ref":"#/a"}],"const":{"$ref":"#/a"},"examples":[{"$ref":"#/a"}]}"##,
        );
        case(
            r##"{"anyOf":[{"$ref":"other.json#/a"},{"$ref":"#/b"}]}"##,
            r##"{"anyOf":[{"$ref":"other.json#/a"},{"$ref":"#/s/x/b"}]}"##,
        );
        case(
            r##"{"$id":"http://e/s","items":[{"$ref":"http://e/s#/d"}],"additionalProperties":false}"##,
            r##"{"$id":"#/s/x","items":[{"$ref":"#/s/x/d"}],"additionalProperties":false}"##,
        );
        case(
            r##"{"$defs":{"a b":{"$anchor":"here","type":"object"}},"not":{"$ref":"#here"}}"##,
            r##"{"$defs":{"a b":{"$anchor":"here","type":"object"}},"not":{"$ref":"#/s/x/$defs/a%20b"}}"##,
        );
        case(
            r##"{"$defs":{"own":{"$id":"http://e/own","$ref":"#/x"}}}"##,
            r##"{"$defs":{"own":{"$id":"http://e/own","$ref":"#/x"}}}"##,
        );
        case("true", "true");
    }
}
