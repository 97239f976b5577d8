//! Excerpts of found text, with the words that match a search. Words are folded as in the index, so an excerpt marks
//! exactly what the index found.

use crate::clients::search::{TermRange, case_folded};
use std::ops::Range;

/// Most characters of an excerpt, ellipses aside.
const MAX_EXCERPT_CHARS: usize = 160;

/// Characters before the first match: enough for its context, and few enough for a phone's line.
const LEAD_CHARS: usize = 40;

/// How far after the first match others are looked for. A character has at most four bytes.
const MAX_SEARCHED_BYTES: usize = 4 * MAX_EXCERPT_CHARS;

/// A part of an excerpt: a word that matches, or what is between such words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnippetPart {
    pub text: String,
    pub is_match: bool,
}

/// The word that is being read: where it is, and its folded characters.
#[derive(Default)]
struct Word {
    range: Range<usize>,
    folded: String,
}

impl Word {
    fn push(&mut self, folded: char, character: &Range<usize>) {
        if self.folded.is_empty() {
            self.range.start = character.start;
        }
        self.range.end = character.end;
        self.folded.push(folded);
    }

    /// Ends the word, and adds it to the found ones if it matches.
    fn finish(&mut self, terms: &[TermRange], found: &mut Vec<Range<usize>>) {
        let is_match = !self.folded.is_empty() && terms.iter().any(|term| term.contains(&self.folded));
        self.folded.clear();
        if !is_match {
            return;
        }
        match found.last_mut() {
            // One character may be the end of a word and the start of the next, as in "½".
            Some(last) if self.range.start < last.end => last.end = self.range.end,
            _ => found.push(self.range.clone()),
        }
    }
}

/// The first word that matches and those soon after it, as byte ranges.
fn matching_words(text: &str, terms: &[TermRange]) -> Vec<Range<usize>> {
    let (mut found, mut word) = (Vec::<Range<usize>>::new(), Word::default());
    for (start, character) in text.char_indices() {
        if found.first().is_some_and(|first| start > first.start + MAX_SEARCHED_BYTES) {
            break;
        }
        let range = start..start + character.len_utf8();
        let mut is_mark = true;
        for folded in case_folded(character.encode_utf8(&mut [0; 4])) {
            is_mark = false;
            match folded.is_alphanumeric() {
                true => word.push(folded, &range),
                false => word.finish(terms, &mut found),
            }
        }
        // A combining mark belongs to the character before it.
        if is_mark && !word.folded.is_empty() {
            word.range.end = range.end;
        }
    }
    word.finish(terms, &mut found);
    found
}

/// Splits a range of the text into matching words and the text between them. White space becomes single spaces.
fn split(text: &str, range: &Range<usize>, found: &[Range<usize>]) -> Vec<SnippetPart> {
    let mut parts = Vec::new();
    let mut push = |range: Range<usize>, is_match| {
        if !range.is_empty() {
            parts.push(SnippetPart { text: with_single_spaces(&text[range]), is_match });
        }
    };
    let mut end = range.start;
    for word in found {
        let (start, word_end) = (word.start.clamp(end, range.end), word.end.clamp(end, range.end));
        push(end..start, false);
        push(start..word_end, true);
        end = word_end;
    }
    push(end..range.end, false);
    parts
}

fn with_single_spaces(text: &str) -> String {
    let mut spaced = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_whitespace() {
            true if spaced.ends_with(' ') => {}
            true => spaced.push(' '),
            false => spaced.push(character),
        }
    }
    spaced
}

/// A short text with its matching words.
pub(crate) fn marked(text: &str, terms: &[TermRange]) -> Vec<SnippetPart> {
    split(text, &(0..text.len()), &matching_words(text, terms))
}

