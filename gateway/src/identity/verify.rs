//! From a token to a principal: what the claims must say (RFC 7519, RFC 8725).

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use rollcall_shared::clock::unix_s;
use rollcall_shared::config::{Issuer, TenantSource};
use rollcall_shared::ids::{IssuerId, SessionId, TenantId};
use rollcall_shared::limits;
use serde_json::{Map, Value};

use super::keys::VerifyKey;
use super::principal::Principal;
use crate::refusal::Refusal;

/// What a token says before anything proves it: only good for choosing the key.
pub(super) struct Unsigned {
    pub(super) issuer: String,
    pub(super) kid: Option<String>,
}

fn refuse(why: &'static str) -> Refusal {
    Refusal::Unauthenticated { presented: true, why }
}

pub(super) fn peek(token: &str) -> Result<Unsigned, Refusal> {
    let malformed = || refuse("the token is malformed");
    let header = jsonwebtoken::decode_header(token).map_err(|_| malformed())?;
    // An access token (RFC 9068) or a plain one; anything else was made for another purpose.
    let typ = header.typ.as_deref().unwrap_or("JWT");
    if !["jwt", "at+jwt", "application/at+jwt"].contains(&typ.to_ascii_lowercase().as_str()) {
        return Err(refuse("the token is of another type"));
    }
    let payload = token.split('.').nth(1).ok_or_else(malformed)?;
    let payload = URL_SAFE_NO_PAD.decode(payload).map_err(|_| malformed())?;
    #[derive(serde::Deserialize)]
    struct Claims {
        iss: String,
    }
    let claims: Claims = serde_json::from_slice(&payload).map_err(|_| refuse("the token has no `iss`"))?;
    Ok(Unsigned { issuer: claims.iss, kid: header.kid })
}

/// Checks signature and claims with the issuer's key.
pub(super) fn verify(token: &str, key: &VerifyKey, issuer: &Issuer) -> Result<Principal, Refusal> {
    let claims = jsonwebtoken::decode::<Map<String, Value>>(token, &key.key, &key.validation)
        .map_err(|error| refuse(why(error.kind())))?
        .claims;
    read(&claims, issuer, unix_s())
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the crate's list is open, and the rest are all malformed tokens")]
fn why(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::ExpiredSignature => "the token has expired",
        ErrorKind::ImmatureSignature => "the token is not valid yet",
        ErrorKind::InvalidIssuer => "the token's issuer is not trusted here",
        ErrorKind::InvalidAudience => "the token is meant for another audience",
        ErrorKind::MissingRequiredClaim(_) => "the token lacks one of `iss`, `aud` and `exp`",
        ErrorKind::InvalidAlgorithm => "the token's algorithm does not fit its key",
        _ => "the token's signature or form is not valid",
    }
}

/// The principal that verified claims speak for.
fn read(claims: &Map<String, Value>, issuer: &Issuer, now: u64) -> Result<Principal, Refusal> {
    // The crate also takes a list that holds the issuer.
    if claims.get("iss").and_then(Value::as_str) != Some(issuer.issuer.as_str()) {
        return Err(refuse("the token's issuer is not trusted here"));
    }
    let expires_at = claims.get("exp").and_then(Value::as_u64).ok_or_else(|| refuse("the token's `exp` is no time"))?;
    if expires_at > now + limits::TOKEN_LIFETIME_S {
        return Err(refuse("the token lives longer than 31 days"));
    }
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let tenant = match &issuer.tenant {
        TenantSource::Fixed(tenant) => tenant.clone(),
        TenantSource::Claim(claim) => text(claim)
            .and_then(|t| TenantId::parse(t).ok())
            .ok_or_else(|| refuse("the token names no valid tenant"))?,
    };
    if !issuer.tenants.covers(&tenant) {
        return Err(refuse("the token's issuer may not speak for this tenant"));
    }
    let session = text(&issuer.session_claim)
        .and_then(|s| SessionId::parse(s).ok())
        .ok_or_else(|| refuse("the token names no valid session"))?;
    let subject = match claims.get("sub") {
        None => String::new(),
        Some(Value::String(sub)) if sub.len() <= 256 => sub.clone(),
        Some(_) => return Err(refuse("the token's `sub` is not valid")),
    };
    let issuer = IssuerId::parse(issuer.issuer.as_str()).map_err(|_| Refusal::Internal)?;
    Ok(Principal::new(tenant, issuer, session, subject, scopes(claims), expires_at))
}

/// `scope` as a list of words (RFC 8693, section 4.2), or `scp` as some issuers write it.
fn scopes(claims: &Map<String, Value>) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for name in ["scope", "scp"] {
        match claims.get(name) {
            Some(Value::String(words)) => out.extend(words.split_ascii_whitespace().map(str::to_owned)),
            Some(Value::Array(list)) => out.extend(list.iter().filter_map(Value::as_str).map(str::to_owned)),
            _ => {}
        }
    }
    out
}
