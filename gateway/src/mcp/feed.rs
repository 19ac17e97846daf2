//! A feed: what a session is told apart from any request, as long as it listens.
//!
//! Lists are functions of the view: a feed compares the view's digests whenever anything changed, and tells of the kinds
//! whose list is another one now. Updates of resources come from the workers, and are told only while the session may
//! still read them. A feed ends with the token, with the session, and when a revocation leaves nothing.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rollcall_shared::clock::unix_s;
use rollcall_shared::digest::Digest;
use rollcall_shared::ids::ServerId;
use rollcall_shared::limits;
use rollcall_shared::mcp::raw;
use rollcall_shared::model::EntryKind;
use rollcall_shared::placement::Thing;
use rollcall_shared::wire::{CallId, Caller, Envelope, Final, Interim, News, Op, Params, Route, Told, TraceContext};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::target::{self, Reach};
use crate::app::App;
use crate::call::forward::head;
use crate::call::relay::SILENCE;
use crate::http::Endpoint;
use crate::identity::Principal;
use crate::surface::changes::META_CHANGES;
use crate::view::Sight;

/// What is listened to at one server: by the upstream's name, the name that the client knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AtServer {
    pub(super) resources: BTreeMap<String, String>,
    pub(super) tasks: BTreeMap<String, Task>,
}

/// A task that is listened to: its handle, and the visible name of its tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) handle: String,
    pub(super) tool: String,
}

/// What a session wants to be told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) lists: Vec<EntryKind>,
    pub(super) servers: BTreeMap<ServerId, AtServer>,
}

/// One thing that is told: method, and the inside of its params.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) method: &'static str,
    pub(super) params: String,
    /// The inside of its `_meta`.
    pub(super) meta: String,
}

/// A standing word to a worker, and what it tells.
struct Watch {
    at: AtServer,
    end: BoxFuture<'static, Final>,
    news: mpsc::Receiver<News>,
    /// It ended, and is made anew then: nobody knows what was missed.
    again: Option<Instant>,
}

/// See the module.
pub(super) struct Feed {
    app: Arc<App>,
    endpoint: Endpoint,
    principal: Arc<Principal>,
    lists: Vec<EntryKind>,
    changes: watch::Receiver<u64>,
    sight: Arc<Sight>,
    digests: HashMap<EntryKind, Digest>,
    watches: BTreeMap<ServerId, Watch>,
}

/// What comes from a worker: of which server, and the whole notification; nothing where a watch ended.
fn poll_watches(watches: &mut BTreeMap<ServerId, Watch>, cx: &mut Context<'_>) -> Poll<(ServerId, Option<Bytes>)> {
    for (server, watch) in watches.iter_mut().filter(|(_, watch)| watch.again.is_none()) {
        if let Poll::Ready(Some(news)) = watch.news.poll_recv(cx) {
            if let Told::Notification(message) = news.told {
                return Poll::Ready((server.clone(), Some(message)));
            }
            cx.waker().wake_by_ref();
        }
        if watch.end.as_mut().poll(cx).is_ready() {
            watch.again = Some(Instant::now() + limits::BACKOFF_FIRST * 2);
            return Poll::Ready((server.clone(), None));
        }
    }
    Poll::Pending
}

/// What happened to a feed.
pub(super) enum Next {
    Notices(Vec<Notice>),
    /// Anything of the tenant changed: whoever wants something else now says so.
    Changed,
    Silence,
    End,
}

impl Feed {
    pub(super) fn new(
        app: &Arc<App>,
        endpoint: &Endpoint,
        principal: &Arc<Principal>,
        sight: Arc<Sight>,
        wanted: Wanted,
    ) -> Self {
        let mut changes = app.live.tenants().changes();
        // What changed since the sight was taken is found by the first look.
        changes.mark_changed();
        let digests = wanted.lists.iter().map(|kind| (*kind, of_list(&sight, *kind))).collect();
        let servers = wanted.servers;
        let mut feed = Self {
            app: app.clone(),
            endpoint: endpoint.clone(),
            principal: principal.clone(),
            lists: wanted.lists,
            changes,
            sight,
            digests,
            watches: BTreeMap::new(),
        };
        feed.wants(servers);
        feed
    }

