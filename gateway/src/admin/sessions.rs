//! Sessions: their policies and revocations, what they see, and why.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::{Method, Response, StatusCode};
use rollcall_shared::clock::unix_s;
use rollcall_shared::document::{Node, Problems};
use rollcall_shared::ids::{IssuerId, SessionId, TenantId};
use rollcall_shared::limits;
use rollcall_shared::model::{EntryKind, Policy, SessionPolicy};
use rollcall_shared::store::{self, Expect, Key, Kind, Write};
use serde_json::json;

use super::ask::Ask;
use super::write::{commit, docs, expect};
use super::{AdminError, reply, set};
use crate::app::App;
use crate::body::Body;
use crate::identity::principal::session_id;
use crate::live::effective;
use crate::policy::{bind, explain, unmatched};
use crate::registry::Registry;
use crate::view::Sight;

type Answer = Result<Response<Body>, AdminError>;

/// The id of a session's documents. `?issuer=` is needed where several issuers may speak for the tenant.
pub(super) fn id_of(app: &App, ask: &Ask, tenant: &TenantId, session: &str) -> Result<String, AdminError> {
    let session = SessionId::parse(session).map_err(|e| AdminError::invalid(e.to_string()))?;
    let names = app.issuers.names(Some(tenant));
    let issuer = match (ask.query("issuer"), names.as_slice()) {
        (Some(issuer), _) if names.iter().any(|name| name == issuer) => issuer,
        (Some(issuer), _) => return Err(AdminError::invalid(format!("issuer {issuer:?} may not speak for {tenant}"))),
        (None, [only]) => only,
        (None, []) => return Err(AdminError::invalid(format!("no issuer may speak for {tenant}"))),
        (None, _) => return Err(AdminError::invalid(format!("?issuer= must be one of {}", names.join(", ")))),
    };
    let issuer = IssuerId::parse(issuer).map_err(|e| AdminError::invalid(e.to_string()))?;
    Ok(session_id(&issuer, &session))
}

async fn registry(app: &Arc<App>, tenant: &TenantId) -> Result<Arc<Registry>, AdminError> {
    let at_hand = app.live.tenants().get(tenant).await?.ok_or(AdminError::NotFound)?;
    app.live.registry(&at_hand).await.map_err(|refusal| AdminError::conflict(refusal.text()))
}

pub(super) async fn policy(app: &Arc<App>, ask: &Ask, tenant: &TenantId, session: &str) -> Answer {
    docs(app, tenant).await?;
    let key = Key::new(tenant, Kind::Policy, id_of(app, ask, tenant, session)?);
    if ask.method == Method::GET {
        let stored = app.live.tenants().documents().get(&key).await?.ok_or(AdminError::NotFound)?;
        let policy: SessionPolicy =
            store::decode(&stored.body).map_err(|e| AdminError::conflict(format!("the stored policy: {e}")))?;
        let value = serde_json::to_value(&policy).unwrap_or_default();
        return Ok(reply(StatusCode::OK, &value, Some(stored.version)));
    }
    if ask.method == Method::DELETE {
        return commit(app, ask, tenant, vec![tombstone(key, expect(ask))], Vec::new(), json!({})).await;
    }
    let mut rules = ask.document(|node, problems| Policy::read(node, "", problems))?;
    let registry = registry(app, tenant).await?;
    bind(&registry, &mut rules);
    let warnings = unmatched(&registry, &rules);
    let write = Write::put(key, expect(ask), store::encode(&SessionPolicy::Rules(rules)));
    commit(app, ask, tenant, vec![write], warnings, json!({})).await
}

/// Denies until no token can ask any more.
fn tombstone(key: Key, expect: Expect) -> Write {
    let now = unix_s();
    Write {
        expires_at: Some(now + limits::TOMBSTONE_LIFETIME_S),
        ..Write::put(key, expect, store::encode(&SessionPolicy::Tombstone { since: now }))
    }
}

/// A revocation stands beside the policy: taking it back gives the session what its policy says, and no more.
pub(super) async fn revoked(app: &Arc<App>, ask: &Ask, tenant: &TenantId, session: &str) -> Answer {
    docs(app, tenant).await?;
    let key = Key::new(tenant, Kind::SessionRevoked, id_of(app, ask, tenant, session)?);
    let write = if ask.method == Method::PUT {
        let ends = unix_s() + limits::TOMBSTONE_LIFETIME_S;
        Write { expires_at: Some(ends), ..Write::put(key, expect(ask), store::encode(&true)) }
    } else {
        Write::delete(key, expect(ask))
    };
    commit(app, ask, tenant, vec![write], Vec::new(), json!({})).await
}

/// `?scope=a b`: the scopes that the session's token carries.
fn scopes(ask: &Ask) -> BTreeSet<String> {
    ask.query("scope").unwrap_or_default().split_ascii_whitespace().map(str::to_owned).collect()
}

