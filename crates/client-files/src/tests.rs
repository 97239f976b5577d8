//! What the readers take, and what they say about what they do not take.

use super::*;
use chancery_domain::{
    Client, ClientId, ClientName, ContactFacts, Day, Entry, EntryId, EntryKind, PersonId, PersonRef, Version,
};
use chancery_store::{NewClient, NewEntry};
use proptest::prelude::*;
use std::fmt::Debug;
use std::str::FromStr;

const NOW: UnixMillis = UnixMillis(1_794_744_000_000);
const MAYA: PersonId = PersonId(1);
const OMAR: PersonId = PersonId(2);
/// Has left the firm.
const ANN: PersonId = PersonId(5);

fn people() -> PeopleByAddress {
    let mut people = PeopleByAddress::default();
    people.add_removed("ann@example.com".parse().unwrap(), ANN);
    people.add("maya@example.com".parse().unwrap(), MAYA);
    people.add("omar@example.com".parse().unwrap(), OMAR);
    people.add("sam@example.com".parse().unwrap(), PersonId(3));
    people.add("sam@example.com".parse().unwrap(), PersonId(4));
    people
}

fn read(format: Format, text: &str) -> Result<ClientFile, Problems> {
    read_clients(text, format, &people(), NOW, |_| {})
}

fn taken(format: Format, text: &str) -> Vec<CheckedClient> {
    read(format, text).unwrap_or_else(|problems| panic!("{text}\n{problems}")).clients
}

fn problems(format: Format, text: &str) -> String {
    match read(format, text) {
        Ok(file) => panic!("it was taken: {:?}", file.clients),
        Err(problems) => problems.to_string(),
    }
}

fn parsed<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().unwrap()
}

#[test]
fn a_line_of_json_is_a_client_with_its_entries() {
    let line = r#"{"name":"Harbour Lane Bakery","owner":"Maya@Example.com","contact":"Priya Raman, owner",
        "email":"priya@harbourlane.example","telephone":"+1 617 555 0142","address":"12 Harbour Lane\nBoston","since":"2024-03-04",
        "entries":[{"kind":"billing_dispute","title":"Three hours","text":"One\r\ntwo","at":"2026-11-12T15:30:00Z","author":"omar@example.com","open":false},
        {"kind":"draft_letter","title":"Credit","text":"Dear Ms Raman"}]}"#
        .replace('\n', " ");
    let clients = taken(Format::Jsonl, &line);
    let new = &clients[0].new;
    assert_eq!((clients.len(), clients[0].owner), (1, MAYA));
    assert_eq!(new.name.as_str(), "Harbour Lane Bakery");
    assert_eq!(new.facts.address.as_str(), "12 Harbour Lane\nBoston");
    assert_eq!(new.facts.since, Some(parsed("2024-03-04")));
    let [dispute, letter] = new.entries.as_slice() else { panic!("{:?}", new.entries) };
    assert_eq!((dispute.kind, dispute.author, dispute.is_open), (EntryKind::BillingDispute, OMAR, false));
    assert_eq!(dispute.text.as_str(), "One\ntwo");
    assert_eq!(dispute.at, parsed("2026-11-12T15:30:00Z"));
    assert_eq!((letter.author, letter.is_open, letter.at), (MAYA, true, NOW), "what is left out");
}

#[test]
fn rows_of_csv_that_repeat_a_client_are_its_entries() {
    let text = "name,owner,telephone,kind,title,text,at,author,open\r\n\
        Café Zoë,omar@example.com,'+1 207 555 0139,meeting_note,\"Monday, closing\",\"She said \"\"no\"\".\r\nTwice.\",2026-11-07,,\r\n\
        Café Zoë,omar@example.com,,billing_dispute,Coffee,Too dear,2026-11-08T10:00:00+01:00,maya@example.com,FALSE\r\n\
        ,,,,,,,,\r\n\
        Lumen Yoga,maya@example.com,,,,,,,\r\n";
    let clients = taken(Format::Csv, text);
    assert_eq!(clients.iter().map(|client| client.new.entries.len()).collect::<Vec<_>>(), [2, 0]);
    let cafe = &clients[0].new;
    assert_eq!(cafe.facts.telephone.as_str(), "+1 207 555 0139", "the mark of a text is taken off");
    assert_eq!(cafe.entries[0].title.as_str(), "Monday, closing");
    assert_eq!(cafe.entries[0].text.as_str(), "She said \"no\".\nTwice.");
    assert_eq!(cafe.entries[0].at, parsed::<Day>("2026-11-07").start());
    assert_eq!((cafe.entries[1].author, cafe.entries[1].is_open), (MAYA, false));
    assert_eq!(cafe.entries[1].at, parsed("2026-11-08T09:00:00Z"));
}

