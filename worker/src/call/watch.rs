//! Updates of resources (and of tasks) for callers that listen: one subscription upstream for all who want the same.
//!
//! A modern server is asked by `subscriptions/listen`, a legacy one by `resources/subscribe`. When the connection breaks
//! it is made anew, and one update is told: nobody knows what changed in between.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use dashmap::DashMap;
use rollcall_shared::ids::{ServerId, TenantId};
use rollcall_shared::limits;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::raw;
use rollcall_shared::model::{Isolation, Server};
use rollcall_shared::tenants::Owned;
use rollcall_shared::wire::{Failure, Final, Head, Interim, News, Reason, Told};
use serde_json::value::RawValue;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::upstream::bulletin::text_member;
use crate::upstream::message;
use crate::upstream::pool::Wanted;
use crate::upstream::{Broken, Connection, Hear, Outgoing};
use crate::worker::Shared;

/// What is listened to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum What {
    Resource(String),
    Task(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    tenant: TenantId,
    server: ServerId,
    /// Empty where one connection serves all.
    session: String,
    what: What,
}

/// All that is listened to now.
#[derive(Default)]
pub(crate) struct Topics {
    topics: DashMap<Key, Weak<Topic>>,
}

/// One thing that is listened to, and by whom. Dropped with its last listener, and the subscription with it.
struct Topic {
    listeners: Mutex<Listeners>,
    stop: CancellationToken,
}

#[derive(Default)]
struct Listeners {
    next: u64,
    by_number: HashMap<u64, Interim>,
}

impl Topic {
    fn listeners(&self) -> std::sync::MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, message: &Bytes) {
        for interim in self.listeners().by_number.values() {
            interim.send(News { seq: 0, told: Told::Notification(message.clone()) });
        }
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// One listener of one topic.
struct Listening {
    topic: Arc<Topic>,
    number: u64,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.topic.listeners().by_number.remove(&self.number);
    }
}

/// Tells of updates until it is dropped.
pub(super) async fn watch(
    shared: Arc<Shared>,
    head: &Head,
    server: ServerId,
    uris: Vec<String>,
    tasks: Vec<String>,
    interim: Interim,
) -> Final {
    let gone = || Failure::unsent(Reason::NotConfigured, "the server is not configured here");
    let tenant = shared.tenants.get(&head.tenant).await.ok().flatten();
    let Some(owned) = tenant.and_then(|tenant| tenant.docs().servers.get(&server).cloned()) else {
        return Final::Failed(gone());
    };
    let session = match owned.value.isolation {
        Isolation::Shared => String::new(),
        Isolation::Session => head.session.clone(),
    };
    let wanted = uris.into_iter().map(What::Resource).chain(tasks.into_iter().map(What::Task));
    let listening: Vec<Listening> = wanted
        .take(limits::SUBSCRIPTIONS)
        .map(|what| {
            let key = Key { tenant: head.tenant.clone(), server: server.clone(), session: session.clone(), what };
            shared.topics.listen(&shared, key, &owned, interim.clone())
        })
        .collect();
    std::future::pending::<()>().await;
    drop(listening);
    Final::Failed(gone())
}

impl Topics {
    fn listen(&self, shared: &Arc<Shared>, key: Key, server: &Owned<Server>, interim: Interim) -> Listening {
        let mut slot = self.topics.entry(key.clone()).or_default();
        let topic = match slot.upgrade() {
            Some(topic) => topic,
            None => {
                let stop = CancellationToken::new();
                let topic = Arc::new(Topic { listeners: Mutex::default(), stop: stop.clone() });
                *slot = Arc::downgrade(&topic);
                let (weak, shared, server) = (slot.clone(), shared.clone(), server.clone());
                let tasks = shared.tasks.clone();
                tasks.spawn_until_stop("subscription", async move {
                    follow(&shared, &key, &server, &weak, &stop).await;
                    shared.topics.topics.remove_if(&key, |_, weak| weak.strong_count() == 0);
                });
                topic
            }
        };
        drop(slot);
        let number = {
            let mut listeners = topic.listeners();
            listeners.next += 1;
            let number = listeners.next;
            listeners.by_number.insert(number, interim);
            number
        };
        Listening { topic, number }
    }
}

