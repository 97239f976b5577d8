//! Clients as JSON. Field names come from the specification; additional fields follow.

use chancery_domain::{Client, ContactDetails, Entry, EntryKind};
use chancery_store::{ClientPage, ClientRecord};
use serde_json::{Value, json};

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

pub(super) fn record(record: &ClientRecord) -> Value {
    let Client { id, name, details, owner, version, archived_at, .. } = &record.client;
    let ContactDetails { contact, email, telephone, address, since } = details;
    let of_kind = |kind: EntryKind| -> Vec<Value> {
        record.entries.iter().filter(|entry| entry.kind == kind).map(entry).collect()
    };
    json!({
        "id": id,
        "name": name,
        "owner": owner.email.as_str(),
        "meeting_notes": of_kind(EntryKind::MeetingNote),
        "billing_disputes": of_kind(EntryKind::BillingDispute),
        "draft_letters": of_kind(EntryKind::DraftLetter),
        "contact": contact,
        "email": email,
        "telephone": telephone,
        "address": address,
        "since": since,
        "version": version,
        "archived": archived_at.is_some(),
    })
}

fn entry(entry: &Entry) -> Value {
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
