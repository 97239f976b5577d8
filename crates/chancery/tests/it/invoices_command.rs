//! `chancery invoice`, and what `chancery verify` finds after someone tampers with an invoice.

use crate::server::{Firm, file_mode};
use chancery_domain::{
    Nanos, Prices, RequestId, SeededRandomness, StopReason, TokenPrice, UnixMillis, UsageRow,
};
use chancery_store::Store;
use chancery_test_support::PostgresDatabase;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

const ACCOUNT: &str = "Brightwater Claims";
/// In the past, whenever the tests run.
const MONTH: &str = "2025-10";
const MIDDLE_OF_MONTH: &str = "2025-10-15T12:00:00Z";

const BILLING: &str = r#"
[portal]
firm_name = "Marlow & Finch"
[billing]
letterhead = """
48 Commercial Wharf
Boston, MA 02110"""
payment = "By bank transfer to Marlow & Finch LLP."
tax_name = "Sales tax"
tax_percent = "6.25"
"#;

/// A firm whose only account has used two models in the month.
async fn firm_with_usage(firm: Firm) -> Firm {
    std::fs::write(firm.folder.path().join("chancery.toml"), BILLING).unwrap();
    firm.account_with_key(ACCOUNT);
    let store = Arc::new(Store::open(&firm.database_url().parse().unwrap()).await.unwrap());
    for (number, (model, prices, tokens)) in [
        ("smollm2-135m", (100, 400), (1_284_310, 96_204)),
        ("qwen2.5-7b", (300, 900), (182_640_275, 24_118_906)),
    ]
    .into_iter()
    .enumerate()
    {
        use_tokens(&store, number as u64, model, prices, tokens).await;
    }
    store.close().await;
    firm
}

async fn use_tokens(store: &Store, seed: u64, model: &str, prices: (i64, i64), tokens: (u32, u32)) {
    let prices = [prices.0, prices.0, prices.1];
    use_cached_tokens(store, seed, model, prices, [tokens.0, 0, tokens.1]).await;
}

/// Prices and tokens of input, cached input and output.
async fn use_cached_tokens(store: &Store, seed: u64, model: &str, prices: [i64; 3], tokens: [u32; 3]) {
    let [input_tokens, cached_input_tokens, output_tokens] = tokens;
    let at: UnixMillis = MIDDLE_OF_MONTH.parse().unwrap();
    let [input, cached_input, output] = prices.map(TokenPrice::from_nanos_per_token);
    let account = store.account_lookup.list_accounts().await.unwrap()[0].id;
    let key = store.account_lookup.list_keys().await.unwrap()[0].key.id;
    let mut row = UsageRow {
        request_id: RequestId::new(at, &SeededRandomness::new(seed)),
        account,
        key,
        model: model.to_owned(),
        input_tokens,
        cached_input_tokens,
        output_tokens,
        prices: Prices { input, cached_input, output },
        cost: Nanos(0),
        at,
        stop_reason: StopReason::Complete,
    };
    row.cost = row.recomputed_cost().unwrap();
    store.ledger.settle(row.into()).await.unwrap();
}

fn issue(firm: &Firm) -> Value {
    firm.json(&["invoice", "issue", "--account", ACCOUNT, "--month", MONTH, "--json"])
}

fn number_of(issued: &Value) -> String {
    issued["number"].as_str().unwrap().to_owned()
}

fn path(firm: &Firm, name: &str) -> (PathBuf, String) {
    let path = firm.folder.path().join(name);
    let text = path.to_str().unwrap().to_owned();
    (path, text)
}

