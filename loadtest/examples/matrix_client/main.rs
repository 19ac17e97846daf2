//! A client of the matrix: the official Rust SDK, which asks for the modern era first.
//!
//! usage: `matrix_client URL TOKEN PLAN`. The plan has a member for each action to try (`loadtest/src/matrix/plan.rs`).
//! Each action has a connection of its own and a time limit. Prints one line of JSON, as `matrix_actions.mjs` does.

mod actions;
mod peer;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::actions::Failure;
use crate::peer::Peer;

/// For one action, its connection included.
const ACTION: Duration = Duration::from_secs(10);

// One thread: notifications are handled in the order in which they came.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [url, token, plan] = words.as_slice() else {
        writeln!(std::io::stderr(), "usage: matrix_client URL TOKEN PLAN").ok();
        return ExitCode::from(2);
    };
    let plans: Map<String, Value> = match serde_json::from_str(plan) {
        Ok(plans) => plans,
        Err(error) => {
            writeln!(std::io::stderr(), "matrix_client: the plan: {error}").ok();
            return ExitCode::from(2);
        }
    };
    let mut outcomes = Map::new();
    for (action, plan) in plans {
        let outcome = attempt(url, token, &action, &plan).await;
        outcomes.insert(action, outcome);
    }
    writeln!(std::io::stdout(), "{}", Value::from(outcomes)).ok();
    ExitCode::SUCCESS
}

async fn attempt(url: &str, token: &str, action: &str, plan: &Value) -> Value {
    let work = async {
        let peer = Peer::connect(url, token, plan.get("answer").cloned()).await?;
        let era = peer.era();
        let done = actions::perform(&peer, action, plan).await;
        peer.close().await;
        Ok((era, done))
    };
    let (era, done) = match tokio::time::timeout(ACTION, work).await {
        Ok(Ok(done)) => done,
        Ok(Err(failure)) => (None, Err(failure)),
        Err(_) => return json!({"ok": false, "timeout": true, "detail": format!("no end within {ACTION:?}")}),
    };
    match done {
        Ok(detail) => json!({"ok": true, "era": era, "detail": detail}),
        Err(Failure::Unexpected(detail)) => json!({"ok": false, "era": era, "detail": detail}),
        Err(Failure::Refused { code, message }) => {
            json!({"ok": false, "era": era, "detail": message, "error": {"code": code, "message": message}})
        }
    }
}
