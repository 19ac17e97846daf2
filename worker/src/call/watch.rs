//! Updates of resources (and of tasks) for callers that listen: one subscription upstream for all who want the same.
//!
//! A modern server is asked by `subscriptions/listen`, a legacy one by `resources/subscribe`. When the connection breaks
//! it is made anew, and one update is told: nobody knows what changed in between.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

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
use tokio::sync::watch;

use super::deliver::current;
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
    topics: DashMap<Key, Arc<Topic>>,
}

/// One thing that is listened to, and by whom.
#[derive(Default)]
struct Topic {
    listeners: Mutex<Listeners>,
    /// How many there are.
    count: watch::Sender<usize>,
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

    fn is_empty(&self) -> bool {
        self.listeners().by_number.is_empty()
    }

    fn tell(&self, message: &Bytes) {
        for interim in self.listeners().by_number.values() {
            interim.send(News { seq: 0, told: Told::Notification(message.clone()) });
        }
    }

    fn join(self: &Arc<Self>, interim: Interim) -> Listening {
        let mut listeners = self.listeners();
        listeners.next += 1;
        let number = listeners.next;
        listeners.by_number.insert(number, interim);
        self.count.send_replace(listeners.by_number.len());
        Listening { topic: self.clone(), number }
    }

    async fn until(&self, wanted: impl Fn(usize) -> bool) {
        let mut count = self.count.subscribe();
        // Its sender lives as long as this.
        drop(count.wait_for(|count| wanted(*count)).await);
    }

    /// Nobody has listened for a while. Who changes what it listens to comes back at once, and finds it as it was.
    async fn is_abandoned(&self) {
        loop {
            self.until(|count| count == 0).await;
            tokio::time::sleep(limits::TOPIC_LINGERS).await;
            if self.is_empty() {
                return;
            }
        }
    }

    /// The same, with time for the follower to end by itself.
    async fn is_abandoned_for_good(&self) {
        loop {
            self.is_abandoned().await;
            tokio::time::sleep(limits::TOPIC_LINGERS).await;
            if self.is_empty() {
                return;
            }
        }
    }
}

/// One listener of one topic.
struct Listening {
    topic: Arc<Topic>,
    number: u64,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut listeners = self.topic.listeners();
        listeners.by_number.remove(&self.number);
        self.topic.count.send_replace(listeners.by_number.len());
    }
}

/// Tells of updates until it is dropped.
pub(super) async fn listen(
    shared: Arc<Shared>,
    head: &Head,
    server: ServerId,
    uris: Vec<String>,
    tasks: Vec<String>,
    interim: Interim,
) -> Final {
    let gone = || Failure::unsent(Reason::NotConfigured, "the server is not configured here");
    let Some(owned) = current(&shared, &head.tenant, &server).await else { return Final::Failed(gone()) };
    let session = match owned.value.isolation {
        Isolation::Shared => String::new(),
        Isolation::Session => head.session.clone(),
    };
    let wanted = uris.into_iter().map(What::Resource).chain(tasks.into_iter().map(What::Task));
    let listening: Vec<Listening> = wanted
        .take(2 * limits::SUBSCRIPTIONS)
        .filter_map(|what| {
            let key = Key { tenant: head.tenant.clone(), server: server.clone(), session: session.clone(), what };
            shared.topics.listen(&shared, key, interim.clone())
        })
        .collect();
    shared.tasks.closing().cancelled().await;
    drop(listening);
    Final::Failed(Failure::unsent(Reason::NoWorker, "the worker is shutting down"))
}

impl Topics {
    /// Nothing where the tenant listens to too much.
    fn listen(&self, shared: &Arc<Shared>, key: Key, interim: Interim) -> Option<Listening> {
        if !self.topics.contains_key(&key)
            && self.topics.iter().filter(|topic| topic.key().tenant == key.tenant).count() >= limits::TOPICS_PER_TENANT
        {
            tracing::warn!(tenant = %key.tenant, "too many subscriptions; this one is not made");
            return None;
        }
        // Joined under the map's guard, so that a topic is not taken away between being found and being listened to.
        let entry = self.topics.entry(key.clone()).or_insert_with(|| {
            let topic = Arc::new(Topic::default());
            let (shared, own) = (shared.clone(), topic.clone());
            let tasks = shared.tasks.clone();
            tasks.spawn_until_stop("subscription", async move {
                loop {
                    tokio::select! {
                        biased;
                        // A legacy server is told of the end by the follower itself.
                        () = follow(&shared, &key, &own) => own.is_abandoned().await,
                        () = own.is_abandoned_for_good() => {}
                    }
                    let over = shared.topics.topics.remove_if(&key, |_, topic| topic.is_empty());
                    if over.is_some() {
                        return;
                    }
                }
            });
            topic
        });
        Some(entry.value().join(interim))
    }
}

