//! What this run of the worker may touch: exclusive connections by claims with epochs, for as long as its lease holds.
//!
//! The lease is renewed by a beat. Some time before the store could let go of it, by this machine's own clock, the worker
//! stops touching what is exclusive: it fences itself, ends those connections, and begins anew as another run. Whoever
//! takes a connection over first ends what the holder before left at the upstream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use dashmap::DashMap;
use rollcall_shared::limits;
use rollcall_shared::placement::Thing;
use rollcall_shared::store::StoreError;
use rollcall_shared::store::membership::{Claim, Member, Membership};
use rollcall_shared::wire::{Failure, Reason};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::worker::Shared;

/// See the module.
pub(crate) struct Ownership {
    /// None where this is the only worker there is.
    among: Option<Arc<dyn Membership>>,
    me: ArcSwap<Member>,
    began: Instant,
    /// Milliseconds since `began` until which exclusive things may be touched.
    acts_until_ms: AtomicU64,
    draining: AtomicBool,
    /// Epochs of what is held, by what.
    held: DashMap<Thing, u64>,
    /// One claim of a thing at a time.
    claiming: [Mutex<()>; 64],
}

/// What came of a claim, seen by a worker.
enum Claimed {
    Ours {
        epoch: u64,
        trace: Option<String>,
    },
    /// Its holder drains.
    Leaving,
    Elsewhere(u64),
}

fn fresh_incarnation() -> u64 {
    // Not zero, which stands for nobody.
    rollcall_shared::digest::random().first_chunk().map_or(1, |half| u64::from_be_bytes(*half) | 1)
}

impl Ownership {
    pub(crate) fn alone() -> Self {
        let member = Member {
            incarnation: fresh_incarnation(),
            name: "standalone".to_owned(),
            address: String::new(),
            weight: 1,
            draining: false,
            wire: rollcall_shared::wire::VERSIONS,
        };
        Self::new(None, member, u64::MAX)
    }

    /// One of several; `member` is how gateways find it.
    pub(crate) fn among(membership: Arc<dyn Membership>, member: Member) -> Self {
        Self::new(Some(membership), Member { incarnation: fresh_incarnation(), ..member }, 0)
    }

    fn new(among: Option<Arc<dyn Membership>>, me: Member, acts_until_ms: u64) -> Self {
        Self {
            among,
            me: ArcSwap::from_pointee(me),
            began: Instant::now(),
            acts_until_ms: AtomicU64::new(acts_until_ms),
            draining: AtomicBool::new(false),
            held: DashMap::new(),
            claiming: std::array::from_fn(|_| Mutex::new(())),
        }
    }

    pub(crate) fn incarnation(&self) -> u64 {
        self.me.load().incarnation
    }

    fn ms(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether exclusive things may be touched now.
    pub(crate) fn may_act(&self) -> bool {
        self.ms(Instant::now()) < self.acts_until_ms.load(Ordering::Acquire)
    }

    /// Makes sure that an exclusive thing is ours. Gives what the holder before left at the upstream, where it was not.
    pub(crate) async fn hold(&self, thing: &Thing) -> Result<Option<String>, Failure> {
        let Some(membership) = &self.among else { return Ok(None) };
        if !self.may_act() {
            return Err(Failure::unsent(Reason::NoWorker, "this worker holds no lease").retry_after(1));
        }
        if self.held.contains_key(thing) {
            return Ok(None);
        }
        let began = Instant::now();
        loop {
            // The turn is given away while it waits: others are not to wait for this one.
            match self.try_to_hold(&**membership, thing).await? {
                Claimed::Ours { trace, .. } => return Ok(trace),
                // It comes as soon as nobody uses it there.
                Claimed::Leaving if began.elapsed() < limits::MOVE_WAIT => tokio::time::sleep(limits::MOVE_LOOK).await,
                Claimed::Leaving => {
                    return Err(Failure::unsent(Reason::Overloaded, "the connection is still moving").retry_after(5));
                }
                Claimed::Elsewhere(by) => {
                    let elsewhere = Failure::unsent(Reason::Elsewhere, "another worker holds this connection");
                    return Err(Failure { elsewhere: Some(by), ..elsewhere });
                }
            }
        }
    }

    async fn turn(&self, thing: &Thing) -> Option<MutexGuard<'_, ()>> {
        let turn = self.claiming.get(usize::try_from(thing.key() % 64).unwrap_or(0))?;
        Some(turn.lock().await)
    }

