//! Placeholders that models write for names: `[Your Name]`. A name that the portal knows is filled in, and details of the writer
//! that it does not know are left out. Every other gap in square brackets stays: it marks a missing fact.

use super::echo::words;

/// A longer text in brackets is no placeholder.
const MAX_PLACEHOLDER_CHARS: usize = 60;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LetterNames {
    pub(super) writer: String,
    pub(super) firm: String,
    /// Whom the letter addresses.
    pub(super) reader: String,
}

enum Placeholder {
    Writer,
    Firm,
    Reader,
    /// A detail of the writer that the letterhead has, or that was not asked for.
    Superfluous,
    Gap,
}

/// Details of a writer below a letter. Alone on a line they are about the writer even without `your`.
const WRITER_DETAILS: [&str; 9] = [
    "title",
    "position",
    "job title",
    "contact information",
    "contact details",
    "phone number",
    "email",
    "email address",
    "address",
];

pub(super) fn fill_placeholders(text: &str, names: &LetterNames) -> String {
    let ends_at_bracket = |rest: &str| rest.find(']').is_some_and(|end| end + 1 == rest.len());
    let is_alone = text.trim().strip_prefix('[').is_some_and(ends_at_bracket);
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        filled.push_str(before);
        let Some((inner, after)) = after.split_once(']') else {
            filled.push('[');
            rest = after;
            continue;
        };
        match placeholder(inner, is_alone) {
            Placeholder::Writer => filled.push_str(&names.writer),
            Placeholder::Firm => filled.push_str(&names.firm),
            Placeholder::Reader => filled.push_str(&names.reader),
            Placeholder::Superfluous => {}
            Placeholder::Gap => {
                filled.push('[');
                filled.push_str(inner);
                filled.push(']');
            }
        }
        rest = after;
    }
    filled.push_str(rest);
    filled
}

fn placeholder(inner: &str, is_alone: bool) -> Placeholder {
    if inner.chars().count() > MAX_PLACEHOLDER_CHARS {
        return Placeholder::Gap;
    }
    let words =
        words(inner).into_iter().filter(|word| !["s", "insert", "the", "full"].contains(&word.as_str()));
    match words.collect::<Vec<_>>().join(" ").as_str() {
        "your name" | "my name" | "sender name" | "consultant name" | "writer name" | "signature"
        | "your signature" | "sender" => Placeholder::Writer,
        "firm" | "firm name" | "company" | "company name" | "your firm" | "your firm name"
        | "your company" | "your company name" => Placeholder::Firm,
        "client" | "client name" | "recipient" | "recipient name" | "contact" | "contact name"
        | "customer name" => Placeholder::Reader,
        detail => {
            let of_writer = detail.strip_prefix("your ").or(is_alone.then_some(detail));
            match of_writer.is_some_and(|detail| WRITER_DETAILS.contains(&detail)) {
                true => Placeholder::Superfluous,
                false => Placeholder::Gap,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names() -> LetterNames {
        LetterNames {
            writer: "Maya".to_owned(),
            firm: "Marlow & Finch".to_owned(),
            reader: "Priya".to_owned(),
        }
    }

    #[test]
    fn known_names_are_filled_in_and_gaps_stay() {
        for (text, filled) in [
            ("[Your Name], [Your Full Name]", "Maya, Maya"),
            ("[Client's Name] of [Firm Name]", "Priya of Marlow & Finch"),
            ("[Your Position]", ""),
            ("[Phone Number]", ""),
            ("Write to us at [email address].", "Write to us at [email address]."),
            ("Please quote [your invoice number].", "Please quote [your invoice number]."),
            ("Finch [Holdings] of [town]", "Finch [Holdings] of [town]"),
            // Whose name it is depends on where it stands.
            ("Dear [Name]", "Dear [Name]"),
            ("a credit of [amount] by [date]", "a credit of [amount] by [date]"),
            ("an open [ bracket", "an open [ bracket"),
        ] {
            assert_eq!(fill_placeholders(text, &names()), filled);
        }
    }

    proptest! {
        #[test]
        fn text_without_brackets_stays_the_same(text in "[^\\[\\]]{0,80}") {
            prop_assert_eq!(fill_placeholders(&text, &names()), text);
        }
    }
}
