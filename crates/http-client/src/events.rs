//! Parses Server-Sent Events incrementally, within a size limit. Pure. Ignores ids, retry times and comments.
//!
//! Existing crates do not fit: `eventsource-stream`, `async-sse` and `sseer` limit neither a line nor an event.
//! `sse-parse` does, but replaces invalid UTF-8 with U+FFFD, which must fail here. It also allocates per event, and
//! there is one event per token.

use memchr::memchr;

/// The bytes are not a valid event stream, or an event is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    #[error("event larger than {max_bytes} bytes")]
    TooLarge { max_bytes: usize },
    #[error("event is not valid UTF-8")]
    NotUtf8,
}

#[derive(Debug)]
pub struct EventReader {
    max_event_bytes: usize,
    /// An incomplete line.
    line: Vec<u8>,
    name: String,
    data: String,
    has_data: bool,
}

impl EventReader {
    pub fn new(max_event_bytes: usize) -> Self {
        let (line, name, data) = (Vec::new(), String::new(), String::new());
        Self { max_event_bytes, line, name, data, has_data: false }
    }

    /// Calls `on_event` with the name (empty if there is none) and the data of each event that these bytes complete,
    /// until it returns an error.
    pub fn read<E: From<EventError>>(
        &mut self,
        bytes: &[u8],
        mut on_event: impl FnMut(&str, &str) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut unread = bytes;
        while let Some(end) = memchr(b'\n', unread) {
            let (line, rest) = (&unread[..end], &unread[end + 1..]);
            if self.line.is_empty() {
                self.check_size(line.len())?;
                if let Some((data, rest)) = self.whole_event(line, rest) {
                    let data = std::str::from_utf8(data).map_err(|_| EventError::NotUtf8)?;
                    unread = rest;
                    let outcome = on_event(&self.name, data);
                    self.name.clear();
                    outcome?;
                    continue;
                }
                unread = rest;
                self.take_line(line)?;
                self.end_event(line, &mut on_event)?;
            } else {
                let mut joined = std::mem::take(&mut self.line);
                joined.extend_from_slice(line);
                unread = rest;
                self.check_size(joined.len())?;
                self.take_line(&joined)?;
                self.end_event(&joined, &mut on_event)?;
                joined.clear();
                self.line = joined;
            }
        }
        self.line.extend_from_slice(unread);
        Ok(self.check_size(self.line.len())?)
    }

