//! One entry of a policy list or bundle, and globs with linear-time matching.
//!
//! An entry is a visible name, a glob of visible names, `server:<id>`, `server:<id>/<glob of real names>`, `group:<g>`,
//! `bundle:<b>`, or one of these behind `prompt:` or `resource:`.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::catalog::EntryKind;
use crate::ids::{BundleName, GroupName, ServerId};
use crate::limits;

/// A pattern with at most two `*`, each of which stands for any run of characters.
///
/// The text between stars is found from the left, so that matching never backtracks: linear in the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    text: String,
    /// The literal parts between the stars: 1 (no star) to 3.
    parts: Vec<String>,
}

impl Glob {
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<String> = text.split('*').map(str::to_owned).collect();
        if parts.len() > limits::GLOB_STARS + 1 {
            return Err(format!("more than {} stars", limits::GLOB_STARS));
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The literal text that every match begins with.
    pub fn prefix(&self) -> &str {
        self.parts.first().map_or("", String::as_str)
    }

    /// The name itself, if there is no star.
    pub fn literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    pub fn matches(&self, name: &str) -> bool {
        let name = name.as_bytes();
        match self.parts.as_slice() {
            [only] => name == only.as_bytes(),
            [first, last] => behind(name, first).is_some_and(|rest| before(rest, last).is_some()),
            [first, middle, last] => behind(name, first)
                .and_then(|rest| before(rest, last))
                .is_some_and(|rest| memchr::memmem::find(rest, middle.as_bytes()).is_some()),
            _ => false,
        }
    }
}

/// What follows `part` at the start of `name`. Byte by byte: these parts are short or empty, and a call of the library's
/// comparison for each of thousands of names was four fifths of a glob's cost.
fn behind<'n>(name: &'n [u8], part: &str) -> Option<&'n [u8]> {
    let (head, rest) = name.split_at_checked(part.len())?;
    head.iter().zip(part.as_bytes()).all(|(a, b)| a == b).then_some(rest)
}

/// What precedes `part` at the end of `name`.
fn before<'n>(name: &'n [u8], part: &str) -> Option<&'n [u8]> {
    let (rest, tail) = name.split_at_checked(name.len().checked_sub(part.len())?)?;
    tail.iter().zip(part.as_bytes()).all(|(a, b)| a == b).then_some(rest)
}

/// What an entry points at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Visible names.
    Names(Glob),
    /// All of a server, or those of its real names that match.
    Server(ServerId, Option<Glob>),
    Group(GroupName),
    Bundle(BundleName),
}

/// An entry as written, and as understood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Entry {
    text: String,
    pub kind: EntryKind,
    pub target: Target,
}

impl Entry {
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > limits::ENTRY_BYTES {
            return Err(format!("an entry must have 1 to {} bytes", limits::ENTRY_BYTES));
        }
        let (kind, rest) = if let Some(rest) = text.strip_prefix("prompt:") {
            (EntryKind::Prompt, rest)
        } else if let Some(rest) = text.strip_prefix("resource:") {
            (EntryKind::Resource, rest)
        } else {
            (EntryKind::Tool, text)
        };
        let target = if let Some(rest) = rest.strip_prefix("server:") {
            let (id, glob) = match rest.split_once('/') {
                Some((id, glob)) => (id, Some(Glob::parse(glob)?)),
                None => (rest, None),
            };
            Target::Server(ServerId::parse(id).map_err(|e| e.to_string())?, glob)
        } else if let Some(rest) = rest.strip_prefix("group:") {
            Target::Group(GroupName::parse(rest).map_err(|e| e.to_string())?)
        } else if let Some(rest) = rest.strip_prefix("bundle:") {
            Target::Bundle(BundleName::parse(rest).map_err(|e| e.to_string())?)
        } else {
            let allowed = |b: u8| match kind {
                EntryKind::Resource | EntryKind::Template => b.is_ascii_graphic(),
                EntryKind::Tool | EntryKind::Prompt => b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'*'),
            };
            if rest.is_empty() || !rest.bytes().all(allowed) {
                return Err("neither a visible name (letters, digits, `_`, `-`, and up to two `*`) nor one of \
                            server:, group:, bundle:, prompt:, resource:"
                    .to_owned());
            }
            Target::Names(Glob::parse(rest)?)
        };
        Ok(Self { text: text.to_owned(), kind, target })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The same entry for another kind, as `prompt:bundle:b` asks for.
    #[must_use]
    pub fn as_kind(&self, kind: EntryKind) -> Self {
        Self { kind, ..self.clone() }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TryFrom<String> for Entry {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<Entry> for String {
    fn from(entry: Entry) -> String {
        entry.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The obvious matcher, by trying every split: what a glob means.
    fn naive(glob: &[u8], name: &[u8]) -> bool {
        match (glob.split_first(), name.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) => (0..=name.len()).any(|i| naive(rest, &name[i..])),
            (Some((g, rest)), Some((n, tail))) => g == n && naive(rest, tail),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn a_glob_means_what_the_naive_matcher_says(glob in "[ab]{0,3}(\\*[ab]{0,3}){0,2}", name in "[ab]{0,8}") {
            let parsed = Glob::parse(&glob).map_err(TestCaseError::fail)?;
            prop_assert_eq!(parsed.matches(&name), naive(glob.as_bytes(), name.as_bytes()), "{} on {}", glob, name);
        }
    }

    #[test]
    fn entries_are_understood_or_refused() {
        let good =
            ["neon__run_sql", "neon__*", "*_get_*", "server:abc", "server:abc/run_*", "group:db", "bundle:support"];
        for text in good {
            assert!(Entry::parse(text).is_ok(), "{text}");
            assert!(Entry::parse(&format!("prompt:{text}")).is_ok(), "prompt:{text}");
        }
        assert!(Entry::parse("resource:rollcall://files/*").is_ok());
        for text in ["", "a b", "*a*b*", "server:", "server:a b", "group:", "bundle:/", "a.b", "prompt:", "ä"] {
            assert!(Entry::parse(text).is_err(), "{text:?}");
        }
    }
}
