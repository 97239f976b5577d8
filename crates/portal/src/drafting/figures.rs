//! Numbers and dates in texts. A letter whose figures are not in the record, or a passage that lost some, is pointed out to the
//! writer. Pure.

use std::collections::HashSet;

/// Figures that a notice names.
const MAX_NAMED: usize = 8;

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
/// A month's name may be cut to this many letters.
const MIN_MONTH_CHARS: usize = 3;
/// Records say `three hours` where letters say `3 hours`, and the other way round.
const NUMBER_WORDS: [(&str, &str); 20] = [
    ("one", "1"),
    ("two", "2"),
    ("three", "3"),
    ("four", "4"),
    ("five", "5"),
    ("six", "6"),
    ("seven", "7"),
    ("eight", "8"),
    ("nine", "9"),
    ("ten", "10"),
    ("eleven", "11"),
    ("twelve", "12"),
    ("fifteen", "15"),
    ("twenty", "20"),
    ("thirty", "30"),
    ("forty", "40"),
    ("fifty", "50"),
    ("sixty", "60"),
    ("ninety", "90"),
    ("hundred", "100"),
];
/// Words after a number that are no unit.
const NO_UNITS: [&str; 20] = [
    "and", "are", "but", "for", "from", "has", "have", "into", "not", "now", "our", "that", "the", "this",
    "was", "were", "which", "will", "with", "you",
];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Value {
    /// Without thousands separators and trailing zeros.
    Number(String),
    /// Month and day.
    Day(usize, u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Figure {
    value: Value,
    /// As the text has it, with the unit of a number.
    text: String,
}

/// Figures of the text that none of the sources has, in the order of the text, each once.
pub(super) fn figures_not_in<'a>(text: &str, sources: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut known = HashSet::new();
    for source in sources {
        known.extend(figures(source).into_iter().map(|figure| figure.value));
        known.extend(number_words(source));
    }
    let mut missing = Vec::new();
    for Figure { value, text } in figures(text) {
        if known.insert(value) {
            missing.push(text);
        }
    }
    missing
}

/// `450, 3 May and 2 more`
pub(super) fn listed(figures: &[String]) -> String {
    let named = figures.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join(", ");
    match figures.len().saturating_sub(MAX_NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token<'a> {
    text: &'a str,
    /// The character before it, for a currency sign.
    before: Option<char>,
}

/// Words, and numbers with their inner separators: `1,846.50`, `2026-11-12`, `15:30`.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let chars: Vec<(usize, char)> = text.char_indices().collect();
    let (mut tokens, mut index) = (Vec::new(), 0);
    while let Some((start, first)) = chars.get(index).copied() {
        let from = index;
        if first.is_ascii_digit() {
            while let Some((_, c)) = chars.get(index) {
                let next_is_digit = chars.get(index + 1).is_some_and(|(_, next)| next.is_ascii_digit());
                match c {
                    c if c.is_ascii_digit() => index += 1,
                    '.' | ',' | '-' | '/' | ':' if next_is_digit => index += 1,
                    _ => break,
                }
            }
        } else if first.is_alphabetic() {
            while chars.get(index).is_some_and(|(_, c)| c.is_alphabetic()) {
                index += 1;
            }
        } else {
            index += 1;
            continue;
        }
        let end = chars.get(index).map_or(text.len(), |(end, _)| *end);
        let before = from.checked_sub(1).and_then(|before| chars.get(before)).map(|(_, c)| *c);
        tokens.push(Token { text: &text[start..end], before });
    }
    tokens
}

fn figures(text: &str) -> Vec<Figure> {
    let tokens = tokens(text);
    let (mut figures, mut index) = (Vec::new(), 0);
    while let Some(token) = tokens.get(index) {
        let rest = &tokens[index..];
        if let Some((day, length)) = day(rest) {
            let text = rest[..length].iter().map(|token| token.text).collect::<Vec<_>>().join(" ");
            figures.push(Figure { value: day, text });
            index += length;
            continue;
        }
        index += 1;
        if !token.text.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        if let Some([year, month, day]) = iso_date(token.text) {
            figures.push(Figure { value: Value::Number(year.to_string()), text: year.to_string() });
            let month_index = usize::try_from(month).unwrap_or_default();
            figures.push(Figure { value: Value::Day(month_index, day), text: token.text.to_owned() });
            continue;
        }
        let sign = token.before.filter(|c| ['$', '€', '£'].contains(c)).map(String::from).unwrap_or_default();
        let unit = tokens.get(index).map(|unit| unit.text).filter(|unit| sign.is_empty() && is_unit(unit));
        let unit = unit.map(|unit| format!(" {unit}")).unwrap_or_default();
        let text = format!("{sign}{}{unit}", token.text);
        figures.push(Figure { value: Value::Number(normalized(token.text)), text });
    }
    figures
}

/// `12 November`, `12th of November` or `November 12` at the beginning, with its number of tokens.
fn day(tokens: &[Token<'_>]) -> Option<(Value, usize)> {
    let text = |index: usize| tokens.get(index).map(|token| token.text);
    if let Some(month) = text(0).and_then(month) {
        return Some((Value::Day(month, day_number(text(1)?)?), 2));
    }
    let number = day_number(text(0)?)?;
    let mut next = 1;
    for optional in [&["st", "nd", "rd", "th"][..], &["of"][..]] {
        next += usize::from(text(next).is_some_and(|text| optional.contains(&text)));
    }
    Some((Value::Day(month(text(next)?)?, number), next + 1))
}

fn day_number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|day| (1..=31).contains(day) && text.len() <= 2)
}

