//! `tools/call`: resolve, forward, relay; and the bridge tools that Rollcall answers itself.

use dashmap::DashMap;
use http::Response;
use rollcall_shared::limits;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::raw;
use rollcall_shared::telemetry::label;
use tokio_util::sync::CancellationToken;

use super::{Ask, describe};
use crate::body::Body;
use crate::call::Record;
use crate::call::forward::forward;
use crate::call::relay::{Reply, relay};
use crate::identity::Principal;
use crate::policy;
use crate::refusal::Refusal;
use crate::surface::recovery;
use crate::view::{Permit, Refused, Unavailable};

pub(super) async fn call(
    ask: &Ask<'_>,
    held: impl std::any::Any + Send,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let name = ask.params.text("name")?.ok_or_else(|| Refusal::InvalidParams("`name` is missing".to_owned()))?;
    record.name = Some(name.chars().take(limits::NEAREST_NAME_BYTES).collect());
    let arguments = match ask.params.get("arguments") {
        None => None,
        Some(value) if value.get() == "null" => None,
        Some(value) if value.get().starts_with('{') => Some(ask.body.slice_ref(value.get().as_bytes())),
        Some(_) => return Err(Refusal::InvalidParams("`arguments` must be an object".to_owned())),
    };
    if ask.endpoint.server.is_none() && ask.sight.view.bridge_tools().any(|bridge| bridge == name) {
        return describe::get_api_spec(ask, arguments.as_deref());
    }
    let permit = match resolve(ask, &name) {
        Ok(permit) => permit,
        // What is only unavailable is told to the model, not to its client: waiting helps, other names do not.
        Err(Refusal::Tools(refused)) if refused.unknown.is_empty() && refused.not_allowed.is_empty() => {
            record.verdict = "refused";
            record.reason = "unavailable";
            ask.app.metrics.refusals.add(1, &[label("surface", "mcp"), label("reason", "unavailable")]);
            let members = format!(
                r#""content":[{{"type":"text","text":{}}}],"isError":true,"structuredContent":{}"#,
                raw::quote(&refused.message),
                refused.to_json()
            );
            return Ok(ask.result(&members, ""));
        }
        Err(refusal) => return Err(refusal),
    };
    let caller = ask.params.meta.caller(ask.message.era)?;
    let forwarded = forward(ask.app, ask.principal, permit, arguments, caller, record)?;
    let cancelled = CancellationToken::new();
    let _listed =
        (ask.message.era == Era::Legacy).then(|| ask.app.legacy_calls.list(ask.principal, ask.id, cancelled.clone()));
    let reply = Reply {
        id: ask.id.to_owned(),
        era: ask.message.era,
        takes_stream: ask.message.takes_stream,
        takes_json: ask.message.takes_json,
        cancelled,
    };
    let held = (held, _listed);
    Ok(relay(ask.app, &ask.principal.tenant, forwarded, reply, held, record).await)
}

/// The permit for a name: whole on `/mcp`, real on `/servers/{server}/mcp`.
fn resolve<'s>(ask: &'s Ask<'_>, name: &str) -> Result<Permit<'s>, Refusal> {
    let availability = |server: &_| ask.app.live.availability(&ask.principal.tenant, server);
    let Some(server) = &ask.endpoint.server else {
        return ask.sight.resolve_one(name, &availability).map_err(Refusal::Tools);
    };
    let Some(segment) = ask.sight.registry.segment_of(server) else {
        let missing = &ask.sight.registry.missing;
        let missing = missing.iter().find(|m| {
            m.alias.as_str() == server || m.server.id.as_str() == server || m.server.name.as_deref() == Some(server)
        });
        let reached = |m: &&crate::registry::Missing| policy::could_reach(&ask.sight.registry, &ask.sight.policy, m);
        let missing = missing.filter(reached).ok_or(Refusal::NoSuchServer)?;
        let (reason, retry_after_s) = availability(&missing.server);
        let tool = Unavailable { name: name.to_owned(), server: missing.alias.to_string(), reason, retry_after_s };
        let mut refused = Refused { unavailable: vec![tool], ..Refused::default() };
        refused.message = recovery::text(&ask.sight, &refused);
        return Err(Refusal::Tools(Box::new(refused)));
    };
    ask.sight.resolve_real(segment, name).ok_or_else(|| {
        let exists = ask.sight.view.roster.segments().get(segment as usize).is_some_and(|s| s.by_real(name).is_some());
        let known = exists && !ask.sight.view.disclosure.hide_denied;
        let shown: String = name.chars().filter(|c| !c.is_control()).take(limits::NEAREST_NAME_BYTES).collect();
        let message = recovery::server_text(&ask.sight, segment, &shown, known);
        let (unknown, not_allowed) = if known { (vec![], vec![shown]) } else { (vec![shown], vec![]) };
        Refusal::Tools(Box::new(Refused { unknown, not_allowed, message, ..Refused::default() }))
    })
}

/// Legacy calls in flight, so that `notifications/cancelled` finds them: (session, id as sent) → their tokens.
#[derive(Default)]
pub(crate) struct LegacyCalls {
    calls: DashMap<(String, String), Vec<CancellationToken>>,
}

/// Takes the call off the list when dropped.
struct Listed {
    calls: std::sync::Weak<LegacyCalls>,
    key: (String, String),
    token: CancellationToken,
}

impl LegacyCalls {
    fn list(
        self: &std::sync::Arc<Self>,
        principal: &Principal,
        id: &str,
        token: CancellationToken,
    ) -> impl Send + use<> {
        let key = (principal.session_digest(), id.to_owned());
        self.calls.entry(key.clone()).or_default().push(token.clone());
        Listed { calls: std::sync::Arc::downgrade(self), key, token }
    }

    /// Cancels the one call with this id. Where a client used the id twice at once, nobody can tell which it means.
    pub(super) fn cancel(&self, principal: &Principal, id: Option<&str>) {
        let Some(id) = id else { return };
        let key = (principal.session_digest(), id.to_owned());
        if let Some(tokens) = self.calls.get(&key)
            && let [only] = tokens.as_slice()
        {
            only.cancel();
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        // Ends the comparison below for exactly this call; nobody listens to it any more.
        self.token.cancel();
        if let Some(calls) = self.calls.upgrade() {
            if let Some(mut tokens) = calls.calls.get_mut(&self.key) {
                tokens.retain(|token| !token.is_cancelled());
            }
            calls.calls.remove_if(&self.key, |_, tokens| tokens.is_empty());
        }
    }
}
