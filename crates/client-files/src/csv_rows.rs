//! CSV: a head with the names of the columns, then one row for each entry; rows that repeat a client directly below each
//! other belong together, and a client without entries has one row. The head is row 1; empty rows are passed over.

use super::jsonl::{no_such_field, too_many};
use super::problems::Problems;
use super::rows::{CLIENT_FIELDS, Cell, ClientRow, ENTRY_COLUMNS, ENTRY_FIELDS, EntryRow};
use super::{MAX_CLIENTS, MAX_ENTRIES, ROWS_PER_PROGRESS};
use chancery_domain::from_csv_cell;
use std::collections::BTreeMap;
use std::io::Read;

/// Added after the file: where it does not come out as the last row, a quote before it was never closed and has taken it in.
const END: &str = "the end of the file";

pub fn read(text: &str, problems: &mut Problems, mut progress: impl FnMut(u64)) -> Vec<ClientRow> {
    let end = format!("\n{END}");
    let bytes = (text.len() + end.len()) as u64;
    let mut rows = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(text.as_bytes().chain(end.as_bytes()));
    let mut record = csv::StringRecord::new();
    let mut gathered = Gathered::default();
    let mut columns: Option<Columns> = None;
    let (mut row, mut is_whole) = (0, false);
    // Reading text from memory cannot fail; if it did, the end would not be seen.
    while rows.read_record(&mut record).unwrap_or(false) {
        is_whole = record.len() == 1 && record.get(0) == Some(END) && rows.position().byte() == bytes;
        if is_whole {
            break;
        }
        row += 1;
        if row % ROWS_PER_PROGRESS == 0 {
            progress(rows.position().byte());
        }
        match &columns {
            None => match Columns::of_head(&record, problems) {
                Some(head) => columns = Some(head),
                None => return Vec::new(),
            },
            Some(_) if record.iter().all(|cell| cell.trim().is_empty()) => {}
            Some(_) if gathered.is_full() => {
                problems.row(row, too_many());
                return gathered.clients;
            }
            Some(columns) => {
                if let Some(cells) = columns.cells(row, &record, problems) {
                    gathered.take(row, cells, problems);
                }
            }
        }
    }
    if !is_whole {
        problems.row(
            row,
            "a quote (\") is opened and not closed; close it, or write a quote within a cell twice (\"\")",
        );
    } else if columns.is_none() {
        problems.row(1, "the file is empty; its first row names the columns, for example `name,owner`");
    }
    gathered.clients
}

/// What the head says: the name of each column.
struct Columns(Vec<&'static str>);

impl Columns {
    fn of_head(head: &csv::StringRecord, problems: &mut Problems) -> Option<Self> {
        let known = || CLIENT_FIELDS.into_iter().chain(ENTRY_COLUMNS);
        if let (1, Some(only)) = (head.len(), head.get(0))
            && let Some(separator) = [';', '\t', '|'].into_iter().find(|sign| only.contains(*sign))
        {
            problems.row(1, format!("its columns are parted by {separator:?}; save the file with commas"));
            return None;
        }
        let mut columns = Vec::new();
        for name in head {
            let name = name.trim().to_lowercase();
            match known().find(|known| *known == name) {
                Some(column) if columns.contains(&column) => {
                    problems.field(1, &name, "the column is there twice; keep one of the two");
                }
                Some(column) => columns.push(column),
                None if name.is_empty() => {
                    problems.row(1, "a column has no name; name it, or take it out");
                }
                None => problems.field(1, &name, no_such_field(&name, known().collect::<Vec<_>>())),
            }
        }
        for required in ["name", "owner"] {
            if !columns.contains(&required) {
                problems.field(1, required, "the column is missing; every client has a name and an owner");
            }
        }
        problems.is_empty().then_some(Self(columns))
    }

    /// A row's cells by the names of their columns, without the empty ones.
    fn cells(
        &self,
        row: u64,
        record: &csv::StringRecord,
        problems: &mut Problems,
    ) -> Option<BTreeMap<&'static str, String>> {
        if record.len() != self.0.len() {
            problems.row(
                row,
                format!(
                    "it has {} cells and the head has {}; put cells with commas or line breaks into quotes",
                    record.len(),
                    self.0.len()
                ),
            );
            return None;
        }
        let filled = self.0.iter().zip(record).filter(|(_, cell)| !cell.trim().is_empty());
        Some(filled.map(|(column, cell)| (*column, from_csv_cell(cell).to_owned())).collect())
    }
}

/// The clients so far, and what the last of them said about itself.
#[derive(Default)]
struct Gathered {
    clients: Vec<ClientRow>,
    entries: usize,
    last: BTreeMap<&'static str, String>,
}

impl Gathered {
    fn is_full(&self) -> bool {
        self.clients.len() == MAX_CLIENTS || self.entries >= MAX_ENTRIES
    }

    fn take(&mut self, row: u64, mut cells: BTreeMap<&'static str, String>, problems: &mut Problems) {
        let mut entry = EntryRow { row, ..EntryRow::default() };
        let mut has_entry = false;
        for (column, field) in ENTRY_COLUMNS.into_iter().zip(ENTRY_FIELDS) {
            if let (Some(text), Some(cell)) = (cells.remove(column), entry.cell(field)) {
                *cell = Cell::Text(text);
                has_entry = true;
            }
        }
        match self.clients.last_mut() {
            Some(client) if is_same(&self.last, &cells) => {
                if !has_entry {
                    problems.row(
                        row,
                        format!("it repeats the client of row {} and has no entry; take it out", client.row),
                    );
                }
                for (column, text) in &cells {
                    if self.last.get(column) != Some(text) {
                        problems.field(
                            row,
                            column,
                            format!(
                                "it differs from row {}, which is the same client; write it the same or leave it empty",
                                client.row
                            ),
                        );
                    }
                }
                client.entries.push(entry);
            }
            _ => {
                let mut client = ClientRow { row, ..ClientRow::default() };
                client.has_number = cells.contains_key("id");
                for (column, text) in &cells {
                    if let Some(cell) = client.cell(column) {
                        *cell = Cell::Text(text.clone());
                    }
                }
                client.entries.extend(has_entry.then_some(entry));
                self.clients.push(client);
                self.last = cells;
            }
        }
        self.entries += usize::from(has_entry);
    }
}

/// Name and owner say which client a row is about; where an export gave numbers, those too.
fn is_same(last: &BTreeMap<&str, String>, cells: &BTreeMap<&str, String>) -> bool {
    let is_repeated = |column| last.get(column) == cells.get(column);
    cells.contains_key("name") && ["name", "owner", "id"].into_iter().all(is_repeated)
}
