//! From nodes to the configuration. One function a section; each reports and goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use url::Url;

use super::{
    Admin, AdminKey, Config, Drain, FileApi, FileTenant, Issuer, KeySource, Keys, Limits, LinkTls, NamedKey, Store,
    Telemetry, TenantScope, TenantSource, WorkerAddress,
};
use crate::document::{Fields, Kind, Node, Problems};
use crate::ids::{ApiId, BundleName, IssuerId, TenantId};
use crate::limits;
use crate::model::server::parse_url;
use crate::model::{Bundle, PlatformTool, Server, Settings};
use crate::openapi::Api;
use crate::secret::Secret;
use crate::store::redis::RedisSettings;

pub(super) fn config(root: &Node, problems: &Problems) -> Option<Config> {
    let mut fields = root.fields("", problems)?;
    let listen = address(&mut fields, "listen", problems).unwrap_or(([127, 0, 0, 1], 8080).into());
    let public_url = fields
        .optional("public_url")
        .map_or_else(|| Url::parse(&format!("http://{listen}")).ok(), |(n, p)| n.parsed(&p, problems, public_url));
    let config = Config {
        listen,
        public_url: public_url?,
        allowed_hosts: texts(&mut fields, "allowed_hosts", problems),
        allowed_origins: texts(&mut fields, "allowed_origins", problems),
        admin: fields.optional("admin").and_then(|(n, p)| admin(n, &p, problems)),
        ops: fields.optional("ops").and_then(|(n, p)| {
            let mut inner = n.fields(&p, problems)?;
            let listen = required_address(&mut inner, problems);
            inner.finish();
            listen
        }),
        store: fields
            .optional("store")
            .and_then(|(n, p)| store(n, &p, problems))
            .unwrap_or_else(|| Store::File(PathBuf::from("./rollcall-data"))),
        keys: fields.optional("keys").and_then(|(n, p)| keys(n, &p, problems)).unwrap_or_default(),
        worker: fields.optional("worker").and_then(|(n, p)| worker(n, &p, problems)),
        drain: fields.optional("drain").and_then(|(n, p)| drain(n, &p, problems)).unwrap_or_default(),
        limits: fields.optional("limits").and_then(|(n, p)| limits(n, &p, problems)).unwrap_or_default(),
        upstream_networks: fields.optional("upstream").and_then(|(n, p)| networks(n, &p, problems)).unwrap_or_default(),
        issuers: fields
            .optional("issuers")
            .map(|(n, p)| n.list(&p, problems, |n, p| issuer(n, p, &listen, problems)))
            .unwrap_or_default(),
        tenants: fields.optional("tenants").map(|(n, p)| tenants(n, &p, problems)).unwrap_or_default(),
        telemetry: fields.optional("telemetry").and_then(|(n, p)| telemetry(n, &p, problems)).unwrap_or_default(),
    };
    let mut seen = BTreeSet::new();
    for issuer in &config.issuers {
        if !seen.insert(issuer.issuer.as_str()) {
            fields.problem(format!("issuers: {} is there twice", issuer.issuer));
        }
    }
    fields.finish();
    Some(config)
}

/// `scheme://host[:port][/prefix]`, without query or fragment.
fn public_url(text: &str) -> Result<Url, String> {
    let url = parse_url(text)?;
    if url.query().is_some() { Err("no query".to_owned()) } else { Ok(url) }
}

