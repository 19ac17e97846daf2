//! `rollcall token`: session tokens for development, signed with a shared key that the configuration holds.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rollcall_shared::clock::unix_s;
use rollcall_shared::config::{Config, KeySource, TenantSource};
use rollcall_shared::ids::{SessionId, TenantId};
use rollcall_shared::limits;
use serde_json::{Map, Value};

use super::{USAGE, fail, parse_config, quickstart, read_config, say};

/// Whom the token shall speak for.
pub(super) struct Request {
    pub(super) tenant: String,
    pub(super) session: String,
    pub(super) ttl: Duration,
    pub(super) scope: String,
    pub(super) issuer: Option<String>,
}

pub(super) fn parse_ttl(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
    units
        .iter()
        .find_map(|(unit, seconds)| text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(*seconds))
        .filter(|s| (1..=limits::TOKEN_LIFETIME_S).contains(s))
        .map(Duration::from_secs)
        .ok_or_else(|| "expected a time from 1s to 31d, such as 30s, 5m, 1h".to_owned())
}

pub(super) fn run(path: Option<&Path>, request: &Request) -> ExitCode {
    let config = match path {
        Some(path) => read_config(path),
        None => match quickstart::Keys::load_or_make().and_then(|keys| quickstart::config(&keys, false)) {
            Ok(text) => parse_config(&text, "the quickstart"),
            Err(error) => return fail(USAGE, &format!("the quickstart's keys: {error}")),
        },
    };
    match config.and_then(|config| mint(&config, request).map_err(|what| fail(USAGE, &what))) {
        Ok(token) => {
            say(&token);
            ExitCode::SUCCESS
        }
        Err(code) => code,
    }
}

/// A token that the configuration's own gateway accepts, or what stands against it.
pub(super) fn mint(config: &Config, request: &Request) -> Result<String, String> {
    let tenant = TenantId::parse(&request.tenant).map_err(|e| e.to_string())?;
    SessionId::parse(&request.session).map_err(|e| e.to_string())?;
    let mut candidates = config.issuers.iter().filter(|issuer| {
        issuer.tenants.covers(&tenant) && request.issuer.as_deref().is_none_or(|name| name == issuer.issuer.as_str())
    });
    let issuer = candidates
        .find(|issuer| matches!(issuer.keys, KeySource::Hs256(_)))
        .ok_or("no issuer with an hs256_key may speak for this tenant; other issuers' tokens come from them")?;
    let KeySource::Hs256(secret) = &issuer.keys else { return Err("the issuer has no shared key".to_owned()) };
    let now = unix_s();
    let mut claims = Map::new();
    claims.insert("iss".into(), issuer.issuer.as_str().into());
    claims.insert("aud".into(), issuer.audience.as_str().into());
    claims.insert("iat".into(), now.into());
    claims.insert("exp".into(), (now + request.ttl.as_secs()).into());
    claims.insert(issuer.session_claim.clone(), Value::from(request.session.as_str()));
    if let TenantSource::Claim(name) = &issuer.tenant {
        claims.insert(name.clone(), Value::from(tenant.as_str()));
    }
    if !request.scope.is_empty() {
        claims.insert("scope".into(), Value::from(request.scope.as_str()));
    }
    let key = EncodingKey::from_secret(secret.expose().as_bytes()).map_err(|e| e.to_string())?;
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key).map_err(|e| e.to_string())
}
