//! What the parsers accept, and how they report everything else.

mod fuzz;

use super::*;
use chancery_domain::{
    Client, ClientId, ClientName, ContactDetails, Currency, Day, DisputeDetails, Entry, EntryId, EntryKind,
    MinorUnits, PersonId, PersonRef, Telephone, Version,
};
use chancery_store::{NewClient, NewEntry};
use proptest::prelude::*;
use std::fmt::Debug;
use std::str::FromStr;

const NOW: UnixMillis = UnixMillis(1_794_744_000_000);
const MAYA: PersonId = PersonId(1);
const OMAR: PersonId = PersonId(2);
/// A removed person.
const ANN: PersonId = PersonId(5);

fn people() -> UsersByEmail {
    let mut people = UsersByEmail::default();
    people.add_removed("ann@example.com".parse().unwrap(), ANN);
    people.add("maya@example.com".parse().unwrap(), MAYA);
    people.add("omar@example.com".parse().unwrap(), OMAR);
    people.add("sam@example.com".parse().unwrap(), PersonId(3));
    people.add("sam@example.com".parse().unwrap(), PersonId(4));
    people
}

const CONTEXT: FileContext = FileContext { now: NOW, currency: Currency::USD };

fn read(format: Format, text: &str) -> Result<Vec<CheckedClient>, Problems> {
    read_clients(text, format, &people(), CONTEXT)
}

fn imported(format: Format, text: &str) -> Vec<CheckedClient> {
    read(format, text).unwrap_or_else(|problems| panic!("{text}\n{problems}"))
}

fn problems(format: Format, text: &str) -> String {
    match read(format, text) {
        Ok(clients) => panic!("it was taken: {clients:?}"),
        Err(problems) => problems.to_string(),
    }
}

fn parsed<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().unwrap()
}

#[test]
fn jsonl_line_is_a_client_with_its_entries() {
    let line = r#"{"name":"Harbour Lane Bakery","owner":"Maya@Example.com","contact":"Priya Raman, owner",
        "email":"priya@harbourlane.example","telephone":"+1 617 555 0142","address":"12 Harbour Lane\nBoston","since":"2024-03-04",
        "entries":[{"kind":"billing_dispute","title":"Three hours","text":"One\r\ntwo","at":"2026-11-12T15:30:00Z","author":"omar@example.com","open":false},
        {"kind":"draft_letter","title":"Credit","text":"Dear Ms Raman"}]}"#
        .replace('\n', " ");
    let clients = imported(Format::Jsonl, &line);
    let new = &clients[0].new;
    assert_eq!((clients.len(), clients[0].owner), (1, MAYA));
    assert_eq!(new.name.as_str(), "Harbour Lane Bakery");
    assert_eq!(new.details.address.as_str(), "12 Harbour Lane\nBoston");
    assert_eq!(new.details.since, Some(parsed("2024-03-04")));
    let [dispute, letter] = new.entries.as_slice() else { panic!("{:?}", new.entries) };
    assert_eq!((dispute.kind, dispute.author, dispute.is_open), (EntryKind::BillingDispute, OMAR, false));
    assert_eq!(dispute.text.as_str(), "One\ntwo");
    assert_eq!(dispute.at, parsed("2026-11-12T15:30:00Z"));
    assert_eq!((letter.author, letter.is_open, letter.at), (MAYA, true, NOW), "what is left out");
}

#[test]
fn csv_rows_of_one_client_become_its_entries() {
    let text = "name,owner,telephone,kind,title,text,at,author,open\r\n\
        Café Zoë,omar@example.com,'+1 207 555 0139,meeting_note,\"Monday, closing\",\"She said \"\"no\"\".\r\nTwice.\",2026-11-07,,\r\n\
        Café Zoë,omar@example.com,,billing_dispute,Coffee,Too dear,2026-11-08T10:00:00+01:00,maya@example.com,FALSE\r\n\
        ,,,,,,,,\r\n\
        Lumen Yoga,maya@example.com,,,,,,,\r\n";
    let clients = imported(Format::Csv, text);
    assert_eq!(clients.iter().map(|client| client.new.entries.len()).collect::<Vec<_>>(), [2, 0]);
    let cafe = &clients[0].new;
    assert_eq!(cafe.details.telephone.as_str(), "+1 207 555 0139", "the mark of a text is taken off");
    assert_eq!(cafe.entries[0].title.as_str(), "Monday, closing");
    assert_eq!(cafe.entries[0].text.as_str(), "She said \"no\".\nTwice.");
    assert_eq!(cafe.entries[0].at, parsed::<Day>("2026-11-07").start());
    assert_eq!((cafe.entries[1].author, cafe.entries[1].is_open), (MAYA, false));
    assert_eq!(cafe.entries[1].at, parsed("2026-11-08T09:00:00Z"));
}

