//! The fast upstream: an MCP server that costs as little as hyper allows, so that what stands before it can be measured.
//!
//! It speaks both eras at once and keeps nothing. Everything that it says is made beforehand; of a request it reads id and
//! method. What it is like is in the query of its URL (`/mcp?tools=2000&result_bytes=65536`), so that one process serves
//! every workload of a run; what the query leaves out is as the program was started.

use std::borrow::Cow;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

/// What the upstream is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Named `tool_0000` and on, each with a description and a schema of an ordinary size (about 600 bytes together).
    pub tools: usize,
    /// Bytes of text in the result of a call.
    pub result_bytes: usize,
    /// From a call to its answer.
    pub latency: Duration,
    /// Every so manieth call is answered with a JSON-RPC error; never where it is 0.
    pub errors_every: u64,
    /// Only the 2025-11-25 era, with sessions.
    pub legacy: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self { tools: 10, result_bytes: 64, latency: Duration::ZERO, errors_every: 0, legacy: false }
    }
}

impl Shape {
    /// This shape but for what a query says.
    fn with(&self, query: &str) -> Result<Self, String> {
        let mut shape = self.clone();
        for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
            let number = || value.parse::<u64>().map_err(|_| format!("`{key}` must be a number"));
            let size = || number().map(|n| usize::try_from(n).unwrap_or(usize::MAX));
            match key.as_ref() {
                "tools" => shape.tools = size()?.min(5_000),
                "result_bytes" => shape.result_bytes = size()?.min(16 << 20),
                "latency_ms" => shape.latency = Duration::from_millis(number()?),
                "errors_every" => shape.errors_every = number()?,
                "legacy" => shape.legacy = value != "false",
                _ => return Err(format!("`{key}` is none of tools, result_bytes, latency_ms, errors_every, legacy")),
            }
        }
        Ok(shape)
    }
}

/// The name of the nth tool.
pub fn tool_name(n: usize) -> String {
    format!("tool_{n:04}")
}

fn tool(n: usize) -> serde_json::Value {
    let about = "Looks up the records of a project that match a query, newest first, and gives their fields with links to \
                 where each can be changed. Needs a project; takes a page size.";
    json!({
        "name": tool_name(n),
        "title": format!("Tool {n}"),
        "description": format!("{about} Kind {n}."),
        "inputSchema": {
            "type": "object",
            "properties": {
                "project": {"type": "string", "description": "The project's key, as it stands in its address"},
                "query": {"type": "string", "description": "What to look for; words are combined with AND"},
                "limit": {"type": "integer", "minimum": 1, "maximum": 100, "description": "How many at most"},
            },
            "required": ["project"],
        },
    })
}

/// What is said for a shape, made once.
struct Prepared {
    shape: Shape,
    list: [Bytes; 2],
    call: [Bytes; 2],
    calls: AtomicU64,
}

