//! Listening for changes of a server's list, as long as its connection is open.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::Method;
use rollcall_shared::limits;
use rollcall_shared::mcp::era::Era;

use super::{Heads, Inner};
use crate::upstream::{Hear, message};

/// Listens for `tools/list_changed` while the connection is open: on a GET stream or by `subscriptions/listen`.
pub(super) async fn watch(inner: Arc<Inner>, changed: Arc<dyn Fn() + Send + Sync>) {
    struct OnChange(Arc<dyn Fn() + Send + Sync>);
    impl Hear for OnChange {
        fn hear(&self, method: &str, _: Option<&serde_json::value::RawValue>) {
            if method == "notifications/tools/list_changed" {
                (self.0)();
            }
        }
    }
    let hear = OnChange(changed);
    let mut pause = limits::BACKOFF_FIRST;
    let mut listened = false;
    loop {
        let id = inner.new_id();
        let listen = message::own_params(Era::Modern, r#""notifications":{"toolsListChanged":true}"#);
        let heads = Heads { method: "subscriptions/listen", name: None };
        let request = match inner.peer.era {
            Era::Modern => {
                inner.request(Method::POST, message::request(&id, "subscriptions/listen", &listen), Some(&heads))
            }
            Era::Legacy => inner.request(Method::GET, Bytes::new(), None),
        };
        let Ok(request) = request else { return };
        let asked = tokio::select! {
            asked = inner.client.request(request) => asked,
            () = until_closed(&inner) => return,
        };
        if let Ok(response) = asked {
            let streams = response
                .headers()
                .get(http::header::CONTENT_TYPE)
                .is_some_and(|v| v.as_bytes().starts_with(b"text/event-stream"));
            if !response.status().is_success() || !streams {
                return; // not offered: the catalog's age does the rest
            }
            if std::mem::replace(&mut listened, true) {
                // Nobody knows what changed while nobody listened.
                hear.hear("notifications/tools/list_changed", None);
            }
            let began = tokio::time::Instant::now();
            let reading = inner.read_stream(&id, response.into_body(), &hear);
            tokio::select! {
                _ = reading => {}
                () = until_closed(&inner) => return,
            }
            // A server that hangs up at once is not asked again at once.
            if began.elapsed() > limits::BACKOFF_LONGEST {
                pause = limits::BACKOFF_FIRST;
            }
        }
        if inner.closed.load(Ordering::Acquire) {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(limits::BACKOFF_LONGEST);
    }
}

async fn until_closed(inner: &Inner) {
    while !inner.closed.load(Ordering::Acquire) {
        tokio::time::sleep(limits::CATALOG_PAUSE).await;
    }
}