    /// Returns the data of an event that consists of this line and the empty one after it, and what follows. Most events of a
    /// stream arrive like this, and are not copied.
    fn whole_event<'a>(&self, line: &'a [u8], rest: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        if self.has_data {
            return None;
        }
        let data = value_of(without_return(line), b"data")?;
        let after = rest.strip_prefix(b"\n").or_else(|| rest.strip_prefix(b"\r\n"))?;
        Some((data, after))
    }

    fn take_line(&mut self, line: &[u8]) -> Result<(), EventError> {
        let line = without_return(line);
        let text = |value| std::str::from_utf8(value).map_err(|_| EventError::NotUtf8);
        if let Some(data) = value_of(line, b"data") {
            if self.has_data {
                self.data.push('\n');
            }
            self.has_data = true;
            self.data.push_str(text(data)?);
        } else if let Some(name) = value_of(line, b"event") {
            text(name)?.clone_into(&mut self.name);
        }
        Ok(())
    }

    /// Calls `on_event` if the line is the empty one after an event with data.
    fn end_event<E>(
        &mut self,
        line: &[u8],
        on_event: &mut impl FnMut(&str, &str) -> Result<(), E>,
    ) -> Result<(), E> {
        if !without_return(line).is_empty() {
            return Ok(());
        }
        let outcome = if self.has_data { on_event(&self.name, &self.data) } else { Ok(()) };
        self.name.clear();
        self.data.clear();
        self.has_data = false;
        outcome
    }

    /// Of the event so far, and of a line that is not part of it yet.
    fn check_size(&self, line_bytes: usize) -> Result<(), EventError> {
        match line_bytes + self.name.len() + self.data.len() > self.max_event_bytes {
            true => Err(EventError::TooLarge { max_bytes: self.max_event_bytes }),
            false => Ok(()),
        }
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn value_of<'a>(line: &'a [u8], field: &[u8]) -> Option<&'a [u8]> {
    let value = line.strip_prefix(field)?.strip_prefix(b":")?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX_BYTES: usize = 64 * 1024;
    const TOO_LARGE: EventError = EventError::TooLarge { max_bytes: MAX_BYTES };

    const STREAM: &str = ": hello\n\nevent: response.output_text.delta\ndata: {\"delta\":\"ä\"}\n\n: keep-alive\n\n\
        event: two\r\ndata: a\r\ndata:b\r\n\r\ndata: nameless\n\nevent: without data\n\ndata: [DONE]\n\n\
        event: cut\ndata: off\n";

    fn read(reader: &mut EventReader, bytes: &[u8]) -> Result<Vec<(String, String)>, EventError> {
        let mut events = Vec::new();
        reader.read(bytes, |name, data| {
            events.push((name.to_owned(), data.to_owned()));
            Ok::<_, EventError>(())
        })?;
        Ok(events)
    }

    #[test]
    fn endless_line_or_event_is_rejected_within_the_limit() {
        let mut reader = EventReader::new(MAX_BYTES);
        let endless = [b'x'; 4096];
        let error = (0..1_000).find_map(|_| read(&mut reader, &endless).err());
        assert_eq!(error, Some(TOO_LARGE));
        assert!(reader.line.len() <= MAX_BYTES + endless.len());
        let lines = "data: xxxxxxxxxxxxxxxxxxxxxxxxx\n".repeat(MAX_BYTES / 20);
        assert_eq!(read(&mut EventReader::new(MAX_BYTES), lines.as_bytes()), Err(TOO_LARGE));
    }

    #[test]
    fn non_utf8_event_is_rejected() {
        for broken in [&b"data: \xff\n"[..], b"data: \xff\n\n", b"event: \xff\n"] {
            assert_eq!(read(&mut EventReader::new(MAX_BYTES), broken), Err(EventError::NotUtf8));
        }
    }

    #[test]
    fn event_that_arrives_whole_is_not_copied() {
        let bytes = b"event: x\ndata: one\n\ndata: two\r\n\r\n";
        let (range, mut seen) = (bytes.as_ptr_range(), 0);
        let outcome = EventReader::new(MAX_BYTES).read(bytes, |_, data| {
            assert!(range.contains(&data.as_ptr()), "{data}");
            seen += 1;
            Ok::<_, EventError>(())
        });
        assert_eq!((outcome, seen), (Ok(()), 2));
    }

    #[test]
    fn callback_error_stops_reading() {
        let mut seen = 0;
        let outcome = EventReader::new(MAX_BYTES).read(b"data: 1\n\ndata: 2\n\n", |_, _| {
            seen += 1;
            Err(EventError::NotUtf8)
        });
        assert_eq!((outcome, seen), (Err(EventError::NotUtf8), 1));
    }

    proptest! {
        #[test]
        fn events_do_not_depend_on_chunk_boundaries(cuts in proptest::collection::vec(0..STREAM.len(), 0..12)) {
            let mut cuts = cuts;
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let mut reader = EventReader::new(MAX_BYTES);
            let mut events = Vec::new();
            for pair in cuts.windows(2) {
                events.extend(read(&mut reader, &STREAM.as_bytes()[pair[0]..pair[1]]).unwrap());
            }
            let expected = [
                ("response.output_text.delta", "{\"delta\":\"ä\"}"),
                ("two", "a\nb"),
                ("", "nameless"),
                ("", "[DONE]"),
            ];
            prop_assert_eq!(events, expected.map(|(name, data)| (name.to_owned(), data.to_owned())));
        }

        #[test]
        fn reader_never_panics_on_arbitrary_bytes(bytes: Vec<u8>) {
            let _ = read(&mut EventReader::new(MAX_BYTES), &bytes);
        }
    }
}
