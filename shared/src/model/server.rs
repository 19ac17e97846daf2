//! A tenant's upstream MCP server: how to reach it, and how its tools are offered.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use crate::digest::Digest;
use crate::document::{Fields, Node, Problems};
use crate::ids::{Alias, GroupName, ServerId};
use crate::limits;
use crate::secret::Secret;

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Streamable HTTP. Header values are secrets; `${NAME}` in them is a worker's business, and only in files.
    Http { url: Url, headers: BTreeMap<String, Secret> },
    /// A child process that speaks over its standard input and output. Only a configuration file may name one.
    Command { program: String, args: Vec<Secret>, env: BTreeMap<String, Secret>, directory: Option<String> },
}

/// Who shares one upstream connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    #[default]
    Shared,
    /// One connection a session, for upstreams that keep state.
    Session,
}

/// The era that a server speaks, where the operator knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerEra {
    #[default]
    Auto,
    Modern,
    Legacy,
}

/// One upstream server as configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    pub id: ServerId,
    /// The name from which the base alias is made; the id where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// An alias that the operator chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<Alias>,
    pub transport: Transport,
    #[serde(default)]
    pub isolation: Isolation,
    #[serde(default)]
    pub era: ServerEra,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// Scopes that a token must carry for any tool of this server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Whether `readOnlyHint` of this server counts: annotations come from upstream.
    #[serde(default)]
    pub trust_annotations: bool,
    /// Whether its own `instructions` are part of what a session that may use it is told: text from upstream, which agents
    /// act on.
    #[serde(default)]
    pub passes_instructions: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalog_age_ms: Option<u64>,
}

impl Server {
    /// `id` is given where the address of the request names it.
    pub fn read(node: &Node, path: &str, id: Option<&ServerId>, may_run: bool, problems: &Problems) -> Option<Self> {
        let mut fields = node.fields(path, problems)?;
        let written = match id {
            Some(id) => {
                let inside = fields.optional("id").and_then(|(n, p)| n.parsed(&p, problems, ServerId::parse));
                if inside.is_some_and(|inside| inside != *id) {
                    fields.problem(format!("`id` is not {id}, which the address names"));
                }
                Some(id.clone())
            }
            None => fields.required("id").and_then(|(n, p)| n.parsed(&p, problems, ServerId::parse)),
        };
        let transport = read_transport(&mut fields, may_run, problems);
        let mut ms = |key: &'static str| {
            fields
                .optional(key)
                .and_then(|(n, p)| n.duration(&p, problems))
                .map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
        };
        let call_timeout_ms = ms("call_timeout");
        let idle_timeout_ms = ms("idle_timeout");
        let catalog_age_ms = ms("catalog_age");
        let name = fields.optional("name").and_then(|(n, p)| n.text(&p, problems)).map(str::to_owned);
        let alias = fields.optional("alias").and_then(|(n, p)| n.parsed(&p, problems, Alias::parse));
        let isolation = fields
            .optional("isolation")
            .and_then(|(n, p)| {
                n.choice(&p, problems, &[("shared", Isolation::Shared), ("session", Isolation::Session)])
            })
            .unwrap_or_default();
        // Catalogs by credential come with credentials by principal; until then there is one class.
        fields.optional("catalog").and_then(|(n, p)| n.choice(&p, problems, &[("shared", ())]));
        let era = fields
            .optional("era")
            .and_then(|(n, p)| {
                let words = [("auto", ServerEra::Auto), ("modern", ServerEra::Modern), ("legacy", ServerEra::Legacy)];
                n.choice(&p, problems, &words)
            })
            .unwrap_or_default();
        let group = fields.optional("group").and_then(|(n, p)| n.parsed(&p, problems, GroupName::parse));
        let requires = read_scopes(&mut fields, problems);
        let trust_annotations =
            fields.optional("trust_annotations").and_then(|(n, p)| n.boolean(&p, problems)).unwrap_or(false);
        let passes_instructions = fields
            .optional("instructions")
            .and_then(|(n, p)| n.choice(&p, problems, &[("ignore", false), ("pass", true)]))
            .unwrap_or(false);
        fields.finish();
        Some(Self {
            id: written?,
            name,
            alias,
            transport: transport?,
            isolation,
            era,
            group,
            requires,
            trust_annotations,
            passes_instructions,
            call_timeout_ms,
            idle_timeout_ms,
            catalog_age_ms,
        })
    }

    /// Which server this is, whatever its credentials and display: its address, or its command.
    pub fn fingerprint(&self) -> String {
        let parts: Vec<&[u8]> = match &self.transport {
            Transport::Http { url, .. } => vec![b"url", url.as_str().as_bytes()],
            Transport::Command { program, args, directory, .. } => [&b"command"[..], program.as_bytes()]
                .into_iter()
                .chain(args.iter().map(|a| a.expose().as_bytes()))
                .chain(directory.as_ref().map(|d| d.as_bytes()))
                .collect(),
        };
        Digest::of_parts(parts).hex(16)
    }

    pub fn call_timeout(&self) -> Duration {
        self.call_timeout_ms.map_or(limits::CALL_TIMEOUT, Duration::from_millis)
    }

    pub fn idle_timeout(&self) -> Duration {
        self.idle_timeout_ms.map_or(limits::UPSTREAM_IDLE, Duration::from_millis)
    }

    pub fn catalog_age(&self) -> Duration {
        self.catalog_age_ms.map_or(limits::CATALOG_AGE, Duration::from_millis)
    }

    /// For answers of the admin API: everything but the secrets. Many servers take a key in the query of their URL.
    pub fn redacted(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let (Transport::Http { url, .. }, Some(shown)) = (&self.transport, value.pointer_mut("/transport/http/url"))
            && url.query().is_some()
        {
            let mut url = url.clone();
            url.set_query(Some("[secret]"));
            *shown = url.to_string().into();
        }
        for part in ["headers", "env", "args"] {
            for kind in ["http", "command"] {
                match value.pointer_mut(&format!("/transport/{kind}/{part}")) {
                    Some(serde_json::Value::Object(map)) => map.values_mut().for_each(|v| *v = "[secret]".into()),
                    Some(serde_json::Value::Array(list)) => list.iter_mut().for_each(|v| *v = "[secret]".into()),
                    _ => {}
                }
            }
        }
        value
    }
}

