//! Conformance: the invoice list, its totals, and unbilled months.

use crate::billing::{
    all, credit, issue_new, issue_request, listed, month, noon_of, permit_at, record_million_tokens, render,
    used,
};
use crate::databases::{AnyDatabase, TestDatabase};
use crate::samples::{account, billed_key, key, prices};
use chancery_domain::{
    AccountId, CreditAmount, Credited, Currency, Day, InvoiceKind, InvoiceState, KeyId, MinorUnits, Month,
    Nanos, Principal, UnixMillis,
};
use chancery_policy::{ManageInvoices, ReadInvoices};
use chancery_store::{
    INVOICES_PER_PAGE, InvoiceQuery, InvoiceTotals, ListedInvoice, PaymentChange, Store, UsageTotals,
};
use std::sync::Arc;

/// The cost of a million tokens each way, before and after tax.
const NET: i64 = 1200;
const GROSS: i64 = 1275;

async fn new_payer(store: &Store, name: &str) -> (AccountId, KeyId) {
    let account = account(store, name).await.id;
    (account, key(store, Some(account)).await.id)
}

fn numbers(invoices: &[ListedInvoice]) -> Vec<String> {
    invoices.iter().map(|invoice| invoice.number.to_string()).collect()
}

pub async fn invoice_list_filters_pages_and_totals(database: Arc<AnyDatabase>) {
    const INVOICES: u32 = 30;
    let store = database.open().await;
    let one = new_payer(&store, "One").await;
    let other = new_payer(&store, "Other").await;
    // Thirty months of one account; the last is issued in another year.
    let first = month("2024-01");
    let use_and_issue = async |index: u32, on| {
        let of = Month::from_months(first.number() + i32::try_from(index).unwrap());
        let row = used(index as usize, one, of.first_day().start(), prices(3000, 9000), [1_000_000; 2]);
        store.ledger.settle(row.into()).await.unwrap();
        issue_new(&store, one.0, &of.to_string(), on).await;
    };
    for index in 0..INVOICES - 1 {
        use_and_issue(index, "2026-11-02").await;
    }
    record_million_tokens(&store, 1000, other, "2026-10-15").await;
    let others = issue_new(&store, other.0, "2026-10", "2026-11-02").await;
    let note = credit(&store, others, CreditAmount::Part(MinorUnits(200)), "2026-11-03").await.unwrap();
    use_and_issue(INVOICES - 1, "2027-01-02").await;
    let paid = "2026-0007".parse().unwrap();
    let permit = permit_at::<ManageInvoices>(Principal::Operator, noon_of("2026-11-05"));
    store.invoices.record_payment(permit, paid, PaymentChange::Paid).await.unwrap();

    let page = listed(&store, &all()).await;
    assert_eq!((page.invoices.len(), page.total), (INVOICES_PER_PAGE as usize, 32));
    assert_eq!(numbers(&page.invoices[..3]), ["2027-0001", "2026-0031", "2026-0030"], "the latest first");
    let credited = Credited { subtotal: MinorUnits(200), total: MinorUnits(212) };
    let expected = ListedInvoice {
        number: others,
        kind: InvoiceKind::Invoice,
        account: other.0,
        buyer: "Other".parse().unwrap(),
        month: month("2026-10"),
        issued_at: noon_of("2026-11-02"),
        due: "2026-12-02".parse().unwrap(),
        currency: Currency::USD,
        total: MinorUnits(GROSS),
        credited,
        state: InvoiceState::Issued,
    };
    assert_eq!(page.invoices[2], expected);
    assert!(matches!(&page.invoices[1].kind, InvoiceKind::CreditNote { of, .. } if *of == others));
    assert_eq!((page.invoices[1].number, page.invoices[1].total), (note, MinorUnits(-212)));
    let second = listed(&store, &InvoiceQuery { page: 2, ..all() }).await;
    assert_eq!((second.invoices.len(), second.total), (7, 32));
    assert_eq!(second.sums, page.sums, "the sums are of all pages");
    assert_eq!(second.invoices.last().unwrap().number.to_string(), "2026-0001");
    assert!(listed(&store, &InvoiceQuery { page: 3, ..all() }).await.invoices.is_empty());
    assert_eq!(listed(&store, &InvoiceQuery { page: 0, ..all() }).await, page);
    let last = listed(&store, &InvoiceQuery { page: u32::MAX, ..all() }).await;
    assert_eq!((last.invoices.len(), last.total), (0, 32));

    let of_other = listed(&store, &InvoiceQuery { account: Some(other.0), ..all() }).await;
    assert_eq!(numbers(&of_other.invoices), ["2026-0031", "2026-0030"]);
    let left = MinorUnits(GROSS - 212);
    let sums = |billed, outstanding, overdue| InvoiceTotals {
        currency: Currency::USD,
        billed,
        outstanding,
        overdue,
    };
    assert_eq!(of_other.sums, [sums(left, left, left)]);
    let of_2027 = listed(&store, &InvoiceQuery { year: Some(2027), ..all() }).await;
    assert_eq!((numbers(&of_2027.invoices), of_2027.total), (vec!["2027-0001".to_owned()], 1));
    let state = async |state| listed(&store, &InvoiceQuery { state: Some(state), ..all() }).await;
    let paid = state(InvoiceState::Paid).await;
    assert_eq!(numbers(&paid.invoices), ["2026-0007"]);
    assert_eq!(paid.sums, [sums(MinorUnits(GROSS), MinorUnits(0), MinorUnits(0))]);
    let issued = state(InvoiceState::Issued).await;
    assert_eq!((issued.total, numbers(&issued.invoices)[1].as_str()), (30, "2026-0030"), "without the note");
    let void = state(InvoiceState::Void).await;
    assert_eq!((void.total, void.sums, void.unbilled_total), (0, Vec::new(), 0));
    let several =
        InvoiceQuery { account: Some(one.0), state: Some(InvoiceState::Issued), year: Some(2026), ..all() };
    assert_eq!(listed(&store, &several).await.total, 28);
    let drafts = state(InvoiceState::Draft).await;
    assert_eq!((drafts.total, drafts.invoices, drafts.sums), (0, Vec::new(), Vec::new()));
}

