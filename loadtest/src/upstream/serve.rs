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
use tokio::sync::{broadcast, mpsc, oneshot};

use super::{Conclude, Reply, Seen, Speaks, State, lock};

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
    changed: broadcast::Sender<String>,
    cancelled: Arc<AtomicUsize>,
    request: Request<Incoming>,
) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    let body = String::from_utf8_lossy(&body).into_owned();
    let (speaks, broken) = {
        let mut state = lock(&state);
        let path = head.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        let (method, headers) = (head.method.clone(), head.headers.clone());
        state.seen.push(Seen { method, path, headers, body: body.clone() });
        (state.speaks, state.broken.clone())
    };
    let message: Value = serde_json::from_str(&body).unwrap_or_default();
    if let Some(broken) = broken {
        return reply(&state, broken, &message["id"], &mut Unfinished(None)).await;
    }
    // A client's answer to a question.
    if message.get("method").is_none() && message.get("id").is_some() {
        let waiting = lock(&state).asked.remove(message["id"].as_str().unwrap_or_default());
        let status = if waiting.is_some_and(|waiting| waiting.send(message).is_ok()) { 202 } else { 400 };
        return respond(status, "text/plain", "");
    }
    match speaks {
        Speaks::Modern => modern(&state, &changed, cancelled, &head, &message).await,
        Speaks::Legacy => legacy(&state, &changed, cancelled, &head, &message).await,
    }
}

