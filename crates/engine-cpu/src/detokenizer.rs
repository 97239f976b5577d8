//! Converts generated tokens to text that can be streamed: whole characters only, and nothing that may still become a
//! stop string. Invalid UTF-8 becomes U+FFFD. A character still incomplete when the reply ends is dropped, since the
//! model did not finish it.

/// The text that one token released.
#[derive(Debug, PartialEq, Eq)]
pub struct Emitted<'a> {
    pub text: &'a str,
    /// A stop string has appeared; it and everything after it are omitted.
    pub stopped: bool,
}

/// The buffers are reused from token to token; they grow to the longest token and the longest stop string.
#[derive(Debug)]
pub struct Detokenizer {
    /// Bytes of an incomplete character.
    partial: Vec<u8>,
    /// The text that the last token released, followed by characters that may be the start of a stop string.
    text: String,
    emitted: usize,
    /// Bytes of text that tokens before the last one released.
    emitted_before: usize,
    stops: Vec<StopMatcher>,
}

impl Detokenizer {
    /// Empty stop strings never match.
    pub fn new(stops: &[String]) -> Self {
        Self {
            partial: Vec::new(),
            text: String::new(),
            emitted: 0,
            emitted_before: 0,
            stops: stops.iter().filter(|stop| !stop.is_empty()).map(|stop| StopMatcher::new(stop)).collect(),
        }
    }

    pub fn push(&mut self, bytes: &[u8]) -> Emitted<'_> {
        self.text.drain(..self.emitted);
        self.emitted_before += self.emitted;
        let scanned = self.text.len();
        self.partial.extend_from_slice(bytes);
        let consumed = decode_complete(&self.partial, &mut self.text);
        self.partial.drain(..consumed);

        for (index, byte) in self.text.bytes().enumerate().skip(scanned) {
            // Of several that end here, the longest started first.
            let longest = self.stops.iter_mut().filter_map(|stop| stop.advance(byte)).max();
            if let Some(len) = longest {
                self.emitted = index + 1 - len;
                return Emitted { text: &self.text[..self.emitted], stopped: true };
            }
        }
        let pending = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        self.emitted = self.text.len() - pending;
        Emitted { text: &self.text[..self.emitted], stopped: false }
    }

    /// The withheld text, for a reply that ends without a stop string.
    pub fn pending_text(&self) -> &str {
        &self.text[self.emitted..]
    }

    /// Bytes of all text that was released.
    pub fn emitted_bytes(&self) -> usize {
        self.emitted_before + self.emitted
    }

    /// Bytes of all text of complete characters, released or withheld.
    pub fn decoded_bytes(&self) -> usize {
        self.emitted_before + self.text.len()
    }

    /// Bytes of the last character if it is incomplete; otherwise 0.
    pub fn partial_bytes(&self) -> usize {
        self.partial.len()
    }
}

/// Appends the characters that are complete or invalid; returns the number of bytes consumed.
fn decode_complete(bytes: &[u8], text: &mut String) -> usize {
    let mut consumed = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        consumed += chunk.valid().len();
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            continue;
        }
        let is_last = consumed + invalid.len() == bytes.len();
        let is_incomplete = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
        if is_last && is_incomplete {
            break;
        }
        text.push(char::REPLACEMENT_CHARACTER);
        consumed += invalid.len();
    }
    consumed
}

/// Finds one stop string in a stream of bytes, reading each once (Knuth–Morris–Pratt).
#[derive(Debug)]
struct StopMatcher {
    pattern: Box<[u8]>,
    /// For each matched prefix length, the longest proper prefix that is also a suffix of the match.
    failure: Box<[usize]>,
    matched: usize,
}

impl StopMatcher {
    fn new(stop: &str) -> Self {
        let pattern = stop.as_bytes();
        let mut failure = vec![0; pattern.len()];
        let mut matched = 0;
        for index in 1..pattern.len() {
            while matched > 0 && pattern[index] != pattern[matched] {
                matched = failure[matched - 1];
            }
            if pattern[index] == pattern[matched] {
                matched += 1;
            }
            failure[index] = matched;
        }
        Self { pattern: pattern.into(), failure: failure.into(), matched: 0 }
    }

    /// Consumes one byte; returns the stop string's length on a full match.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        while self.matched > 0 && self.pattern.get(self.matched) != Some(&byte) {
            self.matched = self.failure[self.matched - 1];
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

