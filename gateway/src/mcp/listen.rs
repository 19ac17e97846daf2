//! Standing streams: `subscriptions/listen` in the modern era (specification 2026-07-28, basic/patterns/subscriptions),
//! the GET stream of a session in the legacy ones.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use dashmap::DashMap;
use futures_util::stream;
use http::{HeaderMap, Request, Response, header};
use hyper::body::Incoming;
use rollcall_shared::ids::{ServerId, TenantId};
use rollcall_shared::limits;
use rollcall_shared::mcp::era::{META_SERVER, META_SUBSCRIPTION, MODERN};
use rollcall_shared::mcp::{headers, raw, sse};
use rollcall_shared::model::EntryKind;

use super::feed::{AtServer, Feed, Next, Notice, Task, Wanted};
use super::offers::Offers;
use super::session::{self, Session};
use super::target::{self, Reach};
use super::{Ask, resume, tasks};
use crate::app::App;
use crate::body::Body;
use crate::call::relay::event_stream;
use crate::call::{Record, admit, authenticate};
use crate::http::Endpoint;
use crate::identity::Principal;
use crate::refusal::Refusal;
use crate::view::Sight;

/// Standing streams of each tenant on this node.
#[derive(Default)]
pub(crate) struct Standing(DashMap<TenantId, Arc<AtomicUsize>>);

/// The right to one, given back when dropped.
struct Stands(Arc<AtomicUsize>);

