//! Streamable HTTP towards a server, in both eras (specification 2026-07-28 and 2025-11-25, basic/transports).
//!
//! Requests are built from scratch: configured headers, ours, and nothing of the caller's. In the modern era each request
//! stands for itself and dropping it cancels it; in the legacy era a session is opened, echoed, and deleted at the end.

mod answer;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::Full;
use rollcall_shared::digest::unguessable;
use rollcall_shared::limits;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::headers;
use rollcall_shared::model::{Isolation, Server, ServerEra, Transport};
use rollcall_shared::task::Tasks;
use rollcall_shared::tenants::Owned;
use rollcall_shared::wire::{Failure, Final, Reason};
use tokio::sync::oneshot;

pub(super) use self::answer::to_final;
use super::bulletin::Bulletin;
use super::client::HttpClient;
use super::handshake::{self, Peer, Probed};
use super::message;
use super::net::{read_capped, send_failure};
use super::{Broken, Deaf, Hear, Outgoing};
use crate::credentials;
use crate::worker::Shared;

/// An open connection; its sockets live in the client's pool.
pub(crate) struct HttpConnection {
    inner: Arc<Inner>,
    tasks: Tasks,
}

struct Inner {
    client: HttpClient,
    url: Uri,
    headers: HeaderMap,
    peer: Peer,
    /// The legacy session, if the server keeps one.
    session: Option<HeaderValue>,
    bulletin: Arc<Bulletin>,
    id_prefix: String,
    next_id: AtomicU64,
    closed: AtomicBool,
}

/// What goes into the headers of one request.
struct Heads<'a> {
    method: &'a str,
    name: Option<&'a str>,
    params: &'a [(String, String)],
}

impl<'a> Heads<'a> {
    fn of(method: &'a str) -> Self {
        Self { method, name: None, params: &[] }
    }
}

/// The way back to a server that asked something.
#[derive(Clone)]
pub(crate) struct ReplyTo(Arc<Inner>);

impl ReplyTo {
    pub(crate) async fn send(&self, answer: Bytes) {
        self.0.post_and_forget(answer).await;
    }
}

