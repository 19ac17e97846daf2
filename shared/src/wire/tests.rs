//! The byte codec and the link over a socket say the same as a function call.

#![expect(clippy::disallowed_methods, reason = "a test joins what it spawns")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use rollcall_loadtest::certificates::Authority;
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
            sent_at: crate::clock::unix_s(),
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
    calls: Arc<AtomicUsize>,
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

impl Incarnate for Echo {
    fn incarnation(&self) -> u64 {
        7
    }
}

impl WorkerLink for Echo {
    fn send(&self, _: Route, envelope: Envelope, interim: Interim) -> BoxFuture<'static, Final> {
        self.calls.fetch_add(1, Ordering::SeqCst);
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

/// A worker behind a socket, and what reached it.
struct Served {
    address: String,
    keys: WireKeys,
    calls: Arc<AtomicUsize>,
    cancelled: Arc<AtomicUsize>,
    tasks: Tasks,
}

impl Served {
    async fn start(versions: (u16, u16)) -> Self {
        Self::start_with(versions, None).await
    }

    async fn start_with(versions: (u16, u16), tls: Option<WireTls>) -> Self {
        let (tasks, keys) = (Tasks::default(), WireKeys::of_this_process());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let echo = Arc::new(Echo::default());
        let (calls, cancelled) = (echo.calls.clone(), echo.cancelled.clone());
        let (server_keys, server_tasks) = (keys.clone(), tasks.clone());
        let server = LinkServer { link: echo, keys: server_keys, tls, versions, tasks: server_tasks };
        tasks.spawn("link", server.serve(listener));
        Self { address, keys, calls, cancelled, tasks }
    }

    fn client(&self, keys: &WireKeys, versions: (u16, u16), incarnation: u64) -> Arc<WorkerClient> {
        let dialer = Dialer { keys: keys.clone(), tls: None, versions, tasks: self.tasks.clone() };
        WorkerClient::new(dialer, self.address.clone(), incarnation)
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    async fn stop(self) {
        assert!(self.tasks.drain(std::time::Duration::from_secs(5)).await);
    }
}

async fn call(client: &Arc<WorkerClient>) -> Result<Final, Failure> {
    client.send(&envelope(Some("{}")), &Interim::none()).await.map_err(|Unsent(failure)| failure)
}

fn done() -> Result<Final, Failure> {
    Ok(Final::Result(Bytes::from_static(b"{}")))
}

#[tokio::test]
async fn the_link_over_a_socket_carries_calls_news_and_cancels() {
    let served = Served::start(VERSIONS).await;
    let client = served.client(&served.keys, VERSIONS, 7);
    let (interim, mut news) = Interim::channel();
    let end = client.send(&envelope(Some("{}")), &interim).await.map_err(|Unsent(failure)| failure);
    assert_eq!(end, done());
    assert_eq!((news.recv().await, news.recv().await), (Some(told(1, "one")), Some(told(2, "two"))));
    assert_eq!(interim.run().get(), Some(7));

    let before = served.cancelled.load(Ordering::SeqCst);
    let (interim, mut news) = Interim::channel();
    let hanging = tokio::spawn({
        let client = client.clone();
        async move { client.send(&envelope(None), &interim).await.is_ok() }
    });
    assert!(news.recv().await.is_some(), "the call has begun");
    hanging.abort();
    while served.cancelled.load(Ordering::SeqCst) == before {
        tokio::task::yield_now().await;
    }
    assert_eq!(call(&client).await, done());
    drop(client);
    served.stop().await;
}

#[tokio::test]
async fn what_was_surely_not_sent_is_told_apart() {
    let served = Served::start(VERSIONS).await;
    let surely_not = |end: Result<Final, Failure>| end.is_err_and(|f| f.reason == Reason::NoWorker && !f.may_have_run);
    // Somebody with another key, another run, nobody.
    let stranger = served.client(&WireKeys::of_this_process(), VERSIONS, 7);
    assert!(surely_not(call(&stranger).await));
    let before = served.client(&served.keys, VERSIONS, 6);
    assert!(surely_not(call(&before).await));
    let client = served.client(&served.keys, VERSIONS, 7);
    assert_eq!(call(&client).await, done());
    assert_eq!(served.calls(), 1);
    // The worker has closed the idle connection, and its door.
    served.tasks.closing().cancel();
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(surely_not(call(&client).await));
    drop((stranger, before, client));
    served.stop().await;
}

#[tokio::test]
async fn a_call_whose_worker_dies_may_have_run() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let tasks = Tasks::default();
    // A worker that greets, takes the envelope, and is gone.
    let dying = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (mut stream, _) = listener.accept().await.expect("a gateway");
        let mut buffer = vec![0; 4096];
        assert_ne!(stream.read(&mut buffer).await.expect("a greeting"), 0);
        let body = r#"{"incarnation":7,"greeting":"x","versions":[1,1]}"#;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(head.as_bytes()).await.expect("written");
        assert_ne!(stream.read(&mut buffer).await.expect("an envelope"), 0);
    });
    let dialer = Dialer { keys: WireKeys::of_this_process(), tls: None, versions: VERSIONS, tasks: tasks.clone() };
    let client = WorkerClient::new(dialer, address, 7);
    let end = call(&client).await;
    assert!(matches!(&end, Ok(Final::Failed(f)) if f.may_have_run && f.reason == Reason::ConnectionLost), "{end:?}");
    dying.await.expect("gone");
    assert!(call(&client).await.is_err(), "nobody is there any more");
    drop(client);
    assert!(tasks.drain(std::time::Duration::from_secs(5)).await);
}

