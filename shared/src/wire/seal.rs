//! Who may tell a worker what to do: whoever holds the key, once, on this connection, now.
//!
//! A worker greets each connection with a number that nobody can guess. Every envelope carries a keyed hash (BLAKE3) over
//! that number, its own number on the connection, and all of its bytes; numbers only rise. So what was recorded elsewhere
//! or before is refused, and nothing in an envelope can be altered: tenant, target, arguments, worker, time.

use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;

use crate::config::NamedKey;
use crate::digest::{hex, random};

pub(super) const MAC: &str = "x-rollcall-mac";
pub(super) const KEY: &str = "x-rollcall-key";
pub(super) const NUMBER: &str = "x-rollcall-number";

/// The keys of the link, the newest first: it signs, and all verify.
#[derive(Clone)]
pub struct WireKeys(Vec<WireKey>);

#[derive(Clone)]
struct WireKey {
    id: String,
    key: [u8; 32],
}

impl WireKeys {
    /// Keys as they are configured; none is no link.
    pub fn new(configured: &[NamedKey]) -> Option<Self> {
        let derive = |key: &NamedKey| WireKey {
            id: key.id.clone(),
            key: blake3::derive_key("rollcall 2026 link: what gateways tell workers", key.secret.expose().as_bytes()),
        };
        (!configured.is_empty()).then(|| Self(configured.iter().map(derive).collect()))
    }

    /// A key that only this process has.
    pub fn of_this_process() -> Self {
        let mut key = [0; 32];
        for half in key.chunks_mut(16) {
            half.copy_from_slice(&random());
        }
        Self(vec![WireKey { id: "process".to_owned(), key }])
    }

    /// The headers that go with an envelope.
    pub(super) fn sign(&self, greeting: &str, number: u64, body: &[u8]) -> Option<[(&'static str, String); 3]> {
        let key = self.0.first()?;
        let mac = mac(&key.key, greeting, number, body);
        Some([(KEY, key.id.clone()), (NUMBER, number.to_string()), (MAC, mac.to_hex().to_string())])
    }
}

fn mac(key: &[u8; 32], greeting: &str, number: u64, body: &[u8]) -> blake3::Hash {
    let mut hash = blake3::Hasher::new_keyed(key);
    hash.update(greeting.as_bytes());
    hash.update(&number.to_be_bytes());
    hash.update(body);
    hash.finalize()
}

/// What a worker remembers of one connection.
pub(super) struct Greeted {
    pub(super) greeting: String,
    last: AtomicU64,
}

impl Greeted {
    pub(super) fn new() -> Self {
        Self { greeting: hex(&random()), last: AtomicU64::new(0) }
    }

    /// Whether it may be worth reading at all.
    pub(super) fn is_signed(headers: &HeaderMap) -> bool {
        [KEY, NUMBER, MAC].iter().all(|name| headers.contains_key(*name))
    }

    /// Whether these bytes were meant for this connection by somebody with a key, for the first time.
    pub(super) fn verify(&self, keys: &WireKeys, headers: &HeaderMap, body: &[u8]) -> bool {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let parsed = || {
            let key = keys.0.iter().find(|key| Some(key.id.as_str()) == text(KEY))?;
            let number: u64 = text(NUMBER)?.parse().ok()?;
            Some((key, number, blake3::Hash::from_hex(text(MAC)?).ok()?))
        };
        let Some((key, number, given)) = parsed() else { return false };
        // blake3::Hash compares in constant time.
        given == mac(&key.key, &self.greeting, number, body) && self.last.fetch_max(number, Ordering::AcqRel) < number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    fn keys(secrets: &[&str]) -> WireKeys {
        let key = |secret: &&str| NamedKey { id: (*secret).to_owned(), secret: Secret::new(*secret) };
        WireKeys::new(&secrets.iter().map(key).collect::<Vec<_>>()).expect("keys")
    }

    fn headers(signed: Option<[(&'static str, String); 3]>) -> HeaderMap {
        signed
            .into_iter()
            .flatten()
            .map(|(n, v)| (http::HeaderName::from_static(n), v.parse().expect("a value")))
            .collect()
    }

    #[test]
    fn an_envelope_is_good_once_on_its_connection_and_unaltered() {
        let (new, old, other) = (keys(&["new", "old"]), keys(&["old"]), keys(&["other"]));
        let here = Greeted::new();
        let signed = |keys: &WireKeys, number| headers(keys.sign(&here.greeting, number, b"do"));
        assert!(here.verify(&new, &signed(&new, 1), b"do"));
        assert!(!here.verify(&new, &signed(&new, 1), b"do"), "replayed");
        assert!(here.verify(&new, &signed(&old, 2), b"do"), "the key before");
        assert!(!here.verify(&old, &signed(&new, 3), b"do"), "a key that is not known yet");
        assert!(!here.verify(&new, &signed(&other, 4), b"do"));
        assert!(!here.verify(&new, &signed(&new, 5), b"du"), "altered");
        assert!(!here.verify(&new, &HeaderMap::new(), b"do"), "unsigned");
        assert!(!Greeted::new().verify(&new, &signed(&new, 6), b"do"), "recorded on another connection");
        let mut renumbered = signed(&new, 7);
        renumbered.insert(NUMBER, "8".parse().expect("a value"));
        assert!(!here.verify(&new, &renumbered, b"do"));
        assert!(here.verify(&new, &signed(&new, 9), b"do"), "what was refused uses no number up");
    }
}
