//! Makes clients of a file's rows: every cell within the domain's bounds, every person one of the firm.

use super::people::PeopleByAddress;
use super::problems::Problems;
use super::rows::{Cell, ClientRow, EntryRow};
use chancery_domain::{ContactFacts, Day, EntryKind, PersonId, UnixMillis, nearest};
use chancery_store::{MAX_ENTRIES_PER_CLIENT, NewClient, NewEntry};
use std::fmt::Display;
use std::str::FromStr;

/// A client as it is to be made, and whose it will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedClient {
    pub owner: PersonId,
    pub new: NewClient,
}

/// Those that are right; whether any was wrong, `problems` knows.
pub fn check(
    rows: Vec<ClientRow>,
    people: &PeopleByAddress,
    now: UnixMillis,
    problems: &mut Problems,
) -> Vec<CheckedClient> {
    let mut checking = Checking { people, now, problems };
    rows.into_iter().filter_map(|row| checking.client(row)).collect()
}

struct Checking<'a> {
    people: &'a PeopleByAddress,
    now: UnixMillis,
    problems: &'a mut Problems,
}

/// Where a cell stands.
#[derive(Clone, Copy)]
struct Place<'a> {
    row: u64,
    within: &'a str,
}

impl Checking<'_> {
    fn client(&mut self, row: ClientRow) -> Option<CheckedClient> {
        let place = Place { row: row.row, within: "" };
        let name = self.required(place, "name", row.name, "a client has a name");
        let owner = self.owner(place, row.owner);
        let facts = ContactFacts {
            contact: self.or_empty(place, "contact", row.contact)?,
            email: self.or_empty(place, "email", row.email)?,
            telephone: self.or_empty(place, "telephone", row.telephone)?,
            address: self.or_empty(place, "address", row.address)?,
            since: self.optional::<Day>(place, "since", row.since),
        };
        let is_archived = self.switch(place, "archived", &row.archived);
        self.entries_bound(&row.entries);
        // An entry's author is the owner where it names none; where the owner is wrong, that has been told.
        let checked: Vec<_> = row.entries.into_iter().map(|entry| self.entry(entry, owner)).collect();
        let entries = checked.into_iter().collect::<Option<Vec<_>>>()?;
        let is_archived = is_archived?.unwrap_or(false);
        Some(CheckedClient { owner: owner?, new: NewClient { name: name?, facts, entries, is_archived } })
    }

    /// The store takes no more; here it is known in which row they begin.
    fn entries_bound(&mut self, entries: &[EntryRow]) {
        let max = usize::try_from(MAX_ENTRIES_PER_CLIENT).unwrap_or(usize::MAX);
        if let Some(first_too_many) = entries.get(max) {
            self.problems.row(
                first_too_many.row,
                format!(
                    "a client has at most {max} entries, and this one has {}; leave some out, or make two clients of it",
                    entries.len()
                ),
            );
        }
    }

    fn entry(&mut self, row: EntryRow, owner: Option<PersonId>) -> Option<NewEntry> {
        let place = Place { row: row.row, within: &row.within };
        let is_archived = self.switch(place, row.archived_name(), &row.archived);
        let kind = self.kind(place, row.kind);
        let title = self.required(place, "title", row.title, "an entry has a title");
        let text = self.required(place, "text", row.text, "an entry has a text");
        let at = match row.at {
            Cell::Absent => Some(self.now),
            at => self.moment(place, at),
        };
        let author = match row.author {
            Cell::Absent => owner,
            Cell::Wrong => None,
            Cell::Text(address) => self.person(place, "author", self.people.author(&address)),
        };
        let is_open = self.switch(place, "open", &row.open);
        let kind = kind?;
        if is_open == Some(Some(true)) && !kind.can_be_open() {
            self.wrong(place, "open", "a meeting note is never open; leave it out, or write false");
            return None;
        }
        Some(NewEntry {
            kind,
            title: title?,
            text: text?,
            at: at?,
            author: author?,
            // What is not said to be settled or sent may have something left to do about it.
            is_open: is_open?.unwrap_or(kind.can_be_open()),
            is_archived: is_archived?.unwrap_or(false),
        })
    }

    fn wrong(&mut self, place: Place<'_>, field: &str, what: impl Display) {
        self.problems.field(place.row, &format!("{}{field}", place.within), what);
    }

    fn parsed<T: FromStr<Err: Display>>(&mut self, place: Place<'_>, field: &str, text: &str) -> Option<T> {
        match text.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.wrong(place, field, error);
                None
            }
        }
    }

    fn required<T: FromStr<Err: Display>>(
        &mut self,
        place: Place<'_>,
        field: &str,
        cell: Cell,
        rule: &str,
    ) -> Option<T> {
        match cell {
            Cell::Text(text) if !text.trim().is_empty() => self.parsed(place, field, &text),
            Cell::Wrong => None,
            Cell::Absent | Cell::Text(_) => {
                self.wrong(place, field, format!("it is missing; {rule}"));
                None
            }
        }
    }

    fn optional<T: FromStr<Err: Display>>(&mut self, place: Place<'_>, field: &str, cell: Cell) -> Option<T> {
        match cell {
            Cell::Text(text) if !text.trim().is_empty() => self.parsed(place, field, text.trim()),
            _ => None,
        }
    }

    /// Nothing is an empty text, which facts may be.
    fn or_empty<T: FromStr<Err: Display>>(&mut self, place: Place<'_>, field: &str, cell: Cell) -> Option<T> {
        match cell {
            Cell::Text(text) => self.parsed(place, field, &text).or_else(|| "".parse().ok()),
            Cell::Absent | Cell::Wrong => "".parse().ok(),
        }
    }

    fn owner(&mut self, place: Place<'_>, cell: Cell) -> Option<PersonId> {
        match cell {
            Cell::Text(address) if !address.trim().is_empty() => {
                self.person(place, "owner", self.people.owner(&address))
            }
            Cell::Wrong => None,
            Cell::Absent | Cell::Text(_) => {
                self.wrong(place, "owner", "it is missing; a client has an owner, by e-mail address");
                None
            }
        }
    }

    fn person(&mut self, place: Place<'_>, field: &str, found: Result<PersonId, String>) -> Option<PersonId> {
        found.map_err(|what| self.wrong(place, field, what)).ok()
    }

    fn kind(&mut self, place: Place<'_>, cell: Cell) -> Option<EntryKind> {
        let text = match cell {
            Cell::Text(text) if !text.trim().is_empty() => text,
            Cell::Wrong => return None,
            Cell::Absent | Cell::Text(_) => {
                self.wrong(
                    place,
                    "kind",
                    "it is missing; an entry is a `meeting_note`, a `billing_dispute` or a `draft_letter`",
                );
                return None;
            }
        };
        let text = text.trim();
        match (text.parse(), nearest(text, EntryKind::ALL.map(EntryKind::as_str))) {
            (Ok(kind), _) => Some(kind),
            (Err(error), None) => {
                self.wrong(place, "kind", error);
                None
            }
            (Err(error), Some(meant)) => {
                self.wrong(place, "kind", format!("{error}; did you mean `{meant}`?"));
                None
            }
        }
    }

    /// A moment, or a day, which then begins it.
    fn moment(&mut self, place: Place<'_>, cell: Cell) -> Option<UnixMillis> {
        let Cell::Text(text) = cell else { return None };
        match text.trim().parse::<Day>() {
            Ok(day) => Some(day.start()),
            Err(_) => self.parsed(place, "at", text.trim()),
        }
    }

    /// Within: none where nothing is said. Spreadsheets write such values in capitals.
    fn switch(&mut self, place: Place<'_>, field: &str, cell: &Cell) -> Option<Option<bool>> {
        match cell {
            Cell::Absent => Some(None),
            Cell::Wrong => None,
            Cell::Text(text) => match text.trim().to_ascii_lowercase().as_str() {
                "true" | "yes" => Some(Some(true)),
                "false" | "no" => Some(Some(false)),
                _ => {
                    self.wrong(place, field, "it must be true or false");
                    None
                }
            },
        }
    }
}
