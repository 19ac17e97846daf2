//! The operations listener, without credentials: liveness, readiness, metrics.
//!
//! Liveness never depends on the store; a process that is alive must not be killed for what another one lacks.

use std::sync::Arc;

use futures_util::FutureExt;
use http::{Method, StatusCode};

use crate::app::App;
use crate::http::{Handler, text};

const PLAIN: &str = "text/plain; charset=utf-8";

pub(crate) fn handler(app: Arc<App>) -> Handler {
    Arc::new(move |request| {
        let app = app.clone();
        async move {
            let path = request.uri().path().trim_end_matches('/').to_owned();
            if !matches!(*request.method(), Method::GET | Method::HEAD) {
                return text(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "GET\n".to_owned());
            }
            match path.as_str() {
                "/livez" => text(StatusCode::OK, PLAIN, "alive\n".to_owned()),
                "/readyz" => ready(&app).await,
                "/metrics" => {
                    app.metrics.panics.record(app.tasks.panics(), &[]);
                    text(StatusCode::OK, "text/plain; version=0.0.4", app.metrics.text())
                }
                _ => text(StatusCode::NOT_FOUND, PLAIN, "/livez /readyz /metrics\n".to_owned()),
            }
        }
        .boxed()
    })
}

async fn ready(app: &App) -> http::Response<crate::body::Body> {
    let not = |why: &str| text(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("not ready: {why}\n"));
    if app.tasks.stopping().is_cancelled() {
        return not("draining");
    }
    match app.live.tenants().documents().is_seeded().await {
        Ok(true) => text(StatusCode::OK, PLAIN, "ready\n".to_owned()),
        Ok(false) => not("the store has lost its incarnation marker"),
        Err(_) => not("the store does not answer"),
    }
}
