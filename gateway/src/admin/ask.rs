//! An admin request, authenticated and read.

use std::collections::BTreeMap;

use http::{Method, Request, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use rollcall_shared::document::{Node, Problems, from_json};
use rollcall_shared::ids::TenantId;
use rollcall_shared::limits;
use rollcall_shared::mcp::raw;

use super::AdminError;
use crate::app::App;

/// See the module.
pub(crate) struct Ask {
    pub(crate) method: Method,
    /// Decoded segments behind `/admin/v1`.
    pub(crate) path: Vec<String>,
    query: BTreeMap<String, String>,
    /// `If-Match`, where it names a version.
    pub(crate) if_match: Option<u64>,
    pub(crate) key_id: String,
    may_write: bool,
    scope: rollcall_shared::config::TenantScope,
    body: String,
}

impl Ask {
    pub(crate) async fn read(app: &App, request: Request<Incoming>) -> Result<Self, AdminError> {
        let admin = app.admin.as_ref().ok_or(AdminError::NotFound)?;
        let token = crate::call::authenticate::bearer(request.headers()).map_err(|_| AdminError::Unauthenticated)?;
        // Every key is compared, so that time does not tell which one was nearly right.
        let mut found = None;
        for key in &admin.keys {
            if key.secret.matches(token) {
                found = Some(key);
            }
        }
        let key = found.ok_or(AdminError::Unauthenticated)?;
        let rest = request.uri().path().strip_prefix("/admin/v1/").ok_or(AdminError::NotFound)?;
        let decode = |part: &str| percent_decode_str(part).decode_utf8().ok().map(|text| text.into_owned());
        let path: Option<Vec<String>> = rest.trim_end_matches('/').split('/').map(decode).collect();
        let query =
            url::form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes()).into_owned().collect();
        let if_match = match request.headers().get(header::IF_MATCH).map(|v| v.to_str().unwrap_or_default()) {
            None | Some("*") => None,
            Some(tag) => Some(
                tag.trim_matches('"')
                    .parse()
                    .map_err(|_| AdminError::invalid("If-Match must be an ETag that this API gave"))?,
            ),
        };
        let method = request.method().clone();
        let most = match path.as_deref() {
            // A description of an API, as large as a configuration file may be.
            Some([_, _, kind, _]) if kind == "apis" => limits::CONFIG_BYTES,
            _ => limits::DOCUMENT_BYTES,
        };
        let reading = Limited::new(request.into_body(), most).collect();
        let body = tokio::time::timeout(limits::BODY_TIMEOUT, reading).await.map_err(|_| AdminError::BrokenBody)?;
        let body =
            body.map_err(|e| if e.is::<LengthLimitError>() { AdminError::TooLarge } else { AdminError::BrokenBody })?;
        let body =
            String::from_utf8(body.to_bytes().to_vec()).map_err(|_| AdminError::invalid("the body is not UTF-8"))?;
        let ask = Self {
            method,
            path: path.ok_or(AdminError::NotFound)?,
            query,
            if_match,
            key_id: key.id.clone(),
            may_write: key.may_write,
            scope: key.tenants.clone(),
            body,
        };
        // A dry run that is misspelt must not become a write.
        for (name, value) in &ask.query {
            let known = match name.as_str() {
                "dry_run" => matches!(value.as_str(), "true" | "false"),
                "issuer" | "session" | "name" | "scope" => true,
                _ => false,
            };
            if !known {
                return Err(AdminError::invalid(format!("unknown query parameter {name}={value}")));
            }
        }
        if ask.is_write() && !ask.may_write { Err(AdminError::Forbidden) } else { Ok(ask) }
    }

    /// Whether it changes anything. `POST tenants/{t}/resolve` only asks.
    fn is_write(&self) -> bool {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        let only_asks = self.method == Method::POST && matches!(path.as_slice(), ["tenants", _, "resolve"]);
        !matches!(self.method, Method::GET | Method::HEAD) && !only_asks
    }

    /// The tenant of the path, which the key must be good for.
    pub(crate) fn tenant(&self, text: &str) -> Result<TenantId, AdminError> {
        let tenant = TenantId::parse(text).map_err(|e| AdminError::invalid(e.to_string()))?;
        if self.scope.covers(&tenant) { Ok(tenant) } else { Err(AdminError::Forbidden) }
    }

    pub(crate) fn covers(&self, tenant: &TenantId) -> bool {
        self.scope.covers(tenant)
    }

    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }

    pub(crate) fn is_dry_run(&self) -> bool {
        self.query("dry_run") == Some("true")
    }

    /// The body as a document, read by `read`, which must find no problem.
    pub(crate) fn document<T>(&self, read: impl FnOnce(&Node, &Problems) -> Option<T>) -> Result<T, AdminError> {
        self::document(&self.body, read)
    }

    /// The same, without the value of one member, which is given as it was written: it may be large. `read` sees a number
    /// in its place, and all places stay what they are in the body.
    pub(crate) fn document_with<T>(
        &self,
        member: &str,
        read: impl FnOnce(&Node, &Problems) -> Option<T>,
    ) -> Result<(T, String), AdminError> {
        let members = raw::members(&self.body).unwrap_or_default();
        let mut masked = self.body.clone();
        let mut taken = String::new();
        for (_, value) in members.into_iter().filter(|(key, _)| key == member) {
            let Some(range) = raw::range_in(&self.body, value.get()) else { continue };
            let blank = value.get().chars().skip(1).map(|c| if c == '\n' { c } else { ' ' });
            let blank: String = std::iter::once('0').chain(blank).collect();
            let from = range.start - (self.body.len() - masked.len());
            masked.replace_range(from..from + range.len(), &blank);
            value.get().clone_into(&mut taken);
        }
        Ok((self::document(&masked, read)?, taken))
    }
}

fn document<T>(body: &str, read: impl FnOnce(&Node, &Problems) -> Option<T>) -> Result<T, AdminError> {
    let problems = Problems::new();
    let value = from_json(body, &problems).and_then(|node| read(&node, &problems));
    match (value, problems.into_list()) {
        (Some(value), list) if list.is_empty() => Ok(value),
        (_, list) => Err(AdminError::problems(list)),
    }
}