#[test]
fn every_problem_is_reported_with_row_and_field() {
    let text = [
        r#"{"name":"One","owner":"maya@example.com"}"#,
        r#"{"name":"","owner":"nobody@example.com","phone":"5","since":"4 March"}"#,
        "",
        "not json",
        r#"["a list"]"#,
        r#"{"owner":"ann@example.com","name":7,"name":"x"}"#,
        r#"{"name":"Two","owner":"sam@example.com","telefone":"5","entries":[{"kind":"meeting_notes","title":"t","text":"x","at":"noon","open":"yes"},3]}"#,
        r#"{"name":"Three","owner":"omar@example.com","entries":[{"kind":"meeting_note","title":"t","text":"x","open":true}]}"#,
    ]
    .join("\n");
    let reported = problems(Format::Jsonl, &text);
    for expected in [
        "row 2, `name`: missing; every client needs a name",
        "row 2, `owner`: no user with the address nobody@example.com",
        "row 2, `phone`: unknown field",
        "row 2, `since`: \"4 March\" is not a day; write it as YYYY-MM-DD",
        "row 4: invalid JSON",
        "row 5: expected an object, found a list; write one client per line",
        "row 6, `owner`: ann@example.com was removed",
        "row 6, `name`: must be a quoted string, not a number",
        "row 6, `name`: duplicate field",
        "row 7, `owner`: several users have the address sam@example.com",
        "row 7, `telefone`: unknown field; did you mean `telephone`?",
        "row 7, `entries[0].kind`: an entry's kind must be `meeting_note`, `billing_dispute` or `draft_letter`; did you mean `meeting_note`?",
        "row 7, `entries[0].at`: invalid timestamp; use 2026-11-15T09:30:00Z",
        "row 7, `entries[0].open`: must be true or false, without quotes, not a text",
        "row 7, `entries[1]`: must be an object, not a number",
        "row 8, `entries[0].open`: not allowed for a meeting note",
    ] {
        assert!(reported.contains(expected), "{expected}\nis not in\n{reported}");
    }
    assert!(!reported.contains("row 1,") && !reported.contains("row 3"), "{reported}");
    assert_eq!(reported.lines().count(), 16, "each is reported once\n{reported}");
}

#[test]
fn csv_problems_are_reported_by_spreadsheet_row() {
    let head = "name,owner,since,kind,title,text\n";
    let reported = problems(
        Format::Csv,
        &format!(
            "{head}One,maya@example.com,2026,,,\n\"Two\nlines\",omar@example.com,,meeting_note,t,\nThree,omar@example.com\n"
        ),
    );
    assert!(reported.contains("row 2, `since`: \"2026\" is not a day"), "{reported}");
    assert!(reported.contains("row 3, `name`: the name must be one line"), "{reported}");
    assert!(reported.contains("row 3, `text`: missing; every entry needs a text"), "{reported}");
    assert!(reported.contains("row 4: expected 6 cells, found 2"), "{reported}");

    let reported = problems(
        Format::Csv,
        &format!(
            "{head}One,maya@example.com,2026-01-01,,,\nOne,maya@example.com,2026-01-02,draft_letter,t,x\nOne,maya@example.com,,,,\n"
        ),
    );
    assert!(reported.contains("row 3, `since`: differs from row 2 of the same client"), "{reported}");
    assert!(reported.contains("row 4: repeats the client of row 2 without an entry"), "{reported}");
}

#[test]
fn invalid_csv_header_is_reported() {
    for (head, expected) in [
        ("", "row 1: file is empty"),
        ("\n\n", "row 1: file is empty"),
        ("name;owner\nA;maya@example.com\n", "row 1: wrong separator ';'; save the file with commas"),
        ("name\n", "row 1, `owner`: missing column"),
        ("name,owner,telefon\n", "row 1, `telefon`: unknown field; did you mean `telephone`?"),
        ("name,owner,Name\n", "row 1, `name`: duplicate column"),
        ("name,owner,\n", "row 1: column without a name"),
    ] {
        let reported = problems(Format::Csv, head);
        assert!(reported.contains(expected), "{head:?}: {reported}");
    }
    assert!(imported(Format::Csv, " Name , OWNER \n").is_empty());
}

