//! Settings, servers, platform tools, bundles and revocations of a tenant.

use std::sync::Arc;

use http::{Method, Response, StatusCode};
use rollcall_shared::clock::unix_s;
use rollcall_shared::document::{Node, Problems};
use rollcall_shared::ids::{BundleName, PlatformName, ServerId, TenantId};
use rollcall_shared::limits;
use rollcall_shared::model::policy::read_entries;
use rollcall_shared::model::{Bundle, Entry, PlatformTool, Server, SessionPolicy, Settings, Target};
use rollcall_shared::store::{self, Expect, Key, Kind, Tombstone, Write};
use rollcall_shared::tenants::{Owner, TenantDocs};
use serde_json::{Value, json};

use super::apis::owned_by_api;
use super::ask::Ask;
use super::write::{commit, docs, expect, owned_by_store};
use super::{AdminError, reply, set};
use crate::app::App;
use crate::body::Body;
use crate::policy::bind;
use crate::registry::enrol::{EnrolError, plan};
use crate::registry::naming::BRIDGE_TOOLS;

type Answer = Result<Response<Body>, AdminError>;

pub(super) fn shown(owner: Owner, value: Value) -> Value {
    let managed_by = match owner {
        Owner::File => "file",
        Owner::Store => "store",
    };
    json!({"managed_by": managed_by, "value": value})
}

async fn version_of(app: &App, key: &Key) -> Result<Option<u64>, AdminError> {
    Ok(app.live.tenants().documents().get(key).await?.map(|d| d.version))
}

pub(super) async fn settings(app: &Arc<App>, ask: &Ask, tenant: &TenantId) -> Answer {
    let key = Key::new(tenant, Kind::Settings, "");
    let known = app.live.tenants().get(tenant).await?.map(|t| t.docs());
    if ask.method == Method::GET {
        let docs = known.ok_or(AdminError::NotFound)?;
        let value = serde_json::to_value(&*docs.settings).unwrap_or_default();
        let owner = docs.settings_owner.unwrap_or(Owner::Store);
        return Ok(reply(StatusCode::OK, &shown(owner, value), version_of(app, &key).await?));
    }
    owned_by_store(known.as_ref().and_then(|d| d.settings_owner), "the tenant")?;
    if ask.method == Method::DELETE {
        known.ok_or(AdminError::NotFound)?;
        if ask.is_dry_run() {
            return commit(app, ask, tenant, vec![Write::delete(key, expect(ask))], Vec::new(), json!({})).await;
        }
        let tenants = app.live.tenants();
        if let Some(wanted) = ask.if_match {
            let found = version_of(app, &key).await?;
            if found != Some(wanted) {
                return Err(AdminError::Precondition(found));
            }
        }
        let now = unix_s();
        let body = store::encode(&SessionPolicy::Tombstone { since: now });
        let tombstone = Tombstone { body, expires_at: now + limits::TOMBSTONE_LIFETIME_S };
        let version = tenants.documents().forget(tenant, tombstone).await?;
        tenants.applied(tenant, version).await;
        return Ok(reply(StatusCode::OK, &json!({"version": version, "changed": true, "warnings": []}), None));
    }
    let mut value = ask.document(|node, problems| Settings::read(node, "", problems))?;
    let mut warnings = Vec::new();
    if let (Some(rules), Some(at_hand)) = (&mut value.default_policy, app.live.tenants().get(tenant).await?)
        && let Ok(registry) = app.live.registry(&at_hand).await
    {
        bind(&registry, rules);
        warnings = crate::policy::unmatched(&registry, rules);
    }
    let write = Write::put(key, expect(ask), store::encode(&value));
    commit(app, ask, tenant, vec![write], warnings, json!({})).await
}

pub(super) async fn list_servers(app: &Arc<App>, tenant: &TenantId) -> Answer {
    let docs = docs(app, tenant).await?;
    let servers: Vec<Value> = docs
        .servers
        .values()
        .map(|owned| {
            let id = &owned.value.id;
            let mut value = shown(owned.owner, owned.value.redacted());
            set(&mut value, "status", status(app, tenant, &docs, id));
            value
        })
        .collect();
    Ok(reply(StatusCode::OK, &json!({"servers": servers}), None))
}

