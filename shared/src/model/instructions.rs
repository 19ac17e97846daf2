//! What a session is told before its tools: a base, and supplements that were added to it.
//!
//! The tools themselves are never stored with it: they are put behind it at the moment it is sent.

use serde::{Deserialize, Serialize};

use crate::document::{Node, Problems};
use crate::limits;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Instructions {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub base: String,
    /// In the order in which they were added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub supplements: Vec<String>,
}

impl Instructions {
    /// A whole document: what is left out is empty.
    pub fn read(node: &Node, path: &str, problems: &Problems) -> Option<Self> {
        let mut fields = node.fields(path, problems)?;
        let base = fields.optional("base").and_then(|(n, p)| read_text(n, &p, problems)).unwrap_or_default();
        let supplements =
            fields.optional("supplements").map(|(n, p)| n.list(&p, problems, |n, p| read_text(n, p, problems)));
        let supplements = supplements.unwrap_or_default();
        if supplements.len() > limits::SUPPLEMENTS {
            fields.problem(format!("`supplements` holds {}; at most {}", supplements.len(), limits::SUPPLEMENTS));
        }
        fields.finish();
        let mut out = Self { base, supplements: Vec::new() };
        supplements.into_iter().for_each(|text| out.add(text));
        Some(out)
    }

    /// `{"base": "…"}` alone.
    pub fn read_base(node: &Node, problems: &Problems) -> Option<String> {
        read_only(node, "base", problems)
    }

    /// `{"text": "…"}`: one supplement.
    pub fn read_supplement(node: &Node, problems: &Problems) -> Option<String> {
        read_only(node, "text", problems)
    }

    /// Adds a supplement; one that is there already stays where it is.
    pub fn add(&mut self, text: String) {
        if !text.is_empty() && !self.supplements.contains(&text) {
            self.supplements.push(text);
        }
    }
}

fn read_only(node: &Node, member: &'static str, problems: &Problems) -> Option<String> {
    let mut fields = node.fields("", problems)?;
    let text = fields.required(member).and_then(|(n, p)| read_text(n, &p, problems));
    fields.finish();
    text
}

fn read_text(node: &Node, path: &str, problems: &Problems) -> Option<String> {
    let text = node.text(path, problems)?;
    if text.len() > limits::INSTRUCTIONS_BYTES {
        problems.add(&node.place, path, format!("longer than {} bytes", limits::INSTRUCTIONS_BYTES));
    }
    Some(text.to_owned())
}
