//! The byte codec and the link over a socket say the same as a function call.

#![expect(clippy::disallowed_methods, reason = "a test joins what it spawns")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use proptest::prelude::*;
use tokio::net::TcpListener;

use super::codec::{decode_envelope, encode_envelope};
use super::*;
use crate::task::Tasks;

fn envelope(arguments: Option<&str>) -> Envelope {
    Envelope {
        head: Head {
            tenant: TenantId::parse("acme").expect("an id"),
            target: Target::Server { id: ServerId::parse("neon").expect("an id"), tool: "run\u{1F600}".to_owned() },
            session: "s".to_owned(),
            deadline_ms: 1000,
            trace: TraceContext::fresh(),
            caller: Caller::default(),
        },
        arguments: arguments.map(|a| Bytes::copy_from_slice(a.as_bytes())),
    }
}

fn frame() -> impl Strategy<Value = Frame> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
    prop_oneof![
        bytes.clone().prop_map(Frame::Interim),
        bytes.clone().prop_map(|b| Frame::Final(Final::Result(b))),
        bytes.prop_map(|b| Frame::Final(Final::Error(b))),
        (any::<bool>(), ".*").prop_map(|(ran, detail)| {
            Frame::Final(Final::Failed(Failure { may_have_run: ran, ..Failure::unsent(Reason::TimedOut, detail) }))
        }),
    ]
}

proptest! {
    #[test]
    fn frames_survive_any_cut(frames in proptest::collection::vec(frame(), 0..6), step in 1usize..20) {
        let bytes: Vec<u8> = frames.iter().flat_map(|f| f.encode().to_vec()).collect();
        let mut reader = FrameReader::default();
        let mut read = Vec::new();
        for chunk in bytes.chunks(step) {
            reader.push(chunk);
            while let Some(frame) = reader.next_frame().expect("frames") {
                read.push(frame);
            }
        }
        prop_assert_eq!(read, frames);
    }

    #[test]
    fn garbage_is_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let mut reader = FrameReader::default();
        reader.push(&bytes);
        while let Ok(Some(_)) = reader.next_frame() {}
        decode_envelope(&Bytes::from(bytes)).ok();
    }
}

#[test]
fn an_envelope_survives_with_and_without_arguments() {
    for arguments in [None, Some(""), Some("{\"a\":1}")] {
        let sent = envelope(arguments);
        let read = decode_envelope(&encode_envelope(&sent)).expect("an envelope");
        assert_eq!(read.arguments, sent.arguments);
        assert_eq!(read.head.target, sent.head.target);
        assert_eq!(read.head.trace, sent.head.trace);
    }
}

#[test]
fn trace_contexts_follow_the_recommendation() {
    let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    assert_eq!(TraceContext::parse(good).map(|c| c.to_string()).as_deref(), Some(good));
    let newer = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more";
    assert!(TraceContext::parse(newer).is_some(), "later versions may append");
    for bad in [
        "",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
    ] {
        assert_eq!(TraceContext::parse(bad), None, "{bad}");
    }
}

#[derive(Default)]
struct Echo {
    cancelled: Arc<AtomicUsize>,
}

struct CountOnDrop(Arc<AtomicUsize>);

impl Drop for CountOnDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl WorkerLink for Echo {
    fn call(&self, envelope: Envelope, interim: Interim) -> BoxFuture<'static, Final> {
        let guard = CountOnDrop(self.cancelled.clone());
        async move {
            interim.send(Bytes::from_static(b"one"));
            interim.send(Bytes::from_static(b"two"));
            match envelope.arguments {
                Some(arguments) => {
                    drop(guard);
                    Final::Result(arguments)
                }
                None => std::future::pending().await,
            }
        }
        .boxed()
    }

    fn refresh(&self, _: TenantId, server: ServerId) -> BoxFuture<'static, Result<(), Failure>> {
        let known = server.as_str() == "neon";
        async move { if known { Ok(()) } else { Err(Failure::unsent(Reason::NotConfigured, "")) } }.boxed()
    }
}

#[tokio::test]
async fn the_link_over_a_socket_carries_calls_news_and_cancels() {
    let tasks = Tasks::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let echo = Echo::default();
    let cancelled = echo.cancelled.clone();
    tasks.spawn("link", serve_link(listener, Arc::new(echo), [7; 32], tasks.clone()));
    let link = RemoteLink::new(address, [7; 32]);

    let (interim, mut news) = Interim::channel();
    let end = link.call(envelope(Some("{}")), interim).await;
    assert_eq!(end, Final::Result(Bytes::from_static(b"{}")));
    assert_eq!((news.recv().await, news.recv().await), (Some(Bytes::from("one")), Some(Bytes::from("two"))));

    let neon = ServerId::parse("neon").expect("an id");
    let acme = TenantId::parse("acme").expect("an id");
    assert_eq!(link.refresh(acme.clone(), neon).await, Ok(()));
    let other = ServerId::parse("other").expect("an id");
    assert_eq!(link.refresh(acme, other).await.map_err(|f| f.reason), Err(Reason::NotConfigured));

    let before = cancelled.load(Ordering::SeqCst);
    let (interim, mut news) = Interim::channel();
    let hanging = tokio::spawn(link.call(envelope(None), interim));
    assert!(news.recv().await.is_some(), "the call has begun");
    hanging.abort();
    while cancelled.load(Ordering::SeqCst) == before {
        tokio::task::yield_now().await;
    }

    let stranger = RemoteLink::new(address, [8; 32]);
    let end = stranger.call(envelope(Some("{}")), Interim::none()).await;
    assert!(matches!(end, Final::Failed(Failure { reason: Reason::NoWorker, may_have_run: false, .. })), "{end:?}");
    assert!(tasks.drain(std::time::Duration::from_secs(5)).await);
}
