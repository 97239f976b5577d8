//! What people write, as a page shows it: plain text, of which blank lines part paragraphs and leading dashes or bullets make
//! lists. Nothing else in it means anything. Long texts are shown in two parts.

/// A text of more characters than this is folded.
const FOLD_OVER_CHARS: usize = 1_200;
/// So much of a folded text is shown, up to the next end of a paragraph, a line or a word.
const SHOWN_OF_FOLDED_CHARS: usize = 700;
/// Short lines make a long text too: so many of them at most.
const FOLD_OVER_LINES: usize = 24;
const SHOWN_OF_FOLDED_LINES: usize = 14;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    /// Its lines.
    Paragraph(Vec<String>),
    List(Vec<String>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) beginning: Vec<Block>,
    /// Empty where the text is not long.
    pub(crate) rest: Vec<Block>,
}

impl Shown {
    pub(crate) fn new(text: &str) -> Self {
        let is_long = text.chars().count() > FOLD_OVER_CHARS || text.lines().count() > FOLD_OVER_LINES;
        let fold_at = if is_long { fold_at(text) } else { text.len() };
        let (beginning, rest) = text.split_at(fold_at);
        Self { beginning: blocks(beginning), rest: blocks(rest) }
    }
}

/// The best place to fold a long text: after a paragraph, else after a line, else after a word, else anywhere.
fn fold_at(text: &str) -> usize {
    let by_chars = text.char_indices().nth(SHOWN_OF_FOLDED_CHARS).map_or(text.len(), |(at, _)| at);
    let by_lines = text.match_indices('\n').nth(SHOWN_OF_FOLDED_LINES).map_or(text.len(), |(at, _)| at);
    let limit = by_chars.min(by_lines);
    let shown = &text[..limit];
    // A fold near the start would show next to nothing.
    let far_enough = |at: &usize| *at > limit / 3;
    let paragraph = shown.rfind("\n\n").filter(far_enough);
    let line = || shown.rfind('\n').filter(far_enough);
    let word = || shown.rfind(' ').filter(far_enough);
    paragraph.or_else(line).or_else(word).unwrap_or(limit)
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
    fn dashes_make_lists_and_blank_lines_part_paragraphs() {
        let shown = Shown::new("Agreed:\n- a credit\n• no refund\n\nDear Ms Raman,\nthank you.\n-not a list");
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
    fn a_long_text_is_folded_at_a_paragraph_where_it_can_be() {
        let paragraph = "word ".repeat(60).trim().to_owned();
        let text = [paragraph.as_str(); 6].join("\n\n");
        let shown = Shown::new(&text);
        assert_eq!((shown.beginning.len(), shown.rest.len()), (2, 4));
        let lines = "line\n".repeat(40);
        assert!(!Shown::new(&lines).rest.is_empty());
    }

    proptest! {
        #[test]
        fn no_word_is_lost_by_folding(text in "([a-zäß€ \n]|- ){0,3000}") {
            let shown = Shown::new(&text);
            let kept: String = [words(&shown.beginning), words(&shown.rest)].concat().concat();
            let letters = |text: &str| text.replace(['-', ' ', '\n'], "");
            prop_assert_eq!(letters(&kept), letters(&text));
        }
    }
}
