//! What became of a cell: an outcome that a client reported, against what it should have been.

use serde_json::Value;

use super::cast::{Action, Client, Route, Server};
use super::reasons::{self, Reason};

/// One client against one server, a cell for each action.
pub(crate) struct Row {
    pub(crate) client: Client,
    pub(crate) server: Server,
    pub(crate) cells: Vec<(Action, Cell)>,
}

/// What the table shows.
pub(crate) enum Cell {
    Pass,
    Fail(String),
    NotApplicable(&'static Reason),
}

impl Row {
    /// From the client's report: `{"list": {"ok": true, "detail": "…"}, …}`, or why there is none.
    pub(crate) fn judge(route: Route, client: Client, server: Server, report: &Result<Value, String>) -> Self {
        let judged = |action: Action| {
            let outcome = match report {
                Ok(outcomes) => outcomes.get(action.name()).cloned().unwrap_or_default(),
                Err(why) => serde_json::json!({"ok": false, "detail": why}),
            };
            (action, cell(reasons::find(route, client, server, action), &outcome))
        };
        Self { client, server, cells: super::actions().iter().copied().map(judged).collect() }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.cells.iter().all(|(_, cell)| !matches!(cell, Cell::Fail(_)))
    }
}

fn cell(reason: Option<&'static Reason>, outcome: &Value) -> Cell {
    let is = |member: &str| outcome.get(member).and_then(Value::as_bool).unwrap_or(false);
    let detail = outcome.get("detail").and_then(Value::as_str).unwrap_or("the client reported nothing");
    match reason {
        None if is("ok") => Cell::Pass,
        None => Cell::Fail(detail.to_owned()),
        Some(reason) if !reason.is_refused => Cell::NotApplicable(reason),
        Some(_) if is("ok") => Cell::Fail(format!("should have been refused, but: {detail}")),
        // A refusal has words; a hang, or an answer that is neither, has none.
        Some(reason) if has_words(outcome) => Cell::NotApplicable(reason),
        Some(_) => Cell::Fail(format!("should have been refused with an error, but: {detail}")),
    }
}

fn has_words(outcome: &Value) -> bool {
    let message = outcome.pointer("/error/message").and_then(Value::as_str);
    message.is_some_and(|message| !message.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(server: Server, action: Action, outcome: &Value) -> &'static str {
        let row = Row::judge(Route::Rollcall, Client::Ts2, server, &Ok(json!({action.name(): outcome})));
        let found = row.cells.into_iter().find(|(other, _)| *other == action);
        match found.map(|(_, cell)| cell) {
            Some(Cell::Pass) => "pass",
            Some(Cell::Fail(_)) => "fail",
            Some(Cell::NotApplicable(_)) => "n/a",
            None => "nothing",
        }
    }

    #[test]
    fn an_outcome_is_judged_by_what_the_cell_can_be() {
        let (passed, refused) = (json!({"ok": true}), json!({"ok": false, "error": {"code": -32602, "message": "no"}}));
        let hung = json!({"ok": false, "timeout": true, "detail": "no end"});
        assert_eq!(shown(Server::Py, Action::Read, &passed), "pass");
        assert_eq!(shown(Server::Py, Action::Read, &refused), "fail");
        assert_eq!(shown(Server::Py, Action::Read, &Value::Null), "fail");
        assert_eq!(shown(Server::Git, Action::Read, &refused), "n/a");
        assert_eq!(shown(Server::Git, Action::Read, &passed), "fail", "what the server has not cannot be read");
        assert_eq!(shown(Server::Git, Action::Read, &hung), "fail", "a hang is no refusal");
        assert_eq!(shown(Server::Git, Action::Cancel, &Value::Null), "n/a", "nothing to try");
    }

    #[test]
    fn a_client_that_did_not_run_fails_all_that_it_should_have_done() {
        let row = Row::judge(Route::Rollcall, Client::Ts2, Server::Py, &Err("no such program".to_owned()));
        assert!(row.cells.iter().all(|(_, cell)| matches!(cell, Cell::Fail(why) if why == "no such program")));
        assert!(!row.is_good());
    }
}
