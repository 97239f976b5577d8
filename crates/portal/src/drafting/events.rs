//! Server-Sent Events, taken out of bytes as they come: names and data of whole events, within a bound. Pure.

use super::limits::MAX_EVENT_BYTES;

/// An event with its name; comments and fields that are not used are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) name: String,
    pub(super) data: String,
}

#[derive(Debug, Default)]
pub(super) struct EventReader {
    /// Bytes of a line that is not whole yet.
    rest: Vec<u8>,
    event: Event,
    has_data: bool,
}

/// The bytes are no stream of events, or one without an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EventFault {
    #[error("an event has more than {MAX_EVENT_BYTES} bytes")]
    TooLarge,
    #[error("an event is not UTF-8")]
    NotText,
}

impl EventReader {
    /// The events that these bytes complete.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<Vec<Event>, EventFault> {
        let mut events = Vec::new();
        let mut unread = bytes;
        while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
            let (line, after) = (&unread[..end], &unread[end + 1..]);
            self.rest.extend_from_slice(line);
            let line = std::mem::take(&mut self.rest);
            let line = std::str::from_utf8(&line).map_err(|_| EventFault::NotText)?;
            events.extend(self.line(line.strip_suffix('\r').unwrap_or(line)));
            unread = after;
            self.check_size()?;
        }
        self.rest.extend_from_slice(unread);
        self.check_size()?;
        Ok(events)
    }

    fn check_size(&self) -> Result<(), EventFault> {
        let bytes = self.rest.len() + self.event.data.len() + self.event.name.len();
        if bytes > MAX_EVENT_BYTES { Err(EventFault::TooLarge) } else { Ok(()) }
    }

    fn line(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            let has_data = std::mem::take(&mut self.has_data);
            let event = std::mem::take(&mut self.event);
            return has_data.then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.has_data = true;
                self.event.data.push_str(value);
            }
            // Comments, whose name is empty, and fields that this stream does not have.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STREAM: &str = ": hello\n\nevent: response.output_text.delta\ndata: {\"delta\":\"ä\"}\n\n: keep-alive\n\n\
        event: two\r\ndata: a\r\ndata: b\r\n\r\ndata: nameless\n\nevent: without data\n\nevent: cut\ndata: off\n";

    fn event(name: &str, data: &str) -> Event {
        Event { name: name.to_owned(), data: data.to_owned() }
    }

    #[test]
    fn an_event_without_an_end_is_refused() {
        let mut reader = EventReader::default();
        let mut line = b"data: ".to_vec();
        line.resize(MAX_EVENT_BYTES + 10, b'x');
        assert_eq!(reader.take(&line), Err(EventFault::TooLarge));
        let mut reader = EventReader::default();
        let lines = "data: xxxxxxxxxxxxxxxxxxxxxxxxx\n".repeat(MAX_EVENT_BYTES / 20);
        assert_eq!(reader.take(lines.as_bytes()), Err(EventFault::TooLarge));
        assert_eq!(EventReader::default().take(b"data: \xff\n"), Err(EventFault::NotText));
    }

    proptest! {
        #[test]
        fn events_are_the_same_however_the_bytes_are_cut(cuts in proptest::collection::vec(0..STREAM.len(), 0..12)) {
            let mut cuts = cuts;
            cuts.push(0);
            cuts.push(STREAM.len());
            cuts.sort_unstable();
            let mut reader = EventReader::default();
            let mut events = Vec::new();
            for pair in cuts.windows(2) {
                events.extend(reader.take(&STREAM.as_bytes()[pair[0]..pair[1]]).unwrap());
            }
            let expected = [
                event("response.output_text.delta", "{\"delta\":\"ä\"}"),
                event("two", "a\nb"),
                event("", "nameless"),
            ];
            prop_assert_eq!(events.as_slice(), expected.as_slice());
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes: Vec<u8>) {
            let _ = EventReader::default().take(&bytes);
        }
    }
}
