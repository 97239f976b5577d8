//! Conformance: invoices and what is not invoiced yet are the ledger, exactly.

use crate::billing::{
    all, credit, issue, issue_new, listed, month, noon_of, read_invoice, use_a_million, used,
};
use crate::databases::TestDatabase;
use crate::samples::{account, key, payer, prices, request, whole_ledger};
use chancery_domain::{
    AccountId, CreditAmount, Currency, Direction, InvoiceState, KeyId, LineItem, MinorUnits, Month, Nanos,
    TokenPrice, UnixMillis, UsageRow,
};
use chancery_store::{InvoiceQuery, InvoiceRecord, Invoices, Issued, Ledger, Store, StoreError};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use tokio::task::JoinSet;

pub async fn nothing_is_settled_into_an_invoiced_month_and_nobody_else_is_held_up<D: TestDatabase>(
    database: Arc<D>,
) {
    const ROWS: usize = 120;
    let store = database.open().await;
    let one = payer(&*store).await;
    let account = account(&*store, "Calder & Sons").await.id;
    let other = (account, key(&*store, Some(account)).await.id);
    use_a_million(&*store, 1000, one, "2026-10-15").await;
    use_a_million(&*store, 1001, other, "2026-10-15").await;
    let before = whole_ledger(&*store).await;
    let invoice = issue_new(&*store, one.0, "2026-10", "2026-11-02").await;
    let issued = read_invoice(&*store, invoice).await;

    // To sums that are there and to new ones; of the same account in other months, and of another account in this one.
    let late = |number: usize| number % 3 == 0;
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
        settling.spawn(async move { (number, store.settle(row.into()).await) });
    }
    for (number, outcome) in settling.join_all().await {
        match outcome {
            Err(StoreError::LedgerRefused { request: refused, why }) if late(number) => {
                assert_eq!(refused, request(number));
                assert!(why.contains("month is invoiced"), "{why}");
            }
            outcome => assert!(outcome.is_ok() && !late(number), "{number}: {outcome:?}"),
        }
    }
    let rows = whole_ledger(&*store).await;
    assert_eq!(rows.len(), before.len() + ROWS / 3 * 2);
    assert_eq!(read_invoice(&*store, invoice).await, issued);
    assert_eq!(
        store
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
        store.settle(row.into()).await.unwrap();
    }
    store.settle(used(5000, one, noon_of("2026-11-02"), prices(1, 2), [1, 1]).into()).await.unwrap();
}