    /// Pushes the pieces; returns the text shown, and whether a stop string ended it.
    fn detokenize<'a>(stops: &[&str], pieces: impl IntoIterator<Item = &'a [u8]>) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut detokenizer = Detokenizer::new(&stops);
        let mut text = String::new();
        for piece in pieces {
            let emitted = detokenizer.push(piece);
            text += emitted.text;
            if emitted.stopped {
                return (text, true);
            }
        }
        (text + detokenizer.pending_text(), false)
    }

    #[test]
    fn split_character_is_emitted_once_complete() {
        let mut detokenizer = Detokenizer::new(&[]);
        assert_eq!(detokenizer.push(&"é".as_bytes()[..1]).text, "");
        assert_eq!(detokenizer.push(&"é".as_bytes()[1..]).text, "é");
        assert_eq!(detokenizer.push(&"漢".as_bytes()[..2]).text, "");
        assert_eq!(detokenizer.pending_text(), "");
    }

    #[test]
    fn invalid_utf8_is_replaced_once() {
        assert_eq!(detokenize(&[], [b"a\xff".as_slice(), b"b"]).0, "a\u{fffd}b");
        assert_eq!(detokenize(&[], [b"\xe6\xbc".as_slice(), b"x"]).0, "\u{fffd}x");
    }

    #[test]
    fn stop_string_across_tokens_is_left_out() {
        assert_eq!(detokenize(&["END"], [b"one E".as_slice(), b"N", b"D two"]), ("one ".to_owned(), true));
        assert_eq!(detokenize(&["END"], [b"one E".as_slice(), b"NT"]), ("one ENT".to_owned(), false));
        assert_eq!(detokenize(&["", "é"], [b"caf\xc3".as_slice(), b"\xa9s"]), ("caf".to_owned(), true));
    }

    #[test]
    fn stop_string_that_completes_first_wins() {
        assert_eq!(detokenize(&["bcd", "c"], [b"abcd".as_slice()]), ("ab".to_owned(), true));
        assert_eq!(detokenize(&["c", "bc"], [b"abcd".as_slice()]), ("a".to_owned(), true));
    }

    /// The text of these bytes, without a last character that may still be completed.
    fn complete_text(bytes: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(bytes).into_owned();
        let partial = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
        if std::str::from_utf8(partial).is_err_and(|error| error.error_len().is_none()) {
            text.pop();
        }
        text
    }

    /// Start of the stop string that is complete first; of several complete at once, the longest.
    fn first_stop(text: &str, stops: &[String]) -> Option<usize> {
        let ends = (0..=text.len()).filter(|end| text.is_char_boundary(*end));
        let starts = ends.map(|end| {
            let complete = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
            complete.map(|stop| end - stop.len()).min()
        });
        starts.flatten().next()
    }

    /// Length of the longest suffix of the text that may be the start of a stop string.
    fn may_be_stop(text: &str, stops: &[String]) -> usize {
        let prefixes = stops.iter().flat_map(|stop| (1..stop.len()).map(|len| &stop.as_bytes()[..len]));
        prefixes.filter(|prefix| text.as_bytes().ends_with(prefix)).map(<[u8]>::len).max().unwrap_or(0)
    }

    /// Parts of characters, whole ones, and invalid bytes.
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

        /// The full contract, after every token: the text shown ends at the first stop string. Without one, it is
        /// everything except what may still become a character or a stop string, and not a byte less.
        #[test]
        fn text_is_emitted_as_soon_as_it_is_final(
            tokens in proptest::collection::vec(token(), 0..30),
            stops in proptest::collection::vec("[abé漢😀]{1,4}", 0..4),
        ) {
            let mut detokenizer = Detokenizer::new(&stops);
            let (mut bytes, mut emitted) = (Vec::new(), String::new());
            for token in &tokens {
                bytes.extend_from_slice(token);
                let Emitted { text, stopped } = detokenizer.push(token);
                emitted += text;
                let whole = complete_text(&bytes);
                prop_assert_eq!(detokenizer.emitted_bytes(), emitted.len());
                prop_assert_eq!(detokenizer.decoded_bytes(), whole.len());
                if let Some(at) = first_stop(&whole, &stops) {
                    prop_assert!(stopped);
                    prop_assert_eq!(&emitted, &whole[..at]);
                    return Ok(());
                }
                prop_assert!(!stopped);
                let pending = may_be_stop(&whole, &stops);
                prop_assert_eq!(&emitted, &whole[..whole.len() - pending]);
                prop_assert_eq!(detokenizer.pending_text(), &whole[whole.len() - pending..]);
            }
        }

        #[test]
        fn emitted_text_does_not_depend_on_token_boundaries(
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
            prop_assert_eq!(detokenize(&stops, pieces), detokenize(&stops, tokens.iter().map(Vec::as_slice)));
        }
    }
}
