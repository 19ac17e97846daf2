//! `tools/list` and its like: the view, as one page while it is not very large.
//!
//! A cursor is the view's digest and a page number, authorized anew by being a page of the caller's own present view.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::header::ETAG;
use http::{HeaderValue, Response};
use rollcall_shared::mcp::era::{Era, META_VIEW};
use rollcall_shared::mcp::raw;
use rollcall_shared::model::EntryKind;

use super::Ask;
use crate::body::Body;
use crate::policy;
use crate::refusal::Refusal;
use crate::surface::list::{self, Rendered};

pub(super) fn list(ask: &Ask<'_>, kind: EntryKind) -> Result<Response<Body>, Refusal> {
    let registry = &ask.sight.registry;
    let rendered: Arc<Rendered> = match &ask.endpoint.server {
        None => ask.app.lists.of(&ask.sight.view, kind),
        Some(server) => match registry.segment_of(server) {
            // Where denials are hidden, a server of which nothing is allowed is no server.
            Some(tools) if ask.sight.view.disclosure.hide_denied && !ask.sight.reaches(tools) => {
                return Err(Refusal::NoSuchServer);
            }
            Some(tools) => {
                let segment = registry.segment_beside(tools, kind);
                Arc::new(segment.map(|segment| list::of_server(&ask.sight.view, segment)).unwrap_or_default())
            }
            None if registry.knows_server(server) => Arc::default(),
            None => return Err(Refusal::NoSuchServer),
        },
    };
    let of = format!("{}-{}", kind.label(), ask.sight.view.tag());
    let page = match ask.params.text("cursor")? {
        None => 0,
        Some(cursor) => read_cursor(&cursor, &of).filter(|page| *page < rendered.pages.len()).ok_or_else(|| {
            Refusal::InvalidParams("this cursor is not valid for the list of now; list again".to_owned())
        })?,
    };
    let entries = rendered.pages.get(page).cloned().unwrap_or_default();
    let mut head = String::new();
    if ask.message.era == Era::Modern {
        head.push_str(r#""ttlMs":0,"cacheScope":"private","#);
    }
    if page + 1 < rendered.pages.len() {
        let cursor = write_cursor(page + 1, &of);
        head.push_str(&format!(r#""nextCursor":{},"#, raw::quote(&cursor)));
    }
    let member = match kind {
        EntryKind::Tool => "tools",
        EntryKind::Prompt => "prompts",
        EntryKind::Resource => "resources",
        EntryKind::Template => "resourceTemplates",
    };
    head.push_str(&format!(r#""{member}":["#));
    let members = [Bytes::from(head), entries, Bytes::from_static(b"]")];
    let mut response = ask.respond(members, &meta(ask));
    let tag = HeaderValue::from_str(&format!("\"{}\"", ask.sight.view.tag()));
    response.headers_mut().extend(tag.ok().map(|tag| (ETAG, tag)));
    Ok(response)
}

/// The view's digest; and the servers that the policy reaches but that never listed anything, so that "not there yet"
/// cannot be read as "does not exist".
fn meta(ask: &Ask<'_>) -> String {
    let mut out = format!(r#""{META_VIEW}":"{}""#, ask.sight.view.tag());
    let missing: Vec<String> = ask
        .sight
        .registry
        .missing
        .iter()
        .filter(|m| policy::could_reach(&ask.sight.registry, &ask.sight.policy, m))
        .map(|m| {
            let (reason, _) = ask.app.live.availability(&ask.principal.tenant, &m.server);
            format!("{}:{}", raw::quote(m.alias.as_str()), raw::quote(reason))
        })
        .collect();
    if !missing.is_empty() {
        out.push_str(&format!(r#","io.rollcall/unavailable":{{{}}}"#, missing.join(",")));
    }
    out
}

fn write_cursor(page: usize, tag: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!("{tag} {page}"))
}

fn read_cursor(cursor: &str, tag: &str) -> Option<usize> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (of, page) = text.split_once(' ')?;
    (of == tag).then(|| page.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_belongs_to_one_view() {
        let cursor = write_cursor(3, "abcd");
        assert_eq!(read_cursor(&cursor, "abcd"), Some(3));
        assert_eq!(read_cursor(&cursor, "other"), None);
        for bad in ["", "???", "YWJjZA", "YWJjZCB4"] {
            assert_eq!(read_cursor(bad, "abcd"), None, "{bad}");
        }
    }
}
