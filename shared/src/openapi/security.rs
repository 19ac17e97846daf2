//! What an API asks of its callers for authorization, against what the operator sends with every call.

use serde_json::Value;

use super::document::{Document, Found, list};
use super::options::Api;

/// What is missing for an operation to be let in; nothing where one of its alternatives is covered.
pub(super) fn missing<'d>(document: &Document<'d>, found: &Found<'d>, api: &Api) -> Option<String> {
    let of = if found.value.get("security").is_some() { found.value } else { document.root };
    let alternatives: Vec<&Value> = list(of, "security").collect();
    let mut first = None;
    for alternative in &alternatives {
        let schemes = alternative.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        let lacking: Vec<String> = schemes.filter_map(|name| lacks(document, name, api)).collect();
        if lacking.is_empty() {
            return None;
        }
        first.get_or_insert(lacking);
    }
    first.map(|lacking| lacking.join(", "))
}

/// What a scheme needs that is not there.
fn lacks(document: &Document<'_>, name: &str, api: &Api) -> Option<String> {
    let scheme = document.components("securitySchemes").and_then(|schemes| schemes.get(name));
    let Some(scheme) = scheme.and_then(|scheme| document.resolve(scheme).ok()) else {
        return Some(format!("the security scheme `{name}` is not described"));
    };
    let text = |key: &str| scheme.get(key).and_then(Value::as_str).unwrap_or_default();
    let header = match (text("type"), text("in")) {
        ("http" | "oauth2" | "openIdConnect", _) => "authorization".to_owned(),
        ("apiKey", "header") => text("name").to_ascii_lowercase(),
        ("apiKey", place) => {
            return Some(format!("the security scheme `{name}` needs a key in the {place}, which is not supported"));
        }
        (other, _) => return Some(format!("the security scheme `{name}` is of type {other}, which is not supported")),
    };
    let covered = api.headers.contains_key(&header);
    (!covered).then(|| format!("the security scheme `{name}` needs a header `{header}` in `headers`"))
}
