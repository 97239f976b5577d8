//! Edits a passage of the letter in the editor: rewrites, shortens or makes it more formal. The passage is what the writer selected,
//! or without a selection the letter between its salutation and its closing.

use super::api::Prompt;
use super::cleaner::{is_closing, is_salutation_line};
use super::failure::DraftFailure;
use super::instructions::{self, fill};
use super::limits::{MAX_REWRITE_CHARS, OUTPUT_TOKENS};
use super::prompt::seed;
use super::skeleton::{Skeleton, one_line};
use super::tuning::{GenerationOptions, REWRITE_SAMPLING};
use std::ops::Range;

/// Output tokens that an edit may use beyond half a token for each byte of the passage.
const SPARE_OUTPUT_TOKENS: u32 = 64;

chancery_domain::closed_enum! {
    pub(crate) enum Change {
        Rewrite = "rewrite",
        Shorten = "shorten",
        MoreFormal = "formal",
    }
}

impl Change {
    fn instruction(self) -> &'static str {
        match self {
            Self::Rewrite => instructions::CHANGE_REWRITE,
            Self::Shorten => instructions::CHANGE_SHORTEN,
            Self::MoreFormal => instructions::CHANGE_FORMAL,
        }
    }
}

/// A validated request to edit a passage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RewriteRequest {
    pub(crate) change: Change,
    /// The part of the letter that is replaced.
    pub(crate) selected: String,
    /// Where it is in the editor's text, in bytes.
    pub(crate) range: Range<usize>,
    pub(crate) attempt: u32,
}

/// The selected part of a text, in bytes. Browsers count in UTF-16 code units. Without a selection it is the whole text.
pub(super) fn selected_range(
    text: &str,
    selection: Option<(usize, usize)>,
) -> Result<Range<usize>, DraftFailure> {
    let range = match selection {
        None => Some(0..text.len()),
        Some((start, end)) => {
            byte_offset(text, start).zip(byte_offset(text, end)).map(|(start, end)| start..end)
        }
    };
    let invalid = || DraftFailure::invalid("The selection does not fit the text. Select the passage again.");
    let range = range.filter(|range| range.start <= range.end).ok_or_else(invalid)?;
    let selected = &text[range.clone()];
    if selected.trim().is_empty() {
        return Err(DraftFailure::invalid("There is no text to edit. Write or select some text first."));
    }
    let chars = selected.chars().count();
    if chars > MAX_REWRITE_CHARS {
        return Err(DraftFailure::invalid(format!(
            "Select at most {MAX_REWRITE_CHARS} characters. The selection has {chars}. Your text is untouched."
        )));
    }
    Ok(range)
}

/// `None` if no character begins there.
fn byte_offset(text: &str, utf16_units: usize) -> Option<usize> {
    let mut units = 0;
    for (offset, c) in text.char_indices() {
        if units >= utf16_units {
            return (units == utf16_units).then_some(offset);
        }
        units += c.len_utf16();
    }
    (units == utf16_units).then_some(text.len())
}

/// The selection in three parts: what stays before the passage, the passage, and what stays after it. White space around it, the
/// salutation and the closing stay as they are.
pub(super) fn split_passage(selected: &str) -> (Skeleton, &str) {
    let (mut start, mut end) = (0, selected.len());
    let mut offset = 0;
    for line in selected.split_inclusive('\n') {
        let (line_start, line_end) = (offset, offset + line.len());
        offset = line_end;
        if selected[start..line_start].trim().is_empty() && is_salutation_line(line) {
            start = line_end;
        } else if is_closing(line) {
            end = line_start;
            break;
        }
    }
    // A selection that is nothing but salutation and closing is edited whole.
    if selected[start..end].trim().is_empty() {
        (start, end) = (0, selected.len());
    }
    let body = &selected[start..end];
    start += body.len() - body.trim_start().len();
    end = start + body.trim().len();
    let frame = Skeleton { opening: selected[..start].to_owned(), closing: selected[end..].to_owned() };
    (frame, &selected[start..end])
}

