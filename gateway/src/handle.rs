//! Handles: what a client carries for us and gives back, sealed and bound to its owner.
//!
//! A handle is encrypted and authenticated (AES-256-GCM-SIV, RFC 8452), with its purpose, tenant, session and server as
//! associated data, and with its end inside: one that is foreign, altered or late opens like one that never was. The
//! first configured key seals; every one opens, so that keys can be rotated. A gateway node keeps nothing of a handle.

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, Nonce, RandomizedNonceKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rollcall_shared::clock::unix_s;
use rollcall_shared::config::NamedKey;
use rollcall_shared::secret::Secret;

use crate::identity::Principal;

/// What a handle is for. One purpose's handle is nothing to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// `Mcp-Session-Id`
    Session,
    /// The id of an event on a legacy stream.
    Event,
    /// The id of a request to a legacy client.
    Question,
    /// `requestState`
    State,
    /// `taskId`
    Task,
}

impl Purpose {
    fn label(self) -> &'static [u8] {
        match self {
            Purpose::Session => b"session",
            Purpose::Event => b"event",
            Purpose::Question => b"question",
            Purpose::State => b"state",
            Purpose::Task => b"task",
        }
    }
}

/// To whom a handle belongs, and to what.
#[derive(Clone, Copy)]
pub(crate) struct Owner<'a> {
    pub(crate) principal: &'a Principal,
    /// What else must be the same when it comes back: an endpoint, a server, a method and a name.
    pub(crate) scope: &'a [&'a str],
}

/// See the module.
pub(crate) struct Seals {
    keys: Vec<Key>,
}

struct Key {
    id: [u8; ID],
    key: RandomizedNonceKey,
}

const ID: usize = 4;
const NONCE: usize = 12;
const END: usize = 8;

impl Key {
    fn new(secret: &Secret) -> Option<Self> {
        let key = blake3::derive_key("rollcall 2026 handles: sealing", secret.expose().as_bytes());
        let named = blake3::derive_key("rollcall 2026 handles: name of a key", secret.expose().as_bytes());
        let key = RandomizedNonceKey::new(&AES_256_GCM_SIV, &key).ok()?;
        Some(Self { id: *named.first_chunk()?, key })
    }
}

impl Seals {
    /// Without a configured key, one is made that lives as long as the process.
    pub(crate) fn new(configured: &[NamedKey]) -> Self {
        let own = [Secret::new(rollcall_shared::digest::unguessable() + &rollcall_shared::digest::unguessable())];
        let secrets: Vec<&Secret> = match configured {
            [] => own.iter().collect(),
            keys => keys.iter().map(|key| &key.secret).collect(),
        };
        Self { keys: secrets.into_iter().filter_map(Key::new).collect() }
    }

    /// Seals `content` for `lifetime_s` seconds.
    pub(crate) fn seal(&self, purpose: Purpose, owner: Owner<'_>, content: &[u8], lifetime_s: u64) -> Option<String> {
        let key = self.keys.first()?;
        let end = unix_s().saturating_add(lifetime_s);
        let mut sealed = Vec::with_capacity(END + content.len() + 16);
        sealed.extend_from_slice(&end.to_be_bytes());
        sealed.extend_from_slice(content);
        let nonce = key.key.seal_in_place_append_tag(Aad::from(bound(purpose, owner)), &mut sealed).ok()?;
        let mut out = Vec::with_capacity(ID + NONCE + sealed.len());
        out.extend_from_slice(&key.id);
        out.extend_from_slice(nonce.as_ref());
        out.extend_from_slice(&sealed);
        Some(URL_SAFE_NO_PAD.encode(out))
    }

