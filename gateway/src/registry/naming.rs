//! Names as pure functions: base aliases, their allotment, visible names.
//!
//! A visible name is `<alias>__<tool>`, always, and matches `^[a-zA-Z0-9_-]{1,64}$`. An alias holds no `__` and no `_` at
//! its end, so that two aliases never make one name. Names are looked up whole, never parsed, except to say which server
//! an unknown name would have belonged to.

use std::collections::{BTreeMap, BTreeSet};

use rollcall_shared::digest::Digest;
use rollcall_shared::ids::{Alias, ServerId};
use rollcall_shared::limits;
use rollcall_shared::model::tenant::{Allotment, Allotted};

/// Between alias and tool.
pub const SEPARATOR: &str = "__";

/// Rollcall's own tools. No platform tool may take one of these names.
pub const BRIDGE_TOOLS: [&str; 6] =
    ["get_api_spec", "get_prompt", "get_resource", "tool_call", "tool_describe", "tool_search"];

/// The base alias of a server's name, and the connection id that the name ends in, lower-case, if any.
pub fn base_alias(name: &str) -> (Alias, Option<String>) {
    let rest = drop_owner(name);
    let (rest, connection) = match rest.rsplit_once('_') {
        Some((head, tail)) if is_connection_id(tail) => (head, Some(tail.to_ascii_lowercase())),
        _ => (rest, None),
    };
    let mut out = String::new();
    for c in rest.to_lowercase().chars() {
        let c = if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' { c } else { '_' };
        if !(c == '_' && out.ends_with('_')) {
            out.push(c);
        }
    }
    out.truncate(limits::ALIAS_CHARS); // ASCII only by now
    let trimmed = out.trim_matches(['_', '-']);
    let text = if trimmed.is_empty() { "mcp" } else { trimmed };
    (alias(text), connection)
}

/// Builds an alias from text that satisfies the grammar by construction.
fn alias(text: &str) -> Alias {
    match Alias::parse(text) {
        Ok(alias) => alias,
        Err(_) => alias("mcp"),
    }
}

/// Drops a prefix `u<32 hex>__`.
fn drop_owner(name: &str) -> &str {
    let inner = || {
        let (owner, rest) = name.strip_prefix('u')?.split_once(SEPARATOR)?;
        (owner.len() == 32 && owner.bytes().all(|b| b.is_ascii_hexdigit())).then_some(rest)
    };
    inner().unwrap_or(name)
}

/// Eight or more hex digits, not all of them decimal.
fn is_connection_id(text: &str) -> bool {
    text.len() >= 8 && text.bytes().all(|b| b.is_ascii_hexdigit()) && !text.bytes().all(|b| b.is_ascii_digit())
}

/// A server that asks for an alias.
#[derive(Debug, Clone)]
pub struct Newcomer<'a> {
    pub id: &'a ServerId,
    /// What the alias is made from: the server's name, or its id.
    pub name: &'a str,
    /// What the operator chose.
    pub explicit: Option<&'a Alias>,
}

/// Two servers claim one explicit alias.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the alias {alias} of the server {claimant} is taken by the server {holder}")]
pub struct AliasTaken {
    pub alias: Alias,
    pub claimant: ServerId,
    pub holder: ServerId,
}

