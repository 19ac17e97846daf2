//! How the mock answers each request.

#![expect(clippy::indexing_slicing, reason = "reading a member that is not there gives null")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use serde_json::{Value, json};
use tokio::sync::{broadcast, mpsc};

use super::{Reply, Seen, Speaks, State, lock};

pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

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

pub(super) async fn serve(
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
        let id = if lock(state).repeats_ids { id } else { &Value::Null };
        return rpc_error(404, id, -32001, "Session not found");
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
