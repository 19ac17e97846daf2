//! HTTP towards clients: connections within bounds, paths to endpoints, CORS.
//!
//! Every path is served with and without a trailing slash, and nothing redirects: a redirect behind TLS termination leads
//! to the wrong scheme or port.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use percent_encoding::percent_decode_str;
use rollcall_shared::ids::TenantId;
use rollcall_shared::limits;
use rollcall_shared::task::Tasks;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};

use crate::app::App;
use crate::body::Body;
use crate::bridge;
use crate::call::{self, check_host, plain, settle_json};
use crate::identity::challenge;
use crate::refusal::Refusal;

/// An idle connection lives longer than a load balancer's (60 s at the largest providers), so that it is they who close it.
const KEEP_ALIVE: Duration = Duration::from_secs(75);

pub(crate) type Handler = Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(KEEP_ALIVE)
        .max_headers(limits::HEADERS)
        .max_buf_size(limits::HEAD_BYTES)
        .keep_alive(true)
        .half_close(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits::H2_STREAMS)
        .initial_stream_window_size(256 << 10)
        .initial_connection_window_size(4 << 20)
        .max_frame_size(64 << 10)
        .max_send_buf_size(256 << 10)
        .max_header_list_size(u32::try_from(limits::HEAD_BYTES).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(20)
        .max_local_error_reset_streams(1024)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(10));
    builder
}

/// Serves connections until the tasks drain; those in flight are then finished.
pub(crate) async fn serve(listener: TcpListener, handler: Handler, tasks: Tasks) {
    let builder = builder();
    let room = Arc::new(Semaphore::new(limits::CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            biased;
            () = tasks.closing().cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => connected(stream, &builder, &room, &handler, &tasks),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await; // out of descriptors: do not spin
            }
        }
    }
    // Whom the kernel has let in already would see a reset when the door closes.
    if let Ok(listener) = listener.into_std() {
        while let Ok((stream, _)) = listener.accept() {
            if stream.set_nonblocking(true).is_ok()
                && let Ok(stream) = TcpStream::from_std(stream)
            {
                connected(stream, &builder, &room, &handler, &tasks);
            }
        }
    }
}

fn connected(
    stream: TcpStream,
    builder: &auto::Builder<TokioExecutor>,
    room: &Arc<Semaphore>,
    handler: &Handler,
    tasks: &Tasks,
) {
    // Above the bound a connection is closed at once, which is clearer than a silent queue.
    let Ok(permit) = room.clone().try_acquire_owned() else { return };
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let (builder, handler, counting) = (builder.clone(), handler.clone(), tasks.clone());
    tasks.serve("connection", stream, move |stream| async move {
        let _permit = permit;
        let seen = Arc::new(Seen::default());
        let (sees, tasks) = (seen.clone(), counting.clone());
        let service = service_fn(move |request| {
            sees.request(&request);
            let (work, counting) = (handler(request), counting.clone());
            async move { Ok::<_, Infallible>(guard(work, &counting).await) }
        });
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let result = tokio::select! {
            result = connection.as_mut() => result,
            // While the protocol is told from the first bytes, no other timeout holds.
            () = seen.nothing_within(limits::HEAD_TIMEOUT) => return,
            () = leaves(&seen, &tasks) => {
                // Before its first bytes a connection would be cut, though its request may be on the way.
                let ended = tokio::select! {
                    ended = connection.as_mut() => Some(ended),
                    _ = seen.first_within(limits::LAST_REQUEST) => None,
                };
                match ended {
                    Some(ended) => ended,
                    None => {
                        connection.as_mut().graceful_shutdown();
                        connection.await
                    }
                }
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, "a connection ended");
        }
    });
}

/// When a connection is to take no further request. In HTTP/2 that can be said at once, and nothing is lost by it; in
/// HTTP/1.1 each response says so while the node drains, and only what still idles is closed in the end.
async fn leaves(seen: &Seen, tasks: &Tasks) {
    tasks.draining().cancelled().await;
    if !seen.http2.load(Ordering::Relaxed) {
        tasks.closing().cancelled().await;
    }
}

/// What a connection has brought so far.
#[derive(Default)]
struct Seen {
    any: AtomicBool,
    first: Notify,
    http2: AtomicBool,
}

impl Seen {
    fn request(&self, request: &Request<Incoming>) {
        if !self.any.load(Ordering::Relaxed) {
            self.http2.store(request.version() == Version::HTTP_2, Ordering::Relaxed);
            self.any.store(true, Ordering::Release);
            self.first.notify_one();
        }
    }

    async fn first_within(&self, time: Duration) -> bool {
        self.any.load(Ordering::Acquire) || tokio::time::timeout(time, self.first.notified()).await.is_ok()
    }

    /// Resolves after a time in which no request came, and never if one did.
    async fn nothing_within(&self, time: Duration) {
        if self.first_within(time).await {
            std::future::pending::<()>().await;
        }
    }
}

/// A panic ends one request, not the connection's neighbours.
async fn guard(work: BoxFuture<'static, Response<Body>>, tasks: &Tasks) -> Response<Body> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            tasks.count_panic();
            tracing::error!("a request panicked");
            settle_json(StatusCode::INTERNAL_SERVER_ERROR, plain(&Refusal::Internal))
        }
    }
}

/// Where a request of an agent is addressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// As the client wrote it, without a trailing slash.
    pub(crate) path: String,
    /// `/t/{tenant}/…`: the token must speak for this one.
    pub(crate) tenant: Option<TenantId>,
    /// `/servers/{server}/mcp`: alias, id or configured name.
    pub(crate) server: Option<String>,
}