impl HttpConnection {
    /// Opens a connection to a server reached by URL. `changed` is called when the server says that a list of its changed.
    pub(crate) async fn open(
        shared: &Shared,
        server: &Owned<Server>,
        era: ServerEra,
        changed: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Self, Failure> {
        let Transport::Http { url, .. } = &server.value.transport else {
            return Err(Failure::unsent(Reason::NotConfigured, "no URL"));
        };
        let mut inner = Arc::new(Inner {
            client: shared.clients.of(server.owner).clone(),
            url: url.as_str().parse().map_err(|_| Failure::unsent(Reason::NotConfigured, "the URL is no URI"))?,
            headers: configured_headers(shared, server)?,
            peer: Peer::unknown(),
            session: None,
            bulletin: Bulletin::new(changed, server.value.isolation == Isolation::Session),
            id_prefix: unguessable(),
            next_id: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        });
        shake_hands(&mut inner, era).await?;
        let (settled, listens) = oneshot::channel();
        shared.tasks.spawn_until_stop("list changes", watch::watch(inner.clone(), settled));
        let connection = Self { inner, tasks: shared.tasks.clone() };
        if connection.keeps_session() && connection.bulletin().is_of_one_session() {
            // What the server asks apart from any call would be lost before it has this stream to ask on.
            tokio::time::timeout(limits::STANDING_STREAM, listens).await.ok();
        }
        Ok(connection)
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.inner.peer
    }

    pub(crate) fn bulletin(&self) -> &Arc<Bulletin> {
        &self.inner.bulletin
    }

    pub(crate) fn keeps_session(&self) -> bool {
        self.inner.session.is_some()
    }

    pub(crate) fn session(&self) -> Option<String> {
        self.inner.session.as_ref()?.to_str().ok().map(str::to_owned)
    }

    pub(crate) fn kill(&self) {
        self.inner.closed.store(true, Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.inner.closed.load(Ordering::Acquire)
    }

    pub(crate) async fn ask(
        &self,
        outgoing: Outgoing<'_>,
        hear: &Arc<dyn Hear>,
        sent: &AtomicBool,
    ) -> Result<Final, Broken> {
        let id = self.inner.new_id();
        let mut guard = CancelOnDrop { connection: self, id: &id, armed: self.inner.peer.era == Era::Legacy };
        let body = message::request(&id, outgoing.method, &outgoing.params);
        let heads = Heads { method: outgoing.method, name: outgoing.name, params: outgoing.headers };
        let attending = self.inner.bulletin.attend(hear);
        let asked = self.inner.exchange(&id, body, heads, &**hear, sent).await;
        if attending.was_told() {
            // What it says without an address comes on another stream, and may be a moment behind.
            tokio::time::sleep(limits::STRAGGLERS).await;
        }
        guard.armed = false;
        asked.map(|(end, _)| end)
    }

    pub(crate) async fn close(&self) {
        if self.inner.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.inner.session.is_some() {
            // Delete what was opened; a server that does not answer forgets it by itself.
            let deleting = self.inner.request(Method::DELETE, Bytes::new(), None);
            if let Ok(request) = deleting {
                tokio::time::timeout(limits::CHILD_GRACE, self.inner.client.request(request)).await.ok();
            }
        }
    }
}

/// The operator's headers, with their credentials.
fn configured_headers(shared: &Shared, server: &Owned<Server>) -> Result<HeaderMap, Failure> {
    let mut map = HeaderMap::new();
    let Transport::Http { headers, .. } = &server.value.transport else { return Ok(map) };
    for (name, value) in headers {
        let value = credentials::resolve(value, server.owner, &shared.environment)?;
        let bad = |e: String| Failure::unsent(Reason::CredentialMissing, format!("header {name}: {e}"));
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|e| bad(e.to_string()))?;
        let mut value = HeaderValue::from_str(value.expose()).map_err(|e| bad(e.to_string()))?;
        value.set_sensitive(true);
        map.insert(name, value);
    }
    Ok(map)
}

/// Ends a session that another worker opened and holds no more: if that worker lives after all, the server refuses it.
pub(crate) async fn end_session(shared: &Shared, server: &Owned<Server>, session: &str) {
    let Transport::Http { url, .. } = &server.value.transport else { return };
    let request = Request::builder().method(Method::DELETE).uri(url.as_str()).header(headers::SESSION_ID, session);
    let (Ok(mut request), Ok(own)) = (request.body(Full::default()), configured_headers(shared, server)) else {
        return;
    };
    request.headers_mut().extend(own);
    let deleting = shared.clients.of(server.owner).request(request);
    match tokio::time::timeout(limits::CHILD_GRACE, deleting).await {
        Ok(Ok(_)) => tracing::info!(server = %server.value.id, "the session of a worker that is gone is ended"),
        Ok(Err(_)) | Err(_) => tracing::warn!(server = %server.value.id, "such a session could not be ended"),
    }
}

impl Drop for HttpConnection {
    fn drop(&mut self) {
        // Ends the listener, however the connection came to be dropped.
        self.inner.closed.store(true, Ordering::Release);
    }
}

/// Finds out the era, and opens a session where it is the legacy one. The connection is ours alone until then.
async fn shake_hands(inner: &mut Arc<Inner>, era: ServerEra) -> Result<(), Failure> {
    if era != ServerEra::Legacy {
        match tokio::time::timeout(limits::PROBE_TIMEOUT, discover(inner)).await {
            Ok(Ok(Some(peer))) => {
                known(inner)?.peer = peer;
                return Ok(());
            }
            Ok(Err(failure)) => return Err(failure),
            Ok(Ok(None)) | Err(_) if era == ServerEra::Modern => {
                return Err(Failure::unsent(Reason::BadAnswer, "the server does not speak 2026-07-28"));
            }
            Ok(Ok(None)) | Err(_) => {}
        }
    }
    let opening = tokio::time::timeout(limits::HANDSHAKE_TIMEOUT, initialize(inner)).await;
    opening.unwrap_or_else(|_| Err(Failure::unsent(Reason::TimedOut, "no answer to initialize")))
}

fn known(inner: &mut Arc<Inner>) -> Result<&mut Inner, Failure> {
    Arc::get_mut(inner).ok_or_else(|| Failure::unsent(Reason::BadAnswer, "the server asks before it has answered"))
}

/// `Ok(None)`: the server answers, but not as a modern one.
async fn discover(inner: &Arc<Inner>) -> Result<Option<Peer>, Failure> {
    for _ in 0..handshake::PROBES {
        let id = inner.new_id();
        let body = message::request(&id, "server/discover", &message::own_params(Era::Modern, ""));
        let asked = inner.exchange(&id, body, Heads::of("server/discover"), &Deaf, &AtomicBool::new(false)).await;
        let end = match asked {
            Ok((end, _)) => end,
            Err(Broken::Unsent(failure)) => return Err(failure),
            Err(Broken::Failed(failure)) if failure.reason == Reason::AuthRequired => return Err(failure),
            Err(Broken::Failed(_) | Broken::LostSession) => return Ok(None),
        };
        match handshake::read_discover(&end)? {
            Probed::Modern(peer) => return Ok(Some(peer)),
            Probed::Refused => {}
            Probed::Other => return Ok(None),
        }
    }
    Err(handshake::refused_again())
}

/// Every question of the server comes on the stream of the call that it belongs to, so all kinds can be declared.
async fn initialize(inner: &mut Arc<Inner>) -> Result<(), Failure> {
    let id = inner.new_id();
    let own = known(inner)?;
    own.peer.era = Era::Legacy;
    own.peer.version = String::new(); // not negotiated yet: no version header
    let body = message::request(&id, "initialize", &handshake::initialize_params(true));
    let asked = inner.exchange(&id, body, Heads::of("initialize"), &Deaf, &AtomicBool::new(false)).await;
    let (end, session) = asked.map_err(|broken| match broken {
        Broken::Unsent(failure) | Broken::Failed(failure) => failure,
        Broken::LostSession => Failure::unsent(Reason::BadAnswer, "404 to initialize"),
    })?;
    let own = known(inner)?;
    own.peer = handshake::read_initialize(&end)?;
    own.session = session;
    let body = message::notification("notifications/initialized", "{}");
    let request = inner.request(Method::POST, body, None)?;
    let response = inner.client.request(request).await.map_err(|e| send_failure(&e))?;
    if !response.status().is_success() {
        let detail = format!("{} to notifications/initialized", response.status());
        return Err(Failure::unsent(Reason::BadAnswer, detail));
    }
    read_capped(response.into_body(), limits::BODY_BYTES).await.ok();
    Ok(())
}

/// A legacy server does not take a closed stream for a cancellation: it is told.
struct CancelOnDrop<'a> {
    connection: &'a HttpConnection,
    id: &'a str,
    armed: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            let inner = self.connection.inner.clone();
            let params = format!(r#"{{"requestId":{}}}"#, rollcall_shared::mcp::raw::quote(self.id));
            let body = message::notification("notifications/cancelled", &params);
            self.connection.tasks.spawn("cancel", async move { inner.post_and_forget(body).await });
        }
    }
}

