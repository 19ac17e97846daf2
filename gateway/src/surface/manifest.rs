//! The manifest: what a session may use at the moment it is asked for, for a prompt.
//!
//! Names come from upstream, and an agent acts on all that it reads: everything here is in a plain grammar, on its own
//! line, inside one block. Availability is part of it, so it has a digest of its own beside the view's.

use std::collections::{BTreeMap, BTreeSet};

use rollcall_shared::digest::Digest;
use rollcall_shared::model::Server;
use serde_json::{Value, json};
use url::Url;

use super::own;
use super::search::found::own_name;
use crate::policy;
use crate::registry::{Definition, Place};
use crate::view::Sight;

/// The name of the block, and of its attribute.
pub const BLOCK: &str = "available_tools";

/// The note that goes with groups, in the JSON form as in the text.
const GROUPS: &str = "Groups are labels: never the name of a server, never a part of a URL.";

/// What the tools of one server are called there, or how many they are.
enum Tools {
    Names(Vec<String>),
    Count(usize),
}

/// See the module.
pub struct Manifest {
    view: String,
    deferred: bool,
    count: usize,
    base: String,
    custom: BTreeMap<String, Vec<String>>,
    /// Custom tools that are not named, by group.
    unnamed: BTreeMap<String, usize>,
    servers: BTreeMap<String, Tools>,
    unavailable: BTreeMap<String, &'static str>,
    /// A tool of this view, custom ones first, as (route, name).
    example: Option<(String, String)>,
    /// Our own tools that this session may call over HTTP.
    own: Vec<&'static str>,
}

/// Why a server cannot be used now; none while it can.
pub type Reason<'a> = &'a dyn Fn(&Server) -> Option<&'static str>;

impl Manifest {
    /// `reason` is asked of every server that the policy reaches.
    pub fn new(sight: &Sight, public_url: &Url, reason: Reason<'_>) -> Self {
        let base = public_url.as_str().trim_end_matches('/').to_owned();
        let view = &sight.view;
        let (mut custom, mut servers) = (BTreeMap::<String, Vec<String>>::new(), BTreeMap::<String, Tools>::new());
        let mut unnamed = BTreeMap::<String, usize>::new();
        for (place, definition) in view.tools().filter_map(|p| Some((p, sight.registry.definition(p)?))) {
            match sight.registry.alias(place) {
                None => {
                    let tool = sight.registry.docs.tools.get(&*definition.real);
                    let group = tool.and_then(|tool| tool.value.group.as_ref()).map(ToString::to_string);
                    let group = group.unwrap_or_default();
                    match view.lists(place) {
                        true => custom.entry(group).or_default().push(definition.visible.to_string()),
                        false => *unnamed.entry(group).or_default() += 1,
                    }
                }
                Some(alias) => {
                    let tools = servers.entry(alias.to_string()).or_insert_with(|| match view.is_deferred() {
                        true => Tools::Count(0),
                        false => Tools::Names(Vec::new()),
                    });
                    match tools {
                        Tools::Names(names) => names.push(own_name(&definition.real, &definition.visible).to_owned()),
                        Tools::Count(count) => *count += 1,
                    }
                }
            }
        }
        let missing = sight.registry.missing.iter();
        let unlisted = missing.filter(|m| policy::could_reach(&sight.registry, &sight.policy, m));
        let unlisted = unlisted.map(|m| (m.alias.to_string(), reason(&m.server).unwrap_or("not_listed_yet")));
        let listed =
            sight.registry.servers().filter(|(tools, ..)| sight.reaches(*tools)).filter_map(|(tools, server, _)| {
                let alias = sight.registry.alias(Place { segment: tools, local: 0 })?;
                Some((alias.to_string(), reason(server)?))
            });
        let unavailable = listed.chain(unlisted).collect();
        let example = example(sight, &base);
        let own = view.bridge_tools_over_http().collect();
        let (tag, count) = (view.tag(), view.count);
        Self {
            view: tag,
            deferred: view.is_deferred(),
            count,
            base,
            custom,
            unnamed,
            servers,
            unavailable,
            example,
            own,
        }
    }

    fn custom_route(&self) -> String {
        format!("{}/tools/custom/{{tool}}", self.base)
    }

    fn server_route(&self, alias: &str) -> String {
        format!("{}/tools/mcp/{alias}/{{tool}}", self.base)
    }

    pub fn json(&self) -> Value {
        let servers: BTreeMap<&str, Value> = self
            .servers
            .iter()
            .map(|(alias, tools)| {
                let tools = match tools {
                    Tools::Names(names) => json!(names),
                    Tools::Count(count) => json!(count),
                };
                (alias.as_str(), json!({"endpoint": self.server_route(alias), "tools": tools}))
            })
            .collect();
        let mut custom = json!({"endpoint": self.custom_route(), "groups": self.custom, "note": GROUPS});
        if let (false, Some(members)) = (self.unnamed.is_empty(), custom.as_object_mut()) {
            members.insert("not_listed".to_owned(), json!(self.unnamed));
        }
        json!({
            "view": self.view,
            "mode": if self.deferred { "deferred" } else { "direct" },
            "count": self.count,
            "custom_tools": custom,
            "mcp_servers": servers,
            "unavailable": self.unavailable,
        })
    }

