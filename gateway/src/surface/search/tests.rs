//! What a query finds in a view, in which order, and what it is told where it finds nothing.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a test ends where it fails")]

use super::*;
use crate::fixture::{Fixture, policy};
use crate::view::Sight;

fn sight(rules: &str) -> Sight {
    let tool = |name: &str, description: &str, parameters: &str| {
        format!(
            r#"{{"name":"{name}","description":"{description}","inputSchema":{{"type":"object","properties":{{{parameters}}}}}}}"#
        )
    };
    let tracker = [
        tool("create_issue", "Create a new issue in a project.", r#""title":{},"projectId":{}"#),
        tool("closeIssue", "Marks an issue as done.", r#""issueId":{}"#),
        tool("list_themes", "Lists the colour themes of the board.", ""),
        tool("delete_comment", "Deletes a comment for good.", r#""commentId":{}"#),
    ];
    let wifi = [tool("update_wlan_radio", "Sets the transmit power of a radio.", r#""tx_power":{}"#)];
    let refs = |list: &[String]| -> Vec<String> { list.to_vec() };
    let (tracker, wifi) = (refs(&tracker), refs(&wifi));
    Fixture::new("{servers: [{id: tracker, url: 'http://t'}, {id: unifi, url: 'http://u'}]}")
        .catalog("tracker", &tracker.iter().map(String::as_str).collect::<Vec<_>>())
        .catalog("unifi", &wifi.iter().map(String::as_str).collect::<Vec<_>>())
        .sight(policy(rules))
}

fn found(sight: &Sight, query: &str) -> Vec<String> {
    let hits = Index::new(&sight.view).search(query, 3);
    hits.into_iter().filter_map(|hit| Some(sight.registry.definition(hit.place)?.visible.to_string())).collect()
}

#[test]
fn sentences_find_by_what_tools_do_and_empty_words_win_nothing() {
    let sight = sight("{}");
    for (query, first) in [
        ("update wlan radio tx power", "unifi__update_wlan_radio"),
        ("how do I remove the remark from the ticket", "tracker__delete_comment"),
        ("open a bug", "tracker__create_issue"),
        ("close the ticket", "tracker__closeIssue"),
        ("the theme", "tracker__list_themes"),
        ("cretae issue", "tracker__create_issue"),
        ("tx_power", "unifi__update_wlan_radio"),
    ] {
        assert_eq!(
            found(&sight, query).first().map(String::as_str),
            Some(first),
            "{query}: {:?}",
            found(&sight, query)
        );
    }
    assert_eq!(found(&sight, "the of and"), Vec::<String>::new());
    assert_eq!(found(&sight, ""), Vec::<String>::new());
}

#[test]
fn whoever_writes_a_name_or_a_part_of_one_means_it() {
    let sight = sight("{}");
    for query in ["tracker__closeIssue", "closeIssue", "close_issue", "CLOSE ISSUE", "call tracker__closeissue please"]
    {
        assert_eq!(found(&sight, query).first().map(String::as_str), Some("tracker__closeIssue"), "{query}");
    }
    assert_eq!(found(&sight, "wlan_rad").first().map(String::as_str), Some("unifi__update_wlan_radio"));
}

#[test]
fn what_the_view_does_not_hold_is_not_found_and_has_no_say() {
    let narrow = sight(r#"{"deny":["tracker__closeIssue"]}"#);
    assert!(!found(&narrow, "tracker__closeIssue").contains(&"tracker__closeIssue".to_owned()));
    assert!(!found(&narrow, "close the ticket").contains(&"tracker__closeIssue".to_owned()));
    let one = sight(r#"{"allow":["tracker__create_issue"]}"#);
    let alone = Fixture::new("{servers: [{id: tracker, url: 'http://t'}]}")
        .catalog("tracker", &[r#"{"name":"create_issue","description":"Create a new issue in a project.","inputSchema":{"type":"object","properties":{"title":{},"projectId":{}}}}"#])
        .sight(policy("{}"));
    let score = |sight: &Sight| Index::new(&sight.view).search("new issue", 3)[0].score.to_bits();
    assert_eq!(score(&one), score(&alone), "scores are those of the view alone");
}

#[test]
fn the_answer_is_the_same_whenever_it_is_asked_for() {
    let (a, b) = (sight("{}"), sight("{}"));
    for query in ["issue", "comment radio theme", "delete create close list update"] {
        assert_eq!(Index::new(&a.view).search(query, 5), Index::new(&b.view).search(query, 5), "{query}");
    }
}

#[test]
fn an_answer_is_never_empty_without_a_way_on() {
    let sight = sight("{}");
    let index = Index::new(&sight.view);
    let found = found::find(&sight, &index, "zzz qqq", 5);
    assert!(found.tools.is_empty() && found.hint.contains("tracker (4), unifi (1)"), "{}", found.hint);
    let nothing = self::sight(r#"{"allow":[]}"#);
    let found = found::find(&nothing, &Index::new(&nothing.view), "issue", 5);
    assert_eq!(found.hint, "This session has no tools. Do not search again.");
}
