//! Cleans a reply as it streams: nothing of the prompt, no chat phrases, no markup, and in the body of a letter no second
//! salutation or closing. Text is withheld until the end of its sentence or line, so the result does not depend on where the
//! stream is cut.

use super::echo::{Echoes, words};
use super::instructions::{LETTER_LABEL, NOTES_LABEL, PURPOSE_LABEL};
use super::placeholders::{LetterNames, fill_placeholders};

/// A sentence longer than this is released at its next space.
const MAX_WITHHELD_CHARS: usize = 600;
/// Abbreviations whose full stop does not end a sentence.
const ABBREVIATIONS: [&str; 8] = ["mr.", "mrs.", "ms.", "dr.", "prof.", "st.", "no.", "approx."];
/// How lines of our prompt begin, in the words of `words`.
const LABELS: [&[&str]; 11] = [
    &["what", "the", "letter", "is", "for"],
    &["who", "is", "who"],
    &["end", "of", "entry"],
    &["end", "of", "client"],
    &["form", "plain", "text"],
    &["example"],
    &["system"],
    &["user"],
    &["assistant"],
    &["im", "start"],
    &["im", "end"],
];
/// Lines of the client's details as the prompt has them.
const DETAIL_LABELS: [&str; 6] = ["name:", "contact:", "address:", "email:", "telephone:", "client since:"];
/// Lines that the skeleton has already, or that the letterhead prints.
const HEADING_LABELS: [&str; 6] = ["subject:", "re:", "date:", "to:", "from:", "title:"];
const SALUTATIONS: [&str; 5] = ["dear", "hello", "hi", "greetings", "to whom it may concern"];
const CLOSINGS: [&str; 16] = [
    "sincerely",
    "yours sincerely",
    "sincerely yours",
    "yours faithfully",
    "yours truly",
    "regards",
    "kind regards",
    "kindest regards",
    "best regards",
    "warm regards",
    "warmest regards",
    "with kind regards",
    "with best regards",
    "best wishes",
    "respectfully",
    "cordially",
];
/// Words in lower case that may stand between names after a closing: `Sincerely, Maya of Marlow & Finch`.
const NAME_LINKS: [&str; 5] = ["and", "for", "of", "on", "the"];

/// What the reply is meant to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyForm {
    /// A whole letter.
    Letter,
    /// What is between salutation and closing.
    Body,
    /// A passage that was edited.
    Passage,
}

pub(super) struct Cleaner {
    form: ReplyForm,
    echoes: Echoes,
    names: LetterNames,
    /// The sentence that is withheld.
    withheld: String,
    is_at_line_start: bool,
    is_dropping_line: bool,
    /// Line breaks since the last text that was released, up to 2.
    breaks: usize,
    has_space: bool,
    has_output: bool,
    is_over: bool,
}

enum LineRule {
    Keep,
    /// Keep the text from this byte on.
    KeepFrom(usize),
    Drop,
    /// The line and all that follows is no part of the reply.
    End,
}

impl Cleaner {
    pub(super) fn new(form: ReplyForm, names: LetterNames, purpose: &str) -> Self {
        Self {
            form,
            echoes: Echoes::new(purpose),
            names,
            withheld: String::new(),
            is_at_line_start: true,
            is_dropping_line: false,
            breaks: 0,
            has_space: false,
            has_output: false,
            is_over: false,
        }
    }

    /// For a prompt with the example, of which nothing belongs in the letter. `record` is all that the letter may be about.
    pub(super) fn without_example(mut self, record: &str) -> Self {
        self.echoes = self.echoes.with_example(record);
        self
    }

    /// Whether the reply came to a closing, after which nothing counts.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes the next part of the reply; returns what is known to belong to the letter.
    pub(super) fn push(&mut self, text: &str) -> String {
        let mut released = String::new();
        for c in text.chars() {
            match c {
                '\r' => {}
                '\n' => {
                    self.end_sentence(&mut released);
                    self.end_line();
                }
                c if c.is_whitespace() => {
                    if self.withheld.is_empty() {
                        self.has_space = true;
                    } else if ends_sentence(&self.withheld)
                        || self.withheld.chars().count() >= MAX_WITHHELD_CHARS
                    {
                        self.end_sentence(&mut released);
                        self.has_space = true;
                    } else {
                        self.withheld.push(c);
                    }
                }
                c => self.withheld.push(c),
            }
        }
        released
    }

