//! What a caller said that it can be asked for, and whether a question is of that.

use rollcall_shared::mcp::raw;
use rollcall_shared::wire::Asked;
use serde_json::value::RawValue;

/// What a caller said that it can be asked for.
#[derive(Clone, Copy, Default)]
pub(super) struct Declared {
    form: bool,
    url: bool,
    sampling: bool,
    roots: bool,
}

impl Declared {
    pub(super) fn read(capabilities: Option<&RawValue>) -> Self {
        let members = capabilities.and_then(|c| raw::members(c.get()).ok()).unwrap_or_default();
        let has = |asked: Asked| {
            members.iter().find(|(key, v)| key == asked.capability() && v.get() != "null").map(|(_, value)| *value)
        };
        let modes = has(Asked::Elicitation).and_then(|e| raw::members(e.get()).ok());
        let mode = |name: &str| modes.as_ref().is_some_and(|m| m.iter().any(|(key, _)| key == name));
        Self {
            // An empty object stands for forms (specification 2026-07-28, client/elicitation).
            form: mode("form") || modes.as_ref().is_some_and(|_| !mode("url")),
            url: mode("url"),
            sampling: has(Asked::Sampling).is_some(),
            roots: has(Asked::Roots).is_some(),
        }
    }

    pub(super) fn allows(self, asked: Asked, params: &str) -> bool {
        match asked {
            Asked::Sampling => self.sampling,
            Asked::Roots => self.roots,
            Asked::Elicitation => match mode_of(params).as_deref() {
                None | Some("form") => self.form,
                Some("url") => self.url,
                Some(_) => false,
            },
        }
    }
}

/// `mode` of an elicitation.
pub(super) fn mode_of(params: &str) -> Option<String> {
    let members = raw::members(params).ok()?;
    members.iter().find(|(key, _)| key == "mode").and_then(|(_, value)| raw::string(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_allowed_only_where_its_kind_and_mode_were_declared() {
        let allows = |capabilities: &str, asked, params: &str| {
            let capabilities = RawValue::from_string(capabilities.to_owned()).expect("JSON");
            Declared::read(Some(&capabilities)).allows(asked, params)
        };
        for (capabilities, form, url) in [
            ("{}", false, false),
            (r#"{"elicitation":null}"#, false, false),
            (r#"{"elicitation":{}}"#, true, false),
            (r#"{"elicitation":{"form":{}}}"#, true, false),
            (r#"{"elicitation":{"url":{}}}"#, false, true),
            (r#"{"elicitation":{"form":{},"url":{}}}"#, true, true),
        ] {
            assert_eq!(allows(capabilities, Asked::Elicitation, "{}"), form, "{capabilities}");
            assert_eq!(allows(capabilities, Asked::Elicitation, r#"{"mode":"form"}"#), form, "{capabilities}");
            assert_eq!(allows(capabilities, Asked::Elicitation, r#"{"mode":"url"}"#), url, "{capabilities}");
            assert!(!allows(capabilities, Asked::Elicitation, r#"{"mode":"other"}"#));
            assert!(!allows(capabilities, Asked::Sampling, "{}") && !allows(capabilities, Asked::Roots, "{}"));
        }
        assert!(allows(r#"{"sampling":{}}"#, Asked::Sampling, "{}"));
        assert!(allows(r#"{"roots":{}}"#, Asked::Roots, "{}"));
    }
}
