//! The actions, each against one connection, and what each checks.

use std::time::Duration;

use rmcp::service::ServiceError;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::peer::{Peer, member};

/// A cancelled call that takes longer than this to end was not cancelled but waited for.
const CANCEL: Duration = Duration::from_secs(1);
const TOUCHES: u32 = 3;

/// Why an action did not pass.
pub(crate) enum Failure {
    /// What came is not what the plan expects.
    Unexpected(String),
    /// The other side, or the SDK, says no.
    Refused { code: Option<i32>, message: String },
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        let code = if let ServiceError::McpError(data) = &error { Some(data.code.0) } else { None };
        Self::Refused { code, message: error.to_string() }
    }
}

type Done = Result<String, Failure>;

fn check(holds: bool, message: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::Unexpected(message())) }
}

fn holds(text: String, plan: &Value) -> Done {
    check(text.contains(&member(plan, "text")), || format!("unexpected: {text}"))?;
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(60).collect())
}

pub(crate) async fn perform(peer: &Peer, action: &str, plan: &Value) -> Done {
    match action {
        "list" => list(peer, plan).await,
        "call" => holds(peer.call(plan).await?, plan),
        "progress" => progress(peer, plan).await,
        "cancel" => cancel(peer, plan).await,
        "elicit" => elicit(peer, plan).await,
        "subscribe" => subscribe(peer, plan).await,
        "read" => holds(peer.read(&member(plan, "uri")).await?, plan),
        "prompt" => holds(peer.prompt(plan).await?, plan),
        other => Err(Failure::Unexpected(format!("no action is called {other}"))),
    }
}

fn names(plan: &Value, list: &str) -> Vec<String> {
    let names = plan.get(list).and_then(Value::as_array).into_iter().flatten();
    names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

async fn list(peer: &Peer, plan: &Value) -> Done {
    let listed = peer.list().await?;
    let missing: Vec<_> = names(plan, "expect").into_iter().filter(|name| !listed.contains(name)).collect();
    check(missing.is_empty(), || format!("not listed: {}", missing.join(", ")))?;
    Ok(format!("{} tools", listed.len()))
}

async fn progress(peer: &Peer, plan: &Value) -> Done {
    peer.call(plan).await?;
    let seen = peer.heard.progress();
    check(seen.len() >= 2, || format!("{} progress notifications before the result", seen.len()))?;
    check(seen.is_sorted_by(|a, b| a < b), || format!("progress does not rise: {seen:?}"))?;
    Ok(format!("progress {seen:?}"))
}

async fn count(peer: &Peer, plan: &Value) -> Result<Option<u64>, Failure> {
    let Some(plan) = plan.get("count") else { return Ok(None) };
    let text = peer.call(plan).await?;
    text.parse().map(Some).map_err(|_| Failure::Unexpected(format!("no count: {text}")))
}

async fn cancel(peer: &Peer, plan: &Value) -> Done {
    let before = count(peer, plan).await?;
    let after = Duration::from_millis(plan.get("after_ms").and_then(Value::as_u64).unwrap_or(500));
    // The SDK cancels a request whose future is dropped.
    if let Ok(answer) = timeout(after, peer.call(plan)).await {
        return Err(Failure::Unexpected(format!("it was answered: {}", answer?)));
    }
    let aborted = Instant::now();
    let then = plan.get("then").unwrap_or(&Value::Null);
    holds(peer.call(then).await?, then)?;
    check(aborted.elapsed() <= CANCEL, || format!("the next call took {:?}", aborted.elapsed()))?;
    if before.is_none() {
        return Ok("the call ended, the next one works".to_owned());
    }
    for _ in 0..50 {
        if count(peer, plan).await? > before {
            return Ok("the server noticed".to_owned());
        }
        sleep(Duration::from_millis(100)).await;
    }
    Err(Failure::Unexpected("the server did not notice".to_owned()))
}

async fn elicit(peer: &Peer, plan: &Value) -> Done {
    let text = peer.call(plan).await?;
    let asked = peer.heard.asked();
    check(asked.len() == 1, || format!("the handler was called {} times", asked.len()))?;
    let form = asked.first().and_then(|question| question.pointer("/requestedSchema/properties"));
    let complete = names(plan, "fields").iter().all(|field| form.and_then(|form| form.get(field)).is_some());
    check(complete, || format!("the form was {form:?}"))?;
    holds(text, plan)
}

async fn subscribe(peer: &Peer, plan: &Value) -> Done {
    let uri = member(plan, "uri");
    let touch = plan.get("touch").unwrap_or(&Value::Null);
    let mut subscribed = peer.subscribe(&uri).await?;
    for tries in 1..=TOUCHES {
        // The legacy era's GET stream may open after the subscription was answered.
        sleep(Duration::from_millis(500)).await;
        let mut text = peer.call(touch).await?;
        if !text.contains(&member(touch, "text")) {
            text = peer.call(touch).await?;
        }
        holds(text, touch)?;
        if let Ok(update) = timeout(Duration::from_millis(1500), subscribed.updated(&uri)).await {
            update?;
            return Ok(format!("updated after {tries} touches"));
        }
    }
    Err(Failure::Unexpected("subscribed, but no update arrived".to_owned()))
}
