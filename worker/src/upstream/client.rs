//! Requests to upstreams: over HTTP/1.1 one connection a request in flight, kept for the next one; over HTTP/2, where a
//! server chooses it in the TLS handshake, one for all.
//!
//! A general client's pool starts a task for each request, only to learn when its connection is free again; here the body
//! of the answer gives its connection back. That is what the client of a gateway does more than anything else.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use dashmap::DashMap;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::{http1, http2};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::Connection as _;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rollcall_shared::limits;
use rollcall_shared::task::Tasks;
use tokio::runtime::{self, Handle};
use tokio::time::Instant;
use tower_service::Service;

use super::net::Guarded;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(crate) struct HttpClient {
    shared: Arc<Shared>,
}

struct Shared {
    connector: HttpsConnector<Guarded>,
    hosts: DashMap<(bool, Authority), Arc<Host>>,
    closed: AtomicBool,
    tasks: Tasks,
}

/// The connections to one server's address.
#[derive(Default)]
struct Host {
    idle: Mutex<Vec<Idle>>,
    all_in_one: Mutex<Option<http2::SendRequest<Full<Bytes>>>>,
}

struct Idle {
    send: http1::SendRequest<Full<Bytes>>,
    since: Instant,
    /// The runtime that its socket belongs to: from another one, each request would wake another thread.
    home: runtime::Id,
}

/// Why there is no answer, and whether anything may have been sent.
#[derive(Debug)]
pub(crate) enum SendError {
    /// No connection.
    Connect(BoxError),
    /// There was a connection, but nothing was handed to it.
    Unsent(hyper::Error),
    Lost(hyper::Error),
}

impl std::fmt::Display for SendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SendError::Connect(_) => f.write_str("cannot connect"),
            SendError::Unsent(_) => f.write_str("the connection takes no request"),
            SendError::Lost(_) => f.write_str("the connection was lost"),
        }
    }
}

impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SendError::Connect(error) => Some(&**error),
            SendError::Unsent(error) | SendError::Lost(error) => Some(error),
        }
    }
}

