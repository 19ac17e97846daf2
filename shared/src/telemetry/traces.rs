//! Traces: spans leave by OTLP over HTTP; trace contexts come in and go out in W3C form.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry::Context;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState, TracerProvider as _,
};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use url::Url;

use super::TelemetryError;
use crate::wire::TraceContext;

const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// What a collector may answer to an export.
const ANSWER_BYTES: usize = 1 << 20;

/// The span exporter of a process.
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Exports to `{endpoint}/v1/traces`, in batches. `permille` of the traces that no caller decided on are kept.
    /// Must be called inside the runtime that shall carry the exports.
    pub fn new(endpoint: &Url, permille: u64) -> Result<Self, TelemetryError> {
        let client = Hyper {
            client: Client::builder(TokioExecutor::new()).build_http(),
            runtime: tokio::runtime::Handle::current(),
        };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(client)
            .with_endpoint(format!("{}/v1/traces", endpoint.as_str().trim_end_matches('/')))
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .map_err(|e| TelemetryError::Exporter(e.to_string()))?;
        let batch = BatchSpanProcessor::builder(exporter)
            .with_batch_config(BatchConfigBuilder::default().with_scheduled_delay(Duration::from_secs(1)).build())
            .build();
        #[expect(clippy::cast_precision_loss, reason = "at most 1000")]
        let share = permille as f64 / 1000.0;
        let provider = SdkTracerProvider::builder()
            .with_resource(Resource::builder().with_service_name("rollcall").build())
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(share))))
            .with_span_processor(batch)
            .build();
        Ok(Self { provider })
    }

    pub(super) fn tracer(&self) -> SdkTracer {
        self.provider.tracer("rollcall")
    }

    /// Sends what waits. Blocks; call it off the I/O threads.
    pub fn shut_down(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(EXPORT_TIMEOUT) {
            tracing::warn!(%error, "spans were lost at shutdown");
        }
    }
}

/// Makes a span the child of a remote one. Does nothing where no exporter listens.
pub fn set_parent(span: &tracing::Span, parent: &TraceContext) {
    if span.is_disabled() {
        return;
    }
    let flags = if parent.sampled { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
    let remote = SpanContext::new(
        TraceId::from_bytes(parent.trace),
        SpanId::from_bytes(parent.span),
        flags,
        true,
        TraceState::NONE,
    );
    if let Err(error) = span.set_parent(Context::new().with_remote_span_context(remote)) {
        tracing::trace!(%error, "no exporter for this span");
    }
}

/// The context of a span, to be handed on; nothing where no exporter listens.
pub fn trace_of(span: &tracing::Span) -> Option<TraceContext> {
    if span.is_disabled() {
        return None;
    }
    let context = span.context();
    let span = context.span();
    let inner = span.span_context();
    inner.is_valid().then(|| TraceContext {
        trace: inner.trace_id().to_bytes(),
        span: inner.span_id().to_bytes(),
        sampled: inner.is_sampled(),
    })
}

/// The exporter's thread has no runtime of its own; this hands its requests to ours.
#[derive(Debug, Clone)]
struct Hyper {
    client: Client<HttpConnector, Full<Bytes>>,
    runtime: tokio::runtime::Handle,
}

impl HttpClient for Hyper {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: http::Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<http::Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let client = self.client.clone();
        #[expect(clippy::disallowed_methods, reason = "awaited right here; only the runtime differs")]
        let task = self.runtime.spawn(async move {
            tokio::time::timeout(EXPORT_TIMEOUT, async {
                let (head, body) = client.request(request.map(Full::new)).await?.into_parts();
                let body = Limited::new(body, ANSWER_BYTES).collect().await?.to_bytes();
                Ok::<_, HttpError>(http::Response::from_parts(head, body))
            })
            .await?
        });
        Box::pin(async move { task.await? })
    }
}
