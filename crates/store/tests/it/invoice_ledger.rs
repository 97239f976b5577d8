//! Conformance: invoices and what is not invoiced yet are the ledger, exactly.

use crate::billing::{
    all, credit, issue, issue_new, listed, month, noon_of, order, permit_at, read_invoice, render, terms,
    use_a_million, used,
};
use crate::databases::TestDatabase;
use crate::samples::{account, key, payer, prices, request, whole_ledger};
use chancery_domain::{
    AccountId, Asker, Bill, CreditAmount, Credited, Currency, Direction, Invoice, InvoiceKind, InvoiceState,
    InvoiceTerms, KeyId, LineItem, MinorUnits, Month, Nanos, OsRandomness, Randomness, TaxRate, TokenPrice,
    UnixMillis, UsageRow,
};
use chancery_store::{InvoiceError, InvoiceQuery, InvoiceRecord, IssueOrder, Issued, LedgerError, Store};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use tokio::task::JoinSet;

pub async fn nothing_is_settled_into_an_invoiced_month_and_nobody_else_is_held_up<D: TestDatabase>(
    database: Arc<D>,
) {
    const ROWS: usize = 120;
    let store = database.open().await;
    let one = payer(&store).await;
    let account = account(&store, "Calder & Sons").await.id;
    let other = (account, key(&store, Some(account)).await.id);
    use_a_million(&store, 1000, one, "2026-10-15").await;
    use_a_million(&store, 1001, other, "2026-10-15").await;
    let before = whole_ledger(&store).await;
    let invoice = issue_new(&store, one.0, "2026-10", "2026-11-02").await;
    let issued = read_invoice(&store, invoice).await;

    // To sums that are there and to new ones; of the same account in other months, and of another account in this one.
    let late = |number: usize| number.is_multiple_of(3);
    let mut settling = JoinSet::new();
    for number in 0..ROWS {
        let (payer, day) = match number % 3 {
            0 => (one, ["2026-10-01", "2026-10-15", "2026-10-31"][number / 3 % 3]),
            1 => (other, "2026-10-15"),
            _ => (one, ["2026-09-30", "2026-11-01"][number / 3 % 2]),
        };
        let prices = if number % 2 == 0 { prices(3000, 9000) } else { prices(1, 2) };
        let row = used(number, payer, noon_of(day), prices, [3, 4]);
        let store = Arc::clone(&store);
        settling.spawn(async move { (number, store.ledger.settle(row.into()).await) });
    }
    for (number, outcome) in settling.join_all().await {
        match outcome {
            Err(LedgerError::MonthInvoiced { request: refused, month: of }) if late(number) => {
                assert_eq!((refused, of), (request(number), month("2026-10")));
            }
            outcome => assert!(outcome.is_ok() && !late(number), "{number}: {outcome:?}"),
        }
    }
    let rows = whole_ledger(&store).await;
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
    // Who settles a second time what is there already, not knowing whether the first time was heard, is told that it is.
    for row in before {
        store.ledger.settle(row.into()).await.unwrap();
    }
    store.ledger.settle(used(5000, one, noon_of("2026-11-02"), prices(1, 2), [1, 1]).into()).await.unwrap();
}

pub async fn what_is_settled_while_an_invoice_is_issued_is_on_it_or_refused<D: TestDatabase>(
    database: Arc<D>,
) {
    const ROUNDS: usize = 4;
    const ROWS: usize = 60;
    let stores = [database.open().await, database.open().await];
    let payer = payer(&stores[0]).await;
    for round in 0..ROUNDS {
        let of = Month::from_number(month("2026-01").number() + i32::try_from(round).unwrap());
        let noon = |number: usize| UnixMillis(of.first_day().start().0 + (number as i64 % 28) * 86_400_000);
        let first = used(round * 1000 + 999, payer, noon(1), prices(100, 400), [1, 1]);
        stores[0].ledger.settle(first.into()).await.unwrap();
        let mut settling = JoinSet::new();
        for number in 0..ROWS {
            let row = used(round * 1000 + number, payer, noon(number), prices(100, 400), [1, 1]);
            let store = Arc::clone(&stores[number % 2]);
            settling.spawn(async move {
                // One after the other in this task, so that some come before the invoice and some after it.
                tokio::task::yield_now().await;
                (row.request_id.clone(), store.ledger.settle(row.into()).await)
            });
        }
        let mut issuing = JoinSet::new();
        for store in &stores {
            let store = Arc::clone(store);
            issuing
                .spawn(async move { issue(&store, payer.0, &of.to_string(), "2026-11-02").await.unwrap() });
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
            Issued::New(number) => Some(*number),
            Issued::Already(_) => None,
        });
        let invoice = read_invoice(&stores[0], new.unwrap()).await.invoice;
        let in_ledger: Vec<UsageRow> =
            whole_ledger(&stores[0]).await.into_iter().filter(|row| Month::of(row.at) == of).collect();
        assert_eq!(in_ledger.len(), settled.len() + 1);
        let is_told = |row: &&UsageRow| settled.contains(&row.request_id);
        assert_eq!(in_ledger.iter().filter(is_told).count(), settled.len());
        let cost: i64 = in_ledger.iter().map(|row| row.cost.0).sum();
        assert_eq!(invoice.bill.exact, Nanos(cost), "round {round}");
    }
}

