//! Opening a connection: which era a server speaks, and what it offers.
//!
//! `server/discover` is asked first; an answer that knows the modern revision settles it, and anything else, or silence,
//! leads to `initialize` (specification 2026-07-28, basic/transports/stdio, section Backward Compatibility). A server that
//! refuses the revision by the modern era's own error is a modern one: it is asked once more where it names our revision
//! after all, and left alone where it names none of ours. A call is never sent to find an era out.

use rollcall_shared::mcp::era::{Era, LEGACY_LATEST, META_SERVER, MODERN};
use rollcall_shared::mcp::jsonrpc::{ErrorObject, code};
use rollcall_shared::mcp::raw;
use rollcall_shared::model::About;
use rollcall_shared::wire::{Failure, Final, Reason};
use serde_json::value::RawValue;

use super::message::CLIENT_INFO;

/// Who is at the other end.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) era: Era,
    /// The revision that is spoken.
    pub(crate) version: String,
    pub(crate) about: About,
}

impl Peer {
    /// Nobody yet; what is sent to it is sent in the modern way.
    pub(crate) fn unknown() -> Self {
        Self { era: Era::Modern, version: MODERN.to_owned(), about: About::default() }
    }

    /// Whether the upstream said that it has this capability.
    pub(crate) fn offers(&self, capability: &str) -> bool {
        self.about.capability(capability).is_some()
    }
}

/// Legacy revisions that we can speak to a server. The oldest only over stdio, where its framing is the same.
const SPOKEN: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// How often `server/discover` is asked: a server that has refused the revision and names it is asked once more.
pub(crate) const PROBES: usize = 2;

/// What an answer to `server/discover` makes of the server.
#[derive(Debug)]
pub(crate) enum Probed {
    Modern(Peer),
    /// Modern: it refused the revision that it was asked in, and says that it speaks it.
    Refused,
    /// Not modern, as far as it shows.
    Other,
}

/// Reads an answer to `server/discover`. Fails for a modern server with which we have no revision in common: `initialize`
/// would be wrong there.
pub(crate) fn read_discover(end: &Final) -> Result<Probed, Failure> {
    match end {
        Final::Result(result) => Ok(read_discovered(result).map_or(Probed::Other, Probed::Modern)),
        Final::Error(error) => read_refused(error),
        Final::Parked { .. } | Final::Failed(_) => Ok(Probed::Other),
    }
}

fn read_discovered(result: &[u8]) -> Option<Peer> {
    let members = raw::members(std::str::from_utf8(result).ok()?).ok()?;
    let get = |key: &str| members.iter().find(|(k, _)| k == key).map(|(_, value)| *value);
    let versions: Vec<String> = serde_json::from_str(get("supportedVersions")?.get()).ok()?;
    let meta = get("_meta").and_then(|meta| raw::members(meta.get()).ok()).unwrap_or_default();
    let info = meta.iter().find(|(key, _)| key == META_SERVER).map(|(_, value)| *value);
    versions.iter().any(|v| v == MODERN).then(|| Peer {
        era: Era::Modern,
        version: MODERN.to_owned(),
        about: about(get("capabilities"), get("instructions"), info),
    })
}

fn read_refused(error: &[u8]) -> Result<Probed, Failure> {
    let refused = serde_json::from_slice::<ErrorObject>(error).ok();
    let refused = refused.filter(|error| error.code == i64::from(code::UNSUPPORTED_VERSION));
    let data = refused.and_then(|error| error.data).unwrap_or_default();
    let supported: Vec<&str> = data
        .get("supported")
        .and_then(serde_json::Value::as_array)
        .map(|supported| supported.iter().filter_map(serde_json::Value::as_str).collect())
        .unwrap_or_default();
    if supported.contains(&MODERN) {
        return Ok(Probed::Refused);
    }
    if supported.is_empty() || supported.iter().any(|version| SPOKEN.contains(version)) {
        return Ok(Probed::Other);
    }
    let named: String = supported.join(", ").chars().take(200).collect();
    Err(Failure::unsent(Reason::BadAnswer, format!("the server speaks no revision of ours: {named}")))
}

/// The server refuses again what it says that it speaks.
pub(crate) fn refused_again() -> Failure {
    Failure::unsent(Reason::BadAnswer, format!("the server names {MODERN} and refuses it"))
}