    /// The reply is over: returns the rest.
    pub(super) fn finish(&mut self) -> String {
        let mut released = String::new();
        self.end_sentence(&mut released);
        released
    }

    fn end_line(&mut self) {
        self.is_dropping_line = false;
        self.is_at_line_start = true;
        self.has_space = false;
        self.breaks = (self.breaks + 1).min(2);
    }

    fn end_sentence(&mut self, released: &mut String) {
        let mut sentence = std::mem::take(&mut self.withheld);
        if self.is_over || self.is_dropping_line || sentence.trim().is_empty() {
            return;
        }
        if std::mem::take(&mut self.is_at_line_start) {
            match self.line_rule(sentence.trim()) {
                LineRule::Keep => {}
                LineRule::KeepFrom(start) => sentence = capitalized(sentence.trim()[start..].trim()),
                LineRule::Drop => {
                    self.is_dropping_line = true;
                    return;
                }
                LineRule::End => {
                    self.is_over = true;
                    return;
                }
            }
        }
        // A chat template's marks.
        if let Some(mark) = sentence.find("<|") {
            sentence.truncate(mark);
        }
        let is_passage = self.form == ReplyForm::Passage;
        if (!is_passage && sentence.contains("====="))
            || self.echoes.is_echo(&sentence)
            || (!self.has_output && is_chat_opening(&sentence))
        {
            return;
        }
        let text = fill_placeholders(&sentence.replace("**", ""), &self.names);
        let text = text.trim();
        if text.is_empty() || (!is_passage && !text.chars().any(char::is_alphanumeric)) {
            return;
        }
        if self.has_output {
            match self.breaks {
                0 if self.has_space => released.push(' '),
                0 => {}
                1 => released.push('\n'),
                _ => released.push_str("\n\n"),
            }
        }
        released.push_str(text);
        (self.breaks, self.has_space, self.has_output) = (0, false, true);
    }

    /// For the first sentence of a line.
    fn line_rule(&self, sentence: &str) -> LineRule {
        let lower = sentence.to_lowercase();
        // The prompt of an edit has no fences and no labels, and rules and headings in a passage are the writer's own.
        let is_passage = self.form == ReplyForm::Passage;
        let marks: &[&str] =
            if is_passage { &["```", "<|"] } else { &["===", "```", "---", "***", "___", "<|"] };
        let is_rule = marks.iter().any(|mark| sentence.starts_with(mark));
        // `#2041` is a number.
        let is_heading = sentence.starts_with('#')
            && sentence.trim_start_matches('#').chars().next().is_none_or(char::is_whitespace);
        let line_words = words(sentence);
        let is_label = LABELS.iter().any(|label| match label {
            // The names of roles may begin a sentence, too.
            [_] => line_words.iter().eq(label.iter()),
            label => !is_passage && line_words.iter().take(label.len()).eq(label.iter()),
        });
        let is_entry = matches!(line_words.as_slice(), [entry, number, of, count, ..]
            if entry == "entry" && of == "of" && number.parse::<u32>().is_ok() && count.parse::<u32>().is_ok());
        let is_detail = DETAIL_LABELS.iter().any(|label| lower.starts_with(label));
        if is_rule || is_label || (!is_passage && (is_heading || is_entry || is_detail)) {
            return LineRule::Drop;
        }
        match self.form {
            ReplyForm::Body => self.body_line_rule(sentence, &lower),
            ReplyForm::Letter | ReplyForm::Passage => LineRule::Keep,
        }
    }

    fn body_line_rule(&self, sentence: &str, lower: &str) -> LineRule {
        // Small models begin with the notes, which are a letter already: they are in the second person.
        let text_start = self.after_letter_label(sentence).or_else(|| after_notes_label(sentence));
        if is_purpose_label(sentence) || text_start.is_some() {
            // Another example or letter begins.
            if self.has_output {
                return LineRule::End;
            }
            let rest = text_start.map_or("", |start| sentence[start..].trim_start());
            let skipped = sentence.len() - rest.len();
            return match self.line_rule(rest) {
                _ if rest.is_empty() => LineRule::Drop,
                LineRule::Keep => LineRule::KeepFrom(skipped),
                LineRule::KeepFrom(start) => LineRule::KeepFrom(skipped + start),
                rule => rule,
            };
        }
        let bare = bare_name(&fill_placeholders(sentence, &self.names));
        let is_name = [&self.names.writer, &self.names.firm].iter().any(|name| bare == bare_name(name));
        if is_name || HEADING_LABELS.iter().any(|label| lower.starts_with(label)) {
            return LineRule::Drop;
        }
        if is_closing(sentence) {
            // Before any text it is a reply that begins at the wrong end.
            return if self.has_output { LineRule::End } else { LineRule::Drop };
        }
        let is_salutation = SALUTATIONS.iter().any(|salutation| {
            let rest = lower.strip_prefix(salutation);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', ',', ':', '!', '.']))
        });
        match is_salutation {
            // A second letter begins.
            true if self.has_output => LineRule::End,
            // What follows on the same line belongs to the letter.
            true => {
                let end = sentence.find([',', ':']).map_or(sentence.len(), |mark| mark + 1);
                LineRule::KeepFrom(end)
            }
            false => LineRule::Keep,
        }
    }

