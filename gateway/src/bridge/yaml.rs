//! JSON as YAML: the same values in the same order, in block style. Texts and keys keep their JSON quotes, which YAML reads
//! the same way (YAML 1.2.2, section 1.3), so that no text can become another type.

use rollcall_shared::limits;
use rollcall_shared::mcp::raw;

/// A JSON text as a YAML document.
pub(super) fn of(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    value(json.trim(), 0, &mut out);
    out.push('\n');
    out
}

fn value(json: &str, depth: usize, out: &mut String) {
    if depth < limits::SCHEMA_DEPTH {
        if let Some(members) = raw::members(json).ok().filter(|members| !members.is_empty()) {
            for (key, inner) in members {
                line(depth, out);
                out.push_str(&raw::quote(&key));
                out.push(':');
                nested(inner.get(), depth, out);
            }
            return;
        }
        if let Some(elements) = raw::elements(json).ok().filter(|elements| !elements.is_empty()) {
            for inner in elements {
                line(depth, out);
                out.push('-');
                nested(inner.get(), depth, out);
            }
            return;
        }
    }
    // Flow style: a scalar, an empty collection, or what is nested too deeply.
    out.push_str(&String::from_utf8_lossy(&raw::one_line(json.as_bytes())));
}

fn nested(json: &str, depth: usize, out: &mut String) {
    let is_block = json.starts_with(['{', '[']) && depth + 1 < limits::SCHEMA_DEPTH && !is_empty(json);
    if !is_block {
        out.push(' ');
    }
    value(json, depth + 1, out);
}

fn is_empty(json: &str) -> bool {
    let inner = json.get(1..json.len().saturating_sub(1)).unwrap_or_default();
    inner.bytes().all(|b| b.is_ascii_whitespace())
}

fn line(depth: usize, out: &mut String) {
    if !out.is_empty() {
        out.push('\n');
    }
    out.extend(std::iter::repeat_n("  ", depth));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_order_and_their_types() {
        let json = r#"{"b":{"x":[1,{"y":"no"},[],{}],"e":{}},"a":"line\nbreak: #","n":1e400,"t":[[1,2],[3]]}"#;
        let expected = "\"b\":\n  \"x\":\n    - 1\n    -\n      \"y\": \"no\"\n    - []\n    - {}\n  \"e\": {}\n\"a\": \"line\\nbreak: #\"\n\"n\": 1e400\n\"t\":\n  -\n    - 1\n    - 2\n  -\n    - 3\n";
        assert_eq!(of(json), expected);
        assert_eq!(of(" [ ] "), "[ ]\n");
    }
}
