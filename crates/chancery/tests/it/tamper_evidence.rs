//! Signed checkpoints of the real binary: written at shutdown, and compared by `verify`.

use crate::invoices_command::tamper_sqlite;
use crate::server::{Firm, request};
use std::os::unix::fs::PermissionsExt as _;

/// A firm with one billed request, whose server has stopped.
async fn stopped_firm() -> Firm {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let mut server = firm.start();
    assert_eq!(server.generate(&key, &request("", "Say hello.", 2)).await.status, 200);
    server.end();
    firm
}

fn verify(firm: &Firm, options: &[&str]) -> (Option<i32>, String) {
    let output = firm.output(&[&["verify"][..], options].concat());
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[tokio::test]
async fn emptied_audit_tables_are_found_by_the_checkpoint_of_the_shutdown() {
    let firm = stopped_firm().await;
    let (code, text) = verify(&firm, &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("ledger log: 1 rows, 2 checkpoints up to row 1: OK"), "{text}");
    let mode = std::fs::metadata(firm.data().join("checkpoint.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    tamper_sqlite(&firm, "delete from audit_rows;delete from audit_writers");
    let (code, text) = verify(&firm, &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("audit: 0 rows: OK"), "the chains alone know nothing: {text}");
    assert!(text.contains("DIFFERS audit log: row 0 is missing or there twice"), "{text}");
}

#[tokio::test]
async fn empty_database_beside_checkpoints_is_not_a_new_firm() {
    let firm = stopped_firm().await.with("CHANCERY_DATABASE__URL", "sqlite:other.db");
    let (other, checkpoints) = (firm.folder.path().join("other.db"), firm.data().join("checkpoints"));
    let commands: [&[&str]; 4] = [
        &["account", "create", "Marlow & Finch"],
        &["key", "create"],
        &["webhook", "add", "https://example.com/alerts"],
        &["serve"],
    ];
    for is_empty_file in [false, true] {
        for command in commands {
            let text = firm.fail(command);
            let ways_out = ["restore a backup", "move data/checkpoints away"];
            assert!(ways_out.iter().all(|way| text.contains(way)), "{command:?}: {text}");
            assert_eq!(other.exists(), is_empty_file, "{command:?} made a database");
        }
        std::fs::write(&other, "").unwrap();
    }
    std::fs::rename(&checkpoints, firm.folder.path().join("kept")).unwrap();
    firm.run(&["account", "create", "Marlow & Finch"]);
}

#[tokio::test]
async fn database_that_lost_all_rows_is_not_served_beside_its_checkpoints() {
    let firm = stopped_firm().await;
    let tables = ["audit_rows", "audit_writers", "ledger", "ledger_writers"];
    tamper_sqlite(&firm, &tables.map(|table| format!("delete from {table}")).join(";"));
    let text = firm.fail(&["serve"]);
    assert!(text.contains("is empty, but") && text.contains("restore a backup"), "{text}");
}

#[tokio::test]
async fn copy_of_the_checkpoints_verifies_with_its_keys() {
    let firm = stopped_firm().await;
    let copies = tempfile::tempdir().unwrap();
    let key = copies.path().join("checkpoint.pub");
    std::fs::copy(firm.data().join("checkpoint.pub"), &key).unwrap();
    let file = std::fs::read_dir(firm.data().join("checkpoints")).unwrap().next().unwrap().unwrap().path();
    let copy = copies.path().join("copy.txt");
    std::fs::copy(file, &copy).unwrap();
    let options = ["--checkpoints", copy.to_str().unwrap(), "--key", key.to_str().unwrap()];
    let (code, text) = verify(&firm, &options);
    assert_eq!(code, Some(0), "{text}");
    let empty = tempfile::tempdir().unwrap();
    let nothing = firm.fail(&["verify", "--checkpoints", empty.path().to_str().unwrap()]);
    assert!(nothing.contains("no checkpoints there"), "nothing is compared with nothing: {nothing}");
    std::fs::write(&key, "").unwrap();
    assert!(firm.fail(&[&["verify"][..], &options[..]].concat()).contains("give the file with --key"));
    assert!(firm.fail(&["verify", "--key", "nowhere.pub"]).contains("no such file"));
}