/// A text, or a mapping with the text as its `url` and what a shared store needs beside it.
fn store(node: &Node, path: &str, problems: &Problems) -> Option<Store> {
    if !matches!(node.kind, Kind::Map(_)) {
        return node.parsed(path, problems, store_url);
    }
    let mut fields = node.fields(path, problems)?;
    let mut store = fields.required("url").and_then(|(n, p)| n.parsed(&p, problems, store_url));
    let mut file = |key: &'static str| fields.optional(key).and_then(|(n, p)| n.text(&p, problems)).map(PathBuf::from);
    let (ca_file, cert_file, key_file) = (file("ca_file"), file("cert_file"), file("key_file"));
    let sentinel_password =
        fields.optional("sentinel_password").and_then(|(n, p)| n.text(&p, problems)).map(Secret::new);
    let lease = fields.optional("lease").and_then(|(n, p)| {
        let lease = n.duration(&p, problems)?;
        if lease < limits::STORE_LEASE_LEAST {
            problems.add(&n.place, &p, format!("a lease of at least {} s", limits::STORE_LEASE_LEAST.as_secs()));
        }
        Some(lease)
    });
    match &mut store {
        Some(Store::Redis { settings, lease: default }) => {
            if cert_file.is_some() != key_file.is_some() {
                fields.problem("`cert_file` and `key_file` belong together");
            }
            if !settings.tls && (ca_file.is_some() || cert_file.is_some()) {
                fields.problem("certificates are for TLS: rediss://, rediss+sentinel:// or rediss+cluster://");
            }
            (settings.ca_file, settings.cert_file, settings.key_file) = (ca_file, cert_file, key_file);
            settings.sentinel_password = sentinel_password;
            *default = lease.unwrap_or(*default);
        }
        Some(_) => fields.problem("only a shared store takes more than its `url`"),
        None => {}
    }
    fields.finish();
    store
}

fn store_url(text: &str) -> Result<Store, String> {
    match text.split_once(':') {
        Some(("memory", "")) => Ok(Store::Memory),
        Some(("file", folder)) if !folder.is_empty() => Ok(Store::File(PathBuf::from(folder))),
        Some((scheme, _)) if scheme.starts_with("redis") => {
            let settings = Box::new(RedisSettings::parse(text)?);
            Ok(Store::Redis { settings, lease: limits::STORE_LEASE })
        }
        _ => Err("expected memory:, file:FOLDER, redis://HOST:PORT, redis+sentinel:// or redis+cluster://".to_owned()),
    }
}

fn address(fields: &mut Fields<'_>, key: &'static str, problems: &Problems) -> Option<SocketAddr> {
    fields.optional(key).and_then(|(n, p)| n.parsed(&p, problems, parse_address))
}

fn required_address(fields: &mut Fields<'_>, problems: &Problems) -> Option<SocketAddr> {
    fields.required("listen").and_then(|(n, p)| n.parsed(&p, problems, parse_address))
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected an address and a port, such as 127.0.0.1:8080".to_owned())
}

fn texts(fields: &mut Fields<'_>, key: &'static str, problems: &Problems) -> Vec<String> {
    fields
        .optional(key)
        .map(|(n, p)| n.list(&p, problems, |n, p| n.text(p, problems).map(str::to_ascii_lowercase)))
        .unwrap_or_default()
}

fn scope(node: &Node, path: &str, problems: &Problems) -> TenantScope {
    let words = node.list(path, problems, |n, p| n.text(p, problems).map(|t| (t.to_owned(), n.place.clone())));
    if words.iter().any(|(word, _)| word == "*") {
        return TenantScope::All;
    }
    let mut list = Vec::new();
    for (word, place) in words {
        match TenantId::parse(&word) {
            Ok(id) => list.push(id),
            Err(error) => problems.add(&place, path, format!("{word:?}: {error}")),
        }
    }
    TenantScope::Only(list)
}

fn admin(node: &Node, path: &str, problems: &Problems) -> Option<Admin> {
    let mut fields = node.fields(path, problems)?;
    let listen = required_address(&mut fields, problems);
    let keys = fields
        .required("keys")
        .map(|(n, p)| n.list(&p, problems, |n, p| admin_key(n, p, problems)))
        .unwrap_or_default();
    fields.finish();
    Some(Admin { listen: listen?, keys })
}