impl Drop for Stands {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Standing {
    fn take(&self, tenant: &TenantId) -> Result<Stands, Refusal> {
        let count = self.0.entry(tenant.clone()).or_default().clone();
        if count.fetch_add(1, Ordering::AcqRel) >= limits::STANDING_STREAMS {
            count.fetch_sub(1, Ordering::AcqRel);
            return Err(Refusal::Overloaded);
        }
        Ok(Stands(count))
    }
}

/// `subscriptions/listen`
pub(super) fn listen(ask: &Ask<'_>, record: &mut Record) -> Result<Response<Body>, Refusal> {
    if !ask.message.takes_stream {
        return Err(Refusal::NotAcceptable);
    }
    let filter = ask.object("notifications")?;
    let filter = filter.ok_or_else(|| Refusal::InvalidParams("`notifications` is missing".to_owned()))?;
    let members = raw::members(std::str::from_utf8(&filter).unwrap_or("{}")).unwrap_or_default();
    let get = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, value)| value.get());
    let texts = |name: &str| -> Result<Vec<String>, Refusal> {
        let bad = |_| Refusal::InvalidParams(format!("`{name}` must be a list of texts"));
        let list: Vec<String> = get(name).map_or(Ok(Vec::new()), serde_json::from_str).map_err(bad)?;
        if list.len() > limits::SUBSCRIPTIONS {
            return Err(Refusal::InvalidParams(format!("more than {} in `{name}`", limits::SUBSCRIPTIONS)));
        }
        Ok(list)
    };
    let offers = ask.offers()?;
    let mut wanted = Wanted::default();
    let mut honoured = Vec::new();
    for (flag, kind, offered) in [
        ("toolsListChanged", EntryKind::Tool, true),
        ("promptsListChanged", EntryKind::Prompt, offers.prompts),
        ("resourcesListChanged", EntryKind::Resource, offers.resources),
    ] {
        if offered && get(flag) == Some("true") {
            wanted.lists.push(kind);
            honoured.push(format!(r#""{flag}":true"#));
        }
    }
    let uris = texts("resourceSubscriptions")?;
    let uris: Vec<&String> =
        uris.iter().filter(|uri| offers.subscribe && add(ask.reach(), &mut wanted.servers, uri)).collect();
    if !uris.is_empty() {
        honoured.push(format!(r#""resourceSubscriptions":{}"#, serde_json::to_string(&uris).unwrap_or_default()));
    }
    let handles = texts("taskIds")?;
    let declares = offers.tasks() && ask.params.meta.declares_extension(super::offers::TASKS);
    let handles: Vec<&String> =
        handles.iter().filter(|handle| declares && add_task(ask, &mut wanted.servers, handle)).collect();
    if !handles.is_empty() {
        honoured.push(format!(r#""taskIds":{}"#, serde_json::to_string(&handles).unwrap_or_default()));
    }
    let stands = ask.app.standing.take(&ask.principal.tenant)?;
    let acknowledged = Notice {
        method: "notifications/subscriptions/acknowledged",
        params: format!(r#""notifications":{{{}}}"#, honoured.join(",")),
        meta: String::new(),
    };
    let feed = Feed::new(ask.app, ask.endpoint, ask.principal, ask.sight.clone(), wanted);
    let voice = Voice::Modern { id: ask.id.to_owned() };
    let ready = VecDeque::from([voice.event(&acknowledged)]);
    record.verdict = "allowed";
    Ok(respond(Stream { feed, voice, ready, over: false, _stands: stands }))
}

/// Adds what is to be listened to for a resource; false where there is none for this caller.
fn add(at: Reach<'_, '_>, servers: &mut BTreeMap<ServerId, AtServer>, name: &str) -> bool {
    let Ok((permit, real)) = target::resource(at, name) else { return false };
    let Some(server) = permit.server() else { return false };
    servers.entry(server.id.clone()).or_default().resources.insert(real, name.to_owned());
    true
}

fn add_task(ask: &Ask<'_>, servers: &mut BTreeMap<ServerId, AtServer>, handle: &str) -> bool {
    let Some(task) = tasks::open(ask, handle) else { return false };
    let Some(permit) = ask.sight.permit(EntryKind::Tool, &task.tool) else { return false };
    let Some(server) = permit.server() else { return false };
    if server.id.as_str() != task.server {
        return false;
    }
    let known = Task { handle: handle.to_owned(), tool: task.tool };
    servers.entry(server.id.clone()).or_default().tasks.insert(task.id, known);
    true
}

/// `GET`: the standing stream of a session, or a broken stream taken up again.
pub(crate) async fn get(
    app: &Arc<App>,
    endpoint: &Endpoint,
    request: &Request<Incoming>,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    // Standing streams have a bound of their own.
    drop(admit::admit(app, request)?);
    let heads = request.headers();
    let principal = authenticate::authenticate(app, endpoint, heads).await?;
    record.is_of(&principal);
    let modern = heads.get(headers::PROTOCOL_VERSION).is_some_and(|version| version == MODERN);
    let session = if modern { None } else { session::find(app, &principal, endpoint, heads).await? };
    // Without a session there is nobody to tell.
    let session = session.ok_or(Refusal::Method("POST"))?;
    if !takes_stream(heads) {
        return Err(Refusal::NotAcceptable);
    }
    if heads.contains_key(headers::LAST_EVENT_ID) {
        let stands = app.standing.take(&principal.tenant)?;
        return resume::resume(app, &principal, &session, heads, stands, record).await;
    }
    let sight = app.live.sight(&principal).await?;
    let stands = app.standing.take(&principal.tenant)?;
    let offers = Offers::of(&sight, endpoint)?;
    let mut lists = vec![EntryKind::Tool];
    lists.extend(offers.prompts.then_some(EntryKind::Prompt));
    lists.extend(offers.resources.then_some(EntryKind::Resource));
    let servers = subscriptions(app, endpoint, &principal, &sight, &session);
    let feed = Feed::new(app, endpoint, &principal, sight, Wanted { lists, servers });
    let own = OwnSession { endpoint: endpoint.clone(), headers: heads.clone() };
    let voice = Voice::Legacy(Box::new(own));
    // The first byte goes at once: some intermediaries withhold the status until it comes.
    let ready = VecDeque::from([Bytes::from_static(sse::COMMENT)]);
    Ok(respond(Stream { feed, voice, ready, over: false, _stands: stands }))
}

fn takes_stream(headers: &HeaderMap) -> bool {
    let accepts = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok());
    accepts.is_none_or(|accepts| accepts.contains("text/event-stream") || accepts.contains("*/*"))
}

/// What a session subscribed to, as far as it may be read now.
fn subscriptions(
    app: &Arc<App>,
    endpoint: &Endpoint,
    principal: &Principal,
    sight: &Sight,
    session: &Session,
) -> BTreeMap<ServerId, AtServer> {
    let mut servers = BTreeMap::new();
    let at = Reach { app, tenant: &principal.tenant, endpoint, sight };
    for uri in &session.remembered().subscriptions {
        add(at, &mut servers, uri);
    }
    servers
}

/// A session whose standing stream this is.
struct OwnSession {
    endpoint: Endpoint,
    headers: HeaderMap,
}

/// How notices are put.
enum Voice {
    /// Each names the request that asked for it.
    Modern {
        id: String,
    },
    Legacy(Box<OwnSession>),
}

impl Voice {
    fn event(&self, notice: &Notice) -> Bytes {
        let own = match self {
            Voice::Modern { id } => format!(r#""{META_SUBSCRIPTION}":{id}"#),
            Voice::Legacy(_) => String::new(),
        };
        let meta: Vec<&str> = [own.as_str(), &notice.meta].into_iter().filter(|part| !part.is_empty()).collect();
        let meta = if meta.is_empty() { String::new() } else { format!(r#""_meta":{{{}}}"#, meta.join(",")) };
        let comma = if meta.is_empty() || notice.params.is_empty() { "" } else { "," };
        let inner = format!("{}{comma}{meta}", notice.params);
        let params = if inner.is_empty() { String::new() } else { format!(r#","params":{{{inner}}}"#) };
        sse::event(format!(r#"{{"jsonrpc":"2.0","method":"{}"{params}}}"#, notice.method).as_bytes())
    }

    /// A graceful end is an answer to the request; the legacy eras have none.
    fn last(&self) -> Option<Bytes> {
        match self {
            Voice::Modern { id } => {
                let meta = format!(r#""{META_SUBSCRIPTION}":{id},"{META_SERVER}":{}"#, super::SERVER_INFO);
                let result = format!(r#"{{"resultType":"complete","_meta":{{{meta}}}}}"#);
                Some(sse::event(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#).as_bytes()))
            }
            Voice::Legacy(_) => None,
        }
    }
}

struct Stream {
    feed: Feed,
    voice: Voice,
    ready: VecDeque<Bytes>,
    over: bool,
    _stands: Stands,
}

fn respond(stream: Stream) -> Response<Body> {
    let mut response = Response::new(Body::events(stream::unfold(Box::new(stream), |mut stream| async move {
        let event = stream.next().await?;
        Some((event, stream))
    })));
    event_stream(response.headers_mut());
    response
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.over {
                return None;
            }
            match self.feed.next().await {
                Next::Notices(notices) => {
                    self.ready.extend(notices.iter().map(|notice| self.voice.event(notice)));
                    self.look_again().await;
                }
                Next::Changed => self.look_again().await,
                Next::Silence => return Some(Bytes::from_static(sse::COMMENT)),
                Next::End => {
                    self.over = true;
                    self.ready.extend(self.voice.last());
                }
            }
        }
    }

    /// A legacy session may have subscribed to something else, or be over.
    async fn look_again(&mut self) {
        let Voice::Legacy(own) = &self.voice else { return };
        let (app, principal) = self.feed.parties();
        match session::find(&app, &principal, &own.endpoint, &own.headers).await {
            Ok(Some(session)) => {
                let sight = self.feed.sight().clone();
                let servers = subscriptions(&app, &own.endpoint, &principal, &sight, &session);
                self.feed.wants(servers);
            }
            Ok(None) | Err(Refusal::NoSuchSession) => self.over = true,
            // The store cannot say: the next change asks again.
            Err(_) => {}
        }
    }
}
