//! What changed between two views of a session: for those who are told that a list is another one.

use std::cmp::Ordering;
use std::sync::Arc;

use rollcall_shared::digest::Digest;
use rollcall_shared::limits;
use rollcall_shared::model::EntryKind;
use serde_json::json;

use crate::registry::Definition;
use crate::view::View;

/// The member of `_meta` that holds it.
pub const META_CHANGES: &str = "io.rollcall/changes";

/// Changes by the views that they lie between: a catalog's change is told to every session that shares the view.
pub struct Changes(moka::sync::Cache<(Digest, Digest, EntryKind), Arc<str>>);

impl Default for Changes {
    fn default() -> Self {
        Self(moka::sync::Cache::new(limits::CHANGES_AT_HAND))
    }
}

impl Changes {
    /// `{"added":[…],"removed":[…],"changed":[…]}` of whole names, each list bounded; `more` counts what is left out.
    pub fn between(&self, before: &View, after: &View, kind: EntryKind) -> Arc<str> {
        self.0.get_with((before.digest, after.digest, kind), || compare(before, after, kind).into())
    }
}

fn compare(before: &View, after: &View, kind: EntryKind) -> String {
    // Resources and templates are one list to those who are told.
    let kinds: &[EntryKind] = match kind {
        EntryKind::Resource => &[EntryKind::Resource, EntryKind::Template],
        EntryKind::Tool | EntryKind::Prompt | EntryKind::Template => &[kind],
    };
    let mut lists: [Vec<&str>; 3] = Default::default();
    let mut more = 0;
    for kind in kinds {
        let mut old = before.all(*kind).filter_map(|place| before.roster.get(place)).peekable();
        let mut new = after.all(*kind).filter_map(|place| after.roster.get(place)).peekable();
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(old), Some(new)) => old.visible.cmp(&new.visible),
            };
            let found: Option<(usize, &Definition)> = match order {
                Ordering::Less => old.next().map(|gone| (1, gone)),
                Ordering::Greater => new.next().map(|fresh| (0, fresh)),
                Ordering::Equal => {
                    let (was, is) = (old.next(), new.next());
                    is.filter(|is| was.is_some_and(|was| was.digest != is.digest)).map(|is| (2, is))
                }
            };
            let Some((list, definition)) = found else { continue };
            match lists.get_mut(list).filter(|list| list.len() < limits::RECOVERY_NAMES) {
                Some(list) => list.push(&definition.visible),
                None => more += 1,
            }
        }
    }
    let [added, removed, changed] = lists;
    let mut out = json!({"added": added, "removed": removed, "changed": changed});
    if let (true, Some(members)) = (more > 0, out.as_object_mut()) {
        members.insert("more".to_owned(), more.into());
    }
    out.to_string()
}

#[cfg(test)]
mod tests {
    use crate::fixture::{Fixture, policy};

    use super::*;

    #[test]
    fn what_came_went_and_changed_is_told_by_whole_names() {
        let view = |tools: &[&str], rules: &str| {
            let fixture = Fixture::new("{servers: [{id: s, url: 'http://s'}]}").catalog("s", tools);
            fixture.sight(policy(rules)).view
        };
        let before = view(&["a", "b", "c", r#"{"name":"d","description":"x"}"#], "{}");
        let after = view(&["b", "c", r#"{"name":"d","description":"y"}"#, "e"], r#"{"deny":["s__c"]}"#);
        let changes = Changes::default();
        assert_eq!(
            &*changes.between(&before, &after, EntryKind::Tool),
            r#"{"added":["s__e"],"changed":["s__d"],"removed":["s__a","s__c"]}"#
        );
        assert_eq!(&*changes.between(&after, &after, EntryKind::Tool), r#"{"added":[],"changed":[],"removed":[]}"#);
        let many: Vec<String> = (0..70).map(|n| format!("t{n:02}")).collect();
        let many = view(&many.iter().map(String::as_str).collect::<Vec<_>>(), "{}");
        let told = changes.between(&after, &many, EntryKind::Tool);
        assert!(
            told.contains("s__t59\"]") && told.ends_with(r#""more":10,"removed":["s__b","s__d","s__e"]}"#),
            "{told}"
        );
    }
}
