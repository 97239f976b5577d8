//! What a change did, in words: each field with its old and its new value. Texts of entries are too long for a list, so they
//! are only said to be edited; the entry's history has them.

use chancery_domain::{Currency, EntryKind, PersonRef, UnixMillis};
use chancery_store::{AuditListRow, ChangedEntry, FieldChange, FieldValue, RecordChange, RecordField};
use serde_json::{Value, json};

/// One changed field of a client or an entry, or that an entry was added.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChangeLine {
    /// `Name`, `Note “Second fermenter”: title`.
    pub(super) label: String,
    /// The old and the new value. `None` for a text, and for what was added.
    pub(super) values: Option<(String, String)>,
    /// The page with all versions.
    pub(super) history: String,
}

/// How people, times and amounts are written.
pub(super) struct ValueFormat<'a> {
    pub(super) person: &'a dyn Fn(&PersonRef) -> String,
    pub(super) time: &'a dyn Fn(UnixMillis) -> String,
    pub(super) currency: Currency,
}

impl ValueFormat<'_> {
    fn write(&self, change: &FieldChange, value: &FieldValue, kind: Option<EntryKind>) -> String {
        match value {
            FieldValue::Text(text) if text.is_empty() => "(empty)".to_owned(),
            FieldValue::Text(text) => text.replace('\n', ", "),
            FieldValue::LongText { .. } => String::new(),
            FieldValue::Amount(None) => "(empty)".to_owned(),
            FieldValue::Amount(Some(amount)) => self.currency.format_amount(*amount),
            FieldValue::Time(at) => (self.time)(*at),
            FieldValue::Person(person) => (self.person)(person),
            FieldValue::Flag(is_so) => match (change.field, kind, *is_so) {
                (RecordField::Open, Some(EntryKind::DraftLetter), true) => "Draft",
                (RecordField::Open, Some(EntryKind::DraftLetter), false) => "Sent",
                (RecordField::Open, _, true) => "Open",
                (RecordField::Open, _, false) => "Resolved",
                (_, _, true) => "Yes",
                (_, _, false) => "No",
            }
            .to_owned(),
        }
    }
}

/// The changes that a row of the log made.
pub(super) fn lines(
    line: &AuditListRow,
    changes: &[RecordChange],
    format: &ValueFormat<'_>,
) -> Vec<ChangeLine> {
    changes.iter().filter(|change| change.is_of(line)).flat_map(|change| of_change(change, format)).collect()
}

fn of_change(change: &RecordChange, format: &ValueFormat<'_>) -> Vec<ChangeLine> {
    let client = change.client;
    let history = match &change.entry {
        None => format!("/clients/{client}/versions"),
        Some(entry) => format!("/clients/{client}/entries/{}/versions", entry.id),
    };
    if change.is_new {
        let label = change
            .entry
            .as_ref()
            .map_or_else(|| "Client created".to_owned(), |entry| format!("{} added", entry_name(entry)));
        return vec![ChangeLine { label, values: None, history }];
    }
    let kind = change.entry.as_ref().map(|entry| entry.kind);
    let line = |field: &FieldChange| {
        let label = match &change.entry {
            None => label(field.field).to_owned(),
            Some(entry) => format!("{}: {}", entry_name(entry), label(field.field).to_lowercase()),
        };
        let values = match field.old {
            FieldValue::LongText { .. } => None,
            _ => Some((format.write(field, &field.old, kind), format.write(field, &field.new, kind))),
        };
        let label = if values.is_none() { format!("{label} edited") } else { label };
        ChangeLine { label, values, history: history.clone() }
    };
    change.fields.iter().map(line).collect()
}

fn entry_name(entry: &ChangedEntry) -> String {
    let noun = match entry.kind {
        EntryKind::MeetingNote => "Note",
        EntryKind::BillingDispute => "Dispute",
        EntryKind::DraftLetter => "Letter",
    };
    format!("{noun} “{}”", entry.title)
}

fn label(field: RecordField) -> &'static str {
    match field {
        RecordField::Name => "Name",
        RecordField::Contact => "Contact",
        RecordField::Email => "Email",
        RecordField::Telephone => "Telephone",
        RecordField::Address => "Address",
        RecordField::Since => "Client since",
        RecordField::Owner => "Owner",
        RecordField::Title => "Title",
        RecordField::Text => "Text",
        RecordField::Date => "Date",
        RecordField::Open => "Status",
        RecordField::Amount => "Amount",
        RecordField::Due => "Due",
        RecordField::Archived => "Archived",
    }
}

