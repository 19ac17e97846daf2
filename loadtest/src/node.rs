//! One process of a cluster: started, killed, frozen, asked to end, started again, its log read.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::client::Client;
use crate::fault::FaultProxy;

const READY: Duration = Duration::from_secs(60);

/// See the module. Killed when dropped.
pub struct Node {
    pub name: String,
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    pub ops: SocketAddr,
    /// Where it serves what it is for: agents, or the link.
    pub address: SocketAddr,
    pub admin: Option<SocketAddr>,
    /// Its way to the store.
    pub store: FaultProxy,
    /// The way of gateways to it, where that is recorded.
    pub link: Option<FaultProxy>,
    child: Option<Child>,
}

/// What a node is started with.
pub struct Start {
    pub name: String,
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub folder: PathBuf,
    pub ops: SocketAddr,
    pub address: SocketAddr,
    pub admin: Option<SocketAddr>,
    pub store: FaultProxy,
    pub link: Option<FaultProxy>,
}

impl Node {
    pub(crate) fn new(start: Start) -> Self {
        let Start { name, program, arguments, folder, ops, address, admin, store, link } = start;
        let log = folder.join(format!("{name}.log"));
        Self { name, program, arguments, log, ops, address, admin, store, link, child: None }
    }

    /// Starts the process, where it does not run. Its log goes on.
    pub fn run(&mut self) -> Result<(), String> {
        if self.child.is_some() {
            return Ok(());
        }
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log).map_err(|e| e.to_string())?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env("RUST_LOG", std::env::var("ROLLCALL_TEST_LOG").unwrap_or("info".to_owned()));
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(|e| e.to_string())?).stderr(log).kill_on_drop(true);
        self.child = Some(command.spawn().map_err(|e| format!("{}: {e}", self.program.display()))?);
        Ok(())
    }

    pub async fn ready(&self) -> Result<(), String> {
        let began = Instant::now();
        while !self.is_ready().await {
            if began.elapsed() > READY {
                return Err(format!("{} is not ready:\n{}", self.name, self.log()));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    pub async fn is_ready(&self) -> bool {
        self.asked("/readyz").await.is_some_and(|status| status == 200)
    }

    pub async fn is_alive(&self) -> bool {
        self.asked("/livez").await.is_some_and(|status| status == 200)
    }

    async fn asked(&self, path: &str) -> Option<u16> {
        let client = Client::new(format!("http://{}", self.ops));
        let asked = client.send(Method::GET, path, &[], "");
        let answer = tokio::time::timeout(Duration::from_secs(2), asked).await.ok()?.ok()?;
        Some(answer.status.as_u16())
    }

    pub async fn metrics(&self) -> Result<String, String> {
        let client = Client::new(format!("http://{}", self.ops));
        Ok(client.send(Method::GET, "/metrics", &[], "").await?.text())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Kilobytes of memory that it holds, as the kernel counts them.
    pub fn resident_kb(&self) -> Option<u64> {
        let status = std::fs::read_to_string(Path::new("/proc").join(self.id()?.to_string()).join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.split_whitespace().next()?.parse().ok()
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) {
            kill_process(pid, signal).ok();
        }
    }

    /// As a machine that is gone.
    pub async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().await.ok();
        }
    }

    /// It stands still, and knows nothing of it.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to end, and waits for that.
    pub async fn terminate(&mut self) -> Result<ExitStatus, String> {
        self.ask_to_end();
        self.ended().await
    }

    pub fn ask_to_end(&self) {
        self.signal(Signal::TERM);
    }

    /// Waits for the end of a process that was asked to end.
    pub async fn ended(&mut self) -> Result<ExitStatus, String> {
        let Some(mut child) = self.child.take() else { return Err("it does not run".to_owned()) };
        let ended = tokio::time::timeout(Duration::from_secs(120), child.wait()).await;
        ended.map_err(|_| format!("{} does not end", self.name))?.map_err(|e| e.to_string())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.thaw();
    }
}
