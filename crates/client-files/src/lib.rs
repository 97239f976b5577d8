//! Files of clients, JSON Lines or CSV, read in three steps that tell everything that is wrong before anything is written:
//!
//! 1. `source` takes the bytes in, within their bound, as text;
//! 2. `jsonl` or `csv_rows` takes it apart into clients and entries with unchecked cells;
//! 3. `checked` makes clients of them, within the domain's bounds and with people of the firm.
//!
//! What is wrong is collected by `problems`, with the row and the field. What is written is `chancery client import`'s part.

mod checked;
mod csv_rows;
mod json;
mod jsonl;
mod people;
mod problems;
mod rows;
mod source;
#[cfg(test)]
mod tests;

pub use checked::CheckedClient;
pub use people::PeopleByAddress;
pub use problems::Problems;
pub use source::{Format, is_standard, read_source};

use chancery_domain::UnixMillis;

/// The largest file that is taken: it is held in memory, and imported in one step.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// The most clients and entries of one file.
const MAX_CLIENTS: usize = 200_000;
const MAX_ENTRIES: usize = 1_000_000;

/// What a file says.
#[derive(Debug, Default)]
pub struct ClientFile {
    pub clients: Vec<CheckedClient>,
    /// Whether it was made by an export: its clients have numbers, which they do not keep.
    pub has_numbers: bool,
}

impl ClientFile {
    pub fn entries(&self) -> usize {
        self.clients.iter().map(|client| client.new.entries.len()).sum()
    }
}

/// The clients of a file, or everything that is wrong with it. `progress` is told how many bytes of it have been looked at.
/// An entry without a time has happened `now`.
pub fn read_clients(
    text: &str,
    format: Format,
    people: &PeopleByAddress,
    now: UnixMillis,
    progress: impl FnMut(u64),
) -> Result<ClientFile, Problems> {
    let mut problems = Problems::default();
    let rows = match format {
        Format::Jsonl => jsonl::read(text, &mut problems, progress),
        Format::Csv => csv_rows::read(text, &mut problems, progress),
    };
    let has_numbers = rows.iter().any(|row| row.has_number);
    let clients = checked::check(rows, people, now, &mut problems);
    if problems.is_empty() { Ok(ClientFile { clients, has_numbers }) } else { Err(problems) }
}
