//! Header forms of Streamable HTTP (specification 2026-07-28, basic/transports/streamable-http).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

pub const PROTOCOL_VERSION: &str = "mcp-protocol-version";
pub const METHOD: &str = "mcp-method";
pub const NAME: &str = "mcp-name";
pub const SESSION_ID: &str = "mcp-session-id";
pub const LAST_EVENT_ID: &str = "last-event-id";
/// What a header that mirrors an argument begins with.
pub const PARAM_PREFIX: &str = "mcp-param-";

const OPEN: &str = "=?base64?";
const CLOSE: &str = "?=";

/// The text that a header value stands for: itself, or UTF-8 in base64 between exact lower-case markers.
/// Nothing if it is neither visible ASCII nor a valid encoded form.
pub fn decode(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?;
    if let Some(inner) = text.strip_prefix(OPEN).and_then(|t| t.strip_suffix(CLOSE)) {
        let bytes = STANDARD.decode(inner).ok()?;
        return String::from_utf8(bytes).ok();
    }
    text.bytes().all(|b| (0x20..=0x7e).contains(&b) || b == b'\t').then(|| text.to_owned())
}

/// The header value for a text: plain where that is unambiguous, else the encoded form.
pub fn encode(text: &str) -> String {
    let plain = !text.is_empty()
        && text.bytes().all(|b| (0x20..=0x7e).contains(&b))
        && text.trim() == text
        && !(text.starts_with(OPEN) && text.ends_with(CLOSE));
    if plain { text.to_owned() } else { format!("{OPEN}{}{CLOSE}", STANDARD.encode(text)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_survives_the_header() {
        for text in ["read_file", "", " x", "データ", "=?base64?eA==?=", "a\nb", "é"] {
            assert_eq!(decode(encode(text).as_bytes()).as_deref(), Some(text));
        }
        assert_eq!(encode("read_file"), "read_file");
    }

    #[test]
    fn broken_forms_are_nothing() {
        for bad in [&b"=?base64?***?="[..], b"\xff", b"=?base64?/w==?=", "é".as_bytes()] {
            assert_eq!(decode(bad), None, "{bad:?}");
        }
        assert_eq!(decode(b"=?BASE64?eA==?=").as_deref(), Some("=?BASE64?eA==?="), "markers are exact");
    }
}
