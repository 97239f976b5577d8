//! The workload: house rules as instructions, meeting notes as input, a letter as the reply. Every side gets the same text.

use std::fmt;

pub const OUTPUT_TOKENS: u32 = 64;

/// About 220 tokens.
const RULES: &str = "You write letters for a consulting firm. Begin with the client's name and the date of the meeting. Keep every \
    figure, date and invoice number exactly as it is given in the notes; never round, never convert a currency, never add a fact that \
    is not there. State first what the client asked for, then what was agreed, then who does what and by when. Where something is \
    disputed, say calmly what each side holds, without taking a side and without promising a result. Write full sentences in plain \
    English, short paragraphs of two to four sentences, no lists, no headings and no abbreviations. Address the client as Mr. or Ms. \
    and never by the first name. Do not mention these rules, the notes, or that a machine helped. Where a date is missing, ask for it \
    in the last paragraph. Where an amount is missing, leave a gap of three dots. Thank the client once, at the end, and close with \
    the words Yours sincerely and the name of the consultant. The whole letter has between two hundred and three hundred words, and \
    it can be understood by somebody who was not at the meeting. ";

/// With the rules, about 820 tokens.
const HANDBOOK: &str = "On disputes: a dispute is a disagreement over an invoice, a delivery or a deadline that the client has put \
    in words, in writing or at a meeting. Name the invoice by its number and the amount by its currency. Say on which day the client \
    first raised the matter. If the firm has already answered, say when and in which form. Never call a client's view wrong; say that \
    the firm sees it differently, and why. If the firm was late, say so in one sentence, without excuses. If a payment is withheld, \
    say how much and until when. A dispute is never settled in a letter: the letter says who at the firm will call the client, and on \
    which day. On meetings: say where the meeting took place, who was there, and how long it lasted, if the notes have it. People are \
    named with their role at the first mention and by their surname later. If somebody joined by telephone, say so. What was shown on \
    a screen is described in words. What was said in confidence is left out altogether, even where the notes have it. On promises: a \
    promise has a person, a thing and a day. Write the three in one sentence. If the notes lack one of the three, put the promise into \
    the last paragraph as a question. Never widen a promise: a draft is not a report, a review is not an approval, and next week is \
    not Monday. If a promise depends on the client, say what the firm needs and by when. On money: amounts have their currency in front, \
    a comma between thousands and two decimals. Fees are given without tax, and the letter says so once. A discount is named with its \
    reason. A budget is named with its period. Never compare a client's fees with those of another client. On tone: the reader is busy \
    and may be annoyed. Be brief, be kind, be exact. Avoid words that blame, words that flatter and words that hurry. Write as one \
    person to another, on behalf of the firm. Prefer the active voice. Prefer the short word. Read each sentence once more and remove \
    what the reader does not need. On form: the letter starts with the place and the date on one line, then the address, then the \
    subject in one line without a full stop. Leave one empty line between paragraphs. Numbers up to twelve are written as words, \
    except in amounts, dates and invoice numbers. Months are written as words. Weekdays are named only where they help the reader. \
    Enclosures are listed in one sentence before the closing. The letter is never longer than one page. On records: every letter is \
    kept with the client's file, so it must make sense on its own in five years. Mention earlier letters by their date. Do not refer \
    to telephone calls without saying who called whom. Do not write anything that the firm would not want a court to read. ";

/// Which part of a prompt is shared with other requests, and how long the prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    SharedShort,
    SharedLong,
    UnsharedShort,
    UnsharedLong,
}

impl Scenario {
    pub const ALL: [Self; 4] = [Self::SharedShort, Self::SharedLong, Self::UnsharedShort, Self::UnsharedLong];

    pub fn shares_instructions(self) -> bool {
        matches!(self, Self::SharedShort | Self::SharedLong)
    }

    fn is_long(self) -> bool {
        matches!(self, Self::SharedLong | Self::UnsharedLong)
    }

    /// Returns the number of requests per round. If most of each prompt is cached, every client sends two requests; otherwise
    /// prompt processing takes so long that one each must do.
    pub fn requests(self, clients: usize) -> usize {
        match self {
            _ if clients == 1 => 3,
            Self::SharedShort => 2 * clients,
            _ => clients.max(8),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SharedShort => "shared instructions, short prompts",
            Self::SharedLong => "shared instructions, long prompts",
            Self::UnsharedShort => "unshared instructions, short prompts",
            Self::UnsharedLong => "unshared instructions, long prompts",
        })
    }
}

#[derive(Clone, Debug)]
pub struct Prompt {
    pub instructions: String,
    pub input: String,
}

/// Returns a scenario's prompt by number. No two numbers give the same input; if nothing is shared, they differ from the first
/// words on.
pub fn prompt(scenario: Scenario, number: usize) -> Prompt {
    let mut instructions =
        if scenario.shares_instructions() { String::new() } else { format!("Matter {number} of the year. ") };
    instructions.push_str(RULES);
    if scenario.is_long() {
        instructions.push_str(HANDBOOK);
    }
    let input = format!(
        "Meeting {number}: Mr. Ito, on 3 March, about invoice {}. He disputes EUR {},250.00 for the audit of the Osaka office, which he \
         says was never ordered. He wants a written answer by Friday. Ms. Ward promised a copy of the order. Write the whole letter.",
        1000 + number,
        1 + number % 90,
    );
    Prompt { instructions: instructions.trim_end().to_owned(), input }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_share_instructions_or_differ_from_the_start() {
        for scenario in Scenario::ALL {
            let (one, other) = (prompt(scenario, 7), prompt(scenario, 8));
            assert_ne!(one.input, other.input);
            let start = |prompt: &Prompt| prompt.instructions.chars().take(10).collect::<String>();
            assert_eq!(one.instructions == other.instructions, scenario.shares_instructions());
            assert_eq!(start(&one) == start(&other), scenario.shares_instructions());
        }
    }
}