impl Endpoint {
    /// The endpoint of a path, if it is one.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let (tenant, rest) = split_tenant(path)?;
        let server = match rest {
            "/mcp" => None,
            rest => {
                let server = rest.strip_prefix("/servers/")?.strip_suffix("/mcp")?;
                if server.is_empty() || server.contains('/') {
                    return None;
                }
                Some(decode(server)?)
            }
        };
        Some(Self { path: path.to_owned(), tenant, server })
    }
}

/// The tenant that a path begins with, if any, and the rest.
pub(crate) fn split_tenant(path: &str) -> Option<(Option<TenantId>, &str)> {
    let Some(rest) = path.strip_prefix("/t/") else { return Some((None, path)) };
    let (tenant, _) = rest.split_once('/')?;
    Some((Some(TenantId::parse(&decode(tenant)?).ok()?), rest.get(tenant.len()..)?))
}

pub(crate) fn decode(part: &str) -> Option<String> {
    percent_decode_str(part).decode_utf8().ok().map(|text| text.into_owned())
}

/// The agent listener.
pub(crate) fn agents(app: Arc<App>) -> Handler {
    Arc::new(move |request| {
        let app = app.clone();
        async move {
            let origin = request.headers().get(header::ORIGIN).cloned();
            let mut response = route(&app, request).await;
            if app.tasks.draining().is_cancelled() {
                // The client's next request goes to another node, before this one closes its door.
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            allow_origin(&app, origin.as_ref(), response.headers_mut());
            response
        }
        .boxed()
    })
}

async fn route(app: &Arc<App>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path();
    if let Some(described) = challenge::described_path(&app.public_url, path) {
        return metadata(app, &request, described);
    }
    if let Some(address) = bridge::Address::parse(path) {
        let takes = address.method();
        return match request.method() {
            method if *method == takes => bridge::serve(app, &address, request).await,
            &Method::OPTIONS => preflight(app, request.headers()),
            _ => refused(app, &Refusal::Method(if takes == Method::GET { "GET" } else { "POST" })),
        };
    }
    let Some(endpoint) = Endpoint::parse(path) else { return refused(app, &Refusal::NotFound) };
    match *request.method() {
        Method::POST => call::serve(app, &endpoint, request).await,
        Method::GET | Method::DELETE => call::serve_legacy(app, &endpoint, request).await,
        Method::OPTIONS => preflight(app, request.headers()),
        _ => refused(app, &Refusal::Method("POST, GET, DELETE")),
    }
}

fn metadata(app: &App, request: &Request<Incoming>, described: &str) -> Response<Body> {
    if request.method() != Method::GET {
        return refused(app, &Refusal::Method("GET"));
    }
    if let Err(refusal) = check_host(app, request.headers(), request.uri()) {
        return refused(app, &refusal);
    }
    match Endpoint::parse(described) {
        Some(endpoint) => {
            let document = challenge::document(&app.public_url, &endpoint.path, endpoint.tenant.as_ref(), &app.issuers);
            settle_json(StatusCode::OK, document)
        }
        None => refused(app, &Refusal::NotFound),
    }
}

/// A refusal before there is a call to record.
fn refused(app: &App, refusal: &Refusal) -> Response<Body> {
    let labels = [
        rollcall_shared::telemetry::label("surface", "http"),
        rollcall_shared::telemetry::label("reason", refusal.label()),
    ];
    app.metrics.refusals.add(1, &labels);
    let status = refusal.status(rollcall_shared::mcp::era::Era::Modern);
    let mut response = settle_json(StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST), plain(refusal));
    if let Refusal::Method(allow) = refusal {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    }
    response
}

fn preflight(app: &App, headers: &HeaderMap) -> Response<Body> {
    if let Err(refusal) = call::check_origin(app, headers) {
        return refused(app, &refusal);
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let allow = "authorization, content-type, accept, mcp-protocol-version, mcp-method, mcp-name, mcp-session-id, \
                 last-event-id, traceparent, if-none-match";
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("POST, GET, DELETE, OPTIONS"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(allow));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

fn allow_origin(app: &App, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    let allowed = |o: &HeaderValue| o.to_str().is_ok_and(|text| app.origins.contains(&text.to_ascii_lowercase()));
    if let Some(origin) = origin.filter(|o| allowed(o)) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(header::VARY, HeaderValue::from_static("Origin"));
        let expose = "www-authenticate, mcp-session-id, retry-after, etag";
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(expose));
    }
}

/// A record-less GET of another listener.
pub(crate) fn text(status: StatusCode, kind: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_endpoints_with_and_without_a_slash() {
        let case = |path: &str, tenant: Option<&str>, server: Option<&str>| {
            let endpoint = Endpoint::parse(path).expect(path);
            assert_eq!(endpoint.tenant.as_ref().map(TenantId::as_str), tenant, "{path}");
            assert_eq!(endpoint.server.as_deref(), server, "{path}");
        };
        case("/mcp", None, None);
        case("/mcp/", None, None);
        case("/servers/neon/mcp", None, Some("neon"));
        case("/servers/my%20server/mcp/", None, Some("my server"));
        case("/t/acme/mcp", Some("acme"), None);
        case("/t/acme/servers/neon/mcp/", Some("acme"), Some("neon"));
        for path in [
            "/",
            "/mcp//",
            "/mcp/x",
            "/servers/mcp",
            "/servers//mcp",
            "/t/a b/mcp",
            "/t//mcp",
            "/t/acme",
            "/servers/a/b/mcp",
        ] {
            assert_eq!(Endpoint::parse(path), None, "{path}");
        }
    }
}
