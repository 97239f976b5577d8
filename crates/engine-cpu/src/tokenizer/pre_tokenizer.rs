//! Splits text into the words that byte-pair merges stay within. Each model family defines its splits as regular
//! expressions; these are the same splits by hand, in one pass over the text, so that no input causes backtracking.

use unicode_general_category::{GeneralCategory, get_general_category};

pub(super) struct PreTokenizer {
    /// Applied in order, each to the fragments of the previous one; no stage looks beyond its fragment.
    stages: &'static [Stage],
    ignores_merges: bool,
    normalizes_nfc: bool,
}

#[derive(Clone, Copy)]
enum Stage {
    /// `\p{N}`: splits off every number character.
    EachNumber,
    /// `\p{N}+`: splits off runs of number characters.
    Numbers,
    /// `[\p{P}$+<=>^~|]+`: splits off runs of punctuation.
    Punctuation,
    /// `[0-9][0-9][0-9]`: splits off every three digits.
    ThreeDigits,
    Gpt2,
    Llama3 {
        digits: usize,
    },
    Tekken,
}

impl PreTokenizer {
    /// Looks up the value of `tokenizer.ggml.pre`.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        let (stages, ignores_merges): (&'static [Stage], bool) = match name {
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
                (&[Stage::EachNumber, Stage::Gpt2], false)
            }
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "pixtral" => {
                (&[Stage::Llama3 { digits: 3 }], true)
            }
            "qwen2" | "deepseek-r1-qwen" => (&[Stage::Llama3 { digits: 1 }], false),
            "tekken" => (&[Stage::Tekken], true),
            "gpt-2" | "phi-2" | "mpt" | "olmo" => (&[Stage::Gpt2], false),
            "default" => (&[Stage::Punctuation, Stage::Gpt2, Stage::Numbers, Stage::ThreeDigits], false),
            _ => return None,
        };
        Some(Self { stages, ignores_merges, normalizes_nfc: name == "qwen2" })
    }

    /// Whether text is normalised to NFC before splitting, as Qwen's published tokenizer does.
    pub(super) fn normalizes_nfc(&self) -> bool {
        self.normalizes_nfc
    }

    /// Whether a word that is itself a token skips the merges.
    pub(super) fn ignores_merges(&self) -> bool {
        self.ignores_merges
    }

    pub(super) fn split<'a>(&self, text: &'a str, word: &mut dyn FnMut(&'a str)) {
        split_by(self.stages, text, word);
    }
}

