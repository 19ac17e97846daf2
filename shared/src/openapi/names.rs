//! The names of operations: `operationId`, else method and path, in the grammar of tool names.

use std::collections::BTreeMap;

use super::document::Found;
use crate::digest::Digest;
use crate::ids::PlatformName;
use crate::limits;

/// Digits of the hash that tells operations of one name apart; more where they would still meet.
const DIGITS: [usize; 4] = [0, 6, 16, 32];
/// The least that a name which was cut carries.
const CUT_DIGITS: usize = 8;

/// A name for each operation, all different.
pub(super) fn names(operations: &[Found<'_>], prefix: &str) -> Vec<PlatformName> {
    let bases: Vec<String> = operations.iter().map(|found| format!("{prefix}{}", base(found))).collect();
    let mut digits = vec![0usize; operations.len()];
    let mut names = Vec::new();
    for more in DIGITS {
        names = operations.iter().zip(&bases).zip(&digits).map(|((found, base), n)| name(found, base, *n)).collect();
        let mut count: BTreeMap<&str, usize> = BTreeMap::new();
        for name in &names {
            *count.entry(name).or_default() += 1;
        }
        let next = DIGITS.into_iter().find(|n| *n > more).unwrap_or(more);
        let mut all_differ = true;
        for (name, digits) in names.iter().zip(&mut digits) {
            if count.get(name.as_str()).is_some_and(|count| *count > 1) {
                *digits = next;
                all_differ = false;
            }
        }
        if all_differ {
            break;
        }
    }
    names.iter().filter_map(|name| PlatformName::parse(name).ok()).collect()
}

fn base(found: &Found<'_>) -> String {
    let given: String = found.text("operationId").unwrap_or_default().chars().map(in_grammar).collect();
    if given.bytes().any(|b| b.is_ascii_alphanumeric()) { given } else { of_path(found) }
}

fn in_grammar(c: char) -> char {
    if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }
}

/// `GET /users/{id}/keys` is `get_users_id_keys`.
fn of_path(found: &Found<'_>) -> String {
    let mut out = found.method.to_ascii_lowercase();
    for c in found.path.chars().map(in_grammar) {
        if c == '_' {
            if !out.ends_with('_') {
                out.push('_');
            }
        } else {
            out.push(c);
        }
    }
    out.trim_end_matches('_').to_owned()
}

fn name(found: &Found<'_>, base: &str, digits: usize) -> String {
    let too_long = base.len() > limits::NAME_CHARS;
    let digits = if too_long { digits.max(CUT_DIGITS) } else { digits };
    if digits == 0 {
        return base.to_owned();
    }
    let hash = Digest::of(found.to_string().as_bytes()).hex(digits);
    let kept = base.len().min(limits::NAME_CHARS - 1 - digits);
    format!("{}_{hash}", base.get(..kept).unwrap_or_default()) // ASCII only
}