    /// The content of a handle of this owner, unless it is late.
    pub(crate) fn open(&self, purpose: Purpose, owner: Owner<'_>, handle: &str) -> Option<Vec<u8>> {
        let bytes = URL_SAFE_NO_PAD.decode(handle).ok()?;
        let (id, rest) = bytes.split_first_chunk::<ID>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE>()?;
        let key = self.keys.iter().find(|key| key.id == *id)?;
        let mut sealed = sealed.to_vec();
        let aad = Aad::from(bound(purpose, owner));
        let open = key.key.open_in_place(Nonce::assume_unique_for_key(*nonce), aad, &mut sealed).ok()?;
        let (end, content) = open.split_first_chunk::<END>()?;
        (unix_s() < u64::from_be_bytes(*end)).then(|| content.to_vec())
    }
}

/// The associated data: every part behind its length, so that no two lists of parts meet.
fn bound(purpose: Purpose, owner: Owner<'_>) -> Vec<u8> {
    let session = owner.principal.session_digest();
    let fixed = [purpose.label(), owner.principal.tenant.as_str().as_bytes(), session.as_bytes()];
    let mut out = Vec::new();
    for part in fixed.into_iter().chain(owner.scope.iter().map(|part| part.as_bytes())) {
        out.extend_from_slice(&(part.len() as u64).to_be_bytes());
        out.extend_from_slice(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(secret: &str) -> NamedKey {
        NamedKey { id: "k".to_owned(), secret: Secret::new(secret) }
    }

    #[test]
    fn a_handle_opens_for_its_owner_alone_and_only_unaltered() {
        let seals = Seals::new(&[key("one")]);
        let (a, b) = (Principal::for_tests("acme", "s1"), Principal::for_tests("acme", "s2"));
        let other_tenant = Principal::for_tests("other", "s1");
        let of = |principal, scope| Owner { principal, scope };
        let handle = seals.seal(Purpose::State, of(&a, &["x"]), b"inner", 60).expect("sealed");
        assert_eq!(seals.open(Purpose::State, of(&a, &["x"]), &handle).as_deref(), Some(&b"inner"[..]));
        for (purpose, principal, scope) in [
            (Purpose::Task, &a, &["x"][..]),
            (Purpose::State, &b, &["x"]),
            (Purpose::State, &other_tenant, &["x"]),
            (Purpose::State, &a, &["y"]),
            (Purpose::State, &a, &["x", ""]),
        ] {
            assert_eq!(seals.open(purpose, of(principal, scope), &handle), None);
        }
        for at in 0..handle.len() {
            let mut altered = handle.clone().into_bytes();
            altered[at] = if altered[at] == b'A' { b'B' } else { b'A' };
            let altered = String::from_utf8(altered).expect("text");
            assert_eq!(seals.open(Purpose::State, of(&a, &["x"]), &altered), None, "{at}");
        }
        assert_eq!(seals.open(Purpose::State, of(&a, &["x"]), &format!("{handle}-TAMPERED")), None);
        assert_eq!(seals.open(Purpose::State, of(&a, &["x"]), ""), None);
        let late = seals.seal(Purpose::State, of(&a, &["x"]), b"inner", 0).expect("sealed");
        assert_eq!(seals.open(Purpose::State, of(&a, &["x"]), &late), None);
    }

    #[test]
    fn an_old_key_opens_what_the_new_one_no_longer_seals() {
        let a = Principal::for_tests("acme", "s1");
        let owner = Owner { principal: &a, scope: &[] };
        let old = Seals::new(&[key("one")]);
        let both = Seals::new(&[key("two"), key("one")]);
        let new = Seals::new(&[key("two")]);
        let handle = old.seal(Purpose::Task, owner, b"t", 60).expect("sealed");
        assert!(both.open(Purpose::Task, owner, &handle).is_some());
        assert!(new.open(Purpose::Task, owner, &handle).is_none());
        let handle = both.seal(Purpose::Task, owner, b"t", 60).expect("sealed");
        assert!(new.open(Purpose::Task, owner, &handle).is_some() && old.open(Purpose::Task, owner, &handle).is_none());
    }
}
