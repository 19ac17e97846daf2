//! Public URIs of resources, and of templates: `rollcall://<alias>/<percent-encoded uri>`.
//!
//! A template keeps its expressions (RFC 6570) as they are, so that what a client expands is again the public URI of the
//! resource. A public URI is compared whole with what is listed, or matched as a whole against a template's public form;
//! it is never taken apart to find a server.

use std::ops::Range;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rollcall_shared::ids::Alias;

/// All but the unreserved characters (RFC 3986, section 2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

const SCHEME: &str = "rollcall://";

/// What every public URI under an alias begins with.
pub fn prefix(alias: &Alias) -> String {
    format!("{SCHEME}{alias}/")
}

/// The public URI of a resource.
pub fn resource(alias: &Alias, real: &str) -> String {
    format!("{SCHEME}{alias}/{}", utf8_percent_encode(real, ENCODED))
}

/// The public form of a template.
pub fn template(alias: &Alias, real: &str) -> String {
    let mut out = prefix(alias);
    for part in parts(real) {
        match part {
            Part::Literal(text) => out.extend(utf8_percent_encode(text, ENCODED)),
            Part::Expression(text) => out.push_str(text),
        }
    }
    out
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part<'t> {
    Literal(&'t str),
    /// With its braces.
    Expression(&'t str),
}

/// A template in its parts. What is no expression of RFC 6570 is a literal.
fn parts(template: &str) -> Vec<Part<'_>> {
    let mut out = Vec::new();
    let mut rest = template;
    while let Some((range, is_valid)) = braces(rest) {
        let cut = if is_valid { range.start } else { range.end };
        let (literal, behind) = rest.split_at_checked(cut).unwrap_or((rest, ""));
        if !literal.is_empty() {
            out.push(Part::Literal(literal));
        }
        let (expression, behind) = behind.split_at_checked(range.end - cut).unwrap_or((behind, ""));
        if !expression.is_empty() {
            out.push(Part::Expression(expression));
        }
        rest = behind;
    }
    if !rest.is_empty() {
        out.push(Part::Literal(rest));
    }
    out
}

/// The first pair of braces, and whether an expression is inside.
fn braces(text: &str) -> Option<(Range<usize>, bool)> {
    let start = text.find('{')?;
    let length = text.get(start..)?.find('}')? + 1;
    let inner = text.get(start + 1..start + length - 1)?;
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"_.%,+#/;?&*:=!@|~-".contains(&b);
    Some((start..start + length, !inner.is_empty() && inner.bytes().all(allowed)))
}

/// The real URI that a public (or real) URI stands for, if it matches a template: what the client put in place of the
/// expressions is put into the real template as it is. `form` is the template as the client knows it.
pub fn expand(form: &str, real: &str, uri: &str) -> Option<String> {
    let (form, real) = (parts(form), parts(real));
    let values = captures(&form, uri)?;
    let mut values = values.into_iter();
    let mut out = String::new();
    for part in &real {
        match part {
            Part::Literal(text) => out.push_str(text),
            Part::Expression(_) => out.push_str(&normal(values.next()?)?),
        }
    }
    Some(out)
}

/// A value in its one form, so that no other spelling of it slips past a rule: unreserved characters stand for themselves
/// (RFC 3986, section 6.2.2.2). Nothing for one that climbs (section 6.2.2.3), however it is spelt.
fn normal(value: &str) -> Option<String> {
    let whole = percent_decode_str(value).decode_utf8_lossy();
    if whole.split(['/', '\\']).any(|segment| matches!(segment, "." | "..")) {
        return None;
    }
    let mut out = String::with_capacity(value.len());
    let mut rest = value;
    while let Some((before, behind)) = rest.split_once('%') {
        out.push_str(before);
        let hex = behind.get(..2)?;
        let byte = u8::from_str_radix(hex, 16).ok()?;
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push_str(&hex.to_ascii_uppercase());
        }
        rest = behind.get(2..)?;
    }
    out.push_str(rest);
    Some(out)
}

/// What stands in place of each expression. Each takes as little as the literal behind it allows, so that matching never
/// backtracks.
fn captures<'u>(form: &[Part<'_>], uri: &'u str) -> Option<Vec<&'u str>> {
    let mut rest = uri;
    let mut out = Vec::new();
    let mut parts = form.iter().peekable();
    while let Some(part) = parts.next() {
        match part {
            Part::Literal(text) => rest = rest.strip_prefix(text)?,
            Part::Expression(expression) => {
                let end = match parts.peek() {
                    None => rest.len(),
                    Some(Part::Literal(text)) if is_last(form, text) => rest.len().checked_sub(text.len())?,
                    Some(Part::Literal(text)) => rest.find(text)?,
                    // What one simple expression yields ends where it cannot go on.
                    Some(Part::Expression(_)) if is_simple(expression) => {
                        rest.bytes().position(|b| !is_of_simple(b)).unwrap_or(rest.len())
                    }
                    Some(Part::Expression(_)) => 0,
                };
                let (value, behind) = rest.split_at_checked(end)?;
                if !fits(expression, value) {
                    return None;
                }
                out.push(value);
                rest = behind;
            }
        }
    }
    rest.is_empty().then_some(out)
}

