//! `chancery migrate`: a firm moves from SQLite to PostgreSQL by changing one setting, and nothing else changes.

use crate::billing::billing_history::{NORTHGATE, Past, office_that_bills};
use crate::invoices_command::tamper_sqlite;
use crate::office::Office;
use crate::server::{Firm, Running, binary, clean_command, client, eventually, request};
use chancery_domain::{
    Nanos, OsRandomness, Prices, Randomness, RequestId, SeededRandomness, StopReason, TokenPrice, UnixMillis,
    UsageRow,
};
use chancery_store::Store;
use chancery_test_support::PostgresDatabase;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Enough that the transfer takes a while.
const LARGE_LEDGER_ROWS: usize = 10_000;

fn migrate<'a>(from: &'a str, to: &'a str) -> [&'a str; 5] {
    ["migrate", "--from", from, "--to", to]
}

/// Collects what the commands report about a firm, on either database.
fn collect_reports(firm: &Firm, invoices: &[String]) -> Value {
    let mut reports: Vec<Value> = [
        &["account", "list", "--json"][..],
        &["key", "list", "--json"],
        &["user", "list", "--json"],
        &["usage", "--json", "--by", "day"],
        &["usage", "--json", "--by", "key"],
        &["usage", "--json", "--by", "model"],
        &["invoice", "list", "--json"],
        &["client", "list", "--json"],
    ]
    .map(|command| firm.json(command))
    .into();
    reports.extend(invoices.iter().map(|number| firm.json(&["invoice", "show", number, "--json"])));
    Value::Array(reports)
}

#[tokio::test]
async fn keys_sessions_invoices_and_ids_keep_working_after_migration() {
    let office = office_that_bills();
    let (maya, ruth) = (office.sign_in("maya").await, office.sign_in("ruth").await);
    let demo = std::fs::read(office.firm.data().join("demo.json")).unwrap();
    let key = serde_json::from_slice::<Value>(&demo).unwrap()["api_key"].as_str().unwrap().to_owned();
    let body = request("Answer in one word.", "What colour is grass?", 8);
    let first = office.server.generate(&key, &body).await;
    let order = async |api: &str| {
        let request = client().post(format!("{api}/v1/generate")).bearer_auth(&key).json(&body);
        crate::server::Reply::read(request.header("idempotency-key", "order-17").send().await.unwrap()).await
    };
    let stored = order(&office.server.api).await;
    assert_eq!(stored.status, 200, "{}", stored.body);
    let past = Past::of(&office, &ruth).await;
    past.invoice().await;
    let clients = maya.clients().await;
    let address = format!("/clients/{}", clients[0]["id"]);
    let record = maya.json(&address).await.value();
    let Office { firm, mut server } = office;
    server.end();
    let invoices = firm.json(&["invoice", "list", "--json"]);
    let invoices: Vec<String> = invoices["invoices"].as_array().unwrap().iter().map(number).collect();
    assert_eq!(invoices.len(), 7, "five invoices and two credit notes: {invoices:?}");
    let pdfs = |firm: &Firm| -> Vec<Vec<u8>> {
        invoices.iter().map(|number| firm.output(&["invoice", "show", number, "--pdf", "-"]).stdout).collect()
    };
    let (before, pdfs_before) = (collect_reports(&firm, &invoices), pdfs(&firm));
    assert!(pdfs_before.iter().all(|pdf| pdf.starts_with(b"%PDF-")));

    let (from, database) = (firm.database_url(), PostgresDatabase::create("migrate"));
    let report = firm.json(&[&migrate(&from, &database.url())[..], &["--json"]].concat());
    assert_eq!(report["findings"], json!([]));
    let rows = |table: &str| -> u64 {
        let tables = report["tables"].as_array().unwrap();
        tables.iter().find(|line| line["table"] == table).unwrap()["rows"].as_u64().unwrap()
    };
    assert_eq!((rows("invoices"), rows("invoice_documents")), (7, 7));
    assert_eq!(rows("ledger"), report["ledger_rows"].as_u64().unwrap());
    assert!(rows("ledger") > 500 && rows("idempotency_keys") == 1 && rows("sessions") == 2, "{report}");
    assert_eq!(collect_reports(&firm, &invoices), before, "the file is as it was");
    firm.run(&["verify"]);

    let firm = firm.with("CHANCERY_DATABASE__URL", &database.url());
    assert_eq!(collect_reports(&firm, &invoices), before);
    assert_eq!(pdfs(&firm), pdfs_before, "byte for byte");
    let verified = firm.run(&["verify"]);
    assert_eq!(verified.matches(": OK").count(), 5, "{verified}");

    let mut server = firm.start();
    let again = server.generate(&key, &body).await;
    assert_eq!((again.text(), again.tokens()), (first.text(), first.tokens()), "the same key generates");
    let replayed = order(&server.api).await;
    assert_eq!(replayed.header("idempotent-replayed"), "true");
    assert_eq!(replayed.body["output_text"], stored.body["output_text"]);
    let (maya, ruth) = (maya.at(&server.portal), ruth.at(&server.portal));
    assert_eq!(maya.clients().await, clients, "the same cookie is the same person");
    let found = maya.json(&address).await.value();
    assert_eq!((&found["name"], &found["entries"]), (&record["name"], &record["entries"]));
    assert_eq!(ruth.json("/team").await.status.as_u16(), 200);

    // New rows follow the existing ones.
    let last = clients_of(&firm).into_iter().max().unwrap();
    std::fs::write(
        firm.folder.path().join("new.jsonl"),
        "{\"name\":\"Tidewater Motors\",\"owner\":\"maya@example.com\"}",
    )
    .unwrap();
    let import = firm.output(&["client", "import", "new.jsonl", "--json"]);
    let text = String::from_utf8_lossy(&import.stdout).into_owned();
    assert!(import.status.success(), "{text} {}", String::from_utf8_lossy(&import.stderr));
    assert_eq!(clients_of(&firm).into_iter().max(), Some(last + 1), "{text}");
    let month = past.last.to_string();
    let new = firm.json(&["invoice", "issue", "--account", NORTHGATE, "--month", &month, "--json"]);
    let serial = |number: &str| number.rsplit_once('-').unwrap().1.parse::<u32>().unwrap();
    assert_eq!(
        serial(&number(&new)),
        invoices.iter().map(|number| serial(number)).max().unwrap() + 1,
        "no gap"
    );
    server.end();
    let verified = firm.run(&["verify"]);
    assert_eq!(verified.matches(": OK").count(), 5, "{verified}");
}

