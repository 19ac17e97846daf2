//! What a legacy transport session must remember between its requests. Most sessions have none of it.
//!
//! The session itself is its sealed id: it names its owner, its revision and what its client can be asked. Only what
//! changes afterwards is stored, under the session's number, until the id expires.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct McpSession {
    /// Ended by its client (`DELETE`): it is answered like one that never was.
    #[serde(default)]
    pub ended: bool,
    /// The least severity that its client asked for (`logging/setLevel`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<String>,
    /// The URIs that its client subscribed to, as it knows them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub subscriptions: BTreeSet<String>,
}
