//! Authenticate: from the Authorization header to a principal, who must belong to the address.

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::app::App;
use crate::http::Endpoint;
use crate::identity::Principal;
use crate::refusal::Refusal;

pub(crate) async fn authenticate(
    app: &App,
    endpoint: &Endpoint,
    headers: &HeaderMap,
) -> Result<Arc<Principal>, Refusal> {
    let principal = app.issuers.authenticate(bearer(headers)?).await?;
    match &endpoint.tenant {
        Some(tenant) if *tenant != principal.tenant => Err(Refusal::OtherTenant),
        _ => Ok(principal),
    }
}

/// The token of `Authorization: Bearer …` (RFC 6750, section 2.1). It is never read from anywhere else.
pub(crate) fn bearer(headers: &HeaderMap) -> Result<&str, Refusal> {
    let absent = Refusal::Unauthenticated { presented: false, why: "a bearer token is needed" };
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Err(absent) };
    if values.next().is_some() {
        return Err(Refusal::Unauthenticated { presented: true, why: "more than one Authorization header" });
    }
    let malformed = || Refusal::Unauthenticated { presented: true, why: "Authorization must be `Bearer <token>`" };
    let (scheme, token) = value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(malformed)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(token.trim()) } else { Err(malformed()) }
}
