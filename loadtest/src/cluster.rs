//! A cluster of real processes on loopback: gateways behind a round-robin, workers, a Redis of its own, an issuer.
//!
//! Each node reaches the store through a proxy of its own, which can fail. Everything lives in a temporary folder and ends
//! with the cluster.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::client::{Answer, Client};
use crate::fault::{FaultProxy, RoundRobin};
use crate::issuer::Issuer;
use crate::node::{Node, Start};
use crate::programs::{self, Programs};
use crate::redis::{RedisServer, free_port};

/// The operator's key of every cluster.
const ADMIN_KEY: &str = "an-operators-key-for-tests";
const ISSUER: &str = "https://id.example";
/// How often a load balancer looks whether a node is ready.
const READINESS_LOOK: Duration = Duration::from_millis(200);

/// `store` of a node's configuration file, made of its name and of the address through which it reaches the store.
type StoreOf = Box<dyn Fn(&str, SocketAddr) -> Value + Send>;

/// What a cluster consists of.
pub struct Plan {
    pub gateways: usize,
    pub workers: usize,
    /// Of the configuration file, by id.
    pub tenants: Value,
    /// Further keys of the configuration file.
    pub more: Value,
    pub store: StoreOf,
    /// Arguments of `redis-server`.
    pub redis: &'static [&'static str],
    /// Whether what gateways and workers say to one another is recorded.
    pub records_links: bool,
}

impl Plan {
    pub fn new(gateways: usize, workers: usize, tenants: Value) -> Self {
        Self {
            gateways,
            workers,
            tenants,
            more: json!({}),
            store: Box::new(|_, address| format!("redis://{address}").into()),
            redis: &["--appendonly", "yes", "--appendfsync", "always"],
            records_links: false,
        }
    }
}

/// See the module.
pub struct Cluster {
    pub redis: RedisServer,
    pub gateways: Vec<Node>,
    pub workers: Vec<Node>,
    pub balancer: RoundRobin,
    pub issuer: Issuer,
    folder: TempDir,
}

/// Built once for all clusters of a process.
static PROGRAMS: OnceCell<Result<Programs, String>> = OnceCell::const_new();

/// The programs that clusters run.
pub async fn built() -> Result<&'static Programs, String> {
    let build = async || programs::build().await.map_err(|e| e.to_string());
    PROGRAMS.get_or_init(build).await.as_ref().map_err(Clone::clone)
}

fn local() -> Result<SocketAddr, String> {
    Ok(([127, 0, 0, 1], free_port()?).into())
}

impl Cluster {
    /// Starts everything and waits until every node is ready.
    pub async fn start(plan: Plan) -> Result<Self, String> {
        let programs = built().await?;
        let redis = RedisServer::start_with(plan.redis).await?;
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let issuer = Issuer::new(ISSUER, "rollcall", "k1")?;
        let keys = folder.path().join("jwks.json");
        std::fs::write(&keys, Issuer::jwks(&[&issuer]).to_string()).map_err(|e| e.to_string())?;
        let balancer = RoundRobin::start(Vec::new()).await.map_err(|e| e.to_string())?;
        let mut config = json!({
            "public_url": format!("http://{}", balancer.address),
            "keys": {
                "sealing": [{"id": "s1", "secret": "a-sealing-key-for-tests-of-32-bytes"}],
                "wire": [{"id": "w1", "secret": "a-wire-key-for-tests-of-thirty-two-bytes"}],
            },
            "issuers": [{
                "issuer": ISSUER, "audience": "rollcall", "jwks_file": keys, "tenant_claim": "tenant", "tenants": ["*"],
            }],
            "drain": {"delay": "2s"},
            "tenants": plan.tenants,
        });
        merge(&mut config, &plan.more);
        let mut cluster = Self { redis, gateways: Vec::new(), workers: Vec::new(), balancer, issuer, folder };
        for n in 0..plan.gateways {
            let (address, admin, ops) = (local()?, local()?, local()?);
            let mut own = config.clone();
            let key = json!({"id": "ops", "secret": ADMIN_KEY, "tenants": ["*"]});
            merge(
                &mut own,
                &json!({"listen": address, "admin": {"listen": admin, "keys": [key]}, "ops": {"listen": ops}}),
            );
            let store = FaultProxy::start(cluster.redis.address()).await.map_err(|e| e.to_string())?;
            let name = format!("gateway-{n}");
            merge(&mut own, &json!({"store": (plan.store)(&name, store.address)}));
            let arguments = vec!["gateway".to_owned(), "--config".to_owned(), cluster.write(&name, &own)?];
            let (program, folder) = (programs.rollcall.clone(), cluster.folder.path().to_owned());
            let admin = Some(admin);
            cluster.gateways.push(Node::new(Start {
                name,
                program,
                arguments,
                folder,
                ops,
                address,
                admin,
                store,
                link: None,
            }));
        }
        for n in 0..plan.workers {
            let (address, ops) = (local()?, local()?);
            let mut own = config.clone();
            let name = format!("worker-{n}");
            let link = match plan.records_links {
                true => Some(FaultProxy::recording(address).await.map_err(|e| e.to_string())?),
                false => None,
            };
            let advertise = link.as_ref().map_or(address, |link| link.address);
            let worker = json!({"listen": address, "advertise": advertise, "name": name});
            merge(&mut own, &json!({"worker": worker, "ops": {"listen": ops}}));
            let store = FaultProxy::start(cluster.redis.address()).await.map_err(|e| e.to_string())?;
            merge(&mut own, &json!({"store": (plan.store)(&name, store.address)}));
            let arguments = vec!["--config".to_owned(), cluster.write(&name, &own)?];
            let (program, folder) = (programs.worker.clone(), cluster.folder.path().to_owned());
            cluster.workers.push(Node::new(Start {
                name,
                program,
                arguments,
                folder,
                ops,
                address,
                admin: None,
                store,
                link,
            }));
        }
        cluster.seed(programs).await?;
        for node in cluster.gateways.iter_mut().chain(&mut cluster.workers) {
            node.run()?;
        }
        for node in cluster.gateways.iter().chain(&cluster.workers) {
            node.ready().await?;
        }
        cluster.balance();
        Ok(cluster)
    }

