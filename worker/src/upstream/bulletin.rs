//! What a server says apart from any request: that its lists changed, that a resource was updated; and, on a connection
//! that one session has for itself, whatever else it says without naming the request that it belongs to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use dashmap::DashMap;
use rollcall_shared::limits;
use rollcall_shared::mcp::raw;
use serde_json::value::RawValue;
use tokio::sync::broadcast;

use super::{Hear, Question, ReplyTo, message};

/// See the module. One a connection.
pub(crate) struct Bulletin {
    list_changed: Arc<dyn Fn() + Send + Sync>,
    updated: broadcast::Sender<Arc<str>>,
    /// The least severity that a legacy server was asked to log, as its place among the severities.
    level: AtomicUsize,
    /// One session has the connection for itself.
    one_session: bool,
    /// Requests under way, where what has no address can be theirs.
    attending: DashMap<u64, (Arc<dyn Hear>, AtomicBool)>,
    next: AtomicU64,
}

/// A request under way, as long as this lives.
pub(crate) struct Attending<'b> {
    bulletin: &'b Bulletin,
    number: Option<u64>,
}

impl Attending<'_> {
    /// Whether anything without an address was taken to belong to it.
    pub(crate) fn was_told(&self) -> bool {
        let entry = self.number.and_then(|number| self.bulletin.attending.get(&number));
        entry.is_some_and(|attending| attending.1.load(Ordering::Relaxed))
    }
}

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.bulletin.attending.remove(&number);
        }
    }
}

/// Nothing was asked for yet.
const NO_LEVEL: usize = usize::MAX;

impl Bulletin {
    pub(crate) fn new(list_changed: Arc<dyn Fn() + Send + Sync>, one_session: bool) -> Arc<Self> {
        Arc::new(Self {
            list_changed,
            updated: broadcast::Sender::new(limits::UPDATES_QUEUE),
            level: AtomicUsize::new(NO_LEVEL),
            one_session,
            attending: DashMap::new(),
            next: AtomicU64::new(0),
        })
    }

    pub(crate) fn is_of_one_session(&self) -> bool {
        self.one_session
    }

    /// The request is under way.
    pub(crate) fn attend(&self, hear: &Arc<dyn Hear>) -> Attending<'_> {
        let number = (self.one_session && hear.takes_all()).then(|| {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            self.attending.insert(number, (hear.clone(), AtomicBool::new(false)));
            number
        });
        Attending { bulletin: self, number }
    }

    /// The oldest request under way, to which what has no address is taken to belong; one that waits for its caller is
    /// taken last.
    fn addressee(&self) -> Option<Arc<dyn Hear>> {
        let oldest = self.attending.iter().min_by_key(|entry| (entry.0.is_busy(), *entry.key()))?;
        oldest.1.store(true, Ordering::Relaxed);
        Some(oldest.0.clone())
    }

    /// Takes a question that comes without an address. Gives the answer where it is known at once.
    pub(crate) fn asked(&self, question: &Question<'_>, reply: &ReplyTo) -> Option<Bytes> {
        match self.addressee() {
            Some(hear) => hear.asked(question, reply),
            None => Some(message::answer_upstream(question.id, question.method)),
        }
    }

    /// Takes a notification that comes without an address.
    pub(crate) fn heard(&self, method: &str, params: Option<&RawValue>) {
        if !self.is_news(method, params) {
            self.hand_on(method, params);
        }
    }

    /// Hands what is no news to the request to which it is taken to belong.
    pub(crate) fn hand_on(&self, method: &str, params: Option<&RawValue>) {
        if let Some(hear) = self.addressee() {
            hear.hear(method, params);
        }
    }

    /// Takes a notification that belongs to no request, wherever it comes. Says whether it is one of these.
    pub(crate) fn is_news(&self, method: &str, params: Option<&RawValue>) -> bool {
        match method {
            "notifications/tools/list_changed"
            | "notifications/prompts/list_changed"
            | "notifications/resources/list_changed" => (self.list_changed)(),
            "notifications/resources/updated" => {
                if let Some(uri) = params.and_then(|params| text_member(params, "uri")) {
                    // Nobody listens: then it is no news.
                    self.updated.send(uri.into()).ok();
                }
            }
            _ => return false,
        }
        true
    }

    /// URIs of resources that were updated, from now on.
    pub(crate) fn updates(&self) -> broadcast::Receiver<Arc<str>> {
        self.updated.subscribe()
    }

    /// Whether the server must be asked to log from this severity on, which it then is.
    pub(crate) fn lowers_level(&self, severity: usize) -> bool {
        self.level.fetch_min(severity, Ordering::AcqRel) > severity
    }
}

/// A member of an object that is a text.
pub(crate) fn text_member(object: &RawValue, name: &str) -> Option<String> {
    let members = raw::members(object.get()).ok()?;
    members.iter().find(|(key, _)| key == name).and_then(|(_, value)| raw::string(value))
}
