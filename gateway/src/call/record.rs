//! The record of a request: what is known of it so far, written once at its end.
//!
//! One line for each decision: who, which name, verdict, reason, duration, trace id; never arguments or results. Lines go
//! through a bounded queue that counts what it drops: an audit that stalls must not stall calls. They are written in
//! batches, by a thread of their own: to wake somebody for each line costs more than to authorize the call.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use rollcall_shared::limits;
use rollcall_shared::mcp::raw;
use rollcall_shared::task::Tasks;
use rollcall_shared::telemetry::{AUDIT, Metrics, label, timestamp, write_audit};
use rollcall_shared::wire::TraceContext;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::decode::Decoded;
use crate::identity::Principal;

/// See the module.
#[derive(Debug)]
pub(crate) struct Record {
    pub(super) surface: &'static str,
    pub(super) started: Instant,
    pub(super) method: MethodName,
    /// The resolved visible name, or what was asked for, cut.
    pub(crate) name: Option<Box<str>>,
    pub(crate) server: Option<Arc<str>>,
    pub(super) principal: Option<Arc<Principal>>,
    pub(crate) verdict: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) trace: TraceContext,
    /// A stream took the record over and writes it at its own end.
    pub(crate) handed_on: bool,
}

/// What is no known method is no label of its own.
#[derive(Debug, Clone)]
pub(super) enum MethodName {
    Known(&'static str),
    Other(Box<str>),
}

impl MethodName {
    const KNOWN: [&str; 23] = [
        "tools/call",
        "tools/list",
        "GET",
        "POST",
        "DELETE",
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

    fn of(method: &str) -> Self {
        match Self::KNOWN.into_iter().find(|known| *known == method) {
            Some(known) => Self::Known(known),
            None => Self::Other(method.chars().take(limits::LOGGED_CHARS).collect()),
        }
    }

    fn as_str(&self) -> &str {
        match self {
            MethodName::Known(name) => name,
            MethodName::Other(name) => name,
        }
    }

    pub(super) fn label(&self) -> &'static str {
        match self {
            MethodName::Known(name) => name,
            MethodName::Other(_) => "other",
        }
    }
}

impl Record {
    pub(crate) fn open(surface: &'static str) -> Self {
        Self {
            surface,
            started: Instant::now(),
            method: MethodName::Known(""),
            name: None,
            server: None,
            principal: None,
            verdict: "allowed",
            reason: "",
            trace: TraceContext::fresh(),
            handed_on: false,
        }
    }

    pub(crate) fn is_of(&mut self, principal: &Arc<Principal>) {
        self.principal = Some(principal.clone());
    }

    pub(crate) fn asks(&mut self, message: &Decoded<'_>) {
        self.method = MethodName::of(message.method());
        if let Some(trace) = message.meta().and_then(|meta| meta.trace) {
            self.trace = trace;
        }
    }

    /// For requests of the legacy eras that carry no message.
    pub(crate) fn is_by(&mut self, method: &http::Method) {
        self.method = MethodName::of(method.as_str());
    }

    /// For surfaces whose address is the method.
    pub(crate) fn is_call(&mut self, name: &str) {
        self.method = MethodName::of("tools/call");
        self.is_for(name);
    }

    /// What is asked for, by a name that nobody has checked.
    pub(crate) fn is_for(&mut self, name: &str) {
        self.name = Some(name.chars().take(limits::NEAREST_NAME_BYTES).collect());
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
            name: self.name.take(),
            server: self.server.take(),
            principal: self.principal.take(),
            handed_on: false,
            ..*self
        }
    }
}

/// A record at its end.
struct Line {
    record: Record,
    at: SystemTime,
    took_us: u128,
}