const LEDGERS: usize = 6;
const ACCOUNTS: usize = 3;
/// The last of them is still running.
const MONTHS: [&str; 4] = ["2026-08", "2026-09", "2026-10", "2026-11"];
const TODAY: &str = "2026-11-15";

/// What is drawn of a row: whose, which key and model, in which month, on which day, and how much.
type Draw = (usize, usize, usize, usize, i64, [u32; 2]);

/// What becomes of an account's month that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    LeftOpen,
    Issued,
    /// By one note after the other, each over so many thousandths of the subtotal. They may come to all of it, or to more.
    CreditedInParts([u16; 3]),
    CreditedAsAWhole,
    IssuedAnew,
}

#[derive(Clone, Debug)]
struct Drawn {
    rows: Vec<Draw>,
    /// Of each model: its prices before the middle of a month and after it.
    prices: Vec<[i64; 4]>,
    fates: Vec<Fate>,
    currency: Currency,
    /// In millionths.
    tax: Option<u32>,
}

impl Drawn {
    fn terms(&self) -> InvoiceTerms {
        let tax = self.tax.map(|rate| ("VAT".to_owned(), TaxRate::from_ppm(rate)));
        InvoiceTerms { currency: self.currency, tax, ..terms() }
    }
}

/// Another one every time; `CHANCERY_TEST_SEED` repeats what a failed test has printed.
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

fn drawn() -> impl Strategy<Value = Drawn> {
    let tokens = prop_oneof![0..2000_u32, 0..3_000_000_u32];
    let row = (0..ACCOUNTS, 0..2_usize, 0..2_usize, 0..MONTHS.len(), 1..=28_i64, [tokens.clone(), tokens]);
    let fate = prop_oneof![
        Just(Fate::LeftOpen),
        Just(Fate::Issued),
        [1..=1000_u16, 1..=1000_u16, 1..=1000_u16].prop_map(Fate::CreditedInParts),
        Just(Fate::CreditedAsAWhole),
        Just(Fate::IssuedAnew),
    ];
    let rows = prop::collection::vec(row, 1..70);
    let prices = prop::collection::vec([0..9000_i64, 1..9000_i64, 0..9000_i64, 1..9000_i64], 2);
    let fates = prop::collection::vec(fate, ACCOUNTS * MONTHS.len());
    // With two decimals, none and three.
    let currency =
        prop::sample::select(["USD", "JPY", "KWD"].map(|code| code.parse::<Currency>().unwrap()).to_vec());
    let tax = prop::option::of(0..300_000_u32);
    (rows, prices, fates, currency, tax).prop_map(|(rows, prices, fates, currency, tax)| Drawn {
        rows,
        prices,
        fates,
        currency,
        tax,
    })
}

/// The lines that an invoice must have, from the ledger's rows alone.
fn lines(
    rows: &[UsageRow],
    account: AccountId,
    month: Month,
) -> BTreeMap<(String, Direction, TokenPrice), u64> {
    let mut lines = BTreeMap::new();
    for row in rows.iter().filter(|row| row.account == account && Month::of(row.at) == month) {
        for (direction, price, tokens) in [
            (Direction::Input, row.prices.input, row.input_tokens),
            (Direction::Output, row.prices.output, row.output_tokens),
        ] {
            if tokens > 0 {
                *lines.entry((row.model.clone(), direction, price)).or_default() += u64::from(tokens);
            }
        }
    }
    lines
}

fn holds_against_the_ledger(record: &InvoiceRecord, rows: &[UsageRow]) {
    let (invoice, bill) = (&record.invoice, &record.invoice.bill);
    let expected = lines(rows, invoice.buyer.account, invoice.month);
    let unit = i128::from(bill.currency.exactly(MinorUnits(1)).unwrap().0);
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

/// The tax is within half a minor unit of its rate, and the credit notes of an invoice take back what is said to be credited, and
/// all of it where it is void.
fn is_taxed_and_credited(record: &InvoiceRecord, drawn: &Drawn, notes: &[&Invoice]) {
    let bill = &record.invoice.bill;
    let tax = bill.total.checked_sub(bill.subtotal).unwrap();
    assert_eq!(
        (bill.currency, bill.tax.as_ref().map(|tax| tax.amount)),
        (drawn.currency, drawn.tax.map(|_| tax))
    );
    let exact = i128::from(bill.subtotal.0) * i128::from(drawn.tax.unwrap_or(0));
    assert!((exact - i128::from(tax.0) * 1_000_000).abs() * 2 <= 1_000_000, "{bill:?}");
    let sum =
        |part: fn(&Bill) -> MinorUnits| MinorUnits::sum(notes.iter().map(|note| part(&note.bill))).unwrap();
    let Credited { subtotal, total } = record.credited;
    assert_eq!(
        (sum(|bill| bill.subtotal), sum(|bill| bill.total)),
        (MinorUnits(-subtotal.0), MinorUnits(-total.0))
    );
    let is_taken_back = !notes.is_empty() && (subtotal, total) == (bill.subtotal, bill.total);
    assert_eq!(record.state == InvoiceState::Void, is_taken_back, "{record:?}");
}

/// Every month that no invoice bills: whose it is, which, and what it costs.
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
) -> Result<Issued, InvoiceError> {
    let order = IssueOrder { terms: terms.clone(), ..order(account, of) };
    store.invoices.issue_invoice(permit_at(Asker::Operator, noon_of(TODAY)), &order, &render).await
}