/// Recursion is as deep as the number of stages, however long the text.
fn split_by<'a>(stages: &[Stage], text: &'a str, word: &mut dyn FnMut(&'a str)) {
    let Some((stage, later)) = stages.split_first() else {
        return word(text);
    };
    let mut rest = text;
    while !rest.is_empty() {
        let len = match stage {
            Stage::EachNumber => match first(rest) {
                Some((_, Class::Number, len)) => len,
                _ => run_len(rest, |_, class| class != Class::Number),
            },
            Stage::Numbers => run_or_gap(rest, |_, class| class == Class::Number),
            Stage::Punctuation => run_or_gap(rest, |character, _| is_punctuation(character)),
            Stage::ThreeDigits => three_digits_or_gap(rest),
            Stage::Gpt2 => gpt2_word(rest),
            Stage::Llama3 { digits } => llama3_word(rest, *digits),
            Stage::Tekken => tekken_word(rest),
        };
        let (fragment, after) = rest.split_at(len);
        split_by(later, fragment, word);
        rest = after;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

fn class_of(character: char) -> Class {
    match character {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Number,
        ' ' | '\t'..='\r' => Class::Space,
        '\0'..='\x7f' => Class::Other,
        _ if character.is_whitespace() => Class::Space,
        _ => match get_general_category(character) {
            GeneralCategory::UppercaseLetter
            | GeneralCategory::LowercaseLetter
            | GeneralCategory::TitlecaseLetter
            | GeneralCategory::ModifierLetter
            | GeneralCategory::OtherLetter => Class::Letter,
            GeneralCategory::DecimalNumber | GeneralCategory::LetterNumber | GeneralCategory::OtherNumber => {
                Class::Number
            }
            _ => Class::Other,
        },
    }
}

fn is_punctuation(character: char) -> bool {
    matches!(
        get_general_category(character),
        GeneralCategory::ConnectorPunctuation
            | GeneralCategory::DashPunctuation
            | GeneralCategory::OpenPunctuation
            | GeneralCategory::ClosePunctuation
            | GeneralCategory::InitialPunctuation
            | GeneralCategory::FinalPunctuation
            | GeneralCategory::OtherPunctuation
    ) || "$+<=>^~|".contains(character)
}

fn first(text: &str) -> Option<(char, Class, usize)> {
    text.chars().next().map(|character| (character, class_of(character), character.len_utf8()))
}

/// Byte length of the longest prefix of `text` whose characters all satisfy `predicate`.
fn run_len(text: &str, predicate: impl Fn(char, Class) -> bool) -> usize {
    text.char_indices()
        .find(|(_, character)| !predicate(*character, class_of(*character)))
        .map_or(text.len(), |(at, _)| at)
}

/// A run of matching characters, otherwise everything up to the next one.
fn run_or_gap(text: &str, predicate: impl Fn(char, Class) -> bool) -> usize {
    match run_len(text, &predicate) {
        0 => run_len(text, |character, class| !predicate(character, class)),
        len => len,
    }
}

/// Three digits, otherwise everything up to the next three.
fn three_digits_or_gap(text: &str) -> usize {
    let is_three = |window: &[u8]| window.iter().all(u8::is_ascii_digit);
    match text.as_bytes().windows(3).position(is_three) {
        Some(0) => 3,
        Some(at) => at,
        None => text.len(),
    }
}

/// Length of a contraction at the start of `text`: `'s`, `'t`, `'m`, `'d`, `'re`, `'ve`, `'ll`.
fn contraction_len(text: &str, any_case: bool) -> Option<usize> {
    let bytes = text.as_bytes();
    if bytes.first() != Some(&b'\'') {
        return None;
    }
    let letter =
        |at: usize| bytes.get(at).map(|byte| if any_case { byte.to_ascii_lowercase() } else { *byte });
    match (letter(1)?, letter(2)) {
        (b's' | b't' | b'm' | b'd', _) => Some(2),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(3),
        _ => None,
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
fn gpt2_word(text: &str) -> usize {
    if let Some(len) = contraction_len(text, false) {
        return len;
    }
    let body = text.strip_prefix(' ').unwrap_or(text);
    let space_len = text.len() - body.len();
    match first(body) {
        Some((_, class, _)) if class != Class::Space => space_len + run_len(body, |_, other| other == class),
        _ => spaces_len(text),
    }
}

/// `\s+(?!\S)|\s+`: a run of whitespace, without its last character if a word that may start with it follows.
fn spaces_len(text: &str) -> usize {
    let run = run_len(text, |_, class| class == Class::Space);
    let last = text[..run].chars().next_back().map_or(0, char::len_utf8);
    if run < text.len() && run > last { run - last } else { run }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
/// \s+(?!\S)|\s+`
fn llama3_word(text: &str, digits: usize) -> usize {
    if let Some(len) = contraction_len(text, true) {
        return len;
    }
    let Some((character, class, len)) = first(text) else {
        return 0;
    };
    let is_letter = |_: char, class: Class| class == Class::Letter;
    if !matches!(character, '\r' | '\n') && class != Class::Number {
        let letters = run_len(&text[len..], is_letter);
        if class == Class::Letter || letters > 0 {
            return len + letters;
        }
    }
    if class == Class::Number {
        return text
            .char_indices()
            .take(digits)
            .take_while(|(_, character)| class_of(*character) == Class::Number)
            .map(|(at, character)| at + character.len_utf8())
            .last()
            .unwrap_or(len);
    }
    signs_or_spaces(text, |character| matches!(character, '\r' | '\n'))
}

/// ` ?[^\s\p{L}\p{N}]+[trailing]*|\s*[\r\n]+|\s+(?!\S)|\s+`
fn signs_or_spaces(text: &str, trailing: impl Fn(char) -> bool) -> usize {
    let body = text.strip_prefix(' ').unwrap_or(text);
    let signs = run_len(body, |_, class| class == Class::Other);
    if signs > 0 {
        let after = run_len(&body[signs..], |character, _| trailing(character));
        return text.len() - body.len() + signs + after;
    }
    let run = run_len(text, |_, class| class == Class::Space);
    match text[..run].rfind(['\r', '\n']) {
        Some(last_newline) => last_newline + 1,
        None => spaces_len(text),
    }
}

/// Whether a character may occur in a word's upper part, `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, and in its lower part,
/// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`.
fn case_of(character: char) -> (bool, bool) {
    match get_general_category(character) {
        GeneralCategory::UppercaseLetter | GeneralCategory::TitlecaseLetter => (true, false),
        GeneralCategory::LowercaseLetter => (false, true),
        GeneralCategory::ModifierLetter
        | GeneralCategory::OtherLetter
        | GeneralCategory::NonspacingMark
        | GeneralCategory::SpacingMark
        | GeneralCategory::EnclosingMark => (true, true),
        _ => (false, false),
    }
}

/// `[upper]*[lower]+`: the upper part is as long as possible while leaving one character for the lower part.
fn upper_then_lower(text: &str) -> Option<usize> {
    let upper = run_len(text, |character, _| case_of(character).0);
    match run_len(&text[upper..], |character, _| case_of(character).1) {
        // The lower part starts at the last character that fits either part; no character after it fits the lower part.
        0 => text[..upper]
            .char_indices()
            .rfind(|(_, character)| case_of(*character).1)
            .map(|(at, character)| at + character.len_utf8()),
        lower => Some(upper + lower),
    }
}

/// `[upper]+[lower]*`, after `[upper]*[lower]+` has failed: then no lower part follows.
fn upper_alone(text: &str) -> Option<usize> {
    Some(run_len(text, |character, _| case_of(character).0)).filter(|len| *len > 0)
}

/// `[^\r\n\p{L}\p{N}]?[upper]*[lower]+|[^\r\n\p{L}\p{N}]?[upper]+[lower]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|
/// \s+(?!\S)|\s+`
fn tekken_word(text: &str) -> usize {
    let Some((character, class, len)) = first(text) else {
        return 0;
    };
    if class == Class::Number {
        return len;
    }
    let may_lead = class != Class::Letter && !matches!(character, '\r' | '\n');
    for word in [upper_then_lower as fn(&str) -> Option<usize>, upper_alone] {
        let led = if may_lead { word(&text[len..]).map(|rest| len + rest) } else { None };
        if let Some(len) = led.or_else(|| word(text)) {
            return len;
        }
    }
    signs_or_spaces(text, |character| matches!(character, '\r' | '\n' | '/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        let mut words = Vec::new();
        PreTokenizer::from_name(name).unwrap().split(text, &mut |word| words.push(word));
        words
    }

    #[test]
    fn gpt2_splits_words_with_their_leading_space() {
        assert_eq!(
            words("gpt-2", "It's a  b\n\n c 12!?"),
            ["It", "'s", " a", " ", " b", "\n\n", " c", " 12", "!?"]
        );
        assert_eq!(words("gpt-2", "x   "), ["x", "   "]);
        assert_eq!(words("gpt-2", "'S 're"), ["'", "S", " '", "re"]);
    }

    #[test]
    fn smollm_splits_every_digit_without_lookahead() {
        assert_eq!(words("smollm", "on  34 x"), ["on", "  ", "3", "4", " x"]);
    }

    #[test]
    fn llama3_splits_digits_in_threes_and_attaches_newlines() {
        assert_eq!(
            words("llama-bpe", "I'LL pay 12345!\n\n  ok\n \n z"),
            ["I", "'LL", " pay", " ", "123", "45", "!\n\n", " ", " ok", "\n \n", " z"]
        );
        assert_eq!(words("qwen2", "123"), ["1", "2", "3"]);
        assert_eq!(words("llama-bpe", "(word) a"), ["(word", ")", " a"]);
    }

    #[test]
    fn tekken_splits_at_case_changes_and_attaches_slashes() {
        assert_eq!(words("tekken", "HTTPServer mcDonald A1"), ["HTTPServer", " mc", "Donald", " A", "1"]);
        assert_eq!(words("tekken", "a/b ->//\n x"), ["a", "/b", " ->//\n", " x"]);
        // A caseless character ends the upper part and starts a lower one.
        assert_eq!(words("tekken", "AB漢CD"), ["AB漢", "CD"]);
    }

    #[test]
    fn default_splits_punctuation_first_and_digits_in_threes() {
        assert_eq!(words("default", "a,b 12345"), ["a", ",", "b", " ", "123", "45"]);
    }

    proptest! {
        #[test]
        fn pre_tokenized_pieces_concatenate_to_the_text(text in "\\PC*|[ \\n\\r\\t0-9a-z'Ａ²é漢!]*") {
            for name in ["smollm", "llama-bpe", "qwen2", "tekken", "gpt-2", "default"] {
                let words = words(name, &text);
                prop_assert_eq!(words.concat(), text.as_str());
                prop_assert!(words.iter().all(|word| !word.is_empty()));
            }
        }
    }
}