fn is_last(form: &[Part<'_>], text: &str) -> bool {
    matches!(form.last(), Some(Part::Literal(last)) if std::ptr::eq(*last, text))
}

fn is_simple(expression: &str) -> bool {
    expression.as_bytes().get(1).is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'%'))
}

/// A simple expression never yields a reserved character (RFC 6570, section 3.2.2).
fn is_of_simple(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%,=".contains(&byte)
}

fn fits(expression: &str, value: &str) -> bool {
    if is_simple(expression) {
        !value.is_empty() && value.bytes().all(is_of_simple)
    } else {
        value.bytes().all(|b| b.is_ascii_graphic())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn alias() -> Alias {
        Alias::parse("fix").expect("an alias")
    }

    #[test]
    fn a_public_template_expands_to_the_public_uri_of_the_real_one() {
        let case = |real: &str, uri: &str, expected: Option<&str>| {
            let form = template(&alias(), real);
            assert_eq!(expand(&form, real, uri).as_deref(), expected, "{form} {uri}");
        };
        let real = "test://template/{id}/data";
        assert_eq!(template(&alias(), real), "rollcall://fix/test%3A%2F%2Ftemplate%2F{id}%2Fdata");
        case(real, "rollcall://fix/test%3A%2F%2Ftemplate%2F123%2Fdata", Some("test://template/123/data"));
        case(real, "rollcall://fix/test%3A%2F%2Ftemplate%2Fa%2Fb%2Fdata", Some("test://template/a%2Fb/data"));
        case(real, "rollcall://fix/test%3A%2F%2Ftemplate%2F%2Fdata", None);
        case(real, "rollcall://other/test%3A%2F%2Ftemplate%2F123%2Fdata", None);
        case(real, "rollcall://fix/test%3A%2F%2Ftemplate%2F1/2%2Fdata", None);
        case("file:///{+path}", "rollcall://fix/file%3A%2F%2F%2Fa/b.txt", Some("file:///a/b.txt"));
        case("file:///{+path}", "rollcall://fix/file%3A%2F%2F%2Fa/../b", None);
        case("file:///{+path}", "rollcall://fix/file%3A%2F%2F%2Fa%2F%2e%2E%2fb", None);
        case("db://{t}", "rollcall://fix/db%3A%2F%2Fpay%72oll%2f%c3%bc", Some("db://payroll%2F%C3%BC"));
        case("db://{t}", "rollcall://fix/db%3A%2F%2F..", None);
        case("db://{t}", "rollcall://fix/db%3A%2F%2Fa%7", None);
        case("db://{table}{?limit}", "rollcall://fix/db%3A%2F%2Fusers", Some("db://users"));
        case("db://{table}{?limit}", "rollcall://fix/db%3A%2F%2Fusers?limit=3", Some("db://users?limit=3"));
        case("a{\"}b", "rollcall://fix/a%7B%22%7Db", Some("a{\"}b"));
        assert_eq!(expand(real, real, "test://template/7/data").as_deref(), Some("test://template/7/data"));
        assert_eq!(expand(real, real, "test://template/7/data/data").as_deref(), None);
    }

    proptest! {
        #[test]
        fn public_uris_are_safe_and_tell_real_ones_apart(a in "\\PC{0,20}", b in "\\PC{0,20}") {
            let (public_a, public_b) = (resource(&alias(), &a), resource(&alias(), &b));
            prop_assert_eq!(a == b, public_a == public_b);
            prop_assert!(public_a.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\')));
        }

        #[test]
        fn a_public_template_is_safe(real in "\\PC{0,30}") {
            let public = template(&alias(), &real);
            prop_assert!(public.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\')), "{}", public);
        }

        #[test]
        fn what_a_client_expands_is_understood(value in "[a-zA-Z0-9_~-][a-zA-Z0-9._~-]{0,12}") {
            let real = "x://a/{id}/b";
            let uri = template(&alias(), real).replace("{id}", &value);
            prop_assert_eq!(expand(&template(&alias(), real), real, &uri), Some(real.replace("{id}", &value)));
        }
    }
}
