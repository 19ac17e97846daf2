//! A mock MCP server over Streamable HTTP that does what it is told, and remembers what it was asked.
//!
//! It is an independent reading of the specification: nothing of the worker's code is used.

#![expect(clippy::indexing_slicing, reason = "reading a member that is not there gives null")]

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinHandle;

/// How the server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    Modern,
    /// With a session that is opened, echoed and deleted.
    Legacy,
}

/// What a call is answered with.
#[derive(Debug, Clone)]
pub enum Reply {
    /// `result`, as this JSON text.
    Result(String),
    /// `error`, as this JSON text.
    Error(String),
    /// `error` with a status.
    ErrorWith(u16, String),
    /// This status, content type and body.
    Raw(u16, &'static str, String),
    /// An event stream: these JSON texts, then the result.
    Stream(Vec<String>, String),
    /// An answer with another id.
    WrongId,
    /// After this time.
    After(Duration, Box<Reply>),
    /// Never.
    Hang,
}

/// One request as it arrived.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: Method,
    pub headers: HeaderMap,
    pub body: String,
}

impl Seen {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

type Answers = dyn Fn(&Value) -> Reply + Send + Sync;

struct State {
    speaks: Speaks,
    tools: Vec<Value>,
    page: usize,
    /// Cursors that lead nowhere: the same one again and again.
    looping: bool,
    answers: Arc<Answers>,
    seen: Vec<Seen>,
    sessions: BTreeSet<String>,
    opened: usize,
    /// `tools/list` is answered with this text.
    listing: Option<String>,
    /// Everything is answered with this.
    broken: Option<Reply>,
}

/// A running mock. Ends when dropped.
pub struct Upstream {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    changed: broadcast::Sender<()>,
    cancelled: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A tool that takes anything.
pub fn tool(name: &str) -> Value {
    json!({"name": name, "description": format!("The tool {name}."), "inputSchema": {"type": "object"}})
}

impl Upstream {
    /// Starts a server with these tools, which answers calls with name and arguments as it got them.
    pub async fn start(speaks: Speaks, tools: &[&str]) -> std::io::Result<Self> {
        Self::start_at(([127, 0, 0, 1], 0).into(), speaks, tools).await
    }

    /// The same at a given address, for a server that comes back.
    pub async fn start_at(address: SocketAddr, speaks: Speaks, tools: &[&str]) -> std::io::Result<Self> {
        let listener = bind(address).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State {
            speaks,
            tools: tools.iter().map(|name| tool(name)).collect(),
            page: usize::MAX,
            looping: false,
            answers: Arc::new(echo),
            seen: Vec::new(),
            sessions: BTreeSet::new(),
            opened: 0,
            listing: None,
            broken: None,
        }));
        let (changed, _) = broadcast::channel(16);
        let cancelled = Arc::new(AtomicUsize::new(0));
        let serving = {
            let (state, changed, cancelled) = (state.clone(), changed.clone(), cancelled.clone());
            #[expect(clippy::disallowed_methods, reason = "aborted when the mock is dropped")]
            tokio::spawn(async move {
                let mut connections = tokio::task::JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    stream.set_nodelay(true).ok();
                    let (state, changed, cancelled) = (state.clone(), changed.clone(), cancelled.clone());
                    let service = service_fn(move |request| {
                        let (state, changed, cancelled) = (state.clone(), changed.clone(), cancelled.clone());
                        async move { Ok::<_, Infallible>(serve(state, changed, cancelled, request).await) }
                    });
                    connections.spawn(async move {
                        hyper::server::conn::http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service)
                            .await
                            .ok();
                    });
                    while connections.try_join_next().is_some() {}
                }
            })
        };
        Ok(Self { address, state, changed, cancelled, serving })
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub fn answers(&self, answers: impl Fn(&Value) -> Reply + Send + Sync + 'static) {
        lock(&self.state).answers = Arc::new(answers);
    }

    /// Every request is answered with this, until it is `None` again.
    pub fn breaks(&self, reply: Option<Reply>) {
        lock(&self.state).broken = reply;
    }

    /// `tools/list` gives this JSON text as its result.
    pub fn lists(&self, result: &str) {
        lock(&self.state).listing = Some(result.to_owned());
    }

    pub fn pages_of(&self, page: usize) {
        lock(&self.state).page = page;
    }

    pub fn loops(&self) {
        let mut state = lock(&self.state);
        state.page = 1;
        state.looping = true;
    }

    /// Other tools from now on; listeners are told.
    pub fn set_tools(&self, tools: Vec<Value>) {
        lock(&self.state).tools = tools;
        self.changed.send(()).ok();
    }

    /// Changes tools without telling anybody.
    pub fn set_tools_silently(&self, tools: Vec<Value>) {
        lock(&self.state).tools = tools;
    }

    /// Forgets every session, as a restart does.
    pub fn forget_sessions(&self) {
        lock(&self.state).sessions.clear();
    }

    /// What arrived so far.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.state).seen.clone()
    }

    /// The params of the calls that arrived, in order.
    pub fn calls(&self) -> Vec<Value> {
        let calls = self.seen().into_iter().map(|seen| seen.json());
        calls.filter(|message| message["method"] == "tools/call").map(|message| message["params"].clone()).collect()
    }

    /// Sessions opened, and those open now.
    pub fn sessions(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.opened, state.sessions.len())
    }

    /// Calls whose connection went away before the answer, and `notifications/cancelled` received.
    pub fn cancelled(&self) -> usize {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// Listeners for list changes.
    pub fn listeners(&self) -> usize {
        self.changed.receiver_count()
    }
}

