//! `chancery migrate`: a firm that moves from SQLite to PostgreSQL changes one setting, and nobody else notices.

use crate::billing::past::{NORTHGATE, Past, office_that_bills};
use crate::invoices_command::tamper_sqlite;
use crate::office::Office;
use crate::server::{Firm, Running, binary, clean_command, client, eventually, request};
use chancery_domain::{
    HowEnded, Nanos, OsRandomness, Prices, Randomness, RequestId, SeededRandomness, TokenPrice, UnixMillis,
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

/// Enough that a move takes a while.
const LARGE_LEDGER_ROWS: usize = 20_000;

fn migrate<'a>(from: &'a str, to: &'a str) -> [&'a str; 5] {
    ["migrate", "--from", from, "--to", to]
}

/// What commands tell of a firm, on whichever database.
fn told(firm: &Firm, invoices: &[String]) -> Value {
    let mut told: Vec<Value> = [
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
    told.extend(invoices.iter().map(|number| firm.json(&["invoice", "show", number, "--json"])));
    Value::Array(told)
}

#[tokio::test]
async fn after_a_move_keys_sessions_invoices_and_numbers_go_on_as_if_nothing_had_happened() {
    let office = office_that_bills();
    let (maya, ruth) = (office.sign_in("maya").await, office.sign_in("ruth").await);
    let demo = std::fs::read(office.firm.data().join("demo.json")).unwrap();
    let key = serde_json::from_slice::<Value>(&demo).unwrap()["api_key"].as_str().unwrap().to_owned();
    let ask = request("Answer in one word.", "What colour is grass?", 8);
    let first = office.server.generate(&key, &ask).await;
    let order = async |api: &str| {
        let request = client().post(format!("{api}/v1/generate")).bearer_auth(&key).json(&ask);
        crate::server::Reply::read(request.header("idempotency-key", "order-17").send().await.unwrap()).await
    };
    let kept = order(&office.server.api).await;
    assert_eq!(kept.status, 200, "{}", kept.body);
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
    let (before, pdfs_before) = (told(&firm, &invoices), pdfs(&firm));
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
    assert_eq!(told(&firm, &invoices), before, "the file is as it was");
    firm.run(&["verify"]);

    let firm = firm.with("CHANCERY_DATABASE__URL", &database.url());
    assert_eq!(told(&firm, &invoices), before);
    assert_eq!(pdfs(&firm), pdfs_before, "byte for byte");
    let verified = firm.run(&["verify"]);
    assert_eq!(verified.matches("all agree").count(), 3, "{verified}");

    let mut server = firm.start();
    let again = server.generate(&key, &ask).await;
    assert_eq!((again.text(), again.tokens()), (first.text(), first.tokens()), "the same key generates");
    let replayed = order(&server.api).await;
    assert_eq!(replayed.header("idempotent-replayed"), "true");
    assert_eq!(replayed.body["output_text"], kept.body["output_text"]);
    let (maya, ruth) = (maya.at(&server.portal), ruth.at(&server.portal));
    assert_eq!(maya.clients().await, clients, "the same cookie is the same person");
    let found = maya.json(&address).await.value();
    assert_eq!((&found["name"], &found["entries"]), (&record["name"], &record["entries"]));
    assert_eq!(ruth.json("/team").await.status.as_u16(), 200);

    // What is new follows what was there.
    let last = clients_of(&firm).into_iter().max().unwrap();
    std::fs::write(
        firm.folder.path().join("new.jsonl"),
        "{\"name\":\"Tidewater Motors\",\"owner\":\"maya@example.com\"}",
    )
    .unwrap();
    let told = firm.output(&["client", "import", "new.jsonl", "--json"]);
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.status.success(), "{text} {}", String::from_utf8_lossy(&told.stderr));
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
    assert_eq!(verified.matches("all agree").count(), 3, "{verified}");
}

fn number(invoice: &Value) -> String {
    invoice["number"].as_str().unwrap().to_owned()
}

fn clients_of(firm: &Firm) -> Vec<u64> {
    let clients = firm.json(&["client", "list", "--json"]);
    clients.as_array().unwrap().iter().map(|client| client["id"].as_u64().unwrap()).collect()
}

