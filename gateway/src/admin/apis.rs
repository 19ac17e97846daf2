//! Imported APIs: a description goes in, and the tools of its operations are there, replaced or gone, in one write.

use std::sync::Arc;

use http::{Method, Response, StatusCode};
use rollcall_shared::document::{Node, Problems};
use rollcall_shared::ids::{ApiId, TenantId};
use rollcall_shared::limits;
use rollcall_shared::model::PlatformTool;
use rollcall_shared::openapi::{self, Api, Import};
use rollcall_shared::store::{self, Expect, Key, Kind, Write};
use rollcall_shared::tenants::{Owned, TenantDocs};
use serde_json::{Value, json};

use super::ask::Ask;
use super::objects::{shadowed_by, shown};
use super::write::{commit, docs, owned_by_store};
use super::{AdminError, reply};
use crate::app::App;
use crate::body::Body;
use crate::registry::naming::BRIDGE_TOOLS;

type Answer = Result<Response<Body>, AdminError>;

/// Names that an error tells.
const TOLD: usize = 10;

fn tools_of<'d>(docs: &'d TenantDocs, id: &ApiId) -> impl Iterator<Item = &'d Owned<PlatformTool>> {
    docs.tools.values().filter(move |owned| owned.value.api.as_ref() == Some(id))
}

/// The APIs of a tenant, each with its owner and how many tools it has.
pub(super) async fn list(app: &Arc<App>, tenant: &TenantId) -> Answer {
    let docs = docs(app, tenant).await?;
    let mut ids: Vec<&ApiId> = docs.tools.values().filter_map(|owned| owned.value.api.as_ref()).collect();
    ids.sort();
    ids.dedup();
    let apis: Vec<Value> = ids.into_iter().filter_map(|id| about(&docs, id)).collect();
    Ok(reply(StatusCode::OK, &json!({"apis": apis}), None))
}

fn about(docs: &TenantDocs, id: &ApiId) -> Option<Value> {
    let owner = tools_of(docs, id).next()?.owner;
    let names: Vec<&str> = tools_of(docs, id).map(|owned| owned.value.name.as_str()).collect();
    Some(shown(owner, json!({"id": id, "tools": names})))
}

pub(super) async fn api(app: &Arc<App>, ask: &Ask, tenant: &TenantId, id: &str) -> Answer {
    let id = ApiId::parse(id).map_err(|e| AdminError::invalid(e.to_string()))?;
    let docs = docs(app, tenant).await?;
    if ask.method == Method::GET {
        return Ok(reply(StatusCode::OK, &about(&docs, &id).ok_or(AdminError::NotFound)?, None));
    }
    if ask.if_match.is_some() {
        return Err(AdminError::invalid("an API has no version: its tools have"));
    }
    let owner = tools_of(&docs, &id).next().map(|owned| owned.owner);
    owned_by_store(owner, "the API")?;
    let key = |tool: &PlatformTool| Key::new(tenant, Kind::Tool, tool.name.as_str());
    if ask.method == Method::DELETE {
        owner.ok_or(AdminError::NotFound)?;
        let writes = tools_of(&docs, &id).map(|owned| Write::delete(key(&owned.value), Expect::Any)).collect();
        return commit(app, ask, tenant, writes, Vec::new(), json!({})).await;
    }
    let Import { tools, skipped, mut warnings } = read(ask, &id).await?;
    fits(&docs, &id, &tools)?;
    let skipped: Vec<Value> =
        skipped.into_iter().map(|s| json!({"operation": s.operation, "reason": s.reason})).collect();
    let removed: Vec<&PlatformTool> = tools_of(&docs, &id)
        .map(|owned| &*owned.value)
        .filter(|old| tools.binary_search_by(|new| new.name.cmp(&old.name)).is_err())
        .collect();
    let is_new = |tool: &&PlatformTool| docs.tools.get(&tool.name).is_none_or(|owned| *owned.value != **tool);
    // One that is there already is not written again: each write is a change that every node reads.
    let mut writes: Vec<Write> =
        tools.iter().filter(is_new).map(|tool| Write::put(key(tool), Expect::Any, store::encode(tool))).collect();
    writes.extend(removed.iter().map(|tool| Write::delete(key(tool), Expect::Any)));
    let shadowed = shadowed_by(app, tenant, tools.iter().map(|tool| &tool.name)).await?.len();
    if shadowed > 0 {
        warnings.push(format!("{shadowed} tools of servers are shadowed by names of this API"));
    }
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    let removed: Vec<&str> = removed.iter().map(|tool| tool.name.as_str()).collect();
    commit(app, ask, tenant, writes, warnings, json!({"tools": names, "skipped": skipped, "removed": removed})).await
}

/// The body: options, and `document`, the description itself or its text. It is worked through where it holds nobody up.
async fn read(ask: &Ask, id: &ApiId) -> Result<Import, AdminError> {
    let (api, written) = ask.document_with("document", |node: &Node, problems: &Problems| {
        let mut fields = node.fields("", problems)?;
        let written = fields.required("document").is_some();
        let api = Api::read_fields(&mut fields, Some(id.clone()), problems);
        fields.finish();
        api.filter(|_| written)
    })?;
    let work = move || {
        let description: Value = serde_json::from_str(&written).map_err(|error| format!("not JSON: {error}"))?;
        let description = match description.as_str() {
            Some(text) => openapi::parse(text)?,
            None => description,
        };
        openapi::import(&description, &api)
    };
    let import =
        tokio::task::spawn_blocking(work).await.map_err(|_| AdminError::invalid("document: cannot be read"))?;
    let import = import.map_err(|what| AdminError::invalid(format!("document: {what}")))?;
    if import.tools.is_empty() {
        let told = import.skipped.iter().take(TOLD).map(|s| format!("{}: {}", s.operation, s.reason));
        let none = std::iter::once("document: no operation becomes a tool".to_owned());
        return Err(AdminError::Invalid(none.chain(told).collect()));
    }
    Ok(import)
}

/// No tool takes the name of another one, and the tenant has room for them.
fn fits(docs: &TenantDocs, id: &ApiId, tools: &[PlatformTool]) -> Result<(), AdminError> {
    let others = |tool: &&PlatformTool| {
        let owned = docs.tools.get(&tool.name);
        BRIDGE_TOOLS.contains(&tool.name.as_str()) || owned.is_some_and(|owned| owned.value.api.as_ref() != Some(id))
    };
    let taken: Vec<&str> = tools.iter().filter(others).map(|tool| tool.name.as_str()).collect();
    if !taken.is_empty() {
        let told = taken.iter().take(TOLD).copied().collect::<Vec<_>>().join(", ");
        return Err(AdminError::conflict(format!(
            "{} of its names are taken, give a `prefix` or exclude them: {told}",
            taken.len()
        )));
    }
    let most = limits::PLATFORM_TOOLS_PER_TENANT;
    let kept = docs.tools.len() - tools_of(docs, id).count();
    if kept + tools.len() > most {
        let count = kept + tools.len();
        return Err(AdminError::invalid(format!("a tenant has at most {most} platform tools; it would have {count}")));
    }
    Ok(())
}

/// Refuses to touch one tool of an API by itself: the next import would undo it.
pub(super) fn owned_by_api(owned: Option<&Owned<PlatformTool>>) -> Result<(), AdminError> {
    match owned.and_then(|owned| owned.value.api.as_ref()) {
        Some(id) => Err(AdminError::Conflict(json!({
            "error": "managed_by", "managed_by": format!("apis/{id}"),
            "message": format!("the tool belongs to the API {id}; import that again"),
        }))),
        None => Ok(()),
    }
}