impl Inner {
    fn new_id(&self) -> String {
        format!("{}-{}", self.id_prefix, self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    fn request(&self, method: Method, body: Bytes, heads: Option<&Heads<'_>>) -> Result<Request<Full<Bytes>>, Failure> {
        let bad = |e: http::Error| Failure::unsent(Reason::BadAnswer, e.to_string());
        let mut request = Request::builder()
            .method(method)
            .uri(self.url.clone())
            .header(http::header::ACCEPT, "application/json, text/event-stream")
            .header(http::header::CONTENT_TYPE, "application/json");
        if !self.peer.version.is_empty() {
            request = request.header(headers::PROTOCOL_VERSION, &self.peer.version);
        }
        if let Some(session) = &self.session {
            request = request.header(headers::SESSION_ID, session);
        }
        if let Some(heads) = heads.filter(|_| self.peer.era == Era::Modern) {
            request = request.header(headers::METHOD, heads.method);
            if let Some(name) = heads.name {
                request = request.header(headers::NAME, headers::encode(name));
            }
            for (name, value) in heads.params {
                request = request.header(format!("{}{name}", headers::PARAM_PREFIX), headers::encode(value));
            }
        }
        let mut request = request.body(Full::new(body)).map_err(bad)?;
        // The operator's headers cannot name any of ours: the model's reader refuses them.
        request.headers_mut().extend(self.headers.clone());
        Ok(request)
    }

    async fn post_and_forget(&self, body: Bytes) {
        let Ok(request) = self.request(Method::POST, body, None) else { return };
        let posting = async {
            if let Ok(response) = self.client.request(request).await {
                read_capped(response.into_body(), limits::BODY_BYTES).await.ok();
            }
        };
        tokio::time::timeout(limits::CONNECT_TIMEOUT, posting).await.ok();
    }

    /// One request and its answer, with the session that came along.
    async fn exchange(
        self: &Arc<Self>,
        id: &str,
        body: Bytes,
        heads: Heads<'_>,
        hear: &dyn Hear,
        sent: &AtomicBool,
    ) -> Result<(Final, Option<HeaderValue>), Broken> {
        let request = self.request(Method::POST, body, Some(&heads)).map_err(Broken::Failed)?;
        sent.store(true, Ordering::Release);
        let response = self.client.request(request).await.map_err(|error| {
            let failure = send_failure(&error);
            if failure.may_have_run { Broken::Failed(failure) } else { Broken::Unsent(failure) }
        })?;
        let session = response.headers().get(headers::SESSION_ID).cloned();
        let end = self.read_answer(id, heads.method, response, hear).await?;
        Ok((end, session))
    }
}
