//! JSON into nodes, with lines and columns.

use std::collections::HashSet;

use serde_json::value::RawValue;

use super::node::{Kind, Node, Place};
use super::problems::Problems;
use crate::limits;
use crate::mcp::raw;

/// Reads one JSON text. Syntax errors, duplicate keys and too deep nesting are problems.
pub fn from_json(text: &str, problems: &Problems) -> Option<Node> {
    match serde_json::from_str::<&RawValue>(text) {
        Ok(value) => Builder { root: text, cursor: Cursor::default(), problems }.build(value.get(), 0, ""),
        Err(error) => {
            let place = Place::Line { line: error.line().max(1), column: error.column().max(1) };
            problems.add(&place, "", format!("not JSON: {error}"));
            None
        }
    }
}

/// A place that only moves forward, so that all places of a document together cost one pass.
struct Cursor {
    offset: usize,
    line: usize,
    column: usize,
}

impl Default for Cursor {
    fn default() -> Self {
        Self { offset: 0, line: 1, column: 1 }
    }
}

struct Builder<'t> {
    root: &'t str,
    cursor: Cursor,
    problems: &'t Problems,
}

impl Builder<'_> {
    fn build(&mut self, part: &str, depth: usize, path: &str) -> Option<Node> {
        let place = self.place_of(part);
        if depth > limits::DOCUMENT_DEPTH {
            self.problems.add(&place, path, format!("nested deeper than {} levels", limits::DOCUMENT_DEPTH));
            return None;
        }
        let kind = match part.as_bytes().first() {
            Some(b'{') => self.map(part, depth, path),
            Some(b'[') => Kind::List(
                raw::elements(part)
                    .unwrap_or_default()
                    .into_iter()
                    .filter_map(|v| self.build(v.get(), depth + 1, path))
                    .collect(),
            ),
            Some(b'"') => match serde_json::from_str(part) {
                Ok(text) => Kind::Text(text),
                Err(error) => {
                    self.problems.add(&place, path, format!("not a text: {error}"));
                    return None;
                }
            },
            Some(b't') => Kind::Bool(true),
            Some(b'f') => Kind::Bool(false),
            Some(b'n') | None => Kind::Null,
            Some(_) => Kind::Number(part.to_owned()),
        };
        Some(Node { place, kind })
    }

    fn map(&mut self, part: &str, depth: usize, path: &str) -> Kind {
        let mut entries: Vec<(String, Node)> = Vec::new();
        let mut seen = HashSet::new();
        for (key, value) in raw::members(part).unwrap_or_default() {
            if !seen.insert(key.clone()) {
                let place = self.place_of(value.get());
                self.problems.add(&place, path, format!("`{key}` is there twice"));
                continue;
            }
            let inner = format!("{path}/{key}");
            if let Some(node) = self.build(value.get(), depth + 1, &inner) {
                entries.push((key.into_owned(), node));
            }
        }
        Kind::Map(entries)
    }

    fn place_of(&mut self, part: &str) -> Place {
        let start = raw::range_in(self.root, part).map_or(0, |r| r.start);
        if start < self.cursor.offset {
            self.cursor = Cursor::default();
        }
        for c in self.root.get(self.cursor.offset..start).unwrap_or_default().chars() {
            if c == '\n' {
                self.cursor.line += 1;
                self.cursor.column = 1;
            } else {
                self.cursor.column += 1;
            }
        }
        self.cursor.offset = start;
        Place::Line { line: self.cursor.line, column: self.cursor.column }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_has_its_place() {
        let problems = Problems::new();
        let node = from_json("{\n  \"a\": 1,\n  \"a\": 2, \"b\": \"\\ud800\"\n}", &problems);
        assert!(node.is_some());
        let list: Vec<_> = problems.into_list().iter().map(ToString::to_string).collect();
        assert_eq!(list.first().map(String::as_str), Some("line 3 column 8: `a` is there twice"));
        assert!(list.get(1).is_some_and(|p| p.starts_with("line 3 column 16: /b: not a text")), "{list:?}");
        let many = format!("[{}1]", "0,".repeat(400_000));
        assert!(from_json(&many, &Problems::new()).is_some(), "places cost one pass, not one a node");
        let problems = Problems::new();
        assert!(from_json("{\"a\": }", &problems).is_none());
        assert!(problems.into_list().iter().any(|p| p.to_string().starts_with("line 1 column 7: not JSON")));
    }
}