/// The text around its first matching word. Empty if no word matches.
pub(crate) fn excerpt(text: &str, terms: &[TermRange]) -> Vec<SnippetPart> {
    let found = matching_words(text, terms);
    let Some(first) = found.first() else { return Vec::new() };
    let range = excerpt_range(text, first);
    let mut parts = split(text, &range, &found);
    let ellipsis = || SnippetPart { text: "…".to_owned(), is_match: false };
    if range.start > 0 {
        parts.insert(0, ellipsis());
    }
    if range.end < text.len() {
        parts.push(ellipsis());
    }
    parts
}

/// Begins and ends between words where it can.
fn excerpt_range(text: &str, first: &Range<usize>) -> Range<usize> {
    let before = &text[..first.start];
    let lead = before.char_indices().rev().nth(LEAD_CHARS - 1).map_or(0, |(at, _)| at);
    let start = match before[lead..].find(char::is_whitespace) {
        Some(space) if lead > 0 => lead + space,
        _ => lead,
    };
    let start = start + (text[start..].len() - text[start..].trim_start().len());
    let rest = &text[start..];
    let cut = rest.char_indices().nth(MAX_EXCERPT_CHARS).map_or(rest.len(), |(at, _)| at);
    let end = match rest[..cut].rfind(char::is_whitespace) {
        // A first match that is longer than the excerpt is cut.
        Some(space) if cut < rest.len() && start + space >= first.end => start + space,
        _ => start + cut,
    };
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::search::search_ranges;
    use proptest::prelude::*;

    /// Matching words in brackets.
    fn shown(parts: &[SnippetPart]) -> String {
        let part = |part: &SnippetPart| match part.is_match {
            true => format!("[{}]", part.text),
            false => part.text.clone(),
        };
        parts.iter().map(part).collect()
    }

    fn excerpt_of(text: &str, typed: &str) -> String {
        shown(&excerpt(text, &search_ranges(typed)))
    }

    #[test]
    fn excerpt_marks_words_as_the_index_folds_them() {
        assert_eq!(
            excerpt_of("Lunch at the Café.\n\nThen cafeteria", "cafe"),
            "Lunch at the [Café]. Then [cafeteria]"
        );
        assert_eq!(excerpt_of("Cafe\u{301} or STRASSE?", "straße caf"), "[Cafe\u{301}] or [STRASSE]?");
        assert_eq!(excerpt_of("½ of ２０２６", "202"), "½ of [２０２６]");
        assert_eq!(excerpt_of("no match", "atch"), "");
        assert_eq!(shown(&marked("Lease of the café", &search_ranges("lea"))), "[Lease] of the café");
    }

    #[test]
    fn long_text_is_cut_between_words_around_the_first_match() {
        let text = format!("{} credit {}", "word ".repeat(100).trim(), "more ".repeat(100).trim());
        let shown = excerpt_of(&text, "credit");
        assert!(shown.starts_with("…word word") && shown.ends_with("more…"), "{shown}");
        assert!(shown.contains("word [credit] more"), "{shown}");
        assert!(shown.chars().count() <= MAX_EXCERPT_CHARS + 4, "{shown}");
        let unbroken = excerpt_of(&"x".repeat(5000), "xxx");
        assert_eq!(unbroken, format!("[{}]…", "x".repeat(MAX_EXCERPT_CHARS)));
    }

    proptest! {
        #[test]
        fn excerpts_are_parts_of_the_text(text in "([a-cäßé½ﷺ ]|\n|e\u{301}){0,600}", typed in "[a-c]{3}") {
            let terms = search_ranges(&typed);
            let parts = excerpt(&text, &terms);
            let plain: String = parts.iter().map(|part| part.text.as_str()).collect();
            let whole = with_single_spaces(&text);
            prop_assert!(whole.contains(plain.trim_matches('…').trim()), "{plain:?} is not in {whole:?}");
            prop_assert!(plain.chars().count() <= MAX_EXCERPT_CHARS + 2);
            let is_found = crate::clients::search::tokenize(&text).iter().any(|word| terms[0].contains(word));
            prop_assert_eq!(parts.iter().any(|part| part.is_match), is_found);
        }
    }
}
