//! Recovery text: what an agent can do instead. It names only what the caller's own view holds.

use rollcall_shared::limits;
use rollcall_shared::model::EntryKind;
use rollcall_shared::wire::Failure;

use crate::registry::naming::SEPARATOR;
use crate::view::{Refused, Sight};

/// The names of the view that `name` may have meant, nearest first.
pub fn nearest(sight: &Sight, name: &str) -> Vec<String> {
    // A renamed server answers an old name with its successor.
    if let Some(place) = sight.registry.successor(name).filter(|place| sight.view.allows(*place)) {
        return sight.registry.definition(place).map(|d| d.visible.to_string()).into_iter().collect();
    }
    let wanted = name.to_ascii_lowercase();
    let bare = wanted.rsplit_once(SEPARATOR).map_or(wanted.as_str(), |(_, tool)| tool);
    let mut found: Vec<(usize, &str)> = Vec::new();
    for place in sight.view.tools() {
        let Some(definition) = sight.registry.definition(place) else { continue };
        let candidate: &str = &definition.visible;
        let lower = candidate.to_ascii_lowercase();
        let tool = lower.split_once(SEPARATOR).map_or(lower.as_str(), |(_, tool)| tool);
        let score = if tool == bare || definition.real.eq_ignore_ascii_case(name) {
            Some(0)
        } else if bare.len() >= 4 && (tool.contains(bare) || bare.contains(tool) && tool.len() >= 4) {
            Some(1 + tool.len().abs_diff(bare.len()))
        } else {
            let bound = bare.len().max(tool.len()) / 3;
            within(bare, tool, bound).map(|distance| 100 + distance)
        };
        if let Some(score) = score {
            found.push((score, candidate));
        }
    }
    found.sort_unstable();
    found.truncate(limits::NEAREST_OFFERED);
    found.into_iter().map(|(_, name)| name.to_owned()).collect()
}

/// The edit distance of two texts, unless it exceeds `bound`.
pub(super) fn within(a: &str, b: &str, bound: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > bound {
        return None;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = i;
        let mut left = i + 1;
        let mut least = left;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (y, slot) in b.bytes().zip(row.iter_mut().skip(1)) {
            let above = *slot;
            *slot = (above + 1).min(left + 1).min(corner + usize::from(x != y));
            corner = above;
            left = *slot;
            least = least.min(left);
        }
        if least > bound {
            return None;
        }
    }
    row.last().copied().filter(|d| *d <= bound)
}

/// The text of a refusal.
pub fn text(sight: &Sight, refused: &Refused) -> String {
    if sight.view.count == 0 && refused.unavailable.is_empty() {
        return "This session has no tools. Do not retry, and do not try other names.".to_owned();
    }
    let mut out = String::new();
    for (names, one, many) in [
        (&refused.unknown, "There is no tool", "There are no tools"),
        (&refused.not_allowed, "This session may not use", "This session may not use"),
    ] {
        if let Some(list) = join(names) {
            out.push_str(&format!("{} {list}. ", if names.len() == 1 { one } else { many }));
        }
    }
    for tool in &refused.unavailable {
        let retry = tool.retry_after_s.map_or_else(String::new, |s| format!(" Try again in {s} s."));
        out.push_str(&format!(
            "{} cannot be used now: its server {} is not available ({}). Other names will not help.{retry} ",
            tool.name, tool.server, tool.reason
        ));
    }
    if !(refused.unknown.is_empty() && refused.not_allowed.is_empty()) {
        out.push_str(&roster(sight, refused));
    }
    out.trim_end().to_owned()
}

/// The text of a call that has no answer. It says whether the tool may have run, and that other names will not help.
pub fn failure_text(visible: &str, alias: &str, failure: &Failure) -> String {
    let ran = if failure.may_have_run { "The call may have run." } else { "The call did not run." };
    let retry = failure.retry_after_s.map_or_else(String::new, |s| format!(" Try again in {s} s."));
    let subject = if alias.is_empty() { "it".to_owned() } else { format!("its server {alias}") };
    format!(
        "{visible} has no answer: {subject} is not available ({}). {ran} Other names will not help.{retry}",
        failure.reason.label()
    )
}

