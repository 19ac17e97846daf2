//! A tree of values that know where they stand, and the readers of its values.

use std::fmt;
use std::time::Duration;

use super::problems::{Problems, nearest};

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Line and column, both from 1.
    Line { line: usize, column: usize },
    /// An environment variable that overrides a key.
    Env(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line { line, column } => write!(f, "line {line} column {column}"),
            Place::Env(name) => write!(f, "environment variable {name}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    Null,
    Bool(bool),
    /// As written, so that big numbers stay whole.
    Number(String),
    Text(String),
    List(Vec<Node>),
    /// In order. Keys are unique: the parsers report duplicates.
    Map(Vec<(String, Node)>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    pub place: Place,
    pub kind: Kind,
}

impl Node {
    fn describe(&self) -> &'static str {
        match self.kind {
            Kind::Null => "nothing",
            Kind::Bool(_) => "a boolean",
            Kind::Number(_) => "a number",
            Kind::Text(_) => "a text",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a map",
        }
    }

    fn wrong(&self, path: &str, expected: &str, problems: &Problems) {
        problems.add(&self.place, path, format!("expected {expected}, found {}", self.describe()));
    }

    /// The fields of a map; reported and `None` for anything else.
    pub fn fields<'a>(&'a self, path: &str, problems: &'a Problems) -> Option<Fields<'a>> {
        match &self.kind {
            Kind::Map(entries) => {
                Some(Fields { node: self, entries, path: path.to_owned(), asked: Vec::new(), problems })
            }
            Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::Text(_) | Kind::List(_) => {
                self.wrong(path, "a map", problems);
                None
            }
        }
    }

    /// The entries of a map whose keys are names, not fields.
    pub fn entries(&self, path: &str, problems: &Problems) -> &[(String, Node)] {
        match &self.kind {
            Kind::Map(entries) => entries,
            Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::Text(_) | Kind::List(_) => {
                self.wrong(path, "a map", problems);
                &[]
            }
        }
    }

    pub fn text(&self, path: &str, problems: &Problems) -> Option<&str> {
        match &self.kind {
            Kind::Text(text) => Some(text),
            Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::List(_) | Kind::Map(_) => {
                self.wrong(path, "a text", problems);
                None
            }
        }
    }

    pub fn boolean(&self, path: &str, problems: &Problems) -> Option<bool> {
        match self.kind {
            Kind::Bool(value) => Some(value),
            Kind::Null | Kind::Number(_) | Kind::Text(_) | Kind::List(_) | Kind::Map(_) => {
                self.wrong(path, "true or false", problems);
                None
            }
        }
    }

    /// A whole number in `range`.
    pub fn integer(&self, path: &str, range: std::ops::RangeInclusive<u64>, problems: &Problems) -> Option<u64> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        let Kind::Number(digits) = &self.kind else {
            self.wrong(path, &expected, problems);
            return None;
        };
        let value = digits.parse().ok().filter(|n| range.contains(n));
        if value.is_none() {
            problems.add(&self.place, path, format!("expected {expected}, found {digits}"));
        }
        value
    }

    /// A size: a number of bytes, or a text such as `4MiB`, `64KiB`, `1GiB`.
    pub fn bytes(&self, path: &str, problems: &Problems) -> Option<usize> {
        let text = match &self.kind {
            Kind::Number(text) | Kind::Text(text) => text,
            Kind::Null | Kind::Bool(_) | Kind::List(_) | Kind::Map(_) => {
                self.wrong(path, "a size such as 4MiB", problems);
                return None;
            }
        };
        let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("B", 0), ("", 0)];
        let size = units.iter().find_map(|(unit, shift)| {
            let n: usize = text.strip_suffix(unit)?.trim().parse().ok()?;
            n.checked_mul(1 << shift).filter(|n| *n > 0)
        });
        if size.is_none() {
            problems.add(&self.place, path, format!("expected a size such as 4MiB, found {text:?}"));
        }
        size
    }

    /// A time such as `500ms`, `30s`, `5m`, `1h`.
    pub fn duration(&self, path: &str, problems: &Problems) -> Option<Duration> {
        let text = match &self.kind {
            Kind::Text(text) | Kind::Number(text) => text,
            Kind::Null | Kind::Bool(_) | Kind::List(_) | Kind::Map(_) => {
                self.wrong(path, "a time such as 30s", problems);
                return None;
            }
        };
        let time = parse_duration(text);
        if time.is_none() {
            problems.add(&self.place, path, format!("expected a time such as 500ms, 30s, 5m or 1h, found {text:?}"));
        }
        time
    }

    /// Each element of a list, read by `read` with its own path.
    pub fn list<T>(&self, path: &str, problems: &Problems, mut read: impl FnMut(&Node, &str) -> Option<T>) -> Vec<T> {
        match &self.kind {
            Kind::List(nodes) => {
                nodes.iter().enumerate().filter_map(|(i, node)| read(node, &format!("{path}[{i}]"))).collect()
            }
            Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::Text(_) | Kind::Map(_) => {
                self.wrong(path, "a list", problems);
                Vec::new()
            }
        }
    }

    /// A text that `parse` accepts; its error is the problem.
    pub fn parsed<T, E: fmt::Display>(
        &self,
        path: &str,
        problems: &Problems,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(path, problems)?;
        match parse(text) {
            Ok(value) => Some(value),
            Err(error) => {
                problems.add(&self.place, path, format!("{text:?}: {error}"));
                None
            }
        }
    }

    /// One of a closed list of words.
    pub fn choice<T: Copy>(&self, path: &str, problems: &Problems, words: &[(&str, T)]) -> Option<T> {
        let text = self.text(path, problems)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            let list: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            problems.add(&self.place, path, format!("expected one of {}, found {text:?}", list.join(", ")));
        }
        found
    }

    /// The value as JSON, keys in order, numbers as written.
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        self.write_json(&mut out);
        out
    }

    fn write_json(&self, out: &mut String) {
        match &self.kind {
            Kind::Null => out.push_str("null"),
            Kind::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Kind::Number(digits) => out.push_str(digits),
            Kind::Text(text) => out.push_str(&crate::mcp::raw::quote(text)),
            Kind::List(nodes) => {
                out.push('[');
                for (i, node) in nodes.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    node.write_json(out);
                }
                out.push(']');
            }
            Kind::Map(entries) => {
                out.push('{');
                for (i, (key, node)) in entries.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    out.push_str(&crate::mcp::raw::quote(key));
                    out.push(':');
                    node.write_json(out);
                }
                out.push('}');
            }
        }
    }
}

