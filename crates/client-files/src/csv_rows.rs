//! CSV: a header row with the column names, then one row per entry. Consecutive rows that repeat a client belong together; a
//! client without entries has one row. The header is row 1, and empty rows are skipped.

use super::jsonl::{too_many, unknown_field};
use super::problems::Problems;
use super::rows::{CLIENT_FIELDS, Cell, ClientRow, ENTRY_COLUMNS, ENTRY_FIELDS, EntryRow};
use super::{MAX_CLIENTS, MAX_ENTRIES, ROWS_PER_PROGRESS};
use chancery_domain::unescape_csv_formula;
use std::collections::BTreeMap;
use std::io::Read;

/// Appended to the file. If it is not read back as the last row, an unclosed quote has swallowed it.
const END: &str = "the end of the file";

pub fn read(text: &str, problems: &mut Problems, mut progress: impl FnMut(u64)) -> Vec<ClientRow> {
    let end = format!("\n{END}");
    let bytes = (text.len() + end.len()) as u64;
    let mut rows = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(text.as_bytes().chain(end.as_bytes()));
    let mut record = csv::StringRecord::new();
    let mut collector = CsvCollector::default();
    let mut columns: Option<Columns> = None;
    let (mut row, mut is_complete) = (0, false);
    // Reading text from memory cannot fail. If it did, the end marker would be missing.
    while rows.read_record(&mut record).unwrap_or(false) {
        is_complete = record.len() == 1 && record.get(0) == Some(END) && rows.position().byte() == bytes;
        if is_complete {
            break;
        }
        row += 1;
        if row % ROWS_PER_PROGRESS == 0 {
            progress(rows.position().byte());
        }
        match &columns {
            None => match Columns::from_header(&record, problems) {
                Some(parsed) => columns = Some(parsed),
                None => return Vec::new(),
            },
            Some(_) if record.iter().all(|cell| cell.trim().is_empty()) => {}
            Some(_) if collector.is_full() => {
                problems.row(row, too_many());
                return collector.clients;
            }
            Some(columns) => {
                if let Some(cells) = columns.cells(row, &record, problems) {
                    collector.add(row, cells, problems);
                }
            }
        }
    }
    if !is_complete {
        problems.row(row, "unclosed quote (\"); close it, or double quotes inside a cell (\"\")");
    } else if columns.is_none() {
        problems.row(1, "file is empty; the first row must name the columns, for example `name,owner`");
    }
    collector.clients
}

/// The column names, in the order of the header row.
struct Columns(Vec<&'static str>);

impl Columns {
    fn from_header(header: &csv::StringRecord, problems: &mut Problems) -> Option<Self> {
        let known = || CLIENT_FIELDS.into_iter().chain(ENTRY_COLUMNS);
        if let (1, Some(only)) = (header.len(), header.get(0))
            && let Some(separator) = [';', '\t', '|'].into_iter().find(|sign| only.contains(*sign))
        {
            problems.row(1, format!("wrong separator {separator:?}; save the file with commas"));
            return None;
        }
        let mut columns = Vec::new();
        for name in header {
            let name = name.trim().to_lowercase();
            match known().find(|known| *known == name) {
                Some(column) if columns.contains(&column) => {
                    problems.field(1, &name, "duplicate column; keep one");
                }
                Some(column) => columns.push(column),
                None if name.is_empty() => {
                    problems.row(1, "column without a name; name it, or remove it");
                }
                None => problems.field(1, &name, unknown_field(&name, known().collect::<Vec<_>>())),
            }
        }
        for required in ["name", "owner"] {
            if !columns.contains(&required) {
                problems.field(1, required, "missing column; every client needs a name and an owner");
            }
        }
        problems.is_empty().then_some(Self(columns))
    }

    /// A row's non-empty cells by column name.
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
                    "expected {} cells, found {}; quote cells that contain commas or line breaks",
                    self.0.len(),
                    record.len()
                ),
            );
            return None;
        }
        let filled = self.0.iter().zip(record).filter(|(_, cell)| !cell.trim().is_empty());
        Some(filled.map(|(column, cell)| (*column, unescape_csv_formula(cell).into_owned())).collect())
    }
}

/// The clients so far, and the cells of the latest one.
#[derive(Default)]
struct CsvCollector {
    clients: Vec<ClientRow>,
    entries: usize,
    last: BTreeMap<&'static str, String>,
}

impl CsvCollector {
    fn is_full(&self) -> bool {
        self.clients.len() == MAX_CLIENTS || self.entries >= MAX_ENTRIES
    }

    fn add(&mut self, row: u64, mut cells: BTreeMap<&'static str, String>, problems: &mut Problems) {
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
                        format!("repeats the client of row {} without an entry; remove it", client.row),
                    );
                }
                for (column, text) in &cells {
                    if self.last.get(column) != Some(text) {
                        problems.field(
                            row,
                            column,
                            format!(
                                "differs from row {} of the same client; use the same value or leave it empty",
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

/// Rows belong to the same client if they repeat its name and owner, and its number if the file is an export.
fn is_same(last: &BTreeMap<&str, String>, cells: &BTreeMap<&str, String>) -> bool {
    let is_repeated = |column| last.get(column) == cells.get(column);
    cells.contains_key("name") && ["name", "owner", "id"].into_iter().all(is_repeated)
}
