//! The tasks extension (SEP-2663): a call's result may be a task, which its owner asks about by a sealed handle.
//!
//! The handle names the tool, which is resolved and authorized anew each time, and the upstream's own id.

use http::Response;
use rollcall_shared::model::EntryKind;
use rollcall_shared::wire::{Member, Method};
use serde::{Deserialize, Serialize};

use super::offers::TASKS;
use super::request::{Sent, relayed};
use super::{Ask, members, quoted};
use crate::body::Body;
use crate::call::Record;
use crate::handle::{Owner, Purpose};
use crate::refusal::Refusal;

/// What is inside a sealed `taskId`.
#[derive(Serialize, Deserialize)]
pub(crate) struct TaskHandle {
    /// The id of the server.
    #[serde(rename = "s")]
    pub(crate) server: String,
    /// The visible name of the tool that made the task.
    #[serde(rename = "t")]
    pub(crate) tool: String,
    /// The upstream's own id.
    #[serde(rename = "i")]
    pub(crate) id: String,
}

/// `tasks/get`, `tasks/update`, `tasks/cancel`
pub(super) async fn ask(
    ask: &Ask<'_>,
    held: impl std::any::Any + Send,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    if !ask.params.meta.declares_extension(TASKS) {
        return Err(Refusal::MissingCapability(format!(r#"{{"extensions":{{"{TASKS}":{{}}}}}}"#)));
    }
    let handle = ask.required("taskId")?;
    let unknown = || Refusal::InvalidParams("there is no such task".to_owned());
    let task = open(ask, &handle).ok_or_else(unknown)?;
    let permit = ask.sight.permit(EntryKind::Tool, &task.tool).ok_or_else(unknown)?;
    if permit.server().is_none_or(|server| server.id.as_str() != task.server) {
        return Err(unknown());
    }
    if let Some(server) = &ask.endpoint.server {
        let own = ask.sight.registry.segment_of(server);
        if own != Some(permit.place().segment) {
            return Err(unknown());
        }
    }
    let method = match ask.message.method() {
        "tasks/get" => Method::GetTask,
        "tasks/update" => Method::UpdateTask,
        _ => Method::CancelTask,
    };
    let responses = if method == Method::UpdateTask { ask.object("inputResponses")? } else { None };
    let params = members([(Member::TaskId, Some(quoted(&task.id))), (Member::InputResponses, responses)]);
    let sent = Sent { method, real: task.id, params, headers: Vec::new() };
    relayed(ask, permit, sent, None, Some(handle), held, record).await
}

/// The task of a handle of this caller's.
pub(super) fn open(ask: &Ask<'_>, handle: &str) -> Option<TaskHandle> {
    let owner = Owner { principal: ask.principal, scope: &[] };
    let content = ask.app.seals.open(Purpose::Task, owner, handle)?;
    serde_json::from_slice(&content).ok()
}