pub async fn totals_split_billed_outstanding_and_overdue(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let months = ["2026-05", "2026-06", "2026-07", "2026-08", "2026-09"];
    for (index, of) in months.into_iter().enumerate() {
        record_million_tokens(&store, index, billed_key, &format!("{of}-15")).await;
    }
    // Issued one day apart, so they are due one day apart: from 12-02 on.
    let mut issued = Vec::new();
    for (of, on) in months.into_iter().zip(["2026-11-02", "2026-11-03", "2026-11-04", "2026-11-05"]) {
        issued.push(issue_new(&store, billed_key.0, of, on).await);
    }
    let mut in_euros = issue_request(billed_key.0, "2026-09");
    in_euros.terms.currency = "EUR".parse().unwrap();
    let permit = permit_at(Principal::Operator, noon_of("2026-11-06"));
    store.invoices.issue_invoice(permit, &in_euros, Box::new(render)).await.unwrap();
    let permit = permit_at::<ManageInvoices>(Principal::Operator, noon_of("2026-11-06"));
    store.invoices.record_payment(permit, issued[0], PaymentChange::Paid).await.unwrap();
    credit(&store, issued[1], CreditAmount::Full, "2026-11-06").await.unwrap();
    credit(&store, issued[2], CreditAmount::Part(MinorUnits(NET / 2)), "2026-11-06").await.unwrap();

    let sums = async |today: &str| {
        listed(&store, &InvoiceQuery { today: today.parse().unwrap(), ..all() }).await.sums
    };
    let half = GROSS - 638;
    for (today, overdue, euros_overdue) in [
        ("2026-12-04", 0, 0),
        ("2026-12-05", half, 0),
        ("2026-12-06", half + GROSS, 0),
        ("2026-12-07", half + GROSS, GROSS),
    ] {
        let of_euros = InvoiceTotals {
            currency: "EUR".parse().unwrap(),
            billed: MinorUnits(GROSS),
            outstanding: MinorUnits(GROSS),
            overdue: MinorUnits(euros_overdue),
        };
        let of_dollars = InvoiceTotals {
            currency: Currency::USD,
            billed: MinorUnits(GROSS + half + GROSS),
            outstanding: MinorUnits(half + GROSS),
            overdue: MinorUnits(overdue),
        };
        assert_eq!(sums(today).await, [of_euros, of_dollars], "{today}");
    }
}

