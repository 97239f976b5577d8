//! Search terms of clients: the words of their name, contact and email address, without case and accents, so that "cafe"
//! finds "Café". A search matches word prefixes as ranges, which an index supports. Client ids and telephone numbers are
//! indexed with all their suffixes, so that a prefix of one is any part of the number. Terms of entries are in
//! `entry_terms`.

use crate::db::{QueryError, Statement, Tx, query};
use chancery_domain::{Client, ClientId, ClientName, ContactDetails, PersonId};
use std::collections::BTreeSet;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Most words in one search. Further ones are ignored.
pub(crate) const MAX_SEARCH_TERMS: usize = 8;

/// Most characters of an indexed word; PostgreSQL's index entries are limited to about 2,700 bytes. Longer words are
/// found by their prefix.
const MAX_TERM_CHARS: usize = 64;

/// A hostile name may decompose into many more words than it has characters.
const MAX_TERMS_PER_CLIENT: usize = 300;

/// Most digits of a telephone number that are indexed. The longest real numbers have 15, extensions aside.
const MAX_NUMBER_DIGITS: usize = 32;

/// Fewest bytes of a search term that is looked up in entries too. One or two letters start a word in nearly every entry,
/// so that a search for them would read them all. A single Chinese character has three bytes.
pub(crate) const MIN_ENTRY_TERM_BYTES: usize = 3;

/// Most characters of a sort name, for the same index limit.
const MAX_SORT_NAME_CHARS: usize = 200;

/// Occurs in no word, and sorts after all characters that do.
const TERM_RANGE_END: char = char::MAX;

/// Rows per INSERT.
pub(crate) const MAX_ROWS_PER_STATEMENT: usize = 2000;

/// Upper and then lower case approximates case folding: ß equals ss, and ς equals σ.
pub(crate) fn case_folded(text: &str) -> impl Iterator<Item = char> {
    text.nfkd()
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
        .filter(|character| !is_combining_mark(*character))
}

/// The sort key of a name, the same in both databases.
pub(crate) fn sort_name(name: &ClientName) -> String {
    case_folded(name.as_str()).take(MAX_SORT_NAME_CHARS).collect()
}

pub(crate) fn tokenize(text: &str) -> Vec<String> {
    let case_folded: String = case_folded(text).collect();
    let terms =
        case_folded.split(|character: char| !character.is_alphanumeric()).filter(|term| !term.is_empty());
    terms.map(|term| term.chars().take(MAX_TERM_CHARS).collect()).collect()
}

/// The digits of a number, from each of them to the end.
fn number_suffixes(number: &str) -> Vec<String> {
    let digits: Vec<char> =
        case_folded(number).filter(|character| character.is_numeric()).take(MAX_NUMBER_DIGITS).collect();
    (0..digits.len()).map(|start| digits[start..].iter().collect()).collect()
}

/// All search terms of a client's details.
pub(crate) fn search_terms_of(id: ClientId, name: &ClientName, details: &ContactDetails) -> BTreeSet<String> {
    let texts = [name.as_str(), details.contact.as_str(), details.email.as_str()];
    let mut terms: BTreeSet<String> =
        texts.into_iter().flat_map(tokenize).take(MAX_TERMS_PER_CLIENT).collect();
    terms.extend(number_suffixes(&id.to_string()));
    terms.extend(number_suffixes(details.telephone.as_str()));
    terms
}

/// The range of words with a typed prefix; `end` is exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TermRange {
    pub(crate) first: String,
    pub(crate) end: String,
}

impl TermRange {
    /// Whether a folded word starts with the typed prefix.
    pub(crate) fn contains(&self, term: &str) -> bool {
        term.starts_with(&self.first)
    }

    /// Whether the prefix is long enough to be looked up in entries.
    pub(crate) fn is_in_entries(&self) -> bool {
        self.first.len() >= MIN_ENTRY_TERM_BYTES
    }

    /// Adds the prefix condition for a column.
    pub(crate) fn push_condition(&self, statement: &mut Statement, column: &str) {
        statement.push(column).push(" >= ").push_bind(self.first.as_str());
        statement.push(" AND ").push(column).push(" < ").push_bind(self.end.as_str());
    }
}

/// One range per search term.
pub(crate) fn search_ranges(text: &str) -> Vec<TermRange> {
    let terms: BTreeSet<String> = tokenize(text).into_iter().take(MAX_SEARCH_TERMS).collect();
    let range = |first: String| TermRange { end: format!("{first}{TERM_RANGE_END}"), first };
    terms.into_iter().map(range).collect()
}

/// A search term of a client's details, with the client's owner and archive state.
pub(crate) struct SearchTermRow {
    pub(crate) client: ClientId,
    pub(crate) term: String,
    pub(crate) owner: PersonId,
    pub(crate) is_archived: bool,
}