/// The text of a call that waited for input and waits no more.
pub fn lost_text(visible: &str) -> String {
    format!("{visible} waits for this input no more. What it had begun is cancelled; call it again from the start.")
}

/// The names of a kind that a session may use: of one server's segment under its real names, or all as they are seen.
pub fn names(sight: &Sight, kind: EntryKind, segment: Option<u32>, real: bool) -> Vec<String> {
    let places = sight.view.all(kind).filter(|place| !real || Some(place.segment) == segment);
    let definitions = places.filter_map(|place| sight.registry.definition(place));
    definitions.map(|d| if real { d.real.to_string() } else { d.visible.to_string() }).collect()
}

/// The text for an entry, other than a tool, that there is not.
pub fn entry_text(what: &str, name: &str, names: &[String]) -> String {
    if names.is_empty() {
        return format!("There is no {what} {name}: this session has none.");
    }
    let shown: Vec<&str> = names.iter().take(limits::RECOVERY_NAMES).map(String::as_str).collect();
    let rest = names.len().saturating_sub(shown.len());
    let more = if rest == 0 { String::new() } else { format!(", and {rest} more") };
    format!("There is no {what} {name}. There are: {}{more}.", shown.join(", "))
}

/// The text for a name that one server does not offer, under its real names.
pub fn server_text(sight: &Sight, segment: u32, name: &str, known: bool) -> String {
    let own: Vec<&str> = sight
        .view
        .tools()
        .filter(|place| place.segment == segment)
        .filter_map(|place| sight.registry.definition(place))
        .map(|d| &*d.real)
        .collect();
    if own.is_empty() {
        return "This session has no tools on this server. Do not retry, and do not try other names.".to_owned();
    }
    let shown: Vec<&str> = own.iter().take(limits::RECOVERY_NAMES).copied().collect();
    let rest = own.len().saturating_sub(shown.len());
    let more = if rest == 0 { String::new() } else { format!(", and {rest} more") };
    let what = if known { "This session may not use" } else { "This server has no tool" };
    format!("{what} {name}. It may use: {}{more}.", shown.join(", "))
}

/// The tools of the view: nearest ones first, at most 60, and a count of the rest.
fn roster(sight: &Sight, refused: &Refused) -> String {
    let mut names: Vec<&str> = Vec::new();
    for near in refused.nearest.values().flatten() {
        if !names.contains(&near.as_str()) {
            names.push(near);
        }
    }
    let nearest = names.len();
    let visible = sight.view.tools().filter_map(|place| sight.registry.definition(place)).map(|d| &*d.visible);
    let bridge = sight.view.bridge_tools().map(|name| -> &str { name });
    for name in visible.chain(bridge) {
        if names.len() >= limits::RECOVERY_NAMES {
            break;
        }
        let repeated = names.get(..nearest).is_some_and(|near| near.contains(&name));
        if !repeated {
            names.push(name);
        }
    }
    let total = sight.view.count + sight.view.bridge_tools().count();
    let rest = total.saturating_sub(names.len());
    let more = if rest == 0 { String::new() } else { format!(", and {rest} more") };
    let hint = match nearest {
        0 => String::new(),
        n => format!("Nearest: {}. ", names.get(..n).unwrap_or_default().join(", ")),
    };
    let count = if total == 1 { "1 tool".to_owned() } else { format!("{total} tools") };
    format!("{hint}This session has {count}: {}{more}.", names.join(", "))
}

fn join(names: &[String]) -> Option<String> {
    const SHOWN: usize = 10;
    if names.is_empty() {
        return None;
    }
    let shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    let rest = names.len().saturating_sub(SHOWN);
    Some(if rest == 0 { shown.join(", ") } else { format!("{} and {rest} more", shown.join(", ")) })
}
