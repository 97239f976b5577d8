//! Removes the repeated tail of a reply that loops.

/// Loops with a longer period are not looked for. A paragraph has fewer words.
const MAX_PERIOD_WORDS: usize = 200;
/// Fewer repeated words than this are emphasis: `very, very, very`.
const MIN_REPEATED_WORDS: usize = 6;

/// The text up to the end of the first occurrence of what it then repeats at least twice, to its end. The last repetition may be
/// partial. A text without such a tail is returned whole.
pub(super) fn without_repeated_tail(text: &str) -> &str {
    let words: Vec<(&str, usize)> = text
        .split_whitespace()
        .map(|word| (word, word.as_ptr().addr() - text.as_ptr().addr() + word.len()))
        .collect();
    let is_same = |a: usize, b: usize| bare(words[a].0).eq_ignore_ascii_case(bare(words[b].0));
    let count = words.len();
    for period in 1..=MAX_PERIOD_WORDS.min(count / 3) {
        let repeated = (period..count).rev().take_while(|index| is_same(*index, index - period)).count();
        if repeated >= MIN_REPEATED_WORDS.max(2 * period) {
            let (_, end) = words[count - repeated - 1];
            return &text[..end];
        }
    }
    text
}

/// A word without the punctuation around it.
fn bare(word: &str) -> &str {
    word.trim_matches(|c: char| !c.is_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn loop_is_cut_after_its_first_occurrence() {
        let looped = "We met a contractor who has a client who has a client who has a client who has a cl";
        assert_eq!(
            without_repeated_tail(&looped[..looped.len() - 3]),
            "We met a contractor who has a client"
        );
        let lines =
            "Dear Ms Raman, thank you.\n\nI am sorry for this. I am sorry for this. I am sorry for this.";
        assert_eq!(without_repeated_tail(lines), "Dear Ms Raman, thank you.\n\nI am sorry for this.");
    }

    #[test]
    fn text_without_a_loop_stays_whole() {
        for text in
            ["", "word", "It is very, very, very good.", "We will call. We will write. We will meet you."]
        {
            assert_eq!(without_repeated_tail(text), text);
        }
    }

    proptest! {
        #[test]
        fn trimmed_text_begins_the_text_and_ends_with_one_repetition(
            start in "[a-m]{1,8}( [a-m]{1,8}){0,10}",
            period in "[n-z]{1,8}( [n-z]{1,8}){1,6}",
            times in 5_usize..9,
        ) {
            let looped = format!("{start} {}", vec![period.as_str(); times].join(" "));
            let kept = without_repeated_tail(&looped);
            prop_assert!(looped.starts_with(kept));
            // A period may itself repeat a shorter one.
            let once = format!("{start} {period}");
            prop_assert!(once.starts_with(kept) && kept.len() > start.len(), "{kept}");
        }
    }
}
