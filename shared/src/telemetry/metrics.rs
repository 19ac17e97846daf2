//! The program's instruments, one set a process (or a test), read by Prometheus.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, MeterProvider as _, UpDownCounter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};

/// See the module.
pub struct Metrics {
    /// By `surface` and `outcome`.
    pub requests: Counter<u64>,
    /// By `surface` and `reason`: a failure that nobody sees is the most expensive kind.
    pub refusals: Counter<u64>,
    /// Seconds from decode to the end of the answer, by `outcome`.
    pub call_seconds: Histogram<f64>,
    pub calls_in_flight: UpDownCounter<i64>,
    /// Bytes of bodies and results that are held now.
    pub buffered_bytes: UpDownCounter<i64>,
    /// By `outcome`: hit, miss.
    pub spec_lookups: Counter<u64>,
    /// Uses of the argument `server_name`, by `effect`.
    pub server_name_used: Counter<u64>,
    /// By `outcome`: found, nothing.
    pub searches: Counter<u64>,
    /// Calls through `tool_call` whose arguments came as a text.
    pub arguments_as_text: Counter<u64>,
    /// By `outcome`: cached, verified, refused.
    pub tokens: Counter<u64>,
    pub audit_dropped: Counter<u64>,
    /// Interim messages that a slow reader lost.
    pub interim_dropped: Counter<u64>,
    /// Failures of upstream servers, by `server` (alias or id of a configured server) and `reason`.
    pub upstream_failures: Counter<u64>,
    /// Upstream connections open now, by `transport`.
    pub upstreams: UpDownCounter<i64>,
    /// Listings, by `outcome`: changed, unchanged, elsewhere, failed.
    pub listings: Counter<u64>,
    /// Discovered tools hidden behind configured names.
    pub shadowed: Gauge<u64>,
    /// Stored documents that could not be read.
    pub broken_documents: Counter<u64>,
    /// Workers that one call was offered to.
    pub worker_hops: Histogram<u64>,
    /// Workers that could not be reached, by `reason`.
    pub worker_failures: Counter<u64>,
    /// Seconds since the shared store was last heard to say what this node relies on.
    pub store_age: Gauge<f64>,
    /// Times that the store lost writes that this node had seen.
    pub store_regressions: Counter<u64>,
    /// Panics so far: each ended one request or task, and is a defect.
    pub panics: Gauge<u64>,
    registry: Registry,
    /// Kept alive: instruments go silent when their provider is dropped.
    _provider: SdkMeterProvider,
}

/// One label from a closed list.
pub fn label(name: &'static str, value: &'static str) -> KeyValue {
    KeyValue::new(name, value)
}

impl Metrics {
    pub fn new() -> Result<Self, String> {
        let registry = Registry::new();
        let reader = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .without_target_info()
            .build()
            .map_err(|e| e.to_string())?;
        let provider = SdkMeterProvider::builder()
            .with_resource(Resource::builder().with_service_name("rollcall").build())
            .with_reader(reader)
            .build();
        let meter = provider.meter("rollcall");
        let seconds =
            vec![0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0];
        Ok(Self {
            requests: meter.u64_counter("rollcall.requests").build(),
            refusals: meter.u64_counter("rollcall.refusals").build(),
            call_seconds: meter.f64_histogram("rollcall.call.duration").with_unit("s").with_boundaries(seconds).build(),
            calls_in_flight: meter.i64_up_down_counter("rollcall.calls.in_flight").build(),
            buffered_bytes: meter.i64_up_down_counter("rollcall.buffered").with_unit("By").build(),
            spec_lookups: meter.u64_counter("rollcall.spec_cache.lookups").build(),
            server_name_used: meter.u64_counter("rollcall.server_name_used").build(),
            searches: meter.u64_counter("rollcall.searches").build(),
            arguments_as_text: meter.u64_counter("rollcall.tool_call.arguments_as_text").build(),
            tokens: meter.u64_counter("rollcall.tokens").build(),
            audit_dropped: meter.u64_counter("rollcall.audit.dropped").build(),
            interim_dropped: meter.u64_counter("rollcall.interim.dropped").build(),
            upstream_failures: meter.u64_counter("rollcall.upstream.failures").build(),
            upstreams: meter.i64_up_down_counter("rollcall.upstream.connections").build(),
            listings: meter.u64_counter("rollcall.listings").build(),
            shadowed: meter.u64_gauge("rollcall.shadowed_tools").build(),
            broken_documents: meter.u64_counter("rollcall.store.broken_documents").build(),
            worker_hops: meter.u64_histogram("rollcall.worker.hops").with_boundaries(vec![1.0, 2.0, 3.0]).build(),
            worker_failures: meter.u64_counter("rollcall.worker.failures").build(),
            store_age: meter.f64_gauge("rollcall.store.age").with_unit("s").build(),
            store_regressions: meter.u64_counter("rollcall.store.regressions").build(),
            panics: meter.u64_gauge("rollcall.panics").build(),
            registry,
            _provider: provider,
        })
    }

    /// The text that Prometheus reads (exposition format 0.0.4).
    pub fn text(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruments_have_the_names_that_dashboards_use() {
        let metrics = Metrics::new().expect("instruments");
        metrics.server_name_used.add(2, &[label("effect", "ignored")]);
        metrics.call_seconds.record(0.002, &[label("outcome", "ok")]);
        let text = metrics.text();
        for line in [
            "rollcall_server_name_used_total{effect=\"ignored\"} 2",
            "rollcall_call_duration_seconds_bucket{outcome=\"ok\",le=\"0.0025\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
