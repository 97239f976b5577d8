//! JSON Lines: one client per line, including its entries. Rows are line numbers, counted from 1. Entries are collected as they
//! are read, so that a long line is never in memory.

use super::ROWS_PER_PROGRESS;
use super::checked::Collector;
use super::json::{AnyJson, Json};
use super::problems::Problems;
use super::rows::{CLIENT_FIELDS, Cell, ClientRow, ENTRY_FIELDS, EntryRow};
use super::text_reader::{RowBytes, TextReader};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufRead, ErrorKind, Read};

const ENTRIES: &str = "entries";

/// How many bytes of a client's entries wait in memory for fields that come after them.
const MAX_WAITING_BYTES: usize = 4 * 1024 * 1024;

pub fn read(text: &mut TextReader<impl Read>, collector: &mut Collector<'_>, mut progress: impl FnMut(u64)) {
    for row in 1.. {
        if row % ROWS_PER_PROGRESS == 0 {
            progress(text.consumed());
        }
        match read_line(row, text, collector) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return collector.problems.row(row, error),
        }
    }
}

/// Returns whether there may be more lines.
fn read_line(row: u64, text: &mut TextReader<impl Read>, collector: &mut Collector<'_>) -> io::Result<bool> {
    let row_bytes = text.row_bytes();
    row_bytes.begin();
    let first = loop {
        match text.fill_buf()?.first() {
            None => return Ok(false),
            Some(b'\n') => {
                text.consume(1);
                return Ok(true);
            }
            Some(byte) if byte.is_ascii_whitespace() => text.consume(1),
            Some(byte) => break *byte,
        }
    };
    if !collector.has_room(row) {
        return Ok(false);
    }
    let mut json = serde_json::Deserializer::from_reader(Line(text));
    let parsed = if first == b'{' {
        json.deserialize_map(ClientLine { row, row_bytes: &row_bytes, collector })
    } else {
        Json::deserialize(&mut json).map(|other| {
            let what = format!(
                "expected an object, found {}; write one client per line, as {{\"name\": …}}",
                other.kind()
            );
            collector.problems.row(row, what);
        })
    };
    if let Err(error) = parsed.and_then(|()| json.end()) {
        if error.is_io() {
            let error = io::Error::from(error);
            if error.kind() != ErrorKind::FileTooLarge {
                return Err(error);
            }
            collector.problems.row(row, error);
        } else {
            // Drop the line number: each line is parsed on its own, so it is always 1.
            let what = error.to_string();
            let what = what.split(" at line ").next().unwrap_or_default();
            let column = error.column();
            let what = format!(
                "invalid JSON: {what} at character {column}; write one client per line, as {{\"name\": …}}"
            );
            collector.problems.row(row, what);
        }
    }
    row_bytes.lift();
    text.skip_until(b'\n')?;
    Ok(true)
}

/// The rest of a line, without its end.
struct Line<'a, R>(&'a mut TextReader<R>);

impl<R: Read> Read for Line<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let text = self.0.fill_buf()?;
        let text = &text[..text.len().min(out.len())];
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        out[..line.len()].copy_from_slice(line);
        let read = line.len();
        self.0.consume(read);
        Ok(read)
    }
}

/// Collects the client of a line.
struct ClientLine<'a, 'c> {
    row: u64,
    row_bytes: &'a RowBytes,
    collector: &'a mut Collector<'c>,
}

impl<'de> Visitor<'de> for ClientLine<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a client")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let Self { row, row_bytes, collector } = self;
        // Entries wait for the fields that come after them, unless they are many.
        let mut waiting = Some(ClientRow { row, ..ClientRow::default() });
        let mut waiting_bytes = 0;
        let mut seen = HashSet::new();
        while let Some(name) = fields.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                fields.next_value::<Json>()?;
                collector.problems.field(row, &name, "duplicate field; keep one");
                continue;
            }
            if name == ENTRIES {
                let mut index = 0;
                let mut on_entry = |value| {
                    let bytes = row_bytes.begin();
                    let entry = entry_row(row, index, value, &mut collector.problems);
                    index += 1;
                    match (&mut waiting, entry) {
                        (_, None) => {}
                        (None, Some(entry)) => collector.entry(entry),
                        (Some(client), Some(entry)) => {
                            client.entries.push(entry);
                            waiting_bytes += bytes;
                            if waiting_bytes > MAX_WAITING_BYTES {
                                waiting.take().into_iter().for_each(|client| collector.client(client));
                            }
                        }
                    }
                };
                match fields.next_value_seed(AnyJson(Some(&mut on_entry)))? {
                    Json::List(_) | Json::Null => {}
                    other => {
                        let what = format!("must be a list of entries, not {}", other.kind());
                        collector.problems.field(row, ENTRIES, what);
                    }
                }
                continue;
            }
            let value = fields.next_value::<Json>()?;
            let Some(client) = &mut waiting else {
                let what = "comes after a long list of entries; put `entries` at the end of the line";
                collector.problems.field(row, &name, what);
                continue;
            };
            if name == "id" {
                client.has_number = true;
            } else if let Some(cell) = client.cell(&name) {
                *cell = cell_of(row, &name, value, &mut collector.problems);
            } else {
                let known = [&CLIENT_FIELDS[..], &[ENTRIES]].concat();
                collector.problems.unknown_field(row, "", &name, &known);
            }
        }
        if let Some(client) = waiting {
            collector.client(client);
        }
        Ok(())
    }
}

fn entry_row(row: u64, index: usize, value: Json, problems: &mut Problems) -> Option<EntryRow> {
    let path = format!("{ENTRIES}[{index}]");
    let Json::Object(fields) = value else {
        problems.field(row, &path, format!("must be an object, not {}", value.kind()));
        return None;
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
            None => problems.unknown_field(row, &prefix, &name, &ENTRY_FIELDS),
        }
    }
    Some(entry)
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