#[test]
fn unclosed_quote_is_reported() {
    let reported = problems(
        Format::Csv,
        "name,owner\nOne,maya@example.com\n\"Two,maya@example.com\nThree,maya@example.com\n",
    );
    assert!(reported.contains("row 3: unclosed quote (\")"), "{reported}");
    let fine =
        imported(Format::Csv, "name,owner\nthe end of the file,maya@example.com\n5\" pipe,maya@example.com");
    assert_eq!(fine.len(), 2);
}

#[test]
fn exported_files_are_importable_and_their_ids_ignored() {
    let line = r#"{"id":1042,"name":"A","owner":"maya@example.com","archived":true,"entries":[]}"#;
    assert!(imported(Format::Jsonl, line)[0].new.is_archived);
    let csv = "id,name,owner\n1,A,maya@example.com\n2,A,maya@example.com\n";
    assert_eq!(imported(Format::Csv, csv).len(), 2, "one name, two clients");
    for (format, text) in [(Format::Jsonl, line), (Format::Csv, csv)] {
        let summary = read_parts(text.as_bytes(), format, &people(), CONTEXT, |_| {}, &mut |_| true).unwrap();
        assert!(summary.has_numbers && summary.bytes == text.len() as u64, "{summary:?}");
    }
}

/// Fails if the reader reads on after the first megabyte.
fn read_first_mib(format: Format, source: impl Read) -> String {
    let end = std::io::repeat(b'\xff');
    let source = source.take(1 << 20).chain(end);
    read_parts(source, format, &people(), CONTEXT, |_| {}, &mut |_| true).unwrap_err().to_string()
}

#[test]
fn endless_rows_are_rejected_before_they_are_in_memory() {
    let head = "name,owner\nA,maya@example.com\n";
    for text in [String::new(), head.to_owned(), format!("{head}\"")] {
        let source = text.as_bytes().chain(std::io::repeat(b'x'));
        let row = if text.is_empty() { 1 } else { 3 };
        let reported = read_first_mib(Format::Csv, source);
        let expected =
            format!("row {row}: too long: more than 282,000 bytes, which no client or entry needs;");
        assert!(reported.contains(&expected) && reported.lines().count() == 1, "{reported}");
    }
    let one = "{\"name\":\"A\",\"owner\":\"maya@example.com\"}\n";
    let entry = "{\"name\":\"A\",\"owner\":\"maya@example.com\",\"entries\":[";
    for start in
        ["\"", "{\"", "{\"name\":\"", "{\"x\":[[", "[", &format!("{entry}{{\""), &format!("{entry}\"")]
    {
        for filler in ["x", "0,"] {
            let filler = filler.repeat(150_000 + 150_000 / filler.len());
            let text = format!("{one}{start}{filler}\n{{}}\n");
            let reported = problems(Format::Jsonl, &text);
            let has_length = reported.contains("row 2: too long: more than 282,000 bytes");
            assert!(has_length || reported.contains("row 2: invalid JSON"), "{start} {reported}");
            assert!(reported.contains("row 3, `name`: missing"), "the rest is read: {reported}");
        }
    }
}

#[test]
fn header_with_too_many_or_too_long_columns_is_not_compared() {
    let reported = problems(Format::Csv, &format!("name,owner{}\n", ",telefon".repeat(99)));
    assert!(reported.contains("row 1: too many columns: at most 100, found 101; remove"), "{reported}");
    let reported = problems(Format::Csv, &format!("name,owner,{}\n", "telefon".repeat(1000)));
    assert!(reported.contains("telefontel…`: unknown field; known fields: id, name"), "{reported}");
}

#[test]
fn long_record_is_delivered_in_parts() {
    let text = "é".repeat(10_000);
    let entry = |number| {
        let title = format!("Note {number}");
        serde_json::json!({"kind": "meeting_note", "title": title, "text": text, "at": "2026-11-12"})
            .to_string()
    };
    let entries: Vec<String> = (0..100).map(entry).collect();
    let (head, entries) = ("\"name\":\"A\",\"owner\":\"maya@example.com\"", entries.join(","));
    let line = format!("{{{head},\"entries\":[{entries}]}}\n{{{head}}}\n");
    let clients = imported(Format::Jsonl, &line);
    for (format, text) in [(Format::Jsonl, line), (Format::Csv, exported(&clients, Format::Csv))] {
        let mut parts = Vec::new();
        let mut keep = |part: ClientPart| {
            parts.push((part.more_entries.len(), part.clients.len()));
            true
        };
        let summary = read_parts(text.as_bytes(), format, &people(), CONTEXT, |_| {}, &mut keep).unwrap();
        assert_eq!((summary.clients, summary.entries), (2, 100));
        assert!(parts.len() > 5 && parts.iter().all(|(entries, _)| *entries < 20), "{parts:?}");
        assert_eq!(imported(format, &text), clients);
        assert_eq!(clients[0].new.entries[99].title.as_str(), "Note 99");
    }
    let reported =
        problems(Format::Jsonl, &format!("{{\"entries\":[{entries},{entries},{entries}],{head}}}\n"));
    assert!(
        reported.contains("row 1, `name`: comes after a long list of entries; put `entries`"),
        "{reported}"
    );
}

