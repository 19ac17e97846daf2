//! The challenge of a 401, and the document that it points to (RFC 6750, RFC 9728).
//!
//! Each MCP endpoint of each tenant has a document of its own, made from `public_url` alone, never from a Host header.

use rollcall_shared::ids::TenantId;
use rollcall_shared::mcp::raw;
use url::Url;

use super::Issuers;

const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// The value of `WWW-Authenticate` for a request to `path` below `public_url`.
pub fn www_authenticate(public_url: &Url, path: &str, presented: bool, why: &str) -> String {
    let base = public_url.as_str().trim_end_matches('/');
    let metadata = format!("{}{WELL_KNOWN}{}", origin(base), resource_path(base, path));
    let error = if presented {
        format!(r#", error="invalid_token", error_description="{}""#, why.replace(['"', '\\'], "'"))
    } else {
        String::new()
    };
    format!(r#"Bearer resource_metadata="{metadata}"{error}"#)
}

/// The protected path that a request for metadata asks about, if it is such a request.
pub fn described_path<'a>(public_url: &Url, path: &'a str) -> Option<&'a str> {
    let rest = path.strip_prefix(WELL_KNOWN)?;
    if rest.is_empty() || rest == "/" {
        return Some("/mcp");
    }
    let prefix = public_url.path().trim_end_matches('/');
    rest.strip_prefix(prefix).or(Some(rest)).filter(|rest| rest.starts_with('/'))
}

/// The metadata document of a protected path.
pub fn document(public_url: &Url, path: &str, tenant: Option<&TenantId>, issuers: &Issuers) -> String {
    let base = public_url.as_str().trim_end_matches('/');
    let servers = serde_json::to_string(&issuers.names(tenant)).unwrap_or_default();
    format!(
        r#"{{"resource":{},"authorization_servers":{servers},"bearer_methods_supported":["header"]}}"#,
        raw::quote(&format!("{base}{}", path.trim_end_matches('/')))
    )
}

/// Scheme, host and port of a URL.
fn origin(base: &str) -> &str {
    let start = base.find("://").map_or(0, |at| at + 3);
    let end = base.get(start..).and_then(|rest| rest.find('/')).map_or(base.len(), |at| start + at);
    base.get(..end).unwrap_or(base)
}

/// The path of the resource, with the prefix of `public_url`.
fn resource_path(base: &str, path: &str) -> String {
    let prefix = base.get(origin(base).len()..).unwrap_or_default();
    format!("{prefix}{}", path.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_challenge_points_to_the_document_of_its_own_path() {
        let url = |text: &str| Url::parse(text).expect("a URL");
        assert_eq!(
            www_authenticate(&url("https://g.example/base/"), "/t/acme/mcp", false, ""),
            r#"Bearer resource_metadata="https://g.example/.well-known/oauth-protected-resource/base/t/acme/mcp""#
        );
        let given = www_authenticate(&url("http://127.0.0.1:8080"), "/mcp/", true, "a \"quote\"");
        assert_eq!(
            given,
            "Bearer resource_metadata=\"http://127.0.0.1:8080/.well-known/oauth-protected-resource/mcp\", \
             error=\"invalid_token\", error_description=\"a 'quote'\""
        );
        let base = url("https://g.example/base/");
        assert_eq!(described_path(&base, "/.well-known/oauth-protected-resource/base/t/acme/mcp"), Some("/t/acme/mcp"));
        assert_eq!(described_path(&base, "/.well-known/oauth-protected-resource"), Some("/mcp"));
        assert_eq!(described_path(&base, "/mcp"), None);
    }
}