/// `requires: [scope]`.
pub(crate) fn read_scopes(fields: &mut Fields<'_>, problems: &Problems) -> Vec<String> {
    fields
        .optional("requires")
        .map(|(n, p)| n.list(&p, problems, |n, p| n.text(p, problems).map(str::to_owned)))
        .unwrap_or_default()
}

fn read_transport(fields: &mut Fields<'_>, may_run: bool, problems: &Problems) -> Option<Transport> {
    let url = fields.optional("url");
    let command = fields.optional("command");
    let headers = fields.optional("headers").map(|(n, p)| read_headers(n, &p, problems)).unwrap_or_default();
    let env = fields.optional("env").map(|(n, p)| read_secrets(n, &p, problems)).unwrap_or_default();
    let directory = fields.optional("directory").and_then(|(n, p)| n.text(&p, problems)).map(str::to_owned);
    match (url, command) {
        (Some((node, path)), None) => {
            if !env.is_empty() || directory.is_some() {
                fields.problem("`env` and `directory` belong to `command`, not to `url`");
            }
            node.parsed(&path, problems, parse_url).map(|url| Transport::Http { url, headers })
        }
        (None, Some((node, path))) => {
            if !may_run {
                problems.add(&node.place, &path, "a command comes from the configuration file alone");
                return None;
            }
            if !headers.is_empty() {
                fields.problem("`headers` belong to `url`, not to `command`");
            }
            let mut words = node.list(&path, problems, |n, p| n.text(p, problems).map(str::to_owned)).into_iter();
            let Some(program) = words.next().filter(|p| !p.is_empty()) else {
                problems.add(&node.place, &path, "expected a list: the program, then its arguments");
                return None;
            };
            Some(Transport::Command { program, args: words.map(Secret::new).collect(), env, directory })
        }
        (Some(_), Some(_)) => {
            fields.problem("both `url` and `command`");
            None
        }
        (None, None) => {
            fields.problem("one of `url` and `command` is missing");
            None
        }
    }
}

/// An http or https URL without user information.
pub fn parse_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|e| e.to_string())?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("the scheme must be http or https".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("no user name or password inside a URL; use headers".to_owned());
    }
    if url.fragment().is_some() {
        return Err("no fragment".to_owned());
    }
    Ok(url)
}

/// Headers that Rollcall computes or that frame a message.
pub(crate) const OURS: [&str; 11] = [
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "accept",
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
    "mcp-session-id",
    "last-event-id",
];

/// Header names are tokens; those that Rollcall computes or that frame a message are not the operator's.
pub(crate) fn read_headers(node: &Node, path: &str, problems: &Problems) -> BTreeMap<String, Secret> {
    for (name, value) in node.entries(path, problems) {
        let lower = name.to_ascii_lowercase();
        if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
            problems.add(&value.place, path, format!("{name:?} is no header name"));
        } else if OURS.contains(&lower.as_str()) || lower.starts_with("mcp-param-") {
            problems.add(&value.place, path, format!("`{name}` is computed by Rollcall"));
        }
    }
    read_secrets(node, path, problems).into_iter().map(|(k, v)| (k.to_ascii_lowercase(), v)).collect()
}

fn read_secrets(node: &Node, path: &str, problems: &Problems) -> BTreeMap<String, Secret> {
    let mut out = BTreeMap::new();
    for (name, value) in node.entries(path, problems) {
        let inner = format!("{path}.{name}");
        if let Some(text) = value.text(&inner, problems) {
            if text.bytes().any(|b| matches!(b, b'\r' | b'\n' | 0)) {
                problems.add(&value.place, &inner, "a line break or NUL inside the value");
            }
            out.insert(name.clone(), Secret::new(text));
        }
    }
    out
}
