//! The programs that a run needs: the peers, the fixture and Rollcall, built as this program itself is built.
//!
//! A child is killed when its handle is dropped, so none outlives the command, however that ends.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// Longest wait for a program's first lines: what is awaited comes at once, but the machine may be busy.
const START: Duration = Duration::from_secs(60);
/// Longest wait for a program that was asked to end.
const END: Duration = Duration::from_secs(10);

/// Where the programs are.
pub struct Programs {
    pub fixture: PathBuf,
    pub rollcall: PathBuf,
    pub worker: PathBuf,
}

fn failed(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

/// The folder of the pinned peers.
pub fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

/// Installs the pinned peers, the suite and its Node among them.
pub async fn install_peers() -> io::Result<()> {
    let status = Command::new(peers().join("install.sh")).stdin(Stdio::null()).kill_on_drop(true).status().await?;
    if status.success() { Ok(()) } else { Err(failed(format!("loadtest/peers/install.sh ended with {status}"))) }
}

/// Builds fixture, gateway and worker in the profile of this program; where `ROLLCALL_PROGRAMS` names a folder, those that
/// are there are taken instead, as where there is no cargo.
pub async fn build() -> io::Result<Programs> {
    if let Some(folder) = std::env::var_os("ROLLCALL_PROGRAMS").map(PathBuf::from) {
        let at = |name: &str| folder.join(name);
        return Ok(Programs {
            fixture: at("examples/fixture"),
            rollcall: at("rollcall"),
            worker: at("rollcall-worker"),
        });
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--message-format", "json-render-diagnostics"]);
    // Of the whole workspace: with other features, what `cargo test` has built would be built again.
    command.args(["--workspace", "--example", "fixture", "--bin", "rollcall", "--bin", "rollcall-worker"]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let building = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let output = building.wait_with_output().await?;
    if !output.status.success() {
        return Err(failed(format!("cargo build ended with {}", output.status)));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let built = |name| built(&messages, name);
    Ok(Programs { fixture: built("fixture")?, rollcall: built("rollcall")?, worker: built("rollcall-worker")? })
}

/// The executable that cargo tells of.
fn built(messages: &str, name: &str) -> io::Result<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message.pointer("/target/name").and_then(Value::as_str) == Some(name))
        .find_map(|message| Some(PathBuf::from(message.get("executable")?.as_str()?)))
        .ok_or_else(|| failed(format!("cargo has built no {name}")))
}

/// A program that runs until this is dropped.
pub struct Running {
    child: Child,
    /// Kept open: a program that writes into a closed pipe ends.
    output: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
}

impl Running {
    /// Starts a program, and waits for the line of its output that begins so. Gives the rest of that line.
    pub async fn start(mut command: Command, log: &Path, prefix: &str) -> io::Result<(Self, String)> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(log)?).kill_on_drop(true);
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or_else(|| failed("no pipe"))?;
        let mut running = Self { child, output: BufReader::new(output).lines(), log: log.to_owned() };
        let rest = running.says(prefix).await?;
        Ok((running, rest))
    }

    /// Waits for the next line that begins so, and gives the rest of it.
    pub async fn says(&mut self, prefix: &str) -> io::Result<String> {
        let found = async {
            while let Some(line) = self.output.next_line().await? {
                if let Some(rest) = line.strip_prefix(prefix) {
                    return Ok(rest.trim().to_owned());
                }
            }
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(5).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            Err(failed(format!("a program ended before it said `{prefix}`; its last words:\n{}", last.join("\n"))))
        };
        tokio::time::timeout(START, found).await.map_err(|_| failed("a program says nothing"))?
    }

    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Asks it to end, so that it can end its own children, and waits for that.
    pub async fn end(mut self) {
        let id = self.child.id().and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(id) = id {
            rustix::process::kill_process(id, rustix::process::Signal::TERM).ok();
        }
        tokio::time::timeout(END, self.child.wait()).await.ok();
    }
}
