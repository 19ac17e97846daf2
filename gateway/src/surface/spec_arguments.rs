//! The arguments of `get_api_spec`, as clients really send them.

use std::borrow::Cow;

use rollcall_shared::limits;
use rollcall_shared::mcp::raw;

use crate::view::{Permit, Refused, Sight, resolve::Availability};

/// What was asked.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct Asked {
    pub names: Vec<String>,
    pub server_name: Option<String>,
}

/// Reads the arguments: `tool_names` or `tool_name`, each a string, an array, or an array serialized as a string.
pub fn read(arguments: Option<&str>) -> Result<Asked, String> {
    let members = raw::members(arguments.unwrap_or("{}")).map_err(|e| format!("arguments: {e}"))?;
    let mut asked = Asked::default();
    for (key, value) in &members {
        match key.as_ref() {
            "tool_names" | "tool_name" => {
                let names = read_names(value.get()).ok_or_else(|| format!("`{key}` must be a list of tool names"))?;
                asked.names.extend(names);
            }
            "server_name" => asked.server_name = raw::string(value).filter(|name| !name.is_empty()),
            _ => {}
        }
    }
    if asked.names.is_empty() {
        return Err("`tool_names` is missing: give a list of whole tool names".to_owned());
    }
    if asked.names.len() > limits::RESOLVE_NAMES {
        return Err(format!("`tool_names` holds {} names; at most {}", asked.names.len(), limits::RESOLVE_NAMES));
    }
    Ok(asked)
}

/// Names as a list, as one text, or as a list inside a text.
pub fn read_names(value: &str) -> Option<Vec<String>> {
    if value.starts_with('[') {
        return serde_json::from_str(value).ok();
    }
    let text = raw::string_of(value)?;
    if text.trim_start().starts_with('[')
        && let Ok(names) = serde_json::from_str(&text)
    {
        return Some(names);
    }
    Some(vec![text])
}

/// What `server_name` did; counted, so that a tenant knows when it can be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerNameEffect {
    Unused,
    /// It named a server of the tenant that holds the real name.
    Settled,
    Ignored,
}

/// Resolves what was asked, all or nothing. Each name is read in this order:
/// (a) a `server_name` that is a server of the tenant holding that real name settles it;
/// (b) the whole visible name; (c) a bare real name that one server of the view alone has.
pub fn resolve<'s>(
    sight: &'s Sight,
    asked: &Asked,
    availability: Availability<'_>,
) -> (Result<Vec<Permit<'s>>, Box<Refused>>, ServerNameEffect) {
    let segment = asked.server_name.as_deref().and_then(|server| sight.registry.segment_of(server));
    let mut effect = if asked.server_name.is_some() { ServerNameEffect::Ignored } else { ServerNameEffect::Unused };
    let mut names: Vec<Cow<'_, str>> = Vec::with_capacity(asked.names.len());
    for name in &asked.names {
        let settled = segment.and_then(|segment| {
            let local = sight.view.roster.segments().get(segment as usize)?.by_real(name)?;
            let place = crate::registry::Place { segment, local };
            // Where denials are hidden, a denied tool must read like one that does not exist: its name is not settled.
            let hidden = sight.view.disclosure.hide_denied && !sight.view.allows(place);
            sight.registry.definition(place).filter(|_| !hidden)
        });
        // The visible name of the settled tool goes through the same resolution, so that it adds and authorizes nothing.
        let whole = match settled {
            Some(definition) => {
                effect = ServerNameEffect::Settled;
                Cow::Borrowed(&*definition.visible)
            }
            None if sight.view.roster.find(name).is_some() => Cow::Borrowed(name.as_str()),
            None => match only(sight.permits_of_real(name)) {
                Some(permit) => Cow::Borrowed(&*permit.definition().visible),
                None => Cow::Borrowed(name.as_str()),
            },
        };
        names.push(whole);
    }
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    (sight.resolve(&names, availability), effect)
}

fn only<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let first = items.next()?;
    items.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_that_clients_send_is_read() {
        let names = |text: &str| read(Some(text)).map(|asked| asked.names);
        let expected = Ok(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(names(r#"{"tool_names":["a","b"]}"#), expected);
        assert_eq!(names(r#"{"tool_names":"[\"a\",\"b\"]"}"#), expected);
        assert_eq!(names(r#"{"tool_name":["a"],"tool_names":"b"}"#), expected);
        assert_eq!(names(r#"{"tool_name":"a","server_name":"x"}"#), Ok(vec!["a".to_owned()]));
        for bad in [r#"{}"#, r#"{"tool_names":[]}"#, r#"{"tool_names":[1]}"#, r#"{"tool_names":3}"#, "[]", "{"] {
            assert!(read(Some(bad)).is_err(), "{bad}");
        }
        assert!(read(None).is_err());
        let many = format!(r#"{{"tool_names":[{}]}}"#, vec![r#""a""#; 101].join(","));
        assert!(read(Some(&many)).is_err_and(|e| e.contains("101 names; at most 100")));
    }
}
