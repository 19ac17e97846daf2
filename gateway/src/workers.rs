//! The way to many workers: who owns what, computed alike by every gateway, and one hop to it.
//!
//! The members are the store's; when it does not answer, those that were known stay. A worker that cannot be reached is
//! asked last for a moment. A call goes to another worker only if it surely was not sent, or if the answer says that
//! another one holds what only one may hold.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use rollcall_shared::limits;
use rollcall_shared::placement::{Seat, Thing, rank};
use rollcall_shared::store::membership::{Member, Membership};
use rollcall_shared::telemetry::{Metrics, label};
use rollcall_shared::wire::{
    Dialer, Envelope, Failure, Final, Interim, Reason, Route, Unsent, WorkerClient, WorkerLink,
};
use tokio::sync::watch;
use tokio::time::Instant;

/// See the module.
pub struct Workers {
    inner: Arc<Inner>,
}

struct Inner {
    dialer: Dialer,
    view: ArcSwap<View>,
    moved: watch::Sender<u64>,
    /// Who holds what only one may hold, where that is not whom the hashing names.
    held: moka::sync::Cache<u128, u64>,
    began: Instant,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct View {
    workers: BTreeMap<u64, Arc<Worker>>,
}

struct Worker {
    member: Member,
    seat: Seat,
    client: Arc<WorkerClient>,
    /// Milliseconds since the beginning until which it is asked last.
    suspect_until_ms: AtomicU64,
}

impl Workers {
    /// Follows the members until the program drains.
    pub fn new(membership: Arc<dyn Membership>, dialer: Dialer, metrics: Arc<Metrics>) -> Self {
        let tasks = dialer.tasks.clone();
        let inner = Arc::new(Inner {
            dialer,
            view: ArcSwap::default(),
            moved: watch::Sender::new(0),
            held: moka::sync::Cache::builder()
                .max_capacity(limits::SESSIONS_AT_HAND)
                .time_to_idle(limits::SESSION_IDLE)
                .build(),
            began: Instant::now(),
            metrics,
        });
        let following = inner.clone();
        // Also while this node drains: its calls in flight may still need to find somebody.
        tasks.spawn_until_stop("workers", async move { following.follow(&*membership).await });
        Self { inner }
    }
}

impl Inner {
    async fn follow(&self, membership: &dyn Membership) {
        let mut changed = membership.changed();
        loop {
            match membership.members().await {
                Ok(members) => self.meet(members.0),
                // Those that were known stay.
                Err(error) => tracing::debug!(%error, "nobody says who the workers are"),
            }
            tokio::time::timeout(limits::MEMBERS_LOOK, changed.changed()).await.ok();
        }
    }