fn admin_key(node: &Node, path: &str, problems: &Problems) -> Option<AdminKey> {
    let named = named_key_fields(node, path, problems)?;
    let (NamedKey { id, secret }, mut fields) = named;
    let tenants = fields.required("tenants").map(|(n, p)| scope(n, &p, problems));
    let may_write = fields
        .optional("role")
        .map_or(Some(true), |(n, p)| n.choice(&p, problems, &[("admin", true), ("reader", false)]));
    fields.finish();
    Some(AdminKey { id, secret, tenants: tenants?, may_write: may_write? })
}

fn named_key_fields<'a>(node: &'a Node, path: &str, problems: &'a Problems) -> Option<(NamedKey, Fields<'a>)> {
    let mut fields = node.fields(path, problems)?;
    let id = fields.required("id").and_then(|(n, p)| n.text(&p, problems)).map(str::to_owned);
    let secret = fields.required("secret").and_then(|(n, p)| {
        let text = n.text(&p, problems)?;
        if text.len() < 16 {
            problems.add(&n.place, &p, "a secret of fewer than 16 characters can be guessed");
            return None;
        }
        Some(Secret::new(text))
    });
    Some((NamedKey { id: id?, secret: secret? }, fields))
}

fn keys(node: &Node, path: &str, problems: &Problems) -> Option<Keys> {
    let mut fields = node.fields(path, problems)?;
    let mut list = |key: &'static str| {
        let Some((node, path)) = fields.optional(key) else { return Vec::new() };
        let found = node.list(&path, problems, |n, p| {
            let (key, rest) = named_key_fields(n, p, problems)?;
            rest.finish();
            Some(key)
        });
        if found.len() > 2 {
            problems.add(&node.place, &path, "two keys at a time, the new and the old");
        }
        found
    };
    let out = Keys { sealing: list("sealing"), wire: list("wire") };
    fields.finish();
    Some(out)
}

fn worker(node: &Node, path: &str, problems: &Problems) -> Option<WorkerAddress> {
    let mut fields = node.fields(path, problems)?;
    let listen = required_address(&mut fields, problems);
    let advertise = fields.optional("advertise").and_then(|(n, p)| n.text(&p, problems)).map(str::to_owned);
    let name = fields.optional("name").and_then(|(n, p)| n.text(&p, problems)).map(str::to_owned);
    let weight = fields.optional("weight").and_then(|(n, p)| n.integer(&p, 1..=1000, problems)).unwrap_or(1);
    let tls = fields.optional("tls").and_then(|(n, p)| link_tls(n, &p, problems));
    fields.finish();
    Some(WorkerAddress { listen: listen?, advertise, name, weight: u32::try_from(weight).unwrap_or(1), tls })
}

fn link_tls(node: &Node, path: &str, problems: &Problems) -> Option<LinkTls> {
    let mut fields = node.fields(path, problems)?;
    let mut file = |key| fields.required(key).and_then(|(n, p)| n.text(&p, problems)).map(PathBuf::from);
    let (ca_file, cert_file, key_file) = (file("ca_file"), file("cert_file"), file("key_file"));
    fields.finish();
    Some(LinkTls { ca_file: ca_file?, cert_file: cert_file?, key_file: key_file? })
}

fn drain(node: &Node, path: &str, problems: &Problems) -> Option<Drain> {
    let mut fields = node.fields(path, problems)?;
    let default = Drain::default();
    let mut time = |key, default| fields.optional(key).and_then(|(n, p)| n.duration(&p, problems)).unwrap_or(default);
    let out = Drain { delay: time("delay", default.delay), patience: time("patience", default.patience) };
    fields.finish();
    Some(out)
}