#[test]
fn entry_can_be_archived_without_its_client() {
    let line = r#"{"name":"A","owner":"maya@example.com","entries":[{"kind":"meeting_note","title":"T","text":"x","archived":true}]}"#;
    let csv =
        "name,owner,archived,kind,title,text,entry_archived\nA,maya@example.com,,meeting_note,T,x,TRUE\n";
    for (format, text) in [(Format::Jsonl, line), (Format::Csv, csv)] {
        let clients = imported(format, text);
        assert!(!clients[0].new.is_archived && clients[0].new.entries[0].is_archived, "{text}");
    }
    let reported = problems(Format::Csv, &csv.replace("TRUE", "maybe"));
    assert!(reported.contains("row 2, `entry_archived`: must be true or false"), "{reported}");
}

#[test]
fn disputes_have_an_amount_and_a_due_date() {
    let line = r#"{"name":"A","owner":"maya@example.com","entries":[{"kind":"billing_dispute","title":"T","text":"x","amount":"120.5","due":"2026-11-20"}]}"#;
    let csv =
        "name,owner,kind,title,text,amount,due\nA,maya@example.com,billing_dispute,T,x,120.5,2026-11-20\n";
    for (format, text) in [(Format::Jsonl, line), (Format::Csv, csv)] {
        let dispute = imported(format, text)[0].new.entries[0].dispute;
        assert_eq!((dispute.amount, dispute.due), (Some(MinorUnits(12_050)), Some(parsed("2026-11-20"))));
        let reported = problems(format, &text.replace("120.5", "120.505"));
        assert!(reported.contains("amount`: not an amount in USD; write it like 50.00"), "{reported}");
        let reported = problems(format, &text.replace("2026-11-20", "soon"));
        assert!(reported.contains("due`: \"soon\" is not a day"), "{reported}");
        let reported = problems(format, &text.replace("billing_dispute", "draft_letter"));
        assert!(reported.contains("kind`: only a billing dispute has `amount` and `due`"), "{reported}");
    }
}

#[test]
fn removed_person_can_be_an_author_but_not_an_owner() {
    let line = r#"{"name":"A","owner":"maya@example.com","entries":[{"kind":"meeting_note","title":"T","text":"x","author":"ann@example.com"}]}"#;
    assert_eq!(imported(Format::Jsonl, line)[0].new.entries[0].author, ANN);
    let reported = problems(Format::Csv, "name,owner\nA,ann@example.com\n");
    assert!(
        reported.contains("row 2, `owner`: ann@example.com was removed; choose another owner"),
        "{reported}"
    );
    assert!(reported.contains("or run `chancery user restore ann@example.com` first"), "{reported}");
}

