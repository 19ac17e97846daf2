//! Listening for changes of a server's lists and resources, as long as its connection is open.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::Method;
use rollcall_shared::limits;
use rollcall_shared::mcp::era::Era;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::{Heads, Inner};
use crate::upstream::bulletin::Bulletin;
use crate::upstream::{Hear, Question, ReplyTo, message};

/// Listens while the connection is open: on a GET stream or by `subscriptions/listen`. `settled` is dropped once the server
/// has said for the first time whether it lets us.
pub(super) async fn watch(inner: Arc<Inner>, settled: oneshot::Sender<()>) {
    struct OnBulletin(Arc<Bulletin>);
    impl Hear for OnBulletin {
        fn hear(&self, method: &str, params: Option<&RawValue>) {
            self.0.hand_on(method, params);
        }
        fn asked(&self, question: &Question<'_>, reply: &ReplyTo) -> Option<Bytes> {
            self.0.asked(question, reply)
        }
    }
    let hear = OnBulletin(inner.bulletin.clone());
    let mut pause = limits::BACKOFF_FIRST;
    let mut listened = false;
    let mut settled = Some(settled);
    loop {
        let id = inner.new_id();
        let listen = message::own_params(Era::Modern, message::ALL_LISTS);
        let heads = Heads::of("subscriptions/listen");
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
        drop(settled.take());
        if let Ok(response) = asked {
            let streams = response
                .headers()
                .get(http::header::CONTENT_TYPE)
                .is_some_and(|v| v.as_bytes().starts_with(b"text/event-stream"));
            if inner.session.is_some() && matches!(response.status().as_u16(), 404 | 410) {
                // The session is gone: the next caller opens another.
                inner.closed.store(true, Ordering::Release);
                return;
            }
            if !response.status().is_success() || !streams {
                return; // not offered: the catalog's age does the rest
            }
            if std::mem::replace(&mut listened, true) {
                // Nobody knows what changed while nobody listened.
                inner.bulletin.is_news("notifications/tools/list_changed", None);
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
