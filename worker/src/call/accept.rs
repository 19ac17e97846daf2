//! Accept: find what the envelope addresses, and start the clock.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use rollcall_shared::ids::TenantId;
use rollcall_shared::model::{PlatformTool, Server};
use rollcall_shared::tenants::{Owned, Owner};
use rollcall_shared::wire::{Caller, Envelope, Failure, Reason, Target, TraceContext};
use tokio::time::Instant;

use crate::worker::Shared;

/// A call whose target exists.
pub(crate) struct Accepted {
    pub(crate) tenant: TenantId,
    pub(crate) target: Found,
    pub(crate) session: String,
    pub(crate) arguments: Option<Bytes>,
    pub(crate) caller: Caller,
    pub(crate) trace: TraceContext,
    pub(crate) deadline: Instant,
    /// Set as soon as a byte of the call may have left.
    pub(crate) may_have_run: Arc<AtomicBool>,
}

pub(crate) enum Found {
    Server { server: Owned<Server>, tool: String },
    Platform { tool: Arc<PlatformTool>, owner: Owner },
}

impl Accepted {
    /// The configured name for logs and metrics.
    pub(crate) fn name(&self) -> String {
        match &self.target {
            Found::Server { server, .. } => server.value.id.to_string(),
            Found::Platform { tool, .. } => tool.name.to_string(),
        }
    }
}

pub(crate) async fn accept(shared: &Shared, envelope: Envelope) -> Result<Accepted, Failure> {
    let head = envelope.head;
    let gone = || Failure::unsent(Reason::NotConfigured, "the target is not configured here");
    let tenant = shared.tenants.get(&head.tenant).await.ok().flatten().ok_or_else(gone)?;
    let docs = tenant.docs();
    let (target, own) = match head.target {
        Target::Server { id, tool } => {
            let server = docs.servers.get(&id).cloned().ok_or_else(gone)?;
            let timeout = server.value.call_timeout();
            (Found::Server { server, tool }, timeout)
        }
        Target::Platform { tool } => {
            let owned = docs.tools.get(&tool).cloned().ok_or_else(gone)?;
            let timeout = owned.value.call_timeout();
            (Found::Platform { tool: owned.value, owner: owned.owner }, timeout)
        }
    };
    let remaining = Duration::from_millis(head.deadline_ms).min(own);
    // The span that now carries the call, where an exporter listens; else the caller's context goes on.
    let trace = rollcall_shared::telemetry::trace_of(&tracing::Span::current()).unwrap_or(head.trace);
    Ok(Accepted {
        tenant: head.tenant,
        target,
        session: head.session,
        arguments: envelope.arguments,
        caller: head.caller,
        trace,
        deadline: Instant::now() + remaining,
        may_have_run: Arc::new(AtomicBool::new(false)),
    })
}