    fn meet(&self, members: BTreeMap<u64, Member>) {
        let before = self.view.load();
        if members.is_empty() && !before.workers.is_empty() {
            tracing::warn!("no worker holds a lease; those that were known are asked");
            return;
        }
        if before.workers.len() == members.len()
            && members.iter().all(|(run, member)| before.workers.get(run).is_some_and(|w| w.member == *member))
        {
            return;
        }
        let workers = members.into_iter().map(|(run, member)| {
            let known = before.workers.get(&run).filter(|known| known.member.address == member.address);
            let client = known.map_or_else(
                || WorkerClient::new(self.dialer.clone(), member.address.clone(), run),
                |known| known.client.clone(),
            );
            let seat = Seat::new(&member.name, member.weight);
            (run, Arc::new(Worker { member, seat, client, suspect_until_ms: AtomicU64::new(0) }))
        });
        let view = View { workers: workers.collect() };
        tracing::info!(workers = view.workers.len(), "the workers changed");
        self.view.store(Arc::new(view));
        self.moved.send_modify(|n| *n += 1);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The workers in the order in which they are asked for a thing.
    fn candidates(&self, thing: &Thing) -> Vec<Arc<Worker>> {
        let (key, now) = (thing.key(), self.now_ms());
        let view = self.view.load();
        let placing = view.workers.values().filter(|w| !w.member.draining);
        let mut ranked = rank(key, placing.map(|w| (w.seat, w.clone())));
        ranked.sort_by_key(|worker| worker.suspect_until_ms.load(Ordering::Relaxed) > now);
        if thing.exclusive
            && let Some(holder) = self.held.get(&key).and_then(|run| view.workers.get(&run))
        {
            // It is told elsewhere where it has moved to.
            ranked.retain(|worker| worker.member.incarnation != holder.member.incarnation);
            ranked.insert(0, holder.clone());
        }
        ranked
    }

    async fn wait_for_workers(&self) {
        let mut moved = self.moved.subscribe();
        let waiting = async {
            while self.view.load().workers.values().all(|worker| worker.member.draining) {
                if moved.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(limits::WORKER_WAIT, waiting).await.ok();
    }

    async fn to_owner(&self, thing: Thing, mut envelope: Envelope, interim: Interim) -> Final {
        let (began, given) = (Instant::now(), envelope.head.deadline_ms);
        self.wait_for_workers().await;
        let mut last = Failure::unsent(Reason::NoWorker, "there is no worker").retry_after(1);
        let mut hops = 0;
        let mut candidates = self.candidates(&thing).into_iter();
        let mut next = candidates.next();
        while let Some(worker) = next.take().filter(|_| hops < limits::WORKERS_TRIED) {
            hops += 1;
            // What was spent on the way is not the worker's any more.
            let spent = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            envelope.head.deadline_ms = given.saturating_sub(spent);
            if envelope.head.deadline_ms == 0 {
                return Final::Failed(Failure::unsent(Reason::TimedOut, "no worker took the call in time"));
            }
            match worker.client.send(&envelope, &interim).await {
                Ok(Final::Failed(failure)) if failure.reason == Reason::Elsewhere => {
                    let holder = failure.elsewhere.and_then(|run| self.view.load().workers.get(&run).cloned());
                    if let Some(run) = failure.elsewhere {
                        self.held.insert(thing.key(), run);
                    }
                    last = Failure::unsent(Reason::NoWorker, failure.detail).retry_after(1);
                    let here = worker.member.incarnation;
                    next = holder.filter(|holder| holder.member.incarnation != here && hops == 1);
                }
                // Where another may own it, a worker that ends or lost its lease says so before it sends anything.
                Ok(Final::Failed(failure)) if failure.reason == Reason::NoWorker && !failure.may_have_run => {
                    last = failure;
                    next = candidates.next();
                }
                Ok(end) => {
                    self.metrics.worker_hops.record(hops as u64, &[]);
                    return end;
                }
                Err(Unsent(failure)) => {
                    self.suspect(&worker, &failure);
                    last = failure;
                    next = candidates.next();
                }
            }
        }
        Final::Failed(last)
    }

    fn suspect(&self, worker: &Worker, failure: &Failure) {
        let until = self.now_ms() + u64::try_from(limits::SUSPECT_FOR.as_millis()).unwrap_or(0);
        worker.suspect_until_ms.store(until, Ordering::Relaxed);
        self.metrics.worker_failures.add(1, &[label("reason", failure.reason.label())]);
        tracing::warn!(worker = worker.member.name, cause = failure.detail, "a worker cannot be reached");
    }

    async fn to_run(&self, run: u64, envelope: Envelope, interim: Interim) -> Final {
        let Some(worker) = self.view.load().workers.get(&run).cloned() else {
            return Final::Failed(Failure::unsent(Reason::NoSuchCall, "the worker of this call is gone"));
        };
        match worker.client.send(&envelope, &interim).await {
            Ok(end) => end,
            Err(Unsent(failure)) => {
                self.suspect(&worker, &failure);
                Final::Failed(failure)
            }
        }
    }

    async fn to_everyone(&self, envelope: Envelope) -> Final {
        let workers: Vec<Arc<Worker>> = self.view.load().workers.values().cloned().collect();
        let quiet = Interim::none();
        let told = join_all(workers.iter().map(|worker| worker.client.send(&envelope, &quiet))).await;
        let answered = told.into_iter().find_map(Result::ok);
        answered.unwrap_or_else(|| Final::Failed(Failure::unsent(Reason::NoWorker, "there is no worker")))
    }
}

impl WorkerLink for Workers {
    fn send(&self, route: Route, envelope: Envelope, interim: Interim) -> BoxFuture<'static, Final> {
        let inner = self.inner.clone();
        async move {
            match route {
                Route::Owner(thing) => inner.to_owner(thing, envelope, interim).await,
                Route::Run(run) => inner.to_run(run, envelope, interim).await,
                Route::Everyone => inner.to_everyone(envelope).await,
                Route::Here => Final::Failed(Failure::unsent(Reason::NoWorker, "a gateway is no worker")),
            }
        }
        .boxed()
    }
}