async fn modern(
    state: &Arc<Mutex<State>>,
    changed: &broadcast::Sender<String>,
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
    let refuses = {
        let mut state = lock(state);
        let refusals = state.refusals;
        state.refusals = refusals.saturating_sub(1);
        refusals > 0
    };
    if refuses {
        let data = r#"{"supported":["2026-07-28"],"requested":"2026-07-28"}"#;
        return rpc(400, id, &format!(r#""error":{{"code":-32022,"message":"not this one","data":{data}}}"#));
    }
    let named = message["params"]["name"].as_str().filter(|_| method == "tools/call");
    let name_fits = named
        .is_none_or(|name| rollcall_shared::mcp::headers::decode(text("mcp-name").as_bytes()).as_deref() == Some(name));
    if text("mcp-protocol-version") != version || text("mcp-method") != method || !name_fits {
        return rpc_error(400, id, -32020, "headers and body differ");
    }
    match method {
        "server/discover" => {
            let (capabilities, about) = said(state);
            let result = format!(
                r#"{{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{{{capabilities}}},"ttlMs":0,"cacheScope":"private"{about}}}"#
            );
            rpc(200, id, &format!(r#""result":{result}"#))
        }
        "subscriptions/listen" => listen(changed.subscribe(), Some(id)),
        "tools/list" => list(state, id, message, r#""resultType":"complete","ttlMs":0,"cacheScope":"private","#),
        "tools/call" => call(state, cancelled, id, &message["params"]).await,
        _ => match other(state, method, id, &message["params"]).await {
            Some(answer) => answer,
            None => rpc_error(404, id, -32601, "not found"),
        },
    }
}

async fn legacy(
    state: &Arc<Mutex<State>>,
    changed: &broadcast::Sender<String>,
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
        let (capabilities, about) = said(state);
        let result = format!(
            r#"{{"protocolVersion":"2025-11-25","capabilities":{{{capabilities}}},"serverInfo":{{"name":"mock","version":"1"}}{about}}}"#
        );
        let mut response = rpc(200, id, &format!(r#""result":{result}"#));
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
        Method::GET if head.headers.contains_key("last-event-id") => {
            let broken_off = lock(state).broken_off.take();
            let Some((id, result)) = broken_off else { return respond(400, "text/plain", "") };
            return finished(Reply::Stream(Vec::new(), result), &id);
        }
        Method::GET => {
            let pause = lock(state).streams_after;
            tokio::time::sleep(pause).await;
            return listen(changed.subscribe(), None);
        }
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
        _ => match other(state, method, id, &message["params"]).await {
            Some(answer) => answer,
            None => rpc_error(200, id, -32601, "Method not found"),
        },
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

/// Capabilities, and what else the answer that opens holds.
fn said(state: &Mutex<State>) -> (String, String) {
    let state = lock(state);
    let about = if state.about.is_empty() { String::new() } else { format!(",{}", state.about) };
    (state.capabilities.clone(), about)
}

async fn other(state: &Arc<Mutex<State>>, method: &str, id: &Value, params: &Value) -> Option<Response<Body>> {
    let answers = lock(state).others.get(method).cloned()?;
    Some(reply(state, answers(params), id, &mut Unfinished(None)).await)
}

async fn call(state: &Arc<Mutex<State>>, cancelled: Arc<AtomicUsize>, id: &Value, params: &Value) -> Response<Body> {
    let answers = lock(state).answers.clone();
    let mut unfinished = Unfinished(Some(cancelled));
    reply(state, answers(params), id, &mut unfinished).await
}

async fn reply(state: &Arc<Mutex<State>>, reply: Reply, id: &Value, unfinished: &mut Unfinished) -> Response<Body> {
    let mut reply = reply;
    loop {
        match reply {
            Reply::After(pause, then) => {
                tokio::time::sleep(pause).await;
                reply = *then;
            }
            Reply::Hang => std::future::pending().await,
            Reply::Ask(questions, conclude) => {
                let counter = unfinished.0.take();
                return ask(state, questions, conclude, id.clone(), Unfinished(counter));
            }
            Reply::Break(result) => {
                unfinished.0 = None;
                lock(state).broken_off = Some((id.clone(), result));
                return respond(200, "text/event-stream", "id: 1\nretry: 10\ndata: \n\n");
            }
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
        Reply::After(..) | Reply::Hang | Reply::Ask(..) | Reply::Break(_) => respond(500, "text/plain", ""),
    }
}

/// Asks on the stream of the call, and concludes it with the answers.
fn ask(
    state: &Arc<Mutex<State>>,
    questions: Vec<(&'static str, String)>,
    conclude: Conclude,
    id: Value,
    unfinished: Unfinished,
) -> Response<Body> {
    let (sender, receiver) = mpsc::channel(64);
    let mut answers = Vec::new();
    for (n, (method, params)) in questions.into_iter().enumerate() {
        // Ids of a server are its own, and may be any that the client uses too.
        let question = format!("ask-{n}-{id}");
        let (answer, waiting) = oneshot::channel();
        lock(state).asked.insert(question.clone(), answer);
        answers.push(waiting);
        let text =
            format!(r#"{{"jsonrpc":"2.0","id":{},"method":"{method}","params":{params}}}"#, Value::from(question));
        sender.try_send(format!("data: {text}\n\n")).ok();
    }
    #[expect(clippy::disallowed_methods, reason = "ends with its connection")]
    tokio::spawn(async move {
        let mut given = Vec::new();
        for answer in answers {
            tokio::select! {
                answer = answer => given.extend(answer),
                () = sender.closed() => return, // counted as cancelled
            }
        }
        let mut finished = unfinished;
        finished.0 = None;
        let end = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{}}}"#, (conclude.0)(&given));
        sender.send(format!("data: {end}\n\n")).await.ok();
    });
    stream(receiver)
}

/// Tells of changes until the connection ends. A modern listener's id is on each message, the first of which says that
/// it is heard.
fn listen(mut changed: broadcast::Receiver<String>, id: Option<&Value>) -> Response<Body> {
    let (sender, receiver) = mpsc::channel(16);
    let meta = id.map(|id| format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}"#));
    #[expect(clippy::disallowed_methods, reason = "ends with its connection")]
    tokio::spawn(async move {
        let mut event = match &meta {
            Some(meta) => format!(
                "data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\",\"params\":{{\"notifications\":{{}},{meta}}}}}\n\n"
            ),
            None => ": open\n\n".to_owned(),
        };
        loop {
            if sender.send(event).await.is_err() {
                return;
            }
            let told = tokio::select! {
                told = changed.recv() => told,
                () = sender.closed() => return,
            };
            let Some(told) = told.ok().filter(|told| !told.is_empty()) else { return };
            let told = match &meta {
                Some(meta) => told.replacen(r#""params":{"#, &format!(r#""params":{{{meta},"#), 1).replace(",}", "}"),
                None => told,
            };
            event = format!("data: {told}\n\n");
        }
    });
    stream(receiver)
}
