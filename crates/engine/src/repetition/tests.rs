//! The detector on texts that loop and on texts that do not, both as words and as pieces like a tokenizer's.

use super::*;
use proptest::prelude::*;

/// Hashes of the words (FNV-1a).
fn words(text: &str) -> Vec<u32> {
    text.split_whitespace().map(hash).collect()
}

fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Pieces as small vocabularies have them: up to four letters with the space before them, up to four equal signs, single
/// digits.
fn pieces(text: &str) -> Vec<u32> {
    let mut pieces: Vec<String> = Vec::new();
    for character in text.chars() {
        let joins = pieces.last().is_some_and(|piece| {
            let last = piece.chars().last();
            let has_room = piece.chars().count() < 4;
            let continues_word =
                character.is_alphabetic() && last.is_some_and(|last| last == ' ' || last.is_alphabetic());
            let continues_rule = !character.is_alphanumeric() && character != ' ' && last == Some(character);
            has_room && (continues_word || continues_rule)
        });
        match pieces.last_mut() {
            Some(piece) if joins => piece.push(character),
            _ => pieces.push(character.to_string()),
        }
    }
    pieces.iter().map(|piece| hash(piece)).collect()
}

/// How many items it takes until the detector fires.
fn fires_after(items: &[u32]) -> Option<usize> {
    let mut detector = RepetitionDetector::new(items.len());
    items.iter().position(|item| detector.push(*item)).map(|index| index + 1)
}