/// Alias, catalog and availability of a server.
fn status(app: &App, tenant: &TenantId, docs: &TenantDocs, id: &ServerId) -> Value {
    let catalog = docs.catalogs.get(id);
    let reason =
        docs.servers.get(id).filter(|_| catalog.is_none()).map(|owned| app.live.availability(tenant, &owned.value).0);
    json!({
        "alias": docs.allotment.servers.get(id).map(|a| a.alias.as_str()),
        "former_aliases": docs.allotment.servers.get(id).map(|a| a.former.iter().map(|f| f.as_str()).collect::<Vec<_>>()),
        "catalog": catalog.map(|c| json!({"digest": c.digest, "era": c.era.label(), "listed_at": c.listed_at})),
        "unavailable": reason,
    })
}

pub(super) async fn server(app: &Arc<App>, ask: &Ask, tenant: &TenantId, id: &str) -> Answer {
    let id = ServerId::parse(id).map_err(|e| AdminError::invalid(e.to_string()))?;
    let docs = docs(app, tenant).await?;
    let key = Key::new(tenant, Kind::Server, id.as_str());
    let present = docs.servers.get(&id);
    if ask.method == Method::GET {
        let owned = present.ok_or(AdminError::NotFound)?;
        let mut value = shown(owned.owner, owned.value.redacted());
        set(&mut value, "status", status(app, tenant, &docs, &id));
        return Ok(reply(StatusCode::OK, &value, version_of(app, &key).await?));
    }
    owned_by_store(present.map(|owned| owned.owner), "the server")?;
    if ask.method == Method::DELETE {
        present.ok_or(AdminError::NotFound)?;
        let catalog = Key::new(tenant, Kind::Catalog, id.as_str());
        let writes = vec![Write::delete(key, expect(ask)), Write::delete(catalog, Expect::Any)];
        return commit(app, ask, tenant, writes, Vec::new(), json!({})).await;
    }
    if present.is_none() && docs.servers.len() >= limits::SERVERS_PER_TENANT {
        return Err(AdminError::invalid(format!("a tenant has at most {} servers", limits::SERVERS_PER_TENANT)));
    }
    let value = ask.document(|node, problems| Server::read(node, "", Some(&id), false, problems))?;
    let (allotment, aliases) =
        plan(&**app.live.tenants().documents(), tenant, [&value]).await.map_err(|e| match e {
            EnrolError::Alias(taken) => AdminError::conflict(taken.to_string()),
            EnrolError::Store(error) => error.into(),
            EnrolError::Unreadable(error) => AdminError::conflict(error.to_string()),
        })?;
    let alias = allotment.servers.get(&id).map(|a| a.alias.to_string());
    let before = docs.allotment.servers.get(&id).map(|a| a.alias.to_string());
    let mut more = json!({"alias": alias});
    if let Some(before) = before.filter(|before| Some(before) != alias.as_ref()) {
        set(&mut more, "affected", json!(entries_by_name(&docs, &before)));
        set(&mut more, "renamed_from", json!(before));
    }
    let mut writes = vec![Write::put(key, expect(ask), store::encode(&value))];
    writes.extend(aliases);
    // A server whose address changed may be another one: its old catalog must not stand for it.
    let moved = present.is_some_and(|owned| owned.value.transport != value.transport);
    if moved {
        writes.push(Write::delete(Key::new(tenant, Kind::Catalog, id.as_str()), Expect::Any));
    }
    let response = match commit(app, ask, tenant, writes, Vec::new(), more.clone()).await {
        // Another registration took its alias in between; the caller named no version, so nothing of his is stale.
        Err(AdminError::Precondition(_)) if ask.if_match.is_none() => {
            return Err(AdminError::conflict("another server was registered at the same time; send it again"));
        }
        other => other?,
    };
    if ask.is_dry_run() {
        return Ok(response);
    }
    // The catalog is fetched at registration; a server that is slow or down is reported, not awaited.
    let first = tokio::time::timeout(limits::FIRST_LISTING_WAIT, app.live.refresh(tenant, &id)).await;
    let warning = match first {
        Ok(Ok(())) => return Ok(response),
        Ok(Err(failure)) => format!("the server is not available now: {}", failure.reason.label()),
        Err(_) => "the server has not listed its tools yet".to_owned(),
    };
    set(&mut more, "warnings", json!([warning]));
    set(&mut more, "changed", json!(true));
    let version = version_of(app, &Key::new(tenant, Kind::Server, id.as_str())).await?;
    set(&mut more, "version", json!(version));
    Ok(reply(StatusCode::OK, &more, version))
}

