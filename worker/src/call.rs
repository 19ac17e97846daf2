//! The way of a call through a worker: accept → borrow → deliver → examine → finish.

mod accept;
mod deliver;
mod finish;
mod platform;

pub(crate) use finish::report as finish_report;

use std::sync::Arc;

use rollcall_shared::wire::{Envelope, Final, Interim};
use tracing::Instrument as _;

use crate::worker::Shared;

/// Makes one call. Dropping the future cancels it at the upstream.
pub(crate) async fn call(shared: Arc<Shared>, envelope: Envelope, interim: Interim) -> Final {
    let span = tracing::info_span!(target: "rollcall", "upstream call", otel.kind = "client");
    rollcall_shared::telemetry::set_parent(&span, &envelope.head.trace);
    async {
        let accepted = match accept::accept(&shared, envelope).await {
            Ok(accepted) => accepted,
            Err(failure) => return Final::Failed(failure),
        };
        let deadline = accepted.deadline;
        let ran = accepted.may_have_run.clone();
        let name = accepted.name();
        let delivered = tokio::time::timeout_at(deadline, deliver::deliver(&shared, accepted, interim)).await;
        finish::finish(&shared, &name, delivered, &ran)
    }
    .instrument(span)
    .await
}
