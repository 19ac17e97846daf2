//! A feed: what a session is told apart from any request, as long as it listens.
//!
//! Lists are functions of the view: a feed compares the view's digests whenever anything changed, and tells of the kinds
//! whose list is another one now. Updates of resources come from the workers, and are told only while the session may
//! still read them. A feed ends with the token, with the session, and when a revocation leaves nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, SelectAll};
use rollcall_shared::clock::unix_s;
use rollcall_shared::digest::Digest;
use rollcall_shared::ids::ServerId;
use rollcall_shared::limits;
use rollcall_shared::mcp::raw;
use rollcall_shared::model::EntryKind;
use rollcall_shared::wire::{CallId, Caller, Envelope, Interim, Op, Params, Told, TraceContext};
use tokio::sync::watch;

use crate::app::App;
use crate::call::forward::head;
use crate::identity::Principal;
use crate::view::Sight;

/// What is listened to at one server: by the upstream's name, the name that the client knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AtServer {
    pub(super) resources: BTreeMap<String, Subscribed>,
    pub(super) tasks: BTreeMap<String, String>,
}

/// One resource that is listened to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subscribed {
    /// As the client knows it.
    pub(super) uri: String,
    /// The entry that allows it: its kind and visible name.
    pub(super) by: (EntryKind, String),
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
}

/// What comes from a worker: of which server, and the whole notification.
type Update = (ServerId, Bytes);

/// See the module.
pub(super) struct Feed {
    app: Arc<App>,
    principal: Arc<Principal>,
    wanted: Wanted,
    changes: watch::Receiver<u64>,
    sight: Arc<Sight>,
    digests: HashMap<EntryKind, Digest>,
    updates: SelectAll<BoxStream<'static, Update>>,
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
    pub(super) fn new(app: &Arc<App>, principal: &Arc<Principal>, sight: Arc<Sight>, wanted: Wanted) -> Self {
        let changes = app.live.tenants().changes();
        let digests = wanted.lists.iter().map(|kind| (*kind, of_list(&sight, *kind))).collect();
        let (app, principal) = (app.clone(), principal.clone());
        let mut feed = Self { app, principal, wanted, changes, sight, digests, updates: SelectAll::new() };
        feed.subscribe();
        feed
    }

    /// Listens to other resources from now on.
    pub(super) fn wants(&mut self, servers: BTreeMap<ServerId, AtServer>) {
        if self.wanted.servers != servers {
            self.wanted.servers = servers;
            self.subscribe();
        }
    }

    pub(super) fn parties(&self) -> (Arc<App>, Arc<Principal>) {
        (self.app.clone(), self.principal.clone())
    }

    pub(super) fn sight(&self) -> &Arc<Sight> {
        &self.sight
    }

    fn subscribe(&mut self) {
        self.updates = SelectAll::new();
        for (server, at) in &self.wanted.servers {
            let uris: Vec<String> = at.resources.keys().cloned().collect();
            let tasks: Vec<String> = at.tasks.keys().cloned().collect();
            if uris.is_empty() && tasks.is_empty() {
                continue;
            }
            let op = Op::Watch { server: server.clone(), uris, tasks };
            let timeout = limits::MCP_SESSION_LIFETIME;
            let head = head(&self.principal, op, CallId::fresh(), timeout, TraceContext::fresh(), Caller::default());
            let (interim, mut news) = Interim::channel();
            let watching = self.app.link.send(Envelope { head, params: Params::default() }, interim);
            let server = server.clone();
            let stream = futures_util::stream::once(async move {
                // The worker tells as long as it is listened to, and is listened to as long as this is polled.
                let mut watching = watching;
                let updates = futures_util::stream::poll_fn(move |cx| {
                    let told = news.poll_recv(cx);
                    if told.is_pending() && watching.as_mut().poll(cx).is_ready() {
                        return std::task::Poll::Ready(None);
                    }
                    told
                });
                updates.filter_map(move |told| {
                    let server = server.clone();
                    async move {
                        match told.told {
                            Told::Notification(message) => Some((server, message)),
                            Told::Request { .. } => None,
                        }
                    }
                })
            });
            self.updates.push(stream.flatten().boxed());
        }
    }

    pub(super) async fn next(&mut self) -> Next {
        let left = self.principal.expires_at.saturating_sub(unix_s());
        let end = std::time::Duration::from_secs(left.min(limits::TOKEN_LIFETIME_S));
        let stopping = self.app.tasks.stopping().clone();
        tokio::select! {
            biased;
            () = stopping.cancelled() => Next::End,
            () = tokio::time::sleep(end) => Next::End,
            changed = self.changes.changed() => {
                if changed.is_err() { Next::End } else { self.compare().await }
            }
            Some((server, message)) = self.updates.next(), if !self.updates.is_empty() => {
                Next::Notices(self.update(&server, &message).into_iter().collect())
            }
            () = tokio::time::sleep(crate::call::relay::SILENCE) => Next::Silence,
        }
    }

    async fn compare(&mut self) -> Next {
        let Ok(sight) = self.app.live.sight(&self.principal).await else {
            // The store cannot say: what is told may be told again later.
            return Next::Changed;
        };
        let nothing_left = nothing(&sight) && !nothing(&self.sight);
        self.sight = sight;
        if nothing_left {
            return Next::End;
        }
        let mut notices = Vec::new();
        for kind in &self.wanted.lists {
            let now = of_list(&self.sight, *kind);
            if self.digests.insert(*kind, now).is_some_and(|before| before != now) {
                notices.extend(list_changed(*kind));
            }
        }
        if notices.is_empty() { Next::Changed } else { Next::Notices(notices) }
    }

    /// An update as the client may read it.
    fn update(&self, server: &ServerId, message: &Bytes) -> Option<Notice> {
        let at = self.wanted.servers.get(server)?;
        let members = raw::members(std::str::from_utf8(message).ok()?).ok()?;
        let get = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, value)| *value);
        let method = get("method").and_then(raw::string)?;
        let params = raw::members(get("params")?.get()).ok()?;
        let of = |name: &str| params.iter().find(|(key, _)| key == name).and_then(|(_, value)| raw::string(value));
        match method.as_str() {
            "notifications/resources/updated" => {
                let real = of("uri")?;
                let subscribed = at.resources.get(&real)?;
                self.sight.permit(subscribed.by.0, &subscribed.by.1)?;
                let params = format!(r#""uri":{}"#, raw::quote(&subscribed.uri));
                Some(Notice { method: "notifications/resources/updated", params })
            }
            "notifications/tasks" => {
                let handle = at.tasks.get(&of("taskId")?)?;
                let known = format!(r#""taskId":{}"#, raw::quote(handle));
                let rest = params.iter().filter(|(key, _)| key != "taskId");
                let rest = rest.map(|(key, value)| format!(",{}:{}", raw::quote(key), value.get()));
                Some(Notice { method: "notifications/tasks", params: known + &rest.collect::<String>() })
            }
            _ => None,
        }
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

fn list_changed(kind: EntryKind) -> Option<Notice> {
    let method = match kind {
        EntryKind::Tool => "notifications/tools/list_changed",
        EntryKind::Prompt => "notifications/prompts/list_changed",
        EntryKind::Resource => "notifications/resources/list_changed",
        EntryKind::Template => return None,
    };
    Some(Notice { method, params: String::new() })
}
