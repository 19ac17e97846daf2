//! Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html): written and read.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};

use super::raw;

/// A comment, which keeps intermediaries from cutting an idle stream.
pub const COMMENT: &[u8] = b": keep-alive\n\n";

/// One `message` event that carries a JSON text on one `data:` line.
pub fn event(json: &[u8]) -> Bytes {
    let json = raw::one_line(json);
    let mut out = BytesMut::with_capacity(json.len() + 24);
    out.put_slice(b"event: message\ndata: ");
    out.put_slice(&json);
    out.put_slice(b"\n\n");
    out.freeze()
}

/// One event is larger than the reader allows.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLarge;

/// The start of one `message` event: with an id, it can be resumed behind it. The data follows on the same line, then
/// [`END`].
pub fn head(id: Option<&str>) -> Bytes {
    match id {
        Some(id) => Bytes::from(format!("id: {id}\nevent: message\ndata: ")),
        None => Bytes::from_static(b"event: message\ndata: "),
    }
}

/// The end of an event.
pub const END: &[u8] = b"\n\n";

/// The first event of a stream that can be resumed: an id without data, and when to come back if the stream breaks
/// (specification 2025-11-25, basic/transports, section Listening).
pub fn priming(id: &str, retry: std::time::Duration) -> Bytes {
    Bytes::from(format!("id: {id}\nretry: {}\ndata: \n\n", retry.as_millis()))
}

/// Longest id of an event that is remembered.
const ID_BYTES: usize = 1024;

/// Reads events from chunks of any cut.
pub struct Reader {
    /// Of the events that came whole; and of the one that is coming.
    last_id: Option<String>,
    coming_id: Option<String>,
    retry_ms: Option<u64>,
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    after_cr: bool,
    events: VecDeque<Vec<u8>>,
    limit: usize,
}

impl Reader {
    /// `limit` bytes at most for the data of one event, and for one line.
    pub fn new(limit: usize) -> Self {
        let (last_id, retry_ms) = (None, None);
        Self {
            last_id,
            coming_id: None,
            retry_ms,
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            after_cr: false,
            events: VecDeque::new(),
            limit,
        }
    }

    /// Takes a chunk; whole events are then given by `next_event`.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), TooLarge> {
        let mut rest = chunk;
        while let Some(&first) = rest.first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                rest = rest.split_first().map_or(&[], |(_, tail)| tail);
                continue;
            }
            match memchr::memchr2(b'\n', b'\r', rest) {
                Some(at) => {
                    let (head, tail) = rest.split_at(at);
                    self.grow(head)?;
                    self.after_cr = tail.first() == Some(&b'\r');
                    self.end_line()?;
                    rest = tail.split_first().map_or(&[], |(_, tail)| tail);
                }
                None => {
                    self.grow(rest)?;
                    rest = &[];
                }
            }
        }
        Ok(())
    }

    /// The id behind which the stream can be resumed, and after how many milliseconds, as far as the stream said.
    pub fn resume(&self) -> (Option<&str>, Option<u64>) {
        (self.last_id.as_deref(), self.retry_ms)
    }

    fn field(&mut self, line: &[u8]) {
        let Some((name, value)) = std::str::from_utf8(line).ok().and_then(|line| line.split_once(':')) else { return };
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" if value.len() <= ID_BYTES && !value.contains('\0') => self.coming_id = Some(value.to_owned()),
            "retry" => self.retry_ms = value.parse().ok().or(self.retry_ms),
            _ => {}
        }
    }

    /// The data of the next whole event.
    pub fn next_event(&mut self) -> Option<Vec<u8>> {
        self.events.pop_front()
    }

    fn grow(&mut self, part: &[u8]) -> Result<(), TooLarge> {
        if self.line.len() + part.len() > self.limit {
            return Err(TooLarge);
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), TooLarge> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            // Only behind a whole event is a place to go on from.
            if let Some(id) = self.coming_id.take() {
                self.last_id = Some(id);
            }
            if std::mem::take(&mut self.has_data) {
                self.events.push_back(std::mem::take(&mut self.data));
            }
            return Ok(());
        }
        let value = match line.strip_prefix(b"data") {
            Some([]) => &[][..],
            Some([b':', b' ', value @ ..] | [b':', value @ ..]) => value,
            _ => {
                self.field(&line);
                return Ok(());
            }
        };
        if self.data.len() + value.len() + 1 > self.limit {
            return Err(TooLarge);
        }
        if self.has_data {
            self.data.push(b'\n');
        }
        self.has_data = true;
        self.data.extend_from_slice(value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_all(chunks: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut reader = Reader::new(1 << 16);
        for chunk in chunks {
            assert_eq!(reader.push(chunk), Ok(()));
        }
        std::iter::from_fn(|| reader.next_event()).collect()
    }

    #[test]
    fn all_line_ends_and_comments_are_read() {
        let stream =
            b": hi\r\n\r\nid: 1\r\ndata:\r\n\r\nevent: message\rdata: {\"a\":1}\r\rdata: x\ndata: y\n\ndata: cut";
        assert_eq!(read_all(&[stream]), [&b""[..], b"{\"a\":1}", b"x\ny"]);
    }

    #[test]
    fn where_to_resume_is_remembered() {
        let mut reader = Reader::new(1 << 16);
        reader.push(&priming("7-0", std::time::Duration::from_millis(500))).expect("small");
        assert_eq!(reader.next_event().as_deref(), Some(&b""[..]));
        assert_eq!(reader.resume(), (Some("7-0"), Some(500)));
        reader.push(&[&head(Some("7-1"))[..], b"{}", END].concat()).expect("small");
        assert_eq!((reader.next_event().as_deref(), reader.resume().0), (Some(&b"{}"[..]), Some("7-1")));
        reader.push(b"id: 7-2\ndata: {\"cut\":").expect("small");
        assert_eq!(reader.resume().0, Some("7-1"), "an event that did not come whole is missed");
        for unfit in ["7-3\0", &"7".repeat(ID_BYTES + 1)] {
            reader.push(format!("}}\n\nid: {unfit}\ndata: {{}}\n\n").as_bytes()).expect("small");
            assert_eq!(reader.resume().0, Some("7-2"), "an id that cannot be sent back is none");
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut reader = Reader::new(8);
        assert_eq!(reader.push(b"data: 123456789"), Err(TooLarge));
    }

    proptest! {
        #[test]
        fn the_cut_of_chunks_changes_nothing(cuts in proptest::collection::vec(0usize..80, 0..6)) {
            let stream = b"data: {\"a\":1}\r\n\r\n: c\n\ndata: two\rdata: lines\r\rdata: end\n\n";
            let whole = read_all(&[stream]);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(stream.len())).collect();
            cuts.sort_unstable();
            let mut reader = Reader::new(1 << 16);
            let mut from = 0;
            for to in cuts.into_iter().chain([stream.len()]) {
                prop_assert_eq!(reader.push(stream.get(from..to).unwrap_or_default()), Ok(()));
                from = to;
            }
            prop_assert_eq!(std::iter::from_fn(|| reader.next_event()).collect::<Vec<_>>(), whole);
        }

        #[test]
        fn what_is_written_is_read(json in "\\PC*") {
            let quoted = raw::quote(&json);
            prop_assert_eq!(read_all(&[&event(quoted.as_bytes())]), [quoted.as_bytes()]);
        }
    }
}
