//! A client of either era towards Rollcall: requests by themselves, or in a session whose streams it reads and answers.

use http::Method;
use serde_json::{Value, json};

use super::replies::answer;
use crate::client::{Client, Session, modern_headers, modern_params, named};

/// The revision in which each request stands for itself.
const MODERN: &str = "2026-07-28";

pub(super) struct Caller {
    speaks: Speaks,
    next_id: u64,
}

enum Speaks {
    Modern { client: Client, path: String },
    Legacy(Session),
}

/// What it can be asked.
fn capabilities() -> Value {
    json!({"elicitation": {"form": {}}, "sampling": {}, "roots": {}})
}

impl Caller {
    pub(super) async fn open(client: &Client, path: &str, revision: &str) -> Result<Self, String> {
        let speaks = if revision == MODERN {
            Speaks::Modern { client: client.clone(), path: path.to_owned() }
        } else {
            Speaks::Legacy(client.open(path, revision, capabilities()).await?)
        };
        Ok(Self { speaks, next_id: 0 })
    }

    /// What is offered at the other end.
    pub(super) async fn offered(&mut self) -> Result<Value, String> {
        let opened = match &self.speaks {
            Speaks::Modern { .. } => self.request("server/discover", json!({}), &[]).await?,
            Speaks::Legacy(session) => session.opened.get("result").cloned().unwrap_or_default(),
        };
        Ok(opened.get("capabilities").cloned().unwrap_or_default())
    }

    /// One request and its result, which may ask for input. `mirrored` are the headers that repeat arguments.
    pub(super) async fn request(
        &mut self,
        method: &str,
        params: Value,
        mirrored: &[(String, String)],
    ) -> Result<Value, String> {
        self.next_id += 1;
        let id = Value::from(self.next_id);
        let answered = match &self.speaks {
            Speaks::Modern { client, path } => modern((client, path), id, method, params, mirrored).await?,
            Speaks::Legacy(session) => legacy(session, id, method, params).await?,
        };
        answered.get("result").cloned().ok_or_else(|| format!("{method}: {answered}"))
    }

    pub(super) async fn end(self) -> Result<(), String> {
        match self.speaks {
            Speaks::Modern { .. } => Ok(()),
            Speaks::Legacy(session) => session.end().await.map(|_| ()),
        }
    }
}

async fn modern(
    (client, path): (&Client, &str),
    id: Value,
    method: &str,
    mut params: Value,
    mirrored: &[(String, String)],
) -> Result<Value, String> {
    let meta = json!({
        "io.modelcontextprotocol/clientCapabilities": capabilities(),
        "io.modelcontextprotocol/clientInfo": {"name": "modern-client", "version": "1"},
    });
    if let Some(params) = params.as_object_mut() {
        params.insert("_meta".to_owned(), meta);
    }
    let name = named(&params);
    let mut heads = modern_headers(method, name.as_deref());
    heads.extend(mirrored.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": modern_params(params)});
    Ok(client.send(Method::POST, path, &heads, body.to_string()).await?.rpc())
}

/// Reads the stream of a call and answers what is asked on it, until the call itself is answered.
async fn legacy(session: &Session, id: Value, method: &str, params: Value) -> Result<Value, String> {
    let mut stream = session.stream(id.clone(), method, params).await?;
    if stream.is_json() {
        return Ok(stream.json().await);
    }
    while let Some(message) = stream.next().await {
        match message.get("method").and_then(Value::as_str) {
            Some(asked) if message.get("id").is_some() => {
                let reply = answer(asked, message.get("params").unwrap_or(&Value::Null));
                session.answer(&message, reply).await?;
            }
            Some(_) => {}
            None if message.get("id") == Some(&id) => return Ok(message),
            None => return Err(format!("{method}: an answer to another request: {message}")),
        }
    }
    Err(format!("{method}: no answer, status {}", stream.status))
}
