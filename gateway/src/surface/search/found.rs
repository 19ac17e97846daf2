//! What a search answers: names, signatures and a sentence each, within a budget; never nothing without a way on.

use std::sync::Arc;

use rollcall_shared::digest::Digest;
use rollcall_shared::limits;
use rollcall_shared::mcp::raw;

use super::Index;
use crate::registry::naming::SEPARATOR;
use crate::surface::{own, recovery, signature, text};
use crate::view::Sight;

/// Indices by view, bounded by weight.
pub struct Indices(moka::future::Cache<Digest, Arc<Index>>);

impl Default for Indices {
    fn default() -> Self {
        let weigher = |_: &Digest, index: &Arc<Index>| u32::try_from(index.weight()).unwrap_or(u32::MAX);
        Self(moka::future::Cache::builder().max_capacity(limits::SEARCH_INDEX_BYTES).weigher(weigher).build())
    }
}

impl Indices {
    /// The index of a view; made once, however many ask for it at once.
    pub async fn of(&self, sight: &Sight) -> Arc<Index> {
        let view = sight.view.clone();
        let make = async move {
            if view.count <= limits::INDEXED_AT_ONCE {
                return Arc::new(Index::new(&view));
            }
            let again = view.clone();
            let made = tokio::task::spawn_blocking(move || Index::new(&again)).await;
            Arc::new(made.unwrap_or_else(|_| Index::new(&view)))
        };
        self.0.get_with(sight.view.digest, make).await
    }
}

/// One tool that was found.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct FoundTool {
    pub name: String,
    /// The alias of its server; none for tools of the platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Its name at its server, where that can stand in a text.
    pub tool: String,
    pub signature: String,
    pub description: String,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Found {
    pub query: String,
    pub tools: Vec<FoundTool>,
    /// Tools of the session.
    pub total: usize,
    pub hint: String,
}

/// Searches in a session's view.
pub fn find(sight: &Sight, index: &Index, query: &str, most: usize) -> Found {
    let mut tools = Vec::new();
    let mut bytes = 0;
    for hit in index.search(query, most) {
        let Some(definition) = sight.registry.definition(hit.place) else { continue };
        let described = definition.member("description").and_then(raw::string_of).unwrap_or_default();
        let tool = FoundTool {
            name: definition.visible.to_string(),
            server: sight.registry.alias(hit.place).map(ToString::to_string),
            tool: own_name(&definition.real, &definition.visible).to_owned(),
            signature: signature::of(definition),
            description: text::first_sentence(&described, limits::BRIEF_BYTES),
        };
        bytes += tool.signature.len() + tool.description.len();
        if bytes > limits::SEARCH_ANSWER_BYTES && !tools.is_empty() {
            break;
        }
        tools.push(tool);
    }
    let query = text::line(query, limits::NEAREST_NAME_BYTES);
    let hint = hint(sight, &query, &tools);
    Found { query, tools, total: sight.view.count, hint }
}

/// The name of a tool at its server as it may stand in a text: its real one, or what its visible one makes of that.
pub fn own_name<'a>(real: &'a str, visible: &'a str) -> &'a str {
    let made = visible.split_once(SEPARATOR).map_or(visible, |(_, tool)| tool);
    if text::is_plain_name(real) { real } else { made }
}

fn hint(sight: &Sight, query: &str, tools: &[FoundTool]) -> String {
    let view = &sight.view;
    let offers = |name: &str| view.bridge_tools().any(|offered| offered == name);
    let Some(first) = tools.first() else {
        if view.count == 0 {
            return "This session has no tools. Do not search again.".to_owned();
        }
        let near = recovery::nearest(sight, query);
        let nearest = if near.is_empty() { String::new() } else { format!(" Nearest names: {}.", near.join(", ")) };
        return format!(
            "Nothing fits these words. {}{nearest} Try other words for what the tool should do, or the name of a server.",
            own::servers(view)
        );
    };
    let mut out = format!("Call a tool by its whole name, such as {}", first.name);
    out.push_str(if offers("tool_call") { ", or give name and arguments to tool_call." } else { "." });
    if offers("tool_describe") {
        out.push_str(" tool_describe gives whole schemas.");
    } else if offers("get_api_spec") {
        out.push_str(" get_api_spec gives whole schemas.");
    }
    out
}

impl Found {
    /// For a model: a line a tool.
    pub fn text(&self) -> String {
        let mut out = String::new();
        if !self.tools.is_empty() {
            out.push_str(&format!("{} of {} for \"{}\":\n", self.tools.len(), own::tools(self.total), self.query));
        }
        for tool in &self.tools {
            out.push_str(&tool.signature);
            if !tool.description.is_empty() {
                out.push_str(" - ");
                out.push_str(&tool.description);
            }
            out.push('\n');
        }
        out.push_str(&self.hint);
        out
    }
}
