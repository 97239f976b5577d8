//! What clients are found by: the words of their name, contact, e-mail address and number, without case and accents, so that
//! "cafe" finds "Café". A search matches the beginnings of words by ranges, which an index answers.

use crate::db::{Conn, Statement, query};
use chancery_domain::{Client, ClientId, ClientName, ContactFacts, PersonId};
use std::collections::BTreeSet;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Words of one search. Further ones are left out.
pub(crate) const MAX_WORDS_SEARCHED: usize = 8;

/// Letters of one word; PostgreSQL's indexes take some 2,700 bytes. Longer ones are found by their beginnings.
const MAX_WORD_CHARS: usize = 64;

/// A hostile name may fall apart into many more words than it has letters.
const MAX_WORDS_PER_CLIENT: usize = 300;

/// Letters by which names are sorted, for the same indexes.
const MAX_SORT_NAME_CHARS: usize = 200;

/// No word has this letter, and it comes after all that they have.
const AFTER_ALL_LETTERS: char = char::MAX;

/// Rows that one statement adds.
const MAX_ROWS_AT_ONCE: usize = 2000;

/// Upper and then lower case is what comes nearest to comparing without case: ß and ss, ς and σ are one.
fn folded(text: &str) -> impl Iterator<Item = char> {
    text.nfkd()
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
        .filter(|character| !is_combining_mark(*character))
}

/// What names are sorted by, the same in both databases.
pub(crate) fn sort_name(name: &ClientName) -> String {
    folded(name.as_str()).take(MAX_SORT_NAME_CHARS).collect()
}

fn words_in(text: &str) -> Vec<String> {
    let folded: String = folded(text).collect();
    let words = folded.split(|character: char| !character.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(|word| word.chars().take(MAX_WORD_CHARS).collect()).collect()
}

/// All that a client is found by.
pub(crate) fn words_of(id: ClientId, name: &ClientName, facts: &ContactFacts) -> BTreeSet<String> {
    let texts = [&id.to_string(), name.as_str(), facts.contact.as_str(), facts.email.as_str()];
    texts.into_iter().flat_map(words_in).take(MAX_WORDS_PER_CLIENT).collect()
}

/// Where the words lie that begin with what somebody typed: from the first up to, and without, the second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WordRange {
    pub(crate) first: String,
    pub(crate) end: String,
}

/// A range for each word of a search.
pub(crate) fn searched(text: &str) -> Vec<WordRange> {
    let words: BTreeSet<String> = words_in(text).into_iter().take(MAX_WORDS_SEARCHED).collect();
    let range = |first: String| WordRange { end: format!("{first}{AFTER_ALL_LETTERS}"), first };
    words.into_iter().map(range).collect()
}

/// A word of a client, whose client it is, and whether it is archived.
pub(crate) struct WordRow {
    pub(crate) client: ClientId,
    pub(crate) word: String,
    pub(crate) owner: PersonId,
    pub(crate) is_archived: bool,
}

/// The rows of a client's words.
fn word_rows(client: &Client) -> Vec<WordRow> {
    let row = |word| WordRow {
        client: client.id,
        word,
        owner: client.owner.id,
        is_archived: client.archived_at.is_some(),
    };
    words_of(client.id, &client.name, &client.facts).into_iter().map(row).collect()
}

pub(crate) async fn add_words(conn: &mut Conn<'_>, rows: &[WordRow]) -> Result<(), sqlx::Error> {
    for rows in rows.chunks(MAX_ROWS_AT_ONCE) {
        let mut add = Statement::new("INSERT INTO client_words (client_id, word, owner_id, is_archived) ");
        add.push_values(rows, |row| {
            [row.client.0.into(), row.word.as_str().into(), row.owner.0.into(), row.is_archived.into()]
        });
        add.build().persistent(false).execute(conn).await?;
    }
    Ok(())
}

pub(crate) async fn replace_words(conn: &mut Conn<'_>, client: &Client) -> Result<(), sqlx::Error> {
    query("DELETE FROM client_words WHERE client_id = $1").bind(client.id.0).execute(conn).await?;
    add_words(conn, &word_rows(client)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        words_in(text)
    }

    #[test]
    fn words_are_without_case_and_accents() {
        assert_eq!(words("Café Zürich & Söhne, GmbH."), ["cafe", "zurich", "sohne", "gmbh"]);
        assert_eq!(words("STRASSE"), words("Straße"));
        assert_eq!(words("ΟΔΟΣ"), words("οδός"));
        assert_eq!(words("priya@harbour-lane.example"), ["priya", "harbour", "lane", "example"]);
        assert_eq!(words("法律事務所 ⚖️ ２０２６"), ["法律事務所", "2026"]);
        assert!(words(" —, \0 ").is_empty());
    }

    #[test]
    fn however_hostile_a_text_its_words_and_sort_name_stay_within_what_an_index_takes() {
        // One character that falls apart into eighteen, with blanks among them.
        let name: ClientName = "\u{fdfa}".repeat(200).parse().unwrap();
        assert!(sort_name(&name).len() <= MAX_SORT_NAME_CHARS * 4);
        let words = words_of(ClientId(1001), &name, &ContactFacts::default());
        assert!(
            words.len() <= MAX_WORDS_PER_CLIENT && words.iter().all(|word| word.len() <= MAX_WORD_CHARS * 4)
        );
        let name: ClientName = "𝔸".repeat(200).parse().unwrap();
        assert!(
            words_of(ClientId(1001), &name, &ContactFacts::default()).contains(&"a".repeat(MAX_WORD_CHARS))
        );
    }

    #[test]
    fn a_range_holds_the_words_that_begin_so_and_no_others() {
        let range = &searched("Har")[0];
        let holds = |word: &str| range.first.as_str() <= word && word < range.end.as_str();
        assert!(holds("har") && holds("harbour") && holds("harž") && holds("har𝔸"));
        assert!(!holds("ha") && !holds("has") && !holds("hb"));
    }

    #[test]
    fn a_search_has_so_many_words_and_no_more() {
        let text = "a b c d e f g h i j k l m n o p";
        assert_eq!(searched(text).len(), MAX_WORDS_SEARCHED);
        assert_eq!(searched("harbour Harbour HARBOUR").len(), 1);
        assert!(searched("").is_empty() && searched("&").is_empty());
    }
}