#[test]
fn every_problem_of_a_file_is_told_with_its_row_and_field() {
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
    let told = problems(Format::Jsonl, &text);
    for expected in [
        "row 2, `name`: it is missing",
        "row 2, `owner`: nobody with the address nobody@example.com has signed in",
        "row 2, `phone`: there is no such field",
        "row 2, `since`: \"4 March\" is not a day; write it as YYYY-MM-DD",
        "row 4: it is not JSON",
        "row 5: it is a list; write one client a line",
        "row 6, `owner`: ann@example.com was removed",
        "row 6, `name`: it must be a text, in quotes, and it is a number",
        "row 6, `name`: it is given twice",
        "row 7, `owner`: several people have the address sam@example.com",
        "row 7, `telefone`: there is no such field; did you mean `telephone`?",
        "row 7, `entries[0].kind`: a kind of entry is `meeting_note`, `billing_dispute` or `draft_letter`; did you mean `meeting_note`?",
        "row 7, `entries[0].at`: it is not a moment; write it as 2026-11-15T09:30:00Z",
        "row 7, `entries[0].open`: it must be true or false, without quotes, and it is a text",
        "row 7, `entries[1]`: it must be an object, and it is a number",
        "row 8, `entries[0].open`: a meeting note is never open",
    ] {
        assert!(told.contains(expected), "{expected}\nis not in\n{told}");
    }
    assert!(!told.contains("row 1,") && !told.contains("row 3"), "{told}");
    assert_eq!(told.lines().count(), 16, "each is told once\n{told}");
}

#[test]
fn what_is_wrong_with_a_csv_file_is_told_by_spreadsheet_rows() {
    let head = "name,owner,since,kind,title,text\n";
    let told = problems(
        Format::Csv,
        &format!(
            "{head}One,maya@example.com,2026,,,\n\"Two\nlines\",omar@example.com,,meeting_note,t,\nThree,omar@example.com\n"
        ),
    );
    assert!(told.contains("row 2, `since`: \"2026\" is not a day"), "{told}");
    assert!(told.contains("row 3, `name`: the name is one line"), "{told}");
    assert!(told.contains("row 3, `text`: it is missing"), "{told}");
    assert!(told.contains("row 4: it has 2 cells and the head has 6"), "{told}");

    let told = problems(
        Format::Csv,
        &format!(
            "{head}One,maya@example.com,2026-01-01,,,\nOne,maya@example.com,2026-01-02,draft_letter,t,x\nOne,maya@example.com,,,,\n"
        ),
    );
    assert!(told.contains("row 3, `since`: it differs from row 2, which is the same client"), "{told}");
    assert!(told.contains("row 4: it repeats the client of row 2 and has no entry"), "{told}");
}

#[test]
fn a_head_that_cannot_be_used_is_told() {
    for (head, expected) in [
        ("", "row 1: the file is empty"),
        ("\n\n", "row 1: the file is empty"),
        (
            "name;owner\nA;maya@example.com\n",
            "row 1: its columns are parted by ';'; save the file with commas",
        ),
        ("name\n", "row 1, `owner`: the column is missing"),
        ("name,owner,telefon\n", "row 1, `telefon`: there is no such field; did you mean `telephone`?"),
        ("name,owner,Name\n", "row 1, `name`: the column is there twice"),
        ("name,owner,\n", "row 1: a column has no name"),
    ] {
        let told = problems(Format::Csv, head);
        assert!(told.contains(expected), "{head:?}: {told}");
    }
    assert!(taken(Format::Csv, " Name , OWNER \n").is_empty());
}

#[test]
fn a_quote_that_is_never_closed_does_not_swallow_rows_in_silence() {
    let told = problems(
        Format::Csv,
        "name,owner\nOne,maya@example.com\n\"Two,maya@example.com\nThree,maya@example.com\n",
    );
    assert!(told.contains("row 3: a quote (\") is opened and not closed"), "{told}");
    let fine =
        taken(Format::Csv, "name,owner\nthe end of the file,maya@example.com\n5\" pipe,maya@example.com");
    assert_eq!(fine.len(), 2);
}

#[test]
fn files_of_an_export_are_read_and_their_numbers_left() {
    let line = r#"{"id":1042,"name":"A","owner":"maya@example.com","archived":true,"entries":[]}"#;
    let file = read(Format::Jsonl, line).unwrap();
    assert!(file.has_numbers && file.clients[0].new.is_archived);
    let file = read(Format::Csv, "id,name,owner\n1,A,maya@example.com\n2,A,maya@example.com\n").unwrap();
    assert_eq!((file.has_numbers, file.clients.len()), (true, 2), "one name, two clients");
}

#[test]
fn an_entry_can_be_archived_apart_from_its_client() {
    let line = r#"{"name":"A","owner":"maya@example.com","entries":[{"kind":"meeting_note","title":"T","text":"x","archived":true}]}"#;
    let csv =
        "name,owner,archived,kind,title,text,entry_archived\nA,maya@example.com,,meeting_note,T,x,TRUE\n";
    for (format, text) in [(Format::Jsonl, line), (Format::Csv, csv)] {
        let clients = taken(format, text);
        assert!(!clients[0].new.is_archived && clients[0].new.entries[0].is_archived, "{text}");
    }
    let told = problems(Format::Csv, &csv.replace("TRUE", "maybe"));
    assert!(told.contains("row 2, `entry_archived`: it must be true or false"), "{told}");
}