    /// Where the text after `Letter to Priya Raman:` begins.
    fn after_letter_label(&self, sentence: &str) -> Option<usize> {
        let rest = after_label(sentence, LETTER_LABEL)?;
        let is_reader = bare_name(rest) == bare_name(&self.names.reader);
        let colon = rest.find(':').map(|colon| sentence.len() - rest.len() + colon + 1);
        colon.or(is_reader.then_some(sentence.len()))
    }
}

fn after_label<'a>(line: &'a str, label: &str) -> Option<&'a str> {
    let (begin, rest) = line.split_at_checked(label.len())?;
    begin.eq_ignore_ascii_case(label).then_some(rest)
}

/// Where the text after `Notes:` or `Notes 2, meeting note, 12 November 2026:` begins.
fn after_notes_label(line: &str) -> Option<usize> {
    let rest = after_label(line.trim_start_matches('*'), NOTES_LABEL)?;
    let is_notes = rest.trim_start().starts_with(|c: char| c == ':' || c.is_ascii_digit());
    is_notes.then(|| rest.find(':').map_or(line.len(), |colon| line.len() - rest.len() + colon + 1))
}

fn is_purpose_label(line: &str) -> bool {
    let rest = after_label(line.trim_start_matches('*'), PURPOSE_LABEL);
    rest.is_some_and(|rest| rest.trim_start().starts_with(':'))
}

fn bare_name(name: &str) -> String {
    name.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase()
}

/// A closing line. Names may follow on the same line, but no sentence: `Respectfully, we disagree.`
pub(super) fn is_closing(line: &str) -> bool {
    let line = line.trim();
    let is_part_of_name = |word: &str| {
        !word.starts_with(char::is_lowercase) || NAME_LINKS.contains(&word.trim_end_matches(','))
    };
    CLOSINGS.iter().any(|closing| {
        let Some((start, rest)) = line.split_at_checked(closing.len()) else { return false };
        let rest = rest.trim_start();
        let has_names_only =
            rest.starts_with([',', '.', '!', '-', '–']) && rest.split_whitespace().all(is_part_of_name);
        start.eq_ignore_ascii_case(closing) && (rest.is_empty() || has_names_only)
    })
}

/// A salutation line, such as `Dear Priya Raman,`.
pub(super) fn is_salutation_line(line: &str) -> bool {
    let line = line.trim();
    line.to_lowercase().starts_with("dear ") && line.ends_with([',', ':'])
}

pub(super) fn ends_sentence(text: &str) -> bool {
    let text = text.trim_end_matches(['"', '\'', ')', '”', '’']);
    if !text.ends_with(['.', '!', '?']) {
        return false;
    }
    let last = text.split_whitespace().next_back().unwrap_or_default().to_lowercase();
    !ABBREVIATIONS.contains(&last.as_str())
}

