//! Generated tokens to text, as it may be shown: whole characters only, and nothing that may yet turn out to be the
//! beginning of a stop string. Bytes that can never become a character show as U+FFFD; a character that the reply's
//! end leaves unfinished is left out, since the model did not get to say it.

/// What one token added.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown<'a> {
    pub text: &'a str,
    /// A stop string has appeared; it and what follows are left out.
    pub stopped: bool,
}

/// Its buffers are kept from token to token; they grow to the longest token and the longest stop string.
#[derive(Debug)]
pub struct Detokenizer {
    /// The beginning of a character.
    unfinished: Vec<u8>,
    /// What the last token let be shown, and behind it whole characters that may be the beginning of a stop string.
    text: String,
    shown: usize,
    stops: Vec<StopMatcher>,
}

impl Detokenizer {
    /// Empty stop strings never match.
    pub fn new(stops: &[String]) -> Self {
        Self {
            unfinished: Vec::new(),
            text: String::new(),
            shown: 0,
            stops: stops.iter().filter(|stop| !stop.is_empty()).map(|stop| StopMatcher::new(stop)).collect(),
        }
    }

    pub fn push(&mut self, bytes: &[u8]) -> Shown<'_> {
        self.text.drain(..self.shown);
        let scanned = self.text.len();
        self.unfinished.extend_from_slice(bytes);
        let finished = decode_finished(&self.unfinished, &mut self.text);
        self.unfinished.drain(..finished);

        for (index, byte) in self.text.bytes().enumerate().skip(scanned) {
            // Of several that end here, the longest began first.
            let longest = self.stops.iter_mut().filter_map(|stop| stop.advance(byte)).max();
            if let Some(len) = longest {
                self.shown = index + 1 - len;
                return Shown { text: &self.text[..self.shown], stopped: true };
            }
        }
        let held = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        self.shown = self.text.len() - held;
        Shown { text: &self.text[..self.shown], stopped: false }
    }

    /// What was held back, when the reply ends without a stop string.
    pub fn held_back(&self) -> &str {
        &self.text[self.shown..]
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
            text += shown.text;
            if shown.stopped {
                return (text, true);
            }
        }
        (text + detokenizer.held_back(), false)
    }

    #[test]
    fn a_character_in_pieces_is_shown_when_it_is_whole() {
        let mut detokenizer = Detokenizer::new(&[]);
        assert_eq!(detokenizer.push(&"é".as_bytes()[..1]).text, "");
        assert_eq!(detokenizer.push(&"é".as_bytes()[1..]).text, "é");
        assert_eq!(detokenizer.push(&"漢".as_bytes()[..2]).text, "");
        assert_eq!(detokenizer.held_back(), "");
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

    /// The text of these bytes, without a last character that may still be finished.
    fn finished(bytes: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(bytes).into_owned();
        let unfinished = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
        if std::str::from_utf8(unfinished).is_err_and(|error| error.error_len().is_none()) {
            text.pop();
        }
        text
    }

    /// Where the first stop string to be complete begins; of several complete at once, the longest.
    fn first_stop(text: &str, stops: &[String]) -> Option<usize> {
        let ends = (0..=text.len()).filter(|end| text.is_char_boundary(*end));
        let begins = ends.map(|end| {
            let complete = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
            complete.map(|stop| end - stop.len()).min()
        });
        begins.flatten().next()
    }

    /// How much of the text's end may be the beginning of a stop string.
    fn may_be_stop(text: &str, stops: &[String]) -> usize {
        let beginnings = stops.iter().flat_map(|stop| (1..stop.len()).map(|len| &stop.as_bytes()[..len]));
        beginnings
            .filter(|beginning| text.as_bytes().ends_with(beginning))
            .map(<[u8]>::len)
            .max()
            .unwrap_or(0)
    }

    /// Pieces of characters, whole ones, and bytes that are in none.
    fn token() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            6 => "[abé漢😀]{0,3}".prop_map(String::into_bytes),
            3 => ("[é漢😀]", 1_usize..4).prop_map(|(text, cut)| text.as_bytes()[..cut.min(text.len())].to_vec()),
            3 => ("[é漢😀]", 1_usize..4).prop_map(|(text, cut)| text.as_bytes()[cut.min(text.len() - 1)..].to_vec()),
            1 => proptest::collection::vec(any::<u8>(), 1..4),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        /// The whole promise, after every token: what was shown is the text so far up to a stop string, or all of it
        /// but what may still become a character or a stop string, and not a byte less.
        #[test]
        fn all_text_is_shown_as_soon_as_it_is_certain_and_none_before(
            tokens in proptest::collection::vec(token(), 0..30),
            stops in proptest::collection::vec("[abé漢😀]{1,4}", 0..4),
        ) {
            let mut detokenizer = Detokenizer::new(&stops);
            let (mut bytes, mut shown) = (Vec::new(), String::new());
            for token in &tokens {
                bytes.extend_from_slice(token);
                let Shown { text, stopped } = detokenizer.push(token);
                shown += text;
                let whole = finished(&bytes);
                if let Some(at) = first_stop(&whole, &stops) {
                    prop_assert!(stopped);
                    prop_assert_eq!(&shown, &whole[..at]);
                    return Ok(());
                }
                prop_assert!(!stopped);
                let held = may_be_stop(&whole, &stops);
                prop_assert_eq!(&shown, &whole[..whole.len() - held]);
                prop_assert_eq!(detokenizer.held_back(), &whole[whole.len() - held..]);
            }
        }

        #[test]
        fn what_is_shown_does_not_depend_on_how_the_bytes_are_cut(
            tokens in proptest::collection::vec(token(), 0..30),
            stops in proptest::collection::vec("[abé漢😀]{1,4}", 0..4),
            cuts in proptest::collection::vec(1_usize..5, 0..40),
        ) {
            let bytes = tokens.concat();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let mut pieces = Vec::new();
            let mut at = 0;
            for cut in cuts {
                let end = (at + cut).min(bytes.len());
                pieces.push(&bytes[at..end]);
                at = end;
            }
            pieces.push(&bytes[at..]);
            prop_assert_eq!(show(&stops, pieces), show(&stops, tokens.iter().map(Vec::as_slice)));
        }
    }
}