    /// Listens to these from now on; what is listened to already goes on.
    pub(super) fn wants(&mut self, servers: BTreeMap<ServerId, AtServer>) {
        self.watches.retain(|server, _| servers.contains_key(server));
        for (server, at) in servers {
            if self.watches.get(&server).is_none_or(|watch| watch.at != at) {
                // The new one stands before the old one is dropped.
                let watch = self.watch(&server, at);
                self.watches.insert(server, watch);
            }
        }
    }

    fn watch(&self, server: &ServerId, at: AtServer) -> Watch {
        let op = Op::Watch {
            server: server.clone(),
            uris: at.resources.keys().cloned().collect(),
            tasks: at.tasks.keys().cloned().collect(),
        };
        let trace = TraceContext::fresh();
        let head = head(&self.principal, op, CallId::fresh(), limits::MCP_SESSION_LIFETIME, trace, Caller::default());
        let (interim, news) = Interim::channel();
        let route = self.route(server);
        let mut end = self.app.link.send(route, Envelope { head, params: Params::default() }, interim);
        let waker = std::task::Waker::noop();
        // Begun at once, so that it listens from now on.
        let begun = end.as_mut().poll(&mut Context::from_waker(waker));
        let again = begun.is_ready().then(|| Instant::now() + limits::BACKOFF_FIRST);
        Watch { at, end, news, again }
    }

    /// Where the connection to a server is that serves this session.
    fn route(&self, server: &ServerId) -> Route {
        let configured = self.sight.registry.docs.servers.get(server).map(|owned| owned.value.clone());
        let tenant = &self.principal.tenant;
        match configured {
            Some(configured) => Route::Owner(Thing::connection(tenant, &configured, &self.principal.session_digest())),
            None => Route::Here,
        }
    }

    /// When the next watch that ended is to be made anew.
    async fn next_again(&self) -> ServerId {
        let due = self.watches.iter().filter_map(|(server, watch)| Some((watch.again?, server)));
        match due.min() {
            Some((at, server)) => {
                tokio::time::sleep_until(at).await;
                server.clone()
            }
            None => std::future::pending().await,
        }
    }

    /// Makes a watch anew, and tells of everything in it: nobody knows what was missed.
    fn make_anew(&mut self, server: &ServerId) -> Vec<Notice> {
        let Some(at) = self.watches.get(server).map(|watch| watch.at.clone()) else { return Vec::new() };
        let watch = self.watch(server, at.clone());
        if watch.again.is_some() {
            self.watches.insert(server.clone(), watch);
            return Vec::new();
        }
        self.watches.insert(server.clone(), watch);
        at.resources.values().filter_map(|uri| self.updated(uri)).collect()
    }

    pub(super) fn parties(&self) -> (Arc<App>, Arc<Principal>) {
        (self.app.clone(), self.principal.clone())
    }

    pub(super) fn sight(&self) -> &Arc<Sight> {
        &self.sight
    }

    pub(super) async fn next(&mut self) -> Next {
        let until = self.sight.policy.expires_at.unwrap_or(u64::MAX).min(self.principal.expires_at);
        let left = until.saturating_sub(unix_s());
        if let Some(due) = self.next_again().now_or_never() {
            return Next::Notices(self.make_anew(&due));
        }
        let end = std::time::Duration::from_secs(left.min(limits::TOKEN_LIFETIME_S));
        let closing = self.app.tasks.closing().clone();
        let silence = self.silence();
        let Self { changes, watches, .. } = self;
        tokio::select! {
            biased;
            () = closing.cancelled() => Next::End,
            () = tokio::time::sleep(end) => Next::End,
            changed = changes.changed() => {
                if changed.is_err() { Next::End } else { self.compare().await }
            }
            (server, message) = poll_fn(|cx| poll_watches(watches, cx)) => {
                let notice = message.and_then(|message| self.update(&server, &message));
                Next::Notices(notice.into_iter().collect())
            }
            () = tokio::time::sleep(silence) => Next::Silence,
        }
    }

