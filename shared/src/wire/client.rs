//! A gateway's end of the link to one worker: HTTP/1.1 keep-alive, one connection a call in flight.
//!
//! A connection begins with a greeting, which says who the worker is, which versions of the link it speaks, and the number
//! that every envelope on this connection is bound to. What surely was not sent is told apart from what may have been: only
//! the former is tried elsewhere.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::runtime::{self, Handle};
use tokio::time::Instant;

use super::codec::{Frame, FrameReader, encode_envelope};
use super::seal::WireKeys;
use super::tls::WireTls;
use super::{Envelope, Failure, Final, Interim, Reason};
use crate::limits;
use crate::task::Tasks;

/// The versions of the link that this program speaks: the oldest and the newest.
pub const VERSIONS: (u16, u16) = (1, 1);
pub(super) const GREETING: &str = "/w/hello";

/// What a worker says first.
#[derive(Serialize, Deserialize)]
pub(super) struct Greeting {
    pub(super) incarnation: u64,
    pub(super) greeting: String,
    pub(super) versions: (u16, u16),
}

/// How a gateway reaches workers.
#[derive(Clone)]
pub struct Dialer {
    pub keys: WireKeys,
    pub tls: Option<WireTls>,
    pub versions: (u16, u16),
    pub tasks: Tasks,
}

/// One run of one worker.
pub struct WorkerClient {
    dialer: Dialer,
    /// `host:port`
    address: String,
    incarnation: u64,
    idle: Mutex<Vec<Open>>,
}

struct Open {
    send: SendRequest<Full<Bytes>>,
    greeting: String,
    /// Of the last envelope on it.
    number: u64,
    version: u16,
    since: Instant,
    /// The runtime that its socket belongs to: from another one, each call would wake another thread.
    home: runtime::Id,
}

/// An attempt that surely reached nobody.
pub struct Unsent(pub Failure);

/// The newest version that both ends speak.
fn common(ours: (u16, u16), theirs: (u16, u16)) -> Option<u16> {
    let newest = ours.1.min(theirs.1);
    (newest >= ours.0 && newest >= theirs.0).then_some(newest)
}

impl WorkerClient {
    pub fn new(dialer: Dialer, address: String, incarnation: u64) -> Arc<Self> {
        Arc::new(Self { dialer, address, incarnation, idle: Mutex::default() })
    }

    /// Sends an envelope. `Err`: it surely was not sent.
    pub async fn send(self: &Arc<Self>, envelope: &Envelope, interim: &Interim) -> Result<Final, Unsent> {
        let body = encode_envelope(envelope);
        // A connection that was closed while idle takes nothing; the next one, or a new one, does.
        loop {
            let (mut open, fresh) = match self.take_idle() {
                Some(open) => (open, false),
                None => (self.dial().await?, true),
            };
            open.number += 1;
            let request = self.request(&open, &body)?;
            // Before it answers: a stream that is told where to come back to may begin sooner.
            interim.is_served_by(self.incarnation);
            match open.send.try_send_request(request).await {
                Ok(response) => return self.read(open, response, interim).await,
                Err(mut refused) => {
                    let was_sent = refused.take_message().is_none();
                    let error = refused.into_error();
                    if was_sent {
                        return Ok(Final::Failed(Failure::sent(Reason::ConnectionLost, error.to_string())));
                    }
                    if fresh {
                        return Err(unsent(error));
                    }
                }
            }
        }
    }

