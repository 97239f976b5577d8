//! `chancery client`: files in, files out, and nothing half done.

use crate::server::{Firm, binary, clean_command, file_mode};
use chancery_domain::{EventOrigin, Identity, OsRandomness, Person, Role, UnixMillis};
use chancery_store::{Arrival, Store};
use chancery_test_support::PostgresDatabase;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

const NOON: UnixMillis = UnixMillis(1_794_571_200_000);
const ISSUER: &str = "https://id.example.com";

/// A firm with two consultants and a partner.
async fn firm_with_people(firm: &Firm) -> Arc<Store> {
    firm.run(&["account", "create", "Hale & Ward"]);
    let store = Arc::new(Store::open(&firm.database_url().parse().unwrap()).await.unwrap());
    for (subject, email, role) in [
        ("1", "maya@example.com", Role::Consultant),
        ("2", "omar@example.com", Role::Consultant),
        ("3", "ruth@example.com", Role::Partner),
    ] {
        arrive(&store, subject, email, role).await;
    }
    store
}

async fn arrive(store: &Store, subject: &str, email: &str, role: Role) -> Person {
    let identity = Identity { issuer: ISSUER.to_owned(), subject: subject.to_owned() };
    store
        .people
        .arrive(Arrival {
            identity,
            email: email.parse().unwrap(),
            role,
            origin: EventOrigin::local(NOON, &OsRandomness),
        })
        .await
        .unwrap()
}

