//! Platform tools: tools that the platform itself offers, each backed by one HTTP call.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::http_call::HttpCall;
use super::server::read_scopes;
use crate::document::{Kind, Node, Problems};
use crate::ids::{ApiId, GroupName, PlatformName};
use crate::limits;
use crate::mcp::raw;
use crate::schema::Schema;

/// One platform tool. Its name is its visible name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlatformTool {
    pub name: PlatformName,
    /// The imported API that it is an operation of, and with which it comes and goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<ApiId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    pub description: String,
    /// JSON text of an object schema.
    pub input_schema: String,
    #[serde(default)]
    pub read_only: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    pub http: HttpCall,
}

impl PlatformTool {
    /// `name` is given where the address of the request names it.
    pub fn read(node: &Node, path: &str, name: Option<&PlatformName>, problems: &Problems) -> Option<Self> {
        let mut fields = node.fields(path, problems)?;
        let written = match name {
            Some(name) => {
                let inside = fields.optional("name").and_then(|(n, p)| n.parsed(&p, problems, PlatformName::parse));
                if inside.is_some_and(|inside| inside != *name) {
                    fields.problem(format!("`name` is not {name}, which the address names"));
                }
                Some(name.clone())
            }
            None => fields.required("name").and_then(|(n, p)| n.parsed(&p, problems, PlatformName::parse)),
        };
        let group = fields.optional("group").and_then(|(n, p)| n.parsed(&p, problems, GroupName::parse));
        let title = fields.optional("title").and_then(|(n, p)| n.text(&p, problems)).map(str::to_owned);
        let description = fields.required("description").and_then(|(n, p)| n.text(&p, problems)).map(str::to_owned);
        let input_schema = fields.required("input_schema").and_then(|(n, p)| {
            let is_object = matches!(&n.kind, Kind::Map(entries)
                if entries.iter().any(|(k, v)| k == "type" && v.kind == Kind::Text("object".to_owned())));
            if !is_object {
                problems.add(&n.place, &p, "expected a JSON Schema with `type: object`");
            }
            let schema = is_object.then(|| n.to_json())?;
            match Schema::compile(&schema) {
                Ok(_) => Some(schema),
                Err(error) => {
                    problems.add(&n.place, &p, format!("no valid JSON Schema: {error}"));
                    None
                }
            }
        });
        let read_only = fields.optional("read_only").and_then(|(n, p)| n.boolean(&p, problems)).unwrap_or(false);
        let requires = read_scopes(&mut fields, problems);
        let http = fields.required("http").and_then(|(n, p)| {
            let call = HttpCall::read(n, &p, problems)?;
            for problem in call.unplaced(input_schema.as_deref().unwrap_or("{}")) {
                problems.add(&n.place, &p, problem);
            }
            Some(call)
        });
        fields.finish();
        Some(Self {
            name: written?,
            api: None,
            group,
            title,
            description: description?,
            input_schema: input_schema?,
            read_only,
            requires,
            http: http?,
        })
    }

    pub fn call_timeout(&self) -> Duration {
        self.http.timeout_ms.map_or(limits::CALL_TIMEOUT, Duration::from_millis)
    }

    /// The tool as `tools/list` shows it.
    pub fn listed(&self) -> String {
        let mut out = format!(r#"{{"name":{}"#, raw::quote(self.name.as_str()));
        if let Some(title) = &self.title {
            out.push_str(&format!(r#","title":{}"#, raw::quote(title)));
        }
        out.push_str(&format!(
            r#","description":{},"inputSchema":{},"annotations":{{"readOnlyHint":{}}}}}"#,
            raw::quote(&self.description),
            self.input_schema,
            self.read_only
        ));
        out
    }

    /// For answers of the admin API: everything but the secrets.
    pub fn redacted(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let Some(serde_json::Value::Object(map)) = value.pointer_mut("/http/headers") {
            map.values_mut().for_each(|v| *v = "[secret]".into());
        }
        value
    }
}
