//! `chancery client`: imports and exports are complete or have no effect.

use crate::server::{Firm, binary, clean_command, file_mode};
use chancery_domain::{EventOrigin, Identity, OsRandomness, Person, Role, UnixMillis};
use chancery_store::{Store, VerifiedIdentity};
use chancery_test_support::PostgresDatabase;
use serde_json::{Value, json};
use std::io::Write;
#[cfg(target_os = "linux")]
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::time::Duration;

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
        sign_in(&store, subject, email, role).await;
    }
    store
}

async fn sign_in(store: &Store, subject: &str, email: &str, role: Role) -> Person {
    let identity = Identity { issuer: ISSUER.to_owned(), subject: subject.to_owned() };
    store
        .people
        .sign_in(VerifiedIdentity {
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

/// Returns the exported clients without their assigned numbers.
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
async fn clients_are_imported_listed_and_reassigned() {
    let firm = Firm::new();
    firm_with_people(&firm).await;
    let path = file(&firm, "two.jsonl", TWO);
    let printed = firm.run(&["client", "import", &path]);
    assert_eq!(printed, "imported 2 clients and 2 entries: numbers 1001 to 1002\n");
    let list = firm.json(&["client", "list", "--json"]);
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!((&list[0]["id"], &list[0]["owner"]), (&json!(1001), &json!("maya@example.com")));
    assert_eq!((&list[0]["open_disputes"], &list[1]["open_disputes"]), (&json!(1), &json!(0)));
    assert_eq!(list[0]["last_entry_at"], "2026-11-12T15:30:00.000Z");
    let table = firm.run(&["client", "list"]);
    assert!(
        table.contains("1001  Harbour Lane Bakery  maya@example.com  open dispute  2026-11-12"),
        "{table}"
    );

    let printed = firm.run(&["client", "assign", "1001", "omar@example.com"]);
    assert!(printed.contains("client 1001 (Harbour Lane Bakery) assigned to omar@example.com"), "{printed}");
    assert_eq!(
        firm.json(&["client", "list", "--owner", "omar@example.com", "--json"]).as_array().unwrap().len(),
        2
    );
    assert_eq!(firm.json(&["client", "list", "--owner", "maya@example.com", "--json"]), json!([]));
    assert!(
        firm.run(&["client", "assign", "1001", "omar@example.com"])
            .contains("client 1001 is already assigned to")
    );
    assert!(firm.fail(&["client", "assign", "7", "omar@example.com"]).contains("client 7 not found"));
    assert!(
        firm.fail(&["client", "assign", "1001", "eve@example.com"])
            .contains("no user with the address eve@example.com")
    );
    assert!(
        firm.run(&["verify"]).lines().any(|line| line.starts_with("audit: ") && line.ends_with(" rows: OK"))
    );
}

#[tokio::test]
async fn dry_run_reports_the_import_and_writes_nothing() {
    let firm = Firm::new();
    let store = firm_with_people(&firm).await;
    let path = file(&firm, "two.jsonl", TWO);
    let printed = firm.run(&["client", "import", &path, "--dry-run"]);
    assert_eq!(printed, "dry run: 2 clients and 2 entries can be imported\n");
    let printed = firm.json(&["client", "import", &path, "--dry-run", "--json"]);
    assert_eq!(
        (&printed["clients"], &printed["entries"], &printed["first_id"]),
        (&json!(2), &json!(2), &Value::Null)
    );
    assert!(!store.client_imports.has_clients().await.unwrap());
    assert_eq!(firm.json(&["client", "import", &path, "--json"])["first_id"], 1001, "no number was used up");
}

#[tokio::test]
async fn one_invalid_row_aborts_the_import_and_all_are_reported() {
    let firm = Firm::new();
    let store = firm_with_people(&firm).await;
    let mut lines: Vec<String> =
        (0..500).map(|n| format!(r#"{{"name":"Client {n}","owner":"maya@example.com"}}"#)).collect();
    lines[6] = r#"{"name":"Seventh","owner":"eve@example.com"}"#.to_owned();
    lines[399] = r#"{"name":"","owner":"maya@example.com","color":"red"}"#.to_owned();
    let printed = firm.fail(&["client", "import", &file(&firm, "many.jsonl", lines.join("\n"))]);
    assert!(printed.contains("many.jsonl: 3 problems, nothing imported:"), "{printed}");
    assert!(printed.contains("\n  row 7, `owner`: no user with the address eve@example.com"), "{printed}");
    assert!(printed.contains("\n  row 400, `name`: missing"), "{printed}");
    assert!(printed.contains("\n  row 400, `color`: unknown field"), "{printed}");
    assert!(!store.client_imports.has_clients().await.unwrap());
}

#[tokio::test]
async fn bom_and_crlf_files_are_imported() {
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

    let printed = firm.fail(&[
        "client",
        "import",
        &file(&firm, "latin.csv", b"name,owner\nCaf\xe9,maya@example.com\n"),
    ]);
    assert!(printed.contains("row 2: not UTF-8; save the file as UTF-8"), "{printed}");
    let printed = firm.fail(&["client", "import", &file(&firm, "clients.xlsx", "x")]);
    assert!(printed.contains("--format"), "{printed}");
    assert!(firm.fail(&["client", "import", "nowhere.csv"]).contains("cannot read nowhere.csv"));
}

#[tokio::test]
async fn import_reads_stdin_with_an_explicit_format() {
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

/// The system's temporary folder may be small, or in memory. Clients' data stays where the other data is.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn import_copies_stdin_to_an_unnamed_file_in_the_data_directory() {
    let firm = Firm::new();
    firm_with_people(&firm).await;
    let mut command = firm.program(binary());
    command.args(["client", "import", "-", "--format", "jsonl"]).env("TMPDIR", "/nonexistent");
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(TWO.as_bytes()).unwrap();
    let open_files = PathBuf::from(format!("/proc/{}/fd", child.id()));
    let is_copy = |path: &PathBuf| {
        let target = std::fs::read_link(path).unwrap_or_default();
        target.starts_with(firm.data()) && target.to_string_lossy().ends_with(" (deleted)")
    };
    let mode = loop {
        let files = std::fs::read_dir(&open_files).unwrap().map(|file| file.unwrap().path());
        if let Some(copy) = files.filter(|path| is_copy(path)).find_map(|path| path.metadata().ok()) {
            break copy.permissions().mode() & 0o777;
        }
        assert_eq!(child.try_wait().unwrap(), None, "it ended without a copy");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(mode, 0o600);
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("imported 2 clients"), "{output:?}");
    let mut left = std::fs::read_dir(firm.data()).unwrap().map(|file| file.unwrap().file_name());
    assert!(left.all(|name| name.to_string_lossy().starts_with("chancery.db")));
}

/// Names and texts that attempt injection wherever they are displayed.
const HOSTILE: &str = concat!(
    r#"{"name":"=HYPERLINK(\"http://evil.example\",\"x\")","owner":"maya@example.com","contact":"@SUM(1+1)","telephone":"-2+300","address":"'=1\n\t=2","#,
    r#""entries":[{"kind":"draft_letter","title":"<script>alert(1)</script>","text":"- one\n- \"two\", three; 'four'","at":"2026-11-12T15:30:00Z"}]}"#,
    "\n",
    r#"{"name":"Mill;=1+1","owner":"maya@example.com","contact":"Ann;@SUM(1+1)","address":"Mill Road;\"=1\"\n=2;+3","#,
    r#""entries":[{"kind":"meeting_note","title":"Agenda;-1","text":"One;\t=2\t+3","at":"2026-11-12T15:30:00Z"}]}"#,
    "\n",
    r#"{"name":"Robert'); DROP TABLE clients;-- مكتبة 中村","owner":"omar@example.com","contact":"''=1+1","archived":true}"#,
    "\n",
);

#[tokio::test]
async fn export_and_import_round_trip_in_both_formats() {
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
        let printed = other.run(&["client", "import", path.to_str().unwrap()]);
        assert!(
            printed.contains(
                ": numbers 1001 to 1005\nthe file's `id` values are ignored: imported clients get new numbers"
            ),
            "{printed}"
        );
        let again = exported(&other, "again.jsonl");
        assert_eq!(without_numbers(&again), without_numbers(&first), "{name}");
        assert_eq!(exported(&other, "again.csv"), csv);
    }
    let printed = firm.fail(&["client", "export", firm.folder.path().join("first.csv").to_str().unwrap()]);
    assert!(printed.contains("already exists; choose another name"), "{printed}");
}

#[tokio::test]
async fn archived_entries_and_entries_of_removed_people_round_trip() {
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
    let printed =
        firm.fail(&["client", "import", &file(&firm, "his.csv", "name,owner\nA,omar@example.com\n")]);
    assert!(printed.contains("run `chancery user restore omar@example.com` first"), "{printed}");
}

#[cfg(target_os = "linux")]
const MAX_IMPORT_MIB: u64 = 50;

/// Imports a file. Returns what was printed, and how much memory the import had in MiB, beyond that of one row: the program itself
/// is large without optimization.
#[cfg(target_os = "linux")]
fn import_memory(firm: &Firm, path: &str) -> (String, u64) {
    let one_row = file(firm, "one-row.csv", "name,owner\nA,maya@example.com\n");
    let (_, least) = peak_memory(firm, &["client", "import", &one_row]);
    let (printed, peak) = peak_memory(firm, &["client", "import", path]);
    let memory = peak.saturating_sub(least) / 1024;
    println!("{path}: {memory} MiB beyond the {} MiB of one row", least / 1024);
    (printed, memory)
}

/// Runs a command, and returns its standard error and the most memory it had, in KiB.
#[cfg(target_os = "linux")]
fn peak_memory(firm: &Firm, arguments: &[&str]) -> (String, u64) {
    // GNU time is not everywhere; python3 has `wait4`.
    let script = "import os, sys\n\
        child = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ)\n\
        _, status, usage = os.wait4(child, 0)\n\
        print(usage.ru_maxrss, status)\n";
    let mut command = firm.program("python3");
    command.args(["-c", script, binary()]).args(arguments);
    let output = command.output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let peak = printed.lines().last().unwrap().split(' ').next().unwrap().parse().unwrap();
    (printed + &String::from_utf8_lossy(&output.stderr), peak)
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn import_needs_less_than_50_mib_for_one_line_of_200_mb() {
    use std::io::{Seek, SeekFrom};
    let firm = Firm::new();
    firm_with_people(&firm).await;
    for (name, start) in
        [("a.csv", ""), ("b.csv", "name,owner\n"), ("c.jsonl", "{\"name\":\""), ("d.jsonl", "{\"")]
    {
        // A sparse file of NUL characters.
        let path = file(&firm, name, start);
        let mut sparse = std::fs::File::options().write(true).open(&path).unwrap();
        sparse.seek(SeekFrom::Start(200_000_000)).unwrap();
        sparse.write_all(b"\n").unwrap();
        let (printed, memory) = import_memory(&firm, &path);
        let row = if start.ends_with('\n') { 2 } else { 1 };
        let expected =
            [format!("row {row}: too long: more than 282,000 bytes"), format!("row {row}: invalid JSON")];
        assert!(expected.iter().any(|expected| printed.contains(expected)), "{printed}");
        assert!(memory < MAX_IMPORT_MIB, "{name}: {memory} MiB");
    }
    let clients = without_numbers(&exported(&firm, "all.jsonl"));
    assert!(clients.iter().all(|client| client["name"] == "A"), "only those of one row");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn import_needs_less_than_50_mib_for_10_000_clients() {
    let firm = Firm::new();
    firm_with_people(&firm).await;
    let client = |number: usize| {
        let owner = if number.is_multiple_of(2) { "maya" } else { "omar" };
        format!("Client {number},{owner}@example.com,c{number}@client{number}.example,{number} Mill Lane\n")
    };
    let text = format!("name,owner,email,address\n{}", (0..10_000).map(client).collect::<String>());
    let (printed, memory) = import_memory(&firm, &file(&firm, "many.csv", text));
    assert!(printed.contains("imported 10,000 clients and 0 entries: numbers 1002 to 11001"), "{printed}");
    assert!(memory < MAX_IMPORT_MIB, "{memory} MiB");
    assert!(
        firm.run(&["verify"]).lines().any(|line| line.starts_with("audit: ") && line.ends_with(" rows: OK"))
    );
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn import_needs_less_than_50_mib_for_long_records() {
    let firm = Firm::new();
    firm_with_people(&firm).await;
    let text = "A long note. ".repeat(1500);
    let entry = json!({"kind": "meeting_note", "title": "Call", "text": text, "at": "2026-11-12T15:30:00Z"});
    let entries = vec![entry.to_string(); 100].join(",");
    let line = format!("{{\"name\":\"A\",\"owner\":\"maya@example.com\",\"entries\":[{entries}]}}\n");
    let path = file(&firm, "long.jsonl", line.repeat(3));
    let (printed, memory) = import_memory(&firm, &path);
    assert!(printed.contains("imported 3 clients and 300 entries: numbers 1002 to 1004"), "{printed}");
    assert!(memory < MAX_IMPORT_MIB, "{memory} MiB");
    let records = without_numbers(&exported(&firm, "all.jsonl"));
    let lengths: Vec<usize> =
        records.iter().map(|record| record["entries"].as_array().unwrap().len()).collect();
    assert_eq!(lengths, [0, 100, 100, 100]);
}

#[cfg(unix)]
#[tokio::test]
async fn import_reads_a_named_pipe() {
    let firm = Firm::new();
    firm_with_people(&firm).await;
    let pipe = firm.folder.path().join("clients.jsonl");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let writer = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::write(pipe, TWO).unwrap()
    });
    let printed = firm.run(&["client", "import", pipe.to_str().unwrap()]);
    assert_eq!(printed, "imported 2 clients and 2 entries: numbers 1001 to 1002\n");
    writer.join().unwrap();
}

#[tokio::test]
async fn large_import_is_rejected_while_a_server_uses_the_sqlite_file() {
    let firm = Firm::new();
    let store = firm_with_people(&firm).await;
    let clients = |count: usize| {
        format!("name,owner\n{}", "A,maya@example.com\nB,omar@example.com\n".repeat(count / 2))
    };
    let (small, large) = (file(&firm, "small.csv", clients(1000)), file(&firm, "large.csv", clients(1002)));
    let server = firm.start_with(&[]);
    let printed = firm.fail(&["client", "import", &large]);
    assert!(printed.contains("stop the server, or split the file"), "{printed}");
    assert!(!store.client_imports.has_clients().await.unwrap());
    assert!(firm.run(&["client", "import", &large, "--dry-run"]).contains("can be imported"));
    assert!(firm.run(&["client", "import", &small]).contains("imported 1,000 clients"));
    drop(server);
    assert!(firm.run(&["client", "import", &large]).contains(": numbers 2001 to 3002"));
}

#[tokio::test]
async fn exported_csv_has_no_formula_cells() {
    let firm = Firm::new();
    firm_with_people(&firm).await;
    firm.run(&["client", "import", &file(&firm, "hostile.jsonl", HOSTILE)]);
    exported(&firm, "all.csv");
    // Parsed by an independent program.
    let script = "import csv, sys\n\
        def check(cell):\n\
        \x20   assert cell[:1] not in '=+-@' or cell == '', cell\n\
        for row in csv.reader(open(sys.argv[1], newline='', encoding='utf-8')):\n\
        \x20   for cell in row:\n\
        \x20       assert cell[:1] not in '\\t\\r\\n' or cell == '', cell\n\
        \x20       check(cell)\n\
        for separator in ';\\t':\n\
        \x20   for row in open(sys.argv[1], encoding='utf-8'):\n\
        \x20       for cell in row.split(separator):\n\
        \x20           check(cell.lstrip('\\t\"'))\n";
    let path = firm.folder.path().join("all.csv");
    let output = std::process::Command::new("python3").args(["-c", script]).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn ambiguous_owner_email_is_rejected() {
    let firm = Firm::new();
    let store = firm_with_people(&firm).await;
    sign_in(&store, "4", "maya@example.com", Role::Consultant).await;
    let printed = firm.fail(&["client", "import", &file(&firm, "two.jsonl", TWO)]);
    assert!(printed.contains("row 1, `owner`: several users have the address maya@example.com"), "{printed}");
    assert!(!store.client_imports.has_clients().await.unwrap());
}

#[tokio::test]
async fn verify_reports_a_tampered_audit_row() {
    let firm = Firm::new();
    firm_with_people(&firm).await.close().await;
    firm.run(&["client", "import", &file(&firm, "two.jsonl", TWO)]);
    firm.run(&["client", "assign", "1001", "omar@example.com"]);
    // Four decisions and three people who joined.
    assert!(firm.run(&["verify"]).contains("audit: 7 rows: OK"));
    // An attacker with access to the file drops the triggers and flips the decision.
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
    assert!(text.contains("audit: 7 rows: differences found, see above"), "{text}");
}

#[tokio::test]
async fn client_commands_work_on_postgresql() {
    let database = PostgresDatabase::create("clients");
    let firm = Firm::new().with("CHANCERY_DATABASE__URL", &database.url());
    let store = firm_with_people(&firm).await;
    let bad = format!("{TWO}{{}}");
    assert!(firm.fail(&["client", "import", &file(&firm, "bad.jsonl", bad)]).contains("row 3, `name`"));
    assert!(!store.client_imports.has_clients().await.unwrap());
    firm.run(&["client", "import", &file(&firm, "two.jsonl", TWO)]);
    firm.run(&["client", "import", &file(&firm, "hostile.jsonl", HOSTILE)]);
    firm.run(&["client", "assign", "1002", "maya@example.com"]);
    assert_eq!(firm.json(&["client", "list", "--json"]).as_array().unwrap().len(), 4);
    assert_eq!(without_numbers(&exported(&firm, "all.jsonl")).len(), 5, "archived ones too");
    assert!(
        firm.run(&["verify"]).lines().any(|line| line.starts_with("audit: ") && line.ends_with(" rows: OK"))
    );
}