#[tokio::test]
async fn workers_one_version_older_or_newer_are_understood_and_others_left_alone() {
    for (ours, theirs, fits) in
        [((1, 2), (1, 1), true), ((1, 1), (1, 2), true), ((1, 2), (2, 3), true), ((1, 1), (2, 3), false)]
    {
        let served = Served::start(theirs).await;
        let client = served.client(&served.keys, ours, 7);
        assert_eq!(call(&client).await.is_ok(), fits, "{ours:?} and {theirs:?}");
        assert_eq!(served.calls(), usize::from(fits));
        drop(client);
        served.stop().await;
    }
}

/// Envelopes as somebody might make them who has none of our code: each over a connection of its own.
#[tokio::test]
async fn a_worker_does_nothing_that_no_gateway_asked_of_it_now() {
    use super::seal::{KEY, MAC, NUMBER};
    let served = Served::start(VERSIONS).await;
    let good = encode_envelope(&envelope(Some("{}")));
    let late = {
        let mut late = envelope(Some("{}"));
        late.head.sent_at -= 3600;
        encode_envelope(&late)
    };
    let altered = Bytes::from([&good[..good.len() - 1], b"x"].concat());
    type Post<'a> = (&'a str, Option<[(&'static str, String); 3]>, &'a Bytes);
    let ask = async |posts: &[Post<'_>], greeting: &str| -> Vec<u16> {
        let stream = tokio::net::TcpStream::connect(&served.address).await.expect("connected");
        let (mut send, connection) =
            hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await.expect("HTTP");
        let driving = tokio::spawn(connection);
        let mut greeting = greeting.to_owned();
        if greeting.is_empty() {
            let hello = http::Request::builder().uri("/w/hello").header("host", "w").body(Full::default());
            let hello = send.send_request(hello.expect("a request")).await.expect("a greeting");
            let body = hello.into_body().collect().await.expect("a body").to_bytes();
            let read: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            greeting = read["greeting"].as_str().expect("a greeting").to_owned();
        }
        let mut statuses = Vec::new();
        for (path, signed, body) in posts {
            let mut request = http::Request::builder().method("POST").uri(*path).header("host", "w");
            let signed = match signed {
                Some(_) if path.is_empty() => None,
                Some(headers) => Some(headers.clone()),
                None => served.keys.sign(&greeting, statuses.len() as u64 + 1, body),
            };
            for (name, value) in signed.into_iter().flatten().filter(|(_, value)| !value.is_empty()) {
                request = request.header(name, value);
            }
            let sent = send.send_request(request.body(Full::new((*body).clone())).expect("a request")).await;
            let response = sent.expect("an answer");
            statuses.push(response.status().as_u16());
            response.into_body().collect().await.ok();
        }
        drop(send);
        driving.await.expect("joined").ok();
        statuses
    };
    const CALL: &str = "/w/1/call";
    let none = || Some([(KEY, String::new()), (NUMBER, String::new()), (MAC, String::new())]);
    assert_eq!(ask(&[(CALL, None, &good)], "").await, [200]);
    assert_eq!(served.calls(), 1);
    let first = served.keys.sign("recorded", 1, &good);
    for (posts, expected) in [
        (vec![(CALL, none(), &good)], vec![401]),
        (vec![(CALL, first.clone(), &good)], vec![401]),
        (vec![(CALL, None, &late)], vec![401]),
        (vec![("/w/9/call", None, &good)], vec![404]),
        (vec![("/w/1/else", None, &good)], vec![404]),
    ] {
        assert_eq!(ask(&posts, "").await, expected);
    }
    // What was signed for these bytes is sent with others.
    let stolen = served.keys.sign("g", 1, &good);
    assert_eq!(ask(&[(CALL, stolen, &altered)], "g").await, [401]);
    assert_eq!(served.calls(), 1, "nothing of it was done");
    served.stop().await;
}

#[tokio::test]
async fn a_link_with_certificates_takes_only_those_of_the_same_authority() {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    let (ours, others) = (Authority::new("ours").expect("an authority"), Authority::new("others").expect("another"));
    let tls = |authority: &Authority, of: &Authority, name: &str| {
        let own = of.certificate(name).expect("a certificate");
        WireTls::read(&authority.ca_file(), &own.cert_file, &own.key_file).expect("readable")
    };
    let served = Served::start_with(VERSIONS, Some(tls(&ours, &ours, "worker"))).await;
    let client = |tls: Option<WireTls>| {
        let dialer = Dialer { keys: served.keys.clone(), tls, versions: VERSIONS, tasks: served.tasks.clone() };
        WorkerClient::new(dialer, served.address.clone(), 7)
    };
    assert_eq!(call(&client(Some(tls(&ours, &ours, "gateway")))).await, done());
    // Another authority's certificate, an authority that does not know the worker, no TLS at all.
    for stranger in [Some(tls(&ours, &others, "stranger")), Some(tls(&others, &ours, "doubter")), None] {
        assert!(call(&client(stranger)).await.is_err());
    }
    assert_eq!(served.calls(), 1);
    served.stop().await;
}
