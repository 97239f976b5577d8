//! Clients as JSON. Field names come from the specification; additional fields follow.

use chancery_domain::{Client, ClientId, ContactDetails, Currency, DisputeStatus, Entry, EntryKind};
use chancery_store::{ClientPage, ClientQuery, EntryMatch};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{self, Write};

/// With a search, each client has its `matches`.
pub(super) fn list(
    found: &ClientPage,
    query: &ClientQuery,
    matches: &HashMap<ClientId, Vec<EntryMatch>>,
    pages: u32,
) -> Value {
    let clients: Vec<Value> = found
        .lines
        .iter()
        .map(|line| {
            let Client { id, name, owner, .. } = &line.client;
            let mut value = json!({"id": id, "name": name, "owner": owner.email.as_str()});
            if !query.words.is_empty() {
                value["matches"] = matches.get(id).into_iter().flatten().map(match_value).collect();
            }
            value
        })
        .collect();
    json!({"clients": clients, "page": query.page, "pages": pages, "total": found.total.known()})
}

fn match_value(found: &EntryMatch) -> Value {
    json!({"kind": found.kind.as_str(), "id": found.id, "snippet": found.snippet()})
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
    /// Of the amounts of disputes.
    currency: Currency,
    /// The list that is being written, as an index of `LISTS`.
    list: usize,
    is_list_empty: bool,
}

impl RecordWriter {
    pub(super) fn begin(out: &mut impl Write, client: Client, currency: Currency) -> io::Result<Self> {
        let Client { id, name, owner, .. } = &client;
        write_fields(out, &json!({"id": id, "name": name, "owner": owner.email.as_str()}), b"{")?;
        let writer = Self { client, currency, list: 0, is_list_empty: true };
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
            serde_json::to_writer(&mut *out, &entry_value(entry, self.currency))?;
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

fn entry_value(entry: &Entry, currency: Currency) -> Value {
    let Entry { id, at, author, title, text, kind, is_open, dispute, version, sent, .. } = entry;
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
    if *kind == EntryKind::BillingDispute {
        value["status"] = json!(DisputeStatus::of(*is_open).as_str());
        value["amount"] = json!(dispute.amount.map(|amount| currency.to_decimal_string(amount)));
        value["currency"] = json!(currency.as_str());
        value["due"] = json!(dispute.due);
    }
    if *kind == EntryKind::DraftLetter {
        value["status"] = json!(if *is_open { "draft" } else { "sent" });
        value["sent_at"] = json!(sent.as_ref().map(|sent| sent.at.to_iso()));
        value["sent_to"] = json!(sent.as_ref().map(|sent| sent.to.as_str()));
    }
    value
}
