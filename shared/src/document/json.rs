//! JSON into nodes, with lines and columns.

use serde_json::value::RawValue;

use super::node::{Kind, Node, Place};
use super::problems::Problems;
use crate::limits;
use crate::mcp::raw;

/// Reads one JSON text. Syntax errors, duplicate keys and too deep nesting are problems.
pub fn from_json(text: &str, problems: &Problems) -> Option<Node> {
    match serde_json::from_str::<&RawValue>(text) {
        Ok(value) => build(text, value.get(), 0, "", problems),
        Err(error) => {
            let place = Place::Line { line: error.line().max(1), column: error.column().max(1) };
            problems.add(&place, "", format!("not JSON: {error}"));
            None
        }
    }
}

fn build(root: &str, part: &str, depth: usize, path: &str, problems: &Problems) -> Option<Node> {
    let place = place_of(root, part);
    if depth > limits::DOCUMENT_DEPTH {
        problems.add(&place, path, format!("nested deeper than {} levels", limits::DOCUMENT_DEPTH));
        return None;
    }
    let kind = match part.as_bytes().first() {
        Some(b'{') => {
            let mut entries: Vec<(String, Node)> = Vec::new();
            for (key, value) in raw::members(part).unwrap_or_default() {
                if entries.iter().any(|(k, _)| *k == key) {
                    problems.add(&place_of(root, value.get()), path, format!("`{key}` is there twice"));
                    continue;
                }
                let inner = format!("{path}/{key}");
                if let Some(node) = build(root, value.get(), depth + 1, &inner, problems) {
                    entries.push((key.into_owned(), node));
                }
            }
            Kind::Map(entries)
        }
        Some(b'[') => Kind::List(
            raw::elements(part)
                .unwrap_or_default()
                .into_iter()
                .filter_map(|v| build(root, v.get(), depth + 1, path, problems))
                .collect(),
        ),
        Some(b'"') => match serde_json::from_str(part) {
            Ok(text) => Kind::Text(text),
            Err(error) => {
                problems.add(&place, path, format!("not a text: {error}"));
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

fn place_of(root: &str, part: &str) -> Place {
    let start = raw::range_in(root, part).map_or(0, |r| r.start);
    let before = root.get(..start).unwrap_or_default();
    let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    Place::Line { line, column }
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
        let problems = Problems::new();
        assert!(from_json("{\"a\": }", &problems).is_none());
        assert!(problems.into_list().iter().any(|p| p.to_string().starts_with("line 1 column 7: not JSON")));
    }
}
