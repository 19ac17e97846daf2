//! The configuration: one YAML file, read once, wholly and loudly.
//!
//! Unknown keys are errors. `ROLLCALL__A__B` in the environment overrides the key `a.b`. `${NAME}` reads the environment,
//! except below `tenants`: what stands there belongs to workers, which expand it themselves, so that a gateway never
//! holds an upstream's credential.

mod apis;
mod environment;
mod read;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use url::Url;

use crate::document::{Problem, Problems, from_yaml};
use crate::ids::{BundleName, IssuerId, TenantId};
use crate::limits;
use crate::model::{Bundle, PlatformTool, Server, Settings};
use crate::openapi::Api;
use crate::secret::Secret;
use crate::store::redis::RedisSettings;

pub use environment::{Environment, expand};

/// Everything that one process was told.
#[derive(Debug, Clone)]
pub struct Config {
    pub listen: SocketAddr,
    /// Who we are in links and metadata documents; never made from a Host header.
    pub public_url: Url,
    pub allowed_hosts: Vec<String>,
    pub allowed_origins: Vec<String>,
    pub admin: Option<Admin>,
    pub ops: Option<SocketAddr>,
    pub store: Store,
    pub keys: Keys,
    pub worker: Option<WorkerAddress>,
    pub drain: Drain,
    pub limits: Limits,
    /// Networks, beyond the public internet, that URLs written over the admin API may reach.
    pub upstream_networks: Vec<IpNet>,
    pub issuers: Vec<Issuer>,
    pub tenants: BTreeMap<TenantId, FileTenant>,
    pub telemetry: Telemetry,
}

#[derive(Debug, Clone)]
pub struct Admin {
    pub listen: SocketAddr,
    pub keys: Vec<AdminKey>,
}

/// One operator key.
#[derive(Debug, Clone)]
pub struct AdminKey {
    pub id: String,
    pub secret: Secret,
    pub tenants: TenantScope,
    pub may_write: bool,
}

/// Tenants that a key or an issuer may speak for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantScope {
    All,
    Only(Vec<TenantId>),
}

impl TenantScope {
    pub fn covers(&self, tenant: &TenantId) -> bool {
        match self {
            TenantScope::All => true,
            TenantScope::Only(list) => list.contains(tenant),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    Memory,
    File(PathBuf),
    /// Redis or Valkey, and for how long a node may rely on what it holds when that does not answer.
    Redis {
        settings: Box<RedisSettings>,
        lease: Duration,
    },
}

/// Keys that seal handles and sign what gateways tell workers; two at a time, to rotate.
#[derive(Debug, Clone, Default)]
pub struct Keys {
    pub sealing: Vec<NamedKey>,
    pub wire: Vec<NamedKey>,
}

#[derive(Debug, Clone)]
pub struct NamedKey {
    pub id: String,
    pub secret: Secret,
}

#[derive(Debug, Clone)]
pub struct WorkerAddress {
    pub listen: SocketAddr,
    /// `host:port` by which gateways reach it; where it listens, if that is not said.
    pub advertise: Option<String>,
    /// What its share of the placements hangs on: kept over restarts, it keeps its share.
    pub name: Option<String>,
    /// Its share, in relation to others'.
    pub weight: u32,
    /// For gateways and workers: both show a certificate of the same authority.
    pub tls: Option<LinkTls>,
}

/// PEM files.
#[derive(Debug, Clone)]
pub struct LinkTls {
    pub ca_file: PathBuf,
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
}

/// How a process ends.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    /// From not being ready to closing the doors: the time that load balancers and gateways need to notice.
    pub delay: Duration,
    /// How long calls in flight may take from there.
    pub patience: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Self { delay: limits::DRAIN_DELAY, patience: limits::CALL_TIMEOUT + limits::HEAD_TIMEOUT }
    }
}

/// Bounds that an operator may move.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub body_bytes: usize,
    pub buffered_bytes: usize,
    pub calls_in_flight: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: limits::BODY_BYTES,
            buffered_bytes: limits::BUFFERED_BYTES,
            calls_in_flight: limits::CALLS_IN_FLIGHT,
        }
    }
}

/// Who may issue session tokens, and how they are read.
#[derive(Debug, Clone)]
pub struct Issuer {
    pub issuer: IssuerId,
    pub audience: String,
    pub keys: KeySource,
    pub tenant: TenantSource,
    pub session_claim: String,
    /// Whom this issuer may speak for.
    pub tenants: TenantScope,
}

#[derive(Debug, Clone)]
pub enum KeySource {
    JwksUrl(Url),
    JwksFile(PathBuf),
    /// A shared secret: for development, on loopback only.
    Hs256(Secret),
}

#[derive(Debug, Clone)]
pub enum TenantSource {
    Claim(String),
    Fixed(TenantId),
}

#[derive(Debug, Clone, Default)]
pub struct Telemetry {
    /// OTLP over gRPC, for traces.
    pub otlp_endpoint: Option<Url>,
    /// Share of calls that are traced when the caller did not decide, from 0 to 1 in thousandths.
    pub sample_permille: u64,
}

/// A tenant as the file has it. The file owns these objects: the admin API cannot write them.
#[derive(Debug, Clone, Default)]
pub struct FileTenant {
    pub settings: Settings,
    pub servers: Vec<Server>,
    pub tools: Vec<PlatformTool>,
    /// Descriptions of APIs, whose operations are among `tools` once the files are read.
    pub apis: Vec<FileApi>,
    pub bundles: BTreeMap<BundleName, Bundle>,
    /// Two objects of the file claim one name: the tenant is answered with this, the others run.
    pub broken: Option<String>,
}

/// An API that the file names, and what is to be said of its import.
#[derive(Debug, Clone)]
pub struct FileApi {
    pub api: Api,
    /// Its description, relative to the configuration file.
    pub file: PathBuf,
    /// Operations that were left out, and warnings.
    pub remarks: Vec<String>,
}

impl Config {
    /// Reads a configuration file and the files that it names. On failure, a report with every problem and its place.
    pub fn read_file(path: &std::path::Path, environment: &Environment) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut config = Self::read(&text, environment).map_err(|problems| report(path, &problems))?;
        config.import_apis(path.parent().unwrap_or(path)).map_err(|problems| report(path, &problems))?;
        Ok(config)
    }

    /// Reads the text of a configuration file; the files that it names stay unread. On failure every problem is given.
    pub fn read(text: &str, environment: &Environment) -> Result<Self, Vec<Problem>> {
        let problems = Problems::new();
        let config = from_yaml(text, &problems).and_then(|mut root| {
            environment.override_keys(&mut root, &problems);
            environment.expand_outside_tenants(&mut root, &problems);
            read::config(&root, &problems)
        });
        let found = problems.into_list();
        match config {
            Some(config) if found.is_empty() => Ok(config),
            _ => Err(found),
        }
    }
}

fn report(path: &std::path::Path, problems: &[impl std::fmt::Display]) -> String {
    let lines: Vec<String> = problems.iter().map(|problem| format!("\n  {problem}")).collect();
    format!("{} has {} problem(s):{}", path.display(), lines.len(), lines.concat())
}

#[cfg(test)]
mod tests;
