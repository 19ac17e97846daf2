//! Schemas of a description as JSON Schema 2020-12 that stands on its own.
//!
//! A schema is walked keyword by keyword, so that a property called `$ref` is a property. What its references lead to is
//! collected into `$defs` once each, which keeps circles; what only serves servers, documents or answers is dropped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value, json};

use super::document::{Document, Version, list, pointer};

/// See the module.
pub(super) struct Schemas<'d> {
    document: &'d Document<'d>,
    with_patterns: bool,
    /// Pointers, and what each is called in `$defs`.
    names: BTreeMap<String, String>,
    waiting: VecDeque<String>,
}

const MAPS: [&str; 3] = ["properties", "patternProperties", "dependentSchemas"];
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
const SINGLES: [&str; 12] = [
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
    "additionalItems",
];
/// Of no use to a caller, or handled apart.
const DROPPED: [&str; 13] = [
    "$comment",
    "$defs",
    "$ref",
    "$schema",
    "definitions",
    "discriminator",
    "example",
    "examples",
    "externalDocs",
    "nullable",
    "readOnly",
    "writeOnly",
    "xml",
];
/// Other ways to name a schema, which would be lost with their surroundings.
const UNSUPPORTED: [&str; 5] = ["$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveRef"];

impl<'d> Schemas<'d> {
    /// Without patterns where the engine that checks arguments cannot run them.
    pub(super) fn new(document: &'d Document<'d>, with_patterns: bool) -> Self {
        Self { document, with_patterns, names: BTreeMap::new(), waiting: VecDeque::new() }
    }

    pub(super) fn convert(&mut self, schema: &'d Value) -> Result<Value, String> {
        let members = match schema {
            Value::Object(members) => members,
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err("a schema must be an object".to_owned());
            }
        };
        if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
            let reference = json!(format!("#/$defs/{}", self.name(&pointer(reference)?)?));
            // In 3.0 nothing stands beside a reference (3.0.4, section 4.7.23.1).
            let mut out = match self.document.version {
                Version::V30 => Map::new(),
                Version::V31 => self.members(members)?,
            };
            out.insert("$ref".to_owned(), reference);
            return Ok(Value::Object(out));
        }
        let out = self.members(members)?;
        Ok(if members.get("nullable") == Some(&Value::Bool(true)) { nullable(out) } else { Value::Object(out) })
    }

    fn members(&mut self, members: &'d Map<String, Value>) -> Result<Map<String, Value>, String> {
        let mut out = Map::new();
        for (key, value) in members {
            let key = key.as_str();
            let converted = if UNSUPPORTED.contains(&key) {
                return Err(format!("`{key}` in a schema is not supported"));
            } else if DROPPED.contains(&key)
                || key.starts_with("x-")
                || !self.with_patterns && matches!(key, "pattern" | "patternProperties")
            {
                continue;
            } else if let (true, Value::Object(schemas)) = (MAPS.contains(&key), value) {
                let hidden = |schema: &'d Value| key == "properties" && self.is_read_only(schema);
                let kept: Vec<_> = schemas.iter().filter(|(_, schema)| !hidden(schema)).collect();
                let kept = kept.into_iter().map(|(name, schema)| Ok((name.clone(), self.convert(schema)?)));
                Value::Object(kept.collect::<Result<_, String>>()?)
            } else if let (true, Value::Array(schemas)) = (LISTS.contains(&key), value) {
                Value::Array(schemas.iter().map(|schema| self.convert(schema)).collect::<Result<_, _>>()?)
            } else if SINGLES.contains(&key) {
                self.convert(value)?
            } else {
                value.clone()
            };
            out.insert(key.to_owned(), converted);
        }
        if let Some(required) = out.get("required") {
            // A mark on a property itself is of no draft in use; an object's is a list of names.
            let of_object = required.as_array().map(|names| {
                let properties = members.get("properties").and_then(Value::as_object);
                let hidden = |name: &Value| {
                    name.as_str().and_then(|name| properties?.get(name)).is_some_and(|schema| self.is_read_only(schema))
                };
                let names: BTreeSet<&str> = names.iter().filter(|n| !hidden(n)).filter_map(Value::as_str).collect();
                json!(names)
            });
            match of_object {
                Some(names) => out.insert("required".to_owned(), names),
                None => out.remove("required"),
            };
        }
        if self.document.version == Version::V30 {
            for (bound, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
                if let Some(Value::Bool(is_exclusive)) = out.get(exclusive) {
                    let limit = if *is_exclusive { out.remove(bound) } else { None };
                    out.remove(exclusive);
                    out.extend(limit.map(|limit| (exclusive.to_owned(), limit)));
                }
            }
        }
        Ok(out)
    }

    /// What only answers carry.
    pub(super) fn is_read_only(&self, schema: &'d Value) -> bool {
        let read_only = |schema: &Value| schema.get("readOnly") == Some(&Value::Bool(true));
        read_only(schema) || self.document.resolve(schema).is_ok_and(read_only)
    }

    /// The name in `$defs` of what a pointer leads to: its last segment, with a number where another has that.
    fn name(&mut self, pointer: &str) -> Result<String, String> {
        if let Some(name) = self.names.get(pointer) {
            return Ok(name.clone());
        }
        self.document.at(pointer)?;
        let last = pointer.rsplit('/').next().unwrap_or_default();
        let base: String =
            last.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' }).collect();
        let taken = |name: &String| self.names.values().any(|other| other == name);
        let mut name = base.clone();
        let mut number = 2;
        while taken(&name) {
            name = format!("{base}_{number}");
            number += 1;
        }
        self.names.insert(pointer.to_owned(), name.clone());
        self.waiting.push_back(pointer.to_owned());
        Ok(name)
    }

    /// All that was referred to, and what that refers to in turn.
    pub(super) fn definitions(mut self) -> Result<Map<String, Value>, String> {
        let mut out = Map::new();
        while let Some(pointer) = self.waiting.pop_front() {
            let converted = self.convert(self.document.at(&pointer)?)?;
            out.extend(self.names.get(&pointer).map(|name| (name.clone(), converted)));
        }
        Ok(out)
    }
}

/// A schema that also takes `null`.
fn nullable(mut schema: Map<String, Value>) -> Value {
    match schema.get("type").cloned() {
        Some(Value::String(only)) => {
            schema.insert("type".to_owned(), json!([only, "null"]));
            if let Some(Value::Array(values)) = schema.get_mut("enum")
                && !values.contains(&Value::Null)
            {
                values.push(Value::Null);
            }
            Value::Object(schema)
        }
        Some(_) => Value::Object(schema),
        None => json!({"anyOf": [schema, {"type": "null"}]}),
    }
}

/// The types that a schema allows, where it says so by itself or by one reference.
pub(super) fn types<'d>(document: &Document<'d>, schema: &'d Value) -> Vec<&'d str> {
    let Ok(schema) = document.resolve(schema) else { return Vec::new() };
    match schema.get("type") {
        Some(Value::String(only)) => vec![only],
        _ => list(schema, "type").filter_map(Value::as_str).filter(|name| *name != "null").collect(),
    }
}
