//! A catalog: what a server last listed, as the raw bytes that it sent.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::digest::Digest;
use crate::limits;
use crate::mcp::era::Era;
use crate::mcp::raw;

/// What an entry of a catalog is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    Tool,
    Prompt,
    Resource,
    Template,
}

impl EntryKind {
    pub const ALL: [EntryKind; 4] = [EntryKind::Tool, EntryKind::Prompt, EntryKind::Resource, EntryKind::Template];

    pub fn label(self) -> &'static str {
        match self {
            EntryKind::Tool => "tool",
            EntryKind::Prompt => "prompt",
            EntryKind::Resource => "resource",
            EntryKind::Template => "template",
        }
    }

    /// Whether a policy entry of this kind is about entries of `other`: one of resources is about templates too.
    pub fn covers(self, other: EntryKind) -> bool {
        self == other || self == EntryKind::Resource && other == EntryKind::Template
    }
}

/// What a server says of itself, as the raw bytes that it sent.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct About {
    /// `capabilities`, an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<Box<RawValue>>,
    /// Its name and version; unverified by nature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info: Option<Box<RawValue>>,
}

impl About {
    /// A member of the capabilities, raw.
    pub fn capability(&self, name: &str) -> Option<&RawValue> {
        let members = raw::members(self.capabilities.as_ref()?.get()).ok()?;
        members.into_iter().find(|(key, value)| key == name && value.get() != "null").map(|(_, value)| value)
    }

    /// Whether a capability, an object, has this member set to true.
    pub fn has_flag(&self, capability: &str, flag: &str) -> bool {
        let members = self.capability(capability).and_then(|value| raw::members(value.get()).ok());
        members.is_some_and(|m| m.iter().any(|(key, value)| key == flag && value.get() == "true"))
    }
}

/// Everything that a server listed, each element untouched and in the server's order.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Catalog {
    #[serde(default)]
    pub about: About,
    pub tools: Vec<Box<RawValue>>,
    #[serde(default)]
    pub prompts: Vec<Box<RawValue>>,
    #[serde(default)]
    pub resources: Vec<Box<RawValue>>,
    #[serde(default)]
    pub templates: Vec<Box<RawValue>>,
}

/// A catalog that cannot be read back.
#[derive(Debug, thiserror::Error)]
pub enum BadCatalog {
    #[error("compressed data is broken: {0}")]
    Compression(#[from] std::io::Error),
    #[error("larger than {} bytes", limits::LISTING_BYTES)]
    TooLarge,
    #[error("not a catalog: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the content has another digest than its address")]
    Digest,
}

impl Catalog {
    /// The digest of the content, and the content compressed, as the store keeps it.
    pub fn pack(&self) -> Result<(Digest, Vec<u8>), BadCatalog> {
        use std::io::Write as _;
        let json = serde_json::to_vec(self)?;
        let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
        encoder.write_all(&json)?;
        let packed = encoder.finish().map_err(std::io::Error::other)?;
        Ok((Digest::of(&json), packed))
    }

    /// Reads a packed catalog back; its digest must be `digest`.
    pub fn unpack(packed: &[u8], digest: &Digest) -> Result<Self, BadCatalog> {
        use std::io::Read as _;
        let mut json = Vec::new();
        // Twice the listing's bound, since quoting may have grown it; a bomb ends here.
        let bound = 2 * limits::LISTING_BYTES as u64;
        lz4_flex::frame::FrameDecoder::new(packed).take(bound + 1).read_to_end(&mut json)?;
        if json.len() as u64 > bound {
            return Err(BadCatalog::TooLarge);
        }
        if Digest::of(&json) != *digest {
            return Err(BadCatalog::Digest);
        }
        Ok(serde_json::from_slice(&json)?)
    }
}

/// Which catalog a server has now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogPointer {
    /// 64 hex digits.
    pub digest: String,
    pub era: Era,
    /// Seconds since 1970.
    pub listed_at: u64,
    /// The fingerprint of the server that listed it: a server that moved is another one.
    #[serde(default)]
    pub of: String,
}
