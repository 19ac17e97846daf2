//! Logs, metrics and traces.
//!
//! Labels come from closed lists and from configured names, never from what a caller sends: nobody can make series.
//! Logs are JSON on standard error. Traces leave by OTLP only where an endpoint is configured.

mod metrics;
mod traces;

use std::io::Write as _;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing_subscriber::filter::{Directive, FilterExt as _, FromEnvError, LevelFilter, Targets, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

pub use metrics::{Metrics, label};
pub use traces::{Traces, set_parent, trace_of};

/// The target of audit lines, which are written whatever the filter of the logs says.
pub const AUDIT: &str = "rollcall::audit";

/// Whether logs of this process go anywhere.
static STARTED: AtomicBool = AtomicBool::new(false);

/// Writes whole audit lines to where the logs go: nowhere before [`start`].
pub fn write_audit(lines: &str) {
    if STARTED.load(Ordering::Acquire) {
        // A closed standard error is the operator's choice; the program serves on.
        std::io::stderr().lock().write_all(lines.as_bytes()).ok();
    }
}

/// A moment as it stands in logs (RFC 3339).
pub fn timestamp(at: SystemTime) -> String {
    OffsetDateTime::from(at).format(&Rfc3339).unwrap_or_default()
}

/// What installing the subscriber can fail with.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("RUST_LOG: {0}")]
    Filter(#[from] FromEnvError),
    #[error("the OTLP exporter: {0}")]
    Exporter(String),
    #[error("a subscriber is installed already: {0}")]
    Installed(#[from] tracing_subscriber::util::TryInitError),
}

/// Installs what is configured, for a whole process; the exporter, to be shut down at its end.
pub fn start(config: &crate::config::Telemetry, default_level: &str) -> Result<Option<Traces>, TelemetryError> {
    let endpoint = config.otlp_endpoint.as_ref();
    let traces = endpoint.map(|endpoint| Traces::new(endpoint, config.sample_permille)).transpose()?;
    install(default_level, traces.as_ref())?;
    Ok(traces)
}

/// Installs logs and, with `traces`, the span exporter, for the whole process.
fn install(default_level: &str, traces: Option<&Traces>) -> Result<(), TelemetryError> {
    let filter = if std::env::var_os("RUST_LOG").is_some() {
        EnvFilter::try_from_default_env()?
    } else {
        EnvFilter::new(default_level)
    };
    let filter = with_audit(filter)?;
    let spans = traces.map(|traces| {
        tracing_opentelemetry::layer()
            .with_tracer(traces.tracer())
            .with_location(false)
            .with_threads(false)
            .with_filter(Targets::new().with_target("rollcall", LevelFilter::INFO))
    });
    let logs = tracing_subscriber::registry().with(logs(filter));
    match spans {
        Some(spans) => logs.with(spans).try_init()?,
        // Not an absent layer: with one, every span is made in case that it wants it.
        None => logs.try_init()?,
    }
    STARTED.store(true, Ordering::Release);
    Ok(())
}

/// The admin API's audit lines are events, and written whatever else is: the directive of a whole target wins.
fn with_audit(filter: EnvFilter) -> Result<EnvFilter, FromEnvError> {
    Ok(filter.add_directive(Directive::from_str(&format!("{AUDIT}=info"))?))
}

/// Lines of JSON on standard error.
fn logs<S>(filter: EnvFilter) -> impl tracing_subscriber::Layer<S>
where
    S: tracing::Subscriber + for<'s> tracing_subscriber::registry::LookupSpan<'s>,
{
    // A trace-level log of hyper or h2 would print headers, and with them tokens: those crates stay at debug.
    let safe = Targets::new()
        .with_default(LevelFilter::TRACE)
        .with_target("hyper", LevelFilter::DEBUG)
        .with_target("hyper_util", LevelFilter::DEBUG)
        .with_target("h2", LevelFilter::INFO)
        .with_target("rustls", LevelFilter::DEBUG);
    tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_writer(std::io::stderr)
        // Lines carry no spans: without an exporter none is made. One filter: what one of several lets through is made.
        .with_filter(filter.and(safe).and(filter_fn(|metadata| metadata.is_event())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_span_is_made_that_nobody_exports() {
        let subscriber = tracing_subscriber::registry().with(logs(EnvFilter::new("info")));
        tracing::subscriber::with_default(subscriber, || {
            assert!(tracing::info_span!(target: "rollcall", "call").is_disabled());
            assert!(tracing::event_enabled!(target: "rollcall", tracing::Level::INFO), "lines are written");
        });
    }

    #[test]
    fn audit_lines_are_written_whatever_the_filter_says() {
        for level in ["off", "warn", "rollcall_gateway=debug", "rollcall::audit=off"] {
            let filter = with_audit(EnvFilter::new(level)).unwrap();
            let subscriber = tracing_subscriber::registry().with(logs(filter));
            tracing::subscriber::with_default(subscriber, || {
                assert!(tracing::event_enabled!(target: AUDIT, tracing::Level::INFO), "{level}");
                assert!(!tracing::event_enabled!(target: "rollcall_worker", tracing::Level::INFO), "{level}");
            });
        }
    }
}
