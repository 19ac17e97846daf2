//! The record of a request: what is known of it so far, written once at its end.
//!
//! One line for each decision: who, which name, verdict, reason, duration, trace id; never arguments or results. Lines go
//! through a bounded queue that counts what it drops: an audit that stalls must not stall calls.

use std::sync::Arc;

use rollcall_shared::limits;
use rollcall_shared::task::Tasks;
use rollcall_shared::telemetry::{AUDIT, Metrics, label};
use rollcall_shared::wire::TraceContext;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::decode::Decoded;
use crate::identity::Principal;

/// See the module.
#[derive(Debug)]
pub(crate) struct Record {
    pub(super) surface: &'static str,
    pub(super) started: Instant,
    pub(super) method: String,
    /// The resolved visible name, or what was asked for, cut.
    pub(crate) name: Option<String>,
    pub(crate) server: Option<String>,
    pub(super) tenant: Option<String>,
    pub(super) issuer: Option<String>,
    pub(super) session: Option<String>,
    pub(super) subject: Option<String>,
    pub(crate) verdict: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) trace: TraceContext,
    /// A stream took the record over and writes it at its own end.
    pub(crate) handed_on: bool,
}

impl Record {
    pub(crate) fn open(surface: &'static str) -> Self {
        Self {
            surface,
            started: Instant::now(),
            method: String::new(),
            name: None,
            server: None,
            tenant: None,
            issuer: None,
            session: None,
            subject: None,
            verdict: "allowed",
            reason: "",
            trace: TraceContext::fresh(),
            handed_on: false,
        }
    }

    pub(crate) fn is_of(&mut self, principal: &Principal) {
        self.tenant = Some(principal.tenant.to_string());
        self.issuer = Some(principal.issuer.to_string());
        self.session = Some(principal.session.to_string());
        self.subject = Some(principal.subject.clone()).filter(|s| !s.is_empty());
    }

    pub(crate) fn asks(&mut self, message: &Decoded<'_>) {
        self.method = message.method().chars().take(limits::LOGGED_CHARS).collect();
        if let Some(trace) = message.meta().and_then(|meta| meta.trace) {
            self.trace = trace;
        }
    }

    /// For requests of the legacy eras that carry no message.
    pub(crate) fn is_by(&mut self, method: &http::Method) {
        method.as_str().clone_into(&mut self.method);
    }

    /// For surfaces whose address is the method.
    pub(crate) fn is_call(&mut self, name: &str) {
        "tools/call".clone_into(&mut self.method);
        self.name = Some(name.chars().take(limits::NEAREST_NAME_BYTES).collect());
    }

    /// What is no known method is no label of its own.
    pub(super) fn method_label(&self) -> &'static str {
        const KNOWN: [&str; 23] = [
            "GET",
            "POST",
            "DELETE",
            "tools/call",
            "tools/list",
            "prompts/get",
            "prompts/list",
            "resources/read",
            "resources/list",
            "resources/templates/list",
            "resources/subscribe",
            "resources/unsubscribe",
            "completion/complete",
            "logging/setLevel",
            "subscriptions/listen",
            "tasks/get",
            "tasks/update",
            "tasks/cancel",
            "server/discover",
            "initialize",
            "ping",
            "notifications/initialized",
            "response",
        ];
        KNOWN.into_iter().find(|known| *known == self.method).unwrap_or("other")
    }

    /// Refused, and told to the model in a result.
    pub(crate) fn is_refused(&mut self, metrics: &Metrics, reason: &'static str) {
        self.verdict = "refused";
        self.reason = reason;
        metrics.refusals.add(1, &[label("surface", self.surface), label("reason", reason)]);
    }

    /// Takes the record's facts to write them later, at the end of a stream.
    pub(crate) fn hand_on(&mut self) -> Record {
        self.handed_on = true;
        Record {
            method: self.method.clone(),
            name: self.name.clone(),
            server: self.server.clone(),
            tenant: self.tenant.clone(),
            issuer: self.issuer.clone(),
            session: self.session.clone(),
            subject: self.subject.clone(),
            handed_on: false,
            ..*self
        }
    }
}

/// The queue of audit lines.
#[derive(Clone)]
pub(crate) struct Audit {
    queue: mpsc::Sender<Record>,
    metrics: Arc<Metrics>,
}

impl Audit {
    /// Starts the writer.
    pub(crate) fn start(metrics: Arc<Metrics>, tasks: &Tasks) -> Self {
        let (queue, mut lines) = mpsc::channel::<Record>(limits::AUDIT_QUEUE);
        let stop = tasks.stopping().clone();
        tasks.spawn("audit", async move {
            loop {
                tokio::select! {
                    biased;
                    record = lines.recv() => match record {
                        Some(record) => write(&record),
                        None => return,
                    },
                    () = stop.cancelled() => break,
                }
            }
            // What was decided is on record, also at the end.
            while let Ok(record) = lines.try_recv() {
                write(&record);
            }
        });
        Self { queue, metrics }
    }

    pub(super) fn put(&self, record: Record) {
        if self.queue.try_send(record).is_err() {
            self.metrics.audit_dropped.add(1, &[]);
        }
    }
}

fn write(record: &Record) {
    tracing::info!(
        target: AUDIT,
        surface = record.surface,
        method = record.method,
        tenant = record.tenant,
        issuer = record.issuer,
        session = record.session,
        subject = record.subject,
        name = record.name,
        server = record.server,
        verdict = record.verdict,
        reason = record.reason,
        duration_us = u64::try_from(record.started.elapsed().as_micros()).unwrap_or(u64::MAX),
        trace = record.trace.trace_id(),
        "decided"
    );
}
