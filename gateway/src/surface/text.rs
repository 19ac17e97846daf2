//! Text of others inside text of ours: names and descriptions come from upstream, and an agent acts on what it reads.
//!
//! What is put between our own words is one line of plain characters: it can end no block, begin no line, and hide nothing.

/// Characters that show nothing or turn what stands beside them around: bidirectional controls, zero-width and variation
/// characters, and tags (Unicode Technical Report 36, section 2; Unicode Standard Annex 9).
pub fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\u{00ad}' | '\u{034f}' | '\u{061c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
    )
}

/// One line: hidden characters are gone, white space and controls are single spaces, and it is cut at `most` bytes, at a
/// word where one ends near by.
pub fn line(text: &str, most: usize) -> String {
    let mut out = String::with_capacity(text.len().min(most + 4));
    for c in text.chars().filter(|c| !is_hidden(*c)) {
        let c = if c.is_whitespace() || c.is_control() { ' ' } else { c };
        if c == ' ' && (out.is_empty() || out.ends_with(' ')) {
            continue;
        }
        out.push(c);
        if out.len() > most {
            return cut(out, most);
        }
    }
    out.truncate(out.trim_end().len());
    out
}

fn cut(mut out: String, most: usize) -> String {
    let bound = (0..=most).rev().find(|at| out.is_char_boundary(*at)).unwrap_or(0);
    out.truncate(bound);
    if let Some(space) = out.rfind(' ').filter(|space| *space > most / 2) {
        out.truncate(space);
    }
    out.truncate(out.trim_end().len());
    out.push('…');
    out
}

/// The first sentence of a description, as a line.
pub fn first_sentence(text: &str, most: usize) -> String {
    let line = line(text, most * 2);
    let end = line.match_indices(". ").map(|(at, _)| at + 1).find(|at| *at >= 20);
    match end.and_then(|end| line.get(..end)) {
        Some(sentence) if sentence.len() <= most => sentence.to_owned(),
        _ => self::line(&line, most),
    }
}

/// A name that may stand in a text beside ours: nothing but letters, digits and `_ . -`.
pub fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 128 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_or_breaks_a_line_does_not_pass() {
        assert_eq!(line(" a\u{202e}b\r\n\tc\u{e0041} \u{200b} d ", 100), "ab c d");
        assert_eq!(line("one two three", 8), "one two…");
        assert_eq!(line("éééééé", 5), "éé…");
        assert_eq!(line("x".repeat(9).as_str(), 9), "xxxxxxxxx");
        assert_eq!(first_sentence("Runs a statement on a branch. Then more.", 100), "Runs a statement on a branch.");
        assert_eq!(first_sentence("E.g. this. Is not the end of it", 100), "E.g. this. Is not the end of it");
        assert!(
            is_plain_name("list-issues.v2_x") && !is_plain_name("a b") && !is_plain_name("") && !is_plain_name("a/b")
        );
    }
}
