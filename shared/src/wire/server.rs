//! A worker's end of the link: HTTP/1.1, one connection a call in flight, cancel by closing.
//!
//! `GET /w/hello` greets; `POST /w/<version>/call` carries an envelope, signed for this connection. Both are all there is.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

use super::client::{GREETING, Greeting};
use super::codec::{Frame, decode_envelope};
use super::seal::{Greeted, WireKeys};
use super::tls::WireTls;
use super::{Final, Interim, News, WorkerLink};
use crate::clock::unix_s;
use crate::limits;
use crate::task::Tasks;

/// What a worker serves its link with.
#[derive(Clone)]
pub struct LinkServer {
    pub link: Arc<dyn Incarnate>,
    pub keys: WireKeys,
    pub tls: Option<WireTls>,
    pub versions: (u16, u16),
    /// Once they close, no gateway sends anything here any more, and connections end with their call.
    pub tasks: Tasks,
}

/// A worker that can be called, and knows which run of it this is.
pub trait Incarnate: WorkerLink {
    fn incarnation(&self) -> u64;
}

impl LinkServer {
    /// Serves until its tasks close.
    pub async fn serve(self, listener: TcpListener) {
        let room = Arc::new(Semaphore::new(limits::CONNECTIONS));
        loop {
            let stream = tokio::select! {
                () = self.tasks.closing().cancelled() => return,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        tracing::warn!(%error, "a gateway could not be accepted");
                        tokio::time::sleep(limits::CATCH_UP_PAUSE).await; // out of descriptors: do not spin
                        continue;
                    }
                },
            };
            let Ok(permit) = room.clone().try_acquire_owned() else { continue };
            let server = self.clone();
            self.tasks.serve("link", stream, move |stream| async move {
                server.connection(stream).await;
                drop(permit);
            });
        }
    }

    async fn connection(self, stream: TcpStream) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        match &self.tls {
            None => self.http(stream).await,
            Some(tls) => match tokio::time::timeout(limits::WIRE_CONNECT_TIMEOUT, tls.accept(stream)).await {
                Ok(Ok(stream)) => self.http(stream).await,
                Ok(Err(error)) => tracing::warn!(%error, "somebody without our authority's certificate called"),
                Err(_) => tracing::debug!("a handshake took too long"),
            },
        }
    }

    async fn http<S>(&self, stream: S)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let greeted = Arc::new(Greeted::new());
        let service = service_fn(|request| self.answer(greeted.clone(), request));
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            // Gateways keep connections for their next call.
            .header_read_timeout(None)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.tasks.closing().cancelled() => {
                // The call in flight is finished; the connection takes no other.
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a gateway's connection ended");
        }
    }

    async fn answer(&self, greeted: Arc<Greeted>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let refuse = |status| {
            let mut response = Response::new(Full::new(Bytes::new()).boxed_unsync());
            *response.status_mut() = status;
            Ok(response)
        };
        let (parts, body) = request.into_parts();
        if parts.method == Method::GET && parts.uri.path() == GREETING {
            let greeting = Greeting {
                incarnation: self.link.incarnation(),
                greeting: greeted.greeting.clone(),
                versions: self.versions,
            };
            let text = serde_json::to_vec(&greeting).unwrap_or_default();
            return Ok(Response::new(Full::new(Bytes::from(text)).boxed_unsync()));
        }
        let version = parts.uri.path().strip_prefix("/w/").and_then(|rest| rest.strip_suffix("/call"));
        let version = version.and_then(|version| version.parse().ok());
        if version.is_none_or(|version| !(self.versions.0..=self.versions.1).contains(&version)) {
            return refuse(StatusCode::NOT_FOUND);
        }
        let bound = 2 * limits::BODY_BYTES.max(limits::UPSTREAM_MESSAGE_BYTES);
        // Nobody's bytes are kept for long before it is known whose they are.
        if !Greeted::is_signed(&parts.headers) {
            return refuse(StatusCode::UNAUTHORIZED);
        }
        let reading = tokio::time::timeout(limits::BODY_TIMEOUT, Limited::new(body, bound).collect());
        let Ok(Ok(body)) = reading.await else { return refuse(StatusCode::PAYLOAD_TOO_LARGE) };
        let body = body.to_bytes();
        if !greeted.verify(&self.keys, &parts.headers, &body) {
            tracing::warn!("an envelope that no gateway signed for this connection is refused");
            return refuse(StatusCode::UNAUTHORIZED);
        }
        let Ok(envelope) = decode_envelope(&body) else { return refuse(StatusCode::BAD_REQUEST) };
        if unix_s().abs_diff(envelope.head.sent_at) > limits::WIRE_SKEW.as_secs() {
            tracing::warn!(sent_at = envelope.head.sent_at, "an envelope of another time is refused");
            return refuse(StatusCode::UNAUTHORIZED);
        }
        let (interim, mut news) = Interim::channel();
        // The call lives in this future and then inside the body: when the gateway closes the connection, hyper drops
        // either, and so cancels it.
        let mut work = self.link.send(super::Route::Here, envelope, interim);
        let answering = tokio::select! {
            biased;
            // Most calls end without news: their answer is one write of a known length.
            end = &mut work => match news.is_empty() {
                true => return Ok(Response::new(Full::new(Frame::Final(end).encode()).boxed_unsync())),
                false => Answering::Ended(end, news),
            },
            Some(message) = news.recv() => Answering::Told(message, work, news),
        };
        let frames = futures_util::stream::unfold(answering, Answering::next);
        Ok(Response::new(StreamBody::new(frames).boxed_unsync()))
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// An answer on its way: what was reported before the end is sent before the end.
enum Answering {
    Told(News, BoxFuture<'static, Final>, mpsc::Receiver<News>),
    Running(BoxFuture<'static, Final>, mpsc::Receiver<News>),
    Ended(Final, mpsc::Receiver<News>),
    Sent,
}

impl Answering {
    async fn next(self) -> Option<(Result<http_body::Frame<Bytes>, Infallible>, Self)> {
        match self {
            Answering::Told(message, work, news) => Some((data(Frame::News(message)), Answering::Running(work, news))),
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