    async fn seed(&self, programs: &Programs) -> Result<(), String> {
        let config = self.folder.path().join("gateway-0.json");
        let mut command = tokio::process::Command::new(&programs.rollcall);
        command.arg("seed").arg("--config").arg(config).kill_on_drop(true);
        let output = command.output().await.map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(text) }
    }

    fn write(&self, name: &str, config: &Value) -> Result<String, String> {
        let path = self.folder.path().join(format!("{name}.json"));
        // JSON is YAML, and needs no quoting of ours.
        std::fs::write(&path, config.to_string()).map_err(|e| e.to_string())?;
        Ok(path.display().to_string())
    }

    /// The round-robin goes over all gateways.
    pub fn balance(&self) {
        self.balancer.set(self.gateways.iter().map(|node| node.address).collect());
    }

    /// Asks a gateway to end as a deployment does: who balances the load looks whether it is ready, and sends it no more
    /// once it is not. Starts it again.
    pub async fn replace_gateway(&mut self, at: usize) -> Result<(), String> {
        let others = self.gateways.iter().enumerate().filter(|(n, _)| *n != at).map(|(_, node)| node.address).collect();
        let node = self.gateways.get_mut(at).ok_or("no such gateway")?;
        node.ask_to_end();
        while node.is_ready().await {
            tokio::time::sleep(READINESS_LOOK).await;
        }
        self.balancer.set(others);
        anew(node).await?;
        self.balance();
        Ok(())
    }

    /// Asks a worker to end, and starts it again.
    pub async fn replace_worker(&mut self, at: usize) -> Result<(), String> {
        let node = self.workers.get_mut(at).ok_or("no such worker")?;
        node.ask_to_end();
        anew(node).await
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// An agent that comes through the round-robin.
    pub fn agent(&self, tenant: &str, session: &str) -> Result<Client, String> {
        self.agent_at(self.balancer.address, tenant, session)
    }

    /// An agent of one gateway.
    pub fn agent_at(&self, address: SocketAddr, tenant: &str, session: &str) -> Result<Client, String> {
        Ok(Client::new(format!("http://{address}")).with_token(self.issuer.token(tenant, session)?))
    }

    /// One admin request to one of the gateways.
    pub async fn admin_at(&self, gateway: usize, method: Method, path: &str, body: Value) -> Result<Answer, String> {
        let address = self.gateways.get(gateway).and_then(|node| node.admin).ok_or("no such gateway")?;
        let client = Client::new(format!("http://{address}")).with_token(ADMIN_KEY);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        client.send(method, &format!("/admin/v1/{path}"), &[("content-type", "application/json")], body).await
    }

    /// A write over the first gateway that must succeed.
    pub async fn put(&self, path: &str, body: Value) -> Result<Value, String> {
        let answer = self.admin_at(0, Method::PUT, path, body).await?;
        if answer.status == 200 {
            Ok(answer.json())
        } else {
            Err(format!("{path}: {} {}", answer.status, answer.text()))
        }
    }

    pub async fn delete(&self, path: &str) -> Result<Value, String> {
        let answer = self.admin_at(0, Method::DELETE, path, Value::Null).await?;
        if answer.status == 200 {
            Ok(answer.json())
        } else {
            Err(format!("{path}: {} {}", answer.status, answer.text()))
        }
    }

    /// Keeps the logs of all nodes for whoever looks into a failure, and says where.
    pub fn logs(&self) -> String {
        let Ok(kept) = tempfile::Builder::new().prefix("rollcall-logs-").tempdir().map(TempDir::keep) else {
            return "no folder for the logs".to_owned();
        };
        for node in self.gateways.iter().chain(&self.workers) {
            std::fs::write(kept.join(&node.name), node.log()).ok();
        }
        std::fs::write(kept.join("redis"), self.redis.log()).ok();
        format!("logs: {}", kept.display())
    }

    /// Asks everybody to end, gateways first. Fails where one does not end well.
    pub async fn stop(mut self) -> Result<(), String> {
        for node in self.gateways.iter_mut().chain(&mut self.workers) {
            let status = node.terminate().await?;
            if !status.success() {
                return Err(format!("{} ended with {status}:\n{}", node.name, node.log()));
            }
        }
        Ok(())
    }
}

/// Waits for the end of a process that was asked to end, and starts it again.
async fn anew(node: &mut Node) -> Result<(), String> {
    let status = node.ended().await?;
    if !status.success() {
        return Err(format!("{} ended with {status}:\n{}", node.name, node.log()));
    }
    node.run()?;
    node.ready().await
}

fn merge(into: &mut Value, more: &Value) {
    if let (Some(into), Some(more)) = (into.as_object_mut(), more.as_object()) {
        into.extend(more.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
}

/// Waits until a condition holds, at most so long. Gives the time that it took.
pub async fn within(patience: Duration, condition: impl AsyncFn() -> bool) -> Option<Duration> {
    let began = tokio::time::Instant::now();
    while !condition().await {
        if began.elapsed() > patience {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Some(began.elapsed())
}