fn limits(node: &Node, path: &str, problems: &Problems) -> Option<Limits> {
    let mut fields = node.fields(path, problems)?;
    let default = Limits::default();
    let mut size = |key: &'static str, default: usize| {
        fields.optional(key).and_then(|(n, p)| n.bytes(&p, problems)).unwrap_or(default)
    };
    let body_bytes = size("body_bytes", default.body_bytes);
    let buffered_bytes = size("buffered_bytes", default.buffered_bytes);
    let calls_in_flight = fields
        .optional("calls_in_flight")
        .and_then(|(n, p)| n.integer(&p, 1..=10_000_000, problems))
        .map_or(default.calls_in_flight, |n| usize::try_from(n).unwrap_or(usize::MAX));
    if buffered_bytes < body_bytes {
        fields.problem("`buffered_bytes` is smaller than `body_bytes`, so no full body could ever be read");
    }
    fields.finish();
    Some(Limits { body_bytes, buffered_bytes, calls_in_flight })
}

fn networks(node: &Node, path: &str, problems: &Problems) -> Option<Vec<IpNet>> {
    let mut fields = node.fields(path, problems)?;
    let list = fields
        .optional("allow_networks")
        .map(|(n, p)| n.list(&p, problems, |n, p| n.parsed(p, problems, |t| t.parse::<IpNet>())))
        .unwrap_or_default();
    fields.finish();
    Some(list)
}

fn telemetry(node: &Node, path: &str, problems: &Problems) -> Option<Telemetry> {
    let mut fields = node.fields(path, problems)?;
    let otlp_endpoint = fields.optional("otlp_endpoint").and_then(|(n, p)| n.parsed(&p, problems, parse_url));
    let sample_permille =
        fields.optional("sample_permille").and_then(|(n, p)| n.integer(&p, 0..=1000, problems)).unwrap_or(1000);
    fields.finish();
    Some(Telemetry { otlp_endpoint, sample_permille })
}

fn issuer(node: &Node, path: &str, listen: &SocketAddr, problems: &Problems) -> Option<Issuer> {
    let mut fields = node.fields(path, problems)?;
    let issuer = fields.required("issuer").and_then(|(n, p)| n.parsed(&p, problems, IssuerId::parse));
    let audience = fields.required("audience").and_then(|(n, p)| n.text(&p, problems)).map(str::to_owned);
    let sources: Vec<KeySource> = [
        fields.optional("jwks_url").and_then(|(n, p)| n.parsed(&p, problems, parse_url)).map(KeySource::JwksUrl),
        fields
            .optional("jwks_file")
            .and_then(|(n, p)| n.text(&p, problems))
            .map(|t| KeySource::JwksFile(PathBuf::from(t))),
        fields.optional("hs256_key").and_then(|(n, p)| {
            let text = n.text(&p, problems)?;
            if text.len() < 32 {
                problems.add(&n.place, &p, "an HS256 key needs at least 32 characters (RFC 7518, section 3.2)");
            }
            if !listen.ip().is_loopback() {
                problems.add(&n.place, &p, "a shared key is for development: `listen` must be a loopback address");
            }
            Some(KeySource::Hs256(Secret::new(text)))
        }),
    ]
    .into_iter()
    .flatten()
    .collect();
    if sources.len() != 1 {
        fields.problem("exactly one of `jwks_url`, `jwks_file` and `hs256_key` is needed");
    }
    let claim = fields.optional("tenant_claim").and_then(|(n, p)| n.text(&p, problems)).map(str::to_owned);
    let fixed = fields.optional("tenant").and_then(|(n, p)| n.parsed(&p, problems, TenantId::parse));
    let listed = fields.optional("tenants").map(|(n, p)| scope(n, &p, problems));
    let (tenant, tenants) = match (claim, fixed, listed) {
        (Some(claim), None, Some(scope)) => (Some(TenantSource::Claim(claim)), Some(scope)),
        (None, Some(id), None) => (Some(TenantSource::Fixed(id.clone())), Some(TenantScope::Only(vec![id]))),
        (Some(_), None, None) => {
            fields.problem("`tenants` is missing: whom may this issuer speak for? [\"*\"] means all");
            (None, None)
        }
        _ => {
            fields.problem("either `tenant_claim` with `tenants`, or `tenant`");
            (None, None)
        }
    };
    let session_claim =
        fields.optional("session_claim").map_or(Some("sid"), |(n, p)| n.text(&p, problems)).map(str::to_owned);
    fields.finish();
    Some(Issuer {
        issuer: issuer?,
        audience: audience?,
        keys: sources.into_iter().next()?,
        tenant: tenant?,
        session_claim: session_claim?,
        tenants: tenants?,
    })
}

