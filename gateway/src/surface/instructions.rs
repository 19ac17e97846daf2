//! What a session is told: base, supplements, what servers say, how tools are called, and last the manifest, so that all before it stays the
//! same bytes from turn to turn and a prompt cache holds.
//!
//! Composed whenever it is sent, and kept nowhere: what was set before tools were registered or a policy narrowed needs no
//! change. Whatever block of tools stands in the texts that people wrote is taken out, so that there is exactly one.

use rollcall_shared::limits;
use rollcall_shared::mcp::raw;
use rollcall_shared::model::Instructions;
use url::Url;

use super::manifest::BLOCK;
use super::text::is_hidden;
use crate::registry::Place;
use crate::registry::naming::SEPARATOR;
use crate::view::Sight;

/// What people write where they want the tools to stand.
const PLACEHOLDERS: [&str; 2] = ["{{available_tools}}", "{available_tools}"];

/// The whole text. `of_servers` is what [`of_servers`] gives.
pub fn compose(written: &Instructions, of_servers: &[String], public_url: &Url, manifest: &str) -> String {
    join(parts(written, of_servers).chain([usage(public_url), manifest.trim_end().to_owned()]))
}

/// For a client that is told once and keeps it: no names, which would be wrong soon.
pub fn compose_once(written: &Instructions, of_servers: &[String], public_url: &Url) -> String {
    let once =
        "The tools of this session are what tools/list says at the moment; tools/list is authoritative.".to_owned();
    join(parts(written, of_servers).chain([usage(public_url), once]))
}

/// The base alone: for a sub-agent, which has tools of its own.
pub fn base(written: &Instructions) -> String {
    join([own_words(&written.base)].into_iter())
}

/// What the servers say of themselves that a session may use, where the operator lets them, in the order of their aliases:
/// each in a paragraph that says whose words they are, and how its tools are called here.
pub fn of_servers(sight: &Sight) -> Vec<String> {
    let mut out = Vec::new();
    for (tools, _, listed) in sight.registry.servers().filter(|(_, server, _)| server.passes_instructions) {
        let Some(said) = listed.listing.about.instructions.as_ref().filter(|_| sight.reaches(tools)) else { continue };
        let said = own_words(&raw::string(said).unwrap_or_default());
        let Some(alias) = sight.registry.alias(Place { segment: tools, local: 0 }).filter(|_| !said.is_empty()) else {
            continue;
        };
        let said: String = said.chars().take(limits::SERVER_INSTRUCTIONS_CHARS).collect();
        out.push(format!("The server {alias} says, of tools whose whole names begin with {alias}{SEPARATOR}:\n{said}"));
    }
    out.sort();
    out
}

fn parts<'t>(written: &'t Instructions, of_servers: &'t [String]) -> impl Iterator<Item = String> + 't {
    let own = std::iter::once(&written.base).chain(&written.supplements).map(|text| own_words(text));
    own.chain(of_servers.iter().cloned())
}

fn join(parts: impl Iterator<Item = String>) -> String {
    let mut out = String::new();
    for part in parts.filter(|part| !part.is_empty()) {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&part);
        out.push('\n');
    }
    out
}

/// How tools are called by code. It names no tool, so it is the same for every session.
fn usage(public_url: &Url) -> String {
    let base = public_url.as_str().trim_end_matches('/');
    format!(
        "Tools are called by their whole names: over MCP, or by code with POST {base}/tools/{{name}}, the arguments as a JSON \
         object, and this session's bearer token. Status 200 is success; with any other the JSON says what went wrong and \
         what to do. POST {base}/v1/specs describes tools as OpenAPI 3.1, and GET {base}/v1/manifest says what there is now."
    )
}

/// What people wrote, without blocks of tools, placeholders, and characters that hide something.
fn own_words(text: &str) -> String {
    let mut out: String = text.chars().filter(|c| !is_hidden(*c)).collect();
    // Taking one out may leave another behind, of parts that stood around it.
    loop {
        let next = without_blocks(&out);
        let next = match PLACEHOLDERS.iter().find(|placeholder| next.contains(**placeholder)) {
            Some(placeholder) => next.replace(placeholder, ""),
            None => next,
        };
        if next == out {
            return next.trim().to_owned();
        }
        out = next;
    }
}

