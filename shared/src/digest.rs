//! SHA-256 digests in lower-case hex, and unguessable ids.
//!
//! Names and digests that leave the process are SHA-256 (FIPS 180-4), so that anyone can recompute them.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// A SHA-256 digest. Printed as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of one byte string.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of several byte strings, each preceded by its length, so that no two lists of parts meet.
    pub fn of_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first `digits` hex digits, at most 64.
    pub fn hex(&self, digits: usize) -> String {
        hex(&self.0).chars().take(digits).collect()
    }

    /// Reads 64 hex digits back.
    pub fn parse(text: &str) -> Option<Self> {
        let mut out = [0u8; 32];
        if text.len() != 64 {
            return None;
        }
        for (slot, pair) in out.iter_mut().zip(text.as_bytes().chunks(2)) {
            *slot = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(out))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex(12))
    }
}

/// Lower-case hex of any bytes.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    bytes.iter().flat_map(|b| [b >> 4, b & 15]).map(|n| DIGITS.get(usize::from(n)).copied().unwrap_or('0')).collect()
}

/// 16 bytes that nobody can guess: from a generator of this thread that the operating system's feeds, for a system call
/// costs more than a call's whole authorization.
pub fn random() -> [u8; 16] {
    rand::random()
}

/// 32 hex digits that nobody can guess.
pub fn unguessable() -> String {
    hex(&random())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_plain_sha256() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; // FIPS 180-2, appendix B.1
        assert_eq!(Digest::of(b"abc").to_string(), expected);
        assert_eq!(Digest::parse(expected), Some(Digest::of(b"abc")));
        assert_eq!(Digest::of(b"abc").hex(4), "ba78");
    }

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(Digest::of_parts([&b"ab"[..], b"c"]), Digest::of_parts([&b"a"[..], b"bc"]));
    }
}