    async fn try_to_hold(&self, membership: &dyn Membership, thing: &Thing) -> Result<Claimed, Failure> {
        let _one = self.turn(thing).await;
        if let Some(epoch) = self.held.get(thing).map(|epoch| *epoch) {
            return Ok(Claimed::Ours { epoch, trace: None });
        }
        if self.draining.load(Ordering::Acquire) {
            return Err(Failure::unsent(Reason::NoWorker, "this worker is draining").retry_after(1));
        }
        let failed = |e: StoreError| Failure::unsent(Reason::NoWorker, e.to_string()).retry_after(1);
        let me = self.incarnation();
        let claimed = self.claim(membership, thing, me).await.map_err(failed)?;
        if let Claimed::Ours { epoch, .. } = &claimed {
            self.held.insert(thing.clone(), *epoch);
            // The lease may have ended meanwhile: what an earlier run claimed is nobody's.
            if self.incarnation() != me || !self.may_act() {
                self.held.remove(thing);
                return Err(Failure::unsent(Reason::NoWorker, "this worker's lease has just ended").retry_after(1));
            }
        }
        Ok(claimed)
    }

    /// Makes sure that the store still says so of all that is held: one that failed over may have lost a claim, and another
    /// worker taken it since.
    ///
    /// It also keeps the records from being forgotten. `false`: the store did not answer, and it must be tried again.
    async fn verify(&self, shared: &Arc<Shared>) -> bool {
        let Some(membership) = &self.among else { return true };
        for thing in self.all() {
            let _one = self.turn(&thing).await;
            if !self.holds(&thing) {
                continue;
            }
            let me = self.incarnation();
            match membership.claim(&thing.tenant, &thing.name, me, None).await {
                Ok(Claim::Ours { epoch, .. }) => match self.held.get_mut(&thing) {
                    Some(mut held) => *held = epoch,
                    // It was given back meanwhile.
                    None => drop(membership.release(&thing.tenant, &thing.name, (me, epoch)).await),
                },
                Ok(Claim::Held { .. }) => {
                    tracing::error!(thing = thing.name, "another worker holds what this one held; it lets go");
                    self.held.remove(&thing);
                    shared.pool.fence(shared, |slot| *slot == thing);
                }
                Err(_) => return false,
            }
        }
        true
    }

    /// Verifies when the members change or the store was connected to anew, and every now and then.
    pub(crate) async fn verify_forever(&self, shared: &Arc<Shared>) {
        let Some(membership) = &self.among else { return };
        let mut changed = membership.changed();
        loop {
            let done = self.verify(shared).await;
            let pause = if done { limits::CLAIM_LOOK } else { limits::STORE_RECONNECT_LONGEST };
            tokio::time::timeout(pause, changed.changed()).await.ok();
        }
    }

    /// Gives back what has no connection any more, or never got one.
    pub(crate) async fn give_back_unused(&self, is_used: impl Fn(&Thing) -> bool) {
        for thing in self.all().into_iter().filter(|thing| !is_used(thing)) {
            let _one = self.turn(&thing).await;
            if !is_used(&thing) {
                let epoch = self.lets_go(&thing);
                self.gives_back(&thing, epoch).await;
            }
        }
    }

    async fn claim(&self, membership: &dyn Membership, thing: &Thing, me: u64) -> Result<Claimed, StoreError> {
        let mut claimed = membership.claim(&thing.tenant, &thing.name, me, None).await?;
        if let Claim::Held { by } = claimed {
            match membership.members().await?.0.get(&by) {
                Some(holder) if holder.draining => return Ok(Claimed::Leaving),
                Some(_) => return Ok(Claimed::Elsewhere(by)),
                None => claimed = membership.claim(&thing.tenant, &thing.name, me, Some(by)).await?,
            }
        }
        Ok(match claimed {
            Claim::Ours { epoch, trace } => Claimed::Ours { epoch, trace },
            Claim::Held { by } => Claimed::Elsewhere(by),
        })
    }

