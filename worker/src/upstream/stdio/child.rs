//! The child process: started with a cleared environment, its errors logged, its whole group ended and reaped.

use std::process::Stdio;

use rollcall_shared::limits;
use rollcall_shared::model::{Server, Transport};
use rollcall_shared::tenants::Owned;
use rollcall_shared::wire::{Failure, Reason};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::BufReader;
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::credentials;
use crate::upstream::lines::{Line, next_line};
use crate::worker::Shared;

/// Variables of the worker that every child gets: what programs need to find files and other programs, and no secret.
const PASSED_ON: [&str; 8] = ["PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "SSL_CERT_FILE"];

pub(super) fn spawn(shared: &Shared, server: &Owned<Server>) -> Result<Child, Failure> {
    let Transport::Command { program, args, env, directory } = &server.value.transport else {
        return Err(Failure::unsent(Reason::NotConfigured, "no command"));
    };
    let resolve = |value| credentials::resolve(value, server.owner, &shared.environment);
    let mut command = Command::new(program);
    command
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    for name in PASSED_ON {
        if let Some(value) = shared.environment.get(name) {
            command.env(name, value);
        }
    }
    for (name, value) in env {
        command.env(name, resolve(value)?.expose());
    }
    for argument in args {
        command.arg(resolve(argument)?.expose());
    }
    if let Some(directory) = directory {
        command.current_dir(directory);
    }
    command.spawn().map_err(|e| Failure::unsent(Reason::StartFailed, format!("{program}: {e}")))
}

pub(super) async fn log_errors(stderr: ChildStderr, server: String) {
    let mut reader = BufReader::new(stderr);
    while let Ok(Some(line)) = next_line(&mut reader, limits::STDERR_LINE_BYTES).await {
        if let Line::Whole(line) = line {
            tracing::info!(server, line = %String::from_utf8_lossy(&line), "standard error of a child");
        }
    }
}

/// Waits for the child's end, or brings it about: input closed, then SIGTERM, then SIGKILL to the whole group.
pub(super) async fn supervise(
    mut child: Child,
    group: Pid,
    output: oneshot::Receiver<()>,
    closed: CancellationToken,
    stop: CancellationToken,
    ended: CancellationToken,
) {
    let status = tokio::select! {
        status = child.wait() => status,
        () = stop.cancelled() => end(&mut child, group).await,
        // Its output ended while it lives on: it is of no more use.
        () = closed.cancelled() => end(&mut child, group).await,
    };
    // Helpers that outlive their leader go too.
    kill_process_group(group, Signal::KILL).ok();
    match status {
        Ok(status) => tracing::info!(%status, "a child ended"),
        Err(error) => tracing::warn!(%error, "a child could not be waited for"),
    }
    // What it answered before its end is still read.
    tokio::time::timeout(limits::CHILD_GRACE, output).await.ok();
    closed.cancel();
    ended.cancel();
}

/// The writer drops the child's input when `stop` or `closed` is cancelled, which is the polite request.
async fn end(child: &mut Child, group: Pid) -> std::io::Result<std::process::ExitStatus> {
    if let Ok(status) = tokio::time::timeout(limits::CHILD_GRACE, child.wait()).await {
        return status;
    }
    kill_process_group(group, Signal::TERM).ok();
    if let Ok(status) = tokio::time::timeout(limits::CHILD_GRACE, child.wait()).await {
        return status;
    }
    kill_process_group(group, Signal::KILL).ok();
    child.wait().await
}