/// `Sure! Here is the letter:`
fn is_chat_opening(sentence: &str) -> bool {
    let words = words(sentence);
    let first: Vec<&str> = words.iter().map(String::as_str).collect();
    let is_assent = matches!(
        first.as_slice(),
        ["sure" | "certainly" | "absolutely" | "okay" | "ok", ..] | ["of", "course", ..]
    );
    let is_announcement = is_assent
        || matches!(first.as_slice(), ["here", "is" | "s" | "are", ..] | ["below", "is" | "are", ..]);
    let has_colon = sentence.trim_end().ends_with(':');
    // A letter may begin with `Here are the three options:` or `Here is the draft contract.`
    let names_itself = first.iter().any(|word| match *word {
        "letter" | "paragraphs" | "passage" => true,
        "draft" | "version" | "text" | "response" | "sentence" | "message" => has_colon || is_assent,
        _ => false,
    });
    (is_assent && (first.len() <= 3 || has_colon)) || (is_announcement && names_itself)
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drafting::instructions;
    use proptest::prelude::*;

    fn names() -> LetterNames {
        LetterNames {
            writer: "Maya Castellanos".to_owned(),
            firm: "Marlow & Finch".to_owned(),
            reader: "Priya Raman".to_owned(),
        }
    }

    fn cleaned(form: ReplyForm, text: &str) -> (String, bool) {
        let mut cleaner = Cleaner::new(form, names(), "Offer to credit the three hours.");
        let mut cleaned = cleaner.push(text);
        cleaned += &cleaner.finish();
        (cleaned, cleaner.is_over())
    }

    #[test]
    fn body_loses_salutation_closing_and_all_after_it() {
        let reply = "Dear Ms. Raman,\n\nThank you for the call. We credit three hours.\n\nKind regards,\nMaya\nDear Ms Raman,";
        let body = "Thank you for the call. We credit three hours.";
        assert_eq!(cleaned(ReplyForm::Body, reply), (body.to_owned(), true));
        let (inline, _) = cleaned(ReplyForm::Body, "Dear Ms. Raman, thank you for the call.");
        assert_eq!(inline, "Thank you for the call.");
        let (greeted, _) = cleaned(ReplyForm::Body, "Hello Priya! Thank you for the call. We credit it.");
        assert_eq!(greeted, "Thank you for the call. We credit it.");
        let (signed, _) = cleaned(ReplyForm::Body, "Thank you.\n\n[Your Name]\n[Company Name]");
        assert_eq!(signed, "Thank you.");
        let (again, is_over) = cleaned(ReplyForm::Body, "Thank you.\n\nDear Priya Raman,\n\nThank you.");
        assert_eq!((again.as_str(), is_over), ("Thank you.", true));
        let (unsigned, _) =
            cleaned(ReplyForm::Body, "Subject: Credit\n\nThank you.\n\nMaya Castellanos\nMarlow & Finch");
        assert_eq!(unsigned, "Thank you.");
    }

    #[test]
    fn whole_letter_keeps_salutation_and_closing() {
        let letter = "Dear Ms Raman,\n\nThank you.\n\nKind regards,\nMaya Castellanos\nMarlow & Finch";
        assert_eq!(cleaned(ReplyForm::Letter, letter), (letter.to_owned(), false));
    }

    #[test]
    fn prompt_chat_and_markup_never_reach_the_letter() {
        let reply = "Sure! Here is the letter:\n```\n===== Client\nName: Harbour Lane Bakery\nClient since: 4 March 2024\n\
            ===== End of client\nEntry 1 of 2: meeting note\n# Credit\nWhat the letter is for, in the writer's words: x\n\
            Thank you for the **call**. Use only facts from the material. Offer to credit the three hours. We will write.\n```\n<|im_end|>\nassistant";
        for form in [ReplyForm::Letter, ReplyForm::Body] {
            assert_eq!(cleaned(form, reply).0, "Thank you for the call. We will write.", "{form:?}");
        }
    }

    #[test]
    fn labels_of_the_notes_never_reach_the_body() {
        let echoed = "Example.\nNotes: Call with you. You pay.\nPurpose: Thank her.\nLetter to Priya Raman:\nThank you.";
        assert_eq!(cleaned(ReplyForm::Body, echoed), ("Call with you. You pay.".to_owned(), true));
        let several = "Notes 1, meeting note, 12 November 2026: You pay.\nPurpose: Thank her.";
        assert_eq!(cleaned(ReplyForm::Body, several), ("You pay.".to_owned(), true));
        let inline = "Letter to Priya Raman: Dear Ms Raman, thank you for the call. We agree.";
        assert_eq!(cleaned(ReplyForm::Body, inline).0, "Thank you for the call. We agree.");
        for next in
            ["Notes: more", "Notes 2, meeting note: more", "**Purpose:** more", "Letter to Priya Raman"]
        {
            let reply = format!("Thank you.\n\n{next}\nmore");
            assert_eq!(cleaned(ReplyForm::Body, &reply), ("Thank you.".to_owned(), true), "{next}");
        }
        let sentences = "Notes of the meeting are enclosed.\nLetter to the council follows.";
        assert_eq!(cleaned(ReplyForm::Body, sentences).0, sentences);
    }

    #[test]
    fn nothing_of_the_example_reaches_the_body() {
        let record = "Priya Raman pays $420 by 22 May.";
        let mut cleaner = Cleaner::new(ReplyForm::Body, names(), "").without_example(record);
        let reply = format!("{}\n\nYou pay $420 by 22 May.", instructions::EXAMPLE);
        let text = cleaner.push(&reply) + &cleaner.finish();
        assert_eq!(text, "You pay $420 by 22 May.");
    }

    #[test]
    fn placeholders_for_known_names_are_filled_in_and_gaps_stay() {
        let (letter, _) = cleaned(
            ReplyForm::Letter,
            "Dear [Client Name],\n\nWe credit [amount] on [date].\n\n[Your Name]\n[Your Title]\n[Company Name]",
        );
        assert_eq!(
            letter,
            "Dear Priya Raman,\n\nWe credit [amount] on [date].\n\nMaya Castellanos\n\nMarlow & Finch"
        );
    }

    #[test]
    fn ordinary_sentences_stay_as_they_are() {
        for text in [
            "Here is what we propose.",
            "Here are the three options:\n- a credit",
            "Here is the draft contract that we agreed on.",
            "We met.\nRespectfully, we disagree with the invoice.",
            "We met.\nHi-tech machines are not covered.",
            "#2041 is the number of the invoice.",
            "Entry 5 of the ledger is wrong.",
            "Client since 2019, the bakery has two shops.",
            "We have a copy from the firm's records.",
            "Sure enough, the invoice of 12 November was wrong.",
            "We met Dr. Hale at 3 p.m. on Monday.\nHe agreed.",
            "- three hours\n- a credit of $450",
            "System maintenance took three hours.",
            "Best wishes for the season from all of us.",
        ] {
            for form in [ReplyForm::Letter, ReplyForm::Body, ReplyForm::Passage] {
                assert_eq!(cleaned(form, text).0, text);
            }
        }
    }

    #[test]
    fn passage_keeps_what_only_the_prompt_of_a_letter_has() {
        let passage = "Costs\n-----\n# Rent\nEntry 1 of 2: $3,200\nName: Velder Optics\n===== Total =====";
        assert_eq!(cleaned(ReplyForm::Passage, passage).0, passage);
    }

    /// Sentences of a letter and of the prompt, in any order.
    fn parts() -> impl Strategy<Value = Vec<&'static str>> {
        let mut known: Vec<&'static str> = vec![
            "Thank you for the call.",
            "We will credit 3 hours!\n\n",
            "Sure! Here is the letter:\n",
            "Dear Ms. Raman,\n",
            "Is that fair?",
            "\n===== Entry 1 of 2: meeting note\n",
            "\n===== End of entry 1\n",
            "\nNotes: Call with you. ",
            "\nPurpose: Thank her.\n",
            "\nLetter to Priya Raman:\n",
            "\nKind regards,\n",
            "[Your Name] ",
            "\n\n",
            " ",
            "wörds 密 ",
        ];
        known.extend(instructions::ALL.into_iter().flat_map(|template| template.split_inclusive(". ")));
        proptest::collection::vec(proptest::sample::select(known), 0..20)
    }

    proptest! {
        #[test]
        fn result_does_not_depend_on_where_the_stream_is_cut(
            parts in parts(),
            cuts in proptest::collection::vec(1_usize..12, 1..8),
            is_body in any::<bool>(),
        ) {
            let form = if is_body { ReplyForm::Body } else { ReplyForm::Letter };
            let text: Vec<char> = parts.concat().chars().collect();
            let (whole, is_over) = cleaned(form, &text.iter().collect::<String>());
            let mut cleaner = Cleaner::new(form, names(), "Offer to credit the three hours.");
            let (mut rest, mut released) = (text.as_slice(), String::new());
            for size in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (part, after) = rest.split_at((*size).min(rest.len()));
                released += &cleaner.push(&part.iter().collect::<String>());
                rest = after;
            }
            released += &cleaner.finish();
            prop_assert_eq!(&released, &whole);
            prop_assert_eq!(cleaner.is_over(), is_over);
        }

        #[test]
        fn fences_and_labels_of_the_prompt_never_appear(parts in parts()) {
            let (text, _) = cleaned(ReplyForm::Body, &parts.concat());
            for part in ["=====", "Entry 1 of", "End of entry", "Notes:", "Purpose:", "Letter to", "[Your Name]"] {
                prop_assert!(!text.contains(part), "{}: {}", part, text);
            }
        }
    }
}
