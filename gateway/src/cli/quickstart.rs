//! The built-in configuration: a demo tenant, a demo server of our own, an issuer whose key stays on this machine.

use std::io::Write as _;
use std::path::Path;

use rollcall_shared::digest::unguessable;
use rollcall_shared::mcp::raw;

/// Where the quickstart keeps its store and its keys.
const FOLDER: &str = "./rollcall-data";
const KEYS: &str = "quickstart.keys";

/// The quickstart's secrets, made once.
pub(super) struct Keys {
    pub(super) issuer: String,
    pub(super) admin: String,
}

impl Keys {
    /// Reads the keys of an earlier start, or makes new ones that only this user can read.
    pub(super) fn load_or_make() -> std::io::Result<Self> {
        use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
        let path = Path::new(FOLDER).join(KEYS);
        if let Ok(text) = std::fs::read_to_string(&path)
            && let Some((issuer, admin)) = text.trim().split_once('\n')
        {
            return Ok(Self { issuer: issuer.to_owned(), admin: admin.to_owned() });
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(FOLDER)?;
        let keys = Self { issuer: format!("{}{}", unguessable(), unguessable()), admin: unguessable() };
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        writeln!(file, "{}\n{}", keys.issuer, keys.admin)?;
        Ok(keys)
    }
}

/// The configuration as a file would have it. The store has a folder of its own, so that its first start seeds it.
pub(super) fn config(keys: &Keys, with_public: bool) -> std::io::Result<String> {
    let program = raw::quote(&std::env::current_exe()?.to_string_lossy());
    let public = if with_public {
        r#"
      - {id: everything, command: [npx, -y, "@modelcontextprotocol/server-everything@2026.8.31", stdio]}
      - {id: memory, command: [npx, -y, "@modelcontextprotocol/server-memory@2026.8.31"]}
      - {id: time, command: [uvx, "mcp-server-time@2026.10.19", --local-timezone, UTC]}"#
    } else {
        ""
    };
    Ok(format!(
        r#"
listen: 127.0.0.1:8080
admin: {{listen: 127.0.0.1:8081, keys: [{{id: quickstart, secret: {admin}, tenants: ["*"]}}]}}
ops: {{listen: 127.0.0.1:8082}}
store: file:{FOLDER}/store
issuers: [{{issuer: rollcall-quickstart, audience: rollcall, hs256_key: {issuer}, tenant: demo}}]
tenants:
  demo:
    servers:
      - {{id: demo, command: [{program}, demo-server]}}{public}
    default_policy: {{}}
"#,
        admin = raw::quote(&keys.admin),
        issuer = raw::quote(&keys.issuer),
    ))
}
