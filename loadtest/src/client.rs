//! A plain client: requests as they are written, answers as they come.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rollcall_shared::mcp::sse;
use serde_json::{Value, json};

/// Longest wait for an answer in a test: a hang must fail, not stall.
const PATIENCE: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Clone)]
pub struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
    base: String,
    token: Option<String>,
}

/// An answer, read whole.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; `null` if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The data of a stream's events, as JSON.
    pub fn events(&self) -> Vec<Value> {
        let data = self.text();
        data.lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .filter_map(|data| serde_json::from_str(data).ok())
            .collect()
    }

    /// The JSON-RPC answer: the body, or the last event of a stream.
    pub fn rpc(&self) -> Value {
        let whole = self.json();
        if whole.is_null() { self.events().pop().unwrap_or_default() } else { whole }
    }
}

/// An answer that is still coming.
pub struct Stream {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    reader: sse::Reader,
}

impl Stream {
    /// The next event that holds a message; none at the end of the stream.
    pub async fn next(&mut self) -> Option<Value> {
        tokio::time::timeout(PATIENCE, self.read()).await.ok().flatten()
    }

    /// The next message within a time; none if there is none.
    pub async fn within(&mut self, patience: Duration) -> Option<Value> {
        tokio::time::timeout(patience, self.read()).await.ok().flatten()
    }

    async fn read(&mut self) -> Option<Value> {
        loop {
            while let Some(event) = self.reader.next_event() {
                if let Ok(message) = serde_json::from_slice(&event) {
                    return Some(message);
                }
            }
            let data = self.body.frame().await?.ok()?.into_data().unwrap_or_default();
            self.reader.push(&data).ok()?;
        }
    }

    /// The next bytes as they come; none at the end.
    pub async fn chunk(&mut self) -> Option<Bytes> {
        let frame = self.body.frame().await?.ok()?;
        frame.into_data().ok()
    }

    /// Whether the answer is one object after all, and no stream.
    pub fn is_json(&self) -> bool {
        let kind = self.headers.get("content-type").map(http::HeaderValue::as_bytes).unwrap_or_default();
        kind.starts_with(b"application/json")
    }

    /// The whole body as JSON; `null` if it is none.
    pub async fn json(self) -> Value {
        let body = tokio::time::timeout(PATIENCE, self.body.collect()).await.ok().and_then(Result::ok);
        body.and_then(|body| serde_json::from_slice(&body.to_bytes()).ok()).unwrap_or_default()
    }

    /// The id of the last event, behind which the stream can be taken up.
    pub fn last_id(&self) -> Option<String> {
        self.reader.resume().0.map(str::to_owned)
    }
}

impl Client {
    /// A client of `http://host:port`, without a path.
    pub fn new(base: impl Into<String>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self { pool: Pool::builder(TokioExecutor::new()).build(connector), base: base.into(), token: None }
    }

    #[must_use]
    pub fn with_token(&self, token: impl Into<String>) -> Self {
        Self { token: Some(token.into()), ..self.clone() }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Full::new(body)).map_err(|e| e.to_string())
    }

    /// One request. Fails as a text, for tests to show.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer, String> {
        let request = self.request(method, path, headers, body.into())?;
        let sending = async {
            let response = self.pool.request(request).await.map_err(|e| format!("{e:?}"))?;
            let (head, body) = response.into_parts();
            let body = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
            Ok(Answer { status: head.status, headers: head.headers, body })
        };
        tokio::time::timeout(PATIENCE, sending).await.map_err(|_| "no answer".to_owned())?
    }

    /// A request whose answer is a stream of events, read as they come. The connection ends when it is dropped.
    pub async fn stream(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Result<Stream, String> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = self.request(method, path, headers, body.into())?;
        let sending = self.pool.request(request);
        let response = tokio::time::timeout(PATIENCE, sending).await.map_err(|_| "no answer".to_owned())?;
        let (head, body) = response.map_err(|e| format!("{e:?}"))?.into_parts();
        let reader = sse::Reader::new(64 << 20);
        Ok(Stream { status: head.status, headers: head.headers, body, reader })
    }

    /// A POST of JSON.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer, String> {
        self.send(Method::POST, path, &[("content-type", "application/json")], body.to_string()).await
    }

    /// A legacy JSON-RPC request, without a session.
    pub async fn legacy(&self, path: &str, method: &str, params: Value) -> Result<Answer, String> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.post(path, &body).await
    }

    /// A modern JSON-RPC request with everything that 2026-07-28 asks for.
    pub async fn modern(&self, path: &str, method: &str, params: Value) -> Result<Answer, String> {
        let name = named(&params);
        let body = json!({"jsonrpc": "2.0", "id": "m-1", "method": method, "params": modern_params(params)});
        self.send(Method::POST, path, &modern_headers(method, name.as_deref()), body.to_string()).await
    }

    /// The same, read as it comes.
    pub async fn modern_stream(&self, path: &str, id: Value, method: &str, params: Value) -> Result<Stream, String> {
        let name = named(&params);
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": modern_params(params)});
        self.stream(Method::POST, path, &modern_headers(method, name.as_deref()), &body).await
    }
}

