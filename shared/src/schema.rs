//! Arguments against a JSON Schema: compiled once, checked in linear time, nothing fetched.
//!
//! A pattern runs on an engine without backtracking, so that no argument can hold a thread up; what such an engine cannot do
//! (look-around, back-references) and references that lead elsewhere make a schema invalid.

use std::sync::Arc;

use jsonschema::PatternOptions;
use serde_json::Value;

use crate::digest::Digest;
use crate::limits;

/// A compiled schema.
#[derive(Debug)]
pub struct Schema(jsonschema::Validator);

impl Schema {
    /// Draft 2020-12, unless the schema names another one.
    pub fn compile(text: &str) -> Result<Self, String> {
        let schema: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let options = jsonschema::options().with_pattern_options(PatternOptions::regex());
        options.build(&schema).map(Self).map_err(|e| e.to_string())
    }

    /// Every problem, each with where it is, up to a bound; nothing of the values is repeated but by the validator itself.
    pub fn check(&self, arguments: &str) -> Result<(), Vec<String>> {
        let value: Value = serde_json::from_str(arguments).map_err(|e| vec![e.to_string()])?;
        let say = |error: jsonschema::ValidationError<'_>| {
            let place = error.instance_path().to_string();
            let mut text = if place.is_empty() { error.to_string() } else { format!("{place}: {error}") };
            if let Some((end, _)) = text.char_indices().nth(limits::LOGGED_CHARS) {
                text.truncate(end);
                text.push('…');
            }
            text
        };
        let problems: Vec<String> = self.0.iter_errors(&value).take(limits::ARGUMENT_PROBLEMS).map(say).collect();
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

/// Compiled schemas, by a digest that stands for their text.
pub struct Schemas(moka::sync::Cache<Digest, Arc<Result<Schema, String>>>);

impl Default for Schemas {
    fn default() -> Self {
        Self(moka::sync::Cache::new(limits::SCHEMAS_AT_HAND))
    }
}

impl Schemas {
    pub fn of<'t>(&self, digest: Digest, text: impl FnOnce() -> &'t str) -> Arc<Result<Schema, String>> {
        self.0.get_with(digest, || Arc::new(Schema::compile(text())))
    }
}

/// What a model is told whose arguments do not fit.
pub fn misfit(tool: &str, problems: &[String]) -> String {
    format!("The arguments do not fit {tool}, and nothing was called:\n{}", problems.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_named_with_their_place_and_patterns_are_linear() {
        let schema = r#"{"type":"object","properties":{"id":{"type":"string","pattern":"^[a-z]+$"},"n":{"type":"integer"}},
            "required":["id"],"additionalProperties":false}"#;
        let schema = Schema::compile(schema).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(schema.check(r#"{"id":"abc","n":3}"#), Ok(()));
        for (arguments, problem) in [
            (r#"{"n":3}"#, "\"id\" is a required property"),
            (r#"{"id":"a","n":"x"}"#, "/n: "),
            (r#"{"id":"A1"}"#, "/id: "),
            (r#"{"id":"a","more":1}"#, "more"),
        ] {
            let problems = schema.check(arguments).err().unwrap_or_default();
            assert!(problems.iter().any(|text| text.contains(problem)), "{arguments}: {problems:?}");
        }
        for bad in [
            r#"{"type":"strin"}"#,
            r#"{"pattern":"(?=x)"}"#,
            r#"{"pattern":"(a)\\1"}"#,
            r#"{"$ref":"https://example.com/x"}"#,
            "[]",
        ] {
            assert!(Schema::compile(bad).is_err(), "{bad}");
        }
        // What takes exponential time with backtracking.
        let evil = Schema::compile(r#"{"properties":{"x":{"pattern":"^(a+)+$"}}}"#).unwrap_or_else(|e| panic!("{e}"));
        assert!(evil.check(&format!(r#"{{"x":"{}!"}}"#, "a".repeat(10_000))).is_err());
    }
}
