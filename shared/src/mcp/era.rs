//! Revisions of MCP, and which era a request belongs to.
//!
//! Modern (2026-07-28) is stateless: every request carries its revision and the caller's capabilities in `params._meta`.
//! Legacy (2025-03-26 to 2025-11-25) opens with `initialize`. The body decides; the header must agree with it.

/// Newest first. All are served on the same endpoint.
pub const REVISIONS: [&str; 4] = [MODERN, "2025-11-25", "2025-06-18", "2025-03-26"];
pub const MODERN: &str = "2026-07-28";
pub const LEGACY_LATEST: &str = "2025-11-25";

/// Keys of `params._meta` that a modern request carries (specification 2026-07-28, basic, section _meta).
pub const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
pub const META_CLIENT: &str = "io.modelcontextprotocol/clientInfo";
pub const META_LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
pub const META_SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
pub const META_SERVER: &str = "io.modelcontextprotocol/serverInfo";
/// Our own key for the digest of the view that an answer was made from.
pub const META_VIEW: &str = "io.rollcall/view";

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Era {
    Modern,
    Legacy,
}

impl Era {
    pub fn label(self) -> &'static str {
        match self {
            Era::Modern => "modern",
            Era::Legacy => "legacy",
        }
    }
}

/// A legacy revision that we serve, for `initialize`: the asked one, else our latest legacy one.
pub fn legacy_answer(asked: &str) -> &'static str {
    REVISIONS.into_iter().find(|r| *r == asked && *r != MODERN).unwrap_or(LEGACY_LATEST)
}

pub fn is_served(revision: &str) -> bool {
    REVISIONS.contains(&revision)
}
