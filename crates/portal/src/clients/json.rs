//! Clients as JSON. Field names come from the specification; additional fields follow.

use chancery_domain::{Client, ContactDetails, Entry, EntryKind};
use chancery_store::ClientPage;
use serde_json::{Value, json};
use std::io::{self, Write};

pub(super) fn list(found: &ClientPage, page: u32, pages: u32) -> Value {
    let clients: Vec<Value> = found
        .lines
        .iter()
        .map(|line| {
            let Client { id, name, owner, .. } = &line.client;
            json!({"id": id, "name": name, "owner": owner.email.as_str()})
        })
        .collect();
    json!({"clients": clients, "page": page, "pages": pages, "total": found.total})
}

/// The lists of a record, in the order in which the store reads its entries.
const LISTS: [(EntryKind, &str); 3] = [
    (EntryKind::MeetingNote, "meeting_notes"),
    (EntryKind::BillingDispute, "billing_disputes"),
    (EntryKind::DraftLetter, "draft_letters"),
];

/// Writes a record in parts, because its entries may be hundreds of megabytes.
pub(super) struct RecordWriter {
    client: Client,
    /// The list that is being written, as an index of `LISTS`.
    list: usize,
    is_list_empty: bool,
}

impl RecordWriter {
    pub(super) fn begin(out: &mut impl Write, client: Client) -> io::Result<Self> {
        let Client { id, name, owner, .. } = &client;
        write_fields(out, &json!({"id": id, "name": name, "owner": owner.email.as_str()}), b"{")?;
        let writer = Self { client, list: 0, is_list_empty: true };
        writer.begin_list(out)?;
        Ok(writer)
    }

    /// Adds entries, by kind in the order of `LISTS`.
    pub(super) fn write_entries(&mut self, out: &mut impl Write, entries: &[Entry]) -> io::Result<()> {
        for entry in entries {
            while LISTS[self.list].0 != entry.kind {
                if self.list + 1 == LISTS.len() {
                    return Err(io::Error::other("the entries are not ordered by kind"));
                }
                self.next_list(out)?;
            }
            if !self.is_list_empty {
                out.write_all(b",")?;
            }
            serde_json::to_writer(&mut *out, &entry_value(entry))?;
            self.is_list_empty = false;
        }
        Ok(())
    }

    pub(super) fn finish(mut self, out: &mut impl Write) -> io::Result<()> {
        while self.list + 1 < LISTS.len() {
            self.next_list(out)?;
        }
        out.write_all(b"]")?;
        let Client { details, version, archived_at, .. } = &self.client;
        let ContactDetails { contact, email, telephone, address, since } = details;
        let details = json!({
            "contact": contact,
            "email": email,
            "telephone": telephone,
            "address": address,
            "since": since,
            "version": version,
            "archived": archived_at.is_some(),
        });
        write_fields(out, &details, b",")?;
        out.write_all(b"}")
    }

    fn begin_list(&self, out: &mut impl Write) -> io::Result<()> {
        write!(out, ",\"{}\":[", LISTS[self.list].1)
    }

    fn next_list(&mut self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(b"]")?;
        self.list += 1;
        self.is_list_empty = true;
        self.begin_list(out)
    }
}

/// Writes the fields of an object without its braces, after `before`.
fn write_fields(out: &mut impl Write, object: &Value, before: &[u8]) -> io::Result<()> {
    let text = serde_json::to_vec(object)?;
    out.write_all(before)?;
    out.write_all(&text[1..text.len() - 1])
}

fn entry_value(entry: &Entry) -> Value {
    let Entry { id, at, author, title, text, kind, is_open, version, .. } = entry;
    let mut value = json!({
        "id": id,
        "at": at.to_iso(),
        "author": author.email.as_str(),
        "title": title,
        "text": text,
        "version": version,
    });
    if kind.can_be_open() {
        value["open"] = json!(is_open);
    }
    value
}
