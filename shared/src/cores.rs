//! Threads that each serve some of the connections, with a runtime of their own.
//!
//! A call then stays on one thread from the first byte to the last: what wakes a task wakes no other thread. In a runtime
//! whose threads share all tasks, each call costs several hand-overs from thread to thread, and those cost more than the
//! rest of a call together.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

use crate::limits;

/// See the module. Empty, everything is served where it was accepted.
#[derive(Clone, Default)]
pub struct Cores {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    cores: Vec<Core>,
    stop: CancellationToken,
}

struct Core {
    handle: Handle,
    /// Connections here.
    serving: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

/// A place for a connection, given back when dropped.
pub(crate) struct Place {
    pub(crate) handle: Handle,
    serving: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.serving.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Cores {
    /// As many threads as the process may use processors at once.
    pub fn start() -> io::Result<Self> {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let mut inner = Inner::default();
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (handle, stop) = (runtime.handle().clone(), inner.stop.clone());
            let thread = std::thread::Builder::new()
                .name(format!("core {number}"))
                .spawn(move || runtime.block_on(tick(stop)))?;
            inner.cores.push(Core { handle, serving: Arc::default(), thread: Some(thread) });
        }
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Where the fewest connections are.
    pub(crate) fn place(&self) -> Option<Place> {
        let core = self.inner.cores.iter().min_by_key(|core| core.serving.load(Ordering::Relaxed))?;
        core.serving.fetch_add(1, Ordering::Relaxed);
        Some(Place { handle: core.handle.clone(), serving: core.serving.clone() })
    }
}

/// Waits for the end with a timer that is always the next one. Every call sets timers that it hardly ever needs; one that
/// would be the next to ring makes tokio wake the thread that sets it, by a system call.
async fn tick(stop: CancellationToken) {
    let waiting = async {
        loop {
            tokio::time::sleep(limits::CORE_TICK).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = waiting => {}
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.cancel();
        for core in &mut self.cores {
            let Some(thread) = core.thread.take() else { continue };
            // The last owner may be a task of one of them.
            if thread.thread().id() != std::thread::current().id() {
                thread.join().ok();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_spread_and_threads_end() {
        let cores = Cores::start().expect("threads");
        let count = cores.inner.cores.len();
        let places: Vec<Place> = (0..3 * count).map(|_| cores.place().expect("a place")).collect();
        let serving = |cores: &Cores| -> Vec<usize> {
            cores.inner.cores.iter().map(|core| core.serving.load(Ordering::Relaxed)).collect()
        };
        assert_eq!(serving(&cores), vec![3; count]);
        let ids: std::collections::BTreeSet<String> = places.iter().map(|p| format!("{:?}", p.handle.id())).collect();
        assert_eq!(ids.len(), count, "a runtime each");
        drop(places);
        assert_eq!(serving(&cores), vec![0; count]);
        drop(cores);
        assert!(Cores::default().place().is_none());
    }
}
