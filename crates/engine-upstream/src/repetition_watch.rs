//! Watches a reply for loops where the job asks for it. The tokens are not known here, so words are watched: their hashes
//! go to the detector that the embedded engine has too. In scripts that are written without spaces, each character is a
//! word. Reasoning and answer are watched separately: an answer may repeat what the reasoning has found.

use super::limits::{MAX_WATCHED_WORD_BYTES, MAX_WATCHED_WORDS, WATCHED_WORDS_PER_TOKEN};
use chancery_engine::RepetitionDetector;

#[derive(Debug)]
pub(super) struct RepetitionWatch {
    max_words: usize,
    reasoning: Option<WordWatch>,
    text: Option<WordWatch>,
}

impl RepetitionWatch {
    pub(super) fn new(max_tokens: u32) -> Self {
        let max_words = (max_tokens as usize).saturating_mul(WATCHED_WORDS_PER_TOKEN).min(MAX_WATCHED_WORDS);
        Self { max_words, reasoning: None, text: None }
    }

    /// Takes more of the reasoning; returns whether it loops now.
    pub(super) fn push_reasoning(&mut self, text: &str) -> bool {
        self.reasoning.get_or_insert_with(|| WordWatch::new(self.max_words)).push(text)
    }

    /// Takes more of the answer; returns whether it loops now.
    pub(super) fn push_text(&mut self, text: &str) -> bool {
        self.text.get_or_insert_with(|| WordWatch::new(self.max_words)).push(text)
    }
}

/// One text, which comes in pieces that may split words.
#[derive(Debug)]
struct WordWatch {
    detector: RepetitionDetector,
    max_words: usize,
    /// Words that the detector has.
    words: usize,
    word: WordHash,
    /// Since the last word or line.
    blank_bytes: usize,
}

impl WordWatch {
    fn new(max_words: usize) -> Self {
        let detector = RepetitionDetector::new(max_words);
        Self { detector, max_words, words: 0, word: WordHash::default(), blank_bytes: 0 }
    }

    fn push(&mut self, text: &str) -> bool {
        text.chars().any(|character| self.push_char(character))
    }

    fn push_char(&mut self, character: char) -> bool {
        if character.is_whitespace() && character != '\n' {
            self.blank_bytes += character.len_utf8();
            // A reply of nothing but spaces loops too.
            return self.end_word() | (self.blank_bytes >= MAX_WATCHED_WORD_BYTES && self.push_whole(' '));
        }
        if character == '\n' || has_no_spaces(character) {
            return self.end_word() | self.push_whole(character);
        }
        self.blank_bytes = 0;
        self.word.push(character);
        self.word.bytes >= MAX_WATCHED_WORD_BYTES && self.end_word()
    }

    /// A character that is a word by itself.
    fn push_whole(&mut self, character: char) -> bool {
        self.blank_bytes = 0;
        self.word.push(character);
        self.end_word()
    }

    fn end_word(&mut self) -> bool {
        let word = std::mem::take(&mut self.word);
        if word.bytes == 0 {
            return false;
        }
        if self.words == self.max_words {
            self.detector = RepetitionDetector::new(self.max_words);
            self.words = 0;
        }
        self.words += 1;
        self.detector.push(word.hash)
    }
}

/// FNV-1a with 32 bits.
#[derive(Debug)]
struct WordHash {
    hash: u32,
    bytes: usize,
}

impl Default for WordHash {
    fn default() -> Self {
        const OFFSET_BASIS: u32 = 0x811c_9dc5;
        Self { hash: OFFSET_BASIS, bytes: 0 }
    }
}

impl WordHash {
    fn push(&mut self, character: char) {
        const PRIME: u32 = 0x0100_0193;
        let mut utf8 = [0; 4];
        for byte in character.encode_utf8(&mut utf8).bytes() {
            self.hash = (self.hash ^ u32::from(byte)).wrapping_mul(PRIME);
            self.bytes += 1;
        }
    }
}

/// Thai to Tibetan and Myanmar, Khmer, Chinese and Japanese with their punctuation. Korean has spaces.
fn has_no_spaces(character: char) -> bool {
    matches!(
        character,
        '\u{0e00}'..='\u{109f}'
            | '\u{1780}'..='\u{17ff}'
            | '\u{2e80}'..='\u{312f}'
            | '\u{31a0}'..='\u{a4cf}'
            | '\u{f900}'..='\u{faff}'
            | '\u{ff00}'..='\u{ffef}'
            | '\u{20000}'..='\u{3ffff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_TOKENS: u32 = 4_096;

    fn hash(word: &str) -> u32 {
        let mut hash = WordHash::default();
        word.chars().for_each(|character| hash.push(character));
        hash.hash
    }

    /// The number of words in these pieces of a text, the last without its end.
    fn words(pieces: &[&str]) -> usize {
        let mut watch = WordWatch::new(MAX_WATCHED_WORDS);
        pieces.iter().for_each(|piece| {
            watch.push(piece);
        });
        watch.words
    }

    #[test]
    fn words_are_joined_over_pieces_and_bounded() {
        assert_eq!(words(&["one two thr", "ee", " "]), 3);
        assert_eq!(words(&[" ", "  one", "\t"]), 1);
        assert_eq!(words(&["one\n", "\n"]), 3, "lines count");
        assert_eq!(words(&["合同到期。"]), 5);
        assert_eq!(words(&["see 合同 "]), 3);
        assert_eq!(words(&[&"x".repeat(10 * MAX_WATCHED_WORD_BYTES)]), 10);
        assert_eq!(words(&[&" ".repeat(10 * MAX_WATCHED_WORD_BYTES)]), 10);
        assert_ne!(hash("on"), hash("no"));
    }

    #[test]
    fn loops_are_found_however_the_text_is_split_and_whatever_its_script() {
        for phrase in ["who is a contractor who has a client ", "合同到期。", "\n", " ", "ha"] {
            let looping = phrase.repeat(20_000);
            let mut watch = RepetitionWatch::new(MAX_TOKENS);
            let pieces: Vec<char> = looping.chars().collect();
            let is_found = pieces.chunks(3).any(|piece| watch.push_text(&piece.iter().collect::<String>()));
            assert!(is_found, "{phrase:?}");
        }
    }

    #[test]
    fn text_without_a_loop_is_not_stopped_even_past_the_words_watched_at_once() {
        let mut watch = RepetitionWatch::new(MAX_TOKENS);
        for number in 0..2 * MAX_WATCHED_WORDS {
            assert!(!watch.push_text(&format!("word{number} ")), "{number}");
        }
        let mut words = watch.text.unwrap();
        assert!(words.words <= MAX_WATCHED_WORDS);
        assert!(words.push(&"again ".repeat(2_000)), "a loop that begins late");
    }

    #[test]
    fn answer_may_repeat_the_reasoning() {
        let text: String = (0..50).map(|number| format!("word{number} ")).collect();
        let mut watch = RepetitionWatch::new(MAX_TOKENS);
        assert!(!watch.push_reasoning(&text));
        assert!(!watch.push_text(&text));
        assert!(watch.push_reasoning(&"hm ".repeat(2_000)));
    }
}
