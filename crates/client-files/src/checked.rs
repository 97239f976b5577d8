//! Validates a file's rows into clients: every cell within the domain's bounds, every person a member of the firm.

use super::people::UsersByEmail;
use super::problems::Problems;
use super::rows::{Cell, ClientRow, EntryRow};
use crate::{FileContext, MAX_CLIENTS, MAX_ENTRIES};
use chancery_domain::{
    ContactDetails, Day, DisputeDetails, EntryKind, MinorUnits, PersonId, UnixMillis, check_client_since,
    check_entry_day, closest_match,
};
use chancery_store::{MAX_ENTRIES_PER_CLIENT, NewClient, NewEntry};
use std::fmt::Display;
use std::str::FromStr;

/// A validated client, ready to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedClient {
    pub owner: PersonId,
    pub new: NewClient,
}

/// Clients with their entries, in order.
#[derive(Debug, Default)]
pub struct ClientPart {
    /// More entries of the previous part's last client.
    pub more_entries: Vec<NewEntry>,
    pub clients: Vec<CheckedClient>,
}

/// About how much text a part has. So many clients and entries are in memory at a time.
const PART_BYTES: usize = 64 * 1024;
/// What a client or an entry counts besides its text.
const ROW_WEIGHT: usize = 512;

/// What a file has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSummary {
    pub clients: u64,
    pub entries: u64,
    pub bytes: u64,
    /// Whether the file is an export, with client numbers. An import ignores them and assigns new ones.
    pub has_numbers: bool,
}

/// Validates rows as they are read, and delivers the clients in parts. Everything invalid goes into `problems`.
pub struct Collector<'a> {
    people: &'a UsersByEmail,
    context: FileContext,
    pub problems: Problems,
    summary: FileSummary,
    /// Returns whether it wants more.
    deliver: &'a mut dyn FnMut(ClientPart) -> bool,
    is_wanted: bool,
    part: ClientPart,
    part_bytes: usize,
    current: CurrentClient,
}

/// The client whose entries are being read.
#[derive(Default)]
struct CurrentClient {
    owner: Option<PersonId>,
    entries: u64,
    /// The row of the first entry beyond `MAX_ENTRIES_PER_CLIENT`.
    first_excess_row: Option<u64>,
}

/// The position of a cell in the file.
#[derive(Clone, Copy)]
struct RowPosition<'a> {
    row: u64,
    prefix: &'a str,
}

impl<'a> Collector<'a> {
    pub fn new(
        people: &'a UsersByEmail,
        context: FileContext,
        deliver: &'a mut dyn FnMut(ClientPart) -> bool,
    ) -> Self {
        Self {
            people,
            context,
            problems: Problems::default(),
            summary: FileSummary::default(),
            deliver,
            is_wanted: true,
            part: ClientPart::default(),
            part_bytes: 0,
            current: CurrentClient::default(),
        }
    }

    /// Whether another row may follow; reports it if not.
    pub fn has_room(&mut self, row: u64) -> bool {
        let has_room = self.summary.clients < MAX_CLIENTS && self.summary.entries < MAX_ENTRIES;
        if !has_room {
            let what =
                format!("file too large: at most {MAX_CLIENTS} clients and {MAX_ENTRIES} entries; split it");
            self.problems.row(row, what);
        }
        has_room && self.is_wanted
    }

    /// The next client, with the first of its entries.
    pub fn client(&mut self, row: ClientRow) {
        self.end_client();
        self.summary.clients += 1;
        self.summary.has_numbers |= row.has_number;
        let entries = row.entries;
        let position = RowPosition { row: row.row, prefix: "" };
        let name = self.required(position, "name", row.name, "every client needs a name");
        let owner = self.owner(position, row.owner);
        let contact = self.or_empty(position, "contact", row.contact);
        let email = self.or_empty(position, "email", row.email);
        let telephone = self.or_empty(position, "telephone", row.telephone);
        let address = self.or_empty(position, "address", row.address);
        let since = self.since(position, row.since);
        let is_archived = self.boolean(position, "archived", &row.archived).flatten().unwrap_or(false);
        self.current.owner = owner;
        let checked = (name, owner, contact, email, telephone, address);
        if let (Some(name), Some(owner), Some(contact), Some(email), Some(telephone), Some(address)) = checked
            && self.problems.is_empty()
        {
            let details = ContactDetails { contact, email, telephone, address, since };
            let new = NewClient { name, details, entries: Vec::new(), is_archived };
            self.part.clients.push(CheckedClient { owner, new });
            self.grow_part(0);
        }
        entries.into_iter().for_each(|entry| self.entry(entry));
    }

