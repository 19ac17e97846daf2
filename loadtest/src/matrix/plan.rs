//! What each client does to each server: the names, arguments and expectations, as JSON that the scripts read.
//!
//! A plan has a member for each action:
//! `list {expect}`, `call {tool, arguments, text}`, `progress {tool, arguments}`,
//! `cancel {tool, arguments, after_ms, count?: {tool}, then: {tool, arguments, text}}` (`count` says how many calls the
//! server saw cancelled), `elicit {tool, arguments, answer, fields, text}`, `subscribe {uri, touch: {tool, arguments, text}}`
//! (`touch` makes the server update the resource), `read {uri, text}`, `prompt {name, arguments, text}`.
//! A `text` is a part of what must come.

use serde_json::{Value, json};

use super::cast::{Action, Server};

/// The plan for a server. What it has not is planned too, by names that it does not know, so that a refusal can be seen.
pub(crate) fn of(server: Server, repository: &str) -> Vec<(Action, Value)> {
    match server {
        Server::Everything => everything(),
        Server::Git => git(repository),
        Server::Ts2 | Server::Py => ours(),
        Server::Fixture => fixture(),
    }
}

fn everything() -> Vec<(Action, Value)> {
    let slow = |duration: f64, steps: u32| json!({"duration": duration, "steps": steps});
    vec![
        (Action::List, json!({"expect": ["echo", "get-sum", "toggle-subscriber-updates"]})),
        (Action::Call, json!({"tool": "echo", "arguments": {"message": "héllo ☃"}, "text": "Echo: héllo ☃"})),
        (Action::Progress, json!({"tool": "trigger-long-running-operation", "arguments": slow(0.6, 3)})),
        (
            Action::Cancel,
            json!({
                "tool": "trigger-long-running-operation",
                "arguments": slow(30.0, 2),
                "after_ms": 500,
                "then": {"tool": "echo", "arguments": {"message": "on"}, "text": "Echo: on"},
            }),
        ),
        (
            Action::Elicit,
            json!({
                "tool": "trigger-elicitation-request",
                "answer": {"name": "Ada"},
                "fields": ["name", "check", "integer"],
                "text": "- Name: Ada",
            }),
        ),
        (
            Action::Subscribe,
            json!({
                "uri": "demo://resource/static/document/features.md",
                // A second call would stop the updates, and says so: then a third starts them again.
                "touch": {"tool": "toggle-subscriber-updates", "text": "Started"},
            }),
        ),
        (Action::Read, json!({"uri": "demo://resource/static/document/features.md", "text": "Features"})),
        (
            Action::Prompt,
            json!({"name": "args-prompt", "arguments": {"city": "Paris"}, "text": "What's weather in Paris?"}),
        ),
    ]
}

fn git(repository: &str) -> Vec<(Action, Value)> {
    let log = json!({
        "tool": "git_log",
        "arguments": {"repo_path": repository, "max_count": 1},
        "text": "Message: first",
    });
    vec![
        (Action::List, json!({"expect": ["git_status", "git_log", "git_commit"]})),
        (Action::Call, log.clone()),
        (Action::Subscribe, json!({"uri": "matrix://nothing", "touch": log})),
        (Action::Read, json!({"uri": "matrix://nothing", "text": ""})),
        (Action::Prompt, json!({"name": "nothing", "arguments": {}, "text": ""})),
    ]
}

fn ours() -> Vec<(Action, Value)> {
    vec![
        (Action::List, json!({"expect": ["echo", "slow", "elicit", "touch", "cancelled_count"]})),
        (Action::Call, json!({"tool": "echo", "arguments": {"message": "héllo ☃"}, "text": "echo: héllo ☃"})),
        (Action::Progress, json!({"tool": "slow", "arguments": {"steps": 4, "step_ms": 100}})),
        (
            Action::Cancel,
            json!({
                "tool": "slow",
                "arguments": {"steps": 150, "step_ms": 200},
                "after_ms": 500,
                "count": {"tool": "cancelled_count"},
                "then": {"tool": "echo", "arguments": {"message": "on"}, "text": "echo: on"},
            }),
        ),
        (
            Action::Elicit,
            json!({"tool": "elicit", "answer": {"name": "Ada"}, "fields": ["name"], "text": "elicited: Ada"}),
        ),
        (Action::Subscribe, json!({"uri": "matrix://note", "touch": {"tool": "touch", "text": "touched"}})),
        (Action::Read, json!({"uri": "matrix://note", "text": "a note"})),
        (Action::Prompt, json!({"name": "greet", "arguments": {"name": "Ada"}, "text": "Greet Ada."})),
    ]
}

fn fixture() -> Vec<(Action, Value)> {
    let ask = json!({
        "tool": "test_elicitation",
        "arguments": {"message": "Who are you?"},
        "answer": {"username": "Ada", "email": "ada@example.com"},
        "fields": ["username", "email"],
        "text": "Ada",
    });
    vec![
        (Action::List, json!({"expect": ["test_simple_text", "test_tool_with_progress", "json_schema_2020_12_tool"]})),
        (Action::Call, json!({"tool": "test_simple_text", "text": "This is a simple text response for testing."})),
        (Action::Progress, json!({"tool": "test_tool_with_progress"})),
        (
            Action::Cancel,
            json!({
                "tool": "slow_compute",
                "arguments": {"seconds": 30},
                "after_ms": 500,
                "then": {"tool": "test_simple_text", "text": "simple text"},
            }),
        ),
        (Action::Elicit, ask),
        (
            Action::Subscribe,
            json!({
                "uri": "test://watched-resource",
                "touch": {"tool": "test_trigger_resource_update", "text": "Done"},
            }),
        ),
        (
            Action::Read,
            json!({"uri": "test://static-text", "text": "This is the content of the static text resource."}),
        ),
        (
            Action::Prompt,
            json!({
                "name": "test_prompt_with_arguments",
                "arguments": {"arg1": "one", "arg2": "two"},
                "text": "arg1='one', arg2='two'",
            }),
        ),
    ]
}
