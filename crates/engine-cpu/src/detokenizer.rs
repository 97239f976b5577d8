//! Generated tokens to text, as it may be shown: whole characters only, and nothing that may yet turn out to be the
//! beginning of a stop string. Bytes that can never become a character show as U+FFFD; a character that the reply's
//! end leaves unfinished is left out, since the model did not get to say it.

/// What one token added.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    pub text: String,
    /// A stop string has appeared; it and what follows are left out.
    pub stopped: bool,
}

#[derive(Debug)]
pub struct Detokenizer {
    /// The beginning of a character.
    unfinished: Vec<u8>,
    /// Whole characters that may be the beginning of a stop string.
    held: String,
    stops: Vec<StopMatcher>,
}

impl Detokenizer {
    /// Empty stop strings never match.
    pub fn new(stops: &[String]) -> Self {
        Self {
            unfinished: Vec::new(),
            held: String::new(),
            stops: stops.iter().filter(|stop| !stop.is_empty()).map(|stop| StopMatcher::new(stop)).collect(),
        }
    }

    pub fn push(&mut self, bytes: &[u8]) -> Shown {
        let scanned = self.held.len();
        self.unfinished.extend_from_slice(bytes);
        let finished = decode_finished(&self.unfinished, &mut self.held);
        self.unfinished.drain(..finished);

        for (index, byte) in self.held.bytes().enumerate().skip(scanned) {
            // Of several that end here, the longest began first.
            let longest = self.stops.iter_mut().filter_map(|stop| stop.advance(byte)).max();
            if let Some(len) = longest {
                let mut text = std::mem::take(&mut self.held);
                text.truncate(index + 1 - len);
                return Shown { text, stopped: true };
            }
        }
        let held_len = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - held_len);
        Shown { text: std::mem::replace(&mut self.held, held), stopped: false }
    }

    /// What was held back, when the reply ends without a stop string.
    pub fn finish(self) -> String {
        self.held
    }
}

/// Appends the characters that are complete, or can never be; returns how many bytes that took.
fn decode_finished(bytes: &[u8], text: &mut String) -> usize {
    let mut taken = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        taken += chunk.valid().len();
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            continue;
        }
        let is_last = taken + invalid.len() == bytes.len();
        let may_go_on = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
        if is_last && may_go_on {
            break;
        }
        text.push(char::REPLACEMENT_CHARACTER);
        taken += invalid.len();
    }
    taken
}

/// Finds one stop string in a stream of bytes, each looked at once (Knuth, Morris and Pratt).
#[derive(Debug)]
struct StopMatcher {
    pattern: Box<[u8]>,
    /// For each length of matched beginning, the longest shorter beginning that it also ends with.
    fallback: Box<[usize]>,
    matched: usize,
}

impl StopMatcher {
    fn new(stop: &str) -> Self {
        let pattern = stop.as_bytes();
        let mut fallback = vec![0; pattern.len()];
        let mut matched = 0;
        for index in 1..pattern.len() {
            while matched > 0 && pattern[index] != pattern[matched] {
                matched = fallback[matched - 1];
            }
            if pattern[index] == pattern[matched] {
                matched += 1;
            }
            fallback[index] = matched;
        }
        Self { pattern: pattern.into(), fallback: fallback.into(), matched: 0 }
    }

    /// Takes one byte; the stop string's length when it is complete.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        while self.matched > 0 && self.pattern.get(self.matched) != Some(&byte) {
            self.matched = self.fallback[self.matched - 1];
        }
        if self.pattern[self.matched] == byte {
            self.matched += 1;
        }
        (self.matched == self.pattern.len()).then_some(self.matched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pushes the pieces; what was shown, and whether it stopped.
    fn show<'a>(stops: &[&str], pieces: impl IntoIterator<Item = &'a [u8]>) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut detokenizer = Detokenizer::new(&stops);
        let mut text = String::new();
        for piece in pieces {
            let shown = detokenizer.push(piece);
            text += &shown.text;
            if shown.stopped {
                return (text, true);
            }
        }
        (text + &detokenizer.finish(), false)
    }

    #[test]
    fn a_character_in_pieces_is_shown_when_it_is_whole() {
        let mut detokenizer = Detokenizer::new(&[]);
        assert_eq!(detokenizer.push(&"é".as_bytes()[..1]).text, "");
        assert_eq!(detokenizer.push(&"é".as_bytes()[1..]).text, "é");
        assert_eq!(detokenizer.push(&"漢".as_bytes()[..2]).text, "");
        assert_eq!(detokenizer.finish(), "");
    }

    #[test]
    fn bytes_that_never_become_a_character_are_replaced_once() {
        assert_eq!(show(&[], [b"a\xff".as_slice(), b"b"]).0, "a\u{fffd}b");
        assert_eq!(show(&[], [b"\xe6\xbc".as_slice(), b"x"]).0, "\u{fffd}x");
    }

    #[test]
    fn a_stop_string_across_pieces_is_left_out() {
        assert_eq!(show(&["END"], [b"one E".as_slice(), b"N", b"D two"]), ("one ".to_owned(), true));
        assert_eq!(show(&["END"], [b"one E".as_slice(), b"NT"]), ("one ENT".to_owned(), false));
        assert_eq!(show(&["", "é"], [b"caf\xc3".as_slice(), b"\xa9s"]), ("caf".to_owned(), true));
    }

    #[test]
    fn of_two_stop_strings_the_one_that_is_complete_first_counts() {
        assert_eq!(show(&["bcd", "c"], [b"abcd".as_slice()]), ("ab".to_owned(), true));
        assert_eq!(show(&["c", "bc"], [b"abcd".as_slice()]), ("a".to_owned(), true));
    }

    proptest! {
        #[test]
        fn what_is_shown_does_not_depend_on_how_the_text_is_cut(
            text in "[abé漢]{0,40}", stop in "[abé]{1,4}", cuts in proptest::collection::vec(1_usize..5, 0..40),
        ) {
            let bytes = text.as_bytes();
            let mut pieces = Vec::new();
            let mut at = 0;
            for cut in cuts {
                let end = (at + cut).min(bytes.len());
                pieces.push(&bytes[at..end]);
                at = end;
            }
            pieces.push(&bytes[at..]);
            let wanted = match text.find(&stop) {
                Some(at) => (text[..at].to_owned(), true),
                None => (text.clone(), false),
            };
            prop_assert_eq!(show(&[&stop], pieces), wanted);
        }

        #[test]
        fn any_bytes_are_shown_as_the_standard_replacement_would(bytes: Vec<u8>, cut: prop::sample::Index) {
            let cut = cut.index(bytes.len() + 1);
            let (shown, _) = show(&[], [&bytes[..cut], &bytes[cut..]]);
            let whole = String::from_utf8_lossy(&bytes);
            // At most the unfinished character at the end is missing.
            let unfinished_left_out = whole.strip_suffix(char::REPLACEMENT_CHARACTER);
            prop_assert!(whole == shown || unfinished_left_out == Some(&shown));
        }
    }
}