fn file(firm: &Firm, name: &str, text: impl AsRef<[u8]>) -> String {
    let path: PathBuf = firm.folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn exported(firm: &Firm, name: &str) -> String {
    let path = firm.folder.path().join(name);
    firm.run(&["client", "export", path.to_str().unwrap(), "--force"]);
    std::fs::read_to_string(path).unwrap()
}

/// The clients of an export, without the numbers that the firm gave them.
fn without_numbers(jsonl: &str) -> Vec<Value> {
    let client = |line: &str| {
        let mut client: Value = serde_json::from_str(line).unwrap();
        client.as_object_mut().unwrap().remove("id");
        client
    };
    jsonl.lines().map(client).collect()
}

const TWO: &str = concat!(
    r#"{"name":"Harbour Lane Bakery","owner":"maya@example.com","telephone":"+1 617 555 0142","since":"2024-03-04","#,
    r#""entries":[{"kind":"meeting_note","title":"Call","text":"One.\n\n- two","at":"2026-11-12T15:30:00Z"},"#,
    r#"{"kind":"billing_dispute","title":"Three hours","text":"Too many.","at":"2026-11-03T10:08:00Z","author":"ruth@example.com","open":true}]}"#,
    "\n",
    r#"{"name":"Ostrander Freight","owner":"omar@example.com"}"#,
    "\n",
);

#[tokio::test]
async fn clients_are_imported_listed_and_given_away() {
    let firm = Firm::new();
    firm_with_people(&firm).await;
    let path = file(&firm, "two.jsonl", TWO);
    let told = firm.run(&["client", "import", &path]);
    assert_eq!(told, "imported 2 clients with 2 entries, as numbers 1001 to 1002\n");
    let list = firm.json(&["client", "list", "--json"]);
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!((&list[0]["id"], &list[0]["owner"]), (&json!(1001), &json!("maya@example.com")));
    assert_eq!((&list[0]["open_disputes"], &list[1]["open_disputes"]), (&json!(1), &json!(0)));
    assert_eq!(list[0]["last_entry_at"], "2026-11-12T15:30:00.000Z");
    let table = firm.run(&["client", "list"]);
    assert!(
        table.contains("1001  Harbour Lane Bakery  maya@example.com  dispute open  2026-11-12"),
        "{table}"
    );

    let told = firm.run(&["client", "assign", "1001", "omar@example.com"]);
    assert!(told.contains("client 1001, Harbour Lane Bakery, is omar@example.com's"), "{told}");
    assert_eq!(
        firm.json(&["client", "list", "--owner", "omar@example.com", "--json"]).as_array().unwrap().len(),
        2
    );
    assert_eq!(firm.json(&["client", "list", "--owner", "maya@example.com", "--json"]), json!([]));
    assert!(firm.run(&["client", "assign", "1001", "omar@example.com"]).contains("already"));
    assert!(firm.fail(&["client", "assign", "7", "omar@example.com"]).contains("there is no client 7"));
    assert!(firm.fail(&["client", "assign", "1001", "eve@example.com"]).contains("nobody with the address"));
    assert!(
        firm.run(&["verify"])
            .lines()
            .any(|line| line.starts_with("audit: ") && line.ends_with(" rows: all agree"))
    );
}

#[tokio::test]
async fn a_dry_run_says_what_would_happen_and_writes_nothing() {
    let firm = Firm::new();
    let store = firm_with_people(&firm).await;
    let path = file(&firm, "two.jsonl", TWO);
    let told = firm.run(&["client", "import", &path, "--dry-run"]);
    assert_eq!(told, "2 clients with 2 entries can be imported; nothing was written\n");
    let told = firm.json(&["client", "import", &path, "--dry-run", "--json"]);
    assert_eq!((&told["clients"], &told["entries"], &told["first_id"]), (&json!(2), &json!(2), &Value::Null));
    assert!(!store.client_imports.has_clients().await.unwrap());
    assert_eq!(firm.json(&["client", "import", &path, "--json"])["first_id"], 1001, "no number was used up");
}

#[tokio::test]
async fn one_bad_row_of_many_writes_nothing_and_all_bad_rows_are_named() {
    let firm = Firm::new();
    let store = firm_with_people(&firm).await;
    let mut lines: Vec<String> =
        (0..500).map(|n| format!(r#"{{"name":"Client {n}","owner":"maya@example.com"}}"#)).collect();
    lines[6] = r#"{"name":"Seventh","owner":"eve@example.com"}"#.to_owned();
    lines[399] = r#"{"name":"","owner":"maya@example.com","color":"red"}"#.to_owned();
    let told = firm.fail(&["client", "import", &file(&firm, "many.jsonl", lines.join("\n"))]);
    assert!(told.contains("many.jsonl has 3 problems, and nothing was imported:"), "{told}");
    assert!(told.contains("\n  row 7, `owner`: nobody with the address eve@example.com"), "{told}");
    assert!(told.contains("\n  row 400, `name`: it is missing"), "{told}");
    assert!(told.contains("\n  row 400, `color`: there is no such field"), "{told}");
    assert!(!store.client_imports.has_clients().await.unwrap());
}

#[tokio::test]
async fn files_as_other_programs_write_them_are_taken() {
    let firm = Firm::new();
    firm_with_people(&firm).await;
    let csv = "\u{feff}name,owner,address,kind,title,text\r\n\
        \"Calder & Sons, Joinery\",maya@example.com,\"The Sawmill\r\nSturbridge\",meeting_note,\"He said \"\"late\"\"\",\"One\r\n\r\n- two\"\r\n";
    firm.run(&["client", "import", &file(&firm, "excel.csv", csv)]);
    let crlf = format!("\u{feff}{}", TWO.replace('\n', "\r\n"));
    firm.run(&["client", "import", &file(&firm, "windows.jsonl", crlf)]);
    let clients = without_numbers(&exported(&firm, "all.jsonl"));
    assert_eq!(clients[0]["name"], "Calder & Sons, Joinery");
    assert_eq!(clients[0]["address"], "The Sawmill\nSturbridge");
    assert_eq!(clients[0]["entries"][0]["title"], "He said \"late\"");
    assert_eq!(clients[0]["entries"][0]["text"], "One\n\n- two");
    assert_eq!(clients.len(), 3);

    let told = firm.fail(&[
        "client",
        "import",
        &file(&firm, "latin.csv", b"name,owner\nCaf\xe9,maya@example.com\n"),
    ]);
    assert!(told.contains("line 2 is not UTF-8"), "{told}");
    let told = firm.fail(&["client", "import", &file(&firm, "clients.xlsx", "x")]);
    assert!(told.contains("--format"), "{told}");
    assert!(firm.fail(&["client", "import", "nowhere.csv"]).contains("nowhere.csv cannot be read"));
}

#[tokio::test]
async fn standard_input_is_read_where_the_format_is_said() {
    let firm = Firm::new();
    firm_with_people(&firm).await;
    let mut command = clean_command(binary());
    command.args(["client", "import", "-", "--format", "jsonl"]).current_dir(firm.folder.path());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(TWO.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("imported 2 clients"));
    assert!(firm.fail(&["client", "import", "-"]).contains("--format jsonl"));
}

/// Names and texts that try to be something else wherever they are shown.
const HOSTILE: &str = concat!(
    r#"{"name":"=HYPERLINK(\"http://evil.example\",\"x\")","owner":"maya@example.com","contact":"@SUM(1+1)","telephone":"-2+3","address":"'=1\n\t=2","#,
    r#""entries":[{"kind":"draft_letter","title":"<script>alert(1)</script>","text":"- one\n- \"two\", three; 'four'","at":"2026-11-12T15:30:00Z"}]}"#,
    "\n",
    r#"{"name":"Robert'); DROP TABLE clients;-- مكتبة 中村","owner":"omar@example.com","contact":"''=1+1","archived":true}"#,
    "\n",
);

#[tokio::test]
async fn what_is_exported_is_imported_again_without_loss_in_both_formats() {
    let firm = Firm::new();
    firm_with_people(&firm).await;
    firm.run(&["client", "import", &file(&firm, "two.jsonl", TWO)]);
    firm.run(&["client", "import", &file(&firm, "hostile.jsonl", HOSTILE)]);
    let first = exported(&firm, "first.jsonl");
    let csv = exported(&firm, "first.csv");
    assert_eq!(file_mode(&firm.folder.path().join("first.csv")), 0o600);
    for name in ["first.jsonl", "first.csv"] {
        let other = Firm::new();
        firm_with_people(&other).await;
        let path = firm.folder.path().join(name);
        let told = other.run(&["client", "import", path.to_str().unwrap()]);
        assert!(
            told.contains("as numbers 1001 to 1004\nthe file's own numbers (`id`) are not taken over"),
            "{told}"
        );
        let again = exported(&other, "again.jsonl");
        assert_eq!(without_numbers(&again), without_numbers(&first), "{name}");
        assert_eq!(exported(&other, "again.csv"), csv);
    }
    let told = firm.fail(&["client", "export", firm.folder.path().join("first.csv").to_str().unwrap()]);
    assert!(told.contains("is there already"), "{told}");
}

#[tokio::test]
async fn archived_entries_and_those_of_somebody_who_has_left_are_exported_and_imported_again() {
    let firm = Firm::new();
    firm_with_people(&firm).await;
    let entry = |title: &str, archived: bool| {
        json!({"kind": "draft_letter", "title": title, "text": "Dear Ms Raman", "at": "2026-11-12T15:30:00.000Z",
            "author": "omar@example.com", "open": true, "archived": archived})
    };
    let line = json!({"name": "A", "owner": "maya@example.com", "entries": [entry("Away", true), entry("Kept", false)]});
    firm.run(&["client", "import", &file(&firm, "in.jsonl", format!("{line}\n"))]);
    firm.run(&["user", "remove", "omar@example.com"]);
    let first = exported(&firm, "first.jsonl");
    exported(&firm, "first.csv");
    assert_eq!(without_numbers(&first)[0]["entries"], line["entries"]);
    for name in ["first.jsonl", "first.csv"] {
        firm.run(&["client", "import", firm.folder.path().join(name).to_str().unwrap()]);
    }
    let all = without_numbers(&exported(&firm, "all.jsonl"));
    assert_eq!((all.len(), &all[1], &all[2]), (3, &all[0], &all[0]));
    let told = firm.fail(&["client", "import", &file(&firm, "his.csv", "name,owner\nA,omar@example.com\n")]);
    assert!(told.contains("`chancery user restore omar@example.com` first"), "{told}");
}

#[tokio::test]
async fn a_large_import_waits_until_no_server_runs_on_the_sqlite_file() {
    let firm = Firm::new();
    let store = firm_with_people(&firm).await;
    let clients = |count: usize| {
        format!("name,owner\n{}", "A,maya@example.com\nB,omar@example.com\n".repeat(count / 2))
    };
    let (small, large) = (file(&firm, "small.csv", clients(1000)), file(&firm, "large.csv", clients(1002)));
    let server = firm.start_with(&[]);
    let told = firm.fail(&["client", "import", &large]);
    assert!(told.contains("stop the server first, or split the file"), "{told}");
    assert!(!store.client_imports.has_clients().await.unwrap());
    assert!(firm.run(&["client", "import", &large, "--dry-run"]).contains("can be imported"));
    assert!(firm.run(&["client", "import", &small]).contains("imported 1,000 clients"));
    drop(server);
    assert!(firm.run(&["client", "import", &large]).contains("as numbers 2001 to 3002"));
}

#[tokio::test]
async fn no_cell_of_an_exported_table_is_a_formula() {
    let firm = Firm::new();
    firm_with_people(&firm).await;
    firm.run(&["client", "import", &file(&firm, "hostile.jsonl", HOSTILE)]);
    exported(&firm, "all.csv");
    // Read by a program that knows nothing of ours.
    let script = "import csv, sys\n\
        for row in csv.reader(open(sys.argv[1], newline='', encoding='utf-8')):\n\
        \x20   for cell in row:\n\
        \x20       assert cell[:1] not in '=+-@\\t\\r\\n' or cell == '', cell\n";
    let path = firm.folder.path().join("all.csv");
    let output = std::process::Command::new("python3").args(["-c", script]).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn an_address_that_two_people_have_owns_nothing() {
    let firm = Firm::new();
    let store = firm_with_people(&firm).await;
    arrive(&store, "4", "maya@example.com", Role::Consultant).await;
    let told = firm.fail(&["client", "import", &file(&firm, "two.jsonl", TWO)]);
    assert!(told.contains("row 1, `owner`: several people have the address maya@example.com"), "{told}");
    assert!(!store.client_imports.has_clients().await.unwrap());
}

#[tokio::test]
async fn verify_names_an_audit_row_that_was_tampered_with() {
    let firm = Firm::new();
    firm_with_people(&firm).await.close().await;
    firm.run(&["client", "import", &file(&firm, "two.jsonl", TWO)]);
    firm.run(&["client", "assign", "1001", "omar@example.com"]);
    // Four decisions, and three people joined.
    assert!(firm.run(&["verify"]).contains("audit: 7 rows: all agree"));
    // Someone with the file and patience: the guards are dropped, the decision is turned around.
    let script = "import sqlite3, sys\n\
        base = sqlite3.connect(sys.argv[1])\n\
        for (name,) in base.execute(\"select name from sqlite_master where type = 'trigger'\").fetchall():\n\
        \x20   base.execute(f'drop trigger {name}')\n\
        base.execute('pragma ignore_check_constraints = on')\n\
        changed = base.execute(\"update audit_rows set client_id = 1002 where client_id = 1001 and action = 'reassignClient'\").rowcount\n\
        assert changed == 1, changed\n\
        base.commit()\n";
    let database = firm.data().join("chancery.db");
    let status = std::process::Command::new("python3").args(["-c", script]).arg(database).status().unwrap();
    assert!(status.success());
    let output = firm.output(&["verify"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("DIFFERS audit row 0 of writer ") && text.contains("reassignClient"), "{text}");
    assert!(text.contains("audit: 7 rows: see above"), "{text}");
}

#[tokio::test]
async fn the_commands_do_the_same_on_postgresql() {
    let database = PostgresDatabase::create("clients");
    let firm = Firm::new().with("CHANCERY_DATABASE__URL", &database.url());
    let store = firm_with_people(&firm).await;
    let bad = format!("{TWO}{{}}");
    assert!(firm.fail(&["client", "import", &file(&firm, "bad.jsonl", bad)]).contains("row 3, `name`"));
    assert!(!store.client_imports.has_clients().await.unwrap());
    firm.run(&["client", "import", &file(&firm, "two.jsonl", TWO)]);
    firm.run(&["client", "import", &file(&firm, "hostile.jsonl", HOSTILE)]);
    firm.run(&["client", "assign", "1002", "maya@example.com"]);
    assert_eq!(firm.json(&["client", "list", "--json"]).as_array().unwrap().len(), 3);
    assert_eq!(without_numbers(&exported(&firm, "all.jsonl")).len(), 4, "archived ones too");
    assert!(
        firm.run(&["verify"])
            .lines()
            .any(|line| line.starts_with("audit: ") && line.ends_with(" rows: all agree"))
    );
}
