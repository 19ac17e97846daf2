//! A description of an HTTP API (OpenAPI 3.0 or 3.1) as platform tools: one for each operation.
//!
//! The same description and options always yield the same tools under the same names. Nothing is fetched: a reference that
//! leads out of the description takes its operation out of the import. Whatever cannot be called as it is described is
//! left out and named with its reason, never approximated.

mod document;
mod names;
mod operation;
mod options;
mod parameters;
mod schema;
mod security;

use std::collections::BTreeMap;

use serde_json::Value;

use self::document::{Document, Found};
pub use self::options::{Api, Pick};
use crate::document::{Problems, from_yaml};
use crate::limits;
use crate::model::PlatformTool;

/// What became of a description.
#[derive(Debug, Default)]
pub struct Import {
    /// In the order of their names.
    pub tools: Vec<PlatformTool>,
    /// Operations that were wanted and could not be taken.
    pub skipped: Vec<Skipped>,
    /// What an operator should know of those that were.
    pub warnings: Vec<String>,
}

/// An operation that was left out, as `METHOD /path`, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    pub operation: String,
    pub reason: String,
}

/// Remarks on operations, each text once, with how many it is about.
#[derive(Debug, Default)]
struct Remarks(BTreeMap<String, usize>);

impl Remarks {
    fn add(&mut self, text: impl Into<String>) {
        *self.0.entry(text.into()).or_default() += 1;
    }
}

/// Reads the text of a description, JSON or YAML.
pub fn parse(text: &str) -> Result<Value, String> {
    if text.len() > limits::CONFIG_BYTES {
        return Err(format!("larger than {} bytes", limits::CONFIG_BYTES));
    }
    let json = match text.trim_start().starts_with('{') {
        true => text.to_owned(),
        false => {
            let problems = Problems::new();
            let node = from_yaml(text, &problems);
            match (node, problems.into_list().first()) {
                (_, Some(problem)) => return Err(problem.to_string()),
                (Some(node), None) => node.to_json(),
                (None, None) => return Err("not YAML".to_owned()),
            }
        }
    };
    serde_json::from_str(&json).map_err(|error| format!("not JSON: {error}"))
}

/// Makes tools of the operations of a description. An error is about all of it.
pub fn import(description: &Value, api: &Api) -> Result<Import, String> {
    let document = Document::new(description)?;
    let mut out = Import::default();
    let operations = document.operations(&mut out.skipped);
    // Names come from the whole description, so that a filter never renames what it leaves in.
    let names = names::names(&operations, &api.prefix);
    let mut remarks = Remarks::default();
    let mut unused = api.include.iter().collect::<Vec<_>>();
    let all = operations.len() + out.skipped.len();
    for (found, name) in operations.iter().zip(names) {
        unused.retain(|pick| !pick.matches(found, name.as_str()));
        if !api.wants(found, name.as_str()) {
            continue;
        }
        match operation::tool(&document, found, name, api, &mut remarks) {
            Ok(tool) => out.tools.push(tool),
            Err(reason) => out.skipped.push(Skipped { operation: found.to_string(), reason }),
        }
    }
    if all == 0 {
        return Err("it describes no operation".to_owned());
    }
    out.tools.sort_by(|a, b| a.name.cmp(&b.name));
    out.skipped.sort_by(|a, b| a.operation.cmp(&b.operation));
    out.warnings.extend(unused.iter().map(|pick| format!("include: `{pick}` matches no operation")));
    out.warnings.extend(remarks.0.into_iter().map(|(text, count)| match count {
        1 => format!("{text} (1 operation)"),
        _ => format!("{text} ({count} operations)"),
    }));
    Ok(out)
}

impl Api {
    fn wants(&self, found: &Found<'_>, name: &str) -> bool {
        let picked = |picks: &[Pick]| picks.iter().any(|pick| pick.matches(found, name));
        (self.include.is_empty() || picked(&self.include)) && !picked(&self.exclude)
    }
}

#[cfg(test)]
mod tests;
