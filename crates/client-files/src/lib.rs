//! Client files, JSON Lines or CSV: clients with all their entries. The portal and the command line write the same files
//! (`write`). They are read back in two steps:
//!
//! 1. `jsonl` or `csv_rows` parses the text into clients and entries with unchecked cells;
//! 2. `checked` validates them: every value within the domain's bounds, every person a member of the firm.
//!
//! `problems` collects all errors with their row and field. A file is accepted as a whole or not at all.

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
mod write;

pub use checked::CheckedClient;
pub use csv_line::{write_csv_cells, write_csv_line};
pub use people::UsersByEmail;
pub use problems::Problems;
pub use write::ClientWriter;

use chancery_domain::{Currency, UnixMillis};

/// Limits per file.
const MAX_CLIENTS: usize = 200_000;
const MAX_ENTRIES: usize = 1_000_000;
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

#[derive(Debug, Default)]
pub struct ClientFile {
    pub clients: Vec<CheckedClient>,
    /// Whether the file is an export, with client numbers. An import ignores them and assigns new ones.
    pub has_numbers: bool,
}

impl ClientFile {
    pub fn entries(&self) -> usize {
        self.clients.iter().map(|client| client.new.entries.len()).sum()
    }
}

/// What a file does not say.
#[derive(Clone, Copy, Debug)]
pub struct FileContext {
    /// The time of entries without one. `at` and `since` are one day later at most.
    pub now: UnixMillis,
    /// The currency of all amounts.
    pub currency: Currency,
}

/// Returns the clients of a file, or every problem in it. `progress` receives the number of bytes read so far.
pub fn read_clients(
    text: &str,
    format: Format,
    people: &UsersByEmail,
    context: FileContext,
    progress: impl FnMut(u64),
) -> Result<ClientFile, Problems> {
    let mut problems = Problems::default();
    let rows = match format {
        Format::Jsonl => jsonl::read(text, &mut problems, progress),
        Format::Csv => csv_rows::read(text, &mut problems, progress),
    };
    let has_numbers = rows.iter().any(|row| row.has_number);
    let clients = checked::check(rows, people, context, &mut problems);
    if problems.is_empty() { Ok(ClientFile { clients, has_numbers }) } else { Err(problems) }
}
