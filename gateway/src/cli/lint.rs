//! `rollcall lint`: prompts, tests, docs and code against a live catalog or a saved one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::{UNAVAILABLE, USAGE, catalog, fail, say};
use crate::surface::lint::{Catalog, Fault, Finding, scan};

/// Files larger than this hold no text that people wrote.
const FILE_BYTES: u64 = 4 << 20;
const FOUND: u8 = 1;
const TOO_FEW: u8 = 2;

#[derive(Args)]
pub(super) struct Options {
    /// Files and folders; in folders everything but hidden files, `target` and `node_modules`.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// A saved `tools/list` result, or a manifest with its names: GET /v1/manifest?names=all
    #[arg(long, value_name = "FILE", conflicts_with = "url", required_unless_present = "url")]
    catalog: Option<PathBuf>,
    /// A running Rollcall, such as https://gateway.example
    #[arg(long, requires = "token")]
    url: Option<String>,
    /// A session token for it: its view is what there is.
    #[arg(long, env = "ROLLCALL_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Fails where fewer ids than this are found: what finds nothing checks nothing.
    #[arg(long, value_name = "N", default_value_t = 1)]
    at_least: usize,
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
    Sarif,
}

pub(super) async fn run(options: Options) -> ExitCode {
    let catalog = match (&options.catalog, &options.url) {
        (Some(file), _) => read(file),
        (None, Some(url)) => match catalog::of(url, options.token.as_deref().unwrap_or_default()).await {
            Ok(value) => Catalog::read(&value),
            Err(error) => return fail(UNAVAILABLE, &format!("{url}: {error}")),
        },
        (None, None) => return fail(USAGE, "--catalog or --url is needed"),
    };
    let catalog = match catalog {
        Ok(catalog) => catalog,
        Err(error) => return fail(USAGE, &format!("the catalog: {error}")),
    };
    let mut files = Vec::new();
    for path in &options.paths {
        if let Err(error) = walk(path, true, &mut files) {
            return fail(USAGE, &format!("{}: {error}", path.display()));
        }
    }
    files.sort();
    files.dedup();
    let (mut ids, mut findings) = (0, Vec::new());
    for file in &files {
        let Ok(text) = std::fs::read_to_string(file) else { continue }; // no text
        let scanned = scan(&text, &catalog);
        ids += scanned.ids;
        findings.extend(scanned.findings.into_iter().map(|finding| (file.display().to_string(), finding)));
    }
    say(&match options.format {
        Format::Text => as_text(&findings, ids, files.len(), catalog.len()),
        Format::Json => {
            let list: Vec<Value> = findings.iter().map(|(file, finding)| with_file(file, finding)).collect();
            json!({"ids": ids, "files": files.len(), "names": catalog.len(), "findings": list}).to_string()
        }
        Format::Sarif => sarif(&findings).to_string(),
    });
    if findings.iter().any(|(_, finding)| finding.fault == Fault::Unknown) {
        return ExitCode::from(FOUND);
    }
    if !findings.is_empty() {
        return ExitCode::from(TOO_FEW);
    }
    if ids < options.at_least {
        return fail(
            TOO_FEW,
            &format!("{ids} ids were found in {} files; at least {} must be", files.len(), options.at_least),
        );
    }
    ExitCode::SUCCESS
}

fn read(file: &Path) -> Result<Catalog, String> {
    let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
    let text = std::fs::read_to_string(file).map_err(|e| failed(&e))?;
    let value: Value = serde_json::from_str(&text).map_err(|e| failed(&e))?;
    Catalog::read(&value).map_err(|e| failed(&e))
}

/// A path that was named is taken as it is; of what lies in a folder only what people write.
fn walk(path: &Path, named: bool, out: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !named && (name.starts_with('.') || name == "target" || name == "node_modules") {
        return Ok(());
    }
    let kind = std::fs::symlink_metadata(path)?;
    if kind.is_dir() {
        for entry in std::fs::read_dir(path)? {
            walk(&entry?.path(), false, out)?;
        }
    } else if kind.is_file() && kind.len() <= FILE_BYTES || named {
        out.push(path.to_owned());
    }
    Ok(())
}

fn message(finding: &Finding) -> String {
    let id = &finding.id;
    match (finding.fault, &finding.nearest) {
        (Fault::Unknown, Some(nearest)) => format!("there is no tool {id}; nearest: {nearest}"),
        (Fault::Unknown, None) => format!("there is no tool {id}"),
        (Fault::Present, _) => format!("{id} is declared absent, and it exists"),
        (Fault::Unused, _) => format!("{id} is declared absent, and nothing here names it"),
    }
}

fn as_text(findings: &[(String, Finding)], ids: usize, files: usize, names: usize) -> String {
    let mut out = String::new();
    for (file, finding) in findings {
        out.push_str(&format!("{file}:{}:{}: {}\n", finding.line, finding.column, message(finding)));
    }
    out.push_str(&format!("{ids} ids in {files} files against {names} names: {} findings", findings.len()));
    out
}

fn with_file(file: &str, finding: &Finding) -> Value {
    let mut value = serde_json::to_value(finding).unwrap_or_default();
    if let Some(members) = value.as_object_mut() {
        members.insert("file".to_owned(), file.into());
        members.insert("message".to_owned(), message(finding).into());
    }
    value
}

/// SARIF 2.1.0 (OASIS), for code hosts.
fn sarif(findings: &[(String, Finding)]) -> Value {
    let rule = |fault: Fault| serde_json::to_value(fault).unwrap_or_default();
    let result = |(file, finding): &(String, Finding)| {
        json!({
            "ruleId": rule(finding.fault),
            "level": "error",
            "message": {"text": message(finding)},
            "locations": [{"physicalLocation": {
                "artifactLocation": {"uri": file},
                "region": {"startLine": finding.line, "startColumn": finding.column},
            }}],
        })
    };
    let rules = [
        (Fault::Unknown, "A tool id that does not exist"),
        (Fault::Present, "An id that is declared absent exists"),
        (Fault::Unused, "An id that is declared absent is named nowhere"),
    ];
    let rules: Vec<Value> =
        rules.iter().map(|(fault, text)| json!({"id": rule(*fault), "shortDescription": {"text": text}})).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "rollcall lint", "version": env!("CARGO_PKG_VERSION"), "rules": rules}},
            "columnKind": "unicodeCodePoints",
            "results": findings.iter().map(result).collect::<Vec<_>>(),
        }],
    })
}