/// `500ms`, `30s`, `5m`, `1h`, `7d`.
fn parse_duration(text: &str) -> Option<Duration> {
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    units.iter().find_map(|(unit, ms)| {
        let n: u64 = text.strip_suffix(unit)?.parse().ok()?;
        n.checked_mul(*ms).filter(|ms| *ms > 0).map(Duration::from_millis)
    })
}

/// A map that is being read: `finish` reports the keys that nobody asked for.
pub struct Fields<'a> {
    node: &'a Node,
    entries: &'a [(String, Node)],
    path: String,
    asked: Vec<&'static str>,
    problems: &'a Problems,
}

impl<'a> Fields<'a> {
    /// A key that may be absent, with its path. `null` counts as absent.
    pub fn optional(&mut self, key: &'static str) -> Option<(&'a Node, String)> {
        self.asked.push(key);
        let (_, node) = self.entries.iter().find(|(k, _)| k == key)?;
        (node.kind != Kind::Null).then(|| (node, self.path_of(key)))
    }

    /// A key that must be there.
    pub fn required(&mut self, key: &'static str) -> Option<(&'a Node, String)> {
        let found = self.optional(key);
        if found.is_none() {
            self.problems.add(&self.node.place, &self.path, format!("`{key}` is missing"));
        }
        found
    }

    pub fn problem(&self, what: impl Into<String>) {
        self.problems.add(&self.node.place, &self.path, what);
    }

    /// Reports every key that was not asked for, with the nearest that was.
    pub fn finish(self) {
        for (key, node) in self.entries {
            if !self.asked.contains(&key.as_str()) {
                let hint = nearest(key, self.asked.iter().copied())
                    .map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
                self.problems.add(&node.place, &self.path, format!("unknown key `{key}`{hint}"));
            }
        }
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}
