//! Open-loop load: calls begin when they are due, whether or not earlier ones have ended, and each is timed from when it was
//! due. A closed loop would wait with the system, and not see what its users see.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What came of one call.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// From the beginning of the load.
    pub due: Duration,
    pub ended: Duration,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// What came of a load.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub outcomes: Vec<Outcome>,
}

impl Report {
    pub fn count(&self) -> usize {
        self.outcomes.len()
    }

    pub fn failed(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.failure.is_some()).count()
    }

    /// Failures by their texts.
    pub fn failures(&self) -> BTreeMap<String, usize> {
        let mut out = BTreeMap::new();
        for failure in self.outcomes.iter().filter_map(|outcome| outcome.failure.clone()) {
            *out.entry(failure).or_default() += 1;
        }
        out
    }

    /// Those that were due within a span of the load.
    #[must_use]
    pub fn between(&self, from: Duration, to: Duration) -> Self {
        let due = |outcome: &&Outcome| outcome.due >= from && outcome.due < to;
        Self { outcomes: self.outcomes.iter().filter(due).cloned().collect() }
    }

    /// Microseconds from when each was due, of those that succeeded.
    pub fn latencies(&self) -> Histogram<u64> {
        // Three digits up to five minutes.
        let Ok(mut histogram) = Histogram::new_with_bounds(1, 300_000_000, 3) else { unreachable!("fixed bounds") };
        for outcome in self.outcomes.iter().filter(|outcome| outcome.failure.is_none()) {
            let took = outcome.ended.saturating_sub(outcome.due).as_micros();
            histogram.saturating_record(u64::try_from(took).unwrap_or(u64::MAX));
        }
        histogram
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let latencies = self.latencies();
        let ms = |quantile| latencies.value_at_quantile(quantile) as f64 / 1000.0;
        let (p50, p99, max) = (ms(0.5), ms(0.99), ms(1.0));
        write!(
            f,
            "{} calls, {} failed, p50 {p50:.1} ms, p99 {p99:.1} ms, max {max:.1} ms",
            self.count(),
            self.failed()
        )?;
        for (failure, count) in self.failures().iter().take(5) {
            write!(f, "\n    {count} x {failure}")?;
        }
        Ok(())
    }
}

/// A load that goes on until it is ended.
pub struct Load {
    began: Instant,
    stop: CancellationToken,
    report: Arc<Mutex<Report>>,
    running: JoinHandle<()>,
}

impl Drop for Load {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Load {
    /// Begins `per_second` calls a second, evenly. `call` gets the number of the call.
    pub fn start<F>(per_second: f64, call: impl Fn(u64) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let (began, stop, report) = (Instant::now(), CancellationToken::new(), Arc::new(Mutex::new(Report::default())));
        let (ends, collected) = (stop.clone(), report.clone());
        #[expect(clippy::disallowed_methods, reason = "aborted when the load is dropped")]
        let running = tokio::spawn(async move {
            let mut calls = JoinSet::new();
            for number in 0.. {
                let due = Duration::from_secs_f64(number as f64 / per_second);
                tokio::select! {
                    () = ends.cancelled() => break,
                    () = tokio::time::sleep_until(began + due) => {}
                }
                let (work, collected) = (call(number), collected.clone());
                calls.spawn(async move {
                    let failure = work.await.err();
                    let outcome = Outcome { due, ended: began.elapsed(), failure };
                    collected.lock().unwrap_or_else(PoisonError::into_inner).outcomes.push(outcome);
                });
                while calls.try_join_next().is_some() {}
            }
            while calls.join_next().await.is_some() {}
        });
        Self { began, stop, report, running }
    }

    /// How long it has been going on.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn so_far(&self) -> Report {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins no more, and waits for those that are under way.
    pub async fn end(mut self) -> Report {
        self.stop.cancel();
        (&mut self.running).await.ok();
        self.so_far()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_call_delays_no_other_and_is_timed_from_when_it_was_due() {
        let load = Load::start(50.0, |number| async move {
            tokio::time::sleep(Duration::from_millis(if number == 0 { 600 } else { 1 })).await;
            if number == 3 { Err("three".to_owned()) } else { Ok(()) }
        });
        tokio::time::sleep(Duration::from_millis(390)).await;
        let report = load.end().await;
        assert!((15..=21).contains(&report.count()), "{report}");
        assert_eq!((report.failed(), report.failures().get("three")), (1, Some(&1)));
        let latencies = report.latencies();
        assert!(latencies.value_at_quantile(0.5) < 300_000, "{report}");
        assert!(latencies.max() >= 600_000, "{report}");
    }
}
