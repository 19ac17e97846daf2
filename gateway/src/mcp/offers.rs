//! What an endpoint offers to a session: a function of its view and of what the servers in it declare.
//!
//! On `/servers/{server}/mcp` that is what the server itself declares, as far as it can be carried between the eras; on
//! `/mcp` it is what any server declares of which the session may use something.

use std::collections::BTreeMap;

use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::raw;
use rollcall_shared::model::{About, EntryKind};
use serde_json::value::RawValue;

use crate::http::Endpoint;
use crate::refusal::Refusal;
use crate::registry::Listed;
use crate::view::Sight;

pub(crate) const TASKS: &str = "io.modelcontextprotocol/tasks";
/// Extensions with methods that no policy speaks of yet: they are not carried.
const NOT_CARRIED: [&str; 1] = ["io.modelcontextprotocol/skills"];

/// See the module.
#[derive(Default)]
pub(crate) struct Offers {
    pub(crate) prompts: bool,
    pub(crate) resources: bool,
    pub(crate) subscribe: bool,
    pub(crate) completions: bool,
    pub(crate) logging: bool,
    /// By id, the settings as a server gave them.
    extensions: BTreeMap<String, String>,
    experimental: Option<String>,
    /// Of the one server of the endpoint.
    instructions: Option<String>,
    info: Option<String>,
}

impl Offers {
    pub(crate) fn of(sight: &Sight, endpoint: &Endpoint) -> Result<Self, Refusal> {
        let mut out = Self::default();
        match &endpoint.server {
            None => {
                for (tools, _, listed) in sight.registry.servers() {
                    if sight.reaches(tools) {
                        out.add(listed);
                    }
                }
                // Names in it may be another server's.
                out.experimental = None;
                // A kind of which this session sees nothing is not offered.
                out.prompts &= sight.view.has(EntryKind::Prompt);
                out.resources &= sight.view.has(EntryKind::Resource) || sight.view.has(EntryKind::Template);
                out.subscribe &= out.resources;
            }
            Some(server) => match sight.registry.segment_of(server) {
                Some(tools) => {
                    // Where denials are hidden, a server of which nothing is allowed is no server.
                    if sight.view.disclosure.hide_denied && !sight.reaches(tools) {
                        return Err(Refusal::NoSuchServer);
                    }
                    if let Some(listed) = sight.registry.listed(tools).filter(|_| sight.reaches(tools)) {
                        out.add(listed);
                        let text = |value: &Option<Box<RawValue>>| value.as_ref().map(|v| v.get().to_owned());
                        out.instructions = text(&listed.listing.about.instructions);
                        out.info = text(&listed.listing.about.info);
                    }
                }
                None if sight.registry.knows_server(server) => {}
                None => return Err(Refusal::NoSuchServer),
            },
        }
        Ok(out)
    }

    fn add(&mut self, listed: &Listed) {
        let about: &About = &listed.listing.about;
        self.prompts |= about.capability("prompts").is_some();
        self.resources |= about.capability("resources").is_some();
        self.subscribe |= about.has_flag("resources", "subscribe");
        self.completions |= about.capability("completions").is_some();
        self.logging |= about.capability("logging").is_some();
        if let Some(experimental) = about.capability("experimental") {
            self.experimental = Some(experimental.get().to_owned());
        }
        let extensions = about.capability("extensions").and_then(|e| raw::members(e.get()).ok()).unwrap_or_default();
        for (id, settings) in extensions {
            // Tasks of the legacy era are another thing.
            let carried = !NOT_CARRIED.contains(&id.as_ref()) && (id != TASKS || listed.era == Era::Modern);
            if carried {
                self.extensions.entry(id.into_owned()).or_insert_with(|| settings.get().to_owned());
            }
        }
    }

    pub(crate) fn tasks(&self) -> bool {
        self.extensions.contains_key(TASKS)
    }

    /// `capabilities`, for a caller of this era.
    pub(crate) fn capabilities(&self, era: Era) -> String {
        let mut out = vec![r#""tools":{"listChanged":true}"#.to_owned()];
        if self.prompts {
            out.push(r#""prompts":{"listChanged":true}"#.to_owned());
        }
        if self.resources {
            let subscribe = if self.subscribe { r#""subscribe":true,"# } else { "" };
            out.push(format!(r#""resources":{{{subscribe}"listChanged":true}}"#));
        }
        for (name, offered) in [("completions", self.completions), ("logging", self.logging)] {
            if offered {
                out.push(format!(r#""{name}":{{}}"#));
            }
        }
        if let Some(experimental) = &self.experimental {
            out.push(format!(r#""experimental":{experimental}"#));
        }
        // A task has no form in the legacy eras.
        let extensions = self.extensions.iter().filter(|(id, _)| era == Era::Modern || *id != TASKS);
        let extensions: Vec<String> = extensions.map(|(id, value)| format!("{}:{value}", raw::quote(id))).collect();
        if !extensions.is_empty() {
            out.push(format!(r#""extensions":{{{}}}"#, extensions.join(",")));
        }
        format!("{{{}}}", out.join(","))
    }

    /// `"instructions":…`, where there are any.
    pub(crate) fn instructions(&self) -> Option<String> {
        self.instructions.as_ref().map(|text| format!(r#""instructions":{text}"#))
    }

    pub(crate) fn info(&self) -> &str {
        self.info.as_deref().unwrap_or(super::SERVER_INFO)
    }
}
