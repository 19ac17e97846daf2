//! Words of names, texts and queries, as they are compared: split, lower-case, stemmed.

use std::collections::HashMap;
use std::sync::LazyLock;

use rust_stemmers::{Algorithm, Stemmer};

/// Words longer than this are no words.
const WORD_BYTES: usize = 40;

static STEMMER: LazyLock<Stemmer> = LazyLock::new(|| Stemmer::create(Algorithm::English));

/// Words that say nothing of what is looked for. They count in names, where they are few.
const EMPTY: [&str; 175] = [
    "a",
    "able",
    "about",
    "actually",
    "after",
    "again",
    "all",
    "already",
    "also",
    "am",
    "an",
    "and",
    "any",
    "anybody",
    "anyone",
    "anything",
    "are",
    "as",
    "asap",
    "at",
    "be",
    "because",
    "been",
    "before",
    "being",
    "but",
    "by",
    "can",
    "could",
    "currently",
    "did",
    "do",
    "does",
    "doing",
    "don",
    "down",
    "each",
    "else",
    "ever",
    "every",
    "everything",
    "exactly",
    "for",
    "from",
    "go",
    "going",
    "got",
    "had",
    "has",
    "have",
    "he",
    "her",
    "here",
    "him",
    "his",
    "how",
    "i",
    "if",
    "in",
    "into",
    "is",
    "it",
    "its",
    "just",
    "kind",
    "know",
    "let",
    "like",
    "lot",
    "many",
    "may",
    "maybe",
    "me",
    "might",
    "more",
    "most",
    "much",
    "must",
    "my",
    "need",
    "needs",
    "no",
    "nobody",
    "not",
    "nothing",
    "now",
    "of",
    "off",
    "okay",
    "on",
    "once",
    "one",
    "only",
    "or",
    "other",
    "our",
    "out",
    "over",
    "own",
    "per",
    "please",
    "quickly",
    "quite",
    "rather",
    "really",
    "right",
    "same",
    "say",
    "she",
    "should",
    "since",
    "so",
    "some",
    "somebody",
    "somehow",
    "someone",
    "something",
    "soon",
    "still",
    "such",
    "sure",
    "tell",
    "than",
    "that",
    "the",
    "their",
    "them",
    "then",
    "there",
    "these",
    "they",
    "thing",
    "things",
    "think",
    "this",
    "those",
    "through",
    "to",
    "today",
    "too",
    "tool",
    "try",
    "until",
    "up",
    "us",
    "use",
    "using",
    "very",
    "want",
    "wants",
    "was",
    "way",
    "we",
    "well",
    "were",
    "what",
    "whatever",
    "when",
    "where",
    "whether",
    "which",
    "while",
    "who",
    "whole",
    "whom",
    "whose",
    "why",
    "will",
    "with",
    "within",
    "without",
    "would",
    "yet",
    "you",
    "your",
];

