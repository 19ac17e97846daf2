//! Accept: find what the envelope addresses, and start the clock.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rollcall_shared::ids::TenantId;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::model::{PlatformTool, Server};
use rollcall_shared::tenants::{Owned, Owner};
use rollcall_shared::wire::{Caller, Failure, Head, Method, Op, Params, Reason, TraceContext};

use crate::worker::Shared;

/// A call whose target exists.
pub(crate) struct Accepted {
    pub(crate) tenant: TenantId,
    pub(crate) target: Found,
    pub(crate) session: String,
    pub(crate) params: Params,
    pub(crate) caller: Caller,
    pub(crate) trace: TraceContext,
    /// What the call may take, waiting for its caller's input apart.
    pub(crate) patience: Duration,
    /// Set as soon as a byte of the call may have left.
    pub(crate) may_have_run: Arc<AtomicBool>,
}

pub(crate) enum Found {
    Server {
        server: Owned<Server>,
        /// The era in which it was listed.
        speaks: Option<Era>,
        method: Method,
        name: Option<String>,
        headers: Vec<(String, String)>,
    },
    Platform {
        tool: Arc<PlatformTool>,
        owner: Owner,
    },
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

pub(crate) async fn accept(shared: &Shared, head: Head, params: Params) -> Result<Accepted, Failure> {
    let gone = || Failure::unsent(Reason::NotConfigured, "the target is not configured here");
    let tenant = shared.tenants.get(&head.tenant).await.ok().flatten().ok_or_else(gone)?;
    let docs = tenant.docs();
    let (target, own) = match head.op {
        Op::Ask { server, method, name, headers } => {
            let speaks = docs.catalogs.get(&server).map(|pointer| pointer.era);
            let server = docs.servers.get(&server).cloned().ok_or_else(gone)?;
            let timeout = server.value.call_timeout();
            (Found::Server { server, speaks, method, name, headers }, timeout)
        }
        Op::Platform { tool } => {
            let owned = docs.tools.get(&tool).cloned().ok_or_else(gone)?;
            let timeout = owned.value.call_timeout();
            (Found::Platform { tool: owned.value, owner: owned.owner }, timeout)
        }
        Op::Resume { .. }
        | Op::Replay { .. }
        | Op::Answer { .. }
        | Op::Cancel { .. }
        | Op::Watch { .. }
        | Op::Refresh { .. } => return Err(gone()),
    };
    // The span that now carries the call, where an exporter listens; else the caller's context goes on.
    let trace = rollcall_shared::telemetry::trace_of(&tracing::Span::current()).unwrap_or(head.trace);
    Ok(Accepted {
        tenant: head.tenant,
        target,
        session: head.session,
        params,
        caller: head.caller,
        trace,
        patience: Duration::from_millis(head.deadline_ms).min(own),
        may_have_run: Arc::new(AtomicBool::new(false)),
    })
}