fn number(invoice: &Value) -> String {
    invoice["number"].as_str().unwrap().to_owned()
}

fn clients_of(firm: &Firm) -> Vec<u64> {
    let clients = firm.json(&["client", "list", "--json"]);
    clients.as_array().unwrap().iter().map(|client| client["id"].as_u64().unwrap()).collect()
}

#[test]
fn migrate_reports_rows_per_table_and_next_steps() {
    let firm = Firm::new();
    firm.account_with_key("Hale & Ward");
    let (from, database) = (firm.database_url(), PostgresDatabase::create("told"));
    let output = firm.output(&migrate(&from, &database.url()));
    let (printed, progress) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{progress}");
    for part in ["accounts", "api_keys", "verified", "`database.url`", "`limits.store`", "keep sqlite:"] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    for part in ["verifying sqlite:", "transferring accounts: 1 rows", "comparing", "verifying postgres://"] {
        assert!(progress.contains(part), "{part}: {progress}");
    }
}

#[test]
fn invalid_migrate_url_is_rejected_by_option_without_password() {
    let firm = Firm::new();
    let secret = "postgres://ann:hunter2@127.0.0.1:1/firm";
    for (from, to, part) in [
        ("mysql://ann:hunter2@db/firm", secret, "--from: "),
        ("data/chancery.db", secret, "--from: "),
        ("sqlite:data/chancery.db", "postgres://ann:hunter2@db:notaport/firm", "--to: "),
        (secret, "sqlite:data/chancery.db", "--from must be a SQLite file"),
        (secret, secret, "pg_dump"),
        ("sqlite:data/chancery.db", "sqlite:other.db", "--to must be a PostgreSQL database"),
        (
            "sqlite:data/chancery.db",
            "postgres://ann:hunter2@db.example/firm",
            "--to: all records would be sent to db.example in clear text; add ?sslmode=verify-full",
        ),
    ] {
        let output = firm.output(&migrate(from, to));
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains(part) && !printed.contains("hunter2"), "{part}: {printed}");
    }
    let printed = firm.fail(&migrate("sqlite:data/chancery.db", secret));
    assert!(printed.contains("--from: no Chancery database at sqlite:data/chancery.db"), "{printed}");
    assert!(!firm.data().exists(), "nothing was made");
    firm.account_with_key("Hale & Ward");
    let printed = firm.fail(&migrate("sqlite:data/chancery.db", secret));
    assert!(
        printed.contains("--to") && printed.contains("127.0.0.1:1") && !printed.contains("hunter2"),
        "{printed}"
    );
    assert!(firm.fail(&["migrate"]).contains("--from <URL>"));
}

#[test]
fn migrate_is_rejected_while_a_server_runs_on_either_side() {
    let firm = Firm::new();
    firm.account_with_key("Hale & Ward");
    let (from, database) = (firm.database_url(), PostgresDatabase::create("served"));
    let server = firm.start_with(&["--only", "api"]);
    let printed = firm.fail(&migrate(&from, &database.url()));
    assert!(
        printed.contains("--from: ")
            && printed.contains("is in use by a chancery server")
            && printed.contains("stop it"),
        "{printed}"
    );
    drop(server);
    let other = Firm::new().with("CHANCERY_DATABASE__URL", &database.url());
    let server = other.start_with(&["--only", "api"]);
    let printed = firm.fail(&migrate(&from, &database.url()));
    assert!(
        printed.contains("--to: ")
            && printed.contains("is in use by a chancery server")
            && printed.contains("stop it"),
        "{printed}"
    );
    drop(server);
    // That server generated its secrets there.
    let printed = firm.fail(&migrate(&from, &database.url()));
    assert!(
        printed.contains("the target database is not empty (table ") && printed.contains("createdb"),
        "{printed}"
    );
}