pub(super) fn rewrite_prompt(request: &RewriteRequest, passage: &str, writer: &str, firm: &str) -> Prompt {
    let (writer, firm) = (one_line(writer), one_line(firm));
    let values = [("writer", writer.as_str()), ("firm", &firm), ("change", request.change.instruction())];
    let instructions = fill(instructions::PASSAGE, &values);
    let tokens = u32::try_from(passage.len() / 2).unwrap_or(u32::MAX).saturating_add(SPARE_OUTPUT_TOKENS);
    let seed = seed(&instructions, passage, request.attempt);
    Prompt {
        instructions,
        input: passage.to_owned(),
        max_output_tokens: tokens.clamp(*OUTPUT_TOKENS.start(), *OUTPUT_TOKENS.end()),
        options: GenerationOptions { sampling: REWRITE_SAMPLING, stop: &[], seed },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LETTER: &str = "Dear Priya Raman,\n\nWe credit 3 hours.\nThank you.\n\nKind regards,\nMaya";

    #[test]
    fn whole_letter_keeps_its_salutation_and_closing() {
        let (frame, passage) = split_passage(LETTER);
        assert_eq!(passage, "We credit 3 hours.\nThank you.");
        assert_eq!(
            (frame.opening.as_str(), frame.closing.as_str()),
            ("Dear Priya Raman,\n\n", "\n\nKind regards,\nMaya")
        );
        let (frame, passage) = split_passage(" a sentence. ");
        assert_eq!((frame.opening.as_str(), passage, frame.closing.as_str()), (" ", "a sentence.", " "));
        assert_eq!(split_passage("Dear Priya Raman,").1, "Dear Priya Raman,");
        let sentence = "We met.\nRespectfully, we disagree.";
        assert_eq!(split_passage(sentence).1, sentence, "no closing");
    }

    #[test]
    fn selection_is_counted_as_browsers_do() {
        let text = "a😀é b";
        assert_eq!(selected_range(text, Some((1, 3))).unwrap(), 1..5);
        assert_eq!(selected_range(text, Some((3, 4))).unwrap(), 5..7);
        assert_eq!(selected_range(text, None).unwrap(), 0..text.len());
        for invalid in [(2, 3), (3, 1), (0, 99)] {
            assert!(
                selected_range(text, Some(invalid)).unwrap_err().message.contains("selection"),
                "{invalid:?}"
            );
        }
        assert!(selected_range(" ", None).unwrap_err().message.starts_with("There is no text to edit."));
        let long = "x".repeat(MAX_REWRITE_CHARS + 1);
        assert!(selected_range(&long, None).unwrap_err().message.contains("at most"));
    }

    #[test]
    fn prompt_names_the_change_and_has_only_the_passage_as_input() {
        let request = RewriteRequest {
            change: Change::Shorten,
            selected: LETTER.to_owned(),
            range: 0..LETTER.len(),
            attempt: 0,
        };
        let prompt = rewrite_prompt(&request, "We credit 3 hours.", "Maya", "Marlow & Finch");
        assert!(prompt.instructions.contains("Shorten the passage"), "{}", prompt.instructions);
        assert_eq!(prompt.input, "We credit 3 hours.");
        assert_eq!(prompt.max_output_tokens, 73);
        let again = RewriteRequest { attempt: 1, ..request };
        let second = rewrite_prompt(&again, "We credit 3 hours.", "Maya", "Marlow & Finch");
        assert_ne!(second.options.seed, prompt.options.seed);
    }

    proptest! {
        #[test]
        fn parts_of_a_selection_add_up(selected in "(Dear A,|Kind regards,|\n| |[a-z]{1,4}\\.|é){0,20}") {
            let (frame, passage) = split_passage(&selected);
            prop_assert_eq!(format!("{}{}{}", frame.opening, passage, frame.closing), selected);
        }

        #[test]
        fn any_selection_is_a_part_of_the_text_or_an_error(text in "\\PC{0,20}", start in 0_usize..30, end in 0_usize..30) {
            if let Ok(range) = selected_range(&text, Some((start, end))) {
                let before = text[..range.start].encode_utf16().count();
                prop_assert_eq!((before, before + text[range].encode_utf16().count()), (start, end));
            }
        }
    }
}