#[tokio::test]
async fn month_is_invoiced_once_and_its_files_are_exported() {
    let firm = firm_with_usage(Firm::new()).await;
    let drafts = firm.json(&["invoice", "list", "--json"]);
    assert_eq!(drafts["invoices"], json!([]));
    assert_eq!(drafts["drafts"][0]["exact"], "76.6660105");
    assert_eq!(drafts["drafts"][0]["can_be_issued_from"], "2025-11-01T01:00:00.000Z");

    let first = issue(&firm);
    assert_eq!(first["is_new"], true);
    let number = number_of(&first);
    assert!(number.ends_with("-0001"), "{number}");
    let again = issue(&firm);
    assert_eq!((number_of(&again), &again["is_new"]), (number.clone(), &json!(false)));
    let printed = firm.run(&["invoice", "issue", "--account", ACCOUNT, "--month", MONTH]);
    assert_eq!(printed, format!("invoice {number} already covers {ACCOUNT}, {MONTH}; no change\n"));

    let record = firm.json(&["invoice", "show", &number, "--json"]);
    assert_eq!((&record["subtotal"], &record["total"]), (&json!("76.67"), &json!("81.46")));
    assert_eq!(record["tax"], json!({ "name": "Sales tax", "percent": "6.25", "amount": "4.79" }));
    assert_eq!(record["seller"]["letterhead"], "48 Commercial Wharf\nBoston, MA 02110");
    assert_eq!((&record["state"], &record["outstanding"]), (&json!("issued"), &json!("81.46")));
    assert_eq!(record["lines"].as_array().unwrap().len(), 4);
    assert_eq!(record["events"][0]["deed"], "issued");
    let text = firm.run(&["invoice", "show", &number]);
    assert!(
        text.contains("182,640,275")
            && text.contains("total $81.46 (exact amount before rounding and tax: 76.6660105)"),
        "{text}"
    );

    let (pdf, pdf_name) = path(&firm, "invoice.pdf");
    firm.run(&["invoice", "show", &number, "--pdf", &pdf_name]);
    let document = std::fs::read(&pdf).unwrap();
    assert!(document.starts_with(b"%PDF-"));
    assert_eq!(file_mode(&pdf) & 0o077, 0, "what is billed is for its maker to pass on");
    let printed = firm.fail(&["invoice", "show", &number, "--pdf", &pdf_name]);
    assert!(
        printed.contains("already exists; choose another name, or overwrite it with `--force`"),
        "{printed}"
    );
    firm.run(&["invoice", "show", &number, "--pdf", &pdf_name, "--force"]);
    assert_eq!(firm.output(&["invoice", "show", &number, "--pdf", "-"]).stdout, document);
    let csv = firm.run(&["invoice", "show", &number, "--csv", "-"]);
    assert!(csv.starts_with(
        "number,account,month,model,direction,tokens,price_per_million,exact,amount,currency,row\r\n"
    ));
    assert_eq!(csv.lines().count(), 1 + 4 + 3);

    let list = firm.json(&["invoice", "list", "--state", "issued", "--account", ACCOUNT, "--json"]);
    assert_eq!((&list["total"], &list["sums"][0]["outstanding"]), (&json!(1), &json!("81.46")));
    assert_eq!(list["drafts"], json!([]));
    let printed = firm.run(&["verify"]);
    assert!(printed.contains("invoices: 1 documents: OK"), "{printed}");
}

#[tokio::test]
async fn invalid_invoice_commands_are_rejected_with_a_hint() {
    let firm = firm_with_usage(Firm::new()).await;
    for (command, expected) in [
        (&["issue", "--account", ACCOUNT, "--month", "2024-01"][..], "has no usage in 2024-01"),
        (
            &["issue", "--account", ACCOUNT, "--month", "9998-01"],
            "can be invoiced from 9998-02-01T01:00:00.000Z",
        ),
        (&["issue", "--account", ACCOUNT, "--month", "October"], "invalid month; use YYYY-MM"),
        (
            &["issue", "--account", "Nobody", "--month", MONTH],
            "run `chancery account list` to see all accounts",
        ),
        (&["show", "2025-0009"], "there is no invoice 2025-0009; run `chancery invoice list`"),
        (&["show", "9"], "such as 2026-0031"),
        (&["paid", "2025-0009"], "there is no invoice 2025-0009"),
        (&["credit", "2025-0009", "--whole", "--reason", "x"], "there is no invoice 2025-0009"),
        (&["credit", "2025-0009", "--reason", "x"], "--whole"),
        (&["credit", "2025-0009", "--whole", "--reason", " "], "the reason is missing"),
        (&["list", "--state", "open"], "draft, issued, paid or void"),
    ] {
        let printed = firm.fail(&[&["invoice"], command].concat());
        assert!(printed.contains(expected), "{command:?}: {printed}");
    }
    let number = number_of(&issue(&firm));
    for (amount, expected) in [
        ("1000", "exceeds the rest of the invoice's subtotal"),
        ("0", "must be above zero"),
        ("1.005", "invalid --amount 1.005: USD has at most 2 decimals"),
        ("ten", "is not an amount"),
    ] {
        let printed = firm.fail(&["invoice", "credit", &number, "--amount", amount, "--reason", "x"]);
        assert!(printed.contains(expected), "{amount}: {printed}");
    }
    assert_eq!(firm.json(&["invoice", "list", "--json"])["total"], 1, "nothing was issued by mistake");
}

