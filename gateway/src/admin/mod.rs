//! The admin API: tenants, servers, tools, APIs, bundles, policies, revocations; and the answers to "why?".
//!
//! Writes are validated, versioned (`ETag` and `If-Match`), and applied on this node before they are answered. Each object
//! has one owner: a write to one that the configuration file owns is refused. No answer ever shows a secret.

mod apis;
mod ask;
mod instructions;
mod objects;
mod route;
mod sessions;
mod write;

use std::sync::Arc;

use futures_util::FutureExt;
use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use rollcall_shared::document::Problem;
use rollcall_shared::store::StoreError;
use serde_json::{Value, json};

use self::ask::Ask;
use crate::app::App;
use crate::body::Body;
use crate::http::{Handler, text};

/// What an admin request ends in.
pub(crate) enum AdminError {
    Unauthenticated,
    Forbidden,
    NotFound,
    Method,
    TooLarge,
    BrokenBody,
    /// The body or the query is wrong: every problem, with its place.
    Invalid(Vec<String>),
    /// `managed_by: file`, or two claims of one name.
    Conflict(Value),
    /// `If-Match` does not hold.
    Precondition(Option<u64>),
    Store(StoreError),
}

impl From<StoreError> for AdminError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict { found, .. } => AdminError::Precondition(found),
            StoreError::Unavailable(_)
            | StoreError::NotSeeded
            | StoreError::Lost(_)
            | StoreError::WentBack { .. }
            | StoreError::Damaged(_)
            | StoreError::NotProven => AdminError::Store(error),
        }
    }
}

impl AdminError {
    fn invalid(what: impl Into<String>) -> Self {
        AdminError::Invalid(vec![what.into()])
    }

    fn problems(list: Vec<Problem>) -> Self {
        AdminError::Invalid(list.iter().map(ToString::to_string).collect())
    }

    fn conflict(what: impl Into<String>) -> Self {
        AdminError::Conflict(json!({"error": "conflict", "message": what.into()}))
    }

    fn answer(self) -> Response<Body> {
        let (status, body) = match self {
            AdminError::Unauthenticated => {
                (StatusCode::UNAUTHORIZED, json!({"error": "unauthenticated", "message": "an admin key is needed"}))
            }
            AdminError::Forbidden => {
                (StatusCode::FORBIDDEN, json!({"error": "forbidden", "message": "this key may not do that"}))
            }
            AdminError::NotFound => (StatusCode::NOT_FOUND, json!({"error": "not_found"})),
            AdminError::Method => (StatusCode::METHOD_NOT_ALLOWED, json!({"error": "method"})),
            AdminError::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, json!({"error": "too_large"})),
            AdminError::BrokenBody => (StatusCode::BAD_REQUEST, json!({"error": "broken_body"})),
            AdminError::Invalid(problems) => {
                (StatusCode::UNPROCESSABLE_ENTITY, json!({"error": "invalid", "problems": problems}))
            }
            AdminError::Conflict(body) => (StatusCode::CONFLICT, body),
            AdminError::Precondition(found) => {
                (StatusCode::PRECONDITION_FAILED, json!({"error": "version", "version": found}))
            }
            AdminError::Store(error @ StoreError::NotProven) => {
                (StatusCode::SERVICE_UNAVAILABLE, json!({"error": "not_proven", "message": error.to_string()}))
            }
            AdminError::Store(error) => {
                tracing::error!(%error, "the store refuses an admin request");
                (StatusCode::SERVICE_UNAVAILABLE, json!({"error": "store_unavailable", "message": error.to_string()}))
            }
        };
        reply(status, &body, None)
    }
}

/// Sets a member of an object.
fn set(object: &mut Value, key: &str, value: Value) {
    if let Some(members) = object.as_object_mut() {
        members.insert(key.to_owned(), value);
    }
}

/// A JSON answer, with the version of what it shows as ETag.
pub(crate) fn reply(status: StatusCode, body: &Value, version: Option<u64>) -> Response<Body> {
    let mut response = text(status, "application/json", format!("{body}\n"));
    if let Some(tag) = version.and_then(|v| HeaderValue::from_str(&format!("\"{v}\"")).ok()) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

pub(crate) fn handler(app: Arc<App>) -> Handler {
    Arc::new(move |request: Request<Incoming>| {
        let app = app.clone();
        async move {
            let method = request.method().clone();
            let path = request.uri().path().to_owned();
            let (key, response) = match Ask::read(&app, request).await {
                Ok(ask) => {
                    let key = ask.key_id.clone();
                    (key, route::route(&app, ask).await.unwrap_or_else(AdminError::answer))
                }
                Err(error) => (String::new(), error.answer()),
            };
            tracing::info!(
                target: rollcall_shared::telemetry::AUDIT,
                surface = "admin",
                key,
                %method,
                path,
                status = response.status().as_u16(),
                "decided"
            );
            response
        }
        .boxed()
    })
}