    /// The next entry of the latest client.
    pub fn entry(&mut self, row: EntryRow) {
        self.summary.entries += 1;
        self.current.entries += 1;
        if self.current.entries == MAX_ENTRIES_PER_CLIENT + 1 {
            self.current.first_excess_row = Some(row.row);
        }
        let checked = self.checked_entry(row, self.current.owner);
        if let Some(entry) = checked
            && self.problems.is_empty()
        {
            let bytes = entry.title.as_str().len() + entry.text.as_str().len();
            match self.part.clients.last_mut() {
                Some(client) => client.new.entries.push(entry),
                None => self.part.more_entries.push(entry),
            }
            self.grow_part(bytes);
        }
    }

    pub fn finish(mut self, bytes: u64) -> Result<FileSummary, Problems> {
        self.end_client();
        if !self.problems.is_empty() {
            return Err(self.problems);
        }
        self.deliver_part();
        Ok(FileSummary { bytes, ..self.summary })
    }

    /// The store enforces this limit too, but only here is the row of the first excess entry known.
    fn end_client(&mut self) {
        let CurrentClient { entries, first_excess_row, .. } = std::mem::take(&mut self.current);
        if let Some(row) = first_excess_row {
            let what = format!(
                "too many entries: at most {MAX_ENTRIES_PER_CLIENT} per client, found {entries}; remove some, or split the client"
            );
            self.problems.row(row, what);
        }
    }

    fn grow_part(&mut self, bytes: usize) {
        self.part_bytes += ROW_WEIGHT + bytes;
        if self.part_bytes > PART_BYTES {
            self.deliver_part();
        }
    }

    fn deliver_part(&mut self) {
        self.part_bytes = 0;
        self.is_wanted = self.is_wanted && (self.deliver)(std::mem::take(&mut self.part));
    }

    fn checked_entry(&mut self, row: EntryRow, owner: Option<PersonId>) -> Option<NewEntry> {
        let position = RowPosition { row: row.row, prefix: &row.prefix };
        let is_archived = self.boolean(position, row.archived_name(), &row.archived);
        let kind = self.kind(position, row.kind);
        let title = self.required(position, "title", row.title, "every entry needs a title");
        let text = self.required(position, "text", row.text, "every entry needs a text");
        let at = match row.at {
            Cell::Absent => Some(self.context.now),
            at => self.moment(position, at),
        };
        let author = match row.author {
            Cell::Absent => owner,
            Cell::Wrong => None,
            Cell::Text(address) => self.person(position, "author", self.people.author(&address)),
        };
        let is_open = self.boolean(position, "open", &row.open);
        let has_dispute_cells = row.amount != Cell::Absent || row.due != Cell::Absent;
        let dispute = DisputeDetails {
            amount: self.amount(position, row.amount),
            due: self.optional::<Day>(position, "due", row.due),
        };
        let kind = kind?;
        if has_dispute_cells && kind != EntryKind::BillingDispute {
            self.report(position, "kind", "only a billing dispute has `amount` and `due`; remove them");
            return None;
        }
        if is_open == Some(Some(true)) && !kind.can_be_open() {
            self.report(position, "open", "not allowed for a meeting note; remove it, or use false");
            return None;
        }
        Some(NewEntry {
            kind,
            title: title?,
            text: text?,
            at: at?,
            author: author?,
            // Unless the file says otherwise, a dispute is not resolved and a letter is not sent.
            is_open: is_open?.unwrap_or(kind.can_be_open()),
            dispute,
            is_archived: is_archived?.unwrap_or(false),
        })
    }

    fn report(&mut self, position: RowPosition<'_>, field: &str, what: impl Display) {
        self.problems.field(position.row, &format!("{}{field}", position.prefix), what);
    }

