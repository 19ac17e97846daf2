//! The operations listener, without credentials: liveness, readiness, metrics.
//!
//! Liveness never depends on the store; a process that is alive must not be killed for what another one lacks. It is
//! served from the first moment on, before the store is there, and to the last, while calls in flight are finished.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::limits;
use crate::task::Tasks;
use crate::telemetry::Metrics;

/// Why a process should get no new work, if it should not.
type Ready = dyn Fn() -> Result<(), String> + Send + Sync;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Ops {
    ready: Arc<std::sync::OnceLock<Box<Ready>>>,
    metrics: Arc<Metrics>,
    /// The program's.
    tasks: Tasks,
    /// Its own, which outlast the program's.
    own: Tasks,
    close: CancellationToken,
}

const PLAIN: &str = "text/plain; charset=utf-8";

impl Ops {
    /// Serves until it is closed; not ready before it is told what that takes.
    pub fn start(listener: TcpListener, metrics: Arc<Metrics>, tasks: &Tasks) -> Self {
        let ops = Self {
            ready: Arc::default(),
            metrics,
            tasks: tasks.clone(),
            own: Tasks::new(),
            close: CancellationToken::new(),
        };
        let serving = ops.clone();
        ops.own.spawn("ops", async move { serving.serve(listener).await });
        ops
    }

    pub fn ready_when(&self, ready: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        self.ready.set(Box::new(ready)).ok();
    }

    /// Once nothing else runs.
    pub async fn close(self) {
        self.close.cancel();
        self.own.drain(limits::HEAD_TIMEOUT).await;
    }

    async fn serve(self, listener: TcpListener) {
        loop {
            let stream = tokio::select! {
                () = self.close.cancelled() => return,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(_) => {
                        tokio::time::sleep(limits::CATCH_UP_PAUSE).await; // out of descriptors: do not spin
                        continue;
                    }
                },
            };
            let (ops, close) = (self.clone(), self.close.clone());
            self.own.spawn("ops connection", async move {
                let service = service_fn(|request| {
                    let answer = ops.answer(&request);
                    async move { Ok::<_, Infallible>(answer) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(limits::HEAD_TIMEOUT)
                    .serve_connection(TokioIo::new(stream), service);
                tokio::select! {
                    () = close.cancelled() => {}
                    _ = connection => {}
                }
            });
        }
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "GET\n".to_owned());
        }
        match request.uri().path().trim_end_matches('/') {
            "/livez" => text(StatusCode::OK, PLAIN, "alive\n".to_owned()),
            "/readyz" => match self.readiness() {
                Ok(()) => text(StatusCode::OK, PLAIN, "ready\n".to_owned()),
                Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("not ready: {why}\n")),
            },
            "/metrics" => {
                self.metrics.panics.record(self.tasks.panics(), &[]);
                text(StatusCode::OK, "text/plain; version=0.0.4", self.metrics.text())
            }
            _ => text(StatusCode::NOT_FOUND, PLAIN, "/livez /readyz /metrics\n".to_owned()),
        }
    }

    fn readiness(&self) -> Result<(), String> {
        if self.tasks.draining().is_cancelled() {
            return Err("draining".to_owned());
        }
        match self.ready.get() {
            Some(ready) => ready(),
            None => Err("starting".to_owned()),
        }
    }
}

fn text(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}
