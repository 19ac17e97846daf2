//! Grammar, the 64 limit, injectivity, and allotment that never renames.

use proptest::prelude::*;

use super::*;

fn server(id: &str) -> ServerId {
    ServerId::parse(id).expect("a server id")
}

fn allot_ids(before: &Allotment, ids: &[&str]) -> Allotment {
    let ids: Vec<ServerId> = ids.iter().map(|id| server(id)).collect();
    let change: Vec<_> = ids.iter().map(|id| Newcomer { id, name: id.as_str(), explicit: None }).collect();
    allot(before, &change).expect("no explicit alias")
}

fn alias_of(allotment: &Allotment, id: &str) -> String {
    allotment.servers.get(&server(id)).map(|a| a.alias.to_string()).unwrap_or_default()
}

#[test]
fn base_aliases_are_short_and_clean() {
    let case = |name: &str, expected: &str| assert_eq!(base_alias(name).0.as_str(), expected, "{name}");
    case("ue03d5aec0000000000000000000000aa__neon_46fb2cad6010", "neon");
    case("neon_46fb2cad6010", "neon");
    case("neon_20260101", "neon_20260101"); // a run of digits alone is no connection id
    case("neon_46fb", "neon_46fb"); // too short for one
    case("Google Drive (EU)", "google_drive_eu");
    case("__a--", "a");
    case("数据", "mcp");
    case("", "mcp");
    case("prod.eu/jira", "prod_eu_jira");
    case("abcdefghijklmnopqrstuvwxyz", "abcdefghijklmnopqrstuvwx");
    case("abcdefghijklmnopqrstuvw_xyz", "abcdefghijklmnopqrstuvw"); // the cut leaves no `_` at the end
    case("u123__x", "u123_x"); // no 32 hex digits
    assert_eq!(base_alias("neon_46FB2CAD6010").1.as_deref(), Some("46fb2cad6010"));
}

#[test]
fn one_server_is_bare_and_two_at_once_are_told_apart() {
    let (a, b) = ("ue03d5aec0000000000000000000000aa__neon_46fb2cad6010", "neon_9c1d00aa11bb");
    let alone = allot_ids(&Allotment::default(), &[a]);
    assert_eq!(alias_of(&alone, a), "neon");
    let together = allot_ids(&Allotment::default(), &[a, b]);
    assert_eq!((alias_of(&together, a).as_str(), alias_of(&together, b).as_str()), ("neon_46fb", "neon_9c1d"));
    let later = allot_ids(&alone, &[b]);
    assert_eq!((alias_of(&later, a).as_str(), alias_of(&later, b).as_str()), ("neon", "neon_9c1d"));
}

#[test]
fn longer_parts_of_the_id_come_only_where_shorter_ones_meet() {
    let (a, b, c) = ("x_46fb2cad", "x_46fb99aa", "x");
    let all = allot_ids(&Allotment::default(), &[a, b, c]);
    assert_eq!(alias_of(&all, a), "x_46fb2cad");
    assert_eq!(alias_of(&all, b), "x_46fb99aa");
    let hash = Digest::of(b"x").hex(8);
    assert_eq!(alias_of(&all, c), format!("x_{hash}"), "three servers of one change share the base");
}

#[test]
fn an_explicit_alias_wins_or_is_refused_with_both_claimants() {
    let neon = Alias::parse("neon").expect("an alias");
    let (a, b) = (server("a"), server("neon_46fb2cad"));
    let change = [
        Newcomer { id: &a, name: "a", explicit: Some(&neon) },
        Newcomer { id: &b, name: "neon_46fb2cad", explicit: None },
    ];
    let both = allot(&Allotment::default(), &change).expect("allotted");
    assert_eq!((alias_of(&both, "a").as_str(), alias_of(&both, "neon_46fb2cad").as_str()), ("neon", "neon_46fb"));
    let third = server("c");
    let refused = allot(&both, &[Newcomer { id: &third, name: "c", explicit: Some(&neon) }]);
    assert_eq!(
        refused.map_err(|e| e.to_string()),
        Err("the alias neon of the server c is taken by the server a".to_owned())
    );
}

