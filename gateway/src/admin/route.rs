//! Paths of the admin API. This table is its contents.

use std::sync::Arc;

use http::{Method, Response, StatusCode};
use serde_json::json;

use super::ask::Ask;
use super::{AdminError, apis, instructions, objects, reply, sessions};
use crate::app::App;
use crate::body::Body;

pub(super) async fn route(app: &Arc<App>, ask: Ask) -> Result<Response<Body>, AdminError> {
    let path: Vec<&str> = ask.path.iter().map(String::as_str).collect();
    let method = ask.method.clone();
    let get = method == Method::GET;
    let (put, delete, post) = (method == Method::PUT, method == Method::DELETE, method == Method::POST);
    match path.as_slice() {
        ["tenants"] if get => tenants(app, &ask).await,
        ["tenants", t] if get || put || delete => objects::settings(app, &ask, &ask.tenant(t)?).await,
        ["tenants", t, "servers"] if get => objects::list_servers(app, &ask.tenant(t)?).await,
        ["tenants", t, "servers", id] if get || put || delete => objects::server(app, &ask, &ask.tenant(t)?, id).await,
        ["tenants", t, "servers", id, "refresh"] if post => objects::refresh(app, &ask.tenant(t)?, id).await,
        ["tenants", t, "tools", name] if get || put || delete => objects::tool(app, &ask, &ask.tenant(t)?, name).await,
        ["tenants", t, "apis"] if get => apis::list(app, &ask.tenant(t)?).await,
        ["tenants", t, "apis", id] if get || put || delete => apis::api(app, &ask, &ask.tenant(t)?, id).await,
        ["tenants", t, "bundles", name] if get || put || delete => {
            objects::bundle(app, &ask, &ask.tenant(t)?, name).await
        }
        ["tenants", t, "revoked"] if get || put => objects::revoked(app, &ask, &ask.tenant(t)?).await,
        ["tenants", t, "sessions", sid, "policy"] if get || put || delete => {
            sessions::policy(app, &ask, &ask.tenant(t)?, sid).await
        }
        ["tenants", t, "sessions", sid, "revoked"] if put || delete => {
            sessions::revoked(app, &ask, &ask.tenant(t)?, sid).await
        }
        ["tenants", t, "sessions", sid, "instructions"] if get || put || post || delete => {
            instructions::instructions(app, &ask, &ask.tenant(t)?, sid).await
        }
        ["tenants", t, "sessions", sid, "instructions", "reset"] if post => {
            instructions::reset(app, &ask, &ask.tenant(t)?, sid).await
        }
        ["tenants", t, "sessions", sid, "view"] if get => sessions::view(app, &ask, &ask.tenant(t)?, sid).await,
        ["tenants", t, "resolve"] if post => sessions::resolve(app, &ask, &ask.tenant(t)?).await,
        ["tenants", t, "explain"] if get => sessions::explain(app, &ask, &ask.tenant(t)?).await,
        ["tenants", _]
        | ["tenants", _, "servers" | "tools" | "apis" | "bundles", _]
        | ["tenants", _, "servers" | "apis" | "revoked" | "resolve"] => Err(AdminError::Method),
        _ => Err(AdminError::NotFound),
    }
}

/// The tenants that the key may see.
async fn tenants(app: &App, ask: &Ask) -> Result<Response<Body>, AdminError> {
    let tenants = app.live.tenants();
    let mut ids = tenants.documents().tenants().await?;
    ids.extend(tenants.file_tenants().cloned());
    ids.sort();
    ids.dedup();
    let names: Vec<String> = ids.iter().filter(|id| ask.covers(id)).map(ToString::to_string).collect();
    Ok(reply(StatusCode::OK, &json!({"tenants": names}), None))
}