impl Prepared {
    fn new(shape: Shape) -> Self {
        let tools = json!((0..shape.tools).map(tool).collect::<Vec<_>>());
        let text = "x".repeat(shape.result_bytes);
        // Members that only the modern era has do not hurt a legacy client: it must ignore what it does not know.
        let of = |members: String| {
            let (modern, own) = (r#","result":{"resultType":"complete","#, r#","result":{"#);
            [Bytes::from(format!("{modern}{members}}}}}")), Bytes::from(format!("{own}{members}}}}}"))]
        };
        let list = of(format!(r#""ttlMs":0,"cacheScope":"private","tools":{tools}"#));
        let call = of(format!(r#""content":[{{"type":"text","text":"{text}"}}],"isError":false"#));
        Self { shape, list, call, calls: AtomicU64::new(0) }
    }
}

/// A running fast upstream. Ends when dropped.
pub struct Fast {
    pub address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Drop for Fast {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

struct State {
    shape: Shape,
    prepared: RwLock<HashMap<String, Arc<Prepared>>>,
    sessions: AtomicU64,
}

impl State {
    fn prepared(&self, query: &str) -> Result<Arc<Prepared>, String> {
        if let Some(found) = self.prepared.read().unwrap_or_else(PoisonError::into_inner).get(query) {
            return Ok(found.clone());
        }
        let fresh = Arc::new(Prepared::new(self.shape.with(query)?));
        let mut all = self.prepared.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= 64 {
            all.clear();
        }
        Ok(all.entry(query.to_owned()).or_insert(fresh).clone())
    }
}

impl Fast {
    pub async fn start(address: SocketAddr, shape: Shape) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(State { shape, prepared: RwLock::default(), sessions: AtomicU64::new(0) });
        #[expect(clippy::disallowed_methods, reason = "aborted when the upstream is dropped")]
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).ok();
                let state = state.clone();
                connections.spawn(async move {
                    let service = service_fn(|request| serve(&state, request));
                    let served =
                        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    served.await.ok();
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, serving })
    }

    /// The URL of a shape: `query` is as in the module's text, and may be empty.
    pub fn url(&self, query: &str) -> String {
        url_of(self.address, query)
    }
}

/// The URL of a shape at a fast upstream that listens there.
pub fn url_of(address: SocketAddr, query: &str) -> String {
    let mark = if query.is_empty() { "" } else { "?" };
    format!("http://{address}/mcp{mark}{query}")
}

#[derive(serde::Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Cow<'a, str>,
}

async fn serve(state: &State, request: Request<Incoming>) -> Result<Response<Parts>, Infallible> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
        return Ok(plain(StatusCode::BAD_REQUEST, ""));
    };
    Ok(match state.prepared(head.uri.query().unwrap_or_default()) {
        Ok(prepared) => answer(state, &prepared, &head, &body).await,
        Err(why) => plain(StatusCode::BAD_REQUEST, &why),
    })
}

async fn answer(state: &State, prepared: &Prepared, head: &http::request::Parts, body: &[u8]) -> Response<Parts> {
    if head.method != Method::POST {
        let status = if head.method == Method::DELETE { StatusCode::OK } else { StatusCode::METHOD_NOT_ALLOWED };
        return plain(status, "");
    }
    let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(body) else {
        return plain(StatusCode::BAD_REQUEST, "no JSON-RPC message");
    };
    let Some(id) = envelope.id.map(RawValue::get) else { return plain(StatusCode::ACCEPTED, "") };
    let modern = head.headers.get("mcp-protocol-version").is_some_and(|version| version == "2026-07-28");
    let era = usize::from(!modern);
    let said = |prepared: &[Bytes; 2]| prepared.get(era).cloned().unwrap_or_default();
    match envelope.method.as_ref() {
        "tools/call" => {
            let number = prepared.calls.fetch_add(1, Ordering::Relaxed) + 1;
            if !prepared.shape.latency.is_zero() {
                tokio::time::sleep(prepared.shape.latency).await;
            }
            match prepared.shape.errors_every {
                0 => result(id, said(&prepared.call)),
                every if number.is_multiple_of(every) => {
                    error(id, StatusCode::OK, -32603, "an error, as was asked for")
                }
                _ => result(id, said(&prepared.call)),
            }
        }
        "tools/list" => result(id, said(&prepared.list)),
        "server/discover" if !prepared.shape.legacy => {
            let text = r#","result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"private"}}"#;
            result(id, Bytes::from_static(text.as_bytes()))
        }
        "initialize" => {
            let text = r#","result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"fast","version":"1"}}}"#;
            let mut response = result(id, Bytes::from_static(text.as_bytes()));
            let session = format!("session-{}", state.sessions.fetch_add(1, Ordering::Relaxed) + 1);
            response.headers_mut().extend(
                HeaderValue::from_str(&session).ok().map(|v| (http::HeaderName::from_static("mcp-session-id"), v)),
            );
            response
        }
        "ping" => result(id, Bytes::from_static(br#","result":{}}"#)),
        _ if modern => error(id, StatusCode::NOT_FOUND, -32601, "not found"),
        _ => error(id, StatusCode::OK, -32601, "not found"),
    }
}

fn plain(status: StatusCode, text: &str) -> Response<Parts> {
    let mut response = Response::new(Parts::new([Bytes::copy_from_slice(text.as_bytes()), Bytes::new()]));
    *response.status_mut() = status;
    response
}

/// The answer with an id; `rest` is everything behind the id.
fn result(id: &str, rest: Bytes) -> Response<Parts> {
    let head = Bytes::from([r#"{"jsonrpc":"2.0","id":"#, id].concat());
    let mut response = Response::new(Parts::new([head, rest]));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn error(id: &str, status: StatusCode, code: i32, message: &str) -> Response<Parts> {
    let rest = Bytes::from(format!(r#","error":{{"code":{code},"message":"{message}"}}}}"#));
    let mut response = result(id, rest);
    *response.status_mut() = status;
    response
}

/// Two slices.
struct Parts {
    left: std::iter::Peekable<std::array::IntoIter<Bytes, 2>>,
    bytes: u64,
}

impl Parts {
    fn new(parts: [Bytes; 2]) -> Self {
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        Self { left: parts.into_iter().peekable(), bytes }
    }
}

impl Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = self.left.find(|part| !part.is_empty());
        self.bytes -= part.as_ref().map_or(0, |part| part.len() as u64);
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes)
    }
}