    /// The block, begun and ended once, with custom tools first.
    pub fn text(&self) -> String {
        let mut out = format!("<{BLOCK} view=\"{}\">\n", self.view);
        if self.count == 0 {
            out.push_str("This session has no tools. Do not try to call any, and do not try names that you know from elsewhere.\n");
        } else {
            out.push_str(&format!("This session has {}.", own::tools(self.count)));
            out.push_str(match self.deferred {
                true => {
                    " Most of them are not listed here: search for what a tool should do, then call what is found.\n"
                }
                false => " These are all there are: call no others.\n",
            });
        }
        if !self.custom.is_empty() || !self.unnamed.is_empty() {
            out.push_str(&format!("\nCustom tools, POST {}\n", self.custom_route()));
            let groups: BTreeSet<&String> = self.custom.keys().chain(self.unnamed.keys()).collect();
            for group in &groups {
                let label = if group.is_empty() { String::new() } else { format!("[{group}] ") };
                let names = self.custom.get(*group).map(|names| names.join(", "));
                let count = self.unnamed.get(*group).map(|count| format!("{} that are not listed", own::tools(*count)));
                let tools: Vec<String> = names.into_iter().chain(count).collect();
                out.push_str(&format!("- {label}{}\n", tools.join(", and ")));
            }
            if groups.iter().any(|group| !group.is_empty()) {
                out.push_str(&format!("{GROUPS}\n"));
            }
        }
        if !self.servers.is_empty() {
            out.push_str("\nMCP servers\n");
            for (alias, tools) in &self.servers {
                let tools = match tools {
                    Tools::Names(names) => names.join(", "),
                    Tools::Count(count) => own::tools(*count),
                };
                out.push_str(&format!("- {alias}, POST {}: {tools}\n", self.server_route(alias)));
            }
        }
        if !self.unavailable.is_empty() {
            out.push_str("\nConfigured, but not reachable now: calls to these fail until they are back\n");
            for (alias, reason) in &self.unavailable {
                out.push_str(&format!("- {alias}: {reason}\n"));
            }
        }
        let usage = self.usage();
        if !usage.is_empty() {
            out.push_str(&format!("\n{usage}"));
        }
        out.push_str(&format!("</{BLOCK}>\n"));
        out
    }

    /// How to find, describe and call; with a tool of this very view as the example, where one may be named.
    fn usage(&self) -> String {
        let mut out = String::new();
        if self.deferred {
            out.push_str(&format!("Find tools by what they do: GET {}/v1/tools/search?q=WORDS\n", self.base));
        }
        if self.count > 0 {
            let names = match &self.example {
                Some((_, name)) => json!({"tool_names": [name]}).to_string(),
                None => r#"{"tool_names": [whole names that were found]}"#.to_owned(),
            };
            out.push_str(&format!("Describe tools before you call them: POST {}/v1/specs with {names}\n", self.base));
            let route = match &self.example {
                Some((route, _)) => format!("POST {route}"),
                None => format!("POST {}/tools/ and its whole name,", self.base),
            };
            out.push_str(&format!("Call one: {route} with its arguments as a JSON object\n"));
        }
        for (own, what) in [("get_prompt", "Prompts"), ("get_resource", "Resources")] {
            if self.own.contains(&own) {
                out.push_str(&format!("{what} of this session: POST {}/tools/{own}\n", self.base));
            }
        }
        out
    }

    /// Of the JSON form: where it stays, nothing changed.
    pub fn digest(&self) -> Digest {
        Digest::of(self.json().to_string().as_bytes())
    }
}

/// The route and whole name of a tool of the view: a custom one where there is one, pinned ones next.
fn example(sight: &Sight, base: &str) -> Option<(String, String)> {
    let of = |place: Place| Some((place, sight.registry.definition(place)?));
    let is_custom = |place: &Place| sight.registry.alias(*place).is_none() && sight.view.lists(*place);
    let custom = sight.view.tools().find(is_custom);
    let shown = || sight.view.tools().find(|place| sight.view.lists(*place));
    // In a deferred view no name is shown that is not in the list.
    let any = || if sight.view.is_deferred() { None } else { sight.view.tools().next() };
    let (place, definition): (Place, &Definition) = custom.or_else(shown).or_else(any).and_then(of)?;
    let route = match sight.registry.alias(place) {
        None => format!("{base}/tools/custom/{}", definition.visible),
        Some(alias) => format!("{base}/tools/mcp/{alias}/{}", own_name(&definition.real, &definition.visible)),
    };
    Some((route, definition.visible.to_string()))
}