fn search_term_rows(client: &Client) -> Vec<SearchTermRow> {
    let row = |term| SearchTermRow {
        client: client.id,
        term,
        owner: client.owner.id,
        is_archived: client.archived_at.is_some(),
    };
    search_terms_of(client.id, &client.name, &client.details).into_iter().map(row).collect()
}

pub(crate) fn add_search_terms(tx: &mut Tx<'_>, rows: &[SearchTermRow]) -> Result<(), QueryError> {
    for rows in rows.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut add = Statement::new(
            "INSERT INTO client_search_terms (client_id, in_entries, term, owner_id, is_archived, entries) ",
        );
        add.push_values(rows, |row| {
            [
                row.client.0.into(),
                false.into(),
                row.term.as_str().into(),
                row.owner.0.into(),
                row.is_archived.into(),
                0_i64.into(),
            ]
        });
        add.build().persistent(false).execute(tx)?;
    }
    Ok(())
}

/// Replaces the terms of the details. Those of the entries stay.
pub(crate) fn replace_search_terms(tx: &mut Tx<'_>, client: &Client) -> Result<(), QueryError> {
    query("DELETE FROM client_search_terms WHERE client_id = $1 AND in_entries = $2")
        .bind(client.id.0)
        .bind(false)
        .execute(tx)?;
    add_search_terms(tx, &search_term_rows(client))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(text: &str) -> Vec<String> {
        tokenize(text)
    }

    #[test]
    fn terms_ignore_case_and_accents() {
        assert_eq!(terms("Café Zürich & Söhne, GmbH."), ["cafe", "zurich", "sohne", "gmbh"]);
        assert_eq!(terms("STRASSE"), terms("Straße"));
        assert_eq!(terms("ΟΔΟΣ"), terms("οδός"));
        assert_eq!(terms("priya@harbour-lane.example"), ["priya", "harbour", "lane", "example"]);
        assert_eq!(terms("法律事務所 ⚖️ ２０２６"), ["法律事務所", "2026"]);
        assert!(terms(" —, \0 ").is_empty());
    }

    #[test]
    fn terms_and_sort_name_fit_index_size_limits() {
        // One character that decomposes into eighteen, with spaces among them.
        let name: ClientName = "\u{fdfa}".repeat(200).parse().unwrap();
        assert!(sort_name(&name).len() <= MAX_SORT_NAME_CHARS * 4);
        let terms = search_terms_of(ClientId(1001), &name, &ContactDetails::default());
        assert!(
            terms.len() <= MAX_TERMS_PER_CLIENT && terms.iter().all(|term| term.len() <= MAX_TERM_CHARS * 4)
        );
        let name: ClientName = "𝔸".repeat(200).parse().unwrap();
        assert!(
            search_terms_of(ClientId(1001), &name, &ContactDetails::default())
                .contains(&"a".repeat(MAX_TERM_CHARS))
        );
    }

    #[test]
    fn term_range_contains_exactly_its_prefix() {
        let range = &search_ranges("Har")[0];
        let holds = |term: &str| range.first.as_str() <= term && term < range.end.as_str();
        assert!(holds("har") && holds("harbour") && holds("harž") && holds("har𝔸"));
        assert!(!holds("ha") && !holds("has") && !holds("hb"));
    }

    #[test]
    fn any_part_of_a_number_is_a_prefix_of_one_of_its_terms() {
        let details =
            ContactDetails { telephone: "+44 (0)20 7946-0321".parse().unwrap(), ..ContactDetails::default() };
        let terms = search_terms_of(ClientId(10_427), &"Harbour".parse().unwrap(), &details);
        let finds = |typed: &str| {
            search_ranges(typed).iter().all(|range| terms.iter().any(|term| range.contains(term)))
        };
        for typed in ["10427", "0427", "42", "7", "7946", "020 7946 0321", "44020", "321"] {
            assert!(finds(typed), "{typed}: {terms:?}");
        }
        for typed in ["7945", "10428", "03210", "104277"] {
            assert!(!finds(typed), "{typed}: {terms:?}");
        }
        assert_eq!(number_suffixes(&"7".repeat(200)).len(), MAX_NUMBER_DIGITS);
        assert!(number_suffixes("call me").is_empty());
    }

    #[test]
    fn search_terms_are_bounded() {
        let text = "a b c d e f g h i j k l m n o p";
        assert_eq!(search_ranges(text).len(), MAX_SEARCH_TERMS);
        assert_eq!(search_ranges("harbour Harbour HARBOUR").len(), 1);
        assert!(search_ranges("").is_empty() && search_ranges("&").is_empty());
    }
}
