//! What changed from one text to another, word by word.

use similar::{ChangeTag, TextDiff};

/// Past so many words in both texts together, lines are compared: comparing words takes time that grows with their square.
const MAX_COMPARED_WORDS: usize = 8_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    Same(String),
    Removed(String),
    Added(String),
}

pub(crate) fn spans(old: &str, new: &str) -> Vec<Span> {
    let words = old.split_whitespace().count() + new.split_whitespace().count();
    let diff = match words {
        words if words > MAX_COMPARED_WORDS => TextDiff::from_lines(old, new),
        _ => TextDiff::from_words(old, new),
    };
    let mut spans: Vec<Span> = Vec::new();
    for change in diff.iter_all_changes() {
        let text = change.value();
        match (change.tag(), spans.last_mut()) {
            (ChangeTag::Equal, Some(Span::Same(before)))
            | (ChangeTag::Delete, Some(Span::Removed(before)))
            | (ChangeTag::Insert, Some(Span::Added(before))) => before.push_str(text),
            (ChangeTag::Equal, _) => spans.push(Span::Same(text.to_owned())),
            (ChangeTag::Delete, _) => spans.push(Span::Removed(text.to_owned())),
            (ChangeTag::Insert, _) => spans.push(Span::Added(text.to_owned())),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_texts_can_be_read_from_what_changed(old in "[abc \n]{0,80}", new in "[abc \n]{0,80}") {
            let (mut before, mut after) = (String::new(), String::new());
            for span in spans(&old, &new) {
                match span {
                    Span::Same(text) => {
                        before.push_str(&text);
                        after.push_str(&text);
                    }
                    Span::Removed(text) => before.push_str(&text),
                    Span::Added(text) => after.push_str(&text),
                }
            }
            prop_assert_eq!((before, after), (old, new));
        }
    }
}