fn about(capabilities: Option<&RawValue>, instructions: Option<&RawValue>, info: Option<&RawValue>) -> About {
    let object = |value: Option<&RawValue>| value.filter(|v| v.get().starts_with('{')).map(ToOwned::to_owned);
    About {
        capabilities: object(capabilities),
        instructions: instructions.filter(|v| v.get().starts_with('"')).map(ToOwned::to_owned),
        info: object(info),
    }
}

/// Params of `initialize`. What a server may ask is declared only where each question can be tied to one call.
pub(crate) fn initialize_params(can_be_asked: bool) -> String {
    let capabilities =
        if can_be_asked { r#"{"roots":{},"sampling":{},"elicitation":{"form":{},"url":{}}}"# } else { "{}" };
    format!(r#"{{"protocolVersion":"{LEGACY_LATEST}","capabilities":{capabilities},"clientInfo":{CLIENT_INFO}}}"#)
}

/// The legacy peer behind an answer to `initialize`.
pub(crate) fn read_initialize(end: &Final) -> Result<Peer, Failure> {
    let bad = |detail: &str| Failure::unsent(Reason::BadAnswer, format!("initialize: {detail}"));
    let result = match end {
        Final::Result(result) => result,
        Final::Error(error) => return Err(bad(&String::from_utf8_lossy(error))),
        Final::Parked { .. } => return Err(bad("it waits for input")),
        Final::Failed(failure) => return Err(failure.clone()),
    };
    let text = std::str::from_utf8(result).map_err(|e| bad(&e.to_string()))?;
    let members = raw::members(text).map_err(|e| bad(&e.to_string()))?;
    let get = |key: &str| members.iter().find(|(k, _)| k == key).map(|(_, value)| *value);
    let version = get("protocolVersion").and_then(raw::string).ok_or_else(|| bad("no protocolVersion"))?;
    if !SPOKEN.contains(&version.as_str()) {
        return Err(bad(&format!("unknown revision {version:?}")));
    }
    let about = about(get("capabilities"), get("instructions"), get("serverInfo"));
    Ok(Peer { era: Era::Legacy, version, about })
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
        let Ok(Probed::Modern(peer)) = read_discover(&result(modern)) else { panic!("a modern one") };
        assert!(peer.era == Era::Modern && peer.offers("tools") && !peer.offers("prompts"));
        for other in [r#"{"supportedVersions":["2025-11-25"],"capabilities":{}}"#, "{}", "null", "[]"] {
            assert!(matches!(read_discover(&result(other)), Ok(Probed::Other)), "{other}");
        }
        assert!(matches!(read_discover(&Final::Error(bytes::Bytes::new())), Ok(Probed::Other)));
    }

    #[test]
    fn a_refused_revision_is_tried_again_only_where_the_server_names_it() {
        let refused = |code: i32, data: &str| {
            let error = format!(r#"{{"code":{code},"message":"no","data":{data}}}"#);
            read_discover(&Final::Error(error.into()))
        };
        let named = r#"{"supported":["2026-07-28","2025-11-25"],"requested":"x"}"#;
        assert!(matches!(refused(-32022, named), Ok(Probed::Refused)));
        assert!(matches!(refused(-32602, named), Ok(Probed::Other)), "another error");
        assert!(matches!(refused(-32022, r#"{"supported":["2025-11-25"]}"#), Ok(Probed::Other)));
        for vague in ["null", "7", r#"{"supported":7}"#, r#"{"supported":[]}"#] {
            assert!(matches!(refused(-32022, vague), Ok(Probed::Other)), "{vague}");
        }
        let foreign = refused(-32022, r#"{"supported":["2031-01-01"]}"#);
        assert!(foreign.is_err_and(|failure| failure.detail.contains("2031-01-01") && !failure.may_have_run));
    }

    #[test]
    fn a_legacy_server_must_name_a_revision_that_we_speak() {
        let good = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true}}}"#;
        assert!(read_initialize(&result(good)).is_ok_and(|p| p.offers("tools") && p.version == "2025-06-18"));
        for bad in [r#"{"protocolVersion":"1999-01-01","capabilities":{}}"#, "{}", "7"] {
            assert!(read_initialize(&result(bad)).is_err_and(|f| f.reason == Reason::BadAnswer), "{bad}");
        }
    }
}