async fn bring_about(store: &Store, terms: &InvoiceTerms, fate: Fate, account: AccountId, of: &str) {
    if fate == Fate::LeftOpen {
        return;
    }
    let number = match issue_on(store, terms, account, of).await {
        Ok(Issued::New(number)) => number,
        Err(InvoiceError::NothingToBill { .. }) => return,
        outcome => panic!("{outcome:?}"),
    };
    match fate {
        Fate::LeftOpen | Fate::Issued => {}
        Fate::CreditedInParts(parts) => {
            let subtotal = read_invoice(store, number).await.invoice.bill.subtotal.0;
            for thousandths in parts {
                let part = MinorUnits((subtotal * i64::from(thousandths) / 1000).max(1));
                match credit(store, number, CreditAmount::Part(part), TODAY).await {
                    Ok(_) => {}
                    // There was less left.
                    Err(InvoiceError::CreditRefused { .. } | InvoiceError::InvoiceIsVoid(_)) => break,
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        Fate::CreditedAsAWhole | Fate::IssuedAnew => {
            credit(store, number, CreditAmount::Whole, TODAY).await.unwrap();
            if fate == Fate::IssuedAnew {
                let anew = issue_on(store, terms, account, of).await;
                assert!(matches!(anew, Ok(Issued::New(_))), "{anew:?}");
            }
        }
    }
}

pub async fn invoices_and_open_months_are_the_ledger_exactly<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let mut runner = runner(seed());
    for ledger in 0..LEDGERS {
        let drawn = drawn().new_tree(&mut runner).unwrap().current();
        let mut payers: Vec<(AccountId, [KeyId; 2])> = Vec::new();
        for place in 0..ACCOUNTS {
            let id = account(&store, &format!("Account {ledger}.{place}")).await.id;
            payers.push((id, [key(&store, Some(id)).await.id, key(&store, Some(id)).await.id]));
        }
        let mut settling = JoinSet::new();
        for (place, (payer, key, model, of, day, tokens)) in drawn.rows.iter().copied().enumerate() {
            let [input, more, later_input, later_more] = drawn.prices[model];
            let prices = match day {
                ..=15 => prices(input, input + more),
                _ => prices(later_input, later_input + later_more),
            };
            let at = UnixMillis(month(MONTHS[of]).first_day().start().0 + day * 86_400_000 - 1);
            let (account, keys) = payers[payer];
            let row = UsageRow {
                model: ["a", "B"][model].to_owned(),
                ..used(ledger * 1000 + place, (account, keys[key]), at, prices, tokens)
            };
            let store = Arc::clone(&store);
            settling.spawn(async move { store.ledger.settle(row.into()).await });
        }
        assert!(settling.join_all().await.iter().all(Result::is_ok), "ledger {ledger}");
        for (place, fate) in drawn.fates.iter().enumerate() {
            let (account, of) = (payers[place / MONTHS.len()].0, MONTHS[place % MONTHS.len()]);
            if of == MONTHS[MONTHS.len() - 1] {
                let running = issue(&store, account, of, TODAY).await;
                assert!(matches!(running, Err(InvoiceError::MonthStillOpen { .. })), "{running:?}");
            } else {
                bring_about(&store, &drawn.terms(), *fate, account, of).await;
            }
        }

        let rows = whole_ledger(&store).await;
        let issued = store.issued_invoices.issued_invoices(None, u32::MAX).await.unwrap();
        let mut sums: BTreeMap<AccountId, i128> = BTreeMap::new();
        let mut billed = HashSet::new();
        for record in &issued {
            let invoice = &record.invoice;
            if invoice.kind != InvoiceKind::Invoice {
                continue;
            }
            holds_against_the_ledger(record, &rows);
            if payers.iter().any(|(account, _)| *account == invoice.buyer.account) {
                let is_note = |note: &&Invoice| matches!(note.kind, InvoiceKind::CreditNote { of, .. } if of == invoice.number);
                let notes: Vec<&Invoice> =
                    issued.iter().map(|record| &record.invoice).filter(is_note).collect();
                is_taxed_and_credited(record, &drawn, &notes);
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
        assert_eq!(sums, expected, "ledger {ledger}: {drawn:?}");
        assert_eq!(
            billed,
            rows.iter().map(|row| (row.account, Month::of(row.at))).collect::<HashSet<_>>(),
            "every month once"
        );
    }
}
