//! Renders user text: plain text in which blank lines separate paragraphs and leading dashes or bullets make lists. There is no other
//! markup. Long texts are collapsed.

/// Texts with more characters are collapsed.
const FOLD_OVER_CHARS: usize = 1_200;
/// How much of a collapsed text is shown, up to the end of a paragraph, line or word.
const FOLDED_CHARS: usize = 700;
/// The same limits in lines, for texts with many short lines.
const FOLD_OVER_LINES: usize = 24;
const FOLDED_LINES: usize = 14;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    Paragraph(Vec<String>),
    List(Vec<String>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoldedText {
    pub(crate) beginning: Vec<Block>,
    /// Empty if the text is not collapsed.
    pub(crate) rest: Vec<Block>,
}

impl FoldedText {
    pub(crate) fn new(text: &str) -> Self {
        let is_long = text.chars().count() > FOLD_OVER_CHARS || text.lines().count() > FOLD_OVER_LINES;
        let fold_position = if is_long { fold_position(text) } else { text.len() };
        let (beginning, rest) = text.split_at(fold_position);
        Self { beginning: blocks(beginning), rest: blocks(rest) }
    }
}

/// Where to split a long text: after a paragraph, else after a line, a sentence, a word, or anywhere.
fn fold_position(text: &str) -> usize {
    let by_chars = text.char_indices().nth(FOLDED_CHARS).map_or(text.len(), |(at, _)| at);
    let by_lines = text.match_indices('\n').nth(FOLDED_LINES).map_or(text.len(), |(at, _)| at);
    let limit = by_chars.min(by_lines);
    let shown = &text[..limit];
    // A split near the start would show next to nothing.
    let far_enough = |at: &usize| *at > limit / 3;
    let paragraph = shown.rfind("\n\n").filter(far_enough);
    let line = || shown.rfind('\n').filter(far_enough);
    let sentence = || shown.rfind(". ").map(|at| at + 1).filter(far_enough);
    let word = || shown.rfind(' ').filter(far_enough);
    paragraph.or_else(line).or_else(sentence).or_else(word).unwrap_or(limit)
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_new = true;
    for line in text.lines() {
        let line = line.trim_end();
        if line.is_empty() {
            is_new = true;
            continue;
        }
        let item = ["- ", "• ", "– "].iter().find_map(|mark| line.trim_start().strip_prefix(mark));
        match (item, blocks.last_mut().filter(|_| !is_new)) {
            (Some(item), Some(Block::List(items))) => items.push(item.to_owned()),
            (Some(item), _) => blocks.push(Block::List(vec![item.to_owned()])),
            (None, Some(Block::Paragraph(lines))) => lines.push(line.to_owned()),
            (None, _) => blocks.push(Block::Paragraph(vec![line.to_owned()])),
        }
        is_new = false;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(blocks: &[Block]) -> Vec<String> {
        let lines = blocks.iter().flat_map(|block| match block {
            Block::Paragraph(lines) | Block::List(lines) => lines.clone(),
        });
        lines.flat_map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn dashes_make_lists_and_blank_lines_separate_paragraphs() {
        let shown =
            FoldedText::new("Agreed:\n- a credit\n• no refund\n\nDear Ms Raman,\nthank you.\n-not a list");
        let paragraph =
            |lines: &[&str]| Block::Paragraph(lines.iter().map(|line| (*line).to_owned()).collect());
        assert_eq!(
            shown.beginning,
            [
                paragraph(&["Agreed:"]),
                Block::List(vec!["a credit".to_owned(), "no refund".to_owned()]),
                paragraph(&["Dear Ms Raman,", "thank you.", "-not a list"]),
            ]
        );
        assert!(shown.rest.is_empty());
    }

    #[test]
    fn long_text_folds_at_a_paragraph_if_possible() {
        let paragraph = "word ".repeat(60).trim().to_owned();
        let text = [paragraph.as_str(); 6].join("\n\n");
        let shown = FoldedText::new(&text);
        assert_eq!((shown.beginning.len(), shown.rest.len()), (2, 4));
        let sentences = FoldedText::new(&"A sentence like others. ".repeat(100));
        let Some(Block::Paragraph(lines)) = sentences.beginning.last() else { panic!("no paragraph") };
        assert!(lines[0].ends_with("others."), "{lines:?}");
        let lines = "line\n".repeat(40);
        assert!(!FoldedText::new(&lines).rest.is_empty());
    }

    proptest! {
        #[test]
        fn folding_loses_no_words(text in "([a-zäß€ \n]|- ){0,3000}") {
            let shown = FoldedText::new(&text);
            let folded: String = [words(&shown.beginning), words(&shown.rest)].concat().concat();
            let letters = |text: &str| text.replace(['-', ' ', '\n'], "");
            prop_assert_eq!(letters(&folded), letters(&text));
        }
    }
}
