//! Puts the letter together as the reply streams: the parts from the record, the cleaned text of the model, and at the end whether it
//! is finished and what to check.

use super::cleaner::Cleaner;
use super::figures::{figures_not_in, listed};
use super::loop_tail::without_repeated_tail;
use super::skeleton::Skeleton;

pub(super) struct Composer {
    cleaner: Cleaner,
    frame: Skeleton,
    task: Task,
    /// What the model wrote, cleaned.
    written: String,
}

/// What the text is checked against.
pub(super) enum Task {
    /// Texts of the record and of the writer.
    Draft { sources: Vec<String> },
    /// The passage before.
    Rewrite { passage: String },
}

/// The end of a draft or an edit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Composition {
    /// The letter, or the passage in its place.
    pub(super) text: String,
    /// What of it was not returned before.
    pub(super) rest: String,
    /// Why it is not finished and what to do; `None` if it is.
    pub(super) unfinished: Option<&'static str>,
    /// What to check.
    pub(super) checks: Vec<String>,
}

impl Composer {
    pub(super) fn new(cleaner: Cleaner, frame: Skeleton, task: Task) -> Self {
        Self { cleaner, frame, task, written: String::new() }
    }

    /// What comes before the model's text.
    pub(super) fn opening(&self) -> &str {
        &self.frame.opening
    }

    /// Takes the next part of the reply; returns what to show of it.
    pub(super) fn push(&mut self, text: &str) -> String {
        let released = self.cleaner.push(text);
        self.written += &released;
        released
    }

    pub(super) fn finish(&mut self, stop_reason: &str) -> Composition {
        let mut rest = self.cleaner.finish();
        self.written += &rest;
        let kept = without_repeated_tail(&self.written).trim_end();
        let is_rewrite = matches!(self.task, Task::Rewrite { .. });
        let unfinished = if kept.is_empty() {
            Some(if is_rewrite { EMPTY_REWRITE } else { EMPTY_DRAFT })
        } else if kept.len() < self.written.trim_end().len() {
            Some(if is_rewrite { LOOPED_REWRITE } else { LOOPED })
        } else if self.cleaner.is_over() {
            None
        } else if is_rewrite {
            unfinished_rewrite_text(stop_reason)
        } else {
            unfinished_text(stop_reason)
        };
        // What comes after a passage is the writer's own.
        let has_closing = unfinished.is_none() || is_rewrite;
        let closing = if has_closing { self.frame.closing.as_str() } else { "" };
        let body = match &self.task {
            Task::Rewrite { passage } if kept.is_empty() => passage.as_str(),
            _ => kept,
        };
        rest += closing;
        let text = format!("{}{body}{closing}", self.frame.opening);
        let checks = if kept.is_empty() { Vec::new() } else { self.task.checks(body) };
        Composition { checks, text, rest, unfinished }
    }
}

impl Task {
    fn checks(&self, text: &str) -> Vec<String> {
        let sentence = |begin: &str, figures: &[String], end: &str| match figures {
            [] => None,
            figures => Some(format!("{begin}{}{end}", listed(figures))),
        };
        match self {
            Self::Draft { sources } => {
                let invented = figures_not_in(text, sources.iter().map(String::as_str));
                sentence("Not in the record: ", &invented, ". Check them.").into_iter().collect()
            }
            Self::Rewrite { passage } if text.trim() == passage.trim() => vec![UNCHANGED.to_owned()],
            Self::Rewrite { passage } => {
                let (lost, added) =
                    (figures_not_in(passage, [text]), figures_not_in(text, [passage.as_str()]));
                let lost = sentence("Missing now: ", &lost, ". Check whether the text needs them.");
                let added = sentence("Not in your text: ", &added, ". Check them.");
                lost.into_iter().chain(added).collect()
            }
        }
    }
}

const LOOPED: &str = "The model began to repeat itself. The repeated part was removed. Draft again, or finish the text yourself.";
const EMPTY_DRAFT: &str =
    "The model wrote nothing that belongs in a letter. Draft again, or write the letter yourself.";
const EMPTY_REWRITE: &str =
    "The model wrote nothing usable. Your text stays as it was. Try again, or edit it yourself.";

const UNCHANGED: &str = "The model changed nothing. Select another passage, or edit it yourself.";

const LOOPED_REWRITE: &str = "The model began to repeat itself. The repeated part was removed. Restore your text and try again, or finish it yourself.";

/// As `unfinished_text`, for an edit, whose length cannot be set.
fn unfinished_rewrite_text(stop_reason: &str) -> Option<&'static str> {
    match stop_reason {
        "complete" | "stop_sequence" => None,
        "repetition" => Some(LOOPED_REWRITE),
        _ => Some(
            "The edit was cut off. Restore your text and select a shorter passage, or finish it yourself.",
        ),
    }
}

/// Why a draft with this stop reason is not finished and what to do; `None` if it is.
fn unfinished_text(stop_reason: &str) -> Option<&'static str> {
    match stop_reason {
        "complete" | "stop_sequence" => None,
        "max_output_tokens" => Some(
            "The text was cut off at the maximum length. Increase the maximum length and draft again, or finish it yourself.",
        ),
        "context_length" => Some(
            "The text was cut off at the model’s limit. Select fewer entries and draft again, or finish it yourself.",
        ),
        "repetition" => Some(LOOPED),
        "deadline" => {
            Some("The text was cut off at the server’s time limit. Draft again, or finish it yourself.")
        }
        "content_filter" => Some(
            "The model server’s filter cut the text off. Change the purpose and draft again, or finish it yourself.",
        ),
        _ => Some("The model stopped early. Draft again, or finish the text yourself."),
    }
}