/// 1 for January. Names begin with a capital letter, because `may` and `march` are words, too.
fn month(text: &str) -> Option<usize> {
    let name = text.to_lowercase();
    let is_month = text.starts_with(char::is_uppercase) && name.len() >= MIN_MONTH_CHARS;
    MONTHS.iter().position(|month| is_month && month.starts_with(&name)).map(|index| index + 1)
}

fn iso_date(text: &str) -> Option<[u32; 3]> {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts.as_slice() else { return None };
    if (year.len(), month.len(), day.len()) != (4, 2, 2) {
        return None;
    }
    Some([year.parse().ok()?, month.parse().ok()?, day.parse().ok()?])
}

fn is_unit(word: &str) -> bool {
    word.len() >= 3 && word.chars().all(char::is_lowercase) && !NO_UNITS.contains(&word)
}

/// `1,846.50` is `1846.5`.
fn normalized(number: &str) -> String {
    let plain = number.replace(',', "");
    let plain = plain.trim_start_matches('0');
    let plain = match plain.contains('.') && !plain.contains([':', '/', '-']) {
        true => plain.trim_end_matches('0').trim_end_matches('.'),
        false => plain,
    };
    if plain.is_empty() { "0".to_owned() } else { plain.to_owned() }
}

fn number_words(text: &str) -> impl Iterator<Item = Value> {
    let words: HashSet<String> = tokens(text).iter().map(|token| token.text.to_lowercase()).collect();
    let is_there = move |(word, _): &(&str, &str)| words.contains(*word);
    NUMBER_WORDS.into_iter().filter(is_there).map(|(_, number)| Value::Number(number.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn figures_that_no_source_has_are_named() {
        let letter = "We credit $450 for 3 hours on 3 May, and 1,846.50 for the invoice of 12 November 2026.";
        let record = ["Three hours in dispute.", "Invoice of November 12th: 1846.5, dated 2026-11-12"];
        assert_eq!(figures_not_in(letter, record), ["$450", "3 May"]);
    }

    #[test]
    fn same_figures_in_other_forms_are_known() {
        for (text, source) in [
            ("12 November", "2026-11-12"),
            ("November 12", "on the 12th of November"),
            ("12 Nov", "12 November"),
            ("3 hours", "three hours"),
            ("1,200", "1200.00"),
            ("14 %", "off by 14%"),
            ("at 15:30", "15:30 in Boston"),
            ("007", "7"),
        ] {
            assert_eq!(figures_not_in(text, [source]), Vec::<String>::new(), "{text} in {source}");
        }
    }

    #[test]
    fn lost_figures_are_named_with_their_units() {
        let missing = figures_not_in("We owe you 3 hours since 12 November.", ["We owe you some hours."]);
        assert_eq!(missing, ["3 hours", "12 November"]);
        assert_eq!(listed(&missing), "3 hours, 12 November");
        let many: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        assert!(listed(&many).ends_with(", 7 and 2 more"));
    }

    #[test]
    fn months_in_lower_case_are_words() {
        assert_eq!(figures_not_in("You 3 may march.", [""]), ["3 may"]);
    }

    proptest! {
        #[test]
        fn every_text_has_all_of_its_own_figures(text in "\\PC{0,120}", other in "\\PC{0,40}") {
            prop_assert_eq!(figures_not_in(&text, [text.as_str(), &other]), Vec::<String>::new());
        }

        #[test]
        fn invented_number_is_always_found(number in 1_000_u32..9_999, before in "[a-z ]{0,30}", after in "[a-z ]{0,30}") {
            let text = format!("{before} {number}; {after}");
            let found = figures_not_in(&text, [before.as_str(), &after]);
            prop_assert_eq!(found.len(), 1);
            prop_assert!(found[0].starts_with(&number.to_string()));
        }

        #[test]
        fn more_sources_never_name_more(text in "[a-z0-9 .,]{0,80}", source in "[a-z0-9 .,]{0,80}", more in "[a-z0-9 .,]{0,80}") {
            let few = figures_not_in(&text, [source.as_str()]);
            let many = figures_not_in(&text, [source.as_str(), &more]);
            prop_assert!(many.len() <= few.len());
        }
    }
}
