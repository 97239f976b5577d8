//! Conformance: invoices and unbilled usage together equal the ledger exactly.

use crate::billing::{
    all, credit, issue, issue_new, issue_request, listed, month, noon_of, permit_at, read_invoice,
    record_million_tokens, render, terms, used,
};
use crate::databases::{AnyDatabase, TestDatabase};
use crate::samples::{account, all_ledger_rows, billed_key, discounted, key, prices, request, with_cached};
use chancery_domain::{
    AccountId, CreditAmount, Credited, Currency, Direction, Invoice, InvoiceAmounts, InvoiceKind,
    InvoiceState, InvoiceTerms, KeyId, LineItem, MinorUnits, Month, Nanos, OsRandomness, Principal,
    Randomness, TaxRate, TokenPrice, UnixMillis, UsageRow,
};
use chancery_store::{
    InvoiceError, InvoiceQuery, InvoiceRecord, IssueOutcome, IssueRequest, LedgerError, Store,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use tokio::task::JoinSet;

pub async fn settling_into_invoiced_month_fails_without_blocking_others(database: Arc<AnyDatabase>) {
    const ROWS: usize = 120;
    let store = database.open().await;
    let one = billed_key(&store).await;
    let account = account(&store, "Calder & Sons").await.id;
    let other = (account, key(&store, Some(account)).await.id);
    record_million_tokens(&store, 1000, one, "2026-10-15").await;
    record_million_tokens(&store, 1001, other, "2026-10-15").await;
    let before = all_ledger_rows(&store).await;
    let invoice = issue_new(&store, one.0, "2026-10", "2026-11-02").await;
    let issued = read_invoice(&store, invoice).await;

    // Usage for existing and new sums; also for the same account in other months, and for another account in this month.
    let late = |number: usize| number.is_multiple_of(3);
    let mut settling = JoinSet::new();
    for number in 0..ROWS {
        let (billed_key, day) = match number % 3 {
            0 => (one, ["2026-10-01", "2026-10-15", "2026-10-31"][number / 3 % 3]),
            1 => (other, "2026-10-15"),
            _ => (one, ["2026-09-30", "2026-11-01"][number / 3 % 2]),
        };
        let prices = if number % 2 == 0 { prices(3000, 9000) } else { prices(1, 2) };
        let row = used(number, billed_key, noon_of(day), prices, [3, 4]);
        let store = Arc::clone(&store);
        settling.spawn(async move { (number, store.ledger.settle(row.into()).await) });
    }
    for (number, outcome) in settling.join_all().await {
        match outcome {
            Err(LedgerError::MonthInvoiced { request: rejected, month: of }) if late(number) => {
                assert_eq!((rejected, of), (request(number), month("2026-10")));
            }
            outcome => assert!(outcome.is_ok() && !late(number), "{number}: {outcome:?}"),
        }
    }
    let rows = all_ledger_rows(&store).await;
    assert_eq!(rows.len(), before.len() + ROWS / 3 * 2);
    assert_eq!(read_invoice(&store, invoice).await, issued);
    assert_eq!(
        store
            .issued_invoices
            .month_usage(one.0, month("2026-10"))
            .await
            .unwrap()
            .iter()
            .map(|usage| usage.cost.0)
            .sum::<i64>(),
        issued.invoice.bill.exact.0
    );
    // Settling a stored row again, as after a lost response, still succeeds.
    for row in before {
        store.ledger.settle(row.into()).await.unwrap();
    }
    store.ledger.settle(used(5000, one, noon_of("2026-11-02"), prices(1, 2), [1, 1]).into()).await.unwrap();
}

pub async fn usage_settled_during_issue_is_invoiced_or_rejected(database: Arc<AnyDatabase>) {
    const ROUNDS: usize = 4;
    const ROWS: usize = 60;
    let stores = [database.open().await, database.open().await];
    let billed_key = billed_key(&stores[0]).await;
    for round in 0..ROUNDS {
        let of = Month::from_months(month("2026-01").number() + i32::try_from(round).unwrap());
        let noon = |number: usize| UnixMillis(of.first_day().start().0 + (number as i64 % 28) * 86_400_000);
        let first = used(round * 1000 + 999, billed_key, noon(1), prices(100, 400), [1, 1]);
        stores[0].ledger.settle(first.into()).await.unwrap();
        let mut settling = JoinSet::new();
        for number in 0..ROWS {
            let row = used(round * 1000 + number, billed_key, noon(number), prices(100, 400), [1, 1]);
            let store = Arc::clone(&stores[number % 2]);
            settling.spawn(async move {
                // Spawned in order, so that some run before the invoice and some after it.
                tokio::task::yield_now().await;
                (row.request_id.clone(), store.ledger.settle(row.into()).await)
            });
        }
        let mut issuing = JoinSet::new();
        for store in &stores {
            let store = Arc::clone(store);
            issuing.spawn(async move {
                issue(&store, billed_key.0, &of.to_string(), "2026-11-02").await.unwrap()
            });
        }
        let settled: HashSet<_> = settling
            .join_all()
            .await
            .into_iter()
            .filter_map(|(request, outcome)| match outcome {
                Ok(()) => Some(request),
                Err(LedgerError::MonthInvoiced { .. }) => None,
                Err(error) => panic!("{error:?}"),
            })
            .collect();
        let issued = issuing.join_all().await;
        let new = issued.iter().find_map(|issued| match issued {
            IssueOutcome::New(number) => Some(*number),
            IssueOutcome::AlreadyIssued(_) => None,
        });
        let invoice = read_invoice(&stores[0], new.unwrap()).await.invoice;
        let in_ledger: Vec<UsageRow> = all_ledger_rows(&stores[0])
            .await
            .into_iter()
            .filter(|row| Month::containing(row.at) == of)
            .collect();
        assert_eq!(in_ledger.len(), settled.len() + 1);
        let is_settled = |row: &&UsageRow| settled.contains(&row.request_id);
        assert_eq!(in_ledger.iter().filter(is_settled).count(), settled.len());
        let cost: i64 = in_ledger.iter().map(|row| row.cost.0).sum();
        assert_eq!(invoice.bill.exact, Nanos(cost), "round {round}");
    }
}

const LEDGERS: usize = 6;
const ACCOUNTS: usize = 3;
/// The last month has not ended.
const MONTHS: [&str; 4] = ["2026-08", "2026-09", "2026-10", "2026-11"];
const TODAY: &str = "2026-11-15";

/// A random row: its account, key, model, month, day and token counts.
type RandomCase = (usize, usize, usize, usize, i64, [u32; 2]);

/// What happens to an account's ended month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    Unbilled,
    Issued,
    /// By three credit notes in turn, each for this many thousandths of the subtotal. Their sum may reach or exceed it.
    PartiallyCredited([u16; 3]),
    FullyCredited,
    Reissued,
}