/// Entries of the default policy and of bundles that reach a server by the names it has under `alias`. Denials follow a
/// rename by themselves; what is allowed by name must be written anew.
fn entries_by_name(docs: &TenantDocs, alias: &str) -> Vec<String> {
    let prefix = format!("{alias}{}", crate::registry::naming::SEPARATOR);
    let named = |entry: &&Entry| matches!(&entry.target, Target::Names(glob) if glob.prefix().starts_with(&prefix) || prefix.starts_with(glob.prefix()) && !glob.prefix().is_empty());
    let allowed = docs.settings.default_policy.iter().flat_map(|policy| policy.allow.iter().flatten());
    let of_policy = allowed.filter(named).map(|entry| format!("default_policy: {entry}"));
    let of_bundles = docs.bundles.iter().flat_map(|(name, bundle)| {
        bundle.value.entries.iter().filter(named).map(move |entry| format!("bundle {name}: {entry}"))
    });
    of_policy.chain(of_bundles).collect()
}

pub(super) async fn refresh(app: &Arc<App>, tenant: &TenantId, id: &str) -> Answer {
    let id = ServerId::parse(id).map_err(|e| AdminError::invalid(e.to_string()))?;
    let before = docs(app, tenant).await?;
    before.servers.get(&id).ok_or(AdminError::NotFound)?;
    match app.live.refresh(tenant, &id).await {
        Ok(()) => Ok(reply(StatusCode::OK, &status(app, tenant, &*docs(app, tenant).await?, &id), None)),
        Err(failure) => {
            let body = json!({"error": "unavailable", "reason": failure.reason.label()});
            Ok(reply(StatusCode::BAD_GATEWAY, &body, None))
        }
    }
}

pub(super) async fn tool(app: &Arc<App>, ask: &Ask, tenant: &TenantId, name: &str) -> Answer {
    let name = PlatformName::parse(name).map_err(|e| AdminError::invalid(e.to_string()))?;
    let docs = docs(app, tenant).await?;
    let key = Key::new(tenant, Kind::Tool, name.as_str());
    let present = docs.tools.get(&name);
    if ask.method == Method::GET {
        let owned = present.ok_or(AdminError::NotFound)?;
        let value = shown(owned.owner, owned.value.redacted());
        return Ok(reply(StatusCode::OK, &value, version_of(app, &key).await?));
    }
    owned_by_store(present.map(|owned| owned.owner), "the tool")?;
    owned_by_api(present)?;
    if ask.method == Method::DELETE {
        present.ok_or(AdminError::NotFound)?;
        return commit(app, ask, tenant, vec![Write::delete(key, expect(ask))], Vec::new(), json!({})).await;
    }
    if BRIDGE_TOOLS.contains(&name.as_str()) {
        return Err(AdminError::conflict(format!("{name} is one of Rollcall's own tools")));
    }
    if present.is_none() && docs.tools.len() >= limits::PLATFORM_TOOLS_PER_TENANT {
        let most = limits::PLATFORM_TOOLS_PER_TENANT;
        return Err(AdminError::invalid(format!("a tenant has at most {most} platform tools")));
    }
    let value = ask.document(|node, problems| PlatformTool::read(node, "", Some(&name), problems))?;
    let mut warnings = Vec::new();
    if let Some(server) = shadowed_by(app, tenant, [&name]).await?.first() {
        warnings.push(format!("a tool of the server {server} is shadowed by this name"));
    }
    let write = Write::put(key, expect(ask), store::encode(&value));
    commit(app, ask, tenant, vec![write], warnings, json!({})).await
}

