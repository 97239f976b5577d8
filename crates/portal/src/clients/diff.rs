//! Word-by-word differences between two texts.

use similar::{ChangeTag, TextDiff};

/// Above this number of words in both texts together, lines are compared: comparing words takes quadratic time.
const MAX_DIFF_WORDS: usize = 8_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiffSpan {
    Same(String),
    Removed(String),
    Added(String),
}

pub(crate) fn diff_spans(old: &str, new: &str) -> Vec<DiffSpan> {
    let word_count = old.split_whitespace().count() + new.split_whitespace().count();
    let diff = match word_count {
        word_count if word_count > MAX_DIFF_WORDS => TextDiff::from_lines(old, new),
        _ => TextDiff::from_words(old, new),
    };
    let mut diff_spans: Vec<DiffSpan> = Vec::new();
    for change in diff.iter_all_changes() {
        let text = change.value();
        match (change.tag(), diff_spans.last_mut()) {
            (ChangeTag::Equal, Some(DiffSpan::Same(before)))
            | (ChangeTag::Delete, Some(DiffSpan::Removed(before)))
            | (ChangeTag::Insert, Some(DiffSpan::Added(before))) => before.push_str(text),
            (ChangeTag::Equal, _) => diff_spans.push(DiffSpan::Same(text.to_owned())),
            (ChangeTag::Delete, _) => diff_spans.push(DiffSpan::Removed(text.to_owned())),
            (ChangeTag::Insert, _) => diff_spans.push(DiffSpan::Added(text.to_owned())),
        }
    }
    diff_spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn diff_reconstructs_both_texts(old in "[abc \n]{0,80}", new in "[abc \n]{0,80}") {
            let (mut before, mut after) = (String::new(), String::new());
            for span in diff_spans(&old, &new) {
                match span {
                    DiffSpan::Same(text) => {
                        before.push_str(&text);
                        after.push_str(&text);
                    }
                    DiffSpan::Removed(text) => before.push_str(&text),
                    DiffSpan::Added(text) => after.push_str(&text),
                }
            }
            prop_assert_eq!((before, after), (old, new));
        }
    }
}