/// Words that people use for one another when they speak of what tools do.
const ALIKE: [&[&str]; 102] = [
    &["create", "add", "adding", "make", "new", "insert", "open", "register", "provision", "generate", "set"],
    &["delete", "remove", "destroy", "drop", "erase", "purge", "discard", "rid", "clear", "wipe", "throw"],
    &["list", "enumerate", "browse", "show", "overview", "index"],
    &[
        "get",
        "fetch",
        "read",
        "retrieve",
        "show",
        "view",
        "look",
        "see",
        "display",
        "detail",
        "info",
        "information",
        "check",
        "inspect",
        "describe",
    ],
    &["update", "edit", "change", "modify", "set", "alter", "adjust", "rename", "patch", "fix", "correct"],
    &["search", "find", "lookup", "query", "locate", "look", "filter", "match"],
    &["send", "post", "deliver", "publish", "notify", "write", "message", "forward"],
    &["run", "execute", "invoke", "trigger", "start", "launch", "perform", "fire", "kick"],
    &["stop", "cancel", "abort", "halt", "terminate", "end", "kill", "shut", "pause", "suspend"],
    &["close", "resolve", "finish", "complete", "done", "mark", "transition", "archive"],
    &["restore", "recover", "rollback", "revert", "undo", "reset", "back"],
    &["copy", "duplicate", "clone", "fork", "replicate"],
    &["move", "transfer", "relocate", "migrate", "shift"],
    &["upload", "attach", "put", "import", "add"],
    &["download", "export", "save", "dump"],
    &["assign", "allocate", "owner", "responsible", "give", "hand"],
    &["comment", "note", "remark", "reply", "respond", "answer", "feedback"],
    &["issue", "ticket", "bug", "task", "problem", "case", "story", "item", "todo", "defect"],
    &["repository", "repo", "codebase", "project"],
    &["pull", "pr", "merge"],
    &["commit", "change", "revision", "history", "diff"],
    &["database", "db"],
    &["file", "document", "doc", "page"],
    &["folder", "directory", "path"],
    &["message", "chat", "dm", "text"],
    &["email", "mail", "inbox"],
    &["user", "person", "people", "member", "colleague", "teammate", "account", "profile"],
    &["customer", "client", "buyer", "contact"],
    &["invoice", "bill", "receipt"],
    &["payment", "charge", "transaction", "pay", "money"],
    &["picture", "image", "photo", "screenshot", "graphic"],
    &["web", "internet", "online", "website", "site", "url", "page", "browser"],
    &["server", "machine", "vm", "instance", "host", "box", "node"],
    &["log", "output", "trace", "console"],
    &["error", "failure", "exception", "crash", "fail", "broken"],
    &["metric", "statistic", "stats", "usage", "performance", "monitor"],
    &["meeting", "event", "appointment", "calendar", "call", "invite"],
    &["sql", "query", "statement"],
    &["table", "schema", "structure", "column"],
    &["price", "cost", "pricing", "quote", "spend"],
    &["weather", "forecast"],
    &["schedule", "plan", "book"],
    &["label", "tag", "category"],
    &["sprint", "cycle", "iteration"],
    &["milestone", "checkpoint", "deadline", "due"],
    &["follow", "subscribe", "watch", "track", "listen"],
    &["build", "pipeline", "job", "ci", "workflow", "deployment"],
    &["deploy", "release", "rollout", "ship"],
    &["release", "version", "tag"],
    &["approve", "accept", "review", "sign"],
    &["reject", "decline", "deny", "dismiss"],
    &["secret", "password", "credential", "key", "token"],
    &["rotate", "renew", "refresh", "regenerate"],
    &["backup", "snapshot"],
    &["slow", "latency", "performance", "explain"],
    &["row", "record", "entry"],
    &["column", "field", "attribute", "property"],
    &["channel", "room", "conversation", "space", "group"],
    &["emoji", "reaction", "react"],
    &["share", "permission", "access", "grant", "allow"],
    &["revoke", "remove", "withdraw", "unshare"],
    &["spreadsheet", "sheet", "cell", "workbook"],
    &["slide", "presentation", "deck"],
    &["refund", "reimburse", "return"],
    &["subscription", "plan", "membership"],
    &["coupon", "discount", "promo", "voucher"],
    &["complaint", "dispute"],
    &["article", "knowledge", "faq", "guide", "wiki", "documentation", "docs"],
    &["bucket", "storage", "blob"],
    &["domain", "dns", "record"],
    &["balancer", "traffic"],
    &["alert", "alarm", "incident", "page"],
    &["restart", "reboot", "bounce"],
    &["scale", "resize", "grow", "size", "capacity"],
    &["product", "item", "goods", "article", "sku"],
    &["stock", "inventory", "quantity"],
    &["order", "purchase", "buy"],
    &["shipment", "ship", "parcel", "deliver", "package"],
    &["location", "address", "place", "map", "geocode"],
    &["direction", "route", "navigate"],
    &["video", "clip", "movie"],
    &["summary", "summarize", "digest"],
    &["compare", "difference", "diff"],
    &["count", "number", "total"],
    &["top", "popular", "trending"],
    &["latest", "recent", "newest", "last"],
    &["enable", "activate", "on"],
    &["disable", "deactivate", "off"],
    &["connect", "link", "join", "attach"],
    &["invite", "add"],
    &["hours", "schedule", "time"],
    &["translate", "language"],
    &["chart", "graph", "plot", "diagram", "visualize"],
    &["dashboard", "panel"],
    &["team", "group", "organization", "org"],
    &["note", "memo"],
    &["template", "boilerplate"],
    &["validate", "verify", "check", "lint", "test"],
    &["install", "setup"],
    &["click", "press", "tap"],
    &["type", "fill", "enter", "input"],
    &["screen", "window", "tab"],
];