#[test]
fn who_has_left_the_firm_is_still_an_author_and_no_owner() {
    let line = r#"{"name":"A","owner":"maya@example.com","entries":[{"kind":"meeting_note","title":"T","text":"x","author":"ann@example.com"}]}"#;
    assert_eq!(taken(Format::Jsonl, line)[0].new.entries[0].author, ANN);
    let told = problems(Format::Csv, "name,owner\nA,ann@example.com\n");
    assert!(told.contains("row 2, `owner`: ann@example.com was removed from the firm"), "{told}");
    assert!(told.contains("name somebody else, or `chancery user restore ann@example.com` first"), "{told}");
}

#[test]
fn more_entries_than_a_client_may_have_are_told_with_their_row() {
    let csv = |entries: usize| {
        let row = "A,maya@example.com,meeting_note,T,x\n";
        format!("name,owner,kind,title,text\n{}", row.repeat(entries))
    };
    assert_eq!(taken(Format::Csv, &csv(5000))[0].new.entries.len(), 5000);
    let told = problems(Format::Csv, &csv(5001));
    assert!(told.contains("row 5002: a client has at most 5000 entries, and this one has 5001"), "{told}");
    let entries = vec![r#"{"kind":"meeting_note","title":"T","text":"x"}"#; 5001].join(",");
    let told = problems(
        Format::Jsonl,
        &format!("\n{{\"name\":\"A\",\"owner\":\"maya@example.com\",\"entries\":[{entries}]}}"),
    );
    assert!(told.contains("row 2: a client has at most 5000 entries"), "{told}");
}

/// What an export of these clients would hand to the readers.
fn exported(clients: &[CheckedClient], format: Format) -> String {
    let person = |id: PersonId| {
        let address = if id == MAYA { "maya@example.com" } else { "omar@example.com" };
        PersonRef { id, email: parsed(address) }
    };
    let mut out = Vec::new();
    format.write_head(&mut out).unwrap();
    for (CheckedClient { owner, new }, id) in clients.iter().zip(1001..) {
        let client = Client {
            id: ClientId(id),
            name: new.name.clone(),
            facts: new.facts.clone(),
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
            version: Version::FIRST,
            archived_at: new.is_archived.then_some(NOW),
        };
        // Records have the newest first.
        let mut entries: Vec<Entry> = new.entries.iter().zip(1..).map(entry).collect();
        entries.reverse();
        format.write_client(&mut out, &client, &entries).unwrap();
    }
    String::from_utf8(out).unwrap()
}

/// Words as people write them, and as they should not be able to: formulas, quotes, markup, ends of lines.
fn words(lines: bool) -> impl Strategy<Value = String> {
    let pattern =
        if lines { "['=+@,;\"<>&\\-a-zé中ب \t\n]{0,40}" } else { "['=+@,;\"<>&\\-a-zé中ب ]{0,40}" };
    pattern.prop_map(|text: String| text)
}

fn some<T: FromStr + Debug>(lines: bool) -> impl Strategy<Value = T> {
    words(lines).prop_filter_map("not taken", |text| text.parse().ok())
}

fn entries() -> impl Strategy<Value = NewEntry> {
    let switches = (any::<bool>(), any::<bool>(), any::<bool>());
    let parts = (0_usize..3, some(false), some(true), 0_i64..4_000_000_000_000, switches);
    parts.prop_map(|(kind, title, text, at, (by_maya, is_open, is_archived))| {
        let kind = EntryKind::ALL[kind];
        let author = if by_maya { MAYA } else { OMAR };
        let is_open = is_open && kind.can_be_open();
        NewEntry { kind, title, text, at: UnixMillis(at), author, is_open, is_archived }
    })
}

fn clients() -> impl Strategy<Value = CheckedClient> {
    let facts = (some(false), some(false), some(true), prop::option::of(-100_000_i32..100_000));
    let parts = (
        some::<ClientName>(false),
        facts,
        any::<bool>(),
        any::<bool>(),
        prop::collection::vec(entries(), 0..4),
    );
    parts.prop_map(|(name, (contact, telephone, address, since), by_maya, is_archived, entries)| {
        let email = parsed("a@b.example");
        let facts = ContactFacts { contact, email, telephone, address, since: since.map(Day) };
        let owner = if by_maya { MAYA } else { OMAR };
        CheckedClient { owner, new: NewClient { name, facts, entries, is_archived } }
    })
}

proptest! {
    #[test]
    fn what_is_exported_is_imported_without_loss(clients in prop::collection::vec(clients(), 0..4)) {
        for format in [Format::Jsonl, Format::Csv] {
            let text = exported(&clients, format);
            let read = read(format, &text);
            let read = read.map_err(|problems| TestCaseError::fail(format!("{text}\n{problems}")))?;
            prop_assert_eq!(&read.clients, &clients);
        }
    }

    #[test]
    fn no_text_whatever_makes_a_reader_fall_over(text in "\\PC{0,80}", lines in "[\"\\[\\]{}:,a-z\r\n]{0,60}") {
        for text in [text, format!("name,owner\n{lines}"), lines] {
            for format in [Format::Jsonl, Format::Csv] {
                let _ = read(format, &text);
            }
        }
    }
}
