//! One question to a running Rollcall.

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rollcall_shared::limits;
use serde_json::Value;

/// The JSON at `path`, below `url`. `token` is a session's, or an operator's key for the admin API.
pub(super) async fn get(url: &str, path: &str, token: &str) -> Result<Value, String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let connector = HttpsConnectorBuilder::new().with_native_roots().map_err(|e| text(&e))?;
    let client: Client<_, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).build(connector.https_or_http().enable_http1().build());
    let request = Request::get(format!("{}{path}", url.trim_end_matches('/')))
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .body(Full::default())
        .map_err(|e| text(&e))?;
    let asked = async {
        let answer = client.request(request).await.map_err(|e| text(&e))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), limits::UPSTREAM_MESSAGE_BYTES).collect().await;
        let body = body.map_err(|e| text(&e))?.to_bytes();
        if !status.is_success() {
            return Err(format!("{status}: {}", String::from_utf8_lossy(&body)));
        }
        serde_json::from_slice(&body).map_err(|e| text(&e))
    };
    tokio::time::timeout(limits::LISTING_TIMEOUT, asked).await.map_err(|_| "no answer in time".to_owned())?
}