/// Keeps one subscription until nobody listens any more.
async fn follow(
    shared: &Arc<Shared>,
    key: &Key,
    server: &Owned<Server>,
    topic: &Weak<Topic>,
    stop: &CancellationToken,
) {
    let mut pause = limits::BACKOFF_FIRST;
    let mut subscribed_before = false;
    loop {
        if let Ok(borrowed) = shared.pool.borrow(shared, Wanted::of(&key.tenant, server, &key.session)).await {
            let watching = borrowed.watching();
            drop(borrowed);
            if subscribed_before && let (What::Resource(uri), Some(topic)) = (&key.what, topic.upgrade()) {
                topic.tell(&updated(uri));
            }
            let began = tokio::time::Instant::now();
            let served = match watching.connection().era() {
                Era::Modern => modern(watching.connection(), &key.what, topic, stop).await,
                Era::Legacy => legacy(watching.connection(), &key.what, topic, stop).await,
            };
            if !served || stop.is_cancelled() {
                return;
            }
            subscribed_before = true;
            if began.elapsed() > limits::BACKOFF_LONGEST {
                pause = limits::BACKOFF_FIRST;
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(limits::BACKOFF_LONGEST);
    }
}

fn updated(uri: &str) -> Bytes {
    message::notification("notifications/resources/updated", &format!(r#"{{"uri":{}}}"#, raw::quote(uri)))
}

/// Hands on what comes on a modern server's stream for this subscription.
struct OnStream {
    topic: Weak<Topic>,
    what: What,
}

/// Whether an update is of the resource that is listened to, or of a part of it: that is told as one of the whole.
fn is_of(uri: &str, updated: &str) -> bool {
    updated.starts_with(uri)
}

impl Hear for OnStream {
    fn hear(&self, method: &str, params: Option<&RawValue>) {
        let (Some(topic), Some(params)) = (self.topic.upgrade(), params) else { return };
        match (method, &self.what) {
            ("notifications/resources/updated", What::Resource(uri)) => {
                if text_member(params, "uri").is_some_and(|updated| is_of(uri, &updated)) {
                    topic.tell(&updated(uri));
                }
            }
            ("notifications/tasks", What::Task(task)) => {
                if text_member(params, "taskId").as_ref() == Some(task) {
                    let members = raw::members(params.get()).unwrap_or_default();
                    let kept = members.iter().filter(|(key, _)| key != "_meta");
                    let inner: Vec<String> =
                        kept.map(|(k, value)| format!("{}:{}", raw::quote(k), value.get())).collect();
                    topic.tell(&message::notification(method, &format!("{{{}}}", inner.join(","))));
                }
            }
            _ => {}
        }
    }
}

/// Gives false where the server has no such subscriptions.
async fn modern(connection: &Connection, what: &What, topic: &Weak<Topic>, stop: &CancellationToken) -> bool {
    let (filter, id, capabilities) = match what {
        What::Resource(uri) => ("resourceSubscriptions", uri, "{}"),
        What::Task(task) => ("taskIds", task, r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#),
    };
    let members = format!(r#""notifications":{{"{filter}":[{}]}}"#, raw::quote(id));
    let params = message::own_params_declaring(Era::Modern, &members, capabilities);
    let outgoing = Outgoing { method: "subscriptions/listen", params, ..Outgoing::default() };
    let sent = AtomicBool::new(false);
    let asked = connection.ask(outgoing, Arc::new(OnStream { topic: topic.clone(), what: what.clone() }), &sent);
    tokio::select! {
        () = stop.cancelled() => true,
        end = asked => match end {
            Ok(Final::Error(error)) => {
                tracing::info!(error = %String::from_utf8_lossy(&error), "a server takes no subscription");
                false
            }
            Ok(_) | Err(Broken::Unsent(_) | Broken::LostSession | Broken::Failed(_)) => true,
        },
    }
}

async fn legacy(connection: &Connection, what: &What, topic: &Weak<Topic>, stop: &CancellationToken) -> bool {
    let What::Resource(uri) = what else { return false };
    let mut updates = connection.bulletin().updates();
    let members = format!(r#""uri":{}"#, raw::quote(uri));
    match connection.ask_ourselves("resources/subscribe", &members).await {
        Ok(Final::Result(_)) => {}
        Ok(_) => return false,
        Err(_) => return true,
    }
    loop {
        tokio::select! {
            () = stop.cancelled() => {
                connection.ask_ourselves("resources/unsubscribe", &members).await.ok();
                return true;
            }
            () = tokio::time::sleep(limits::CATALOG_PAUSE) => {
                if connection.is_closed() {
                    return true;
                }
            }
            update = updates.recv() => {
                let Some(topic) = topic.upgrade() else { return true };
                match update {
                    Ok(of) if is_of(uri, &of) => topic.tell(&updated(uri)),
                    Ok(_) => {}
                    // Something was missed: it may have been this one.
                    Err(RecvError::Lagged(_)) => topic.tell(&updated(uri)),
                    Err(RecvError::Closed) => return true,
                }
            }
        }
    }
}
