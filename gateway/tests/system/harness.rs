//! A system in a few fluent lines.

use std::path::PathBuf;
use std::time::Duration;

use http::Method;
use rollcall_gateway::standalone::{Link, Standalone};
use rollcall_loadtest::client::{Answer, Client};
use rollcall_loadtest::issuer::Issuer;
use rollcall_shared::config::{Config, Environment};
use rollcall_shared::cores::Cores;
use rollcall_shared::task::Tasks;
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const ISSUER: &str = "https://id.example";
pub(crate) const ADMIN_KEY: &str = "an-admin-key-for-tests";

/// A system under test.
pub(crate) struct System {
    standalone: Option<Standalone>,
    yaml: String,
    environment: Environment,
    pub(crate) issuer: Issuer,
    pub(crate) folder: TempDir,
}

/// What a test may change of the configuration.
pub(crate) struct Setup {
    link: Link,
    tenants: String,
    more: String,
    store: String,
    environment: Vec<(String, String)>,
    folder: TempDir,
    issuer: Issuer,
}

/// Runs a test over both links.
pub(crate) async fn over_both(test: impl AsyncFn(Link)) {
    test(Link::Direct).await;
    test(Link::Socket).await;
}

/// `tenants` as the configuration file has them, below `tenants:`, in flow style.
pub(crate) fn setup(tenants: &str) -> Setup {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    Setup {
        link: Link::Direct,
        tenants: tenants.to_owned(),
        more: String::new(),
        store: "memory:".to_owned(),
        environment: std::env::vars().collect(),
        folder: tempfile::tempdir().expect("a folder"),
        issuer: Issuer::new(ISSUER, "rollcall", "k1").expect("an issuer"),
    }
}

impl Setup {
    pub(crate) fn link(mut self, link: Link) -> Self {
        self.link = link;
        self
    }

    /// Further lines of the configuration.
    pub(crate) fn more(mut self, lines: &str) -> Self {
        self.more.push_str(lines);
        self.more.push('\n');
        self
    }

    pub(crate) fn store(mut self, store: &str) -> Self {
        store.clone_into(&mut self.store);
        self
    }

    pub(crate) fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Takes the issuer of an earlier system, so that its tokens stay good.
    /// A file beside the configuration.
    pub(crate) fn file(self, name: &str, text: &str) -> Self {
        std::fs::write(self.folder.path().join(name), text).expect("a file");
        self
    }

    pub(crate) fn issuer(mut self, issuer: Issuer) -> Self {
        self.issuer = issuer;
        self
    }

    pub(crate) async fn start(self) -> System {
        let jwks = self.folder.path().join("jwks.json");
        std::fs::write(&jwks, Issuer::jwks(&[&self.issuer]).to_string()).expect("a file");
        let issuers = if self.more.contains("issuers:") {
            String::new()
        } else {
            format!(
                "issuers: [{{issuer: \"{ISSUER}\", audience: rollcall, jwks_file: \"{}\", tenant_claim: tenant, tenants: [\"*\"]}}]",
                jwks.display()
            )
        };
        let yaml = format!(
            "listen: 127.0.0.1:0\nadmin: {{listen: 127.0.0.1:0, keys: [{{id: ops, secret: {ADMIN_KEY}, tenants: [\"*\"]}}]}}\n\
             ops: {{listen: 127.0.0.1:0}}\nkeys: {{sealing: [{{id: k1, secret: a-sealing-key-for-tests-of-32-bytes}}]}}\nstore: \"{}\"\n{issuers}\ntenants: {}\n{}",
            self.store, self.tenants, self.more
        );
        let yaml = yaml.replace("JWKS", &jwks.display().to_string());
        let pairs = self.environment.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        let environment = Environment::from_pairs(pairs);
        let mut config = Config::read(&yaml, &environment).unwrap_or_else(|problems| panic!("{yaml}\n{problems:#?}"));
        config.import_apis(self.folder.path()).unwrap_or_else(|problems| panic!("{problems:#?}"));
        let tasks = Tasks::over(Cores::start().expect("threads"));
        let started = Standalone::start(config, environment.clone(), self.link, tasks).await;
        let standalone = started.expect("a system");
        System { standalone: Some(standalone), yaml, environment, issuer: self.issuer, folder: self.folder }
    }
}