#[test]
fn too_many_entries_are_reported_with_their_row() {
    let csv = |entries: usize| {
        let row = "A,maya@example.com,meeting_note,T,x\n";
        format!("name,owner,kind,title,text\n{}", row.repeat(entries))
    };
    assert_eq!(imported(Format::Csv, &csv(5000))[0].new.entries.len(), 5000);
    let reported = problems(Format::Csv, &csv(5001));
    assert!(
        reported.contains("row 5002: too many entries: at most 5000 per client, found 5001"),
        "{reported}"
    );
    let entries = vec![r#"{"kind":"meeting_note","title":"T","text":"x"}"#; 5001].join(",");
    let reported = problems(
        Format::Jsonl,
        &format!("\n{{\"name\":\"A\",\"owner\":\"maya@example.com\",\"entries\":[{entries}]}}"),
    );
    assert!(reported.contains("row 2: too many entries: at most 5000 per client"), "{reported}");
}

/// An export of these clients.
fn exported(clients: &[CheckedClient], format: Format) -> String {
    let person = |id: PersonId| {
        let address = if id == MAYA { "maya@example.com" } else { "omar@example.com" };
        PersonRef { id, email: parsed(address) }
    };
    let mut out = Vec::new();
    format.write_header(&mut out).unwrap();
    for (CheckedClient { owner, new }, id) in clients.iter().zip(1001..) {
        let client = Client {
            id: ClientId(id),
            name: new.name.clone(),
            details: new.details.clone(),
            owner: person(*owner),
            version: Version::FIRST,
            created_at: NOW,
            archived_at: new.is_archived.then_some(NOW),
            last_entry_at: None,
        };
        let entry = |(new, id): (&NewEntry, i64)| Entry {
            id: EntryId(id),
            client: client.id,
            kind: new.kind,
            at: new.at,
            author: person(new.author),
            title: new.title.clone(),
            text: new.text.clone(),
            is_open: new.is_open,
            dispute: new.dispute,
            version: Version::FIRST,
            archived_at: new.is_archived.then_some(NOW),
            sent: None,
        };
        let entries: Vec<Entry> = new.entries.iter().zip(1..).map(entry).collect();
        let mut writer = format.begin_client(&mut out, client, Currency::USD).unwrap();
        // A long record is written in parts.
        for part in entries.chunks(2) {
            writer.write_entries(&mut out, part).unwrap();
        }
        writer.finish(&mut out).unwrap();
    }
    String::from_utf8(out).unwrap()
}

/// Ordinary and hostile text: formulas, quotes, markup, line breaks.
fn hostile_text(lines: bool) -> impl Strategy<Value = String> {
    let pattern =
        if lines { "['=+@,;\"<>&\\-a-zé中ب \t\n]{0,40}" } else { "['=+@,;\"<>&\\-a-zé中ب ]{0,40}" };
    pattern.prop_map(|text: String| text)
}

fn some<T: FromStr + Debug>(lines: bool) -> impl Strategy<Value = T> {
    hostile_text(lines).prop_filter_map("not taken", |text| text.parse().ok())
}

/// Empty, or a number, which may look like a formula.
fn telephones() -> impl Strategy<Value = Telephone> {
    "([-+(]?[0-9]{3,6}[-0-9() ./]{0,14})?".prop_map(|text: String| text.parse().unwrap())
}

fn entries() -> impl Strategy<Value = NewEntry> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let terms = (prop::option::of(0_i64..100_000_000), prop::option::of(-100_000_i32..100_000));
    let parts = (0_usize..3, some(false), some(true), 0_i64..NOW.0, flags, terms);
    parts.prop_map(|(kind, title, text, at, (by_maya, is_open, is_archived), (amount, due))| {
        let kind = EntryKind::ALL[kind];
        let author = if by_maya { MAYA } else { OMAR };
        let is_open = is_open && kind.can_be_open();
        let dispute = match kind {
            EntryKind::BillingDispute => DisputeDetails { amount: amount.map(MinorUnits), due: due.map(Day) },
            _ => DisputeDetails::default(),
        };
        NewEntry { kind, title, text, at: UnixMillis(at), author, is_open, dispute, is_archived }
    })
}

fn clients() -> impl Strategy<Value = CheckedClient> {
    let details = (some(false), telephones(), some(true), prop::option::of(-62_000_i32..20_000));
    let parts = (
        some::<ClientName>(false),
        details,
        any::<bool>(),
        any::<bool>(),
        prop::collection::vec(entries(), 0..4),
    );
    parts.prop_map(|(name, (contact, telephone, address, since), by_maya, is_archived, entries)| {
        let email = parsed("a@b.example");
        let details = ContactDetails { contact, email, telephone, address, since: since.map(Day) };
        let owner = if by_maya { MAYA } else { OMAR };
        CheckedClient { owner, new: NewClient { name, details, entries, is_archived } }
    })
}

proptest! {
    #[test]
    fn export_and_import_round_trip(clients in prop::collection::vec(clients(), 0..4)) {
        for format in [Format::Jsonl, Format::Csv] {
            let text = exported(&clients, format);
            let read = read(format, &text);
            let read = read.map_err(|problems| TestCaseError::fail(format!("{text}\n{problems}")))?;
            prop_assert_eq!(&read, &clients);
        }
    }

    #[test]
    fn reader_never_panics_on_arbitrary_text(text in "\\PC{0,80}", lines in "[\"\\[\\]{}:,a-z\r\n]{0,60}") {
        for text in [text, format!("name,owner\n{lines}"), lines] {
            for format in [Format::Jsonl, Format::Csv] {
                let _ = read(format, &text);
            }
        }
    }
}