#[tokio::test]
async fn unprintable_address_is_rejected_and_a_missing_one_only_warned_about() {
    let firm = firm_with_usage(Firm::new()).await;
    let command = ["invoice", "issue", "--account", ACCOUNT, "--month", MONTH];
    firm.run(&["account", "billing", ACCOUNT, "--address", "東京都千代田区"]);
    let printed = firm.fail(&command);
    assert!(printed.contains("The billing address contains 東 (U+6771), 京 (U+4EAC)"), "{printed}");
    assert!(printed.contains("billing.fonts") && printed.contains("nothing was issued"), "{printed}");
    let font = concat!(env!("CARGO_MANIFEST_DIR"), "/../invoicing/fonts/NotoSansCJK-sample.otf");
    let firm = firm.with("CHANCERY_BILLING__FONTS", "/nowhere/cjk.ttc");
    for command in [&command[..], &["config", "check"]] {
        let printed = firm.fail(command);
        assert!(printed.contains("billing.fonts: cannot read the font /nowhere/cjk.ttc"), "{printed}");
    }
    let firm = firm.with("CHANCERY_BILLING__FONTS", font);
    firm.run(&command);

    let firm = firm_with_usage(Firm::new()).await;
    let output = firm.output(&command);
    assert!(output.status.success());
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("has no billing address"), "{printed}");
    let again = firm.output(&command);
    assert!(!String::from_utf8_lossy(&again.stderr).contains("billing address"), "it was issued before");
}

#[tokio::test]
async fn invoice_is_paid_credited_voided_and_its_month_reissued() {
    let firm = firm_with_usage(Firm::new()).await;
    let number = number_of(&issue(&firm));
    assert_eq!(firm.run(&["invoice", "paid", &number]), format!("invoice {number} is paid\n"));
    firm.run(&["invoice", "paid", &number]);
    let credit = |how: &[&str]| {
        let command = [&["invoice", "credit", &number, "--reason", "The outage", "--json"], how].concat();
        number_of(&firm.json(&command))
    };
    let part = credit(&["--amount", "10"]);
    let note = firm.json(&["invoice", "show", &part, "--json"]);
    assert_eq!(
        (&note["kind"], &note["credit_of"], &note["reason"]),
        (&json!("credit_note"), &json!(number), &json!("The outage"))
    );
    assert_eq!((&note["subtotal"], &note["total"]), (&json!("-10.00"), &json!("-10.62")));
    let printed = firm.run(&["invoice", "credit", &number, "--amount", "66.67", "--reason", "The outage"]);
    assert!(printed.contains("is void, and its month can be invoiced again"), "{printed}");
    let record = firm.json(&["invoice", "show", &number, "--json"]);
    assert_eq!((&record["state"], &record["credited"]), (&json!("void"), &json!("81.46")));
    let changes: Vec<&str> =
        record["events"].as_array().unwrap().iter().map(|event| event["deed"].as_str().unwrap()).collect();
    assert_eq!(changes, ["issued", "paid", "credited", "voided"]);
    assert!(firm.fail(&["invoice", "paid", &number]).contains("is void"));
    let again = issue(&firm);
    assert_eq!(again["is_new"], true);
    assert!(number_of(&again).ends_with("-0004"));
    let report = firm.json(&["verify", "--json"]);
    assert_eq!((&report["invoices"]["documents"], &report["findings"]), (&json!(4), &json!([])));
}

/// An attacker with access to the file drops the triggers and changes something.
pub fn tamper_sqlite(firm: &Firm, statement: &str) {
    let script = "import sqlite3, sys\n\
        base = sqlite3.connect(sys.argv[1])\n\
        for (name,) in base.execute(\"select name from sqlite_master where type = 'trigger'\").fetchall():\n\
        \x20   base.execute(f'drop trigger {name}')\n\
        base.execute('pragma ignore_check_constraints = on')\n\
        changed = sum(base.execute(part).rowcount for part in sys.argv[2].split(';'))\n\
        assert changed > 0, changed\n\
        base.commit()\n";
    let database = firm.data().join("chancery.db");
    let mut python = std::process::Command::new("python3");
    assert!(python.args(["-c", script]).arg(database).arg(statement).status().unwrap().success());
}

