//! Identifiers. Each is parsed once, where it enters, and is valid from then on.
//!
//! There is no `From<String>` and no `Deref<Target = str>`: a string becomes an id only through `parse`, which says
//! what is wrong with it. None of these is ever built from a Host header or from upstream text.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Why a text is no identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} must be 1 to {max} characters of {grammar}")]
pub struct BadId {
    what: &'static str,
    max: usize,
    grammar: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal, $grammar:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Accepts a text of the grammar above, unchanged.
            pub fn parse(text: &str) -> Result<Self, BadId> {
                let valid: fn(&str) -> bool = $valid;
                if text.is_empty() || text.len() > $max || !valid(text) {
                    return Err(BadId { what: $what, max: $max, grammar: $grammar });
                }
                Ok(Self(Arc::from(text)))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The text, shared with this id.
            pub fn shared(&self) -> Arc<str> {
                self.0.clone()
            }
        }

        /// For look-ups in maps; hash and order are those of the text.
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadId;
            fn try_from(text: String) -> Result<Self, BadId> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

fn word(text: &str) -> bool {
    text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn visible(text: &str) -> bool {
    text.bytes().all(|b| (0x21..=0x7e).contains(&b))
}

id!(
    /// One customer of the platform: the root of every quota, cache, secret and audit line.
    TenantId, "a tenant id", 64, "[A-Za-z0-9._-], the first a letter or digit", word
);
id!(
    /// The immutable id of a tenant's upstream connection. Never shown where an alias is meant, never derived from a URL.
    ServerId, "a server id", 128, "[A-Za-z0-9._-], the first a letter or digit", word
);
id!(
    /// The value of the session claim: one agent run. Unique only together with tenant and issuer.
    SessionId, "a session id", 256, "visible ASCII without spaces", visible
);
id!(
    /// The `iss` of a token, exactly as configured.
    IssuerId, "an issuer", 512, "visible ASCII without spaces", visible
);
id!(
    /// A display label of tools. An entry of a policy may name it; it is never an address.
    GroupName, "a group", 64, "[A-Za-z0-9._-], the first a letter or digit", word
);
id!(
    /// A named list of policy entries.
    BundleName, "a bundle", 64, "[A-Za-z0-9._-], the first a letter or digit", word
);
id!(
    /// An imported description of an HTTP API, whose operations are platform tools.
    ApiId, "an API id", 64, "[A-Za-z0-9._-], the first a letter or digit", word
);
id!(
    /// The public short name of a server, as DESIGN's grammar for aliases has it: `[a-z0-9_-]`, no `__`, no `_` or `-` at an end.
    Alias, "an alias", 40, "[a-z0-9_-] without `__`, and without `_` or `-` at either end", |text| {
        text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-'))
            && !text.contains("__")
            && !text.starts_with(['_', '-'])
            && !text.ends_with(['_', '-'])
    }
);
id!(
    /// The name of a platform tool, which is its visible name: what every model API accepts.
    PlatformName, "a tool name", 64, "[A-Za-z0-9_-]", |text| {
        text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_accept_their_grammar_and_nothing_else() {
        for good in ["acme", "ue03d5aec__neon_46fb2cad6010", "a", "A.b-c_d"] {
            assert!(ServerId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a/b", "a b", "ä", "a\n", "../x"] {
            assert!(TenantId::parse(bad).is_err(), "{bad:?}");
        }
        assert!(Alias::parse("neon_46fb").is_ok());
        for bad in ["Neon", "a__b", "_a", "a_", "-a", "a-", ""] {
            assert!(Alias::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_bad_id_says_what_was_expected() {
        let text = TenantId::parse("a b").map_err(|e| e.to_string());
        assert_eq!(
            text,
            Err("a tenant id must be 1 to 64 characters of [A-Za-z0-9._-], the first a letter or digit".to_owned())
        );
    }
}