/// A session's sight as a request would find it now, and where its rules come from.
pub(super) async fn sight(
    app: &Arc<App>,
    ask: &Ask,
    tenant: &TenantId,
    session: &str,
) -> Result<(Sight, &'static str), AdminError> {
    let id = id_of(app, ask, tenant, session)?;
    let at_hand = app.live.tenants().session(tenant, &id).await?;
    let stored = &at_hand.value;
    let registry = registry(app, tenant).await?;
    let now = unix_s();
    let source = match stored.policy.as_deref() {
        _ if registry.docs.revoked => "tenant_revoked",
        _ if stored.revoked => "revoked",
        Some(SessionPolicy::Tombstone { .. }) => "deleted",
        Some(SessionPolicy::Rules(rules)) if rules.is_expired(now) => "expired",
        Some(SessionPolicy::Rules(_)) => "session",
        None if registry.docs.settings.default_policy.is_some() => "default",
        None => "none",
    };
    let rules = effective(&registry.docs, stored, now);
    Ok((app.live.sight_of(registry, rules, &scopes(ask)), source))
}

pub(super) async fn view(app: &Arc<App>, ask: &Ask, tenant: &TenantId, session: &str) -> Answer {
    let (sight, source) = sight(app, ask, tenant, session).await?;
    let all = |kind| -> Vec<&str> {
        sight.view.all(kind).filter_map(|p| sight.registry.definition(p)).map(|d| &*d.visible).collect()
    };
    let body = json!({
        "view": sight.view.tag(),
        "policy": source,
        "count": sight.view.count,
        "tools": all(EntryKind::Tool),
        "prompts": all(EntryKind::Prompt),
        "resources": all(EntryKind::Resource),
        "resource_templates": all(EntryKind::Template),
        "bridge_tools": sight.view.bridge_tools().collect::<Vec<_>>(),
        "shadowed": sight.registry.shadowed.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(),
        "unavailable": sight.registry.missing.iter().map(|m| m.alias.as_str()).collect::<Vec<_>>(),
    });
    Ok(reply(StatusCode::OK, &body, None))
}

/// `{"names": [...], "session": "…"}`: whether names resolve, for the tenant or for one of its sessions.
pub(super) async fn resolve(app: &Arc<App>, ask: &Ask, tenant: &TenantId) -> Answer {
    let read = |node: &Node, problems: &Problems| {
        let mut fields = node.fields("", problems)?;
        let names = fields
            .required("names")
            .map(|(n, p)| n.list(&p, problems, |n, p| n.text(p, problems).map(str::to_owned)))
            .unwrap_or_default();
        let session = fields.optional("session").and_then(|(n, p)| n.text(&p, problems)).map(str::to_owned);
        fields.finish();
        Some((names, session))
    };
    let (names, session) = ask.document(read)?;
    if names.len() > limits::RESOLVE_NAMES {
        return Err(AdminError::invalid(format!("at most {} names", limits::RESOLVE_NAMES)));
    }
    let sight = match session {
        Some(session) => sight(app, ask, tenant, &session).await?.0,
        None => {
            let registry = registry(app, tenant).await?;
            let scopes = registry.docs.servers.values().flat_map(|s| s.value.requires.clone());
            let scopes = scopes.chain(registry.docs.tools.values().flat_map(|t| t.value.requires.clone())).collect();
            app.live.sight_of(registry, Policy::default(), &scopes)
        }
    };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let availability = |server: &_| app.live.availability(tenant, server);
    Ok(match sight.resolve(&names, &availability) {
        Ok(permits) => {
            let found: Vec<_> = permits
                .iter()
                .map(|permit| {
                    let definition = permit.definition();
                    json!({
                        "name": &*definition.visible,
                        "server": permit.server().map(|s| s.id.as_str()),
                        "real_name": &*definition.real,
                        "digest": definition.digest.to_string(),
                    })
                })
                .collect();
            reply(StatusCode::OK, &json!({"success": true, "tools": found}), None)
        }
        Err(refused) => {
            let body = serde_json::from_str(&refused.to_json()).unwrap_or_default();
            reply(StatusCode::UNPROCESSABLE_ENTITY, &body, None)
        }
    })
}

/// `?session=&name=`: the verdict on one name, and every rule that had a part in it.
pub(super) async fn explain(app: &Arc<App>, ask: &Ask, tenant: &TenantId) -> Answer {
    let session = ask.query("session").ok_or_else(|| AdminError::invalid("?session= is missing"))?;
    let name = ask.query("name").ok_or_else(|| AdminError::invalid("?name= is missing"))?;
    let (sight, source) = sight(app, ask, tenant, session).await?;
    let mut body = explain::explain(&sight, name, &scopes(ask));
    set(&mut body, "policy", json!(source));
    Ok(reply(StatusCode::OK, &body, None))
}
