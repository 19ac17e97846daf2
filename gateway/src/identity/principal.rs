//! A principal: whom a verified token speaks for. Only `identity` makes one.

use std::collections::BTreeSet;

use rollcall_shared::digest::Digest;
use rollcall_shared::ids::{IssuerId, SessionId, TenantId};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub tenant: TenantId,
    pub issuer: IssuerId,
    pub session: SessionId,
    /// `sub`, for audit and for servers that keep a state a session; never for policy.
    pub subject: String,
    pub scopes: BTreeSet<String>,
    /// Seconds since 1970.
    pub expires_at: u64,
    digest: String,
}

impl Principal {
    pub(super) fn new(
        tenant: TenantId,
        issuer: IssuerId,
        session: SessionId,
        subject: String,
        scopes: BTreeSet<String>,
        expires_at: u64,
    ) -> Self {
        let parts = [tenant.as_str(), issuer.as_str(), session.as_str()];
        let digest = Digest::of_parts(parts.map(str::as_bytes)).hex(32);
        Self { tenant, issuer, session, subject, scopes, expires_at, digest }
    }

    #[cfg(test)]
    pub(crate) fn for_tests(tenant: &str, session: &str) -> Self {
        let issuer = IssuerId::parse("https://id.example").expect("an issuer");
        let session = SessionId::parse(session).expect("a session");
        let tenant = TenantId::parse(tenant).expect("a tenant");
        Self::new(tenant, issuer, session, String::new(), BTreeSet::new(), u64::MAX)
    }

    /// The id of the session's documents in the store.
    pub fn session_id(&self) -> String {
        session_id(&self.issuer, &self.session)
    }

    /// A digest of the session that names nobody.
    pub fn session_digest(&self) -> String {
        self.digest.clone()
    }
}

/// The id of a session's documents in the store. Neither an issuer nor a session holds a space.
pub fn session_id(issuer: &IssuerId, session: &SessionId) -> String {
    format!("{issuer} {session}")
}
