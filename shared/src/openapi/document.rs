//! A description as a tree: its version, its operations, and where its references lead.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::Skipped;
use crate::limits;

/// What differs between versions: 3.0 has a dialect of JSON Schema of its own, 3.1 has draft 2020-12.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    V30,
    V31,
}

/// See the module.
pub(super) struct Document<'d> {
    pub(super) root: &'d Value,
    pub(super) version: Version,
}

/// An operation, and the path item that it belongs to.
pub(super) struct Found<'d> {
    /// In upper case.
    pub(super) method: &'static str,
    pub(super) path: &'d str,
    pub(super) item: &'d Value,
    pub(super) value: &'d Value,
}

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

impl<'d> Found<'d> {
    pub(super) fn text(&self, key: &str) -> Option<&'d str> {
        self.value.get(key).and_then(Value::as_str)
    }

    pub(super) fn tags(&self) -> impl Iterator<Item = &'d str> {
        list(self.value, "tags").filter_map(Value::as_str)
    }
}

/// The elements of a member that is a list; nothing if it is none.
pub(super) fn list<'d>(value: &'d Value, key: &str) -> impl Iterator<Item = &'d Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// The members of a member that is a map; nothing if it is none.
pub(super) fn map<'d>(value: &'d Value, key: &str) -> impl Iterator<Item = (&'d String, &'d Value)> {
    value.get(key).and_then(Value::as_object).into_iter().flatten()
}

impl<'d> Document<'d> {
    pub(super) fn new(root: &'d Value) -> Result<Self, String> {
        if root.get("swagger").is_some() {
            return Err("this is Swagger 2.0; convert it to OpenAPI 3 first".to_owned());
        }
        let written = root.get("openapi").and_then(Value::as_str);
        let version = match written {
            Some(text) if text.starts_with("3.0") => Version::V30,
            Some(text) if text.starts_with("3.1") => Version::V31,
            Some(text) => return Err(format!("`openapi` is {text:?}; 3.0 and 3.1 can be read")),
            None => return Err("`openapi`, the version, is missing".to_owned()),
        };
        Ok(Self { root, version })
    }

    /// Every operation in the order of paths and methods. Those that cannot even be looked at are skipped.
    pub(super) fn operations(&self, skipped: &mut Vec<Skipped>) -> Vec<Found<'d>> {
        const METHODS: [(&str, &str); 5] =
            [("delete", "DELETE"), ("get", "GET"), ("patch", "PATCH"), ("post", "POST"), ("put", "PUT")];
        let mut out = Vec::new();
        for (path, item) in map(self.root, "paths").filter(|(path, _)| path.starts_with('/')) {
            let item = match self.resolve(item) {
                Ok(item) => item,
                Err(reason) => {
                    skipped.push(Skipped { operation: path.clone(), reason });
                    continue;
                }
            };
            for (key, method) in METHODS {
                if let Some(value) = item.get(key) {
                    out.push(Found { method, path, item, value });
                }
            }
            for other in ["head", "options", "trace"].into_iter().filter(|key| item.get(key).is_some()) {
                let operation = format!("{} {path}", other.to_uppercase());
                skipped.push(Skipped { operation, reason: "no tool is made of this method".to_owned() });
            }
        }
        out
    }

    /// The value itself, or what its `$ref` leads to in the end.
    pub(super) fn resolve(&self, value: &'d Value) -> Result<&'d Value, String> {
        let mut here = value;
        for _ in 0..limits::REFERENCE_HOPS {
            match here.get("$ref") {
                Some(Value::String(reference)) => here = self.at(&pointer(reference)?)?,
                _ => return Ok(here),
            }
        }
        Err("references lead in a circle".to_owned())
    }

    /// What a pointer leads to.
    pub(super) fn at(&self, pointer: &str) -> Result<&'d Value, String> {
        self.root.pointer(pointer).ok_or_else(|| format!("`#{pointer}` leads nowhere"))
    }

    pub(super) fn components(&self, kind: &str) -> Option<&'d Map<String, Value>> {
        self.root.get("components")?.get(kind)?.as_object()
    }
}

/// The JSON Pointer of a reference within the description (RFC 6901, section 6).
pub(super) fn pointer(reference: &str) -> Result<Cow<'_, str>, String> {
    let Some(fragment) = reference.strip_prefix('#') else {
        return Err(format!("`{reference}` leads out of the description"));
    };
    let pointer = percent_decode_str(fragment).decode_utf8().map_err(|_| format!("`{reference}` is not UTF-8"))?;
    if pointer.starts_with('/') { Ok(pointer) } else { Err(format!("`{reference}` is no JSON Pointer")) }
}

/// Whether a media type is JSON (RFC 6839, section 3.1, for the suffix).
pub(super) fn is_json(media: &str) -> bool {
    let essence = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}
