//! The link over a socket: HTTP/1.1 keep-alive with chunked answers, cancel by closing.
//!
//! `POST /w/1/call` carries an envelope, and with it a keyed hash of the body, so that a worker obeys only who holds the
//! key.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::codec::{Frame, FrameReader, decode_envelope, encode_envelope};
use super::{Envelope, Failure, Final, Interim, News, Reason, WorkerLink};
use crate::limits;
use crate::task::Tasks;

const MAC: &str = "x-rollcall-mac";
/// The path carries the version of the link.
const CALL: &str = "/w/1/call";

/// A gateway's end.
#[derive(Clone)]
pub struct RemoteLink {
    client: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
    key: [u8; 32],
    incarnation: u64,
}

impl RemoteLink {
    /// `incarnation` is the worker's, which it announces with its address.
    pub fn new(address: SocketAddr, key: [u8; 32], incarnation: u64) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(limits::CONNECT_TIMEOUT));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .retry_canceled_requests(false)
            .build(connector);
        Self { client, address, key, incarnation }
    }

    async fn post(&self, body: Bytes) -> Result<Response<Incoming>, Failure> {
        let mac = blake3::keyed_hash(&self.key, &body).to_hex();
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://{}{CALL}", self.address))
            .header(MAC, mac.as_str())
            .body(Full::new(body))
            .map_err(|e| Failure::unsent(Reason::NoWorker, e.to_string()))?;
        let sent = self.client.request(request).await;
        sent.map_err(|e| {
            if e.is_connect() {
                Failure::unsent(Reason::NoWorker, e.to_string())
            } else {
                Failure::sent(Reason::ConnectionLost, e.to_string())
            }
        })
    }

    async fn run(self, body: Bytes, interim: Interim) -> Final {
        let lost = |detail: String| Final::Failed(Failure::sent(Reason::ConnectionLost, detail));
        let mut response = match self.post(body).await {
            Ok(response) => response,
            Err(failure) => return Final::Failed(failure),
        };
        if response.status() != StatusCode::OK {
            return Final::Failed(Failure::unsent(
                Reason::NoWorker,
                format!("the worker answers {}", response.status()),
            ));
        }
        let mut reader = FrameReader::default();
        loop {
            match reader.next_frame() {
                Ok(Some(Frame::News(news))) => {
                    interim.send(news);
                    continue;
                }
                Ok(Some(Frame::Final(end))) => return end,
                Ok(None) => {}
                Err(error) => return lost(error.to_string()),
            }
            match response.body_mut().frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        reader.push(data);
                    }
                }
                Some(Err(error)) => return lost(error.to_string()),
                None => return lost("the worker closed the stream".to_owned()),
            }
        }
    }
}

impl WorkerLink for RemoteLink {
    fn incarnation(&self) -> u64 {
        self.incarnation
    }

    fn send(&self, envelope: Envelope, interim: Interim) -> BoxFuture<'static, Final> {
        self.clone().run(encode_envelope(&envelope), interim).boxed()
    }
}

/// A worker's end: serves `link` on `listener` until the tasks drain.
pub async fn serve_link(listener: TcpListener, link: Arc<dyn WorkerLink>, key: [u8; 32], tasks: Tasks) {
    loop {
        let stream = tokio::select! {
            () = tasks.stopping().cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a gateway could not be accepted");
                    tokio::time::sleep(limits::CATCH_UP_PAUSE).await; // out of descriptors: do not spin
                    continue;
                }
            },
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        let link = link.clone();
        let stop = tasks.stopping().clone();
        tasks.spawn("link", async move {
            let service = service_fn(move |request| answer(link.clone(), key, request));
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = stop.cancelled() => {
                    // The call in flight is finished; the connection takes no other.
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a gateway's connection ended");
            }
        });
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

async fn answer(
    link: Arc<dyn WorkerLink>,
    key: [u8; 32],
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let refuse = |status| {
        let mut response = Response::new(Full::new(Bytes::new()).boxed_unsync());
        *response.status_mut() = status;
        Ok(response)
    };
    let (parts, body) = request.into_parts();
    let bound = 2 * limits::BODY_BYTES.max(limits::UPSTREAM_MESSAGE_BYTES);
    let Ok(body) = Limited::new(body, bound).collect().await else { return refuse(StatusCode::PAYLOAD_TOO_LARGE) };
    let body = body.to_bytes();
    let expected = blake3::keyed_hash(&key, &body);
    // blake3::Hash compares in constant time.
    let given = parts.headers.get(MAC).and_then(|v| blake3::Hash::from_hex(v.as_bytes()).ok());
    if given != Some(expected) {
        return refuse(StatusCode::UNAUTHORIZED);
    }
    if parts.uri.path() != CALL {
        return refuse(StatusCode::NOT_FOUND);
    }
    let Ok(envelope) = decode_envelope(&body) else { return refuse(StatusCode::BAD_REQUEST) };
    let (interim, news) = Interim::channel();
    let work = link.send(envelope, interim);
    // The call lives inside the body: when the gateway closes the connection, hyper drops the body and so cancels it.
    let frames = futures_util::stream::unfold(Answering::Running(work, news), Answering::next);
    Ok(Response::new(StreamBody::new(frames).boxed_unsync()))
}

/// An answer on its way: what was reported before the end is sent before the end.
enum Answering {
    Running(BoxFuture<'static, Final>, mpsc::Receiver<News>),
    Ended(Final, mpsc::Receiver<News>),
    Sent,
}

impl Answering {
    async fn next(self) -> Option<(Result<http_body::Frame<Bytes>, Infallible>, Self)> {
        match self {
            Answering::Running(mut work, mut news) => tokio::select! {
                biased;
                end = &mut work => Some(Self::last(end, news)),
                Some(message) = news.recv() => {
                    Some((data(Frame::News(message)), Answering::Running(work, news)))
                }
            },
            Answering::Ended(end, news) => Some(Self::last(end, news)),
            Answering::Sent => None,
        }
    }

    fn last(end: Final, mut news: mpsc::Receiver<News>) -> (Result<http_body::Frame<Bytes>, Infallible>, Self) {
        match news.try_recv() {
            Ok(message) => (data(Frame::News(message)), Answering::Ended(end, news)),
            Err(_) => (data(Frame::Final(end)), Answering::Sent),
        }
    }
}

fn data(frame: Frame) -> Result<http_body::Frame<Bytes>, Infallible> {
    Ok(http_body::Frame::data(frame.encode()))
}
