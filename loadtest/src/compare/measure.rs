//! One round: requests one after another on each of some connections, for a time.

use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::Instant;

use crate::lane::{Lane, Shot};
use crate::processor;

/// What came of a round.
#[derive(Debug, Clone)]
pub(super) struct Round {
    pub(super) requests: u64,
    pub(super) failures: u64,
    pub(super) took: Duration,
    /// Nanoseconds.
    pub(super) latencies: Histogram<u64>,
    /// Of the processes that are measured.
    pub(super) processor: Duration,
}

impl Round {
    pub(super) fn rate(&self) -> f64 {
        self.requests as f64 / self.took.as_secs_f64()
    }

    /// Microseconds of processor time a request.
    pub(super) fn cost(&self) -> f64 {
        self.processor.as_secs_f64() * 1e6 / self.requests.max(1) as f64
    }

    /// Microseconds.
    pub(super) fn p50(&self) -> f64 {
        self.latencies.value_at_quantile(0.5) as f64 / 1e3
    }

    /// A comparison with failures in it compares nothing.
    pub(super) fn good(&self, way: &str) -> Result<(), String> {
        match (self.failures, self.requests) {
            (0, 1..) => Ok(()),
            (failures, requests) => Err(format!("{way}: {failures} of {} requests failed", failures + requests)),
        }
    }
}

/// Sends a request over and over on each lane, until the time is up. All answers must be as long as the first one is.
pub(super) async fn closed_loop(
    lanes: &mut [Lane],
    shot: &Shot,
    each: Duration,
    processes: &[u32],
) -> Result<Round, String> {
    let before = processor::time_of_all(processes)?;
    let began = Instant::now();
    let sending = lanes.iter_mut().map(|lane| async move {
        // Three digits up to a minute.
        let Ok(mut latencies) = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3) else {
            unreachable!("fixed bounds")
        };
        let (mut failures, mut length) = (0, None);
        while began.elapsed() < each {
            let sent = Instant::now();
            match lane.send(shot).await {
                Ok(landed) if landed.status == 200 && *length.get_or_insert(landed.bytes()) == landed.bytes() => {
                    latencies.saturating_record(u64::try_from(sent.elapsed().as_nanos()).unwrap_or(u64::MAX));
                }
                Ok(_) | Err(_) => failures += 1,
            }
        }
        (latencies, failures)
    });
    let done = futures_util::future::join_all(sending).await;
    let took = began.elapsed();
    let processor = processor::time_of_all(processes)? - before;
    let Ok(mut latencies) = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3) else {
        unreachable!("fixed bounds")
    };
    let mut failures = 0;
    for (of_lane, failed) in done {
        latencies.add(of_lane).map_err(|e| e.to_string())?;
        failures += failed;
    }
    Ok(Round { requests: latencies.len(), failures, took, latencies, processor })
}
