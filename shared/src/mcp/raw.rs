//! Raw JSON, taken apart without being parsed into values: members in their order, each as the bytes that came.
//!
//! serde_json's `Value` would sort keys and round big numbers; nothing that passes through Rollcall may.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The members of a JSON object, in order, duplicates included. An error if `text` is not one object.
pub fn members(text: &str) -> Result<Vec<(Cow<'_, str>, &RawValue)>, serde_json::Error> {
    struct Members;
    impl<'de> Visitor<'de> for Members {
        type Value = Vec<(Cow<'de, str>, &'de RawValue)>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut out = Vec::new();
            while let Some(key) = map.next_key::<Key<'de>>()? {
                out.push((key.0, map.next_value()?));
            }
            Ok(out)
        }
    }
    let mut input = serde_json::Deserializer::from_str(text);
    let out = input.deserialize_map(Members)?;
    input.end()?;
    Ok(out)
}

/// The elements of a JSON array, in order.
pub fn elements(text: &str) -> Result<Vec<&RawValue>, serde_json::Error> {
    struct Elements;
    impl<'de> Visitor<'de> for Elements {
        type Value = Vec<&'de RawValue>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON array")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut out = Vec::new();
            while let Some(element) = seq.next_element()? {
                out.push(element);
            }
            Ok(out)
        }
    }
    let mut input = serde_json::Deserializer::from_str(text);
    let out = input.deserialize_seq(Elements)?;
    input.end()?;
    Ok(out)
}

/// A key that borrows where it holds no escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de> serde::Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        input.deserialize_str(Text)
    }
}

/// The value that a JSON Pointer (RFC 6901) leads to, as the bytes that came.
pub fn pointer<'t>(text: &'t str, pointer: &str) -> Option<&'t str> {
    let mut here = text;
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        here = match here.trim_start().starts_with('[') {
            true => elements(here).ok()?.get(token.parse::<usize>().ok()?)?.get(),
            false => members(here).ok()?.into_iter().find(|(key, _)| *key == token)?.1.get(),
        };
    }
    Some(here)
}

/// Where `part`, a slice of `whole`, lies in it; nothing if it is no slice of it.
pub fn range_in(whole: &str, part: &str) -> Option<Range<usize>> {
    let start = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    let end = start.checked_add(part.len())?;
    (end <= whole.len()).then_some(start..end)
}

/// The string that a raw value is, if it is one.
pub fn string(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

/// The string that a JSON text is, if it is one.
pub fn string_of(json: &str) -> Option<String> {
    serde_json::from_str(json).ok()
}

/// A text as a JSON string, quotes included.
pub fn quote(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    quote_into(&mut json, text);
    json
}

/// The same, at the end of what there is.
pub fn quote_into(json: &mut String, text: &str) {
    if text.bytes().all(|b| b >= 0x20 && b != b'"' && b != b'\\') {
        json.push('"');
        json.push_str(text);
        json.push('"');
    } else {
        json.push_str(&serde_json::to_string(text).unwrap_or_else(|_| "\"\"".to_owned()));
    }
}

/// The same JSON without a raw CR or LF, which are only white space between tokens there.
///
/// A JSON text may legally hold newlines; put into an NDJSON line or an SSE `data:` line as it is, it would become a
/// second message.
pub fn one_line(json: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr2(b'\n', b'\r', json).is_none() {
        return Cow::Borrowed(json);
    }
    Cow::Owned(json.iter().map(|b| if matches!(b, b'\n' | b'\r') { b' ' } else { *b }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_order_bytes_and_duplicates() {
        let text = r#" {"b": 9007199254740993, "a":{"x" :1}, "b":null, "A":[ ]} "#;
        let out = members(text).unwrap_or_default();
        let shown: Vec<_> = out.iter().map(|(k, v)| (k.as_ref(), v.get())).collect();
        assert_eq!(shown, [("b", "9007199254740993"), ("a", r#"{"x" :1}"#), ("b", "null"), ("A", "[ ]")]);
        let a = out.get(1).map(|(_, v)| v.get()).unwrap_or_default();
        assert_eq!(range_in(text, a).and_then(|r| text.get(r)), Some(r#"{"x" :1}"#));
        for bad in ["[]", "1", "{", "{} {}", ""] {
            assert!(members(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn one_line_changes_only_white_space() {
        assert_eq!(one_line(b"{\"a\":\n\r1}").as_ref(), b"{\"a\":  1}");
        assert!(matches!(one_line(br#"{"a":"\n"}"#), Cow::Borrowed(_)));
    }
}
