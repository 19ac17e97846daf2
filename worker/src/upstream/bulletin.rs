//! What a server tells apart from any request: that its lists changed, that a resource was updated.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rollcall_shared::limits;
use rollcall_shared::mcp::raw;
use serde_json::value::RawValue;
use tokio::sync::broadcast;

/// See the module. One a connection.
pub(crate) struct Bulletin {
    list_changed: Arc<dyn Fn() + Send + Sync>,
    updated: broadcast::Sender<Arc<str>>,
    /// The least severity that a legacy server was asked to log, as its place among the severities.
    level: AtomicUsize,
}

/// Nothing was asked for yet.
const NO_LEVEL: usize = usize::MAX;

impl Bulletin {
    pub(crate) fn new(list_changed: Arc<dyn Fn() + Send + Sync>) -> Arc<Self> {
        let updated = broadcast::Sender::new(limits::UPDATES_QUEUE);
        Arc::new(Self { list_changed, updated, level: AtomicUsize::new(NO_LEVEL) })
    }

    /// Takes a notification that belongs to no request. Says whether it is one of these.
    pub(crate) fn heard(&self, method: &str, params: Option<&RawValue>) -> bool {
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
