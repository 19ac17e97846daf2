//! A principal: whom a verified token speaks for. Only `identity` makes one.

use std::collections::BTreeSet;

use rollcall_shared::digest::Digest;
use rollcall_shared::ids::{IssuerId, SessionId, TenantId};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::manual_non_exhaustive, reason = "even this crate makes one in `identity` alone")]
pub struct Principal {
    pub tenant: TenantId,
    pub issuer: IssuerId,
    pub session: SessionId,
    /// `sub`, for audit and for servers that keep a state a session; never for policy.
    pub subject: String,
    pub scopes: BTreeSet<String>,
    /// Seconds since 1970.
    pub expires_at: u64,
    _made_by_identity: (),
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
        Self { tenant, issuer, session, subject, scopes, expires_at, _made_by_identity: () }
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
        let parts = [self.tenant.as_str(), self.issuer.as_str(), self.session.as_str()];
        Digest::of_parts(parts.map(str::as_bytes)).hex(32)
    }
}

/// The id of a session's documents in the store. Neither an issuer nor a session holds a space.
pub fn session_id(issuer: &IssuerId, session: &SessionId) -> String {
    format!("{issuer} {session}")
}