/// The text without whole blocks; of a tag that has no counterpart, only the tag goes.
fn without_blocks(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, tag)) = next_tag(rest) {
        out.push_str(before);
        rest = tag.rest;
        if tag.opens
            && let Some((_, end)) = next_tag(rest).filter(|(_, tag)| !tag.opens)
        {
            rest = end.rest;
        }
    }
    out.push_str(rest);
    out
}

struct Tag<'t> {
    opens: bool,
    rest: &'t str,
}

/// The next tag of the block's name, in whatever spelling: `<available_tools …>`, `</ Available_Tools>`, `<available_tools/>`.
fn next_tag(text: &str) -> Option<(&str, Tag<'_>)> {
    text.match_indices('<').find_map(|(at, _)| {
        let inside = text.get(at + 1..)?;
        let name = inside.trim_start();
        let (closes, name) = match name.strip_prefix('/') {
            Some(name) => (true, name.trim_start()),
            None => (false, name),
        };
        let behind =
            name.get(..BLOCK.len()).filter(|start| start.eq_ignore_ascii_case(BLOCK)).and(name.get(BLOCK.len()..))?;
        if behind.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '-') {
            return None;
        }
        let (attributes, rest) = match behind.find(['>', '<', '\n']).and_then(|end| behind.split_at_checked(end)) {
            Some((attributes, rest)) if rest.starts_with('>') => (attributes, rest.get(1..).unwrap_or_default()),
            // It never ends.
            _ => ("", behind),
        };
        Some((text.get(..at)?, Tag { opens: !closes && !attributes.ends_with('/'), rest }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_placeholders_of_others_are_taken_out() {
        let case = |text: &str, expected: &str| assert_eq!(own_words(text), expected, "{text}");
        case("You help.", "You help.");
        case("a<available_tools>x</available_tools>b", "ab");
        case("a <available_tools view=\"1\">\nx\n</ Available_Tools >\nb", "a \nb");
        case("a{{available_tools}}b{available_tools}", "ab");
        case("a<available_tools/>b", "ab");
        case("open <available_tools> only", "open  only");
        case("close </available_tools> only", "close  only");
        case("<available_tools>1</available_tools><available_tools>2</available_tools>z", "z");
        case("<avail<available_tools/>able_tools>x</available_tools>y", "xy");
        case("<avail\u{200b}able_tools>x</available_tools>y", "y");
        case("{{available_{{available_tools}}tools}}", "");
        case("<available_tools_of_mine>", "<available_tools_of_mine>");
        case("1 < 2 and <b>bold</b>", "1 < 2 and <b>bold</b>");
        case("ends <available_tools", "ends");
        case("a <available_tools b\nc>d", "a  b\nc>d");
    }

    #[test]
    fn the_prefix_does_not_depend_on_the_manifest() {
        let url = Url::parse("https://gateway.example").unwrap_or_else(|e| panic!("{e}"));
        let written = Instructions {
            base: "Base.".into(),
            supplements: vec!["One.".into(), "<available_tools/>".into(), "Two.".into()],
        };
        let block = |inside: &str| format!("<available_tools>\n{inside}\n</available_tools>\n");
        let (a, b) = (compose(&written, &[], &url, &block("a")), compose(&written, &[], &url, &block("b")));
        let prefix = a.strip_suffix(&block("a")).unwrap_or_default();
        assert!(prefix.starts_with("Base.\n\nOne.\n\nTwo.\n\nTools are called"), "{prefix}");
        assert_eq!(b, format!("{prefix}{}", block("b")));
        assert!(!compose_once(&written, &[], &url).contains(BLOCK));
        assert_eq!(base(&written), "Base.\n");
        assert_eq!(base(&Instructions::default()), "");
    }
}
