//! One run of the official suite, and what its artifacts say.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;

use crate::programs::peers;

/// Longest run. A whole one takes seconds; scenarios that fail may each wait for their own timeouts.
const LONGEST: Duration = Duration::from_secs(600);
/// Longest that the suite waits for a client: longer than the client itself takes before it gives up and says why.
const CLIENT: Duration = Duration::from_secs(90);

/// One check as the suite reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) scenario: String,
    pub(super) id: String,
    pub(super) status: Status,
    pub(super) message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Status {
    Passed,
    Failed,
    Warned,
}

/// What a run gave: the checks that count, and the suite's exit code (absent where it was killed).
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) checks: Vec<Check>,
    pub(super) code: Option<i32>,
}

impl Outcome {
    pub(super) fn count(&self, status: Status) -> usize {
        self.checks.iter().filter(|check| check.status == status).count()
    }

    /// A run that checked nothing is not good, unless that is expected.
    pub(super) fn is_good(&self, may_be_empty: bool) -> bool {
        self.code == Some(0) && self.count(Status::Failed) == 0 && (may_be_empty || self.count(Status::Passed) > 0)
    }

    /// How many checks of each scenario passed, failed and warned.
    pub(super) fn by_scenario(&self) -> BTreeMap<&str, BTreeMap<Status, usize>> {
        let mut scenarios: BTreeMap<&str, BTreeMap<Status, usize>> = BTreeMap::new();
        for check in &self.checks {
            *scenarios.entry(&check.scenario).or_default().entry(check.status).or_default() += 1;
        }
        scenarios
    }
}

/// Runs the suite against a server at the wire of this revision: all that the revision requires, or one scenario.
pub(super) async fn run(url: &str, revision: &str, scenario: Option<&str>, folder: &Path) -> io::Result<Outcome> {
    let mut command = suite("server", folder);
    command.args(["--url", url]);
    match scenario {
        Some(scenario) => command.args(["--scenario", scenario, "--spec-version", revision]),
        None => command.args(["--requirements", revision]),
    };
    complete(command, folder, "server-").await
}

/// Runs one scenario in which the suite is a server, and the command its client.
pub(super) async fn run_client(client: &str, revision: &str, scenario: &str, folder: &Path) -> io::Result<Outcome> {
    let mut command = suite("client", folder);
    command.args(["--command", client, "--scenario", scenario, "--spec-version", revision]);
    command.arg("--timeout").arg(CLIENT.as_millis().to_string());
    complete(command, folder, "").await
}

fn suite(side: &str, folder: &Path) -> Command {
    let modules = peers().join("node_modules");
    let mut command = Command::new(modules.join("node/bin/node"));
    command.arg(modules.join("@modelcontextprotocol/conformance/dist/index.js"));
    command.args([side, "--output-dir"]).arg(folder);
    command
}

async fn complete(mut command: Command, folder: &Path, prefix: &str) -> io::Result<Outcome> {
    std::fs::create_dir_all(folder)?;
    let log = std::fs::File::create(folder.join("suite.log"))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
    let code = match tokio::time::timeout(LONGEST, command.status()).await {
        Ok(status) => status?.code(),
        Err(_) => None,
    };
    Ok(Outcome { checks: read(folder, prefix)?, code })
}

/// The suite leaves one folder a scenario, `<prefix><scenario>-<time>`, with its checks.
fn read(folder: &Path, prefix: &str) -> io::Result<Vec<Check>> {
    let mut folders: Vec<_> = std::fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    folders.sort_by_key(std::fs::DirEntry::file_name);
    let mut checks = Vec::new();
    for entry in folders {
        let name = entry.file_name().to_string_lossy().into_owned();
        let checked = scenario_of(&name, prefix).zip(std::fs::read(entry.path().join("checks.json")).ok());
        let Some((scenario, text)) = checked else { continue };
        let found: Vec<Value> = serde_json::from_slice(&text)?;
        checks.extend(found.iter().filter_map(|check| self::check(scenario, check)));
    }
    Ok(checks)
}

/// `server-tools-list-2026-01-02T03-04-05-678Z` → `tools-list`.
fn scenario_of<'a>(folder: &'a str, prefix: &str) -> Option<&'a str> {
    const TIME: usize = "-2026-01-02T03-04-05-678Z".len();
    let name = folder.strip_prefix(prefix)?;
    name.get(..name.len().checked_sub(TIME)?)
}

/// Notes and skipped checks count for nothing.
fn check(scenario: &str, check: &Value) -> Option<Check> {
    let text = |key: &str| check.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let status = match text("status").as_str() {
        "SUCCESS" => Status::Passed,
        "FAILURE" => Status::Failed,
        "WARNING" => Status::Warned,
        _ => return None,
    };
    let message = [text("errorMessage"), text("description")].into_iter().find(|message| !message.is_empty());
    Some(Check { scenario: scenario.to_owned(), id: text("id"), status, message: message.unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_names_its_scenario() {
        assert_eq!(scenario_of("server-tools-list-2026-01-02T03-04-05-678Z", "server-"), Some("tools-list"));
        let doubled = "server-server-stateless-2026-01-02T03-04-05-678Z";
        assert_eq!(scenario_of(doubled, "server-"), Some("server-stateless"));
        assert_eq!(scenario_of("tools_call-2026-01-02T03-04-05-678Z", ""), Some("tools_call"));
        assert_eq!(scenario_of("suite.log", ""), None);
        assert_eq!(scenario_of("server-x", "server-"), None);
    }

    #[test]
    fn only_what_counts_is_read() {
        let folder = std::env::temp_dir().join(format!("rollcall-suite-{}", std::process::id()));
        let one = folder.join("server-ping-2026-01-02T03-04-05-678Z");
        std::fs::create_dir_all(&one).expect("a folder");
        let text = r#"[{"id":"a","status":"SUCCESS"},{"id":"b","status":"FAILURE","errorMessage":"why"},{"id":"c","status":"INFO"}]"#;
        std::fs::write(one.join("checks.json"), text).expect("written");
        let outcome = Outcome { checks: read(&folder, "server-").expect("read"), code: Some(0) };
        std::fs::remove_dir_all(&folder).expect("removed");
        assert_eq!((outcome.count(Status::Passed), outcome.count(Status::Failed)), (1, 1));
        assert!(!outcome.is_good(true));
        let failed = outcome.checks.iter().find(|check| check.status == Status::Failed).expect("one");
        assert_eq!((failed.scenario.as_str(), failed.id.as_str(), failed.message.as_str()), ("ping", "b", "why"));
    }
}