impl System {
    pub(crate) fn inner(&self) -> &Standalone {
        self.standalone.as_ref().expect("running")
    }

    /// An agent at another gateway node, over the same store and worker.
    pub(crate) async fn agent_elsewhere(&self, tenant: &str, session: &str) -> Agent {
        let config = Config::read(&self.yaml, &self.environment).expect("the same configuration");
        let gateway = self.inner().another_gateway(config).await.expect("a gateway");
        let client = Client::new(format!("http://{}", gateway.agents));
        Agent { client: client.with_token(self.token(tenant, session)) }
    }

    /// A client of the agent listener without a token.
    pub(crate) fn client(&self) -> Client {
        Client::new(format!("http://{}", self.inner().gateway.agents))
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.inner().gateway.agents)
    }

    pub(crate) fn ops(&self) -> Client {
        Client::new(format!("http://{}", self.inner().gateway.ops.expect("an address")))
    }

    pub(crate) fn token(&self, tenant: &str, session: &str) -> String {
        self.issuer.token(tenant, session).expect("a token")
    }

    pub(crate) fn agent(&self, tenant: &str, session: &str) -> Agent {
        Agent { client: self.client().with_token(self.token(tenant, session)) }
    }

    /// One admin request.
    pub(crate) async fn admin(&self, method: Method, path: &str, body: Value) -> Answer {
        self.admin_with(ADMIN_KEY, method, path, &[], body).await
    }

    pub(crate) async fn admin_with(
        &self,
        key: &str,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Value,
    ) -> Answer {
        let client = Client::new(format!("http://{}", self.inner().gateway.admin.expect("an address"))).with_token(key);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        client.send(method, &format!("/admin/v1/{path}"), headers, body).await.expect("an answer")
    }

    /// A write that must succeed.
    pub(crate) async fn put(&self, path: &str, body: Value) -> Value {
        let answer = self.admin(Method::PUT, path, body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    pub(crate) async fn metrics(&self) -> String {
        self.ops().send(Method::GET, "/metrics", &[], "").await.expect("an answer").text()
    }

    /// The system stops whole: nothing of it runs on.
    pub(crate) async fn stop(mut self) -> (TempDir, Issuer) {
        let standalone = self.standalone.take().expect("running");
        assert!(standalone.stop_within(Duration::from_secs(20)).await, "everything ends");
        (std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder")), self.issuer)
    }
}

/// An agent with a token.
#[derive(Clone)]
pub(crate) struct Agent {
    pub(crate) client: Client,
}

impl Agent {
    /// The names that `tools/list` gives.
    pub(crate) async fn names(&self) -> Vec<String> {
        self.list("/mcp").await.iter().map(|t| t["name"].as_str().expect("a name").to_owned()).collect()
    }

    pub(crate) async fn list(&self, path: &str) -> Vec<Value> {
        let answer = self.client.legacy(path, "tools/list", json!({})).await.expect("an answer").json();
        answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}")).clone()
    }

    /// The whole answer to a legacy call.
    pub(crate) async fn call(&self, name: &str, arguments: Value) -> Value {
        self.call_at("/mcp", name, arguments).await
    }

    pub(crate) async fn call_at(&self, path: &str, name: &str, arguments: Value) -> Value {
        let params = json!({"name": name, "arguments": arguments});
        self.client.legacy(path, "tools/call", params).await.expect("an answer").rpc()
    }

    /// The text of a result.
    pub(crate) async fn text(&self, name: &str, arguments: Value) -> String {
        text_of(&self.call(name, arguments).await)
    }
}

/// The first text of a result, or the message of an error.
pub(crate) fn text_of(answer: &Value) -> String {
    let text = answer["result"]["content"][0]["text"].as_str().or(answer["error"]["message"].as_str());
    text.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// Waits until `condition` holds. The bound is for machines under load: what is awaited usually comes at once.
pub(crate) async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("not within 60 s: {what}"));
}

/// The program under test, for servers that are its own.
pub(crate) fn program() -> String {
    env!("CARGO_BIN_EXE_rollcall").to_owned()
}

/// The folder of the peers' scripts.
pub(crate) fn peers_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../loadtest/peers")
}