/// The servers of which a tool would be hidden behind one of these names, for each name that does so.
pub(super) async fn shadowed_by<'n>(
    app: &App,
    tenant: &TenantId,
    names: impl IntoIterator<Item = &'n PlatformName>,
) -> Result<Vec<ServerId>, AdminError> {
    let Some(at_hand) = app.live.tenants().get(tenant).await? else { return Ok(Vec::new()) };
    let Ok(registry) = app.live.registry(&at_hand).await else { return Ok(Vec::new()) };
    let server = |name: &PlatformName| registry.server(registry.roster.find(name.as_str())?).map(|s| s.id.clone());
    Ok(names.into_iter().filter_map(server).collect())
}

pub(super) async fn bundle(app: &Arc<App>, ask: &Ask, tenant: &TenantId, name: &str) -> Answer {
    let name = BundleName::parse(name).map_err(|e| AdminError::invalid(e.to_string()))?;
    let docs = docs(app, tenant).await?;
    let key = Key::new(tenant, Kind::Bundle, name.as_str());
    let present = docs.bundles.get(&name);
    if ask.method == Method::GET {
        let owned = present.ok_or(AdminError::NotFound)?;
        let value = json!(owned.value.entries.iter().map(|e| e.as_str()).collect::<Vec<_>>());
        return Ok(reply(StatusCode::OK, &shown(owned.owner, value), version_of(app, &key).await?));
    }
    owned_by_store(present.map(|owned| owned.owner), "the bundle")?;
    if ask.method == Method::DELETE {
        present.ok_or(AdminError::NotFound)?;
        return commit(app, ask, tenant, vec![Write::delete(key, expect(ask))], Vec::new(), json!({})).await;
    }
    let value = ask.document(|node, problems| Some(Bundle::read(node, "", problems)))?;
    let write = Write::put(key, expect(ask), store::encode(&value));
    commit(app, ask, tenant, vec![write], Vec::new(), json!({})).await
}

/// `{"tenant": bool, "entries": [entry]}`: what is revoked for every session of the tenant. PUT replaces it whole.
pub(super) async fn revoked(app: &Arc<App>, ask: &Ask, tenant: &TenantId) -> Answer {
    let docs = docs(app, tenant).await?;
    let entries: Vec<&str> = docs.revoked_entries.keys().map(String::as_str).collect();
    if ask.method == Method::GET {
        return Ok(reply(StatusCode::OK, &json!({"tenant": docs.revoked, "entries": entries}), None));
    }
    let read = |node: &Node, problems: &Problems| {
        let mut fields = node.fields("", problems)?;
        let whole = fields.optional("tenant").and_then(|(n, p)| n.boolean(&p, problems)).unwrap_or(false);
        let entries = fields.optional("entries").map(|(n, p)| read_entries(n, &p, problems)).unwrap_or_default();
        fields.finish();
        Some((whole, entries))
    };
    let (whole, wanted) = ask.document(read)?;
    let mark = |id: &str| Key::new(tenant, Kind::Revoked, id);
    let mut writes = vec![if whole {
        Write::put(mark(""), Expect::Any, store::encode(&true))
    } else {
        Write::delete(mark(""), Expect::Any)
    }];
    writes.extend(wanted.iter().map(|e| Write::put(mark(e.as_str()), Expect::Any, store::encode(&true))));
    let gone = entries.into_iter().filter(|old| !wanted.iter().any(|e| e.as_str() == *old));
    writes.extend(gone.map(|old| Write::delete(mark(old), Expect::Any)));
    commit(app, ask, tenant, writes, Vec::new(), json!({})).await
}