    fn parsed<T: FromStr<Err: Display>>(
        &mut self,
        position: RowPosition<'_>,
        field: &str,
        text: &str,
    ) -> Option<T> {
        match text.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.report(position, field, error);
                None
            }
        }
    }

    fn required<T: FromStr<Err: Display>>(
        &mut self,
        position: RowPosition<'_>,
        field: &str,
        cell: Cell,
        rule: &str,
    ) -> Option<T> {
        match cell {
            Cell::Text(text) if !text.trim().is_empty() => self.parsed(position, field, &text),
            Cell::Wrong => None,
            Cell::Absent | Cell::Text(_) => {
                self.report(position, field, format!("missing; {rule}"));
                None
            }
        }
    }

    fn optional<T: FromStr<Err: Display>>(
        &mut self,
        position: RowPosition<'_>,
        field: &str,
        cell: Cell,
    ) -> Option<T> {
        match cell {
            Cell::Text(text) if !text.trim().is_empty() => self.parsed(position, field, text.trim()),
            _ => None,
        }
    }

    fn amount(&mut self, position: RowPosition<'_>, cell: Cell) -> Option<MinorUnits> {
        let Cell::Text(text) = cell else { return None };
        let (text, currency) = (text.trim(), self.context.currency);
        let amount = currency.parse_amount(text);
        if amount.is_none() && !text.is_empty() {
            let (code, example) = (currency.as_str(), currency.example_amount());
            self.report(position, "amount", format!("not an amount in {code}; write it like {example}"));
        }
        amount
    }

    /// An absent cell is an empty text, which is valid for contact details.
    fn or_empty<T: FromStr<Err: Display>>(
        &mut self,
        position: RowPosition<'_>,
        field: &str,
        cell: Cell,
    ) -> Option<T> {
        match cell {
            Cell::Text(text) => self.parsed(position, field, &text).or_else(|| "".parse().ok()),
            Cell::Absent | Cell::Wrong => "".parse().ok(),
        }
    }

    fn owner(&mut self, position: RowPosition<'_>, cell: Cell) -> Option<PersonId> {
        match cell {
            Cell::Text(address) if !address.trim().is_empty() => {
                self.person(position, "owner", self.people.owner(&address))
            }
            Cell::Wrong => None,
            Cell::Absent | Cell::Text(_) => {
                self.report(position, "owner", "missing; every client needs an owner's email address");
                None
            }
        }
    }

    fn person(
        &mut self,
        position: RowPosition<'_>,
        field: &str,
        found: Result<PersonId, String>,
    ) -> Option<PersonId> {
        found.map_err(|what| self.report(position, field, what)).ok()
    }

    fn kind(&mut self, position: RowPosition<'_>, cell: Cell) -> Option<EntryKind> {
        let text = match cell {
            Cell::Text(text) if !text.trim().is_empty() => text,
            Cell::Wrong => return None,
            Cell::Absent | Cell::Text(_) => {
                self.report(
                    position,
                    "kind",
                    "missing; use `meeting_note`, `billing_dispute` or `draft_letter`",
                );
                return None;
            }
        };
        let text = text.trim();
        match (text.parse(), closest_match(text, EntryKind::ALL.map(EntryKind::as_str))) {
            (Ok(kind), _) => Some(kind),
            (Err(error), None) => {
                self.report(position, "kind", error);
                None
            }
            (Err(error), Some(meant)) => {
                self.report(position, "kind", format!("{error}; did you mean `{meant}`?"));
                None
            }
        }
    }

    /// Today in the time zone that is furthest ahead: the file does not say where it was written.
    fn latest_today(&self) -> Day {
        Day(Day::containing(self.context.now).0.saturating_add(1))
    }

    fn since(&mut self, position: RowPosition<'_>, cell: Cell) -> Option<Day> {
        let day = self.optional::<Day>(position, "since", cell)?;
        let checked = check_client_since(day, self.latest_today());
        checked.map_err(|error| self.report(position, "since", error)).ok()
    }

    /// Accepts a timestamp, or a day, which means its start.
    fn moment(&mut self, position: RowPosition<'_>, cell: Cell) -> Option<UnixMillis> {
        let Cell::Text(text) = cell else { return None };
        let at = match text.trim().parse::<Day>() {
            Ok(day) => day.start(),
            Err(_) => self.parsed(position, "at", text.trim())?,
        };
        match check_entry_day(Day::containing(at), self.latest_today()) {
            Ok(_) => Some(at),
            Err(error) => {
                self.report(position, "at", error);
                None
            }
        }
    }

    /// The inner `None` means absent. Case is ignored because spreadsheets write TRUE and FALSE.
    fn boolean(&mut self, position: RowPosition<'_>, field: &str, cell: &Cell) -> Option<Option<bool>> {
        match cell {
            Cell::Absent => Some(None),
            Cell::Wrong => None,
            Cell::Text(text) => match text.trim().to_ascii_lowercase().as_str() {
                "true" | "yes" => Some(Some(true)),
                "false" | "no" => Some(Some(false)),
                _ => {
                    self.report(position, field, "must be true or false");
                    None
                }
            },
        }
    }
}
