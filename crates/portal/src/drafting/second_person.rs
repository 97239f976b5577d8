//! Notes in the second person: what they say about the client's contact becomes `you`, as in a letter to that person. Small models
//! copy `she` and `he` from the notes into the letter, and write right letters if the notes already say `you`.
//!
//! A rule of thumb for English, and a cautious one: a pronoun stays if it may mean another person. Figures, other names,
//! punctuation and line breaks stay byte for byte.

use super::english_words::{
    ADVERBS, AFTER_OBJECT, AUXILIARIES, CLAUSE_WORDS, MONTH_NAMES, NO_LAST_NAMES, PREPOSITIONS, TITLES,
    VERBS_TO_SOMEBODY, WORD_NAMES, has, is_capitalized, is_english, is_plain_verb, second_person_verb,
    tokens,
};

/// The text for a reader who is the contact. Stays the same if it does not name the contact, or is not in English.
pub(super) fn second_person(text: &str, contact: &str) -> String {
    let names: Vec<&str> =
        contact.split_whitespace().filter(|word| !has(TITLES, word.trim_end_matches('.'))).collect();
    let (words, full_name) = (tokens(text), names.join(" "));
    if names.is_empty() || !is_english(&words) {
        return text.to_owned();
    }
    let first_and_last = names.first().into_iter().chain(names.last());
    // Not an initial.
    let lone = first_and_last.filter(|name| name.chars().count() > 1 && !name.ends_with('.'));
    let lone_names = lone.map(|name| tokens(name)).collect();
    Pass { tokens: words, full_name: tokens(&full_name), lone_names, ..Pass::default() }.run()
}

/// Which next word is a verb whose subject is `you`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Agreement {
    #[default]
    None,
    /// One that is surely a verb.
    PlainVerb,
    AnyVerb,
}

#[derive(Debug, Default)]
struct Pass<'a> {
    tokens: Vec<&'a str>,
    full_name: Vec<&'a str>,
    /// The first and the last name.
    lone_names: Vec<Vec<&'a str>>,
    output: String,
    has_mention: bool,
    /// Whether a pronoun means the contact: no other person was named in this sentence, or was the subject of the one before.
    is_current: bool,
    /// Whether the sentence is about another person, so that a pronoun of the next one may mean that person.
    is_about_other: bool,
    /// Whether the sentence begins with `I` or `We`.
    is_about_writer: bool,
    /// From the first pronoun after the contact.
    is_female: Option<bool>,
    agreement: Agreement,
    /// Whether `you` is the subject of this clause.
    is_subject: bool,
}

struct Mention {
    tokens: usize,
    is_possessive: bool,
}