#[derive(Clone, Debug)]
struct RandomLedger {
    rows: Vec<RandomCase>,
    /// For each model: its prices before and after the middle of a month.
    prices: Vec<[i64; 4]>,
    fates: Vec<Scenario>,
    currency: Currency,
    /// In millionths (ppm).
    tax: Option<u32>,
}

impl RandomLedger {
    fn terms(&self) -> InvoiceTerms {
        let tax = self.tax.map(|rate| ("VAT".to_owned(), TaxRate::from_ppm(rate)));
        InvoiceTerms { currency: self.currency, tax, ..terms() }
    }
}

/// A new seed for every run; `CHANCERY_TEST_SEED` repeats a failed run with the seed that it printed.
fn seed() -> u64 {
    let given = std::env::var("CHANCERY_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| OsRandomness.next_u64());
    println!("seed {seed}");
    seed
}

fn runner(seed: u64) -> TestRunner {
    let bytes = [seed.to_le_bytes(); 4].concat();
    TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

fn random_ledger() -> impl Strategy<Value = RandomLedger> {
    let tokens = prop_oneof![0..2000_u32, 0..3_000_000_u32];
    let row = (0..ACCOUNTS, 0..2_usize, 0..2_usize, 0..MONTHS.len(), 1..=28_i64, [tokens.clone(), tokens]);
    let scenario = prop_oneof![
        Just(Scenario::Unbilled),
        Just(Scenario::Issued),
        [1..=1000_u16, 1..=1000_u16, 1..=1000_u16].prop_map(Scenario::PartiallyCredited),
        Just(Scenario::FullyCredited),
        Just(Scenario::Reissued),
    ];
    let rows = prop::collection::vec(row, 1..70);
    let prices = prop::collection::vec([0..9000_i64, 1..9000_i64, 0..9000_i64, 1..9000_i64], 2);
    let fates = prop::collection::vec(scenario, ACCOUNTS * MONTHS.len());
    // Currencies with two decimals, none and three.
    let currency =
        prop::sample::select(["USD", "JPY", "KWD"].map(|code| code.parse::<Currency>().unwrap()).to_vec());
    let tax = prop::option::of(0..300_000_u32);
    (rows, prices, fates, currency, tax).prop_map(|(rows, prices, fates, currency, tax)| RandomLedger {
        rows,
        prices,
        fates,
        currency,
        tax,
    })
}

/// The expected invoice lines, from the ledger's rows alone.
fn lines(
    rows: &[UsageRow],
    account: AccountId,
    month: Month,
) -> BTreeMap<(String, Direction, TokenPrice), u64> {
    let mut lines = BTreeMap::new();
    for row in rows.iter().filter(|row| row.account == account && Month::containing(row.at) == month) {
        let cached = match row.prices.cached_input == row.prices.input {
            true => 0,
            false => row.cached_input_tokens,
        };
        for (direction, price, tokens) in [
            (Direction::Input, row.prices.input, row.input_tokens - cached),
            (Direction::CachedInput, row.prices.cached_input, cached),
            (Direction::Output, row.prices.output, row.output_tokens),
        ] {
            if tokens > 0 {
                *lines.entry((row.model.clone(), direction, price)).or_default() += u64::from(tokens);
            }
        }
    }
    lines
}

fn assert_matches_ledger(record: &InvoiceRecord, rows: &[UsageRow]) {
    let (invoice, bill) = (&record.invoice, &record.invoice.bill);
    let expected = lines(rows, invoice.buyer.account, invoice.month);
    let unit = i128::from(bill.currency.to_nanos(MinorUnits(1)).unwrap().0);
    assert_eq!(bill.lines.len(), expected.len(), "{}", invoice.number);
    for (line, ((model, direction, price), tokens)) in bill.lines.iter().zip(expected) {
        let exact = i128::from(tokens) * i128::from(price.nanos_per_token());
        assert_eq!(line.item, LineItem::Tokens { model, direction, tokens, price });
        assert_eq!(i128::from(line.exact.0), exact);
        let off = exact - i128::from(line.amount.0) * unit;
        assert!(off.abs() * 2 <= unit, "more than half a minor unit off: {line:?}");
    }
    assert_eq!(bill.subtotal, MinorUnits::sum(bill.lines.iter().map(|line| line.amount)).unwrap());
}

/// Asserts that the tax is within half a minor unit of its rate, that the credit notes add up to the credited amounts, and
/// that the invoice is void if and only if all of it is credited.
fn assert_tax_and_credits(record: &InvoiceRecord, random_ledger: &RandomLedger, notes: &[&Invoice]) {
    let bill = &record.invoice.bill;
    let tax = bill.total.checked_sub(bill.subtotal).unwrap();
    assert_eq!(
        (bill.currency, bill.tax.as_ref().map(|tax| tax.amount)),
        (random_ledger.currency, random_ledger.tax.map(|_| tax))
    );
    let exact = i128::from(bill.subtotal.0) * i128::from(random_ledger.tax.unwrap_or(0));
    assert!((exact - i128::from(tax.0) * 1_000_000).abs() * 2 <= 1_000_000, "{bill:?}");
    let sum = |part: fn(&InvoiceAmounts) -> MinorUnits| {
        MinorUnits::sum(notes.iter().map(|note| part(&note.bill))).unwrap()
    };
    let Credited { subtotal, total } = record.credited;
    assert_eq!(
        (sum(|bill| bill.subtotal), sum(|bill| bill.total)),
        (MinorUnits(-subtotal.0), MinorUnits(-total.0))
    );
    let is_taken_back = !notes.is_empty() && (subtotal, total) == (bill.subtotal, bill.total);
    assert_eq!(record.state == InvoiceState::Void, is_taken_back, "{record:?}");
}

/// Every unbilled month: its account, the month, and its cost.
async fn open_months(store: &Store) -> Vec<(AccountId, Month, Nanos)> {
    let mut found = Vec::new();
    for page in 1.. {
        let query = InvoiceQuery { state: Some(InvoiceState::Draft), page, ..all() };
        let page = listed(store, &query).await;
        found.extend(page.unbilled.into_iter().map(|month| (month.account, month.month, month.totals.cost)));
        if found.len() as u64 == page.unbilled_total {
            break;
        }
    }
    found
}

async fn issue_on(
    store: &Store,
    terms: &InvoiceTerms,
    account: AccountId,
    of: &str,
) -> Result<IssueOutcome, InvoiceError> {
    let order = IssueRequest { terms: terms.clone(), ..issue_request(account, of) };
    store
        .invoices
        .issue_invoice(permit_at(Principal::Operator, noon_of(TODAY)), &order, Box::new(render))
        .await
}

async fn apply_scenario(
    store: &Store,
    terms: &InvoiceTerms,
    scenario: Scenario,
    account: AccountId,
    of: &str,
) {
    if scenario == Scenario::Unbilled {
        return;
    }
    let number = match issue_on(store, terms, account, of).await {
        Ok(IssueOutcome::New(number)) => number,
        Err(InvoiceError::NothingToBill { .. }) => return,
        outcome => panic!("{outcome:?}"),
    };
    match scenario {
        Scenario::Unbilled | Scenario::Issued => {}
        Scenario::PartiallyCredited(parts) => {
            let subtotal = read_invoice(store, number).await.invoice.bill.subtotal.0;
            for thousandths in parts {
                let part = MinorUnits((subtotal * i64::from(thousandths) / 1000).max(1));
                match credit(store, number, CreditAmount::Part(part), TODAY).await {
                    Ok(_) => {}
                    // Less than that was left to credit.
                    Err(InvoiceError::CreditRejected { .. } | InvoiceError::InvoiceIsVoid(_)) => break,
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        Scenario::FullyCredited | Scenario::Reissued => {
            credit(store, number, CreditAmount::Full, TODAY).await.unwrap();
            if scenario == Scenario::Reissued {
                let again = issue_on(store, terms, account, of).await;
                assert!(matches!(again, Ok(IssueOutcome::New(_))), "{again:?}");
            }
        }
    }
}

pub async fn invoices_and_unbilled_months_equal_ledger(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let mut runner = runner(seed());
    for ledger in 0..LEDGERS {
        let random_ledger = random_ledger().new_tree(&mut runner).unwrap().current();
        let mut payers: Vec<(AccountId, [KeyId; 2])> = Vec::new();
        for index in 0..ACCOUNTS {
            let id = account(&store, &format!("Account {ledger}.{index}")).await.id;
            payers.push((id, [key(&store, Some(id)).await.id, key(&store, Some(id)).await.id]));
        }
        let mut settling = JoinSet::new();
        for (index, (billed_key, key, model, of, day, tokens)) in
            random_ledger.rows.iter().copied().enumerate()
        {
            let [input, more, later_input, later_more] = random_ledger.prices[model];
            let prices = match day {
                ..=15 => prices(input, input + more),
                _ => discounted(prices(later_input, later_input + later_more), later_input / 4),
            };
            let at = UnixMillis(month(MONTHS[of]).first_day().start().0 + day * 86_400_000 - 1);
            let (account, keys) = payers[billed_key];
            let row = used(ledger * 1000 + index, (account, keys[key]), at, prices, tokens);
            let row = with_cached(row, tokens[0] / 2);
            let row = UsageRow { model: ["a", "B"][model].to_owned(), ..row };
            let store = Arc::clone(&store);
            settling.spawn(async move { store.ledger.settle(row.into()).await });
        }
        assert!(settling.join_all().await.iter().all(Result::is_ok), "ledger {ledger}");
        for (index, scenario) in random_ledger.fates.iter().enumerate() {
            let (account, of) = (payers[index / MONTHS.len()].0, MONTHS[index % MONTHS.len()]);
            if of == MONTHS[MONTHS.len() - 1] {
                let running = issue(&store, account, of, TODAY).await;
                assert!(matches!(running, Err(InvoiceError::MonthStillOpen { .. })), "{running:?}");
            } else {
                apply_scenario(&store, &random_ledger.terms(), *scenario, account, of).await;
            }
        }

        let rows = all_ledger_rows(&store).await;
        let issued = store.issued_invoices.issued_invoices(None, u32::MAX).await.unwrap();
        let mut sums: BTreeMap<AccountId, i128> = BTreeMap::new();
        let mut billed = HashSet::new();
        for record in &issued {
            let invoice = &record.invoice;
            if invoice.kind != InvoiceKind::Invoice {
                continue;
            }
            assert_matches_ledger(record, &rows);
            if payers.iter().any(|(account, _)| *account == invoice.buyer.account) {
                let is_note = |note: &&Invoice| matches!(note.kind, InvoiceKind::CreditNote { of, .. } if of == invoice.number);
                let notes: Vec<&Invoice> =
                    issued.iter().map(|record| &record.invoice).filter(is_note).collect();
                assert_tax_and_credits(record, &random_ledger, &notes);
            }
            if record.state != InvoiceState::Void {
                *sums.entry(invoice.buyer.account).or_default() += i128::from(invoice.bill.exact.0);
                assert!(billed.insert((invoice.buyer.account, invoice.month)), "billed twice: {record:?}");
            }
        }
        for (account, month, cost) in open_months(&store).await {
            *sums.entry(account).or_default() += i128::from(cost.0);
            assert!(billed.insert((account, month)), "billed and open: {account} {month}");
        }
        let mut expected: BTreeMap<AccountId, i128> = BTreeMap::new();
        for row in &rows {
            *expected.entry(row.account).or_default() += i128::from(row.cost.0);
        }
        assert_eq!(sums, expected, "ledger {ledger}: {random_ledger:?}");
        assert_eq!(
            billed,
            rows.iter().map(|row| (row.account, Month::containing(row.at))).collect::<HashSet<_>>(),
            "every month once"
        );
    }
}
