//! The data of Server-Sent Events, taken out of bytes as they come, within a bound. Pure. Names and comments are left out:
//! streams of chat completions do not use them.

use super::fault::Fault;
use super::limits::MAX_EVENT_BYTES;

#[derive(Debug, Default)]
pub(super) struct DataReader {
    /// A line that is not whole yet.
    line: Vec<u8>,
    data: String,
    has_data: bool,
}

impl DataReader {
    /// Hands on the data of each event that these bytes complete, until it is told to stop.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        mut event: impl FnMut(&str) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut unread = bytes;
        while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
            self.line.extend_from_slice(&unread[..end]);
            unread = &unread[end + 1..];
            self.check_size()?;
            if self.end_line()? {
                let outcome = event(&self.data);
                self.data.clear();
                outcome?;
            }
        }
        self.line.extend_from_slice(unread);
        self.check_size()
    }

    /// Whether the line ended an event that has data.
    fn end_line(&mut self) -> Result<bool, Fault> {
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        if line.is_empty() {
            self.line.clear();
            return Ok(std::mem::take(&mut self.has_data));
        }
        if let Some(data) = line.strip_prefix(b"data:") {
            let data = data.strip_prefix(b" ").unwrap_or(data);
            let data = std::str::from_utf8(data).map_err(|_| Fault::broken("an event is not UTF-8"))?;
            if self.has_data {
                self.data.push('\n');
            }
            self.has_data = true;
            self.data.push_str(data);
        }
        self.line.clear();
        Ok(false)
    }

    fn check_size(&self) -> Result<(), Fault> {
        match self.line.len() + self.data.len() > MAX_EVENT_BYTES {
            true => Err(Fault::broken(format!("an event has more than {MAX_EVENT_BYTES} bytes"))),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STREAM: &str = ": hello\n\ndata: {\"delta\":\"ä\"}\n\n: keep-alive\n\nevent: two\r\ndata: a\r\ndata:b\r\n\r\n\
        data: [DONE]\n\nevent: without data\n\ndata: cut off\n";

    #[test]
    fn a_line_or_an_event_without_an_end_is_refused_before_it_fills_the_memory() {
        let mut reader = DataReader::default();
        let endless = [b'x'; 4096];
        let refused = (0..1_000).find_map(|_| reader.take(&endless, |_| Ok(())).err());
        assert!(refused.is_some() && reader.line.len() <= MAX_EVENT_BYTES + endless.len());
        let mut reader = DataReader::default();
        let lines = "data: xxxxxxxxxxxxxxxxxxxxxxxxx\n".repeat(MAX_EVENT_BYTES / 20);
        assert!(reader.take(lines.as_bytes(), |_| Ok(())).is_err());
        assert!(DataReader::default().take(b"data: \xff\n\n", |_| Ok(())).is_err());
    }

    proptest! {
        #[test]
        fn events_are_the_same_however_the_bytes_are_cut(cuts in proptest::collection::vec(0..STREAM.len(), 0..12)) {
            let mut cuts = cuts;
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let mut reader = DataReader::default();
            let mut events = Vec::new();
            for pair in cuts.windows(2) {
                reader
                    .take(&STREAM.as_bytes()[pair[0]..pair[1]], |data| {
                        events.push(data.to_owned());
                        Ok(())
                    })
                    .unwrap();
            }
            prop_assert_eq!(events, ["{\"delta\":\"ä\"}", "a\nb", "[DONE]"]);
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes: Vec<u8>) {
            let _ = DataReader::default().take(&bytes, |_| Ok(()));
        }
    }
}
