//! The Inspector's command line as a client of the matrix: one process for each action.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::process::Command;

use super::stage::{Stage, node, peers};

/// The other clients' 10 s for an action, and a start of the program.
const LIMIT: Duration = Duration::from_secs(15);

/// The outcomes of the actions of a plan, in the shape of the other clients' reports.
pub(crate) async fn drive(stage: &Stage, url: &str, token: &str, plan: &Map<String, Value>) -> Value {
    let mut outcomes = Map::new();
    for (action, plan) in plan {
        let outcome = match words(action, plan) {
            Some(words) => outcome(action, plan, invoke(stage, url, token, &words).await),
            None => json!({"ok": false, "detail": format!("the Inspector cannot {action}")}),
        };
        outcomes.insert(action.clone(), outcome);
    }
    outcomes.into()
}

fn text<'a>(plan: &'a Value, member: &str) -> &'a str {
    plan.get(member).and_then(Value::as_str).unwrap_or_default()
}

fn words(action: &str, plan: &Value) -> Option<Vec<String>> {
    let nothing = json!({});
    let arguments = plan.get("arguments").unwrap_or(&nothing);
    let words = match action {
        "list" => vec!["tools/list".to_owned()],
        "call" | "elicit" => {
            let (tool, arguments) = (text(plan, "tool").to_owned(), arguments.to_string());
            vec!["tools/call".to_owned(), "--tool-name".to_owned(), tool, "--tool-args-json".to_owned(), arguments]
        }
        "read" => vec!["resources/read".to_owned(), "--uri".to_owned(), text(plan, "uri").to_owned()],
        "prompt" => {
            let mut words = vec!["prompts/get".to_owned(), "--prompt-name".to_owned(), text(plan, "name").to_owned()];
            for (name, value) in arguments.as_object().into_iter().flatten() {
                words.push("--prompt-args".to_owned());
                words.push(format!("{name}={}", value.as_str().unwrap_or_default()));
            }
            words
        }
        _ => return None,
    };
    Some(words)
}

/// The result, or the outcome of a call without one.
async fn invoke(stage: &Stage, url: &str, token: &str, words: &[String]) -> Result<Value, Value> {
    let mut command = Command::new(node());
    command.arg(peers().join("node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"));
    command.args(["--cli", url, "--transport", "http", "--stored-auth-only", "--format", "json", "-q"]);
    if !token.is_empty() {
        command.arg("--header").arg(format!("Authorization: Bearer {token}"));
    }
    command.arg("--method").args(words).env("HOME", stage.home()).stdin(Stdio::null()).kill_on_drop(true);
    let output = match tokio::time::timeout(LIMIT, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(json!({"ok": false, "detail": error.to_string()})),
        Err(_) => return Err(json!({"ok": false, "timeout": true, "detail": "the Inspector did not end in time"})),
    };
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if let Some(result) = said.get("result").filter(|result| result.get("isError") != Some(&Value::Bool(true))) {
        return Ok(result.clone());
    }
    let errors: Value = serde_json::from_slice(&output.stderr).unwrap_or_default();
    let message = said.pointer("/result/content/0/text").or_else(|| errors.pointer("/error/message"));
    Err(match message.and_then(Value::as_str) {
        Some(message) => json!({"ok": false, "detail": message, "error": {"message": message}}),
        None => json!({"ok": false, "detail": String::from_utf8_lossy(&output.stderr)}),
    })
}

fn outcome(action: &str, plan: &Value, result: Result<Value, Value>) -> Value {
    let result = match result {
        Ok(result) => result,
        Err(outcome) => return outcome,
    };
    let all = |list: &str, pointer: &str| -> Vec<String> {
        let items = result.get(list).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(|item| item.pointer(pointer)?.as_str().map(str::to_owned)).collect()
    };
    let said = match action {
        "list" => all("tools", "/name"),
        "read" => all("contents", "/text"),
        "prompt" => all("messages", "/content/text"),
        _ => all("content", "/text"),
    };
    let holds = match plan.get("expect").and_then(Value::as_array) {
        Some(names) => names.iter().filter_map(Value::as_str).all(|name| said.iter().any(|other| other == name)),
        None => said.join("\n").contains(text(plan, "text")),
    };
    let detail: String = said.join(", ").chars().take(100).collect();
    json!({"ok": holds, "detail": if holds { detail } else { format!("unexpected: {detail}") }})
}