    fn request(&self, open: &Open, body: &Bytes) -> Result<Request<Full<Bytes>>, Unsent> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("/w/{}/call", open.version))
            .header(header::HOST, self.address.as_str());
        for (name, value) in self.dialer.keys.sign(&open.greeting, open.number, body).into_iter().flatten() {
            request = request.header(name, value);
        }
        request.body(Full::new(body.clone())).map_err(unsent)
    }

    fn take_idle(&self) -> Option<Open> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let here = Handle::current().id();
        // The warmest of this runtime first; what lay too long is closed.
        while let Some(at) = idle.iter().rposition(|open| open.home == here) {
            let open = idle.remove(at);
            if !open.send.is_closed() && open.send.is_ready() && open.since.elapsed() < limits::WIRE_IDLE {
                return Some(open);
            }
        }
        None
    }

    fn give_back(&self, open: Open) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < limits::WIRE_IDLE_CONNECTIONS {
            idle.push(Open { since: Instant::now(), ..open });
        }
    }

    async fn dial(&self) -> Result<Open, Unsent> {
        let late = |_| unsent("no connection in time");
        tokio::time::timeout(limits::WIRE_CONNECT_TIMEOUT, self.dial_now()).await.map_err(late)?
    }

    async fn dial_now(&self) -> Result<Open, Unsent> {
        let stream = TcpStream::connect(&self.address).await.map_err(unsent)?;
        stream.set_nodelay(true).map_err(unsent)?;
        let mut send = match &self.dialer.tls {
            Some(tls) => self.handshake(tls.connect(&self.address, stream).await.map_err(unsent)?).await?,
            None => self.handshake(stream).await?,
        };
        let hello = Request::builder().uri(GREETING).header(header::HOST, self.address.as_str());
        let hello = hello.body(Full::default()).map_err(unsent)?;
        let response = send.send_request(hello).await.map_err(unsent)?;
        let body = Limited::new(response.into_body(), limits::WIRE_GREETING_BYTES).collect().await.map_err(unsent)?;
        let greeting: Greeting = serde_json::from_slice(&body.to_bytes()).map_err(unsent)?;
        if greeting.incarnation != self.incarnation {
            return Err(unsent("another run of a worker has this address"));
        }
        let version = common(self.dialer.versions, greeting.versions).ok_or_else(|| {
            tracing::error!(worker = self.address, theirs = ?greeting.versions, "a worker speaks no version of ours");
            unsent("no common version")
        })?;
        Ok(Open {
            send,
            greeting: greeting.greeting,
            number: 0,
            version,
            since: Instant::now(),
            home: Handle::current().id(),
        })
    }

    async fn handshake<S>(&self, stream: S) -> Result<SendRequest<Full<Bytes>>, Unsent>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let (send, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(unsent)?;
        self.dialer.tasks.spawn("link", async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to a worker ended");
            }
        });
        Ok(send)
    }

    async fn read(
        self: &Arc<Self>,
        open: Open,
        response: Response<Incoming>,
        interim: &Interim,
    ) -> Result<Final, Unsent> {
        let lost = |detail: String| Ok(Final::Failed(Failure::sent(Reason::ConnectionLost, detail)));
        if response.status() != StatusCode::OK {
            return Err(unsent(format!("the worker answers {}", response.status())));
        }
        let mut body = response.into_body();
        let mut reader = FrameReader::default();
        loop {
            match reader.next_frame() {
                Ok(Some(Frame::News(news))) => {
                    interim.send(news);
                    continue;
                }
                Ok(Some(Frame::Final(end))) => {
                    // The end of the stream is read too, so that the connection can take another call.
                    let rest = tokio::time::timeout(limits::WIRE_CONNECT_TIMEOUT, body.frame()).await;
                    if matches!(rest, Ok(None)) {
                        self.give_back(open);
                    }
                    return Ok(end);
                }
                Ok(None) => {}
                Err(error) => return lost(error.to_string()),
            }
            match body.frame().await {
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

fn unsent(error: impl std::fmt::Display) -> Unsent {
    Unsent(Failure::unsent(Reason::NoWorker, error.to_string()).retry_after(1))
}

#[cfg(test)]
mod tests {
    use super::common;

    #[test]
    fn neighbours_in_version_understand_each_other() {
        assert_eq!(common((1, 2), (2, 3)), Some(2));
        assert_eq!(common((2, 3), (1, 2)), Some(2));
        assert_eq!(common((1, 1), (1, 2)), Some(1));
        assert_eq!(common((1, 1), (2, 3)), None);
        assert_eq!(common((2, 3), (1, 1)), None);
    }
}