/// What `Mcp-Name` says of these params.
pub(crate) fn named(params: &Value) -> Option<String> {
    let named = ["name", "uri", "taskId"].into_iter().find_map(|member| params.get(member)?.as_str());
    named.map(rollcall_shared::mcp::headers::encode)
}

pub(crate) fn modern_headers<'a>(method: &'a str, name: Option<&'a str>) -> Vec<(&'static str, &'a str)> {
    let mut headers = vec![
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", method),
    ];
    headers.extend(name.map(|name| ("mcp-name", name)));
    headers
}

/// A legacy client with its session.
pub struct Session {
    pub client: Client,
    pub path: String,
    pub id: String,
    /// What `initialize` gave.
    pub opened: Value,
}

impl Client {
    /// Opens a legacy session.
    pub async fn open(&self, path: &str, version: &str, capabilities: Value) -> Result<Session, String> {
        let params = json!({"protocolVersion": version, "capabilities": capabilities,
            "clientInfo": {"name": "legacy-client", "version": "1"}});
        let answer = self.legacy(path, "initialize", params).await?;
        let id = answer.headers.get("mcp-session-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
        let id = id.ok_or_else(|| format!("no session: {}", answer.text()))?;
        let session = Session { client: self.clone(), path: path.to_owned(), id, opened: answer.json() };
        let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        session.post(&note).await?;
        Ok(session)
    }
}

impl Session {
    fn headers<'a>(&'a self, more: &[(&'static str, &'a str)]) -> Vec<(&'static str, &'a str)> {
        let mut headers = vec![("content-type", "application/json"), ("mcp-session-id", self.id.as_str())];
        headers.push(("accept", "application/json, text/event-stream"));
        headers.extend_from_slice(more);
        headers
    }

    /// One message, and its whole answer.
    pub async fn post(&self, message: &Value) -> Result<Answer, String> {
        self.client.send(Method::POST, &self.path, &self.headers(&[]), message.to_string()).await
    }

    pub async fn request(&self, method: &str, params: Value) -> Result<Answer, String> {
        self.post(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})).await
    }

    /// A request whose answer is read as it comes.
    pub async fn stream(&self, id: Value, method: &str, params: Value) -> Result<Stream, String> {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.client.stream(Method::POST, &self.path, &self.headers(&[]), &message).await
    }

    /// Answers a question of the server's.
    pub async fn answer(&self, question: &Value, result: Value) -> Result<Answer, String> {
        let id = question.get("id").cloned().unwrap_or_default();
        self.post(&json!({"jsonrpc": "2.0", "id": id, "result": result})).await
    }

    /// The standing stream, or a broken one behind an event.
    pub async fn listen(&self, last_event: Option<&str>) -> Result<Stream, String> {
        let last: Vec<_> = last_event.into_iter().map(|id| ("last-event-id", id)).collect();
        self.client.stream(Method::GET, &self.path, &self.headers(&last), &Value::Null).await
    }

    pub async fn end(&self) -> Result<Answer, String> {
        self.client.send(Method::DELETE, &self.path, &self.headers(&[]), "").await
    }
}

/// The params with a modern caller's `_meta` added.
pub fn modern_params(mut params: Value) -> Value {
    if !params.is_object() {
        params = json!({});
    }
    if let Some(params) = params.as_object_mut() {
        let meta = params.entry("_meta").or_insert_with(|| json!({}));
        if let Some(meta) = meta.as_object_mut() {
            meta.insert("io.modelcontextprotocol/protocolVersion".to_owned(), "2026-07-28".into());
            meta.entry("io.modelcontextprotocol/clientCapabilities").or_insert_with(|| json!({}));
        }
    }
    params
}
