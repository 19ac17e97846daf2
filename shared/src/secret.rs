//! A text that is never printed: tokens, keys, header values.

use std::fmt;

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

/// Held in memory only as long as needed; `Debug` shows nothing of it, and comparison takes the same time for all.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The one way to the text; a reader greps for it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether `text` is this secret, in time that depends on its length alone.
    pub fn matches(&self, text: &str) -> bool {
        self.0.as_bytes().ct_eq(text.as_bytes()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}