/// Binds; a port that a server left a moment ago is waited for.
async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let began = tokio::time::Instant::now();
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && began.elapsed() < Duration::from_secs(5) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            bound => return bound,
        }
    }
}

/// `{"content":[{"type":"text","text":"<name> <arguments>"}]}`
fn echo(params: &Value) -> Reply {
    let text = format!("{} {}", params["name"].as_str().unwrap_or_default(), params["arguments"]);
    Reply::Result(json!({"content": [{"type": "text", "text": text}]}).to_string())
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

fn respond(status: u16, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert("content-type", http::HeaderValue::from_static(kind));
    response
}

fn rpc(status: u16, id: &Value, outcome: &str) -> Response<Body> {
    respond(status, "application/json", format!(r#"{{"jsonrpc":"2.0","id":{id},{outcome}}}"#))
}

fn rpc_error(status: u16, id: &Value, code: i32, text: &str) -> Response<Body> {
    rpc(status, id, &format!(r#""error":{{"code":{code},"message":{}}}"#, Value::from(text)))
}

/// A stream of events; dropped with its connection.
fn stream(events: mpsc::Receiver<String>) -> Response<Body> {
    let frames = StreamBody::new(futures_util::stream::unfold(events, |mut events| async move {
        let event = events.recv().await?;
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(event))), events))
    }));
    let mut response = Response::new(frames.boxed_unsync());
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("text/event-stream"));
    response
}

/// Counts a call that is dropped before its end.
struct Unfinished(Option<Arc<AtomicUsize>>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(counter) = &self.0 {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    }
}

async fn serve(
    state: Arc<Mutex<State>>,
    changed: broadcast::Sender<()>,
    cancelled: Arc<AtomicUsize>,
    request: Request<Incoming>,
) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    let body = String::from_utf8_lossy(&body).into_owned();
    let (speaks, broken) = {
        let mut state = lock(&state);
        state.seen.push(Seen { method: head.method.clone(), headers: head.headers.clone(), body: body.clone() });
        (state.speaks, state.broken.clone())
    };
    let message: Value = serde_json::from_str(&body).unwrap_or_default();
    if let Some(broken) = broken {
        return reply(broken, &message["id"], &mut Unfinished(None)).await;
    }
    match speaks {
        Speaks::Modern => modern(&state, &changed, cancelled, &head, &message).await,
        Speaks::Legacy => legacy(&state, &changed, cancelled, &head, &message).await,
    }
}

