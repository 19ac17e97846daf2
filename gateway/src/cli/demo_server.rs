//! `rollcall demo-server`: a small, real MCP server over standard input and output, in both eras.
//!
//! It answers `server/discover` and `initialize`, lists four tools, calls them, reports progress, and honours
//! cancellation, so that everything between an agent and a server can be tried without installing anything.

#![expect(clippy::indexing_slicing, reason = "reading a member that is not there gives null")]

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollcall_shared::mcp::era::{META_SERVER, MODERN, legacy_answer};
use rollcall_shared::mcp::jsonrpc::code;
use rollcall_shared::task::Tasks;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

type Running = Arc<Mutex<HashMap<String, CancellationToken>>>;

pub(super) async fn run() -> ExitCode {
    let (out, mut lines) = mpsc::channel::<Value>(64);
    let tasks = Tasks::new();
    tasks.spawn("output", async move {
        let mut stdout = tokio::io::stdout();
        while let Some(message) = lines.recv().await {
            let line = format!("{message}\n");
            if stdout.write_all(line.as_bytes()).await.is_err() || stdout.flush().await.is_err() {
                return;
            }
        }
    });
    let running: Running = Arc::default();
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = input.next_line().await {
        let Ok(message) = serde_json::from_str::<Value>(&line) else {
            let error = json!({"code": code::PARSE, "message": "not JSON"});
            out.send(json!({"jsonrpc": "2.0", "id": null, "error": error})).await.ok();
            continue;
        };
        if message["method"] == "notifications/cancelled" {
            let id = message["params"]["requestId"].to_string();
            if let Some(token) = running.lock().unwrap_or_else(PoisonError::into_inner).get(&id) {
                token.cancel();
            }
        } else if message.get("id").is_some() && message.get("method").is_some() {
            let (out, running) = (out.clone(), running.clone());
            tasks.spawn("request", async move { answer(message, out, running).await });
        }
    }
    drop(out);
    tasks.drain(Duration::from_secs(1)).await;
    ExitCode::SUCCESS
}

async fn answer(message: Value, out: mpsc::Sender<Value>, running: Running) {
    let id = message["id"].clone();
    let stop = CancellationToken::new();
    let lock = |running: &Running| running.lock().unwrap_or_else(PoisonError::into_inner).remove(&id.to_string());
    running.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_string(), stop.clone());
    let method = message["method"].as_str().unwrap_or_default();
    let modern = message["params"]["_meta"].get("io.modelcontextprotocol/protocolVersion").is_some();
    let outcome = tokio::select! {
        () = stop.cancelled() => {
            lock(&running);
            return;
        }
        outcome = result(method, &message["params"], &out) => outcome,
    };
    lock(&running);
    let reply = match outcome {
        Ok(mut result) => {
            if modern && let Some(members) = result.as_object_mut() {
                members.insert("resultType".to_owned(), "complete".into());
                members.insert("_meta".to_owned(), json!({META_SERVER: server_info()}));
            }
            json!({"jsonrpc": "2.0", "id": id, "result": result})
        }
        Err((code, text)) => json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}}),
    };
    out.send(reply).await.ok();
}

fn server_info() -> Value {
    json!({"name": "rollcall-demo", "version": env!("CARGO_PKG_VERSION")})
}

async fn result(method: &str, params: &Value, out: &mpsc::Sender<Value>) -> Result<Value, (i32, String)> {
    match method {
        "server/discover" => Ok(json!({
            "supportedVersions": [MODERN], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private",
        })),
        "initialize" => Ok(json!({
            "protocolVersion": legacy_answer(params["protocolVersion"].as_str().unwrap_or_default()),
            "capabilities": {"tools": {}},
            "serverInfo": server_info(),
        })),
        "ping" => Ok(json!({})),
        "tools/list" => Ok(json!({"tools": tools(), "ttlMs": 0, "cacheScope": "private"})),
        "tools/call" => call(params, out).await,
        _ => Err((code::METHOD_NOT_FOUND, format!("{method} is not offered"))),
    }
}

fn tools() -> Value {
    let number = json!({"type": "number"});
    let text = json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]});
    json!([
        {"name": "add", "title": "Add", "description": "Adds two numbers.",
         "inputSchema": {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]},
         "outputSchema": {"type": "object", "properties": {"sum": number}, "required": ["sum"]},
         "annotations": {"readOnlyHint": true}},
        {"name": "echo", "description": "Gives the text back.", "inputSchema": text, "annotations": {"readOnlyHint": true}},
        {"name": "word_count", "description": "Counts the words of a text.", "inputSchema": text,
         "annotations": {"readOnlyHint": true}},
        {"name": "countdown", "description": "Counts down, a tenth of a second a step, and reports progress.",
         "inputSchema": {"type": "object", "required": ["steps"],
                         "properties": {"steps": {"type": "integer", "minimum": 1, "maximum": 600}}}},
    ])
}

async fn call(params: &Value, out: &mpsc::Sender<Value>) -> Result<Value, (i32, String)> {
    let arguments = &params["arguments"];
    let say = |text: String| json!({"content": [{"type": "text", "text": text}]});
    let wrong = |what: &str| Ok(json!({"content": [{"type": "text", "text": what}], "isError": true}));
    match params["name"].as_str().unwrap_or_default() {
        "add" => match (arguments["a"].as_f64(), arguments["b"].as_f64()) {
            (Some(a), Some(b)) => {
                let sum = a + b;
                let content = json!([{"type": "text", "text": sum.to_string()}]);
                Ok(json!({"content": content, "structuredContent": {"sum": sum}}))
            }
            _ => wrong("`a` and `b` must be numbers"),
        },
        "echo" => match arguments["text"].as_str() {
            Some(text) => Ok(say(text.to_owned())),
            None => wrong("`text` must be a text"),
        },
        "word_count" => match arguments["text"].as_str() {
            Some(text) => Ok(say(text.split_whitespace().count().to_string())),
            None => wrong("`text` must be a text"),
        },
        "countdown" => match arguments["steps"].as_u64().filter(|n| (1..=600).contains(n)) {
            Some(steps) => {
                for step in 1..=steps {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    if let Some(token) = params["_meta"].get("progressToken") {
                        let progress = json!({"progressToken": token, "progress": step, "total": steps});
                        let news = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress});
                        out.send(news).await.ok();
                    }
                }
                Ok(say(format!("counted {steps} steps")))
            }
            None => wrong("`steps` must be a whole number from 1 to 600"),
        },
        other => Err((code::INVALID_PARAMS, format!("Unknown tool: {other}"))),
    }
}
