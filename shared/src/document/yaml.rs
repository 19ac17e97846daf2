//! YAML 1.2 into nodes, with lines and columns.
//!
//! Anchors, aliases, directives and unknown tags are refused: a configuration file needs none of them, and aliases can
//! make a small file enormous.

#![expect(clippy::wildcard_enum_match_arm, reason = "the parser's list of events is open")]

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};

use super::node::{Kind, Node, Place};
use super::problems::Problems;
use crate::limits;

/// Reads one YAML document. The first syntax error ends the reading; duplicate keys are all reported.
pub fn from_yaml(text: &str, problems: &Problems) -> Option<Node> {
    if text.len() > limits::CONFIG_BYTES {
        problems.add(&place(1, 1), "", format!("larger than {} bytes", limits::CONFIG_BYTES));
        return None;
    }
    let options = granit_parser::options! {
        emit_comments: false,
        disallow_directives: true,
        flow_nesting_limit: limits::DOCUMENT_DEPTH,
        block_nesting_limit: limits::DOCUMENT_DEPTH,
    };
    let mut reader = Reader { parser: Parser::new_from_str_with_options(text, options), problems };
    match reader.document() {
        Ok(node) => Some(node),
        Err((at, what)) => {
            problems.add(&at, "", what);
            None
        }
    }
}

type Failure = (Place, String);

struct Reader<'a, 'p> {
    parser: Parser<'a, StrInput<'a>>,
    problems: &'p Problems,
}

impl<'a> Reader<'a, '_> {
    fn document(&mut self) -> Result<Node, Failure> {
        let mut root = None;
        loop {
            let (event, at) = self.next()?;
            match event {
                Event::StreamEnd => break,
                Event::DocumentStart(..) if root.is_some() => return Err((at, "a second document".to_owned())),
                Event::DocumentStart(..) => {
                    let (event, at) = self.next()?;
                    root = Some(self.node(event, at)?);
                }
                Event::StreamStart | Event::DocumentEnd => {}
                other => return Err((at, format!("unexpected {other:?}"))),
            }
        }
        Ok(root.unwrap_or(Node { place: place(1, 1), kind: Kind::Map(Vec::new()) }))
    }

    fn next(&mut self) -> Result<(Event<'a>, Place), Failure> {
        match self.parser.next_event() {
            // A value that was left out arrives as a plain `~` without width.
            Some(Ok((Event::Scalar(_, ScalarStyle::Plain, anchor, tag), span))) if span.is_empty() => {
                Ok((Event::Scalar("".into(), ScalarStyle::Plain, anchor, tag), start(&span)))
            }
            Some(Ok((event, span))) => Ok((event, start(&span))),
            Some(Err(error)) => Err(syntax(&error)),
            None => Err((place(1, 1), "unexpected end".to_owned())),
        }
    }

    fn node(&mut self, event: Event<'a>, at: Place) -> Result<Node, Failure> {
        if event.anchor_id().is_some_and(|id| id != 0) || matches!(event, Event::Alias(_)) {
            return Err((at, "anchors and aliases are not allowed here".to_owned()));
        }
        let kind = match event {
            Event::Scalar(text, style, _, tag) => {
                let tag = tag.map(|tag| tag.core_suffix().map_or_else(|| tag.original(), str::to_owned));
                match tag.as_deref() {
                    None if style == ScalarStyle::Plain => resolve(&text),
                    None | Some("str" | "!") => Kind::Text(text.into_owned()),
                    Some(tag) => return Err((at, format!("unknown tag {tag}"))),
                }
            }
            Event::SequenceStart(_, _, None) => {
                let mut nodes = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break Kind::List(nodes),
                        (event, at) => nodes.push(self.node(event, at)?),
                    }
                }
            }
            Event::MappingStart(_, _, None) => self.map()?,
            Event::SequenceStart(..) | Event::MappingStart(..) => return Err((at, "unknown tag".to_owned())),
            other => return Err((at, format!("unexpected {other:?}"))),
        };
        Ok(Node { place: at, kind })
    }

    fn map(&mut self) -> Result<Kind, Failure> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        loop {
            let (key, key_at) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(Kind::Map(entries)),
                (Event::Scalar(text, _, 0, None), at) => (text.into_owned(), at),
                (_, at) => return Err((at, "a key must be a plain text".to_owned())),
            };
            let (event, at) = self.next()?;
            let value = self.node(event, at)?;
            if entries.iter().any(|(k, _)| *k == key) {
                self.problems.add(&key_at, "", format!("`{key}` is there twice"));
                continue;
            }
            entries.push((key, value));
        }
    }
}

/// YAML 1.2.2, section 10.3.2 (core schema); hexadecimal, octal, infinities and not-a-number stay texts.
fn resolve(text: &str) -> Kind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Kind::Null,
        "true" | "True" | "TRUE" => Kind::Bool(true),
        "false" | "False" | "FALSE" => Kind::Bool(false),
        _ if is_json_number(text) => Kind::Number(text.to_owned()),
        _ => Kind::Text(text.to_owned()),
    }
}

/// Numbers are kept as written, so only what JSON calls a number is one (RFC 8259, section 6).
fn is_json_number(text: &str) -> bool {
    text.bytes().next().is_some_and(|b| b == b'-' || b.is_ascii_digit())
        && serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok()
}

fn start(span: &Span) -> Place {
    place(span.start.line(), span.start.col() + 1)
}

fn syntax(error: &ScanError) -> Failure {
    (place(error.marker().line(), error.marker().col() + 1), error.info().to_owned())
}

fn place(line: usize, column: usize) -> Place {
    Place::Line { line, column }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<String>, Vec<String>) {
        let problems = Problems::new();
        let node = from_yaml(text, &problems).map(|n| n.to_json());
        (node, problems.into_list().iter().map(ToString::to_string).collect())
    }

    #[test]
    fn values_are_what_they_look_like() {
        let (json, problems) =
            read("a: 1\nb: [x, 'true', true, ~, 1.5e3, 007]\nc: {d: \"4MiB\"}\ne:\nf: 9007199254740993\n");
        assert!(problems.is_empty(), "{problems:?}");
        let expected =
            r#"{"a":1,"b":["x","true",true,null,1.5e3,"007"],"c":{"d":"4MiB"},"e":null,"f":9007199254740993}"#;
        assert_eq!(json.as_deref(), Some(expected));
    }

    #[test]
    fn problems_have_line_and_column() {
        let case = |text: &str, expected: &str| {
            let (_, problems) = read(text);
            assert!(problems.iter().any(|p| p.starts_with(expected)), "{text:?}: {problems:?}");
        };
        case("a: [", "line 1 column 4: ");
        case("a: 1\na: 2", "line 2 column 1: `a` is there twice");
        case("a: &x 1\nb: *x", "line 1 column ");
        case("a: !!binary x", "line 1 column ");
        case("a: 1\n---\nb: 2", "line 2 column ");
        case("? [a]\n: 1", "line 1 column 3: a key must be");
    }
}
