//! Which worker owns what: weighted rendezvous hashing over the workers that hold a lease.
//!
//! Every gateway computes the same owner from the same members, and a worker that comes or goes moves only its own share
//! (Thaler and Ravishankar, 1998; weights after Schindelhauer and Schomaker, 2005). Members are told apart by their name,
//! so that a worker that was restarted under its old name gets its old share.

use crate::ids::{PlatformName, TenantId};
use crate::model::{Isolation, Server, Transport};

/// One thing that a worker may own: a server's connection, or calls of a platform tool.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Thing {
    pub tenant: TenantId,
    /// What it is called among its tenant's.
    pub name: String,
    /// Two owners at once would do harm: it holds a state, or is a process.
    pub exclusive: bool,
}

impl Thing {
    /// The connection to a server that serves this session.
    pub fn connection(tenant: &TenantId, server: &Server, session: &str) -> Self {
        let own = server.isolation == Isolation::Session && !session.is_empty();
        let name = if own { format!("server {} of {session}", server.id) } else { format!("server {}", server.id) };
        let exclusive = own || matches!(server.transport, Transport::Command { .. });
        Self { tenant: tenant.clone(), name, exclusive }
    }

    /// Calls of a platform tool: they hold nothing, but reuse the connections of earlier ones.
    pub fn tool(tenant: &TenantId, tool: &PlatformName) -> Self {
        Self { tenant: tenant.clone(), name: format!("tool {tool}"), exclusive: false }
    }

    /// By which it is placed.
    pub fn key(&self) -> u128 {
        let mut hash = blake3::Hasher::new();
        hash.update(self.tenant.as_str().as_bytes());
        hash.update(&[0]);
        hash.update(self.name.as_bytes());
        u128::from_le_bytes(*hash.finalize().as_bytes().first_chunk().unwrap_or(&[0; 16]))
    }
}

/// A member's place in the hashing, computed once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seat {
    seed: u64,
    weight: f64,
}

impl Seat {
    pub fn new(name: &str, weight: u32) -> Self {
        let hash = blake3::hash(name.as_bytes());
        let seed = u64::from_le_bytes(*hash.as_bytes().first_chunk().unwrap_or(&[0; 8]));
        Self { seed, weight: f64::from(weight.max(1)) }
    }

    /// The higher, the better the claim of this member. The order is total: no two seeds are the same by accident.
    pub fn score(&self, key: u128) -> f64 {
        let [low, high] = [key as u64, (key >> 64) as u64];
        // 52 bits of the hash as a number between 0 and 1, both excluded.
        let hash = mix(low ^ mix(high ^ self.seed)) >> 12;
        let unit = (hash as f64 + 0.5) / (1u64 << 52) as f64;
        -self.weight / unit.ln()
    }
}

/// The finalizer of MurmurHash3 (Appleby, 2011, public domain): every bit of the input moves every bit of the output.
fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// The members in the order in which they would own `key`, best first.
pub fn rank<T>(key: u128, members: impl IntoIterator<Item = (Seat, T)>) -> Vec<T> {
    let mut scored: Vec<(f64, T)> = members.into_iter().map(|(seat, member)| (seat.score(key), member)).collect();
    scored.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    scored.into_iter().map(|(_, member)| member).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const KEYS: u64 = 20_000;

    fn owners(members: &[(&'static str, u32)]) -> Vec<&'static str> {
        let seats: Vec<(Seat, &'static str)> = members.iter().map(|(n, w)| (Seat::new(n, *w), *n)).collect();
        let key = |n: u64| Thing::tool(&tenant(), &PlatformName::parse(&format!("t{n}")).expect("a name")).key();
        (0..KEYS).filter_map(|n| rank(key(n), seats.iter().copied()).first().copied()).collect()
    }

    fn tenant() -> TenantId {
        TenantId::parse("acme").expect("an id")
    }

    #[test]
    fn shares_follow_weights_and_only_the_share_of_who_comes_or_goes_moves() {
        let before = owners(&[("a", 1), ("b", 1), ("c", 2)]);
        let mut count: BTreeMap<&str, u64> = BTreeMap::new();
        for owner in &before {
            *count.entry(owner).or_default() += 1;
        }
        for (name, expected) in [("a", KEYS / 4), ("b", KEYS / 4), ("c", KEYS / 2)] {
            let share = count.get(name).copied().unwrap_or(0);
            assert!(share.abs_diff(expected) < KEYS / 50, "{name}: {share} of {expected}");
        }
        let after = owners(&[("c", 2), ("a", 1)]);
        for (was, is) in before.iter().zip(&after) {
            assert!(*was == "b" || was == is, "{was} moved to {is} though it stayed");
        }
    }

    #[test]
    fn things_of_one_name_in_two_tenants_are_two() {
        let tool = PlatformName::parse("t").expect("a name");
        let other = TenantId::parse("other").expect("an id");
        assert_ne!(Thing::tool(&tenant(), &tool).key(), Thing::tool(&other, &tool).key());
    }
}
