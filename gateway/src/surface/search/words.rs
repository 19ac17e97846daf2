//! Words of names, texts and queries, as they are compared: split, lower-case, stemmed.

use std::collections::HashMap;
use std::sync::LazyLock;

use rust_stemmers::{Algorithm, Stemmer};

use super::english::{ALIKE, EMPTY};

/// Words longer than this are no words.
const WORD_BYTES: usize = 40;

static STEMMER: LazyLock<Stemmer> = LazyLock::new(|| Stemmer::create(Algorithm::English));

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
        assert!(EMPTY.is_sorted(), "it is searched by halves");
        assert!(others(&stem("creating")).contains(&stem("adding")));
        assert!(others(&stem("ticket")).contains(&stem("issues")));
        assert!(others("zebra").is_empty());
    }
}
