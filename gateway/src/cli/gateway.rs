//! `rollcall gateway`: one node among others; and `rollcall seed`, once for a new store.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rollcall_shared::config::{Config, Store};
use rollcall_shared::cores::Cores;
use rollcall_shared::store::redis::RedisStore;
use rollcall_shared::task::{Signals, Tasks};
use rollcall_shared::telemetry;

use super::{UNAVAILABLE, USAGE, fail, read_config, say};
use crate::app::StartError;
use crate::node::Node;

pub(super) async fn run(path: &Path) -> ExitCode {
    let config = match read_config(path) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let traces = match telemetry::start(&config.telemetry, "info") {
        Ok(traces) => traces,
        Err(error) => return fail(USAGE, &error.to_string()),
    };
    let Ok(mut signals) = Signals::new() else { return fail(UNAVAILABLE, "signals cannot be received") };
    let tasks = match Cores::start() {
        Ok(cores) => Tasks::over(cores),
        Err(error) => return fail(UNAVAILABLE, &format!("no threads: {error}")),
    };
    let node = tokio::select! {
        started = Node::start(config, tasks) => match started {
            Ok(node) => node,
            Err(error @ StartError::Configuration(_)) => return fail(USAGE, &error.to_string()),
            Err(error) => return fail(UNAVAILABLE, &error.to_string()),
        },
        () = signals.received() => return ExitCode::SUCCESS,
    };
    say(&format!("MCP endpoint   {}", node.gateway.mcp_url()));
    for (name, address) in
        [("agents", Some(node.gateway.agents)), ("admin API", node.gateway.admin), ("operations", node.gateway.ops)]
    {
        if let Some(address) = address {
            say(&format!("{name:<14} http://{address}"));
        }
    }
    signals.received().await;
    say("draining ...");
    let drained = tokio::select! {
        drained = node.drain() => drained,
        // Asked twice, it does not wait.
        () = signals.received() => false,
    };
    if let Some(traces) = traces {
        tokio::task::spawn_blocking(move || traces.shut_down()).await.ok();
    }
    if drained { ExitCode::SUCCESS } else { fail(UNAVAILABLE, "some calls did not end in time") }
}

/// Gives a new store its markers, so that what it holds counts.
pub(super) async fn seed(path: &Path, anew: bool) -> ExitCode {
    const PATIENCE: Duration = Duration::from_secs(10);
    let Config { store, .. } = match read_config(path) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let Store::Redis { settings, lease } = store else {
        return fail(USAGE, "`store`: only a shared store is seeded; the others are when they are made");
    };
    let tasks = Tasks::new();
    let seeded = async {
        let store = RedisStore::open_with_lease(*settings, lease, &tasks)?;
        store.connected(PATIENCE).await?;
        store.seed(anew).await
    };
    let seeded = seeded.await;
    tasks.drain(PATIENCE).await;
    match seeded {
        Ok(0) => {
            say("nothing to do: every partition has its marker");
            ExitCode::SUCCESS
        }
        Ok(count) => {
            say(&format!("{count} partitions seeded"));
            ExitCode::SUCCESS
        }
        Err(error) => fail(UNAVAILABLE, &error.to_string()),
    }
}
