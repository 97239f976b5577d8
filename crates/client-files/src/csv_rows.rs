//! CSV: a header row with the column names, then one row per entry. Consecutive rows that repeat a client belong together; a
//! client without entries has one row. The header is row 1, and empty rows are skipped.

use super::ROWS_PER_PROGRESS;
use super::checked::Collector;
use super::problems::Problems;
use super::rows::{CLIENT_FIELDS, Cell, ClientRow, ENTRY_COLUMNS, ENTRY_FIELDS, EntryRow};
use super::text_reader::TextReader;
use chancery_domain::unescape_csv_formula;
use std::collections::BTreeMap;
use std::io::Read;

/// Appended to the file. If it is not read back as the last row, an unclosed quote has swallowed it.
const END: &str = "the end of the file";

/// More columns than there are names for. A header of very many is not compared with them.
const MAX_COLUMNS: usize = 100;

pub fn read(text: &mut TextReader<impl Read>, collector: &mut Collector<'_>, mut progress: impl FnMut(u64)) {
    let end = format!("\n{END}");
    let row_bytes = text.row_bytes();
    let mut rows =
        csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.chain(end.as_bytes()));
    let mut record = csv::StringRecord::new();
    let mut client = CsvClient::default();
    let mut columns: Option<Columns> = None;
    let (mut row, mut is_complete) = (0, false);
    loop {
        row_bytes.begin();
        match rows.read_record(&mut record) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => return collector.problems.row(row + 1, error),
        }
        let bytes = rows.get_ref().get_ref().0.consumed() + end.len() as u64;
        is_complete = record.len() == 1 && record.get(0) == Some(END) && rows.position().byte() == bytes;
        if is_complete {
            break;
        }
        row += 1;
        if row % ROWS_PER_PROGRESS == 0 {
            progress(rows.position().byte());
        }
        match &columns {
            None => match Columns::from_header(&record, &mut collector.problems) {
                Some(parsed) => columns = Some(parsed),
                None => return,
            },
            Some(_) if record.iter().all(|cell| cell.trim().is_empty()) => {}
            Some(columns) => {
                if !collector.has_room(row) {
                    return;
                }
                if let Some(cells) = columns.cells(row, &record, &mut collector.problems) {
                    client.add_row(row, cells, collector);
                }
            }
        }
    }
    let problems = &mut collector.problems;
    if !is_complete {
        problems.row(row, "unclosed quote (\"); close it, or double quotes inside a cell (\"\")");
    } else if columns.is_none() {
        problems.row(1, "file is empty; the first row must name the columns, for example `name,owner`");
    }
}

/// The column names, in the order of the header row.
struct Columns(Vec<&'static str>);

impl Columns {
    fn from_header(header: &csv::StringRecord, problems: &mut Problems) -> Option<Self> {
        let known = [CLIENT_FIELDS, ENTRY_COLUMNS].concat();
        if header.len() > MAX_COLUMNS {
            let found = header.len();
            problems.row(
                1,
                format!("too many columns: at most {MAX_COLUMNS}, found {found}; remove unknown ones"),
            );
            return None;
        }
        if let (1, Some(only)) = (header.len(), header.get(0))
            && let Some(separator) = [';', '\t', '|'].into_iter().find(|sign| only.contains(*sign))
        {
            problems.row(1, format!("wrong separator {separator:?}; save the file with commas"));
            return None;
        }
        let mut columns = Vec::new();
        for name in header {
            let name = name.trim().to_lowercase();
            match known.iter().copied().find(|known| *known == name) {
                Some(column) if columns.contains(&column) => {
                    problems.field(1, &name, "duplicate column; keep one");
                }
                Some(column) => columns.push(column),
                None if name.is_empty() => {
                    problems.row(1, "column without a name; name it, or remove it");
                }
                None => problems.unknown_field(1, "", &name, &known),
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

/// The client of the latest rows, and the cells of the last one.
#[derive(Default)]
struct CsvClient {
    first_row: u64,
    last: BTreeMap<&'static str, String>,
}

impl CsvClient {
    fn add_row(
        &mut self,
        row: u64,
        mut cells: BTreeMap<&'static str, String>,
        collector: &mut Collector<'_>,
    ) {
        let mut entry = EntryRow { row, ..EntryRow::default() };
        let mut has_entry = false;
        for (column, field) in ENTRY_COLUMNS.into_iter().zip(ENTRY_FIELDS) {
            if let (Some(text), Some(cell)) = (cells.remove(column), entry.cell(field)) {
                *cell = Cell::Text(text);
                has_entry = true;
            }
        }
        let first_row = self.first_row;
        if is_same(&self.last, &cells) {
            if !has_entry {
                let what = format!("repeats the client of row {first_row} without an entry; remove it");
                collector.problems.row(row, what);
            }
            for (column, text) in &cells {
                if self.last.get(column) != Some(text) {
                    let what = format!(
                        "differs from row {first_row} of the same client; use the same value or leave it empty"
                    );
                    collector.problems.field(row, column, what);
                }
            }
            collector.entry(entry);
        } else {
            let mut client = ClientRow { row, ..ClientRow::default() };
            client.has_number = cells.contains_key("id");
            for (column, text) in &cells {
                if let Some(cell) = client.cell(column) {
                    *cell = Cell::Text(text.clone());
                }
            }
            client.entries.extend(has_entry.then_some(entry));
            collector.client(client);
            *self = Self { first_row: row, last: cells };
        }
    }
}

/// Rows belong to the same client if they repeat its name and owner, and its number if the file is an export.
fn is_same(last: &BTreeMap<&str, String>, cells: &BTreeMap<&str, String>) -> bool {
    let is_repeated = |column| last.get(column) == cells.get(column);
    cells.contains_key("name") && ["name", "owner", "id"].into_iter().all(is_repeated)
}