#[test]
fn what_moves_is_told_by_table_with_what_to_do_next() {
    let firm = Firm::new();
    firm.account_with_key("Hale & Ward");
    let (from, database) = (firm.database_url(), PostgresDatabase::create("told"));
    let output = firm.output(&migrate(&from, &database.url()));
    let (told, progress) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{progress}");
    for part in ["accounts", "api_keys", "verified", "`database.url`", "`limits.store`", "keep sqlite:"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    for part in ["checking sqlite:", "moving accounts: 1 rows", "comparing", "checking postgres://"] {
        assert!(progress.contains(part), "{part}: {progress}");
    }
}

#[test]
fn a_wrong_address_or_direction_is_refused_by_name_and_no_password_is_shown() {
    let firm = Firm::new();
    let secret = "postgres://ann:hunter2@127.0.0.1:1/firm";
    for (from, to, part) in [
        ("mysql://ann:hunter2@db/firm", secret, "--from: "),
        ("data/chancery.db", secret, "--from: "),
        ("sqlite:data/chancery.db", "postgres://ann:hunter2@db:notaport/firm", "--to: "),
        (secret, "sqlite:data/chancery.db", "--from is a PostgreSQL database"),
        (secret, secret, "pg_dump"),
        ("sqlite:data/chancery.db", "sqlite:other.db", "--to is a SQLite file"),
    ] {
        let output = firm.output(&migrate(from, to));
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(part) && !told.contains("hunter2"), "{part}: {told}");
    }
    let told = firm.fail(&migrate("sqlite:data/chancery.db", secret));
    assert!(told.contains("--from: there is no Chancery database at sqlite:data/chancery.db"), "{told}");
    assert!(!firm.data().exists(), "nothing was made");
    firm.account_with_key("Hale & Ward");
    let told = firm.fail(&migrate("sqlite:data/chancery.db", secret));
    assert!(told.contains("--to") && told.contains("127.0.0.1:1") && !told.contains("hunter2"), "{told}");
    assert!(firm.fail(&["migrate"]).contains("--from <URL>"));
}

#[test]
fn while_a_server_runs_on_either_side_nothing_moves() {
    let firm = Firm::new();
    firm.account_with_key("Hale & Ward");
    let (from, database) = (firm.database_url(), PostgresDatabase::create("served"));
    let server = firm.start_with(&["--only", "api"]);
    let told = firm.fail(&migrate(&from, &database.url()));
    assert!(told.contains("--from: a chancery server") && told.contains("stop it"), "{told}");
    drop(server);
    let other = Firm::new().with("CHANCERY_DATABASE__URL", &database.url());
    let server = other.start_with(&["--only", "api"]);
    let told = firm.fail(&migrate(&from, &database.url()));
    assert!(told.contains("--to: a chancery server") && told.contains("stop it"), "{told}");
    drop(server);
    // That server has drawn its secrets there.
    let told = firm.fail(&migrate(&from, &database.url()));
    assert!(told.contains("already holds rows (in ") && told.contains("createdb"), "{told}");
}

#[test]
fn a_ledger_that_somebody_changed_is_not_moved() {
    let firm = Firm::new();
    firm.account_with_key("Hale & Ward");
    tokio::runtime::Runtime::new().unwrap().block_on(use_much(&firm, 3));
    tamper_sqlite(
        &firm,
        "update ledger set output_tokens = output_tokens + 1, cost_nanos = cost_nanos + 400 where place = 1",
    );
    let (from, database) = (firm.database_url(), PostgresDatabase::create("tampered"));
    let told = firm.fail(&migrate(&from, &database.url()));
    assert!(told.contains("does not agree with itself") && told.contains("`chancery verify`"), "{told}");
    assert_eq!(tables(&database), 0);
}

fn tables(database: &PostgresDatabase) -> usize {
    database.query("select count(*) from pg_tables where schemaname = 'public'").parse().unwrap()
}

/// So many rows of its only account, in two months.
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
            output_tokens: 64,
            prices: Prices { input: price(100), output: price(400) },
            cost: Nanos(0),
            at,
            ended: HowEnded::Complete,
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
async fn a_move_that_is_killed_leaves_nothing_and_the_next_one_succeeds() {
    let seed = OsRandomness.next_u64();
    eprintln!("seed {seed}");
    let chance = SeededRandomness::new(seed);
    let firm = Firm::new();
    firm.account_with_key("Hale & Ward");
    use_much(&firm, LARGE_LEDGER_ROWS).await;
    let (from, database) = (firm.database_url(), PostgresDatabase::create("killed"));
    let to = database.url();
    let mut is_empty = true;
    for moment in ["moving ledger", "moving ledger", "looking whether", "reading everything back"] {
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
        // Whoever is killed after the last step was too quick for the test, and then everything is there.
        is_empty = tables(&database) == 0;
        let rows = || database.query("select count(*) from ledger");
        assert!(
            is_empty || rows() == LARGE_LEDGER_ROWS.to_string(),
            "seed {seed}: a part was left at {moment:?}"
        );
        assert!(is_empty || moment.starts_with("reading"), "seed {seed}: it was not killed in the middle");
    }
    if is_empty {
        let report = firm.json(&[&migrate(&from, &to)[..], &["--json"]].concat());
        assert_eq!((&report["ledger_rows"], &report["findings"]), (&json!(LARGE_LEDGER_ROWS), &json!([])));
    }
    let there = Firm::new().with("CHANCERY_DATABASE__URL", &to);
    assert!(there.run(&["verify"]).contains("ledger: 20,000 rows"));
    assert_eq!(
        database.query("select count(*) from ledger_of_no_month"),
        "0",
        "past months have partitions too"
    );
}
