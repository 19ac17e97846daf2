//! Child processes: installers and builders that are waited for, servers that run until the stage is struck.
//!
//! Whatever a child says is in a file of the stage's folder, so that no full pipe can stop it. Each dies with its parent.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

/// A cold start of Node or Python on a busy machine.
const START: Duration = Duration::from_secs(60);

/// Runs a program to its end, its output to ours; fails unless it succeeded.
pub(crate) async fn complete(mut command: Command) -> Result<(), String> {
    let name = command.as_std().get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::from(std::io::stderr())).kill_on_drop(true);
    let status = command.status().await.map_err(|e| format!("{name}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name}: {status}")) }
}

/// Starts a server and waits for the URL in its first line.
pub(crate) async fn serve(mut command: Command, folder: &Path, name: &str) -> Result<(Child, String), String> {
    let file = |kind: &str| File::create(folder.join(format!("{name}.{kind}"))).map_err(|e| e.to_string());
    command.stdin(Stdio::null()).stdout(file("out")?).stderr(file("err")?).kill_on_drop(true);
    let mut child = command.spawn().map_err(|e| format!("{name}: {e}"))?;
    let started = Instant::now();
    loop {
        let said = std::fs::read_to_string(folder.join(format!("{name}.out"))).unwrap_or_default();
        if let Some((line, _)) = said.split_once('\n') {
            let url = line.split_whitespace().find(|word| word.starts_with("http://"));
            let url = url.ok_or_else(|| format!("{name} said {line:?} and no URL"))?;
            return Ok((child, url.to_owned()));
        }
        let ended = child.try_wait().map_err(|e| e.to_string())?;
        if ended.is_some() || started.elapsed() > START {
            let errors = std::fs::read_to_string(folder.join(format!("{name}.err"))).unwrap_or_default();
            return Err(format!("{name} did not start: {errors}"));
        }
        sleep(Duration::from_millis(50)).await;
    }
}
