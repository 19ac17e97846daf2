//! A bare hop: hyper towards the client, hyper towards the server, bytes forwarded as they come, and nothing else. It is the
//! floor under every gateway that is built on hyper, and what gateways are compared with.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use http::{Request, Response, StatusCode, Uri};
use http_body_util::{Either, Empty};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Connections that are kept for the next request.
type Idle = Arc<Mutex<Vec<SendRequest<Incoming>>>>;
type Forwarded = Either<Forwarding, Empty<Bytes>>;

/// A running hop. Ends when dropped.
pub struct Hop {
    pub address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Drop for Hop {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Hop {
    /// Forwards to `to`, over HTTP/1.1.
    pub async fn start(listen: SocketAddr, to: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        #[expect(clippy::disallowed_methods, reason = "aborted when the hop is dropped")]
        let serving = tokio::spawn(async move {
            let (idle, mut connections) = (Idle::default(), JoinSet::new());
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).ok();
                let idle = idle.clone();
                connections.spawn(async move {
                    let service = service_fn(|request| forward(idle.clone(), to, request));
                    let served =
                        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    served.await.ok();
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, serving })
    }
}

async fn forward(
    idle: Idle,
    to: SocketAddr,
    mut request: Request<Incoming>,
) -> Result<Response<Forwarded>, Infallible> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    if let Ok(uri) = path.parse::<Uri>() {
        *request.uri_mut() = uri;
    }
    let kept = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let connection = match kept.filter(|connection| !connection.is_closed()) {
        Some(connection) => Some(connection),
        None => connect(to).await,
    };
    let Some(mut connection) = connection else { return Ok(unreachable()) };
    let answered = match connection.ready().await {
        Ok(()) => connection.send_request(request).await,
        Err(error) => Err(error),
    };
    let Ok(response) = answered else { return Ok(unreachable()) };
    Ok(response.map(|body| Either::Left(Forwarding { body, connection: Some(connection), idle })))
}

/// An answer on its way; its connection is kept once it has ended.
struct Forwarding {
    body: Incoming,
    connection: Option<SendRequest<Incoming>>,
    idle: Idle,
}

impl Body for Forwarding {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        let connection = self.connection.take().filter(|_| self.body.is_end_stream());
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(connection);
    }
}

async fn connect(to: SocketAddr) -> Option<SendRequest<Incoming>> {
    let stream = TcpStream::connect(to).await.ok()?;
    stream.set_nodelay(true).ok()?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.ok()?;
    #[expect(clippy::disallowed_methods, reason = "ends with its connection")]
    tokio::spawn(connection);
    Some(sender)
}

fn unreachable() -> Response<Forwarded> {
    let mut response = Response::new(Either::Right(Empty::new()));
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response
}