/// Allots aliases to the servers of one change. What was allotted before is never changed, except that an operator who
/// chooses an alias for a server renames that server; the old alias is remembered.
pub fn allot(before: &Allotment, change: &[Newcomer<'_>]) -> Result<Allotment, AliasTaken> {
    let mut after = before.clone();
    // Whoever holds an alias now, or held it once: an old name must keep answering with its successor.
    let mut taken: BTreeMap<Alias, ServerId> = BTreeMap::new();
    for (id, allotted) in &before.servers {
        taken.insert(allotted.alias.clone(), id.clone());
        taken.extend(allotted.former.iter().map(|alias| (alias.clone(), id.clone())));
    }
    for newcomer in change {
        let Some(wanted) = newcomer.explicit else { continue };
        if let Some(holder) = taken.get(wanted).filter(|holder| *holder != newcomer.id) {
            return Err(AliasTaken { alias: wanted.clone(), claimant: newcomer.id.clone(), holder: holder.clone() });
        }
        taken.insert(wanted.clone(), newcomer.id.clone());
        let allotted = after.servers.entry(newcomer.id.clone()).or_insert_with(|| Allotted {
            alias: wanted.clone(),
            explicit: true,
            former: Vec::new(),
        });
        if allotted.alias != *wanted {
            let old = std::mem::replace(&mut allotted.alias, wanted.clone());
            allotted.former.retain(|former| former != wanted);
            allotted.former.push(old);
        }
        allotted.explicit = true;
    }
    let mut open: Vec<(&Newcomer<'_>, Vec<Alias>)> = change
        .iter()
        .filter(|n| n.explicit.is_none() && !before.servers.contains_key(n.id))
        .map(|n| (n, candidates(n)))
        .collect();
    open.sort_by(|a, b| a.0.id.cmp(b.0.id));
    open.dedup_by(|a, b| a.0.id == b.0.id);
    let rounds = open.iter().map(|(_, list)| list.len()).max().unwrap_or(0);
    for round in 0..rounds {
        let wanted: Vec<Option<Alias>> = open.iter().map(|(_, list)| list.get(round).cloned()).collect();
        let mut count: BTreeMap<&Alias, usize> = BTreeMap::new();
        for alias in wanted.iter().flatten() {
            *count.entry(alias).or_default() += 1;
        }
        let free: BTreeSet<Alias> =
            count.into_iter().filter(|(a, n)| *n == 1 && !taken.contains_key(*a)).map(|(a, _)| a.clone()).collect();
        let mut rest = Vec::new();
        for (entry, wanted) in open.into_iter().zip(wanted) {
            match wanted {
                Some(alias) if free.contains(&alias) => {
                    taken.insert(alias.clone(), entry.0.id.clone());
                    let allotted = Allotted { alias, explicit: false, former: Vec::new() };
                    after.servers.insert(entry.0.id.clone(), allotted);
                }
                _ => rest.push(entry),
            }
        }
        open = rest;
        if open.is_empty() {
            break;
        }
    }
    // Only where others chose all of its aliases by hand, down to the longest hash of its id.
    if let Some((newcomer, list)) = open.first()
        && let Some((alias, holder)) = list.iter().rev().find_map(|alias| taken.get_key_value(alias))
    {
        let (alias, holder) = (alias.clone(), holder.clone());
        return Err(AliasTaken { alias, claimant: newcomer.id.clone(), holder });
    }
    Ok(after)
}

/// The aliases that a server may get, best first: bare, with 4 and 8 of the connection id, then with ever more of the
/// hash of its id. Server ids differ, so the last ones do.
fn candidates(newcomer: &Newcomer<'_>) -> Vec<Alias> {
    let (base, connection) = base_alias(newcomer.name);
    let hash = Digest::of(newcomer.id.as_str().as_bytes());
    let mut out = vec![base.clone()];
    let connection = connection.unwrap_or_default();
    out.extend([4, 8].into_iter().filter_map(|n| Some(alias(&format!("{base}_{}", connection.get(..n)?)))));
    out.push(alias(&format!("{base}_{}", hash.hex(8))));
    out.extend([12, 16, 24, 32, 39].into_iter().map(|n| {
        let head: String = base.as_str().chars().take(39 - n).collect();
        let head = head.trim_end_matches(['_', '-']);
        if head.is_empty() { alias(&hash.hex(n)) } else { alias(&format!("{head}_{}", hash.hex(n))) }
    }));
    out
}

/// How many hex digits a changed or cut name carries; more where two names of one server would meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashDigits {
    pub changed: usize,
    pub cut: usize,
}

impl HashDigits {
    pub const SHORT: Self = Self { changed: 6, cut: 8 };
    pub const LONG: Self = Self { changed: 16, cut: 16 };
    pub const LONGEST: Self = Self { changed: 30, cut: 30 };
}

/// A visible name, and whether it depends on more than alias and real name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visible {
    pub name: String,
    /// The real name was changed: a hash of it is part of the name.
    pub changed: bool,
    /// The name was cut: it ends in a hash that depends on the server's id.
    pub cut: bool,
}

/// The visible name of a tool. Pure: nothing else that is configured matters.
pub fn visible(alias: &Alias, real: &str, budget: usize, server: &ServerId, digits: HashDigits) -> Visible {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let changed = !real.chars().all(allowed);
    let mut name = format!("{alias}{SEPARATOR}");
    name.extend(real.chars().map(|c| if allowed(c) { c } else { '_' }));
    if changed {
        name.push('_');
        name.push_str(&Digest::of(real.as_bytes()).hex(digits.changed));
    }
    let cut = name.len() > budget;
    if cut {
        let hash = Digest::of(format!("{server}\0{real}").as_bytes()).hex(digits.cut);
        name.truncate(budget.saturating_sub(digits.cut + 1)); // ASCII only
        name.push('_');
        name.push_str(&hash);
    }
    Visible { name, changed, cut }
}

#[cfg(test)]
mod tests;
