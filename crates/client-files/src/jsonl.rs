//! JSON Lines: one client per line, including its entries. Rows are line numbers, counted from 1.

use super::json::Json;
use super::problems::Problems;
use super::rows::{CLIENT_FIELDS, Cell, ClientRow, ENTRY_FIELDS, EntryRow};
use super::{MAX_CLIENTS, MAX_ENTRIES, ROWS_PER_PROGRESS};
use chancery_domain::closest_match;
use std::collections::HashSet;

const ENTRIES: &str = "entries";

pub fn read(text: &str, problems: &mut Problems, mut progress: impl FnMut(u64)) -> Vec<ClientRow> {
    let mut clients = Vec::new();
    let (mut bytes, mut entries) = (0, 0);
    for (line, row) in text.split('\n').zip(1..) {
        bytes += line.len() as u64 + 1;
        if row % ROWS_PER_PROGRESS == 0 {
            progress(bytes);
        }
        if line.trim().is_empty() {
            continue;
        }
        if clients.len() == MAX_CLIENTS || entries >= MAX_ENTRIES {
            problems.row(row, too_many());
            break;
        }
        if let Some(client) = client(row, line, problems) {
            entries += client.entries.len();
            clients.push(client);
        }
    }
    clients
}

pub fn too_many() -> String {
    format!("file too large: at most {MAX_CLIENTS} clients and {MAX_ENTRIES} entries; split it")
}

fn client(row: u64, line: &str, problems: &mut Problems) -> Option<ClientRow> {
    let fields = match serde_json::from_str(line) {
        Ok(Json::Object(fields)) => fields,
        Ok(other) => {
            problems.row(
                row,
                format!(
                    "expected an object, found {}; write one client per line, as {{\"name\": …}}",
                    other.kind()
                ),
            );
            return None;
        }
        Err(error) => {
            // Drop the line number: each line is parsed on its own, so it is always 1.
            let what = error.to_string();
            let what = what.split(" at line ").next().unwrap_or_default();
            let column = error.column();
            problems.row(
                row,
                format!("invalid JSON: {what} at character {column}; write one client per line, as {{\"name\": …}}"),
            );
            return None;
        }
    };
    let mut client = ClientRow { row, ..ClientRow::default() };
    let mut seen = HashSet::new();
    for (name, value) in fields {
        if !seen.insert(name.clone()) {
            problems.field(row, &name, "duplicate field; keep one");
            continue;
        }
        match (name.as_str(), value) {
            ("id", _) => client.has_number = true,
            (ENTRIES, value) => client.entries = entries(row, value, problems),
            (known, value) => match client.cell(known) {
                Some(cell) => *cell = cell_of(row, known, value, problems),
                None => unknown(row, known, CLIENT_FIELDS.into_iter().chain([ENTRIES]), "", problems),
            },
        }
    }
    Some(client)
}

fn entries(row: u64, value: Json, problems: &mut Problems) -> Vec<EntryRow> {
    let values = match value {
        Json::List(values) => values,
        Json::Null => return Vec::new(),
        other => {
            problems.field(row, ENTRIES, format!("must be a list of entries, not {}", other.kind()));
            return Vec::new();
        }
    };
    let mut entries = Vec::with_capacity(values.len());
    for (value, index) in values.into_iter().zip(0_usize..) {
        let path = format!("{ENTRIES}[{index}]");
        let Json::Object(fields) = value else {
            problems.field(row, &path, format!("must be an object, not {}", value.kind()));
            continue;
        };
        let prefix = format!("{path}.");
        let mut entry = EntryRow { row, prefix: prefix.clone(), ..EntryRow::default() };
        let mut seen = HashSet::new();
        for (name, value) in fields {
            let path = format!("{prefix}{name}");
            if !seen.insert(name.clone()) {
                problems.field(row, &path, "duplicate field; keep one");
                continue;
            }
            match entry.cell(&name) {
                Some(cell) => *cell = cell_of(row, &path, value, problems),
                None => unknown(row, &name, ENTRY_FIELDS, &prefix, problems),
            }
        }
        entries.push(entry);
    }
    entries
}

/// `open` and `archived` are booleans, everything else is text.
fn cell_of(row: u64, path: &str, value: Json, problems: &mut Problems) -> Cell {
    let name = path.rsplit('.').next().unwrap_or(path);
    let is_boolean = matches!(name, "open" | "archived");
    match value {
        Json::Null => Cell::Absent,
        Json::Bool(value) if is_boolean => Cell::Text(value.to_string()),
        Json::Text(text) if !is_boolean => Cell::Text(text),
        other => {
            let expected = if is_boolean { "true or false, without quotes" } else { "a quoted string" };
            problems.field(row, path, format!("must be {expected}, not {}", other.kind()));
            Cell::Wrong
        }
    }
}

fn unknown<'a>(
    row: u64,
    name: &str,
    known: impl IntoIterator<Item = &'a str> + Clone,
    prefix: &str,
    problems: &mut Problems,
) {
    problems.field(row, &format!("{prefix}{name}"), unknown_field(name, known));
}

pub fn unknown_field<'a>(name: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match closest_match(name, known.clone()) {
        Some(meant) => format!("unknown field; did you mean `{meant}`?"),
        None => {
            let known: Vec<&str> = known.into_iter().collect();
            format!("unknown field; known fields: {}", known.join(", "))
        }
    }
}