fn tenants(node: &Node, path: &str, problems: &Problems) -> BTreeMap<TenantId, FileTenant> {
    let mut out = BTreeMap::new();
    for (name, node) in node.entries(path, problems) {
        let path = format!("{path}.{name}");
        match TenantId::parse(name) {
            Ok(id) => {
                if let Some(tenant) = file_tenant(node, &path, problems) {
                    out.insert(id, tenant);
                }
            }
            Err(error) => problems.add(&node.place, &path, error.to_string()),
        }
    }
    out
}

fn file_tenant(node: &Node, path: &str, problems: &Problems) -> Option<FileTenant> {
    let mut fields = node.fields(path, problems)?;
    let settings = Settings::read_fields(&mut fields, problems);
    let servers = fields
        .optional("servers")
        .map(|(n, p)| n.list(&p, problems, |n, p| Server::read(n, p, None, true, problems)))
        .unwrap_or_default();
    let tools = fields
        .optional("tools")
        .map(|(n, p)| n.list(&p, problems, |n, p| PlatformTool::read(n, p, None, problems)))
        .unwrap_or_default();
    let apis =
        fields.optional("apis").map(|(n, p)| n.list(&p, problems, |n, p| file_api(n, p, problems))).unwrap_or_default();
    let mut bundles = BTreeMap::new();
    if let Some((node, path)) = fields.optional("bundles") {
        for (name, node) in node.entries(&path, problems) {
            let path = format!("{path}.{name}");
            match BundleName::parse(name) {
                Ok(name) => {
                    bundles.insert(name, Bundle::read(node, &path, problems));
                }
                Err(error) => problems.add(&node.place, &path, error.to_string()),
            }
        }
    }
    fields.finish();
    let broken = claimed_twice(&servers, &tools).or_else(|| {
        let mut ids = BTreeSet::new();
        let twice = apis.iter().find(|api| !ids.insert(&api.api.id));
        twice.map(|api| format!("two APIs claim the id {}", api.api.id))
    });
    Some(FileTenant { settings, servers, tools, apis, bundles, broken })
}

fn file_api(node: &Node, path: &str, problems: &Problems) -> Option<FileApi> {
    let mut fields = node.fields(path, problems)?;
    let id = fields.required("id").and_then(|(n, p)| n.parsed(&p, problems, ApiId::parse));
    let file = fields.required("file").and_then(|(n, p)| n.text(&p, problems)).map(PathBuf::from);
    let api = Api::read_fields(&mut fields, id, problems);
    fields.finish();
    Some(FileApi { api: api?, file: file?, remarks: Vec::new() })
}

/// Two objects of one tenant that claim one name.
pub(super) fn claimed_twice(servers: &[Server], tools: &[PlatformTool]) -> Option<String> {
    let mut ids = BTreeSet::new();
    let mut aliases = BTreeMap::new();
    for server in servers {
        if !ids.insert(&server.id) {
            return Some(format!("two servers claim the id {}", server.id));
        }
        if let Some(alias) = &server.alias
            && let Some(first) = aliases.insert(alias, &server.id)
        {
            return Some(format!("the servers {first} and {} both claim the alias {alias}", server.id));
        }
    }
    let mut names = BTreeSet::new();
    tools.iter().find(|tool| !names.insert(&tool.name)).map(|tool| format!("two tools claim the name {}", tool.name))
}