async fn modern(
    state: &Mutex<State>,
    changed: &broadcast::Sender<()>,
    cancelled: Arc<AtomicUsize>,
    head: &http::request::Parts,
    message: &Value,
) -> Response<Body> {
    let (id, method) = (&message["id"], message["method"].as_str().unwrap_or_default());
    if head.method != Method::POST {
        return respond(405, "text/plain", "");
    }
    let text = |name: &str| head.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let version = message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"].as_str().unwrap_or_default();
    if method == "initialize" || version != "2026-07-28" {
        return rpc_error(400, id, -32022, "unsupported protocol version");
    }
    let named = message["params"]["name"].as_str().filter(|_| method == "tools/call");
    let name_fits = named
        .is_none_or(|name| rollcall_shared::mcp::headers::decode(text("mcp-name").as_bytes()).as_deref() == Some(name));
    if text("mcp-protocol-version") != version || text("mcp-method") != method || !name_fits {
        return rpc_error(400, id, -32020, "headers and body differ");
    }
    match method {
        "server/discover" => rpc(
            200,
            id,
            r#""result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},"ttlMs":0,"cacheScope":"private"}"#,
        ),
        "subscriptions/listen" => listen(changed.subscribe()),
        "tools/list" => list(state, id, message, r#""resultType":"complete","ttlMs":0,"cacheScope":"private","#),
        "tools/call" => call(state, cancelled, id, &message["params"]).await,
        _ => rpc_error(404, id, -32601, "not found"),
    }
}

async fn legacy(
    state: &Mutex<State>,
    changed: &broadcast::Sender<()>,
    cancelled: Arc<AtomicUsize>,
    head: &http::request::Parts,
    message: &Value,
) -> Response<Body> {
    let (id, method) = (&message["id"], message["method"].as_str().unwrap_or_default());
    let session = head.headers.get("mcp-session-id").and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    if method == "initialize" {
        let session = {
            let mut state = lock(state);
            state.opened += 1;
            let session = format!("session-{}", state.opened);
            state.sessions.insert(session.clone());
            session
        };
        let mut response = rpc(
            200,
            id,
            r#""result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"mock","version":"1"}}"#,
        );
        response
            .headers_mut()
            .extend(session.parse().ok().map(|v| (http::HeaderName::from_static("mcp-session-id"), v)));
        return response;
    }
    if session.is_empty() {
        return rpc_error(400, id, -32000, "Bad Request: a session is needed");
    }
    if !lock(state).sessions.contains(&session) {
        return rpc_error(404, &Value::Null, -32001, "Session not found");
    }
    match head.method {
        Method::DELETE => {
            lock(state).sessions.remove(&session);
            return respond(200, "text/plain", "");
        }
        Method::GET => return listen(changed.subscribe()),
        _ => {}
    }
    match method {
        "notifications/cancelled" => {
            cancelled.fetch_add(1, Ordering::SeqCst);
            respond(202, "text/plain", "")
        }
        _ if message.get("id").is_none() => respond(202, "text/plain", ""),
        "tools/list" => list(state, id, message, ""),
        "tools/call" => call(state, Arc::default(), id, &message["params"]).await,
        "ping" => rpc(200, id, r#""result":{}"#),
        _ => rpc_error(200, id, -32601, "Method not found"),
    }
}

fn list(state: &Mutex<State>, id: &Value, message: &Value, head: &str) -> Response<Body> {
    let state = lock(state);
    if let Some(listing) = &state.listing {
        return rpc(200, id, &format!(r#""result":{listing}"#));
    }
    let start: usize = message["params"]["cursor"].as_str().and_then(|c| c.parse().ok()).unwrap_or(0);
    let end = start.saturating_add(state.page).min(state.tools.len());
    let tools = json!(state.tools.get(start..end).unwrap_or_default());
    let next = match (state.looping, end < state.tools.len()) {
        (true, _) => r#","nextCursor":"0""#.to_owned(),
        (false, true) => format!(r#","nextCursor":"{end}""#),
        (false, false) => String::new(),
    };
    rpc(200, id, &format!(r#""result":{{{head}"tools":{tools}{next}}}"#))
}

async fn call(state: &Mutex<State>, cancelled: Arc<AtomicUsize>, id: &Value, params: &Value) -> Response<Body> {
    let answers = lock(state).answers.clone();
    let mut unfinished = Unfinished(Some(cancelled));
    reply(answers(params), id, &mut unfinished).await
}

async fn reply(reply: Reply, id: &Value, unfinished: &mut Unfinished) -> Response<Body> {
    let mut reply = reply;
    loop {
        match reply {
            Reply::After(pause, then) => {
                tokio::time::sleep(pause).await;
                reply = *then;
            }
            Reply::Hang => std::future::pending().await,
            Reply::Result(_)
            | Reply::Error(_)
            | Reply::ErrorWith(..)
            | Reply::Raw(..)
            | Reply::Stream(..)
            | Reply::WrongId => {
                unfinished.0 = None;
                return finished(reply, id);
            }
        }
    }
}

fn finished(reply: Reply, id: &Value) -> Response<Body> {
    match reply {
        Reply::Result(result) => rpc(200, id, &format!(r#""result":{result}"#)),
        Reply::Error(error) => rpc(200, id, &format!(r#""error":{error}"#)),
        Reply::ErrorWith(status, error) => rpc(status, id, &format!(r#""error":{error}"#)),
        Reply::Raw(status, kind, body) => respond(status, kind, body),
        Reply::WrongId => rpc(200, &json!("another"), r#""result":{}"#),
        Reply::Stream(events, result) => {
            let (sender, receiver) = mpsc::channel(64);
            for event in events {
                sender.try_send(format!("data: {event}\n\n")).ok();
            }
            let end = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
            sender.try_send(format!("data: {end}\n\n")).ok();
            stream(receiver)
        }
        Reply::After(..) | Reply::Hang => respond(500, "text/plain", ""),
    }
}

/// Tells of list changes until the connection ends.
fn listen(mut changed: broadcast::Receiver<()>) -> Response<Body> {
    let (sender, receiver) = mpsc::channel(16);
    #[expect(clippy::disallowed_methods, reason = "ends with its connection")]
    tokio::spawn(async move {
        let mut event = ": open\n\n".to_owned();
        loop {
            if sender.send(event).await.is_err() {
                return;
            }
            tokio::select! {
                changed = changed.recv() => if changed.is_err() { return },
                () = sender.closed() => return,
            }
            event = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n".to_owned();
        }
    });
    stream(receiver)
}
