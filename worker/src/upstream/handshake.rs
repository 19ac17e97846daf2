//! Opening a connection: which era a server speaks, and what it offers.
//!
//! `server/discover` is asked first; an answer that knows the modern revision settles it, and anything else, or silence,
//! leads to `initialize` (specification 2026-07-28, basic/transports/stdio, section Backward Compatibility). A call is
//! never sent to find an era out.

use rollcall_shared::mcp::era::{Era, LEGACY_LATEST, MODERN};
use rollcall_shared::mcp::raw;
use rollcall_shared::wire::{Failure, Final, Reason};

use super::message::CLIENT_INFO;

/// What a server said of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) era: Era,
    /// The revision that is spoken.
    pub(crate) version: String,
    pub(crate) offers_tools: bool,
}

/// Legacy revisions that we can speak to a server. The oldest only over stdio, where its framing is the same.
const SPOKEN: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// The modern peer behind an answer to `server/discover`, if it is one.
pub(crate) fn read_discover(end: &Final) -> Option<Peer> {
    let Final::Result(result) = end else { return None };
    let members = raw::members(std::str::from_utf8(result).ok()?).ok()?;
    let get = |key: &str| members.iter().find(|(k, _)| k == key).map(|(_, value)| value.get());
    let versions: Vec<String> = serde_json::from_str(get("supportedVersions")?).ok()?;
    versions.iter().any(|v| v == MODERN).then(|| Peer {
        era: Era::Modern,
        version: MODERN.to_owned(),
        offers_tools: get("capabilities").is_some_and(has_tools),
    })
}

/// Params of `initialize`. No capability is declared, since nothing that a server asks could be carried to a caller yet.
pub(crate) fn initialize_params() -> String {
    format!(r#"{{"protocolVersion":"{LEGACY_LATEST}","capabilities":{{}},"clientInfo":{CLIENT_INFO}}}"#)
}

/// The legacy peer behind an answer to `initialize`.
pub(crate) fn read_initialize(end: &Final) -> Result<Peer, Failure> {
    let bad = |detail: &str| Failure::unsent(Reason::BadAnswer, format!("initialize: {detail}"));
    let result = match end {
        Final::Result(result) => result,
        Final::Error(error) => return Err(bad(&String::from_utf8_lossy(error))),
        Final::Failed(failure) => return Err(failure.clone()),
    };
    let text = std::str::from_utf8(result).map_err(|e| bad(&e.to_string()))?;
    let members = raw::members(text).map_err(|e| bad(&e.to_string()))?;
    let get = |key: &str| members.iter().find(|(k, _)| k == key).map(|(_, value)| value.get());
    let version = get("protocolVersion").and_then(raw::string_of).ok_or_else(|| bad("no protocolVersion"))?;
    if !SPOKEN.contains(&version.as_str()) {
        return Err(bad(&format!("unknown revision {version:?}")));
    }
    Ok(Peer { era: Era::Legacy, version, offers_tools: get("capabilities").is_some_and(has_tools) })
}

fn has_tools(capabilities: &str) -> bool {
    raw::members(capabilities).is_ok_and(|m| m.iter().any(|(key, value)| key == "tools" && value.get() != "null"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(json: &'static str) -> Final {
        Final::Result(bytes::Bytes::from_static(json.as_bytes()))
    }

    #[test]
    fn only_an_answer_that_knows_the_modern_revision_is_modern() {
        let modern = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}"#;
        assert_eq!(
            read_discover(&result(modern)),
            Some(Peer { era: Era::Modern, version: MODERN.to_owned(), offers_tools: true })
        );
        for other in [r#"{"supportedVersions":["2025-11-25"],"capabilities":{}}"#, "{}", "null", "[]"] {
            assert_eq!(read_discover(&result(other)), None, "{other}");
        }
        assert_eq!(read_discover(&Final::Error(bytes::Bytes::new())), None);
    }

    #[test]
    fn a_legacy_server_must_name_a_revision_that_we_speak() {
        let good = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true}}}"#;
        assert!(read_initialize(&result(good)).is_ok_and(|p| p.offers_tools && p.version == "2025-06-18"));
        for bad in [r#"{"protocolVersion":"1999-01-01","capabilities":{}}"#, "{}", "7"] {
            assert!(read_initialize(&result(bad)).is_err_and(|f| f.reason == Reason::BadAnswer), "{bad}");
        }
    }
}