impl Pass<'_> {
    fn token(&self, index: usize) -> &str {
        self.tokens.get(index).copied().unwrap_or_default()
    }

    fn before(&self, index: usize, distance: usize) -> &str {
        index.checked_sub(distance).map_or("", |index| self.token(index))
    }

    /// The next word, if only a space is between. In lower case.
    fn next_word(&self, index: usize) -> String {
        if self.token(index + 1) == " " { self.token(index + 2).to_lowercase() } else { String::new() }
    }

    fn previous_word(&self, index: usize) -> &str {
        if self.before(index, 1) == " " { self.before(index, 2) } else { "" }
    }

    fn starts_sentence(&self, index: usize) -> bool {
        let gap = self.before(index, 1);
        // A list's dash may be the first token.
        index <= 1 || gap.contains('\n') || (ends_sentence(gap) && !has(TITLES, self.before(index, 2)))
    }

    fn run(mut self) -> String {
        let mut index = 0;
        while index < self.tokens.len() {
            let token = self.tokens[index];
            if !token.starts_with(char::is_alphanumeric) {
                if token.contains([';', ':', '\n']) || ends_sentence(token) {
                    self.is_subject = false;
                }
                if token != " " {
                    self.agreement = Agreement::None;
                }
                self.output.push_str(token);
            } else if let Some(mention) = self.mention(index) {
                self.replace_mention(index, &mention);
                index += mention.tokens;
                continue;
            } else {
                let word = token.to_lowercase().replace('’', "'");
                if self.starts_sentence(index) {
                    self.is_current = self.has_mention && !self.is_about_other;
                    self.is_about_other = false;
                    self.is_about_writer = ["i", "we"].contains(&word.as_str());
                }
                if self.is_other_person(index) {
                    self.is_current = false;
                    self.is_about_other |= self.starts_sentence(index) || self.is_about_writer;
                }
                self.is_current |= word == "you" && self.has_mention;
                let is_replaced = self.is_current && self.replace_pronoun(index, &word);
                if !is_replaced {
                    let agreed = self.agreed(index, &word);
                    self.output.push_str(agreed.as_deref().unwrap_or(token));
                }
            }
            index += 1;
        }
        self.output
    }

    fn mention(&self, index: usize) -> Option<Mention> {
        let has_title = has(TITLES, self.token(index)) && [" ", ". "].contains(&self.token(index + 1));
        let start = if has_title { index + 2 } else { index };
        let names = std::iter::once(&self.full_name).chain(&self.lone_names);
        names.enumerate().find_map(|(number, name)| {
            let (last_part, parts) = name.split_last()?;
            let end = start + name.len();
            // A line may end within the name.
            let is_same = |(part, token): (&&str, &&str)| part == token || (*part == " " && *token == "\n");
            if end > self.tokens.len() || !parts.iter().zip(&self.tokens[start..]).all(is_same) {
                return None;
            }
            let suffix = self.token(end - 1).strip_prefix(*last_part)?;
            let is_possessive = ["'s", "’s"].contains(&suffix);
            let is_whole = (suffix.is_empty() || is_possessive) && !self.token(end).starts_with('-');
            let is_lone = number > 0 || name.len() == 1;
            if !is_whole || (is_lone && !self.is_lone_mention(name[0], start, end, has_title)) {
                return None;
            }
            Some(Mention { tokens: end - index, is_possessive })
        })
    }

    /// Whether a first or a last name alone means the contact, and is not a part of another name or a word.
    fn is_lone_mention(&self, name: &str, start: usize, end: usize, has_title: bool) -> bool {
        let is_name = |word: &str| is_capitalized(word) && word != "I";
        let after = if self.token(end) == " " { self.token(end + 1) } else { "" };
        if is_name(after) && !self.token(end - 1).contains(['\'', '’']) {
            return false;
        }
        if has_title {
            return true;
        }
        // `Met Priya` begins a sentence; `Peter Raman` is somebody else.
        let is_first_name = self.full_name.first().is_some_and(|first| *first == name);
        let begins_after_word = is_first_name && start >= 2 && self.starts_sentence(start - 2);
        let is_part = self.before(start, 1).ends_with('-')
            || (is_name(self.previous_word(start)) && !begins_after_word);
        let is_word = has(MONTH_NAMES, name) || (has(WORD_NAMES, name) && self.starts_sentence(start));
        !is_part && !is_word
    }

    /// A title with a name, or two capitalised words.
    fn is_other_person(&self, index: usize) -> bool {
        let (word, gap, next) = (self.token(index), self.token(index + 1), self.token(index + 2));
        if has(TITLES, word) {
            return [" ", ". "].contains(&gap) && is_capitalized(next);
        }
        let is_name = |word: &str| is_capitalized(word) && word.chars().any(char::is_lowercase);
        // `Met Priya` at the start of a sentence.
        let is_contact = self.full_name.first().is_some_and(|first| *first == next);
        is_name(word) && gap == " " && is_name(next) && !has(NO_LAST_NAMES, next) && !is_contact
    }

    fn push(&mut self, word: &str, is_capital: bool) {
        let (first, rest) = word.split_at(1);
        self.output.push_str(&if is_capital { first.to_uppercase() } else { first.to_owned() });
        self.output.push_str(rest);
    }

    fn replace_mention(&mut self, index: usize, mention: &Mention) {
        let previous = self.previous_word(index).to_lowercase();
        let begins = self.starts_sentence(index);
        let begins_clause = begins
            || previous.is_empty()
            || has(CLAUSE_WORDS, &previous)
            || ["and", "but", "so", "then"].contains(&previous.as_str());
        self.agreement =
            if mention.is_possessive || has(PREPOSITIONS, &previous) || has(VERBS_TO_SOMEBODY, &previous) {
                Agreement::None
            } else if begins_clause {
                Agreement::AnyVerb
            } else {
                Agreement::PlainVerb
            };
        self.is_subject |= self.agreement != Agreement::None;
        if self.tokens[index..index + mention.tokens].contains(&"\n") {
            self.output.push('\n');
        }
        self.push(if mention.is_possessive { "your" } else { "you" }, begins);
        (self.has_mention, self.is_current) = (true, true);
        if begins {
            (self.is_about_other, self.is_about_writer) = (false, false);
        }
    }

    fn replace_pronoun(&mut self, index: usize, word: &str) -> bool {
        let next = self.next_word(index);
        let new = match word {
            "she" | "he" | "him" => "you",
            "she's" | "he's" if ["been", "got", "had"].contains(&next.as_str()) => "you've",
            "she's" | "he's" => "you're",
            "she'll" | "he'll" => "you'll",
            "she'd" | "he'd" => "you'd",
            "herself" | "himself" => "yourself",
            "hers" => "yours",
            "his" if next.is_empty() => "yours",
            "her" if self.is_object(index, &next) => "you",
            "her" | "his" => "your",
            _ => return false,
        };
        let is_female = word.starts_with("she") || word.starts_with("her");
        if *self.is_female.get_or_insert(is_female) != is_female {
            return false;
        }
        let is_subject = word.starts_with("she") || (word.starts_with("he") && !word.starts_with("her"));
        self.agreement = if ["she", "he"].contains(&word) { Agreement::AnyVerb } else { Agreement::None };
        self.is_subject |= is_subject;
        let is_capital = is_capitalized(self.token(index));
        self.push(new, is_capital);
        true
    }

    /// `told her that`, `gave her 3 days`; not `her own staff`.
    fn is_object(&self, index: usize, next: &str) -> bool {
        let is_figure_or_name =
            next.starts_with(|c: char| c.is_ascii_digit()) || is_capitalized(self.token(index + 2));
        let follows_verb = has(VERBS_TO_SOMEBODY, &self.previous_word(index).to_lowercase());
        next.is_empty() || has(AFTER_OBJECT, next) || (follows_verb && is_figure_or_name)
    }

    /// The verb that goes with `you`, if this word is one.
    fn agreed(&mut self, index: usize, word: &str) -> Option<String> {
        let next = self.next_word(index);
        if self.agreement != Agreement::None {
            if has(ADVERBS, word) || word.ends_with("ly") {
                return None;
            }
            let is_any = std::mem::take(&mut self.agreement) == Agreement::AnyVerb;
            let is_verb = (is_any || is_plain_verb(word)) && !is_capitalized(self.token(index));
            if let Some(verb) = second_person_verb(word).filter(|_| is_verb) {
                return Some(verb);
            }
        }
        if ["and", "but"].contains(&word) && self.is_subject {
            self.agreement = Agreement::PlainVerb;
        }
        let is_because_of = word == "because" && next == "of";
        let is_it_subject = word == "it" && (has(AUXILIARIES, &next) || second_person_verb(&next).is_some());
        if (has(CLAUSE_WORDS, word) && !is_because_of) || is_it_subject {
            self.is_subject = false;
        }
        None
    }
}