fn finding(firm: &Firm) -> String {
    let output = firm.output(&["verify"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("documents: differences found, see above"), "{text}");
    text
}

#[tokio::test]
async fn verify_reports_the_tampered_invoice_and_difference() {
    let firm = firm_with_usage(Firm::new()).await;
    let number = number_of(&issue(&firm));
    firm.run(&["invoice", "credit", &number, "--amount", "10", "--reason", "The outage"]);
    let note = number.replace("-0001", "-0002");
    let database = firm.data().join("chancery.db");
    assert!(firm.run(&["verify"]).contains("invoices: 2 documents: OK"));
    let whole = std::fs::read(&database).unwrap();
    for (statement, expected) in [
        (
            "update invoice_lines set tokens = tokens + 1 where model = 'qwen2.5-7b' and direction = 'input'",
            "NUMBER, qwen2.5-7b input at 0.30 per million: stated 182640276 tokens, exactly 54.7920825, 54.79, ledger \
             182640275 tokens",
        ),
        (
            "update invoice_lines set amount_minor = 5480 where amount_minor = 5479",
            "NUMBER, qwen2.5-7b input at 0.30 per million: stated 182640275 tokens, exactly 54.7920825, 54.80, ledger 182640275 tokens",
        ),
        (
            "delete from invoice_lines where model = 'smollm2-135m' and direction = 'output'",
            "NUMBER, smollm2-135m output at 0.40 per million: stated nothing, ledger 96204 tokens",
        ),
        (
            "update invoices set tax_minor = 480, total_minor = subtotal_minor + 480 where kind = 'invoice'",
            "NUMBER: tax is 4.80, ledger 4.79",
        ),
        (
            "update invoices set exact_nanos = exact_nanos + 1 where kind = 'invoice'",
            "NUMBER: exact amount is 76.666010501, ledger 76.6660105",
        ),
        (
            "update invoices set subtotal_minor = -900, total_minor = -900 + tax_minor where kind = 'credit_note'",
            "credit note NOTE, credited part: stated exactly -10.00, -10.00, invoice exactly -9.00",
        ),
        (
            "update invoices set state = 'paid' where kind = 'invoice'",
            "NUMBER: state is paid, timeline gives issued",
        ),
        (
            "update invoices set credited_total = 0, credited_subtotal = 0",
            "NUMBER: credited 0.00 of its subtotal, 0.00 of its total, credit notes total 10.00 of",
        ),
        (
            "delete from invoice_events where kind = 'credited'",
            "NUMBER: timeline lists credit notes none, found NOTE",
        ),
        (
            "update invoice_documents set pdf = x'25504446' where serial = 1",
            "NUMBER: PDF differs from the issued one",
        ),
        ("delete from invoice_documents where serial = 2", "credit note NOTE: PDF missing"),
        (
            "delete from invoice_events where serial = 2; delete from invoice_events where credit_note_serial = 2; \
             delete from invoice_documents where serial = 2; delete from invoice_lines where serial = 2; \
             delete from invoices where serial = 2",
            "invoice NOTE: issued but missing",
        ),
        ("update invoice_serials set serial = 4", "invoices YEAR-0003 to YEAR-0004: issued but missing (2)"),
        ("update invoice_serials set serial = 1", "invoice NOTE: beyond the last number issued in YEAR, 1"),
        (
            "update billing_months set invoice_year = null, invoice_serial = null",
            "NUMBER: covers 2025-10 of account 1, but the month records none",
        ),
        (
            "update billing_months set invoice_serial = 2",
            "invoice NOTE: recorded for 2025-10 of account 1, but is void or covers another month",
        ),
        (
            "update daily_usage set output_tokens = output_tokens + 9, cost_nanos = cost_nanos + 8100 where model = 'qwen2.5-7b'",
            "NUMBER, qwen2.5-7b output at 0.90 per million: stated 24118906 tokens, exactly 21.7070154, 21.71, ledger \
             24118915 tokens, exactly 21.7070235, 21.71",
        ),
        (
            "insert into invoice_lines select year, serial, position + 10, item, model, direction, tokens, price_nanos, exact_nanos, \
             amount_minor from invoice_lines where serial = 1 and position = 0",
            "NUMBER, qwen2.5-7b input at 0.30 per million: stated 182640275 tokens, exactly 54.7920825, 54.79, ledger nothing",
        ),
        (
            "update invoice_lines set position = 10 - position where serial = 1",
            "NUMBER: lines are not sorted by model, direction and price",
        ),
        (
            "update invoices set currency = 'EUR' where kind = 'credit_note'",
            "credit note NOTE: currency is EUR, invoice USD",
        ),
        (
            "update invoices set account_id = 2 where kind = 'credit_note'",
            "credit note NOTE: account is 2, NUMBER has 1",
        ),
        (
            "update invoices set month = month + 1 where kind = 'credit_note'",
            "credit note NOTE: month is 2025-11, NUMBER has 2025-10",
        ),
        (
            "update invoices set tax_name = 'VAT' where kind = 'credit_note'",
            "credit note NOTE: kind of tax is VAT, 6.25 %, invoice Sales tax, 6.25 %",
        ),
        (
            "update invoices set tax_rate_ppm = 62600 where kind = 'credit_note'",
            "credit note NOTE: kind of tax is Sales tax, 6.26 %, invoice Sales tax, 6.25 %",
        ),
        (
            "update invoices set serial = 4294967295 where serial = 2",
            "invoices NOTE to YEAR-4294967294: issued but missing (4294967293)",
        ),
        (
            "update invoices set serial = 4294967295 where serial = 2",
            "invoice YEAR-4294967295: beyond the last number issued in YEAR, 2",
        ),
    ] {
        put_back(&firm, &whole);
        tamper_sqlite(&firm, statement);
        let text = finding(&firm);
        let expected = expected
            .replace("NUMBER", &format!("invoice {number}"))
            .replace("NOTE", &note)
            .replace("YEAR", &number[..4]);
        let expected = expected.replace("invoice invoice", "invoice");
        assert!(text.contains(&format!("DIFFERS {expected}")), "{statement}: {text}");
    }
}

#[tokio::test]
async fn discounted_cached_input_is_invoiced_on_its_own_line_and_verified() {
    let firm = firm_with_usage(Firm::new()).await;
    let store = Arc::new(Store::open(&firm.database_url().parse().unwrap()).await.unwrap());
    let tokens = [96_402_118, 40_000_000, 11_870_455];
    use_cached_tokens(&store, 9, "llama-3.3-70b", [900, 225, 2700], tokens).await;
    store.close().await;
    let usage = firm.json(&["usage", "--json"]);
    assert_eq!(usage["total"]["cached_input_tokens"], 40_000_000);
    let number = number_of(&issue(&firm));
    let record = firm.json(&["invoice", "show", &number, "--json"]);
    assert_eq!(
        record["lines"][1],
        json!({
            "model": "llama-3.3-70b", "direction": "cached_input", "tokens": 40_000_000, "price_per_million": "0.225",
            "exact": "9.00", "exact_nanos": 9_000_000_000_i64, "amount": "9.00", "amount_minor": 900,
        })
    );
    assert_eq!(record["lines"][0]["tokens"], 56_402_118, "each token is on one line");
    assert!(firm.run(&["invoice", "show", &number]).contains("cached input"));
    assert!(firm.run(&["verify"]).contains("invoices: 1 documents: OK"));

    let whole = std::fs::read(firm.data().join("chancery.db")).unwrap();
    let line = format!("DIFFERS invoice {number}, llama-3.3-70b cached_input at 0.225 per million");
    for (statement, expected) in [
        (
            "update invoice_lines set tokens = tokens + 1 where direction = 'cached_input'",
            "stated 40000001 tokens, exactly 9.00, 9.00, ledger 40000000 tokens",
        ),
        (
            "update daily_usage set cached_input_tokens = cached_input_tokens + 4, cost_nanos = cost_nanos - 2700 \
             where model = 'llama-3.3-70b'",
            "stated 40000000 tokens, exactly 9.00, 9.00, ledger 40000004 tokens, exactly 9.0000009, 9.00",
        ),
    ] {
        put_back(&firm, &whole);
        tamper_sqlite(&firm, statement);
        let text = finding(&firm);
        assert!(text.contains(&format!("{line}: {expected}")), "{statement}: {text}");
    }

    // A void invoice is checked against its own lines.
    put_back(&firm, &whole);
    firm.run(&["invoice", "credit", &number, "--whole", "--reason", "The outage"]);
    assert!(firm.run(&["verify"]).contains("invoices: 2 documents: OK"));
    tamper_sqlite(
        &firm,
        "update invoice_lines set tokens = tokens + 1 where direction = 'cached_input' and serial = 1",
    );
    let text = finding(&firm);
    assert!(text.contains(&format!("{line}: 40000001 tokens, ledger 40000000")), "{text}");
}

/// Restores the database to its state before tampering.
fn put_back(firm: &Firm, whole: &[u8]) {
    std::fs::write(firm.data().join("chancery.db"), whole).unwrap();
    for rest in ["chancery.db-wal", "chancery.db-shm"] {
        let _ = std::fs::remove_file(firm.data().join(rest));
    }
}

#[tokio::test]
async fn verify_checks_void_invoices_against_their_lines_and_usage() {
    let firm = firm_with_usage(Firm::new()).await;
    let number = number_of(&issue(&firm));
    firm.run(&["invoice", "credit", &number, "--whole", "--reason", "The outage"]);
    // The month is open again and gains usage.
    let store = Arc::new(Store::open(&firm.database_url().parse().unwrap()).await.unwrap());
    use_tokens(&store, 2, "smollm2-135m", (100, 400), (5, 7)).await;
    store.close().await;
    assert_eq!(issue(&firm)["is_new"], true);
    let printed = firm.run(&["verify"]);
    assert!(printed.contains("invoices: 3 documents: OK"), "{printed}");
    let whole = std::fs::read(firm.data().join("chancery.db")).unwrap();
    for (statement, expected) in [
        (
            // The changed rows are consistent with each other.
            "update invoice_lines set tokens = tokens + 1, exact_nanos = exact_nanos + price_nanos where serial = 1 and position = 0; \
             update invoices set exact_nanos = exact_nanos + 300 where serial = 1; \
             update invoice_lines set tokens = tokens + 1, exact_nanos = exact_nanos - price_nanos where serial = 2 and position = 0; \
             update invoices set exact_nanos = exact_nanos - 300 where serial = 2",
            ", qwen2.5-7b input at 0.30 per million: 182640276 tokens, ledger 182640275",
        ),
        (
            "update invoice_lines set model = 'other' where serial < 3 and position = 0",
            ", other input at 0.30 per million: 182640275 tokens, ledger 0",
        ),
        (
            "update invoice_lines set amount_minor = amount_minor + 1 where serial = 1 and position = 0",
            ", qwen2.5-7b input at 0.30 per million: stated 182640275 tokens, exactly 54.7920825, 54.80, recomputed \
             182640275 tokens",
        ),
    ] {
        put_back(&firm, &whole);
        tamper_sqlite(&firm, statement);
        let text = finding(&firm);
        assert!(text.contains(&format!("DIFFERS invoice {number}{expected}")), "{statement}: {text}");
    }
}

#[tokio::test]
async fn invoice_commands_and_verify_work_on_postgresql() {
    let database = PostgresDatabase::create("invoices");
    let firm = firm_with_usage(Firm::new().with("CHANCERY_DATABASE__URL", &database.url())).await;
    let number = number_of(&issue(&firm));
    assert_eq!(issue(&firm)["is_new"], false);
    firm.run(&["invoice", "credit", &number, "--amount", "10", "--reason", "The outage"]);
    assert!(firm.output(&["invoice", "show", &number, "--pdf", "-"]).stdout.starts_with(b"%PDF-"));
    assert!(firm.run(&["verify"]).contains("invoices: 2 documents: OK"));
    let statement = "alter table invoice_lines disable trigger all; update invoice_lines set tokens = tokens + 1 where position = 0 \
                     and serial = 1";
    database.query(statement);
    let text = finding(&firm);
    assert!(
        text.contains(&format!(
            "DIFFERS invoice {number}, qwen2.5-7b input at 0.30 per million: stated 182640276"
        )),
        "{text}"
    );
}
