//! Lines from a child, with a bound: a longer line is skipped and reported, reading goes on behind it.

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

/// One line without its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Whole(Vec<u8>),
    /// It was longer than allowed.
    TooLong,
}

/// The next line, or nothing at the end of the stream. What stands after the last newline is no line.
pub(crate) async fn next_line<R: AsyncBufRead + Unpin>(reader: &mut R, limit: usize) -> std::io::Result<Option<Line>> {
    let mut line = Vec::new();
    let mut too_long = false;
    loop {
        let chunk = reader.fill_buf().await?;
        if chunk.is_empty() {
            return Ok(None);
        }
        let end = memchr::memchr(b'\n', chunk);
        let part = chunk.get(..end.unwrap_or(chunk.len())).unwrap_or_default();
        if line.len() + part.len() > limit {
            too_long = true;
            line = Vec::new();
        } else if !too_long {
            line.extend_from_slice(part);
        }
        let used = end.map_or(chunk.len(), |at| at + 1);
        reader.consume(used);
        if end.is_some() {
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            return Ok(Some(if too_long { Line::TooLong } else { Line::Whole(line) }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn long_lines_are_skipped_and_reading_goes_on() {
        let input = tokio::io::BufReader::with_capacity(4, &b"one\r\nmuch too long\n\ntwo\ncut"[..]);
        let mut reader = input;
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut reader, 5).await.expect("bytes") {
            lines.push(line);
        }
        let whole = |text: &str| Line::Whole(text.as_bytes().to_vec());
        assert_eq!(lines, [whole("one"), Line::TooLong, whole(""), whole("two")]);
    }
}