/// Not the full stop of a number.
fn ends_sentence(gap: &str) -> bool {
    gap.contains(['.', '!', '?']) && gap.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn contact_becomes_you_and_verbs_agree() {
        for (text, expected) in [
            ("Met Priya Raman at the bakery about it.", "Met you at the bakery about it."),
            (
                "Priya Raman disputes it and wants it back. She was friendly about it and is annoyed.",
                "You dispute it and want it back. You were friendly about it and are annoyed.",
            ),
            (
                "Priya called. She does not pay, but has told her own staff that she tries.",
                "You called. You do not pay, but have told your own staff that you try.",
            ),
            (
                "Ms. Raman likes it but wants a trial; she also says that it has faults and is dear.",
                "You like it but want a trial; you also say that it has faults and is dear.",
            ),
            (
                "A call in which Ms Raman's predecessor asked for it. I told her not to, and owe her $850.",
                "A call in which your predecessor asked for it. I told you not to, and owe you $850.",
            ),
            (
                "Raman’s invoice: she's been charged. She signs that herself, the choice is hers.",
                "Your invoice: you've been charged. You sign that yourself, the choice is yours.",
            ),
            (
                "Call with Priya. He says the file is his. I gave him his 34 papers.",
                "Call with you. You say the file is yours. I gave you your 34 papers.",
            ),
            ("Priya\nRaman has it.\n- she and I agree", "\nYou have it.\n- you and I agree"),
            ("I told Priya costs are high, and the rest.", "I told you costs are high, and the rest."),
            (
                "Priya has the receipts and statements and pays 1.5 percent and worries.",
                "You have the receipts and statements and pay 1.5 percent and worry.",
            ),
        ] {
            // `he` alone does not show that a text is English.
            let text = format!("{text} The end and that.");
            assert_eq!(second_person(&text, "Dr. Priya Raman"), format!("{expected} The end and that."));
        }
    }

    #[test]
    fn pronouns_that_may_mean_somebody_else_stay() {
        for (text, expected) in [
            (
                "Priya sees her lawyer, Ms Pell, and she pays. She must not sign.",
                "You see your lawyer, Ms Pell, and she pays. You must not sign.",
            ),
            (
                "Priya called. I asked Ms Quinn. She will know. It is open. She waits.",
                "You called. I asked Ms Quinn. She will know. It is open. You wait.",
            ),
            (
                "Priya called. Dana Fox takes over. She starts on Monday. If you ask, she comes.",
                "You called. Dana Fox takes over. She starts on Monday. If you ask, you come.",
            ),
            ("Priya says she gives him the key to his flat.", "You say you give him the key to his flat."),
            ("Priya chose Carrow Estates. She signs.", "You chose Carrow Estates. You sign."),
            ("She met Peter Raman and Priya Patel.", "She met Peter Raman and Priya Patel."),
            ("She met the owner of Raman-Hale.", "She met the owner of Raman-Hale."),
        ] {
            assert_eq!(second_person(text, "Priya Raman"), expected);
        }
    }

    #[test]
    fn text_without_the_contact_or_in_another_language_stays() {
        for (text, contact) in [
            ("She disputes it and wants the $420 back.", "Priya Raman"),
            ("Gespräch mit Priya Raman. Sie will das nicht.", "Priya Raman"),
            ("She pays on 4 May. Will the rest come by June?", "Will May"),
            ("She disputes it.", ""),
            ("She disputes it.", "Dr."),
        ] {
            assert_eq!(second_person(text, contact), text);
        }
    }

    /// Words that may be replaced, and what they become.
    const REPLACED: &str = "priya raman ms priya's she her herself disputes dispute wants want has have is are bills bill you your \
        yourself";
    const PARTS: &str = "Priya Raman |Ms Raman |Priya's |She |she |her |herself |disputes |wants |has |is |and |but |that |Mr Pell |\
        Dana Fox |$1,860 |4 May 2026, |2031A |the invoice|bills |. |; |\n|\n\n- |6:45 am |wörds 密 ";

    proptest! {
        #[test]
        fn all_other_words_and_figures_stay_in_order(
            parts in proptest::collection::vec(proptest::sample::select(PARTS.split('|').collect::<Vec<_>>()), 0..30),
        ) {
            let others = |text: &str| -> String {
                let is_other = |word: &&str| !has(REPLACED, &word.to_lowercase()) && !word.trim().is_empty();
                tokens(text).into_iter().filter(is_other).collect::<String>().replace(' ', "")
            };
            let text = parts.concat();
            let changed = second_person(&text, "Priya Raman");
            prop_assert_eq!(others(&text), others(&changed), "{}", changed);
        }

        #[test]
        fn figures_marks_and_line_breaks_of_any_text_stay(text in "(\\PC|\n|Priya Raman|she | the ){0,40}") {
            let is_fixed = |c: &char| c.is_numeric() || (!['.', '\'', '’'].contains(c) && c.is_ascii_punctuation()) || *c == '\n';
            let fixed = |text: &str| text.chars().filter(is_fixed).collect::<String>();
            prop_assert_eq!(fixed(&second_person(&text, "Priya Raman")), fixed(&text));
        }
    }
}
