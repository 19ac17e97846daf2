//! Who is there: workers by leases, who holds what by claims with epochs, locks; and lossy counters.
//!
//! A lease belongs to one run of a worker, its incarnation. One that ended is not renewed: that run can never come back, so
//! a claim of it may be replaced for good once it has left the view.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use super::StoreError;
use super::versions::lock;
use crate::digest::unguessable;
use crate::ids::TenantId;

/// One run of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub incarnation: u64,
    /// What operators call it.
    pub name: String,
    /// `host:port` of its link.
    pub address: String,
    /// Its share of the placements, in relation to others'.
    pub weight: u32,
    /// It takes no new placements.
    pub draining: bool,
    /// The oldest and the newest version of the link that it speaks.
    pub wire: (u16, u16),
}

/// The workers that hold a lease, by incarnation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members(pub BTreeMap<u64, Member>);

/// What came of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// It is ours. `trace` is what the holder before noted, for whoever must end what that left behind.
    Ours {
        epoch: u64,
        trace: Option<String>,
    },
    Held {
        by: u64,
    },
}

/// Leases, claims and locks.
pub trait Membership: Send + Sync {
    /// Begins a lease, or renews one that was begun. `false`: it had ended, or nobody knows of it any more; either way this
    /// run may not come back.
    fn beat<'a>(&'a self, member: &'a Member, lease: Duration, renews: bool)
    -> BoxFuture<'a, Result<bool, StoreError>>;
    fn leave(&self, incarnation: u64) -> BoxFuture<'_, Result<(), StoreError>>;
    fn members(&self) -> BoxFuture<'_, Result<Members, StoreError>>;
    /// Ticks when the members may have changed.
    fn changed(&self) -> watch::Receiver<u64>;
    /// Takes an exclusive thing, where it is nobody's, ours, or that of `gone`, who has left the members.
    fn claim<'a>(
        &'a self,
        tenant: &'a TenantId,
        thing: &'a str,
        who: u64,
        gone: Option<u64>,
    ) -> BoxFuture<'a, Result<Claim, StoreError>>;
    /// Leaves a trace for whoever takes it next. `false`: it is not ours any more.
    fn note<'a>(
        &'a self,
        tenant: &'a TenantId,
        thing: &'a str,
        claim: (u64, u64),
        trace: &'a str,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;
    /// Gives it back; the epoch goes on counting.
    fn release<'a>(
        &'a self,
        tenant: &'a TenantId,
        thing: &'a str,
        claim: (u64, u64),
    ) -> BoxFuture<'a, Result<bool, StoreError>>;
    /// A token, unless somebody else holds the lock; it ends by itself.
    fn lock<'a>(
        &'a self,
        tenant: &'a TenantId,
        name: &'a str,
        lasts: Duration,
    ) -> BoxFuture<'a, Result<Option<String>, StoreError>>;
    fn unlock<'a>(
        &'a self,
        tenant: &'a TenantId,
        name: &'a str,
        token: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>>;
}

/// Counters that may forget: limits, not accounts.
pub trait Counters: Send + Sync {
    /// Adds to a counter that is forgotten `window` after its first use. Gives what it is now.
    fn add<'a>(
        &'a self,
        tenant: &'a TenantId,
        name: &'a str,
        amount: u64,
        window: Duration,
    ) -> BoxFuture<'a, Result<u64, StoreError>>;
}

#[derive(Default)]
struct Record {
    by: Option<u64>,
    epoch: u64,
    trace: Option<String>,
}

#[derive(Default)]
struct State {
    members: BTreeMap<u64, (Member, Instant)>,
    gone: std::collections::BTreeSet<u64>,
    records: HashMap<(TenantId, String), Record>,
    locks: HashMap<(TenantId, String), (String, Instant)>,
    counters: HashMap<(TenantId, String), (u64, Instant)>,
}

/// Of one process, beside the embedded stores.
pub struct LocalMembership {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

impl Default for LocalMembership {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: watch::Sender::new(0) }
    }
}

impl LocalMembership {
    fn with<T: Send + 'static>(&self, work: impl FnOnce(&mut State) -> T) -> BoxFuture<'static, Result<T, StoreError>> {
        let mut state = lock(&self.state);
        let now = Instant::now();
        let before = state.members.len();
        let State { members, gone, .. } = &mut *state;
        members.retain(|incarnation, (_, until)| {
            let lives = *until > now;
            if !lives {
                gone.insert(*incarnation);
            }
            lives
        });
        let done = work(&mut state);
        if state.members.len() != before {
            self.changed.send_modify(|n| *n += 1);
        }
        async move { Ok(done) }.boxed()
    }
}