#[test]
fn migrate_rejects_a_tampered_ledger() {
    let firm = Firm::new();
    firm.account_with_key("Hale & Ward");
    tokio::runtime::Runtime::new().unwrap().block_on(use_much(&firm, 3));
    tamper_sqlite(
        &firm,
        "update ledger set output_tokens = output_tokens + 1, cost_nanos = cost_nanos + 400 where position = 1",
    );
    let (from, database) = (firm.database_url(), PostgresDatabase::create("tampered"));
    let printed = firm.fail(&migrate(&from, &database.url()));
    assert!(
        printed.contains("verification of sqlite:")
            && printed.contains("failed, so nothing was transferred")
            && printed.contains("`chancery verify`"),
        "{printed}"
    );
    assert_eq!(tables(&database), 0);
}

fn tables(database: &PostgresDatabase) -> usize {
    database.query("select count(*) from pg_tables where schemaname = 'public'").parse().unwrap()
}

/// Adds this many rows for the firm's only account, across two months.
async fn use_much(firm: &Firm, rows: usize) {
    let store = Arc::new(Store::open(&firm.database_url().parse().unwrap()).await.unwrap());
    let account = store.account_lookup.list_accounts().await.unwrap()[0].id;
    let key = store.account_lookup.list_keys().await.unwrap()[0].key.id;
    let chance = SeededRandomness::new(5);
    let price = TokenPrice::from_nanos_per_token;
    let mut settling = JoinSet::new();
    for number in 0..rows {
        let at = UnixMillis(1_760_000_000_000 + number as i64 * 200_000);
        let mut row = UsageRow {
            request_id: RequestId::new(at, &chance),
            account,
            key,
            model: "smollm2-135m".to_owned(),
            input_tokens: 290,
            cached_input_tokens: 0,
            output_tokens: 64,
            prices: Prices { input: price(100), cached_input: price(100), output: price(400) },
            cost: Nanos(0),
            at,
            stop_reason: StopReason::Complete,
        };
        row.cost = row.recomputed_cost().unwrap();
        let store = Arc::clone(&store);
        settling.spawn(async move { store.ledger.settle(row.into()).await.unwrap() });
        if settling.len() > 500 {
            settling.join_next().await.unwrap().unwrap();
        }
    }
    settling.join_all().await;
    store.close().await;
}

#[tokio::test]
async fn killed_migration_leaves_nothing_and_the_next_one_succeeds() {
    let seed = OsRandomness.next_u64();
    eprintln!("seed {seed}");
    let chance = SeededRandomness::new(seed);
    let firm = Firm::new();
    firm.account_with_key("Hale & Ward");
    use_much(&firm, LARGE_LEDGER_ROWS).await;
    let (from, database) = (firm.database_url(), PostgresDatabase::create("killed"));
    let to = database.url();
    let mut is_empty = true;
    for moment in ["transferring ledger", "checking foreign-key", "comparing source and target"] {
        if !is_empty {
            break;
        }
        let mut command = clean_command(binary());
        command.args(migrate(&from, &to)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = Running(command.spawn().unwrap());
        let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines().map_while(Result::ok);
        let found = lines.find(|line| line.starts_with(moment));
        assert!(found.is_some(), "it ended before {moment:?}");
        tokio::time::sleep(Duration::from_millis(chance.next_u64() % 30)).await;
        drop(child);
        let sessions = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'chancery'";
        eventually("its sessions have ended", Duration::from_secs(30), async || {
            database.query(sessions) == "0"
        })
        .await;
        // If the process was killed after its last step, the transfer was too fast for the test, and everything is there.
        is_empty = tables(&database) == 0;
        let rows = || database.query("select count(*) from ledger");
        assert!(
            is_empty || rows() == LARGE_LEDGER_ROWS.to_string(),
            "seed {seed}: a part was left at {moment:?}"
        );
        assert!(is_empty || moment.starts_with("comparing"), "seed {seed}: it was not killed in the middle");
    }
    if is_empty {
        let report = firm.json(&[&migrate(&from, &to)[..], &["--json"]].concat());
        assert_eq!((&report["ledger_rows"], &report["findings"]), (&json!(LARGE_LEDGER_ROWS), &json!([])));
    }
    let there = Firm::new().with("CHANCERY_DATABASE__URL", &to);
    assert!(there.run(&["verify"]).contains("ledger: 10,000 rows"));
    assert_eq!(database.query("select count(*) from ledger_default"), "0", "past months have partitions too");
}
