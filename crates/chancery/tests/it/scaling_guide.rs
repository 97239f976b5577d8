//! Checks docs/scaling.md: its node configuration works as written, and the metrics it names exist.

use crate::server::{Firm, binary, clean_command, request, write_secret};
use chancery_test_support::{PostgresDatabase, query};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn guide() -> String {
    std::fs::read_to_string(repository().join("docs/scaling.md")).unwrap()
}

#[test]
fn node_config_in_the_guide_is_valid_and_complete() {
    let guide = guide();
    let (_, file) = guide.split_once("```toml\n").unwrap();
    let (file, _) = file.split_once("```").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    // Only a server opens the data directory, and the test must not create the one that this file names.
    write_secret(&folder.path().join("chancery.toml"), file);
    std::fs::create_dir(folder.path().join("secrets")).unwrap();
    for name in ["secrets/identity", "secrets/upstream"] {
        write_secret(&folder.path().join(name), "a secret\n");
    }
    write(
        "tokenizer.json",
        r#"{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}"#,
    );
    let run = |arguments: &[&str]| {
        let output = clean_command(binary()).args(arguments).current_dir(folder.path()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "chancery {arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(run(&["config", "check"]).contains("configuration OK"));
    // The file contains every setting of such a node, so that readers need not look elsewhere.
    let settings: Vec<serde_json::Value> = serde_json::from_str(&run(&["config", "show", "--json"])).unwrap();
    let left_out: Vec<&str> = settings
        .iter()
        .filter(|setting| setting["origin"] == "default")
        .map(|setting| setting["key"].as_str().unwrap())
        .filter(|key| !key.starts_with("portal.drafting.") && *key != "auth.listen")
        // Off by default.
        .filter(|key| !key.ends_with(".hedge_after_s"))
        .collect();
    assert_eq!(left_out, [""; 0]);
}

#[test]
fn every_metric_named_in_the_guide_exists() {
    let is_of_a_name = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    let guide = guide();
    let named: BTreeSet<&str> = guide
        .match_indices("chancery_")
        .map(|(at, _)| guide[at..].split(|letter| !is_of_a_name(letter)).next().unwrap())
        // Suffixes that Prometheus adds to a histogram's name.
        .map(|name| {
            ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
        })
        .collect();
    assert!(named.len() > 8, "{named:?}");
    let mut sources = String::new();
    read_all(&repository().join("crates"), &mut sources);
    let unknown: Vec<&&str> = named.iter().filter(|name| !sources.contains(&format!("\"{name}\""))).collect();
    assert_eq!(unknown, [&""; 0]);
}

/// Collects the source of all programs, without their tests.
fn read_all(folder: &Path, sources: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("tests") {
            read_all(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// What the guide says about detaching months: verify reports a detached month as missing until it is attached again.
#[tokio::test]
async fn verify_reports_a_detached_partition_until_it_is_attached_again() {
    let database = PostgresDatabase::create("detached_month");
    let firm = Firm::new().with("CHANCERY_DATABASE__URL", &database.url());
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    assert_eq!(server.generate(&key, &request("", "Say hello.", 2)).await.status, 200);
    drop(server);
    firm.run(&["verify"]);
    let month = database.query("SELECT tableoid::regclass FROM ledger LIMIT 1");
    let bound = database
        .query(&format!("SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = '{month}'"));
    database.query(&format!("ALTER TABLE ledger DETACH PARTITION {month}"));
    let output = firm.output(&["verify"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("are missing") && text.contains("the rows sum to 0 requests"), "{text}");
    database.query(&format!("ALTER TABLE ledger ATTACH PARTITION {month} {bound}"));
    assert!(firm.run(&["verify"]).contains(": OK"));
    let outcome = query(&database.url(), &format!("DELETE FROM {month}"));
    assert!(outcome.is_err(), "rows are never removed, of this month either");
}
