//! What `second_person` knows of English: lists of words, and the forms of verbs.

pub(super) const TITLES: &str = "Mr Mrs Ms Miss Dr Prof";
/// The second of two capitalised words, if they name no person.
pub(super) const NO_LAST_NAMES: &str = "Avenue Bakery Bank Brothers Company Construction Council Estates Finance Group GmbH Holdings Inc \
    Insurance Lane Limited LLC Ltd Mutual Partners Road Services Square Street Surveying Terrace Walk";
/// Names that are months, which are never a mention alone.
pub(super) const MONTH_NAMES: &str = "April May June August";
/// Names that are words, which are no mention alone at the start of a sentence.
pub(super) const WORD_NAMES: &str = "Bill Case Day Grace Hope Long Mark Price Rich Rose Will Young";
/// Two of these words, or `she`, make a text English.
const ENGLISH_WORDS: &str = "the and he his with our about that which from";
pub(super) const PREPOSITIONS: &str =
    "about after against at before by for from of on over than to with without";
/// Verbs before an object that is a person: `told her`.
pub(super) const VERBS_TO_SOMEBODY: &str = "ask asked call called gave give met owe paid pay phoned promised rang remind reminded saw see send \
    sent show showed tell thanked told visited";
/// Words after `her` where it is an object, and not a possessive.
pub(super) const AFTER_OBJECT: &str = "a about access after again all an and any as at because before both but by for from how i if in it later \
    no not notice now of on or so some soon that the then they this to today tomorrow until we what when whether which while who \
    why with within without";
/// Words between a subject and its verb, besides those that end with `ly`.
pub(super) const ADVERBS: &str =
    "afterwards also already always both just never not now often only perhaps sometimes still then usually";
/// Words that begin another clause.
pub(super) const CLAUSE_WORDS: &str =
    "because how i if that they we what when where which while who whom whose why";
pub(super) const AUXILIARIES: &str =
    "can could did does had has is may might must shall should was will would";
/// Verbs that are not also nouns. Only these agree with a subject that is further away: `disputes it and wants it back`.
const PLAIN_VERBS: &str = "accepts agrees asks believes complains confirms decides expects feels gives insists knows likes pays prefers \
    refuses says sends suggests takes thinks tries wants withholds worries";
const IRREGULAR_VERBS: [(&str, &str); 8] = [
    ("is", "are"),
    ("was", "were"),
    ("has", "have"),
    ("does", "do"),
    ("isn't", "aren't"),
    ("wasn't", "weren't"),
    ("hasn't", "haven't"),
    ("doesn't", "don't"),
];

pub(super) fn has(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|known| known == word)
}

pub(super) fn is_capitalized(word: &str) -> bool {
    word.starts_with(char::is_uppercase)
}

pub(super) fn is_english(tokens: &[&str]) -> bool {
    let contains = |word: &str| tokens.iter().any(|token| token.eq_ignore_ascii_case(word));
    contains("she") || ENGLISH_WORDS.split(' ').filter(|word| contains(word)).count() >= 2
}

/// Words, with the apostrophes in them, and what is between words.
pub(super) fn tokens(text: &str) -> Vec<&str> {
    let (mut tokens, mut start, mut was_word) = (Vec::new(), 0, None);
    let mut chars = text.char_indices().peekable();
    while let Some((index, c)) = chars.next() {
        let is_inner = ['\'', '’'].contains(&c)
            && was_word == Some(true)
            && chars.peek().is_some_and(|(_, next)| next.is_alphabetic());
        let is_word = c.is_alphanumeric() || is_inner;
        if was_word.is_some_and(|was_word| was_word != is_word) {
            tokens.push(&text[start..index]);
            start = index;
        }
        was_word = Some(is_word);
    }
    if start < text.len() {
        tokens.push(&text[start..]);
    }
    tokens
}

/// `disputes` is `dispute`; `None` for a word that cannot be a verb in the third person.
pub(super) fn second_person_verb(word: &str) -> Option<String> {
    if let Some((_, verb)) = IRREGULAR_VERBS.iter().find(|(third, _)| *third == word) {
        return Some((*verb).to_owned());
    }
    let ends_with = |endings: &[&str]| endings.iter().any(|ending| word.ends_with(ending));
    if word.len() <= 3 || !word.chars().all(|c| c.is_ascii_lowercase()) || ends_with(&["ss", "us", "is"]) {
        return None;
    }
    let stem = word.strip_suffix('s')?;
    match stem.strip_suffix("ie") {
        Some(stem) if stem.len() > 1 => Some(format!("{stem}y")),
        _ if ends_with(&["shes", "ches", "sses", "xes", "oes"]) => stem.strip_suffix('e').map(str::to_owned),
        _ => Some(stem.to_owned()),
    }
}

/// Whether a word is surely a verb in the third person.
pub(super) fn is_plain_verb(word: &str) -> bool {
    has(PLAIN_VERBS, word) || IRREGULAR_VERBS.iter().any(|(third, _)| *third == word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn verbs_lose_their_ending_and_other_words_are_none() {
        for (word, verb) in [
            ("disputes", "dispute"),
            ("tries", "try"),
            ("reaches", "reach"),
            ("goes", "go"),
            ("owes", "owe"),
            ("lies", "lie"),
            ("has", "have"),
            ("doesn't", "don't"),
        ] {
            assert_eq!(second_person_verb(word).as_deref(), Some(verb));
        }
        for word in ["this", "his", "plus", "process", "will", "asked", "2031s", ""] {
            assert_eq!(second_person_verb(word), None, "{word}");
        }
    }

    #[test]
    fn other_languages_are_not_english() {
        for text in ["She called.", "Call with Tom. He wants it.", "I met the owner about it."] {
            assert!(is_english(&tokens(text)), "{text}");
        }
        for text in ["Gespräch mit Priya. Sie will her.", "He hablado con Priya. Has dicho que no.", ""] {
            assert!(!is_english(&tokens(text)), "{text}");
        }
    }

    proptest! {
        #[test]
        fn tokens_add_up_to_the_text(text in "(\\PC|['’\n]){0,40}") {
            prop_assert_eq!(tokens(&text).concat(), text);
        }
    }
}
