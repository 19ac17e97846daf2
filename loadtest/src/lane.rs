//! A lane: one HTTP/1.1 connection on which requests go one after another, at the least cost that hyper allows.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use smallvec::SmallVec;
use tokio::task::JoinHandle;
use tower_service::Service as _;

/// How requests are worded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Revision 2026-07-28.
    Modern,
    /// Revision 2025-11-25.
    Legacy,
}

/// A request, made once and sent many times.
#[derive(Debug, Clone)]
pub struct Shot {
    method: Method,
    path: Uri,
    headers: HeaderMap,
    body: Bytes,
}

impl Shot {
    /// A request with a JSON body.
    pub fn json(path: &str, body: &Value) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        let path = path.parse().map_err(|e| format!("{path}: {e}"))?;
        Ok(Self { method: Method::POST, path, headers, body: Bytes::from(body.to_string()) })
    }

    /// A request without a body.
    pub fn get(path: &str) -> Result<Self, String> {
        let mut shot = Self::json(path, &Value::Null)?;
        (shot.method, shot.body) = (Method::GET, Bytes::new());
        Ok(shot)
    }

    /// An MCP request.
    pub fn mcp(path: &str, dialect: Dialect, method: &str, mut params: Value) -> Result<Self, String> {
        let version = match dialect {
            Dialect::Modern => "2026-07-28",
            Dialect::Legacy => "2025-11-25",
        };
        let mut headers = vec![("mcp-protocol-version", version.to_owned())];
        if dialect == Dialect::Modern {
            let name = params.get("name").and_then(Value::as_str).map(str::to_owned);
            headers.push(("mcp-method", method.to_owned()));
            headers.extend(name.map(|name| ("mcp-name", name)));
            if let Some(params) = params.as_object_mut() {
                let meta = json!({
                    "io.modelcontextprotocol/protocolVersion": version,
                    "io.modelcontextprotocol/clientInfo": {"name": "rollcall-loadtest", "version": env!("CARGO_PKG_VERSION")},
                    "io.modelcontextprotocol/clientCapabilities": {},
                });
                params.insert("_meta".to_owned(), meta);
            }
        }
        let shot = Self::json(path, &json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))?;
        headers.into_iter().try_fold(shot, |shot, (name, value)| shot.with_header(name, &value))
    }

    /// With another header.
    pub fn with_header(mut self, name: &'static str, value: &str) -> Result<Self, String> {
        let value = HeaderValue::from_str(value).map_err(|e| format!("{name}: {e}"))?;
        self.headers.insert(HeaderName::from_static(name), value);
        Ok(self)
    }

    /// With a session token, where there is one.
    pub fn with_token(self, token: Option<&str>) -> Result<Self, String> {
        match token {
            Some(token) => self.with_header("authorization", &format!("Bearer {token}")),
            None => Ok(self),
        }
    }
}

/// An answer, read whole, as the slices that arrived.
#[derive(Debug)]
pub struct Landed {
    pub status: StatusCode,
    pub headers: HeaderMap,
    slices: SmallVec<[Bytes; 2]>,
}

impl Landed {
    pub fn bytes(&self) -> usize {
        self.slices.iter().map(Bytes::len).sum()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.slices.concat()).into_owned()
    }

    /// The JSON-RPC answer: the body, or the last event of a stream.
    pub fn rpc(&self) -> Value {
        let text = self.text();
        serde_json::from_str(&text).unwrap_or_else(|_| {
            let events = text.lines().filter_map(|line| line.strip_prefix("data:"));
            events.filter_map(|data| serde_json::from_str::<Value>(data.trim()).ok()).next_back().unwrap_or_default()
        })
    }
}

/// Why a request has no answer. `kind` is from a short list, to be counted by.
#[derive(Debug, Clone)]
pub struct Lost {
    pub kind: &'static str,
    pub detail: String,
}

impl Lost {
    fn new(kind: &'static str, detail: impl std::fmt::Display) -> Self {
        Self { kind, detail: detail.to_string() }
    }
}

/// Opens lanes to one address.
#[derive(Clone)]
pub struct Road {
    base: Uri,
    host: HeaderValue,
    connector: HttpsConnector<HttpConnector>,
    patience: Duration,
}

impl Road {
    /// To `http://host:port` or `https://host:port`; what follows is of no interest here.
    pub fn to(url: &str) -> Result<Self, String> {
        let base: Uri = url.parse().map_err(|e| format!("{url}: {e}"))?;
        let host = base.authority().ok_or_else(|| format!("{url}: no host"))?.as_str();
        let host = HeaderValue::from_str(host).map_err(|e| format!("{url}: {e}"))?;
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        http.enforce_http(false);
        let tls = HttpsConnectorBuilder::new().with_native_roots().map_err(|e| e.to_string())?;
        let connector = tls.https_or_http().enable_http1().wrap_connector(http);
        Ok(Self { base, host, connector, patience: Duration::from_secs(60) })
    }

    /// How long an answer is waited for.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    pub fn lane(&self) -> Lane {
        Lane { road: self.clone(), open: None }
    }
}

/// See the module. Connects when it is first used, and again where its connection has ended.
pub struct Lane {
    road: Road,
    open: Option<(SendRequest<Full<Bytes>>, Ends)>,
}

struct Ends(JoinHandle<()>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Lane {
    /// Sends a request and reads its whole answer. A connection that fails is not used again.
    pub async fn send(&mut self, shot: &Shot) -> Result<Landed, Lost> {
        let patience = self.road.patience;
        let landed = tokio::time::timeout(patience, self.exchange(shot)).await;
        let landed = landed.unwrap_or_else(|_| Err(Lost::new("timed out", format!("no answer in {patience:?}"))));
        if landed.is_err() {
            self.open = None;
        }
        landed
    }

    async fn exchange(&mut self, shot: &Shot) -> Result<Landed, Lost> {
        let mut request = Request::new(Full::new(shot.body.clone()));
        *request.method_mut() = shot.method.clone();
        *request.uri_mut() = shot.path.clone();
        *request.headers_mut() = shot.headers.clone();
        request.headers_mut().insert(header::HOST, self.road.host.clone());
        let sender = self.sender().await?;
        let response = sender.send_request(request).await.map_err(|e| Lost::new("broke off", e))?;
        let (head, mut body) = response.into_parts();
        let mut slices = SmallVec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| Lost::new("broke off", e))?;
            slices.extend(frame.into_data().ok());
        }
        Ok(Landed { status: head.status, headers: head.headers, slices })
    }

    /// The connection, ready for a request.
    async fn sender(&mut self) -> Result<&mut SendRequest<Full<Bytes>>, Lost> {
        let usable = match &mut self.open {
            Some((sender, _)) => sender.ready().await.is_ok(),
            None => false,
        };
        if !usable {
            self.open = None;
            let connected = self.road.connector.call(self.road.base.clone()).await;
            let stream = connected.map_err(|e| Lost::new("unreachable", e))?;
            let (sender, connection) = handshake(stream).await.map_err(|e| Lost::new("unreachable", e))?;
            #[expect(clippy::disallowed_methods, reason = "aborted when the lane is dropped")]
            let driving = tokio::spawn(async move {
                connection.await.ok();
            });
            self.open = Some((sender, Ends(driving)));
        }
        match &mut self.open {
            Some((sender, _)) => Ok(sender),
            None => Err(Lost::new("unreachable", "no connection")),
        }
    }
}
