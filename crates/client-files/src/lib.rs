//! Client files, JSON Lines or CSV: clients with all their entries. The portal and the command line write the same files
//! (`write`). They are read back in three steps, row by row, so that a file is never in memory:
//!
//! 1. `text_reader` reads text, and bounds how long a row is;
//! 2. `jsonl` or `csv_rows` parses it into clients and entries with unchecked cells;
//! 3. `checked` validates them: every value within the domain's bounds, every person a member of the firm.
//!
//! `problems` collects all errors with their row and field. A file is accepted as a whole or not at all, so whoever writes
//! the clients reads it to the end first.

mod checked;
mod csv_line;
mod csv_rows;
mod json;
mod jsonl;
mod people;
mod problems;
mod rows;
#[cfg(test)]
mod tests;
mod text_reader;
mod write;

pub use checked::{CheckedClient, ClientPart, FileSummary};
pub use csv_line::{write_csv_cells, write_csv_line};
pub use people::UsersByEmail;
pub use problems::Problems;
pub use write::ClientWriter;

use chancery_domain::{Currency, UnixMillis};
use checked::Collector;
use std::io::Read;
use text_reader::TextReader;

/// Limits per file.
const MAX_CLIENTS: u64 = 200_000;
const MAX_ENTRIES: u64 = 1_000_000;
/// Rows between two calls of `progress`.
const ROWS_PER_PROGRESS: u64 = 256;

/// How clients are written in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// JSON Lines: one client a line
    Jsonl,
    /// Comma-separated values: one entry a row
    Csv,
}

/// What a file does not say.
#[derive(Clone, Copy, Debug)]
pub struct FileContext {
    /// The time of entries without one. `at` and `since` are one day later at most.
    pub now: UnixMillis,
    /// The currency of all amounts.
    pub currency: Currency,
}

/// Reads a file to its end and delivers its clients in parts, until `deliver` returns false or there is a problem. Returns
/// every problem in the file. `progress` receives the number of bytes read so far.
pub fn read_parts(
    source: impl Read,
    format: Format,
    people: &UsersByEmail,
    context: FileContext,
    progress: impl FnMut(u64),
    deliver: &mut dyn FnMut(ClientPart) -> bool,
) -> Result<FileSummary, Problems> {
    let mut text = TextReader::new(source);
    let mut collector = Collector::new(people, context, deliver);
    match format {
        Format::Jsonl => jsonl::read(&mut text, &mut collector, progress),
        Format::Csv => csv_rows::read(&mut text, &mut collector, progress),
    }
    collector.finish(text.consumed())
}

/// The clients of a file that is small enough to be in memory.
pub fn read_clients(
    text: &str,
    format: Format,
    people: &UsersByEmail,
    context: FileContext,
) -> Result<Vec<CheckedClient>, Problems> {
    let mut clients: Vec<CheckedClient> = Vec::new();
    let mut collect = |part: ClientPart| {
        if let Some(last) = clients.last_mut() {
            last.new.entries.extend(part.more_entries);
        }
        clients.extend(part.clients);
        true
    };
    read_parts(text.as_bytes(), format, people, context, |_| {}, &mut collect)?;
    Ok(clients)
}
