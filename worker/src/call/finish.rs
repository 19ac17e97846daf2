//! Finish: a call that ran out of time becomes a failure; every failure is counted and logged once, with its cause.

use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::KeyValue;
use rollcall_shared::limits;
use rollcall_shared::wire::{Failure, Final, Reason};

use crate::worker::Shared;

/// `delivered` is none where the time ran out.
pub(crate) fn finish(shared: &Shared, name: &str, delivered: Option<Final>, ran: &AtomicBool) -> Final {
    let end = delivered.unwrap_or_else(|| {
        let may_have_run = ran.load(Ordering::Acquire);
        Final::Failed(Failure { may_have_run, ..Failure::unsent(Reason::TimedOut, "the deadline passed") })
    });
    if let Final::Failed(failure) = &end {
        report(shared, name, failure);
    }
    end
}

/// One line and one count for each failure of a server, with its name and cause.
pub(crate) fn report(shared: &Shared, name: &str, failure: &Failure) {
    let reason = failure.reason.label();
    shared
        .metrics
        .upstream_failures
        .add(1, &[KeyValue::new("server", name.to_owned()), KeyValue::new("reason", reason)]);
    let cause: String = failure.detail.chars().take(limits::LOGGED_CHARS).collect();
    tracing::warn!(server = name, reason, may_have_run = failure.may_have_run, cause, "an upstream failed");
}