/// Keeps one subscription, on the server as it is configured at each time. Ends where there can be none.
async fn follow(shared: &Arc<Shared>, key: &Key, topic: &Arc<Topic>) {
    let mut pause = limits::BACKOFF_FIRST;
    let mut subscribed_before = false;
    loop {
        topic.until(|count| count > 0).await;
        let Some(server) = current(shared, &key.tenant, &key.server).await else { return };
        if let Ok(borrowed) = shared.pool.borrow(shared, Wanted::of(&key.tenant, &server, &key.session)).await {
            let watching = borrowed.watching();
            drop(borrowed);
            if let (true, What::Resource(uri)) = (subscribed_before, &key.what) {
                topic.tell(&updated(uri));
            }
            let began = tokio::time::Instant::now();
            let connection = watching.connection();
            let served = async {
                match connection.era() {
                    Era::Modern => modern(connection, &key.what, topic).await,
                    Era::Legacy => legacy(connection, &key.what, topic).await,
                }
            };
            let served = tokio::select! {
                served = served => served,
                () = is_stale(shared, key, &server, connection) => true,
            };
            if !served {
                return;
            }
            subscribed_before = true;
            if began.elapsed() > limits::BACKOFF_LONGEST {
                pause = limits::BACKOFF_FIRST;
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(limits::BACKOFF_LONGEST);
    }
}

/// The connection is over, or the server is another one by now.
async fn is_stale(shared: &Shared, key: &Key, server: &Owned<Server>, connection: &Connection) {
    loop {
        tokio::time::sleep(limits::CATALOG_PAUSE).await;
        let now = current(shared, &key.tenant, &key.server).await;
        if connection.is_closed() || now.is_none_or(|now| now.value != server.value) {
            return;
        }
    }
}

fn updated(uri: &str) -> Bytes {
    message::notification("notifications/resources/updated", &format!(r#"{{"uri":{}}}"#, raw::quote(uri)))
}

/// Hands on what comes on a modern server's stream for this subscription.
struct OnStream {
    topic: Arc<Topic>,
    what: What,
}

/// Whether an update is of the resource that is listened to, or of a part of it: that is told as one of the whole.
fn is_of(uri: &str, updated: &str) -> bool {
    let part = |rest: &str| rest.is_empty() || uri.ends_with('/') || rest.starts_with(['/', '?', '#']);
    updated.strip_prefix(uri).is_some_and(part)
}

impl Hear for OnStream {
    fn hear(&self, method: &str, params: Option<&RawValue>) {
        let Some(params) = params else { return };
        let topic = &self.topic;
        match (method, &self.what) {
            ("notifications/resources/updated", What::Resource(uri))
                if text_member(params, "uri").is_some_and(|updated| is_of(uri, &updated)) =>
            {
                topic.tell(&updated(uri));
            }
            ("notifications/tasks", What::Task(task)) if text_member(params, "taskId").as_ref() == Some(task) => {
                let members = raw::members(params.get()).unwrap_or_default();
                let kept = members.iter().filter(|(key, _)| key != "_meta");
                let inner: Vec<String> = kept.map(|(k, value)| format!("{}:{}", raw::quote(k), value.get())).collect();
                topic.tell(&message::notification(method, &format!("{{{}}}", inner.join(","))));
            }
            _ => {}
        }
    }
}

/// Gives false where the server has no such subscriptions.
async fn modern(connection: &Connection, what: &What, topic: &Arc<Topic>) -> bool {
    let (filter, id, capabilities) = match what {
        What::Resource(uri) => ("resourceSubscriptions", uri, "{}"),
        What::Task(task) => ("taskIds", task, r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#),
    };
    let members = format!(r#""notifications":{{"{filter}":[{}]}}"#, raw::quote(id));
    let params = message::own_params_declaring(Era::Modern, &members, capabilities);
    let outgoing = Outgoing { method: "subscriptions/listen", params, ..Outgoing::default() };
    let hear = OnStream { topic: topic.clone(), what: what.clone() };
    match connection.ask(outgoing, Arc::new(hear), &AtomicBool::new(false)).await {
        Ok(Final::Error(error)) => {
            tracing::info!(error = %String::from_utf8_lossy(&error), "a server takes no subscription");
            false
        }
        Ok(_) | Err(Broken::Unsent(_) | Broken::LostSession | Broken::Failed(_)) => true,
    }
}

async fn legacy(connection: &Connection, what: &What, topic: &Topic) -> bool {
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
            () = topic.is_abandoned() => {
                connection.ask_ourselves("resources/unsubscribe", &members).await.ok();
                return true;
            }
            update = updates.recv() => match update {
                Ok(of) if is_of(uri, &of) => topic.tell(&updated(uri)),
                Ok(_) => {}
                // Something was missed: it may have been this one.
                Err(RecvError::Lagged(_)) => topic.tell(&updated(uri)),
                Err(RecvError::Closed) => return true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_of_a_part_is_one_of_the_whole_and_of_nothing_else() {
        for (updated, is) in [
            ("file:///a", true),
            ("file:///a/b", true),
            ("file:///a?x", true),
            ("file:///ab", false),
            ("file:///", false),
        ] {
            assert_eq!(is_of("file:///a", updated), is, "{updated}");
        }
        assert!(is_of("file:///a/", "file:///a/b"));
    }
}
