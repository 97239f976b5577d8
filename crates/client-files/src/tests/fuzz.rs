//! Fuzz targets of imported files. What is accepted survives an export and an import in both formats; what is not gets a short
//! list of problems that is safe to print.

use super::{ANN, exported, imported, read};
use crate::Format;
use crate::rows::{CLIENT_FIELDS, ENTRY_COLUMNS, ENTRY_FIELDS};
use chancery_test_support::Fuzz;

const CRATE_FOLDER: &str = env!("CARGO_MANIFEST_DIR");
/// The first problems, and one line with the number of the others.
const MAX_LINES: usize = 51;

const JSONL: [&str; 2] = [
    r#"{"id":1042,"name":"Harbour Lane Bakery","owner":"maya@example.com","contact":"Priya Raman","email":"priya@harbourlane.example","telephone":"+1 617 555 0142","address":"12 Harbour Lane\nBoston","since":"2024-03-04","archived":false,"entries":[{"kind":"billing_dispute","title":"Three hours","text":"One\r\ntwo","at":"2026-11-12T15:30:00Z","author":"omar@example.com","open":false,"archived":true},{"kind":"draft_letter","title":"Credit","text":"Dear Ms Raman","at":"2026-11-12"}]}
"#,
    "{\"name\":\"One\",\"owner\":\"maya@example.com\"}\n\n{\"name\":\"Two\",\"owner\":\"omar@example.com\",\"entries\":[]}\n",
];
const CSV: [&str; 2] = [
    "name,owner,telephone,kind,title,text,at,author,open\r\n\
     Café Zoë,omar@example.com,'+1 207 555 0139,meeting_note,\"Monday, closing\",\"She said \"\"no\"\".\r\nTwice.\",2026-11-07,,\r\n\
     Café Zoë,omar@example.com,,billing_dispute,Coffee,Too dear,2026-11-08T10:00:00+01:00,maya@example.com,FALSE\r\n\
     ,,,,,,,,\r\nLumen Yoga,maya@example.com,,,,,,,\r\n",
    "id,name,owner,contact,email,telephone,address,since,archived,kind,title,text,at,author,open,entry_archived\n\
     1,A,maya@example.com,,a@b.example,,\"1 Road\nTown\",2020-02-29,true,,,,,,,\n",
];

fn run(name: &str, format: Format, seeds: &[&str]) {
    let words = [
        "\"\"",
        ",,",
        "'=",
        "@",
        "true",
        "FALSE",
        "yes",
        "2026-02-30",
        "9999-12-31",
        "0000-01-01",
        "-0001-01-01",
        "9999-12-31T23:59:59.999Z",
        "1969-12-31T23:59:59.999Z",
        "2026-11-12T15:30:00+14:00",
        "maya@example.com",
        "ann@example.com",
        "the end of the file",
        "\u{85}",
        "\u{2028}",
        "\u{a0}",
        "meeting_note",
        "draft_letter",
        "\"entries\":[",
        "{\"",
    ];
    let tokens: Vec<&str> =
        words.into_iter().chain(CLIENT_FIELDS).chain(ENTRY_FIELDS).chain(ENTRY_COLUMNS).collect();
    let seeds = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    Fuzz { name, crate_folder: CRATE_FOLDER, seeds, tokens: &tokens, iterations: 800 }
        .run(|bytes| check(format, bytes));
}

fn check(format: Format, bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match read(format, text) {
        Ok(clients) => {
            // An export of these tests has no removed people.
            if clients.iter().flat_map(|client| &client.new.entries).any(|entry| entry.author == ANN) {
                return;
            }
            for format in [Format::Jsonl, Format::Csv] {
                let export = exported(&clients, format);
                assert_eq!(imported(format, &export), clients, "{export}");
            }
        }
        Err(problems) => {
            let shown = problems.to_string();
            assert!(problems.count() > 0 && shown.split('\n').count() <= MAX_LINES, "{shown:?}");
            for line in shown.split('\n') {
                assert!(line.starts_with("  row ") || line.starts_with("  and "), "{line:?}");
                assert!(line.len() < 2_000 && !line.contains(char::is_control), "{line:?}");
            }
        }
    }
}

#[test]
fn jsonl_imports() {
    run("jsonl_imports", Format::Jsonl, &JSONL);
}

#[test]
fn csv_imports() {
    run("csv_imports", Format::Csv, &CSV);
}

/// Comparing each field with all before it takes longer than an input may.
#[test]
fn jsonl_line_with_many_fields() {
    let fields: Vec<String> = (0..30_000).map(|number| format!("\"field {number}\":null")).collect();
    let line = format!("{{{}}}\n", fields.join(","));
    let fuzz = Fuzz {
        name: "jsonl_line_with_many_fields",
        crate_folder: CRATE_FOLDER,
        seeds: vec![line.into_bytes()],
        tokens: &[],
        iterations: 0,
    };
    fuzz.run(|bytes| check(Format::Jsonl, bytes));
}
