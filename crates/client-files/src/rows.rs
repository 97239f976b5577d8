//! Clients and entries as a file has them, whatever its format: cells that nobody has checked, and where they stand.

/// One value of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cell {
    #[default]
    Absent,
    /// It is of the wrong form, and that has been told.
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
    /// Whether it says which number it had where it was exported.
    pub has_number: bool,
    pub entries: Vec<EntryRow>,
}

#[derive(Debug, Default)]
pub struct EntryRow {
    pub row: u64,
    /// Where its fields stand within the row: nothing, or a path that ends with a dot.
    pub within: String,
    pub kind: Cell,
    pub title: Cell,
    pub text: Cell,
    pub at: Cell,
    pub author: Cell,
    pub open: Cell,
    pub archived: Cell,
}

/// The names of a client's fields, in JSON and in the head of a CSV file, in the order in which exports have them.
pub const CLIENT_FIELDS: [&str; 9] =
    ["id", "name", "owner", "contact", "email", "telephone", "address", "since", "archived"];

/// Those of an entry, in JSON.
pub const ENTRY_FIELDS: [&str; 7] = ["kind", "title", "text", "at", "author", "open", "archived"];

/// The same in the head of a CSV file, where `archived` is the client's.
pub const ENTRY_COLUMNS: [&str; 7] = ["kind", "title", "text", "at", "author", "open", "entry_archived"];

impl ClientRow {
    /// The cell of that name; `id` is none, since numbers are not taken over.
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
            _ => None,
        }
    }

    /// What its file calls whether it is archived.
    pub fn archived_name(&self) -> &'static str {
        if self.within.is_empty() { "entry_archived" } else { "archived" }
    }
}
