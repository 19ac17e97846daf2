//! Rollcall as a client: the suite's mock servers stand behind it, and judge what it sends them.
//!
//! For each scenario the suite starts a server and runs this very program as its client (`drive.rs`), which puts Rollcall
//! before that server and calls through it. Authorization is not among the scenarios: Rollcall does no OAuth upstream.

use std::io;
use std::path::Path;

use super::drive;
use super::report::{findings, say};
use super::suite::{self, Outcome, Status};

/// Scenarios that concern a client without OAuth, and the revision at whose wire each is run: all that the revisions
/// require, and the one on schemas, which is run and not scored.
const SCENARIOS: [(&str, &str); 13] = [
    ("2025-11-25", "initialize"),
    ("2025-11-25", "tools_call"),
    ("2025-11-25", "elicitation-sep1034-client-defaults"),
    ("2025-11-25", "sse-retry"),
    ("2025-11-25", "json-schema-2020-12-preservation"),
    ("2026-07-28", "tools_call"),
    ("2026-07-28", "request-metadata"),
    ("2026-07-28", "http-standard-headers"),
    ("2026-07-28", "http-custom-headers"),
    ("2026-07-28", "http-invalid-tool-headers"),
    ("2026-07-28", "json-schema-ref-no-deref"),
    ("2026-07-28", "json-schema-2020-12-preservation"),
    ("2026-07-28", "sep-2322-client-request-state"),
];

/// Whether a scenario is one of these.
pub(super) fn knows(scenario: &str) -> bool {
    SCENARIOS.iter().any(|(_, known)| *known == scenario)
}

struct Row {
    scenario: &'static str,
    revision: &'static str,
    outcome: io::Result<Outcome>,
    /// Why the client that drove Rollcall gave up, if it did.
    gave_up: Option<String>,
}

impl Row {
    fn is_good(&self) -> bool {
        let checked = self.outcome.as_ref().is_ok_and(|outcome| {
            outcome.code.is_some() && outcome.count(Status::Failed) == 0 && outcome.count(Status::Passed) > 0
        });
        checked && self.gave_up.is_none()
    }

    fn title(&self) -> String {
        format!("client scenario {}, {}", self.scenario, self.revision)
    }
}

/// Runs the scenarios of these revisions, or one of them, and reports. Whether all is well.
pub(super) async fn run(
    rollcall: &Path,
    revisions: &[&'static str],
    only: Option<&str>,
    folder: &Path,
) -> io::Result<bool> {
    let this = std::env::current_exe()?;
    let mut rows = Vec::new();
    for (revision, scenario) in SCENARIOS {
        if !revisions.contains(&revision) || only.is_some_and(|only| only != scenario) {
            continue;
        }
        say(&format!("running rollcall as client, {scenario}, {revision}"));
        let place = folder.join(format!("client-{scenario}-{revision}"));
        std::fs::create_dir_all(&place)?;
        let outcome = suite::run_client(&command(&this, rollcall, &place), revision, scenario, &place).await;
        let gave_up = std::fs::read_to_string(place.join(drive::GAVE_UP)).ok();
        rows.push(Row { scenario, revision, outcome, gave_up });
    }
    let (lines, good) = report(&rows);
    lines.iter().for_each(|line| say(line));
    Ok(good)
}

/// What the suite runs as its client. It goes through a shell; with `exec` none stays between the suite and the client.
fn command(this: &Path, rollcall: &Path, place: &Path) -> String {
    let [this, rollcall, place] = [this, rollcall, place].map(quoted);
    format!("exec {this} drive-client --rollcall {rollcall} --folder {place}")
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

fn report(rows: &[Row]) -> (Vec<String>, bool) {
    let line = |[scenario, revision, passed, failed, warned]: [&str; 5]| {
        format!("{scenario:<37} {revision:<13} {passed:>7} {failed:>7} {warned:>9}")
    };
    let mut lines = vec![String::new(), line(["client scenario", "revision", "passed", "failed", "warnings"])];
    for row in rows {
        let [passed, failed, warned] = match &row.outcome {
            Ok(outcome) => {
                [Status::Passed, Status::Failed, Status::Warned].map(|status| outcome.count(status).to_string())
            }
            Err(_) => std::array::from_fn(|_| "-".to_owned()),
        };
        lines.push(line([row.scenario, row.revision, &passed, &failed, &warned]));
    }
    lines.push("auth/* is not run: Rollcall does no OAuth towards its servers yet".to_owned());
    for row in rows {
        match &row.outcome {
            Ok(outcome) if outcome.code.is_none() => lines.push(format!("\n{}: the suite took too long", row.title())),
            Ok(outcome) => lines.extend(findings(&row.title(), outcome)),
            Err(error) => lines.push(format!("\n{}: {error}", row.title())),
        }
        lines.extend(row.gave_up.iter().map(|why| format!("\n{}: the client gave up: {why}", row.title())));
    }
    (lines, !rows.is_empty() && rows.iter().all(Row::is_good))
}

#[cfg(test)]
mod tests {
    use super::super::suite::Check;
    use super::*;

    fn row(statuses: &[Status], gave_up: Option<&str>) -> Row {
        let check = |status: &Status| Check {
            scenario: "tools_call".to_owned(),
            id: "c".to_owned(),
            status: *status,
            message: String::new(),
        };
        let outcome = Outcome { checks: statuses.iter().map(check).collect(), code: Some(0) };
        Row {
            scenario: "tools_call",
            revision: "2026-07-28",
            outcome: Ok(outcome),
            gave_up: gave_up.map(str::to_owned),
        }
    }

    #[test]
    fn a_scenario_is_good_where_something_was_checked_and_its_client_came_to_the_end() {
        assert!(report(&[row(&[Status::Passed, Status::Warned], None)]).1);
        assert!(!report(&[row(&[Status::Passed], Some("no tool"))]).1);
        assert!(!report(&[row(&[Status::Passed, Status::Failed], None)]).1);
        assert!(!report(&[row(&[], None)]).1);
        assert!(!report(&[]).1);
    }

    #[test]
    fn paths_reach_the_client_whole() {
        let command = command(Path::new("/a b/it's"), Path::new("/r"), Path::new("/p"));
        assert_eq!(command, r"exec '/a b/it'\''s' drive-client --rollcall '/r' --folder '/p'");
    }
}