enum Opened {
    One(http1::SendRequest<Full<Bytes>>),
    Many(http2::SendRequest<Full<Bytes>>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HttpClient {
    pub(super) fn new(connector: HttpsConnector<Guarded>, tasks: Tasks) -> Self {
        Self { shared: Arc::new(Shared { connector, hosts: DashMap::new(), closed: AtomicBool::new(false), tasks }) }
    }

    /// Sends a request to its URL. It is sent again only if it was never handed to a connection.
    pub(crate) async fn request(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Arriving>, SendError> {
        let whole = request.uri().clone();
        let authority = whole.authority().ok_or_else(|| SendError::Connect("the URL names no host".into()))?;
        let host = self.host(whole.scheme() == Some(&Scheme::HTTPS), authority);
        loop {
            let multiplexed = lock(&host.all_in_one).clone().filter(|send| !send.is_closed());
            let (opened, fresh) = match multiplexed {
                Some(send) => (Opened::Many(send), false),
                None => match host.take() {
                    Some(send) => (Opened::One(send), false),
                    None => (self.connect(&host, &whole).await?, true),
                },
            };
            let mut refused = match opened {
                Opened::One(mut send) => {
                    // A connection that ended meanwhile says so here.
                    if let (Err(_), false) = (send.ready().await, fresh) {
                        continue;
                    }
                    to_origin(&mut request, &whole, authority)?;
                    match send.try_send_request(request).await {
                        Ok(answer) => return Ok(answer.map(|body| Arriving::new(body, Some((send, host))))),
                        Err(refused) => refused,
                    }
                }
                Opened::Many(mut send) => {
                    *request.uri_mut() = whole.clone();
                    request.headers_mut().remove(header::HOST);
                    match send.try_send_request(request).await {
                        Ok(answer) => return Ok(answer.map(|body| Arriving::new(body, None))),
                        Err(refused) => {
                            // It may not be closed yet, and would refuse again and again.
                            lock(&host.all_in_one).take();
                            refused
                        }
                    }
                }
            };
            match refused.take_message() {
                Some(message) if !fresh => request = message,
                Some(_) => return Err(SendError::Unsent(refused.into_error())),
                None => return Err(SendError::Lost(refused.into_error())),
            }
        }
    }

    fn host(&self, secure: bool, authority: &Authority) -> Arc<Host> {
        if self.shared.closed.load(Ordering::Acquire) {
            return Arc::default();
        }
        let key = (secure, authority.clone());
        if let Some(host) = self.shared.hosts.get(&key) {
            return host.clone();
        }
        self.shared.hosts.entry(key).or_default().clone()
    }

    async fn connect(&self, host: &Host, url: &Uri) -> Result<Opened, SendError> {
        let mut connector = self.shared.connector.clone();
        poll_fn(|cx| connector.poll_ready(cx)).await.map_err(SendError::Connect)?;
        let stream = connector.call(url.clone()).await.map_err(SendError::Connect)?;
        let refused = |error: hyper::Error| SendError::Connect(error.into());
        let tasks = &self.shared.tasks;
        if stream.connected().is_negotiated_h2() {
            let (send, connection) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .initial_stream_window_size(limits::H2_UPSTREAM_STREAM_WINDOW)
                .initial_connection_window_size(limits::H2_UPSTREAM_WINDOW)
                .max_header_list_size(limits::UPSTREAM_HEAD_BYTES)
                .handshake(stream)
                .await
                .map_err(refused)?;
            tasks.spawn("upstream socket", async move { note(connection.await) });
            *lock(&host.all_in_one) = Some(send.clone());
            return Ok(Opened::Many(send));
        }
        let mut builder = http1::Builder::new();
        let (send, connection) =
            builder.max_buf_size(limits::UPSTREAM_READ_BYTES).handshake(stream).await.map_err(refused)?;
        tasks.spawn("upstream socket", async move { note(connection.await) });
        Ok(Opened::One(send))
    }

    /// Keeps no connection from now on: each ends with its request.
    pub(super) fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.hosts.clear();
    }

    /// Closes what was idle for long.
    pub(super) fn sweep(&self) {
        self.shared.hosts.retain(|_, host| {
            let mut idle = lock(&host.idle);
            idle.retain(Idle::is_usable);
            let mut multiplexed = lock(&host.all_in_one);
            multiplexed.take_if(|send| send.is_closed());
            !idle.is_empty() || multiplexed.is_some() || Arc::strong_count(host) > 1
        });
    }
}

fn note(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to an upstream ended");
    }
}

/// The form in which a request goes to its origin server (RFC 9112, sections 3.2.1 and 3.2).
fn to_origin(request: &mut Request<Full<Bytes>>, whole: &Uri, authority: &Authority) -> Result<(), SendError> {
    let path = whole.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    if !request.headers().contains_key(header::HOST) {
        // Credentials of a URL are no part of its host.
        let host = authority.as_str().rsplit('@').next().unwrap_or_default();
        let host = HeaderValue::from_str(host).map_err(|error| SendError::Connect(error.into()))?;
        request.headers_mut().insert(header::HOST, host);
    }
    Ok(())
}

impl Idle {
    fn is_usable(&self) -> bool {
        !self.send.is_closed() && self.since.elapsed() < limits::SOCKET_IDLE
    }
}

impl Host {
    /// The warmest of this runtime first.
    fn take(&self) -> Option<http1::SendRequest<Full<Bytes>>> {
        let (mut idle, here) = (lock(&self.idle), Handle::current().id());
        while let Some(at) = idle.iter().rposition(|kept| kept.home == here) {
            let kept = idle.remove(at);
            if kept.is_usable() {
                return Some(kept.send);
            }
        }
        None
    }

    fn give_back(&self, send: http1::SendRequest<Full<Bytes>>) {
        // While everything ends there may be no runtime around any more.
        let Ok(here) = Handle::try_current() else { return };
        let mut idle = lock(&self.idle);
        if idle.len() < limits::SOCKETS_IDLE {
            idle.push(Idle { send, since: Instant::now(), home: here.id() });
        }
    }
}

/// The body of an answer. Read to its end it gives its connection back; dropped before, it ends it.
pub(crate) struct Arriving {
    body: Incoming,
    over: bool,
    connection: Option<(http1::SendRequest<Full<Bytes>>, Arc<Host>)>,
}

impl Arriving {
    fn new(body: Incoming, connection: Option<(http1::SendRequest<Full<Bytes>>, Arc<Host>)>) -> Self {
        Self { body, over: false, connection }
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.over |= matches!(polled, Poll::Ready(None));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        if let Some((send, host)) = self.connection.take()
            && (self.over || self.body.is_end_stream())
        {
            host.give_back(send);
        }
    }
}
