//! `rollcall explain`: why a session may, or may not, use a name. Asks the admin API.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::{UNAVAILABLE, ask, fail, say};

const NOT_ALLOWED: u8 = 1;

#[derive(Args)]
pub(super) struct Options {
    /// The admin listener of a running Rollcall, such as http://127.0.0.1:8081
    #[arg(long)]
    url: String,
    /// An operator's key for it.
    #[arg(long, env = "ROLLCALL_ADMIN_KEY", hide_env_values = true)]
    key: String,
    #[arg(long)]
    tenant: String,
    #[arg(long)]
    session: String,
    /// The issuer of the session's token, where several may speak for the tenant.
    #[arg(long)]
    issuer: Option<String>,
    /// Scopes of the session's token, separated by spaces.
    #[arg(long)]
    scope: Option<String>,
    /// Prints the whole answer as JSON.
    #[arg(long)]
    json: bool,
    /// A tool, prompt or resource by its whole name.
    name: String,
}

pub(super) async fn run(options: Options) -> ExitCode {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("session", &options.session).append_pair("name", &options.name);
    let optional = [("issuer", &options.issuer), ("scope", &options.scope)];
    for (name, value) in optional.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
        query.append_pair(name, value);
    }
    let path = format!("/admin/v1/tenants/{}/explain?{}", options.tenant, query.finish());
    let body = match ask::get(&options.url, &path, &options.key).await {
        Ok(body) => body,
        Err(error) => return fail(UNAVAILABLE, &format!("{}: {error}", options.url)),
    };
    say(&if options.json { format!("{body:#}") } else { as_text(&body) });
    match body.get("verdict").and_then(Value::as_str) {
        Some("allowed") => ExitCode::SUCCESS,
        _ => ExitCode::from(NOT_ALLOWED),
    }
}

/// The verdict, and each fact that had a part in it, on a line of its own.
fn as_text(body: &Value) -> String {
    let text = |key: &str| body.get(key).and_then(Value::as_str).unwrap_or_default();
    let mut out = format!("{}: {}", text("name"), text("verdict"));
    let facts = body.as_object().into_iter().flatten().filter(|(key, _)| !["name", "verdict"].contains(&key.as_str()));
    for (key, value) in facts {
        let words = match value {
            Value::Null | Value::Bool(false) => continue,
            Value::Bool(true) => String::new(),
            Value::String(text) => format!(": {text}"),
            Value::Array(list) if list.is_empty() => continue,
            Value::Array(list) => {
                let words: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
                format!(": {}", words.join(", "))
            }
            Value::Number(_) | Value::Object(_) => format!(": {value}"),
        };
        out.push_str(&format!("\n  {}{words}", key.replace('_', " ")));
    }
    out
}