/// Stems that stand for one another: of a stem, the others of its groups.
static OTHERS: LazyLock<HashMap<String, Vec<String>>> = LazyLock::new(|| {
    let mut others: HashMap<String, Vec<String>> = HashMap::new();
    for group in ALIKE {
        let stems: Vec<String> = group.iter().map(|word| stem(word)).collect();
        for stem in &stems {
            let known = others.entry(stem.clone()).or_default();
            for other in stems.iter().filter(|other| *other != stem) {
                if !known.contains(other) {
                    known.push(other.clone());
                }
            }
        }
    }
    others
});

/// Words whose stem is that of another word with another meaning.
const WHOLE: [&str; 4] = ["international", "organization", "production", "university"];

fn stem(word: &str) -> String {
    if WHOLE.contains(&word) {
        return word.to_owned();
    }
    STEMMER.stem(word).into_owned()
}

/// What people say instead of a stem.
pub(super) fn others(stem: &str) -> &'static [String] {
    OTHERS.get(stem).map_or(&[], Vec::as_slice)
}

/// The stems of a text in its order: letters and digits apart from everything else, `camelCase` taken apart, and each
/// character of a script without spaces for itself.
pub(super) fn stems(text: &str) -> Vec<String> {
    split(text).iter().filter(|word| EMPTY.binary_search(&word.as_str()).is_err()).map(|word| stem(word)).collect()
}

/// The same of a name, where no word is empty.
pub(super) fn stems_of_name(name: &str) -> Vec<String> {
    split(name).iter().map(|word| stem(word)).collect()
}

fn split(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut before = ' ';
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        let starts = c.is_uppercase()
            && (before.is_lowercase()
                || before.is_uppercase() && characters.peek().is_some_and(|next| next.is_lowercase()));
        let apart = !c.is_alphanumeric() || starts || is_word_by_itself(c) || is_word_by_itself(before);
        if apart && !word.is_empty() {
            push(&mut words, std::mem::take(&mut word));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
        before = c;
    }
    push(&mut words, word);
    words
}

fn push(words: &mut Vec<String>, word: String) {
    if !word.is_empty() && word.len() <= WORD_BYTES {
        words.push(word);
    }
}

/// Scripts that are written without spaces.
fn is_word_by_itself(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{2fa1f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_style_are_taken_apart() {
        for name in
            ["listPullRequests", "list_pull_requests", "list-pull-requests", "List Pull Requests", "list.pull/requests"]
        {
            assert_eq!(split(name), ["list", "pull", "requests"], "{name}");
        }
        assert_eq!(split("getHTTPUrl2"), ["get", "http", "url2"]);
        assert_eq!(split("创建issue"), ["创", "建", "issue"]);
        assert_eq!(split(""), Vec::<String>::new());
        assert_eq!(stems("the deleted issues"), stems("delete issue"));
    }

    #[test]
    fn words_alike_are_known_by_their_stems() {
        assert!(others(&stem("creating")).contains(&stem("adding")));
        assert!(others(&stem("ticket")).contains(&stem("issues")));
        assert!(others("zebra").is_empty());
    }
}