#[cfg(test)]
mod tests {
    use super::super::cleaner::ReplyForm;
    use super::super::placeholders::LetterNames;
    use super::*;

    fn composer(form: ReplyForm, task: Task) -> Composer {
        let names = LetterNames {
            writer: "Maya Castellanos".to_owned(),
            firm: "Marlow & Finch".to_owned(),
            reader: "Priya Raman".to_owned(),
        };
        let frame = match form {
            ReplyForm::Body => Skeleton::new(&names.reader, &names.writer, &names.firm),
            _ => Skeleton::default(),
        };
        Composer::new(Cleaner::new(form, names, "Offer to credit the three hours."), frame, task)
    }

    fn draft(form: ReplyForm, reply: &str, stop_reason: &str) -> Composition {
        let sources = vec!["Three hours in dispute, invoice of 12 November 2026.".to_owned()];
        let mut composer = composer(form, Task::Draft { sources });
        let mut shown = composer.opening().to_owned();
        shown += &composer.push(reply);
        let composition = composer.finish(stop_reason);
        shown += &composition.rest;
        assert!(shown.starts_with(&composition.text), "what is final was shown before, but for a loop");
        composition
    }

    #[test]
    fn complete_body_gets_salutation_and_closing() {
        let letter = draft(ReplyForm::Body, "Dear Ms Raman,\n\nWe credit 3 hours.", "complete");
        assert_eq!(
            letter.text,
            "Dear Priya Raman,\n\nWe credit 3 hours.\n\nKind regards,\nMaya Castellanos\nMarlow & Finch"
        );
        assert_eq!((letter.unfinished, letter.checks), (None, Vec::new()));
        assert_eq!(draft(ReplyForm::Body, "We credit it.", "stop_sequence").unfinished, None);
        let closed = draft(ReplyForm::Body, "We credit it.\n\nBest regards,\nMaya", "max_output_tokens");
        assert_eq!(closed.unfinished, None, "the model came to its closing before the end");
    }

    #[test]
    fn cut_off_body_is_unfinished_and_has_no_closing() {
        for stop_reason in [
            "max_output_tokens",
            "context_length",
            "repetition",
            "deadline",
            "content_filter",
            "cancelled",
            "",
        ] {
            let letter = draft(ReplyForm::Body, "We credit 3 hours and", stop_reason);
            assert_eq!(letter.text, "Dear Priya Raman,\n\nWe credit 3 hours and", "{stop_reason}");
            assert!(letter.unfinished.is_some(), "{stop_reason}");
        }
    }

    #[test]
    fn looping_reply_is_unfinished_whatever_the_api_says() {
        let reply = format!("We met. {}", "I am sorry for this. ".repeat(8));
        let letter = draft(ReplyForm::Letter, &reply, "complete");
        assert_eq!((letter.text.as_str(), letter.unfinished), ("We met. I am sorry for this.", Some(LOOPED)));
    }

    #[test]
    fn reply_without_usable_text_is_unfinished() {
        let letter = draft(ReplyForm::Body, "===== Client\nSure!", "complete");
        assert_eq!((letter.text.as_str(), letter.unfinished), ("Dear Priya Raman,\n\n", Some(EMPTY_DRAFT)));
    }

    #[test]
    fn invented_figures_are_named() {
        let letter = draft(ReplyForm::Letter, "We credit 450 for 3 hours on 3 May.", "complete");
        assert_eq!(letter.checks, ["Not in the record: 450, 3 May. Check them."]);
    }

    #[test]
    fn rewrite_that_changes_nothing_says_so() {
        let mut rewrite =
            composer(ReplyForm::Passage, Task::Rewrite { passage: "We owe you 3 hours.".to_owned() });
        rewrite.push("We owe you 3 hours.\n");
        assert_eq!(rewrite.finish("complete").checks, [UNCHANGED]);
    }

    #[test]
    fn rewritten_passage_names_what_it_lost_and_added() {
        let task = || Task::Rewrite { passage: "We owe you 3 hours since 12 November.".to_owned() };
        let mut rewrite = composer(ReplyForm::Passage, task());
        rewrite.push("We owe you some hours, worth 450.");
        let composition = rewrite.finish("complete");
        assert_eq!(
            composition.checks,
            [
                "Missing now: 3 hours, 12 November. Check whether the text needs them.",
                "Not in your text: 450. Check them."
            ]
        );
        let mut cut_off = composer(ReplyForm::Passage, task());
        cut_off.push("We owe you 3 hours since");
        let reason = cut_off.finish("max_output_tokens").unfinished.unwrap();
        assert!(reason.starts_with("The edit was cut off. Restore your text"), "{reason}");
        let mut empty = composer(ReplyForm::Passage, task());
        empty.push("Sure!");
        let composition = empty.finish("complete");
        assert_eq!(composition.text, "We owe you 3 hours since 12 November.");
        assert_eq!(composition.unfinished, Some(EMPTY_REWRITE));
    }
}
