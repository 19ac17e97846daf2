//! What a session is told before its tools: set the base, add supplements, replace all, and read the very text that is sent.
//!
//! Tools are no part of what is stored, so nothing that is written here can hide or invent one.

use std::sync::Arc;

use http::{Method, Response, StatusCode};
use rollcall_shared::document::Problems;
use rollcall_shared::ids::TenantId;
use rollcall_shared::limits;
use rollcall_shared::model::{Instructions, Server};
use rollcall_shared::store::{self, Expect, Key, Kind, StoreError, Write};
use serde_json::json;

use super::ask::Ask;
use super::sessions::{id_of, sight};
use super::write::{commit, docs};
use super::{AdminError, reply};
use crate::app::App;
use crate::body::Body;
use crate::surface::instructions::{compose, of_servers};
use crate::surface::manifest::Manifest;

type Answer = Result<Response<Body>, AdminError>;

/// GET: what is written, and the text as it is sent now. PUT: another base; supplements stay. POST: one more supplement;
/// one that is there already changes nothing. DELETE: nothing is written any more.
pub(super) async fn instructions(app: &Arc<App>, ask: &Ask, tenant: &TenantId, session: &str) -> Answer {
    docs(app, tenant).await?;
    let key = Key::new(tenant, Kind::Instructions, id_of(app, ask, tenant, session)?);
    if ask.method == Method::GET {
        return read(app, ask, tenant, session, &key).await;
    }
    if ask.method == Method::DELETE {
        let expect = ask.if_match.map_or(Expect::Any, Expect::Version);
        return commit(app, ask, tenant, vec![Write::delete(key, expect)], Vec::new(), json!({})).await;
    }
    if ask.method == Method::PUT {
        let base = ask.document(|node, problems: &Problems| Instructions::read_base(node, problems))?;
        return change(app, ask, tenant, key, |written| written.base.clone_from(&base)).await;
    }
    let text = ask.document(|node, problems: &Problems| Instructions::read_supplement(node, problems))?;
    change(app, ask, tenant, key, |written| written.add(text.clone())).await
}

/// POST: base and supplements are replaced at once.
pub(super) async fn reset(app: &Arc<App>, ask: &Ask, tenant: &TenantId, session: &str) -> Answer {
    docs(app, tenant).await?;
    let key = Key::new(tenant, Kind::Instructions, id_of(app, ask, tenant, session)?);
    let whole = ask.document(|node, problems| Instructions::read(node, "", problems))?;
    change(app, ask, tenant, key, |written| written.clone_from(&whole)).await
}

/// Two who add at once must both find what they added: each write expects what it was made from.
async fn change(app: &Arc<App>, ask: &Ask, tenant: &TenantId, key: Key, change: impl Fn(&mut Instructions)) -> Answer {
    const ATTEMPTS: usize = 8;
    for _ in 0..ATTEMPTS {
        let stored = app.live.tenants().documents().get(&key).await?;
        let mut written: Instructions = match &stored {
            Some(stored) => store::decode(&stored.body)
                .map_err(|e| AdminError::conflict(format!("the stored instructions: {e}")))?,
            None => Instructions::default(),
        };
        change(&mut written);
        if written.supplements.len() > limits::SUPPLEMENTS {
            return Err(AdminError::invalid(format!("a session has at most {} supplements", limits::SUPPLEMENTS)));
        }
        let found = stored.map_or(Expect::Absent, |stored| Expect::Version(stored.version));
        let write = Write::put(key.clone(), ask.if_match.map_or(found, Expect::Version), store::encode(&written));
        match commit(app, ask, tenant, vec![write], Vec::new(), json!({})).await {
            Err(error) if ask.if_match.is_none() && matches!(error, AdminError::Precondition(_)) => {}
            answer => return answer,
        }
    }
    Err(StoreError::Unavailable("others keep changing these instructions".to_owned()).into())
}

async fn read(app: &Arc<App>, ask: &Ask, tenant: &TenantId, session: &str, key: &Key) -> Answer {
    let stored = app.live.tenants().documents().get(key).await?;
    let version = stored.as_ref().map(|stored| stored.version);
    let written: Instructions = stored.and_then(|stored| store::decode(&stored.body).ok()).unwrap_or_default();
    let (sight, _) = sight(app, ask, tenant, session).await?;
    let unreachable = |server: &Server| app.live.unreachable(tenant, server);
    let manifest = Manifest::new(&sight, &app.public_url, &unreachable).text();
    let text = compose(&written, &of_servers(&sight), &app.public_url, &manifest);
    let body = json!({
        "base": written.base, "supplements": written.supplements, "text": text, "bytes": text.len(), "view": sight.view.tag(),
    });
    Ok(reply(StatusCode::OK, &body, version))
}
