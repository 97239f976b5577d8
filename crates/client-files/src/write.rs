//! Clients as exports have them, JSON Lines or CSV, whole and with all their entries: what `chancery client import` reads
//! back without loss, but for the numbers, which are the firm's own. The portal's files and the command line's are the same.

use crate::csv_line::write_csv_line;
use chancery_domain::{Client, Entry};
use std::io::{self, Write};

/// Of a CSV file: first the client's columns, then the entry's, one entry a row.
pub const CSV_COLUMNS: [&str; 16] = [
    "id",
    "name",
    "owner",
    "contact",
    "email",
    "telephone",
    "address",
    "since",
    "archived",
    "kind",
    "title",
    "text",
    "at",
    "author",
    "open",
    "entry_archived",
];

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
    /// Records have the newest entry first, files the oldest: so they are written again in the order in which they came.
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
            contact: client.facts.contact.as_str(),
            email: client.facts.email.as_str(),
            telephone: client.facts.telephone.as_str(),
            address: client.facts.address.as_str(),
            since: client.facts.since.map(|day| day.to_string()),
            archived: client.archived_at.is_some(),
            entries: entries.iter().rev().map(entry).collect(),
        }
    }
}

/// One line: the client and its entries.
pub fn write_jsonl_client(out: &mut impl Write, client: &Client, entries: &[Entry]) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &ClientLine::new(client, entries))?;
    out.write_all(b"\n")
}

/// The names of the columns, the first line of a CSV file.
pub fn write_csv_head(out: &mut impl Write) -> io::Result<()> {
    write_csv_line(out, CSV_COLUMNS)
}

/// A line for each entry, and one for a client that has none. The client's facts stand in its first line alone; the others
/// repeat who it is.
pub fn write_csv_client(out: &mut impl Write, client: &Client, entries: &[Entry]) -> io::Result<()> {
    let line = ClientLine::new(client, entries);
    let id = line.id.to_string();
    let since = line.since.as_deref().unwrap_or_default();
    let archived = line.archived.to_string();
    let facts = [line.contact, line.email, line.telephone, line.address, since, &archived];
    if line.entries.is_empty() {
        let cells = [&id, line.name, line.owner].into_iter().chain(facts).chain([""; 7]);
        return write_csv_line(out, cells);
    }
    for (place, entry) in line.entries.iter().enumerate() {
        let facts = if place == 0 { facts } else { [""; 6] };
        let (open, archived) = (entry.open.to_string(), entry.archived.to_string());
        let told = [entry.kind, entry.title, entry.text, &entry.at, entry.author, &open, &archived];
        write_csv_line(out, [&id, line.name, line.owner].into_iter().chain(facts).chain(told))?;
    }
    Ok(())
}
