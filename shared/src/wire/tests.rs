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
use crate::ids::{ServerId, TenantId};
use crate::task::Tasks;

fn envelope(arguments: Option<&str>) -> Envelope {
    Envelope {
        head: Head {
            tenant: TenantId::parse("acme").expect("an id"),
            op: Op::Ask {
                server: ServerId::parse("neon").expect("an id"),
                method: Method::CallTool,
                name: Some("run\u{1F600}".to_owned()),
                headers: Vec::new(),
            },
            call: CallId::fresh(),
            session: "s".to_owned(),
            deadline_ms: 1000,
            trace: TraceContext::fresh(),
            caller: Caller::default(),
        },
        params: Params(
            arguments.map(|a| (Member::Arguments, Bytes::copy_from_slice(a.as_bytes()))).into_iter().collect(),
        ),
    }
}

fn frame() -> impl Strategy<Value = Frame> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
    prop_oneof![
        (any::<u64>(), bytes.clone())
            .prop_map(|(seq, bytes)| Frame::News(News { seq, told: Told::Notification(bytes) })),
        (any::<u64>(), bytes.clone()).prop_map(|(seq, params)| {
            Frame::News(News { seq, told: Told::Request { asked: Asked::Sampling, params } })
        }),
        (any::<u32>(), bytes.clone()).prop_map(|(round, requests)| Frame::Final(Final::Parked { round, requests })),
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
        assert_eq!(read.params, sent.params);
        assert_eq!((read.head.op, read.head.call), (sent.head.op, sent.head.call));
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

fn told(seq: u64, text: &'static str) -> News {
    News { seq, told: Told::Notification(Bytes::from_static(text.as_bytes())) }
}

impl WorkerLink for Echo {
    fn incarnation(&self) -> u64 {
        7
    }

    fn send(&self, envelope: Envelope, interim: Interim) -> BoxFuture<'static, Final> {
        let guard = CountOnDrop(self.cancelled.clone());
        async move {
            interim.send(told(1, "one"));
            interim.send(told(2, "two"));
            match envelope.params.get(Member::Arguments) {
                Some(arguments) => {
                    drop(guard);
                    Final::Result(arguments.clone())
                }
                None => std::future::pending().await,
            }
        }
        .boxed()
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
    let link = RemoteLink::new(address, [7; 32], 7);

    let (interim, mut news) = Interim::channel();
    let end = link.send(envelope(Some("{}")), interim).await;
    assert_eq!(end, Final::Result(Bytes::from_static(b"{}")));
    assert_eq!((news.recv().await, news.recv().await), (Some(told(1, "one")), Some(told(2, "two"))));

    let before = cancelled.load(Ordering::SeqCst);
    let (interim, mut news) = Interim::channel();
    let hanging = tokio::spawn(link.send(envelope(None), interim));
    assert!(news.recv().await.is_some(), "the call has begun");
    hanging.abort();
    while cancelled.load(Ordering::SeqCst) == before {
        tokio::task::yield_now().await;
    }

    let stranger = RemoteLink::new(address, [8; 32], 7);
    let end = stranger.send(envelope(Some("{}")), Interim::none()).await;
    assert!(matches!(end, Final::Failed(Failure { reason: Reason::NoWorker, may_have_run: false, .. })), "{end:?}");
    assert!(tasks.drain(std::time::Duration::from_secs(5)).await);
}