    /// Notes what a successor must end at the upstream.
    pub(crate) async fn note(&self, thing: &Thing, trace: &str) {
        let (Some(membership), Some(epoch)) = (&self.among, self.held.get(thing).map(|epoch| *epoch)) else { return };
        if let Err(error) = membership.note(&thing.tenant, &thing.name, (self.incarnation(), epoch), trace).await {
            tracing::warn!(%error, "what a successor would have to end could not be noted");
        }
    }

    /// Whether a thing is ours now.
    pub(crate) fn holds(&self, thing: &Thing) -> bool {
        self.among.is_none() || self.held.contains_key(thing)
    }

    /// All that is ours.
    pub(crate) fn all(&self) -> Vec<Thing> {
        self.held.iter().map(|entry| entry.key().clone()).collect()
    }

    /// Takes no new call for a thing; who has one goes on. It is given back with the epoch once its connection is closed.
    pub(crate) fn lets_go(&self, thing: &Thing) -> Option<u64> {
        self.held.remove(thing).map(|(_, epoch)| epoch)
    }

    /// Gives a thing back whose connection is closed.
    pub(crate) async fn gives_back(&self, thing: &Thing, epoch: Option<u64>) {
        let (Some(membership), Some(epoch)) = (&self.among, epoch) else { return };
        let claim = (self.incarnation(), epoch);
        membership.note(&thing.tenant, &thing.name, claim, "").await.ok();
        if let Err(error) = membership.release(&thing.tenant, &thing.name, claim).await {
            tracing::debug!(%error, "a connection could not be given back; its claim ends with the lease");
        }
    }

    /// Keeps the lease until the worker has left.
    pub(crate) async fn beat_forever(&self, shared: &Arc<Shared>) {
        let Some(membership) = &self.among else { return };
        let mut fenced = false;
        // The run that was seen holding a lease.
        let mut leased = 0;
        loop {
            let sent = Instant::now();
            let me = self.me.load_full();
            match membership.beat(&me, limits::WORKER_LEASE, leased == me.incarnation).await {
                Ok(true) => {
                    leased = me.incarnation;
                    let until = sent + limits::WORKER_LEASE.saturating_sub(limits::WORKER_FENCE_MARGIN);
                    self.acts_until_ms.store(self.ms(until), Ordering::Release);
                    fenced = false;
                }
                Ok(false) => {
                    tracing::error!("the lease has ended; this worker begins anew");
                    self.acts_until_ms.store(0, Ordering::Release);
                    self.fence(shared);
                    self.me.store(Arc::new(Member { incarnation: fresh_incarnation(), ..Member::clone(&me) }));
                    continue;
                }
                Err(error) => tracing::warn!(%error, "the lease could not be renewed"),
            }
            if !self.may_act() && !fenced {
                fenced = true;
                tracing::error!("the lease may have ended; exclusive connections are closed");
                self.fence(shared);
            }
            let until_fence = self.acts_until_ms.load(Ordering::Acquire).saturating_sub(self.ms(Instant::now()));
            let pause =
                if fenced { limits::STORE_BEAT } else { limits::WORKER_BEAT.min(Duration::from_millis(until_fence)) };
            tokio::time::sleep(pause.max(Duration::from_millis(20))).await;
        }
    }

    fn fence(&self, shared: &Arc<Shared>) {
        self.held.clear();
        shared.pool.fence(shared, |_| true);
    }

    /// Takes no new placements from here on, and says so.
    pub(crate) async fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        let Some(membership) = &self.among else { return };
        let me = Arc::new(Member { draining: true, ..Member::clone(&self.me.load()) });
        self.me.store(me.clone());
        if let Err(error) = membership.beat(&me, limits::WORKER_LEASE, false).await {
            tracing::warn!(%error, "gateways could not be told of the drain");
        }
    }

    pub(crate) async fn leave(&self) {
        let Some(membership) = &self.among else { return };
        if let Err(error) = membership.leave(self.incarnation()).await {
            tracing::warn!(%error, "the lease could not be given back; it ends by itself");
        }
    }
}

#[cfg(test)]
mod tests;
