//! Clients and entries as parsed from a file of either format: unchecked cells and their positions.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cell {
    #[default]
    Absent,
    /// The value has the wrong type, which is already reported.
    Wrong,
    Text(String),
}

#[derive(Debug, Default)]
pub struct ClientRow {
    pub row: u64,
    pub name: Cell,
    pub owner: Cell,
    pub contact: Cell,
    pub email: Cell,
    pub telephone: Cell,
    pub address: Cell,
    pub since: Cell,
    pub archived: Cell,
    /// Whether the row has the client's number at export.
    pub has_number: bool,
    pub entries: Vec<EntryRow>,
}

#[derive(Debug, Default)]
pub struct EntryRow {
    pub row: u64,
    /// Prefix of field names in errors: empty, or a path that ends with a dot.
    pub prefix: String,
    pub kind: Cell,
    pub title: Cell,
    pub text: Cell,
    pub at: Cell,
    pub author: Cell,
    pub open: Cell,
    pub archived: Cell,
    /// In the firm's currency.
    pub amount: Cell,
    pub due: Cell,
}

/// Names of a client's fields in JSON and in the CSV header, in export order.
pub const CLIENT_FIELDS: [&str; 9] =
    ["id", "name", "owner", "contact", "email", "telephone", "address", "since", "archived"];

/// Names of an entry's fields in JSON.
pub const ENTRY_FIELDS: [&str; 9] =
    ["kind", "title", "text", "at", "author", "open", "archived", "amount", "due"];

/// Names of an entry's columns in CSV, where `archived` is the client's column.
pub const ENTRY_COLUMNS: [&str; 9] =
    ["kind", "title", "text", "at", "author", "open", "entry_archived", "amount", "due"];

impl ClientRow {
    /// Returns the cell with this name. `id` has none: numbers are not imported.
    pub fn cell(&mut self, name: &str) -> Option<&mut Cell> {
        match name {
            "name" => Some(&mut self.name),
            "owner" => Some(&mut self.owner),
            "contact" => Some(&mut self.contact),
            "email" => Some(&mut self.email),
            "telephone" => Some(&mut self.telephone),
            "address" => Some(&mut self.address),
            "since" => Some(&mut self.since),
            "archived" => Some(&mut self.archived),
            _ => None,
        }
    }
}

impl EntryRow {
    pub fn cell(&mut self, name: &str) -> Option<&mut Cell> {
        match name {
            "kind" => Some(&mut self.kind),
            "title" => Some(&mut self.title),
            "text" => Some(&mut self.text),
            "at" => Some(&mut self.at),
            "author" => Some(&mut self.author),
            "open" => Some(&mut self.open),
            "archived" => Some(&mut self.archived),
            "amount" => Some(&mut self.amount),
            "due" => Some(&mut self.due),
            _ => None,
        }
    }

    /// The name of the field in the file's format.
    pub fn archived_name(&self) -> &'static str {
        if self.prefix.is_empty() { "entry_archived" } else { "archived" }
    }
}