impl Membership for LocalMembership {
    fn beat<'a>(
        &'a self,
        member: &'a Member,
        lease: Duration,
        renews: bool,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        let renewed = self.with(|state| {
            if renews && !state.members.contains_key(&member.incarnation) {
                state.gone.insert(member.incarnation);
            }
            if state.gone.contains(&member.incarnation) {
                return (false, false);
            }
            let entry = (member.clone(), Instant::now() + lease);
            let before = state.members.insert(member.incarnation, entry);
            (true, before.is_some_and(|(before, _)| before != *member))
        });
        async move {
            let (renewed, altered) = renewed.await?;
            if altered {
                self.changed.send_modify(|n| *n += 1);
            }
            Ok(renewed)
        }
        .boxed()
    }

    fn leave(&self, incarnation: u64) -> BoxFuture<'_, Result<(), StoreError>> {
        self.with(|state| {
            state.members.remove(&incarnation);
            state.gone.insert(incarnation);
        })
    }

    fn members(&self) -> BoxFuture<'_, Result<Members, StoreError>> {
        self.with(|state| Members(state.members.iter().map(|(id, (member, _))| (*id, member.clone())).collect()))
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn claim<'a>(
        &'a self,
        tenant: &'a TenantId,
        thing: &'a str,
        who: u64,
        gone: Option<u64>,
    ) -> BoxFuture<'a, Result<Claim, StoreError>> {
        self.with(|state| {
            let record = state.records.entry((tenant.clone(), thing.to_owned())).or_default();
            match record.by {
                Some(by) if by != who && Some(by) != gone => Claim::Held { by },
                before => {
                    if before != Some(who) {
                        record.epoch += 1;
                    }
                    record.by = Some(who);
                    Claim::Ours { epoch: record.epoch, trace: record.trace.clone() }
                }
            }
        })
    }

    fn note<'a>(
        &'a self,
        tenant: &'a TenantId,
        thing: &'a str,
        claim: (u64, u64),
        trace: &'a str,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.with(|state| {
            let record = state.records.get_mut(&(tenant.clone(), thing.to_owned()));
            let own = record.filter(|record| (record.by, record.epoch) == (Some(claim.0), claim.1));
            own.map(|record| record.trace = Some(trace.to_owned()).filter(|trace| !trace.is_empty())).is_some()
        })
    }

    fn release<'a>(
        &'a self,
        tenant: &'a TenantId,
        thing: &'a str,
        claim: (u64, u64),
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.with(|state| {
            let record = state.records.get_mut(&(tenant.clone(), thing.to_owned()));
            let own = record.filter(|record| (record.by, record.epoch) == (Some(claim.0), claim.1));
            own.map(|record| record.by = None).is_some()
        })
    }

    fn lock<'a>(
        &'a self,
        tenant: &'a TenantId,
        name: &'a str,
        lasts: Duration,
    ) -> BoxFuture<'a, Result<Option<String>, StoreError>> {
        self.with(|state| {
            let now = Instant::now();
            state.locks.retain(|_, (_, until)| *until > now);
            let key = (tenant.clone(), name.to_owned());
            if state.locks.contains_key(&key) {
                return None;
            }
            let token = unguessable();
            state.locks.insert(key, (token.clone(), now + lasts));
            Some(token)
        })
    }

    fn unlock<'a>(
        &'a self,
        tenant: &'a TenantId,
        name: &'a str,
        token: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.with(|state| {
            let key = (tenant.clone(), name.to_owned());
            if state.locks.get(&key).is_some_and(|(held, _)| held == token) {
                state.locks.remove(&key);
            }
        })
    }
}

impl Counters for LocalMembership {
    fn add<'a>(
        &'a self,
        tenant: &'a TenantId,
        name: &'a str,
        amount: u64,
        window: Duration,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.with(|state| {
            let now = Instant::now();
            state.counters.retain(|_, (_, until)| *until > now);
            let (count, _) = state.counters.entry((tenant.clone(), name.to_owned())).or_insert((0, now + window));
            *count += amount;
            *count
        })
    }
}