impl Line {
    /// Adds this line, as JSON.
    fn write(&self, text: &mut String) {
        let Self { record, at, took_us } = self;
        text.push_str(&format!(
            r#"{{"timestamp":"{}","level":"INFO","message":"decided","duration_us":{took_us}"#,
            timestamp(*at)
        ));
        let mut member = |name: &str, value: &str| {
            text.push_str(",\"");
            text.push_str(name);
            text.push_str("\":");
            raw::quote_into(text, value);
        };
        member("surface", record.surface);
        member("method", record.method.as_str());
        if let Some(principal) = &record.principal {
            member("tenant", principal.tenant.as_str());
            member("issuer", principal.issuer.as_str());
            member("session", principal.session.as_str());
            if !principal.subject.is_empty() {
                member("subject", &principal.subject);
            }
        }
        if let Some(name) = &record.name {
            member("name", name);
        }
        if let Some(server) = &record.server {
            member("server", server);
        }
        member("verdict", record.verdict);
        member("reason", record.reason);
        member("trace", &record.trace.trace_id());
        member("target", AUDIT);
        text.push_str("}\n");
    }
}

/// What waits to be written.
#[derive(Default)]
struct Waiting {
    lines: Vec<Line>,
    over: bool,
}

/// The queue of audit lines.
#[derive(Clone)]
pub(crate) struct Audit {
    queue: Arc<Queue>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    told: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what comes, until it is over and nothing waits. What was decided is on record, also at the end.
    fn write_until_over(&self) {
        let (mut lines, mut text) = (Vec::new(), String::new());
        loop {
            let empty = |waiting: &mut Waiting| waiting.lines.is_empty() && !waiting.over;
            let waiting = self.told.wait_while(self.lock(), empty).unwrap_or_else(PoisonError::into_inner);
            // Whoever comes in the next moment is written with them, and wakes nobody.
            let waiting = self.told.wait_timeout_while(waiting, limits::AUDIT_BATCH, |waiting| !waiting.over);
            let (mut waiting, _) = waiting.unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut lines, &mut waiting.lines);
            let over = waiting.over && lines.is_empty();
            drop(waiting);
            if over {
                return;
            }
            for line in lines.drain(..) {
                line.write(&mut text);
                if text.len() > limits::AUDIT_WRITE_BYTES {
                    write_audit(&text);
                    text.clear();
                }
            }
            write_audit(&text);
            text.clear();
        }
    }
}

impl Audit {
    /// Starts the writer.
    pub(crate) fn start(metrics: Arc<Metrics>, tasks: &Tasks) -> Self {
        let queue = Arc::new(Queue::default());
        let (writer, stop) = (queue.clone(), tasks.stopping().clone());
        let (ends, ended) = oneshot::channel::<()>();
        let started = std::thread::Builder::new().name("audit".to_owned()).spawn(move || {
            writer.write_until_over();
            drop(ends);
        });
        if let Err(error) = started {
            tracing::error!(%error, "no thread for the audit: its lines are dropped and counted");
        }
        let told = queue.clone();
        tasks.spawn("audit", async move {
            stop.cancelled().await;
            told.lock().over = true;
            told.told.notify_all();
            ended.await.ok();
        });
        Self { queue, metrics }
    }

    pub(super) fn put(&self, record: Record) {
        let line = Line { took_us: record.started.elapsed().as_micros(), at: SystemTime::now(), record };
        let mut waiting = self.queue.lock();
        if waiting.lines.len() >= limits::AUDIT_QUEUE {
            drop(waiting);
            self.metrics.audit_dropped.add(1, &[]);
            return;
        }
        waiting.lines.push(line);
        let first = waiting.lines.len() == 1;
        drop(waiting);
        if first {
            self.queue.told.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_json_whatever_it_holds() {
        let mut record = Record::open("mcp");
        record.is_of(&Arc::new(Principal::for_tests("acme", "s")));
        record.is_call("a\"\\\n\u{7f}é\u{0}");
        record.server = Some("s".into());
        let mut line = String::new();
        Line { record, at: SystemTime::UNIX_EPOCH, took_us: 7 }.write(&mut line);
        let read: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        for (name, value) in [
            ("timestamp", "1970-01-01T00:00:00Z"),
            ("tenant", "acme"),
            ("session", "s"),
            ("name", "a\"\\\n\u{7f}é\u{0}"),
            ("server", "s"),
            ("verdict", "allowed"),
            ("target", "rollcall::audit"),
        ] {
            assert_eq!(read[name], value, "{line}");
        }
        assert!(
            line.lines().count() == 1
                && line.ends_with('\n')
                && read["duration_us"] == 7
                && read.get("subject").is_none(),
            "{line}"
        );
    }
}