/// Numbers below `bound` that look random (a linear congruential generator).
fn numbers(seed: u32, bound: u32) -> impl Iterator<Item = u32> {
    let step = |number: &u32| Some(number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    std::iter::successors(step(&seed), step).map(move |number| (number >> 8) % bound)
}

const SENTENCE: &str = "The client has asked the firm to review the contract before the end of next month. ";

const PARAGRAPH: &str = "Thank you for meeting us on 3 March. We agreed that the invoice of 14 January stays open until the \
    audit is done, that Ruth Adeyemi sends the corrected figures by 20 March, and that the second half of the fee falls \
    due thirty days after that. Please tell us by Friday if you remember it differently, so that we can put the minutes \
    right before they go to the board. ";

const VERSES: [&str; 4] = [
    "The harbour wakes before the town,\nthe gulls are loud above the quay,\nand men with lanterns, up and down,\nunload \
     the silver of the sea.\n",
    "A widow counts her coins at noon,\nthe baker's boy runs through the rain,\nsome sailor hums a foreign tune\nand no \
     one asks him for his name.\n",
    "By dusk the taverns fill with light,\nold quarrels settle into song,\nthe lamps burn yellow half the night\nand \
     every story grows too long.\n",
    "When winter locks the channel fast\nand ropes are stiff with frozen spray,\nthey speak of summers that have \
     passed\nas if they left but yesterday.\n",
];

fn ordinary_texts() -> Vec<(&'static str, String)> {
    let refrain = "O carry me home on the evening tide,\nO carry me home to the other side.\n\n";
    let figures = |row: u32| {
        let mut figures = numbers(row, 10_000);
        let mut figure = move || figures.next().unwrap();
        let (whole, part) = (figure(), figure() % 100);
        format!("| 2026-{:02} | {whole}.{part:02} | {}.50 | {} |\n", row % 12 + 1, figure(), figure())
    };
    let names = "Okafor Lindqvist Moreau Tanaka Adeyemi Brandt Castellanos Dufresne Eriksen Fontana Grigoriev Haddad \
        Ivanova Jansen Kowalski Larsson Mbeki Novak Oyelaran Petrov";
    let streets = ["Mill Lane", "Station Road", "Kingsway", "Harbour Street", "Church Hill"];
    let per_name = |line: &dyn Fn(usize, &str) -> String| -> String {
        names.split(' ').enumerate().map(|(index, name)| line(index, name)).collect()
    };
    let form_row = "Name: ____________ Date: ____________ Signature: ____________\n";
    vec![
        ("a letter", PARAGRAPH.to_owned()),
        ("a text quoted once more", format!("{PARAGRAPH}{}As I said: {PARAGRAPH}{}", VERSES[0], VERSES[0])),
        ("a poem with a refrain", VERSES.map(|verse| format!("{verse}\n{refrain}")).concat()),
        ("a refrain sung twice", format!("{}{refrain}{refrain}{}{refrain}{refrain}", VERSES[0], VERSES[1])),
        ("a table of figures", (0..60).map(figures).collect()),
        (
            "a table whose cells are empty",
            format!("| Name | Date | Amount |\n|---|---|---|\n{}", "|  |  |  |\n".repeat(6)),
        ),
        ("rows of a form", form_row.repeat(5)),
        ("numbered rows of a form", (1..=20).map(|row| format!("{row}. {form_row}")).collect()),
        (
            "addresses",
            per_name(&|index, name| {
                format!(
                    "Mr {name}\n{} {}\nLondon NW{} {}AB\n\n",
                    7 * index + 3,
                    streets[index % 5],
                    index % 9,
                    index % 7
                )
            }),
        ),
        ("a list", per_name(&|index, name| format!("{}. {name} sends the corrected figures.\n", index + 1))),
        (
            "code with similar lines",
            per_name(&|index, name| format!("    registry.insert(\"{name}\", Handler::new({index}));\n")),
        ),
        (
            "records",
            per_name(&|index, name| {
                format!(
                    "{{\"name\": \"{name}\", \"amount\": {}, \"currency\": \"EUR\"}},\n",
                    137 * index + 11
                )
            }),
        ),
        ("rules", format!("{}\nTotal\n{}\n{}", "=".repeat(100), "-".repeat(100), PARAGRAPH)),
        ("digits of a long number", numbers(5, 10).take(2_000).map(|digit| digit.to_string()).collect()),
        ("a recurring decimal", format!("1/7 is 0.{} and so on. {PARAGRAPH}", "142857".repeat(10))),
    ]
}

#[test]
fn ordinary_texts_are_no_loops() {
    for (name, text) in ordinary_texts() {
        assert_eq!(fires_after(&words(&text)), None, "words of {name}");
        assert_eq!(fires_after(&pieces(&text)), None, "pieces of {name}");
    }
    assert_eq!(fires_after(&[7; 100]), None, "a rule of single signs");
}

fn loops() -> Vec<(&'static str, String)> {
    let phrases = ["who is a contractor ", "who has a client ", "who works with a contractor "];
    let near_loop: String = numbers(3, 3).take(200).map(|phrase| phrases[phrase as usize]).collect();
    vec![
        ("one word", "no ".repeat(300)),
        ("two words", "yes no ".repeat(150)),
        ("a sentence", SENTENCE.repeat(12)),
        ("a sentence after a letter", format!("{PARAGRAPH}{}", SENTENCE.repeat(12))),
        ("a paragraph", PARAGRAPH.repeat(6)),
        ("a list of one item", "- The client pays the fee.\n".repeat(40)),
        (
            "a chain of clauses",
            format!("Mr Okafor is a client {}", "who is a contractor who has a client ".repeat(40)),
        ),
        ("a chain of clauses in changing order", format!("Mr Okafor is a client {near_loop}")),
    ]
}

#[test]
fn loops_and_near_loops_are_found() {
    for (name, text) in loops() {
        assert!(fires_after(&words(&text)).is_some(), "words of {name}");
        assert!(fires_after(&pieces(&text)).is_some(), "pieces of {name}");
    }
}

#[test]
fn sentence_is_a_loop_from_its_sixth_copy_on() {
    let sentence = words(SENTENCE);
    let fired = fires_after(&words(&SENTENCE.repeat(20))).unwrap();
    assert!(fired > 5 * sentence.len() && fired <= 6 * sentence.len(), "{fired}");
    assert_eq!(fires_after(&words(&SENTENCE.repeat(5))), None);
}

#[test]
fn short_clause_with_few_words_is_a_loop_sooner_than_a_rule_of_signs() {
    let clause = words("who is a contractor who has a client");
    let fired = fires_after(&clause.repeat(20));
    assert_eq!(fired, Some(clause.len() + MIN_SENTENCE_LOOP_ITEMS));
    assert_eq!(fires_after(&[7; 300]), Some(1 + MIN_LOOP_ITEMS));
}

#[test]
fn text_before_a_loop_does_not_hide_it() {
    let before: Vec<u32> = numbers(9, 30_000).take(3_000).collect();
    let items: Vec<u32> = before.iter().copied().chain(words(&SENTENCE.repeat(8))).collect();
    assert!(fires_after(&items).is_some_and(|fired| fired > before.len()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_exact_loop_up_to_the_longest_period_is_found_in_time(
        before in proptest::collection::vec(0_u32..50, 0..100),
        part in proptest::collection::vec(0_u32..50, 1..=MAX_PERIOD),
    ) {
        let max_items = part.len() + MIN_LOOP_ITEMS.max(min_copies(part.len()) * part.len());
        let looped = part.iter().cycle().take(max_items);
        let items: Vec<u32> = before.iter().chain(looped).copied().collect();
        let mut detector = RepetitionDetector::new(items.len());
        prop_assert!(items.iter().any(|item| detector.push(*item)));
    }

    #[test]
    fn items_in_random_order_are_no_loop(items in proptest::collection::vec(0_u32..1_000, 0..1_500)) {
        prop_assert_eq!(fires_after(&items), None);
    }

    #[test]
    fn passage_quoted_once_more_is_no_loop(part in proptest::collection::vec(0_u32..10_000, 1..400)) {
        let twice: Vec<u32> = part.iter().chain(&part).copied().collect();
        prop_assert_eq!(fires_after(&twice), None);
    }

    #[test]
    fn capacity_changes_nothing_for_replies_that_fit(
        part in proptest::collection::vec(0_u32..6, 1..60), copies in 1_usize..8,
    ) {
        let items = part.repeat(copies);
        let mut exact = RepetitionDetector::new(items.len());
        let mut larger = RepetitionDetector::new(10_000);
        for item in items {
            prop_assert_eq!(exact.push(item), larger.push(item));
        }
    }

    #[test]
    fn more_items_than_announced_are_taken(max_items in 0_usize..20) {
        let mut detector = RepetitionDetector::new(max_items);
        prop_assert!((0..1_000).any(|_| detector.push(1)));
    }
}
