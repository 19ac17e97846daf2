//! The table as text: a line for each client and server, then the failures, then why cells are not applicable.

use std::fmt::Write as _;

use super::cell::{Cell, Row};
use super::reasons::Reason;

const NAME: usize = 11;
const COLUMN: usize = 10;
/// Characters of a failure: an error may quote whole lists.
const WHY: usize = 300;

/// The whole output.
pub(crate) fn render(rows: &[Row]) -> String {
    let mut out = format!("{:NAME$}{:NAME$}", "client", "server");
    for action in super::actions() {
        out.push_str(&format!("{:COLUMN$}", action.name()));
    }
    let (mut failures, mut reasons) = (Vec::new(), Vec::new());
    for row in rows {
        let line = row.cells.iter().map(|(action, cell)| {
            let shown = match cell {
                Cell::Pass => "pass".to_owned(),
                Cell::NotApplicable(reason) => format!("n/a {}", number(&mut reasons, reason)),
                Cell::Fail(why) => {
                    failures.push(format!("{} × {} × {}: {why}", row.client.name(), row.server.name(), action.name()));
                    "FAIL".to_owned()
                }
            };
            format!("{shown:COLUMN$}")
        });
        let line: String = line.collect();
        out = format!("{}\n{:NAME$}{:NAME$}{line}", out.trim_end(), row.client.name(), row.server.name());
    }
    out = format!("{}\n", out.trim_end());
    for failure in failures {
        let line = failure.split_whitespace().collect::<Vec<_>>().join(" ");
        writeln!(out, "FAIL {}", line.chars().take(WHY).collect::<String>()).ok();
    }
    for (at, reason) in reasons.iter().enumerate() {
        let reference = reason.reference.map(|reference| format!(" [{reference}]")).unwrap_or_default();
        let refused = if reason.is_refused { "; tried, and refused" } else { "" };
        writeln!(out, "n/a {}: {}{refused}{reference}", at + 1, reason.because).ok();
    }
    out
}

/// Reasons are numbered from 1, in the order in which they are first met.
fn number(reasons: &mut Vec<&'static Reason>, reason: &'static Reason) -> usize {
    let known = reasons.iter().position(|other| std::ptr::eq(*other, reason));
    known.unwrap_or_else(|| {
        reasons.push(reason);
        reasons.len() - 1
    }) + 1
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::cast::{Client, Route, Server};
    use super::*;

    #[test]
    fn failures_and_reasons_stand_below_the_lines() {
        let good = json!({"ok": true});
        let row = Row::judge(Route::Rollcall, Client::Inspector, Server::Py, &Ok(json!({"list": good, "call": good})));
        let text = render(&[row]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines.first(),
            Some(&"client     server     list      call      progress  cancel    elicit    subscribe read      prompt")
        );
        assert_eq!(
            lines.get(1),
            Some(&"inspector  py         pass      pass      n/a 1     n/a 2     FAIL      n/a 3     FAIL      FAIL")
        );
        assert!(text.contains("FAIL inspector × py × read: the client reported nothing"), "{text}");
        assert!(text.contains("n/a 1: the one-shot Inspector asks for no progress, and shows none\n"), "{text}");
    }
}
