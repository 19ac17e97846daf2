//! Runs one client against one server: its script, with the plan as an argument, and one line of JSON as its report.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::process::Command;

use super::cast::Client;
use super::inspector;
use super::stage::{Stage, node, peers, python};

/// For all actions of a client: each has 10 s of its own, and there are eight.
const LIMIT: Duration = Duration::from_secs(120);

/// The outcome of each action by its name, or why there is none.
pub(crate) async fn drive(
    stage: &Stage,
    client: Client,
    url: &str,
    token: &str,
    plan: &Map<String, Value>,
) -> Result<Value, String> {
    let mut command = match client {
        Client::Inspector => return Ok(inspector::drive(stage, url, token, plan).await),
        Client::Ts1 => script(node(), "matrix_ts1.mjs"),
        Client::Ts2 => script(node(), "matrix_ts2.mjs"),
        Client::Fastmcp => script(python(), "matrix_fastmcp.py"),
        Client::Rmcp => Command::new(stage.example("matrix_client")),
    };
    let plan = Value::from(plan.clone()).to_string();
    command.args([url, token, &plan]).env("HOME", stage.home()).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(LIMIT, command.output()).await;
    let output = output.map_err(|_| "the client did not end")?.map_err(|e| format!("the client did not start: {e}"))?;
    let report = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(report.trim())
        .map_err(|_| format!("the client reported {report:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn script(program: std::path::PathBuf, name: &str) -> Command {
    let mut command = Command::new(program);
    command.arg(peers().join(name));
    command
}