pub async fn unbilled_months_are_paged(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let payers = [new_payer(&store, "Zed").await, new_payer(&store, "Abel").await];
    let first = month("2025-01");
    let of = |index: usize| Month::from_months(first.number() + i32::try_from(index).unwrap());
    for (index, billed_key) in (0..20).flat_map(|index| payers.map(|billed_key| (index, billed_key))) {
        for day in [of(index).first_day(), of(index).last_day()] {
            let number =
                index * 10 + usize::try_from(billed_key.0.0).unwrap() * 1000 + usize::from(day.0 % 2 == 0);
            let number = number + usize::from(day == of(index).last_day()) * 5;
            let row = used(number, billed_key, day.start(), prices(100, 400), [7, 11]);
            store.ledger.settle(row.into()).await.unwrap();
        }
    }
    issue_new(&store, payers[0].0, "2025-03", "2026-11-02").await;

    let page = listed(&store, &all()).await;
    assert_eq!((page.total, page.unbilled_total), (1, 39));
    assert_eq!(page.unbilled.len(), INVOICES_PER_PAGE as usize);
    let totals = UsageTotals {
        requests: 2,
        input_tokens: 14,
        cached_input_tokens: 0,
        output_tokens: 22,
        cost: Nanos(14 * 100 + 22 * 400),
    };
    assert!(page.unbilled.iter().all(|month| month.totals == totals), "{page:?}");
    assert_eq!((page.unbilled[0].month, page.unbilled[0].account), (of(19), payers[0].0));
    assert_eq!((page.unbilled[1].month, page.unbilled[1].account), (of(19), payers[1].0));
    assert_eq!(page.unbilled[1].name.as_str(), "Abel");
    let second = listed(&store, &InvoiceQuery { page: 2, ..all() }).await;
    assert_eq!((second.unbilled.len(), second.unbilled_total), (0, 39), "they are on the first page only");

    let drafts = |page| InvoiceQuery { state: Some(InvoiceState::Draft), page, ..all() };
    let mut found = Vec::new();
    for number in 1..=3 {
        let page = listed(&store, &drafts(number)).await;
        assert_eq!((page.total, page.unbilled_total), (0, 39));
        found.extend(page.unbilled.into_iter().map(|month| (month.month, month.account)));
    }
    let mut expected: Vec<(Month, AccountId)> =
        (0..20).flat_map(|index| payers.map(|billed_key| (of(index), billed_key.0))).collect();
    expected.retain(|billed| *billed != (month("2025-03"), payers[0].0));
    expected.sort_by_key(|(month, account)| (std::cmp::Reverse(*month), *account));
    assert_eq!(found, expected);
    let of_2026 = listed(&store, &InvoiceQuery { year: Some(2026), ..drafts(1) }).await;
    assert_eq!(of_2026.unbilled_total, 16, "the year is that of the month");
    let of_one =
        listed(&store, &InvoiceQuery { account: Some(payers[0].0), year: Some(2025), ..drafts(1) }).await;
    assert_eq!((of_one.unbilled_total, of_one.unbilled.len()), (11, 11));
    let paid = listed(&store, &InvoiceQuery { state: Some(InvoiceState::Paid), ..all() }).await;
    assert_eq!((paid.unbilled_total, paid.unbilled.len()), (0, 0));
}

pub async fn usage_after_year_9999_counts_in_its_last_month(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    let last = "9999-12-31".parse::<Day>().unwrap();
    for (number, at) in
        [UnixMillis(0), last.start(), last.end(), Day(last.0 + 700_000).start(), Day(i32::MAX - 1).start()]
            .into_iter()
            .enumerate()
    {
        store.ledger.settle(used(number, billed_key, at, prices(100, 400), [1, 1]).into()).await.unwrap();
    }
    let page = listed(&store, &all()).await;
    let months: Vec<(String, u64)> =
        page.unbilled.iter().map(|month| (month.month.to_string(), month.totals.requests)).collect();
    assert_eq!(months, [("9999-12".to_owned(), 4), ("1970-01".to_owned(), 1)]);
    let permit = permit_at::<ReadInvoices>(Principal::Operator, noon_of("2026-11-02"));
    let month = store
        .invoices
        .billable_month(permit, billed_key.0, Month::containing(last.start()))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(month.usage[0].requests, 4);
}
