//! A mock MCP server over Streamable HTTP that does what it is told, and remembers what it was asked.
//!
//! It is an independent reading of the specification: nothing of the worker's code is used.

#![expect(clippy::indexing_slicing, reason = "reading a member that is not there gives null")]

pub mod fast;
mod serve;

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, Method};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{broadcast, oneshot};
use tokio::task::JoinHandle;

/// How the server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    Modern,
    /// With a session that is opened, echoed and deleted.
    Legacy,
}

type OfAnswers = dyn Fn(&[Value]) -> String + Send + Sync;

/// Makes a result of a client's answers, each a whole JSON-RPC response.
#[derive(Clone)]
pub struct Conclude(pub Arc<OfAnswers>);

impl std::fmt::Debug for Conclude {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Conclude")
    }
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
    /// An event stream that asks the client for these things, method and params, and waits for its answers; then the result
    /// that is made of them.
    Ask(Vec<(&'static str, String)>, Conclude),
    /// An event stream with a first event that can be resumed, which breaks off; whoever comes back with its id gets the
    /// result.
    Break(String),
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
    /// With its query.
    pub path: String,
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
    /// Answers to other methods than `tools/call`, the lists of other kinds among them.
    others: HashMap<String, Arc<Answers>>,
    /// Members of `capabilities`, and what stands behind them in the answer that opens.
    capabilities: String,
    about: String,
    /// Questions to the client that are open.
    asked: HashMap<String, oneshot::Sender<Value>>,
    /// Streams that broke off: id of the last event, request id and result.
    broken_off: Option<(Value, String)>,
    seen: Vec<Seen>,
    sessions: BTreeSet<String>,
    opened: usize,
    /// An unknown session is refused under the request's own id.
    repeats_ids: bool,
    /// How many modern requests are refused from now on, as if they came in another revision.
    refusals: usize,
    /// How long a legacy client waits for its standing stream.
    streams_after: Duration,
    /// `tools/list` is answered with this text.
    listing: Option<String>,
    /// Everything is answered with this.
    broken: Option<Reply>,
}

/// A running mock. Ends when dropped.
pub struct Upstream {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    changed: broadcast::Sender<String>,
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
            others: HashMap::new(),
            capabilities: r#""tools":{"listChanged":true}"#.to_owned(),
            about: String::new(),
            asked: HashMap::new(),
            broken_off: None,
            seen: Vec::new(),
            sessions: BTreeSet::new(),
            opened: 0,
            repeats_ids: false,
            refusals: 0,
            streams_after: Duration::ZERO,
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
                        async move { Ok::<_, Infallible>(serve::serve(state, changed, cancelled, request).await) }
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

    /// Announces these members of `capabilities` beside tools, and these members of the answer that opens.
    pub fn is(&self, capabilities: &str, about: &str) {
        let mut state = lock(&self.state);
        state.capabilities = format!(r#""tools":{{"listChanged":true}},{capabilities}"#);
        about.clone_into(&mut state.about);
    }

    /// Answers another method than `tools/call`.
    pub fn answers_to(&self, method: &str, answers: impl Fn(&Value) -> Reply + Send + Sync + 'static) {
        lock(&self.state).others.insert(method.to_owned(), Arc::new(answers));
    }

    /// Tells all listeners; `params` is the inside of the object.
    pub fn tell(&self, method: &str, params: &str) {
        self.changed.send(format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{{params}}}}}"#)).ok();
    }

    /// Ends every standing stream.
    pub fn ends_streams(&self) {
        self.changed.send(String::new()).ok();
    }

    /// The params of what arrived for a method, in order.
    pub fn asked_for(&self, method: &str) -> Vec<Value> {
        let all = self.seen().into_iter().map(|seen| seen.json());
        all.filter(|message| message["method"] == method).map(|message| message["params"].clone()).collect()
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
        self.tell("notifications/tools/list_changed", "");
    }

    /// Changes tools without telling anybody.
    pub fn set_tools_silently(&self, tools: Vec<Value>) {
        lock(&self.state).tools = tools;
    }

    /// Refuses so many modern requests for their revision, and names that same revision as one that it speaks.
    pub fn refuses(&self, requests: usize) {
        lock(&self.state).refusals = requests;
    }

    /// Takes this long to open a legacy client's standing stream.
    pub fn opens_streams_after(&self, pause: Duration) {
        lock(&self.state).streams_after = pause;
    }

    /// Refuses an unknown session under the id of the request, as some servers do.
    pub fn repeats_ids(&self) {
        lock(&self.state).repeats_ids = true;
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