#[test]
fn a_renamed_server_remembers_and_its_old_alias_stays_taken() {
    let a = server("neon_46fb2cad");
    let before = allot_ids(&Allotment::default(), &["neon_46fb2cad"]);
    let db = Alias::parse("db").expect("an alias");
    let renamed = allot(&before, &[Newcomer { id: &a, name: "neon_46fb2cad", explicit: Some(&db) }]).expect("renamed");
    let allotted = renamed.servers.get(&a).expect("the server");
    assert_eq!(allotted.alias, db);
    assert_eq!(allotted.former.iter().map(Alias::as_str).collect::<Vec<_>>(), ["neon"]);
    let later = allot_ids(&renamed, &["neon_9c1d00aa"]);
    assert_eq!(alias_of(&later, "neon_9c1d00aa"), "neon_9c1d", "an old name must not lead to another server");
}

proptest! {
    #[test]
    fn every_base_alias_has_the_grammar(name in "\\PC{0,60}") {
        let (alias, _) = base_alias(&name);
        prop_assert!(Alias::parse(alias.as_str()).is_ok());
        prop_assert!(alias.as_str().len() <= limits::ALIAS_CHARS);
    }

    #[test]
    fn allotment_is_injective_and_never_renames(ids in proptest::collection::vec("[ab]{1,2}(_[0-9a]{8})?", 1..12), cut in 0usize..12) {
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let (first, second) = ids.split_at(cut.min(ids.len()));
        let before = allot_ids(&Allotment::default(), first);
        let after = allot_ids(&before, second);
        let aliases: BTreeSet<_> = after.servers.values().map(|a| a.alias.clone()).collect();
        prop_assert_eq!(aliases.len(), after.servers.len());
        for (id, allotted) in &before.servers {
            prop_assert_eq!(after.servers.get(id), Some(allotted));
        }
        for id in ids {
            prop_assert!(after.servers.contains_key(&server(id)));
        }
    }

    #[test]
    fn a_change_does_not_depend_on_its_order(ids in proptest::collection::vec("[ab](_[0-9a]{8})?", 1..8)) {
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let backwards: Vec<&str> = ids.iter().rev().copied().collect();
        prop_assert_eq!(allot_ids(&Allotment::default(), &ids), allot_ids(&Allotment::default(), &backwards));
    }

    #[test]
    fn visible_names_have_the_grammar_and_the_budget(real in "\\PC{1,90}", budget in limits::NAME_CHARS_LEAST..=64) {
        let alias = Alias::parse("neon_46fb").expect("an alias");
        for digits in [HashDigits::SHORT, HashDigits::LONG, HashDigits::LONGEST] {
            let name = visible(&alias, &real, budget, &server("s"), digits).name;
            prop_assert!(name.len() <= budget, "{}", name);
            prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')));
        }
    }

    #[test]
    fn different_tools_have_different_names(a in "[a-z._é]{1,70}", b in "[a-z._é]{1,70}", x in "[a-c](_[a-c])?", y in "[a-c](_[a-c])?") {
        let (x, y) = (Alias::parse(&x).expect("an alias"), Alias::parse(&y).expect("an alias"));
        let name = |alias: &Alias, real: &str| visible(alias, real, 64, &server(alias.as_str()), HashDigits::LONGEST).name;
        prop_assert_eq!(name(&x, &a) == name(&y, &b), (&x, &a) == (&y, &b));
    }
}

#[test]
fn names_that_would_be_cut_alike_stay_apart() {
    let alias = Alias::parse("gemini").expect("an alias");
    let real = |word: &str| format!("{}{word}{}", "a".repeat(30), "z".repeat(30));
    let name = |word: &str| visible(&alias, &real(word), 64, &server("s"), HashDigits::SHORT).name;
    assert_ne!(name("create"), name("delete"));
    assert_eq!(name("create").len(), 64);
    let chinese = |t: &str| visible(&alias, t, 64, &server("s"), HashDigits::SHORT).name;
    assert_ne!(chinese("查询"), chinese("删除"));
}
