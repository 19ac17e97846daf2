//! Every task has a name and a parent that joins it.
//!
//! `Tasks` is cloned into whoever spawns. It ends in three steps: while it drains, everything is served and who asks is told
//! to go elsewhere; when it closes, nobody is let in and the visits under way end; then everything else stops. So a visit has
//! until its end whatever it needs. After `drain` returned nothing of the program runs on.
//! A panic ends its own task, is counted and logged, and never the process.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::TcpStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cores::Cores;

/// The signals by which a process is asked to end: SIGTERM and SIGINT.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Resolves with the next of them.
    pub async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The parent of a program's tasks.
#[derive(Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    visits: TaskTracker,
    draining: CancellationToken,
    closing: CancellationToken,
    stop: CancellationToken,
    panics: Arc<AtomicU64>,
    cores: Cores,
}

impl Tasks {
    pub fn new() -> Self {
        Self::default()
    }

    /// With threads that connections are spread over.
    pub fn over(cores: Cores) -> Self {
        Self { cores, ..Self::default() }
    }

    /// Runs `work` until it ends; at drain it is waited for, not aborted.
    pub fn spawn<F>(&self, name: &'static str, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tracker.spawn(guarded(name, self.panics.clone(), work));
    }

    /// Serves somebody's connection, or lets connections in: everything else goes on until it has ended.
    pub fn spawn_visit<F>(&self, name: &'static str, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.visits.spawn(guarded(name, self.panics.clone(), work));
    }

    /// Serves a connection as a visit, on one of the threads that there are for it.
    pub fn serve<S, F>(&self, name: &'static str, stream: TcpStream, serve: S)
    where
        S: FnOnce(TcpStream) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(place) = self.cores.place() else { return self.spawn_visit(name, serve(stream)) };
        // A socket belongs to the runtime that waits for it.
        let stream = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => return tracing::warn!(%error, "a connection could not be handed over"),
        };
        let handle = place.handle.clone();
        let work = async move {
            let _place = place;
            match TcpStream::from_std(stream) {
                Ok(stream) => serve(stream).await,
                Err(error) => tracing::warn!(%error, "a connection could not be handed over"),
            }
        };
        self.visits.spawn_on(guarded(name, self.panics.clone(), work), &handle);
    }

    /// Runs `work` until it ends or the program stops, whichever comes first.
    pub fn spawn_until_stop<F>(&self, name: &'static str, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = self.stop.clone();
        self.tracker.spawn(guarded(name, self.panics.clone(), async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = work => {}
            }
        }));
    }

    /// Counts a panic that was caught elsewhere.
    pub fn count_panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Panics so far.
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Cancelled once no new work shall come: what there is goes on, and who asks is still answered.
    pub fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    /// Cancelled once nobody is let in any more: what waits for something that may never come ends now.
    pub fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    /// Cancelled once the program stops.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stop
    }

    /// Lets nobody in and waits until those who are served have left, at most `patience`. Says whether all of them did.
    pub async fn close(&self, patience: Duration) -> bool {
        self.draining.cancel();
        self.closing.cancel();
        self.visits.close();
        tokio::time::timeout(patience, self.visits.wait()).await.is_ok()
    }

    /// Closes, then tells every task to end and waits for them; at most `patience` for either. Says whether all ended.
    pub async fn drain(&self, patience: Duration) -> bool {
        let left = self.close(patience).await;
        self.stop.cancel();
        self.tracker.close();
        tokio::time::timeout(patience, self.tracker.wait()).await.is_ok() && left
    }
}

async fn guarded<F: Future<Output = ()>>(name: &'static str, panics: Arc<AtomicU64>, work: F) {
    if std::panic::AssertUnwindSafe(work).catch_unwind().await.is_err() {
        panics.fetch_add(1, Ordering::Relaxed);
        tracing::error!(task = name, "a task panicked; the others go on");
    }
}