    /// How long it may be silent; not beyond the time at which a watch is made anew.
    fn silence(&self) -> Duration {
        let due = self.watches.values().filter_map(|watch| watch.again).min();
        let left = due.map(|at| at.saturating_duration_since(Instant::now()));
        left.unwrap_or(SILENCE).min(SILENCE)
    }

    async fn compare(&mut self) -> Next {
        let Ok(sight) = self.app.live.sight(&self.principal).await else {
            // The store cannot say: what is told may be told again later.
            return Next::Changed;
        };
        let nothing_left = nothing(&sight) && !nothing(&self.sight);
        let before = std::mem::replace(&mut self.sight, sight);
        if nothing_left {
            return Next::End;
        }
        let mut notices = Vec::new();
        for kind in &self.lists {
            let now = of_list(&self.sight, *kind);
            if self.digests.insert(*kind, now).is_some_and(|before| before != now) {
                notices.extend(self.list_changed(&before, *kind));
            }
        }
        if notices.is_empty() { Next::Changed } else { Next::Notices(notices) }
    }

    /// The list is another one. On `/mcp`, where entries have whole names, it is said which.
    fn list_changed(&self, before: &Sight, kind: EntryKind) -> Option<Notice> {
        let method = match kind {
            EntryKind::Tool => "notifications/tools/list_changed",
            EntryKind::Prompt => "notifications/prompts/list_changed",
            EntryKind::Resource => "notifications/resources/list_changed",
            EntryKind::Template => return None,
        };
        let changes = || self.app.changes.between(&before.view, &self.sight.view, kind);
        let meta = match self.endpoint.server {
            None => format!(r#""{META_CHANGES}":{}"#, changes()),
            Some(_) => String::new(),
        };
        Some(Notice { method, params: String::new(), meta })
    }

    /// An update as the client may read it, where it may read it now.
    fn update(&self, server: &ServerId, message: &Bytes) -> Option<Notice> {
        let at = &self.watches.get(server)?.at;
        let members = raw::members(std::str::from_utf8(message).ok()?).ok()?;
        let get = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, value)| *value);
        let method = get("method").and_then(raw::string)?;
        let params = raw::members(get("params")?.get()).ok()?;
        let of = |name: &str| params.iter().find(|(key, _)| key == name).and_then(|(_, value)| raw::string(value));
        match method.as_str() {
            "notifications/resources/updated" => self.updated(at.resources.get(&of("uri")?)?),
            "notifications/tasks" => {
                let task = at.tasks.get(&of("taskId")?)?;
                self.sight.permit(EntryKind::Tool, &task.tool)?;
                let known = format!(r#""taskId":{}"#, raw::quote(&task.handle));
                let rest = params.iter().filter(|(key, _)| key != "taskId");
                let rest = rest.map(|(key, value)| format!(",{}:{}", raw::quote(key), value.get()));
                Some(Notice {
                    method: "notifications/tasks",
                    params: known + &rest.collect::<String>(),
                    meta: String::new(),
                })
            }
            _ => None,
        }
    }

    fn updated(&self, uri: &str) -> Option<Notice> {
        let at = Reach { app: &self.app, tenant: &self.principal.tenant, endpoint: &self.endpoint, sight: &self.sight };
        target::resource(at, uri).ok()?;
        let params = format!(r#""uri":{}"#, raw::quote(uri));
        Some(Notice { method: "notifications/resources/updated", params, meta: String::new() })
    }
}

fn nothing(sight: &Sight) -> bool {
    EntryKind::ALL.into_iter().all(|kind| !sight.view.has(kind))
}

/// Templates are listed with resources, and announced with them.
fn of_list(sight: &Sight, kind: EntryKind) -> Digest {
    let own = sight.view.digest_of(kind);
    match kind {
        EntryKind::Resource => {
            let templates = sight.view.digest_of(EntryKind::Template);
            Digest::of_parts([&own.as_bytes()[..], &templates.as_bytes()[..]])
        }
        EntryKind::Tool | EntryKind::Prompt | EntryKind::Template => own,
    }
}
