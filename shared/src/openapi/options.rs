//! What an operator says about an API: where it is, which operations are wanted, what goes with each call.

use std::collections::BTreeMap;
use std::fmt;

use url::Url;

use super::document::Found;
use crate::document::{Fields, Problems};
use crate::ids::{ApiId, GroupName};
use crate::limits;
use crate::model::Glob;
use crate::model::server::{parse_url, read_headers, read_scopes};
use crate::secret::Secret;

/// See the module.
#[derive(Debug, Clone)]
pub struct Api {
    pub id: ApiId,
    /// Instead of the `servers` of the description.
    pub url: Option<Url>,
    /// Before the names of all its tools.
    pub prefix: String,
    /// Operations that become tools; all of them where it is empty.
    pub include: Vec<Pick>,
    /// Wins over `include`.
    pub exclude: Vec<Pick>,
    /// A label of the tools: the id of the API where none is given, so that a policy can name them together.
    pub group: Option<GroupName>,
    /// Sent with every call; secrets.
    pub headers: BTreeMap<String, Secret>,
    pub requires: Vec<String>,
    pub timeout_ms: Option<u64>,
}

/// Some operations: `METHOD /path` (or `* /path`), `tag:name`, or a name. Each may hold stars.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pick {
    text: String,
    of: PickOf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PickOf {
    Route { method: Option<String>, path: Glob },
    Tag(Glob),
    Name(Glob),
}

impl fmt::Display for Pick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Pick {
    pub fn parse(text: &str) -> Result<Self, String> {
        let of = match (text.strip_prefix("tag:"), text.split_once(' ')) {
            (Some(tag), _) => PickOf::Tag(Glob::parse(tag)?),
            (None, Some((method, path))) => {
                let method = match method.to_ascii_uppercase().as_str() {
                    "*" => None,
                    method @ ("GET" | "POST" | "PUT" | "PATCH" | "DELETE") => Some(method.to_owned()),
                    _ => return Err("expected a method, or `*`, before the space".to_owned()),
                };
                let path = path.trim_start();
                if !path.starts_with(['/', '*']) {
                    return Err("expected a path that begins with `/` after the method".to_owned());
                }
                PickOf::Route { method, path: Glob::parse(path)? }
            }
            (None, None) if text.is_empty() => return Err("expected a name".to_owned()),
            (None, None) => PickOf::Name(Glob::parse(text)?),
        };
        Ok(Self { text: text.to_owned(), of })
    }

    pub(super) fn matches(&self, found: &Found<'_>, name: &str) -> bool {
        match &self.of {
            PickOf::Route { method, path } => {
                method.as_deref().is_none_or(|method| method == found.method) && path.matches(found.path)
            }
            PickOf::Tag(tag) => found.tags().any(|written| tag.matches(written)),
            PickOf::Name(glob) => glob.matches(name),
        }
    }
}

impl Api {
    /// The options among other fields. `id` is read by the caller: an address or a field names it.
    pub fn read_fields(fields: &mut Fields<'_>, id: Option<ApiId>, problems: &Problems) -> Option<Self> {
        let url = fields.optional("url").and_then(|(n, p)| n.parsed(&p, problems, parse_base));
        let prefix = fields.optional("prefix").and_then(|(n, p)| n.parsed(&p, problems, parse_prefix));
        let mut picks = |key| {
            let read = fields.optional(key);
            read.map(|(n, p)| n.list(&p, problems, |n, p| n.parsed(p, problems, Pick::parse))).unwrap_or_default()
        };
        let (include, exclude) = (picks("include"), picks("exclude"));
        let group = fields.optional("group").and_then(|(n, p)| n.parsed(&p, problems, GroupName::parse));
        let headers = fields.optional("headers").map(|(n, p)| read_headers(n, &p, problems)).unwrap_or_default();
        let requires = read_scopes(fields, problems);
        let timeout = fields.optional("timeout").and_then(|(n, p)| n.duration(&p, problems));
        let id = id?;
        let group = group.or_else(|| GroupName::parse(id.as_str()).ok());
        let timeout_ms = timeout.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
        Some(Self {
            id,
            url,
            prefix: prefix.unwrap_or_default(),
            include,
            exclude,
            group,
            headers,
            requires,
            timeout_ms,
        })
    }
}

/// Paths are put behind it, so that it has no query.
fn parse_base(text: &str) -> Result<Url, String> {
    let url = parse_url(text)?;
    if url.query().is_some() { Err("no query: paths are put behind it".to_owned()) } else { Ok(url) }
}

fn parse_prefix(text: &str) -> Result<String, String> {
    let grammar = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    if text.len() <= limits::API_PREFIX_CHARS && text.bytes().all(grammar) {
        Ok(text.to_owned())
    } else {
        Err(format!("expected at most {} characters of [A-Za-z0-9_-]", limits::API_PREFIX_CHARS))
    }
}