pub async fn what_is_settled_while_an_invoice_is_issued_is_on_it_or_refused<D: TestDatabase>(
    database: Arc<D>,
) {
    const ROUNDS: usize = 4;
    const ROWS: usize = 60;
    let stores = [database.open().await, database.open().await];
    let payer = payer(&*stores[0]).await;
    for round in 0..ROUNDS {
        let of = Month::from_number(month("2026-01").number() + i32::try_from(round).unwrap());
        let noon = |number: usize| UnixMillis(of.first_day().start().0 + (number as i64 % 28) * 86_400_000);
        let first = used(round * 1000 + 999, payer, noon(1), prices(100, 400), [1, 1]);
        stores[0].settle(first.into()).await.unwrap();
        let mut settling = JoinSet::new();
        for number in 0..ROWS {
            let row = used(round * 1000 + number, payer, noon(number), prices(100, 400), [1, 1]);
            let store = Arc::clone(&stores[number % 2]);
            settling.spawn(async move {
                // One after the other in this task, so that some come before the invoice and some after it.
                tokio::task::yield_now().await;
                (row.request_id.clone(), store.settle(row.into()).await)
            });
        }
        let mut issuing = JoinSet::new();
        for store in &stores {
            let store = Arc::clone(store);
            issuing
                .spawn(async move { issue(&*store, payer.0, &of.to_string(), "2026-11-02").await.unwrap() });
        }
        let settled: HashSet<_> = settling
            .join_all()
            .await
            .into_iter()
            .filter_map(|(request, outcome)| match outcome {
                Ok(()) => Some(request),
                Err(StoreError::LedgerRefused { .. }) => None,
                Err(error) => panic!("{error:?}"),
            })
            .collect();
        let issued = issuing.join_all().await;
        let new = issued.iter().find_map(|issued| match issued {
            Issued::New(number) => Some(*number),
            Issued::Already(_) => None,
        });
        let invoice = read_invoice(&*stores[0], new.unwrap()).await.invoice;
        let in_ledger: Vec<UsageRow> =
            whole_ledger(&*stores[0]).await.into_iter().filter(|row| Month::of(row.at) == of).collect();
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
    CreditedInPart,
    CreditedAsAWhole,
    IssuedAnew,
}

#[derive(Clone, Debug)]
struct Drawn {
    rows: Vec<Draw>,
    /// Of each model: its prices before the middle of a month and after it.
    prices: Vec<[i64; 4]>,
    fates: Vec<Fate>,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let tokens = prop_oneof![0..2000_u32, 0..3_000_000_u32];
    let row = (0..ACCOUNTS, 0..2_usize, 0..2_usize, 0..MONTHS.len(), 1..=28_i64, [tokens.clone(), tokens]);
    let fate = prop::sample::select(vec![
        Fate::LeftOpen,
        Fate::Issued,
        Fate::CreditedInPart,
        Fate::CreditedAsAWhole,
        Fate::IssuedAnew,
    ]);
    let rows = prop::collection::vec(row, 1..70);
    let prices = prop::collection::vec([0..9000_i64, 1..9000_i64, 0..9000_i64, 1..9000_i64], 2);
    let fates = prop::collection::vec(fate, ACCOUNTS * MONTHS.len());
    (rows, prices, fates).prop_map(|(rows, prices, fates)| Drawn { rows, prices, fates })
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
    assert_eq!(bill.lines.len(), expected.len(), "{}", invoice.number);
    for (line, ((model, direction, price), tokens)) in bill.lines.iter().zip(expected) {
        let exact = i128::from(tokens) * i128::from(price.nanos_per_token());
        assert_eq!(line.item, LineItem::Tokens { model, direction, tokens, price });
        assert_eq!(i128::from(line.exact.0), exact);
        let off = exact - i128::from(Currency::USD.exactly(line.amount).unwrap().0);
        assert!(off.abs() * 2 <= 10_000_000, "more than half a cent off: {line:?}");
    }
    assert_eq!(bill.subtotal, MinorUnits::sum(bill.lines.iter().map(|line| line.amount)).unwrap());
}

/// Every month that no invoice bills: whose it is, which, and what it costs.
async fn open_months(store: &impl Store) -> Vec<(AccountId, Month, Nanos)> {
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

async fn bring_about(store: &impl Store, fate: Fate, account: AccountId, of: &str) {
    if fate == Fate::LeftOpen {
        return;
    }
    let number = match issue(store, account, of, TODAY).await {
        Ok(Issued::New(number)) => number,
        Err(StoreError::NothingToBill { .. }) => return,
        outcome => panic!("{outcome:?}"),
    };
    let credited = match fate {
        Fate::LeftOpen | Fate::Issued => return,
        Fate::CreditedInPart => credit(store, number, CreditAmount::Part(MinorUnits(1)), TODAY).await,
        Fate::CreditedAsAWhole | Fate::IssuedAnew => credit(store, number, CreditAmount::Whole, TODAY).await,
    };
    match credited {
        Ok(_) => {}
        // There was less than two cents on it.
        Err(StoreError::CreditRefused { .. }) if fate == Fate::CreditedInPart => return,
        Err(error) => panic!("{error:?}"),
    }
    if fate == Fate::IssuedAnew {
        assert!(matches!(issue(store, account, of, TODAY).await, Ok(Issued::New(_))));
    }
}

pub async fn invoices_and_open_months_are_the_ledger_exactly<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let mut runner = TestRunner::deterministic();
    for ledger in 0..LEDGERS {
        let drawn = drawn().new_tree(&mut runner).unwrap().current();
        let mut payers: Vec<(AccountId, [KeyId; 2])> = Vec::new();
        for place in 0..ACCOUNTS {
            let id = account(&*store, &format!("Account {ledger}.{place}")).await.id;
            payers.push((id, [key(&*store, Some(id)).await.id, key(&*store, Some(id)).await.id]));
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
            settling.spawn(async move { store.settle(row.into()).await });
        }
        assert!(settling.join_all().await.iter().all(Result::is_ok), "ledger {ledger}");
        for (place, fate) in drawn.fates.iter().enumerate() {
            let (account, of) = (payers[place / MONTHS.len()].0, MONTHS[place % MONTHS.len()]);
            if of == MONTHS[MONTHS.len() - 1] {
                let running = issue(&*store, account, of, TODAY).await;
                assert!(matches!(running, Err(StoreError::MonthStillOpen { .. })), "{running:?}");
            } else {
                bring_about(&*store, *fate, account, of).await;
            }
        }

        let rows = whole_ledger(&*store).await;
        let issued = store.issued_invoices(None, u32::MAX).await.unwrap();
        let mut sums: BTreeMap<AccountId, i128> = BTreeMap::new();
        let mut billed = HashSet::new();
        for record in &issued {
            let invoice = &record.invoice;
            if invoice.kind != chancery_domain::InvoiceKind::Invoice {
                continue;
            }
            holds_against_the_ledger(record, &rows);
            if record.state != InvoiceState::Void {
                *sums.entry(invoice.buyer.account).or_default() += i128::from(invoice.bill.exact.0);
                assert!(billed.insert((invoice.buyer.account, invoice.month)), "billed twice: {record:?}");
            }
        }
        for (account, month, cost) in open_months(&*store).await {
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
