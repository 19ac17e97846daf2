//! One write: owner checked, version expected, applied on this node before it is answered.

use std::sync::Arc;

use http::{Response, StatusCode};
use rollcall_shared::ids::TenantId;
use rollcall_shared::store::{Expect, Key, Write};
use rollcall_shared::tenants::{Owner, TenantDocs};
use serde_json::{Value, json};

use super::ask::Ask;
use super::{AdminError, reply};
use crate::app::App;
use crate::body::Body;

/// The tenant's documents; an unknown tenant is 404.
pub(super) async fn docs(app: &App, tenant: &TenantId) -> Result<Arc<TenantDocs>, AdminError> {
    let found = app.live.tenants().get(tenant).await?;
    found.map(|tenant| tenant.docs()).ok_or(AdminError::NotFound)
}

/// Refuses to touch what the configuration file owns.
pub(super) fn owned_by_store(owner: Option<Owner>, what: &str) -> Result<(), AdminError> {
    match owner {
        Some(Owner::File) => Err(AdminError::Conflict(json!({
            "error": "managed_by", "managed_by": "file", "message": format!("{what} is owned by the configuration file"),
        }))),
        Some(Owner::Store) | None => Ok(()),
    }
}

/// What the write of one document expects: `If-Match`, or anything.
pub(super) fn expect(ask: &Ask) -> Expect {
    ask.if_match.map_or(Expect::Any, Expect::Version)
}

/// Commits, waits until this node has applied it, and answers `{version, changed, warnings}`.
pub(super) async fn commit(
    app: &App,
    ask: &Ask,
    tenant: &TenantId,
    writes: Vec<Write>,
    warnings: Vec<String>,
    mut more: Value,
) -> Result<Response<Body>, AdminError> {
    let documents = app.live.tenants().documents();
    let keys: Vec<Key> = writes.iter().map(|w| w.key.clone()).collect();
    let mut changed = false;
    for write in &writes {
        let stored = documents.get(&write.key).await?;
        changed |= stored.as_ref().map(|d| &d.body[..]) != write.body.as_deref();
        // A dry run must fail where the write would.
        if let (Expect::Version(wanted), found) = (write.expect, stored.map(|d| d.version))
            && found != Some(wanted)
        {
            return Err(AdminError::Precondition(found));
        }
    }
    let mut version = None;
    if changed && !ask.is_dry_run() {
        let written = documents.write(tenant, writes).await?;
        app.live.tenants().applied(tenant, written).await;
        if app.live.tenants().get(tenant).await?.is_some_and(|tenant| tenant.docs().settings.strict) {
            documents.prove(tenant).await?;
        }
        version = Some(written);
    } else if let Some(key) = keys.first() {
        version = documents.get(key).await?.map(|d| d.version);
    }
    let mut body = json!({"version": version, "changed": changed, "warnings": warnings});
    if ask.is_dry_run()
        && let Some(members) = body.as_object_mut()
    {
        members.insert("dry_run".to_owned(), true.into());
    }
    if let (Some(members), Some(extra)) = (body.as_object_mut(), more.as_object_mut()) {
        members.append(extra);
    }
    Ok(reply(StatusCode::OK, &body, version))
}