/// `Name: Acme → Acme Ltd; Owner: ann@example.com → ben@example.com`, for files.
pub(super) fn as_text(line: &AuditListRow, changes: &[RecordChange], currency: Currency) -> String {
    let person = |person: &PersonRef| person.email.to_string();
    let format = ValueFormat { person: &person, time: &UnixMillis::to_iso, currency };
    let lines = lines(line, changes, &format);
    let text = lines.iter().map(|line| match &line.values {
        None => line.label.clone(),
        Some((old, new)) => format!("{}: {old} → {new}", line.label),
    });
    text.collect::<Vec<_>>().join("; ")
}

pub(super) fn as_json(line: &AuditListRow, changes: &[RecordChange], currency: Currency) -> Vec<Value> {
    let value = |value: &FieldValue| match value {
        FieldValue::Text(text) => json!(text),
        FieldValue::LongText { .. } => Value::Null,
        FieldValue::Time(at) => json!(at.to_iso()),
        FieldValue::Person(person) => json!(person.email.as_str()),
        FieldValue::Flag(is_so) => json!(is_so),
        FieldValue::Amount(amount) => json!(amount.map(|amount| currency.to_decimal_string(amount))),
    };
    let field = |change: &FieldChange| json!({ "field": name(change.field), "old": value(&change.old), "new": value(&change.new) });
    let of_row = changes.iter().filter(|change| change.is_of(line));
    let change = |change: &RecordChange| {
        json!({
            "entry": change.entry.as_ref().map(|entry| entry.id.0),
            "kind": change.entry.as_ref().map(|entry| entry.kind.as_str()),
            "created": change.is_new,
            "fields": change.fields.iter().map(field).collect::<Vec<_>>(),
        })
    };
    of_row.map(change).collect()
}

/// As in the JSON of records and in import files.
fn name(field: RecordField) -> &'static str {
    match field {
        RecordField::Name => "name",
        RecordField::Contact => "contact",
        RecordField::Email => "email",
        RecordField::Telephone => "telephone",
        RecordField::Address => "address",
        RecordField::Since => "since",
        RecordField::Owner => "owner",
        RecordField::Title => "title",
        RecordField::Text => "text",
        RecordField::Date => "at",
        RecordField::Open => "open",
        RecordField::Amount => "amount",
        RecordField::Due => "due",
        RecordField::Archived => "archived",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{ClientId, EntryId, MinorUnits};

    fn changed(entry: Option<ChangedEntry>, field: RecordField, [old, new]: [FieldValue; 2]) -> Vec<String> {
        let fields = vec![FieldChange { field, old, new }];
        let change =
            RecordChange { client: ClientId(7), entry, by: None, at: UnixMillis(0), is_new: false, fields };
        let person = |person: &PersonRef| person.email.to_string();
        let format = ValueFormat { person: &person, time: &UnixMillis::to_iso, currency: Currency::USD };
        let lines = of_change(&change, &format).into_iter();
        let text = lines.map(|line| match line.values {
            None => format!("{} ({})", line.label, line.history),
            Some((old, new)) => format!("{}: {old} → {new} ({})", line.label, line.history),
        });
        text.collect()
    }

    #[test]
    fn changes_name_the_field_with_its_old_and_new_value() {
        let text = |text: &str| FieldValue::Text(text.to_owned());
        assert_eq!(
            changed(None, RecordField::Address, [text(""), text("4 Weir Street\nLowell")]),
            ["Address: (empty) → 4 Weir Street, Lowell (/clients/7/versions)"]
        );
        let letter = ChangedEntry { id: EntryId(3), kind: EntryKind::DraftLetter, title: "Offer".to_owned() };
        assert_eq!(
            changed(
                Some(letter.clone()),
                RecordField::Open,
                [FieldValue::Flag(true), FieldValue::Flag(false)]
            ),
            ["Letter “Offer”: status: Draft → Sent (/clients/7/entries/3/versions)"]
        );
        let texts = [FieldValue::LongText { differs: true }, FieldValue::LongText { differs: false }];
        assert_eq!(
            changed(Some(letter), RecordField::Text, texts),
            ["Letter “Offer”: text edited (/clients/7/entries/3/versions)"]
        );
        let dispute =
            ChangedEntry { id: EntryId(4), kind: EntryKind::BillingDispute, title: "Flour".to_owned() };
        let amounts = [FieldValue::Amount(None), FieldValue::Amount(Some(MinorUnits(12_050)))];
        assert_eq!(
            changed(Some(dispute), RecordField::Amount, amounts),
            ["Dispute “Flour”: amount: (empty) → $120.50 (/clients/7/entries/4/versions)"]
        );
    }
}
