//! Redis as several servers: a cluster, and a master with its replica under Sentinels.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

use crate::redis::{RedisServer, free_port};

const READY: Duration = Duration::from_secs(30);

async fn until(what: &str, condition: impl Fn() -> bool) -> Result<(), String> {
    let began = Instant::now();
    while !condition() {
        if began.elapsed() > READY {
            return Err(format!("not in time: {what}"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// A Redis Cluster of three masters.
pub struct RedisCluster {
    pub servers: Vec<RedisServer>,
}

impl RedisCluster {
    /// With so many replicas a master.
    pub async fn start(replicas: usize) -> Result<Self, String> {
        let mut servers = Vec::new();
        for _ in 0..3 * (1 + replicas) {
            let bus = free_port()?.to_string();
            let arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--appendonly", "yes"];
            let arguments = [&arguments[..], &["--cluster-port", &bus, "--repl-diskless-sync-delay", "0"]].concat();
            servers.push(RedisServer::start_with(&arguments).await?);
        }
        let first = servers.first().ok_or("no servers")?;
        let mut arguments = vec!["--cluster".to_owned(), "create".to_owned()];
        arguments.extend(servers.iter().map(|server| server.address().to_string()));
        arguments.extend(["--cluster-replicas".to_owned(), replicas.to_string(), "--cluster-yes".to_owned()]);
        let made = first.command(&arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
        let is_ok = |server: &RedisServer| {
            server.command(&["CLUSTER", "INFO"]).is_ok_and(|info| info.contains("cluster_state:ok"))
        };
        until(&made, || servers.iter().all(is_ok)).await?;
        // Before it has everything, a replica does not stand in for its master.
        let in_step = |server: &&RedisServer| {
            server.command(&["INFO", "replication"]).is_ok_and(|info| info.contains("master_link_status:up"))
        };
        until("replicas in step", || servers.iter().filter(in_step).count() == 3 * replicas).await?;
        Ok(Self { servers })
    }

    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.servers.iter().map(|server| server.address().to_string()).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    /// Empties every master.
    pub fn flush(&self) {
        for server in &self.servers {
            server.command(&["FLUSHALL"]).ok();
        }
    }

    /// The place of the master that has a key.
    pub fn master_of(&self, key: &str) -> Result<usize, String> {
        let first = self.servers.first().ok_or("no servers")?;
        let slot: u64 = first.command(&["CLUSTER", "KEYSLOT", key])?.parse().map_err(|_| "no slot")?;
        let nodes = first.command(&["CLUSTER", "NODES"])?;
        let has = |line: &&str| {
            line.contains("master") && line.split(' ').skip(8).any(|range| {
                let (from, to) = range.split_once('-').unwrap_or((range, range));
                matches!((from.parse::<u64>(), to.parse::<u64>()), (Ok(from), Ok(to)) if (from..=to).contains(&slot))
            })
        };
        let line = nodes.lines().find(has).ok_or("nobody has the slot")?;
        let fits = |server: &RedisServer| line.contains(&format!("{}@", server.address()));
        self.servers.iter().position(fits).ok_or_else(|| line.to_owned())
    }
}

/// A master, its replica, and three Sentinels that watch them.
pub struct Sentinels {
    /// The first was the master at the beginning.
    pub servers: Vec<RedisServer>,
    ports: Vec<u16>,
    sentinels: Vec<Child>,
    _folder: TempDir,
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        for sentinel in &mut self.sentinels {
            sentinel.kill().ok();
            sentinel.wait().ok();
        }
    }
}

impl Sentinels {
    pub async fn start() -> Result<Self, String> {
        let lasting = ["--appendonly", "yes", "--repl-diskless-sync-delay", "0"];
        let master = RedisServer::start_with(&lasting).await?;
        let replica = RedisServer::start_with(&lasting).await?;
        replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()])?;
        until("a replica", || master.command(&["INFO", "replication"]).is_ok_and(|info| info.contains("state=online")))
            .await?;
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let mut all =
            Self { servers: vec![master, replica], ports: Vec::new(), sentinels: Vec::new(), _folder: folder };
        for n in 0..3 {
            all.watch(n)?;
        }
        let known = |port: &u16| {
            let asked = asks(*port, &["SENTINEL", "master", "main"]).unwrap_or_default();
            let after = |name: &str| asked.lines().skip_while(|line| *line != name).nth(1).map(str::to_owned);
            after("num-slaves").as_deref() == Some("1") && after("num-other-sentinels").as_deref() == Some("2")
        };
        until("sentinels know one another", || all.ports.iter().all(known)).await?;
        Ok(all)
    }

    fn watch(&mut self, n: usize) -> Result<(), String> {
        let port = free_port()?;
        let master = self.servers.first().ok_or("no master")?.port();
        let file = self._folder.path().join(format!("sentinel-{n}.conf"));
        let text = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 6000\n"
        );
        std::fs::write(&file, text).map_err(|e| e.to_string())?;
        let mut command = Command::new("redis-server");
        command.arg(&file).arg("--sentinel").current_dir(self._folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.sentinels.push(command.spawn().map_err(|e| e.to_string())?);
        self.ports.push(port);
        Ok(())
    }

    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+sentinel://{}/main", addresses.join(","))
    }
}

fn asks(port: u16, arguments: &[&str]) -> Option<String> {
    let output = Command::new("redis-cli").args(["-h", "127.0.0.1", "-p", &port.to_string()]).args(arguments).output();
    Some(String::from_utf8_lossy(&output.ok()?.stdout).into_owned())
}
