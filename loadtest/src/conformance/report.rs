//! What all runs gave: a table, what failed in them, and where Rollcall gives other numbers than the fixture itself.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use super::suite::{Check, Outcome, Status};

/// One run.
pub(super) struct Row {
    pub(super) target: &'static str,
    pub(super) transport: &'static str,
    pub(super) revision: &'static str,
    /// An error where the run could not be had.
    pub(super) outcome: io::Result<Outcome>,
}

/// A line for whoever runs the command.
pub(super) fn say(line: &str) {
    writeln!(io::stdout(), "{line}").ok();
}

impl Row {
    fn title(&self) -> String {
        format!("{} over {}, {}", self.target, self.transport, self.revision)
    }
}

/// The report, and whether every run is good and all agree. A single scenario may have nothing to check in a revision
/// that it does not belong to.
pub(super) fn report(rows: &[Row], one_scenario: bool) -> (Vec<String>, bool) {
    let mut lines = table(rows);
    let mut good = true;
    for row in rows {
        match &row.outcome {
            Ok(outcome) => good &= outcome.is_good(one_scenario),
            Err(error) => {
                good = false;
                lines.push(format!("\n{}: {error}", row.title()));
            }
        }
        if let Ok(outcome) = &row.outcome {
            lines.extend(findings(&row.title(), outcome));
        }
    }
    // A scenario that no revision has would pass everywhere.
    good &= rows.iter().any(|row| row.outcome.as_ref().is_ok_and(|outcome| outcome.count(Status::Passed) > 0));
    for row in rows.iter().filter(|row| row.target == "rollcall") {
        let itself = rows.iter().find(|other| other.target == "fixture" && other.revision == row.revision);
        if let (Ok(through), Some(Ok(itself))) = (&row.outcome, itself.map(|row| &row.outcome)) {
            let differing = differences(itself, through);
            if !differing.is_empty() {
                good = false;
                lines.push(format!("\n{}: not what the fixture itself gives", row.title()));
                lines.extend(differing);
            }
        }
    }
    (lines, good)
}

fn table(rows: &[Row]) -> Vec<String> {
    let line = |[target, transport, revision, passed, failed, warned, code]: [&str; 7]| {
        format!("{target:<10} {transport:<10} {revision:<13} {passed:>7} {failed:>7} {warned:>9} {code:>5}")
    };
    let mut lines = vec![String::new()];
    lines.push(line(["target", "transport", "requirements", "passed", "failed", "warnings", "exit"]));
    for row in rows {
        let [passed, failed, warned, code] = match &row.outcome {
            Ok(outcome) => [
                outcome.count(Status::Passed).to_string(),
                outcome.count(Status::Failed).to_string(),
                outcome.count(Status::Warned).to_string(),
                outcome.code.map_or("late".to_owned(), |code| code.to_string()),
            ],
            Err(_) => std::array::from_fn(|_| "-".to_owned()),
        };
        lines.push(line([row.target, row.transport, row.revision, &passed, &failed, &warned, &code]));
    }
    lines
}

/// A heading and one line for each check that failed, and the same for those that warned.
pub(super) fn findings(title: &str, outcome: &Outcome) -> Vec<String> {
    let mut lines = Vec::new();
    for (status, word) in [(Status::Failed, "failed"), (Status::Warned, "warned")] {
        let found: Vec<_> = outcome.checks.iter().filter(|check| check.status == status).collect();
        if !found.is_empty() {
            lines.push(format!("\n{title}: {word}"));
        }
        let line = |check: &Check| format!("  {}:{}  {}", check.scenario, check.id, check.message.replace('\n', " "));
        lines.extend(found.into_iter().map(line));
    }
    lines
}

/// One line for each scenario whose counts differ.
fn differences(itself: &Outcome, through: &Outcome) -> Vec<String> {
    let (itself, through) = (itself.by_scenario(), through.by_scenario());
    let none = BTreeMap::new();
    let words = |counts: &BTreeMap<Status, usize>| {
        let count = |status| counts.get(&status).copied().unwrap_or_default();
        format!("{} passed, {} failed, {} warned", count(Status::Passed), count(Status::Failed), count(Status::Warned))
    };
    let mut scenarios: Vec<&str> = itself.keys().chain(through.keys()).copied().collect();
    scenarios.sort_unstable();
    scenarios.dedup();
    scenarios
        .into_iter()
        .map(|scenario| (scenario, itself.get(scenario).unwrap_or(&none), through.get(scenario).unwrap_or(&none)))
        .filter(|(_, itself, through)| itself != through)
        .map(|(scenario, itself, through)| format!("  {scenario}: {}; the fixture: {}", words(through), words(itself)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(checks: &[(&str, Status)]) -> Outcome {
        let check = |(scenario, status): &(&str, Status)| Check {
            scenario: (*scenario).to_owned(),
            id: "c".to_owned(),
            status: *status,
            message: String::new(),
        };
        Outcome { checks: checks.iter().map(check).collect(), code: Some(0) }
    }

    fn row(target: &'static str, checks: &[(&str, Status)]) -> Row {
        Row { target, transport: "http", revision: "2026-07-28", outcome: Ok(outcome(checks)) }
    }

    fn good(rows: &[Row], one_scenario: bool) -> bool {
        report(rows, one_scenario).1
    }

    #[test]
    fn each_failed_check_is_named() {
        let (lines, _) = report(&[row("other", &[("a", Status::Passed), ("b", Status::Failed)])], false);
        assert!(lines.iter().any(|line| line.contains("b:c")), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("a:c")), "{lines:?}");
    }

    #[test]
    fn a_run_with_other_numbers_than_the_fixture_is_not_good() {
        let both = [("a", Status::Passed), ("b", Status::Passed)];
        assert!(good(&[row("fixture", &both), row("rollcall", &both)], false));
        assert!(!good(&[row("fixture", &both), row("rollcall", &both[..1])], false));
        assert!(!good(&[row("fixture", &both), row("rollcall", &[both[0], ("b", Status::Warned)])], false));
    }

    #[test]
    fn failures_and_runs_without_a_check_are_not_good() {
        assert!(!good(&[row("other", &[("a", Status::Passed), ("a", Status::Failed)])], false));
        assert!(!good(&[row("other", &[])], false));
        assert!(!good(&[row("other", &[])], true));
        assert!(good(&[row("other", &[]), row("other", &[("a", Status::Passed)])], true));
        let broken = Row { outcome: Err(io::Error::other("gone")), ..row("other", &[]) };
        assert!(!good(&[broken], true));
    }
}
