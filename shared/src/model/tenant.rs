//! A tenant's settings, its bundles, and the aliases that it allotted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::entry::{Entry, Target};
use super::policy::{Policy, read_entries};
use crate::document::{Fields, Node, Problems};
use crate::ids::{Alias, ServerId};
use crate::limits;

/// What a tenant sets for itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Characters of a visible name; clients add prefixes of their own.
    pub name_budget: usize,
    /// A denied name is answered exactly like an unknown one.
    pub hide_denied: bool,
    /// `server_name` in `get_api_spec` is refused instead of ignored.
    pub reject_server_name: bool,
    /// Arguments of servers' tools are checked against the schema that the server gave, before anything is sent.
    #[serde(default)]
    pub check_arguments: bool,
    #[serde(default)]
    pub defer_above: Option<usize>,
    /// Each request asks the store whether anything changed before it: a revocation that was answered is in effect.
    #[serde(default)]
    pub strict: bool,
    /// For sessions that were never given a policy; without it they may use nothing.
    #[serde(default)]
    pub default_policy: Option<Policy>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name_budget: limits::NAME_CHARS,
            hide_denied: false,
            reject_server_name: false,
            check_arguments: false,
            defer_above: None,
            strict: false,
            default_policy: None,
        }
    }
}

impl Settings {
    pub fn read(node: &Node, path: &str, problems: &Problems) -> Option<Self> {
        let mut fields = node.fields(path, problems)?;
        let settings = Self::read_fields(&mut fields, problems);
        fields.finish();
        Some(settings)
    }

    /// The settings among other fields of a tenant in the configuration file.
    pub fn read_fields(fields: &mut Fields<'_>, problems: &Problems) -> Self {
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Self {
            name_budget: fields
                .optional("name_budget")
                .and_then(|(n, p)| n.integer(&p, limits::NAME_CHARS_LEAST as u64..=limits::NAME_CHARS as u64, problems))
                .map_or(limits::NAME_CHARS, size),
            hide_denied: fields
                .optional("denied")
                .and_then(|(n, p)| n.choice(&p, problems, &[("explain", false), ("hidden", true)]))
                .unwrap_or(false),
            reject_server_name: fields
                .optional("server_name")
                .and_then(|(n, p)| n.choice(&p, problems, &[("ignore", false), ("reject", true)]))
                .unwrap_or(false),
            check_arguments: fields
                .optional("arguments")
                .and_then(|(n, p)| n.choice(&p, problems, &[("pass", false), ("check", true)]))
                .unwrap_or(false),
            defer_above: fields
                .optional("defer_above")
                .and_then(|(n, p)| n.integer(&p, 0..=1_000_000, problems))
                .map(size),
            strict: fields
                .optional("freshness")
                .and_then(|(n, p)| n.choice(&p, problems, &[("lease", false), ("strict", true)]))
                .unwrap_or(false),
            default_policy: fields.optional("default_policy").and_then(|(n, p)| Policy::read(n, &p, problems)),
        }
    }
}

/// A named list of policy entries. Bundles do not nest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bundle {
    pub entries: Vec<Entry>,
}

impl Bundle {
    pub fn read(node: &Node, path: &str, problems: &Problems) -> Self {
        let entries = read_entries(node, path, problems);
        for entry in &entries {
            if matches!(entry.target, Target::Bundle(_)) {
                problems.add(&node.place, path, format!("`{entry}`: a bundle holds no bundles"));
            }
        }
        Self { entries }
    }
}

/// The alias of one server, and those it had before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allotted {
    pub alias: Alias,
    /// Whether the operator chose it.
    #[serde(default)]
    pub explicit: bool,
    /// An old name answers with its successor, and a deny still matches it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<Alias>,
}

/// All aliases of a tenant. Kept as one document, so that two registrations at once cannot take the same one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Allotment {
    pub servers: BTreeMap<ServerId, Allotted>,
}
