//! Writes clients with all their entries. `read_clients` reads them back without loss, except for their numbers, which the
//! firm assigns itself.

use crate::Format;
use crate::csv_line::write_csv_line;
use crate::rows::{CLIENT_FIELDS, ENTRY_COLUMNS};
use chancery_domain::{Client, Entry};
use std::io::{self, Write};

impl Format {
    /// Writes the CSV header. JSON Lines has none.
    pub fn write_header(self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Jsonl => Ok(()),
            Self::Csv => write_csv_line(out, CLIENT_FIELDS.into_iter().chain(ENTRY_COLUMNS)),
        }
    }

    pub fn write_client(self, out: &mut impl Write, client: &Client, entries: &[Entry]) -> io::Result<()> {
        let line = ClientLine::new(client, entries);
        match self {
            Self::Jsonl => {
                serde_json::to_writer(&mut *out, &line)?;
                out.write_all(b"\n")
            }
            Self::Csv => line.write_csv(out),
        }
    }
}

#[derive(serde::Serialize)]
struct ClientLine<'a> {
    id: i64,
    name: &'a str,
    owner: &'a str,
    contact: &'a str,
    email: &'a str,
    telephone: &'a str,
    address: &'a str,
    since: Option<String>,
    archived: bool,
    entries: Vec<EntryLine<'a>>,
}

#[derive(serde::Serialize)]
struct EntryLine<'a> {
    kind: &'static str,
    title: &'a str,
    text: &'a str,
    at: String,
    author: &'a str,
    open: bool,
    archived: bool,
}

impl<'a> ClientLine<'a> {
    /// Reverses the entries: records list the newest first, files the oldest, so that an import restores the original order.
    fn new(client: &'a Client, entries: &'a [Entry]) -> Self {
        let entry = |entry: &'a Entry| EntryLine {
            kind: entry.kind.as_str(),
            title: entry.title.as_str(),
            text: entry.text.as_str(),
            at: entry.at.to_iso(),
            author: entry.author.email.as_str(),
            open: entry.is_open,
            archived: entry.archived_at.is_some(),
        };
        Self {
            id: client.id.0,
            name: client.name.as_str(),
            owner: client.owner.email.as_str(),
            contact: client.details.contact.as_str(),
            email: client.details.email.as_str(),
            telephone: client.details.telephone.as_str(),
            address: client.details.address.as_str(),
            since: client.details.since.map(|day| day.to_string()),
            archived: client.archived_at.is_some(),
            entries: entries.iter().rev().map(entry).collect(),
        }
    }

    /// Writes one row per entry, or one row for a client without entries. Only the first row has the client's details; the others
    /// repeat its number, name and owner.
    fn write_csv(&self, out: &mut impl Write) -> io::Result<()> {
        let id = self.id.to_string();
        let since = self.since.as_deref().unwrap_or_default();
        let archived = self.archived.to_string();
        let identity = [id.as_str(), self.name, self.owner];
        let details = [self.contact, self.email, self.telephone, self.address, since, &archived];
        if self.entries.is_empty() {
            return write_csv_line(out, identity.into_iter().chain(details).chain([""; 7]));
        }
        for (index, entry) in self.entries.iter().enumerate() {
            let details = if index == 0 { details } else { [""; 6] };
            let (open, archived) = (entry.open.to_string(), entry.archived.to_string());
            let cells = [entry.kind, entry.title, entry.text, &entry.at, entry.author, &open, &archived];
            write_csv_line(out, identity.into_iter().chain(details).chain(cells))?;
        }
        Ok(())
    }
}
