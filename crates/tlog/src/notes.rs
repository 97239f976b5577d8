//! Splits a file of signed notes, one after another, as checkpoint files have them.

/// Begins every signature line of a note.
const SIGNATURE_MARK: &str = "— ";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes<'a> {
    /// Each note with the number of its first line, from 1.
    pub notes: Vec<(usize, &'a str)>,
    /// The line of a note that the file ends within. A server may be writing it, or lost power while it did.
    pub incomplete: Option<usize>,
    /// Bytes up to the end of the last complete note.
    pub complete_bytes: usize,
}

/// A note ends after its last signature line. Blank lines between notes are skipped.
pub fn split_notes(text: &str) -> Notes<'_> {
    let mut found = Notes::default();
    // Where the current note begins: its byte and its line.
    let mut start: Option<(usize, usize)> = None;
    let (mut offset, mut is_signed) = (0, false);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let is_signature = line.starts_with(SIGNATURE_MARK);
        if let Some((byte, number)) = start
            && is_signed
            && !is_signature
        {
            found.notes.push((number, &text[byte..offset]));
            (start, is_signed) = (None, false);
        }
        if start.is_none() && line != "\n" {
            start = Some((offset, index + 1));
        }
        offset += line.len();
        if is_signature && line.ends_with('\n') {
            is_signed = true;
            found.complete_bytes = offset;
        } else if is_signature {
            is_signed = false;
        }
    }
    match start {
        Some((byte, number)) if is_signed => found.notes.push((number, &text[byte..offset])),
        Some((_, number)) => found.incomplete = Some(number),
        None => {}
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FIRST: &str = "a/ledger\n1\nx\n\n— a/ledger s\n";
    const SECOND: &str = "a/audit\n2\ny\n\n— a/audit s\n— b t\n";

    #[test]
    fn notes_are_split_with_and_without_blank_lines_between() {
        for between in ["", "\n", "\n\n"] {
            let text = format!("{FIRST}{between}{SECOND}{between}");
            let found = split_notes(&text);
            assert_eq!(found.notes, [(1, FIRST), (6 + between.len(), SECOND)], "{text}");
            assert_eq!((found.incomplete, found.complete_bytes), (None, text.len() - between.len()));
        }
        assert_eq!(split_notes(""), Notes::default());
    }

    proptest! {
        /// Whatever a power failure left of the second note, the first one is still read.
        #[test]
        fn cut_note_is_incomplete_and_spoils_no_other(cut in 1_usize..200) {
            let last_line = SECOND.find("— b").unwrap();
            let cut = (1..=cut.min(last_line)).rev().find(|cut| SECOND.is_char_boundary(*cut)).unwrap();
            let text = format!("{FIRST}\n{}", &SECOND[..cut]);
            let found = split_notes(&text);
            prop_assert_eq!(found.notes[0], (1, FIRST));
            let is_whole = SECOND[..cut].ends_with(" s\n");
            prop_assert_eq!(found.incomplete.is_none(), is_whole);
            if !is_whole {
                prop_assert_eq!(found.complete_bytes, FIRST.len());
            }
        }
    }
}
