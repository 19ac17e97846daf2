//! Policy documents: the rules of a session.
//!
//! `allow` absent means all that is registered; `[]` means none, deliberately not "all". `deny` wins over `allow`.

use serde::{Deserialize, Serialize};

use super::entry::Entry;
use crate::document::{Fields, Kind, Node, Problems};
use crate::ids::ServerId;
use crate::limits;

/// Which of Rollcall's own tools a session is offered.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BridgeTools {
    #[default]
    Auto,
    None,
    Names(Vec<String>),
}

/// What a `deny` entry matched when it was written, so that no rename slips past it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// An exact name: this tool of this server, whatever it is called later.
    Tool { server: ServerId, real: String },
    /// A glob: it is also tried on the names that the server's tools would have under this alias and budget.
    NamedAs { server: ServerId, alias: String, budget: usize },
}

/// A `deny` entry with its bindings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    pub entry: Entry,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bound: Vec<Bound>,
}

/// The rules of a session.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Policy {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<Entry>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Denial>,
    /// Only tools that are annotated read-only by a server whose annotations are trusted.
    #[serde(default)]
    pub read_only: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defer_above: Option<usize>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<String>,
    #[serde(default)]
    pub bridge_tools: BridgeTools,
    /// Seconds since 1970; from then on everything is denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
}

/// What is stored for a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionPolicy {
    Rules(Policy),
    /// The policy was deleted, or the session revoked: denied until no token can ask any more.
    Tombstone {
        since: u64,
    },
}

impl Policy {
    pub fn read(node: &Node, path: &str, problems: &Problems) -> Option<Self> {
        let mut fields = node.fields(path, problems)?;
        let policy = Self {
            allow: fields.optional("allow").map(|(n, p)| read_entries(n, &p, problems)),
            deny: fields
                .optional("deny")
                .map(|(n, p)| read_entries(n, &p, problems))
                .unwrap_or_default()
                .into_iter()
                .map(|entry| Denial { entry, bound: Vec::new() })
                .collect(),
            read_only: read_require(&mut fields, problems),
            defer_above: fields
                .optional("defer_above")
                .and_then(|(n, p)| n.integer(&p, 0..=1_000_000, problems))
                .map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
            pinned: fields
                .optional("pinned")
                .map(|(n, p)| n.list(&p, problems, |n, p| n.text(p, problems).map(str::to_owned)))
                .unwrap_or_default(),
            bridge_tools: fields
                .optional("bridge_tools")
                .and_then(|(n, p)| read_bridge_tools(n, &p, problems))
                .unwrap_or_default(),
            expires_at: fields.optional("expires_at").and_then(|(n, p)| n.integer(&p, 0..=u64::MAX, problems)),
        };
        fields.finish();
        Some(policy)
    }

    /// Whether the policy denies everything at `now` (seconds since 1970).
    pub fn is_expired(&self, now: u64) -> bool {
        self.expires_at.is_some_and(|end| now >= end)
    }
}

/// A list of entries, each parsed.
pub fn read_entries(node: &Node, path: &str, problems: &Problems) -> Vec<Entry> {
    let entries = node.list(path, problems, |n, p| n.parsed(p, problems, Entry::parse));
    if entries.len() > limits::POLICY_ENTRIES {
        problems.add(&node.place, path, format!("more than {} entries", limits::POLICY_ENTRIES));
    }
    entries
}

fn read_require(fields: &mut Fields<'_>, problems: &Problems) -> bool {
    let Some((node, path)) = fields.optional("require") else { return false };
    let Some(mut inner) = node.fields(&path, problems) else { return false };
    let read_only = inner.optional("read_only").and_then(|(n, p)| n.boolean(&p, problems)).unwrap_or(false);
    inner.finish();
    read_only
}

fn read_bridge_tools(node: &Node, path: &str, problems: &Problems) -> Option<BridgeTools> {
    match &node.kind {
        Kind::Text(word) if word == "auto" => Some(BridgeTools::Auto),
        Kind::Text(word) if word == "none" => Some(BridgeTools::None),
        Kind::List(_) => {
            Some(BridgeTools::Names(node.list(path, problems, |n, p| n.text(p, problems).map(str::to_owned))))
        }
        Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::Text(_) | Kind::Map(_) => {
            problems.add(&node.place, path, "expected auto, none, or a list of bridge tools");
            None
        }
    }
}
