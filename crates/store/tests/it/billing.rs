//! Usage, terms and permits for invoice tests.

use crate::firm::{POLICY, authz_request};
use crate::samples::{row, with_tokens};
use chancery_domain::{
    AccountId, CreditAmount, Credited, Currency, Day, Invoice, InvoiceNumber, InvoiceTerms, KeyId, Month,
    Prices, Principal, Seller, UnixMillis, UsageRow,
};
use chancery_policy::{AuthzAction, FirmResource, Permit};
use chancery_store::{
    CreditRequest, InvoiceError, InvoicePage, InvoiceQuery, InvoiceRecord, IssueOutcome, IssueRequest, Store,
};

pub fn month(text: &str) -> Month {
    text.parse().unwrap()
}

/// Noon of a day such as `2026-10-15`.
pub fn noon_of(day: &str) -> UnixMillis {
    UnixMillis(day.parse::<Day>().unwrap().start().0 + 12 * 3_600_000)
}

pub fn permit_at<A: AuthzAction<Resource = FirmResource>>(by: Principal, at: UnixMillis) -> Permit<A> {
    POLICY.decide::<A>(&authz_request(by, at), FirmResource).unwrap()
}

pub fn terms() -> InvoiceTerms {
    let seller = Seller {
        name: "Marlow & Finch".to_owned(),
        letterhead: "4 Quay Street\nPortsmouth".to_owned(),
        payment: "Pay within 30 days to account 12345678.".to_owned(),
    };
    let tax = Some(("Sales tax".to_owned(), "6.25".parse().unwrap()));
    InvoiceTerms { currency: Currency::USD, seller, tax, payment_days: 30 }
}

/// Bytes that are not valid text, so that a store which treats documents as text fails.
pub fn document(invoice: &Invoice) -> Vec<u8> {
    let mut bytes = vec![0, 255, 254, b'%'];
    bytes.extend(format!("{invoice:?}").into_bytes());
    bytes
}

pub fn render(invoice: &Invoice) -> Result<Vec<u8>, String> {
    Ok(document(invoice))
}

pub fn used(
    number: usize,
    billed_key: (AccountId, KeyId),
    at: UnixMillis,
    prices: Prices,
    tokens: [u32; 2],
) -> UsageRow {
    with_tokens(UsageRow { at, prices, ..row(number, billed_key) }, tokens[0], tokens[1])
}

/// A million input and a million output tokens, for 12 dollars.
pub async fn record_million_tokens(store: &Store, number: usize, billed_key: (AccountId, KeyId), day: &str) {
    let prices = crate::samples::prices(3000, 9000);
    let row = used(number, billed_key, noon_of(day), prices, [1_000_000, 1_000_000]);
    store.ledger.settle(row.into()).await.unwrap();
}

pub fn issue_request(account: AccountId, of: &str) -> IssueRequest {
    IssueRequest { account, month: month(of), terms: terms() }
}

pub async fn issue(
    store: &Store,
    account: AccountId,
    of: &str,
    on: &str,
) -> Result<IssueOutcome, InvoiceError> {
    let permit = permit_at(Principal::Operator, noon_of(on));
    store.invoices.issue_invoice(permit, &issue_request(account, of), Box::new(render)).await
}

/// Issues an invoice and panics if it was issued before.
pub async fn issue_new(store: &Store, account: AccountId, of: &str, on: &str) -> InvoiceNumber {
    match issue(store, account, of, on).await.unwrap() {
        IssueOutcome::New(number) => number,
        already => panic!("{already:?}"),
    }
}

pub async fn credit(
    store: &Store,
    invoice: InvoiceNumber,
    amount: CreditAmount,
    on: &str,
) -> Result<InvoiceNumber, InvoiceError> {
    let permit = permit_at(Principal::Operator, noon_of("2026-12-24"));
    let known = store.invoices.read_invoice(permit, invoice).await?.map(|record| record.credited);
    credit_after(store, invoice, known.unwrap_or_default(), amount, on).await
}

/// Credits an invoice, given the amount that the caller believes was credited before.
pub async fn credit_after(
    store: &Store,
    invoice: InvoiceNumber,
    expected_credited: Credited,
    amount: CreditAmount,
    on: &str,
) -> Result<InvoiceNumber, InvoiceError> {
    let reason = "It was agreed.".to_owned();
    let issue_request = CreditRequest { invoice, amount, expected_credited, reason, terms: terms() };
    store
        .invoices
        .credit_invoice(permit_at(Principal::Operator, noon_of(on)), &issue_request, Box::new(render))
        .await
}

pub async fn read_invoice(store: &Store, number: InvoiceNumber) -> InvoiceRecord {
    let permit = permit_at(Principal::Operator, noon_of("2026-12-24"));
    store.invoices.read_invoice(permit, number).await.unwrap().unwrap()
}

pub fn all() -> InvoiceQuery {
    InvoiceQuery { account: None, state: None, year: None, page: 1, today: "2026-12-24".parse().unwrap() }
}

pub async fn listed(store: &Store, query: &InvoiceQuery) -> InvoicePage {
    let permit = permit_at(Principal::Operator, noon_of("2026-12-24"));
    store.invoices.list_invoices(permit, query).await.unwrap()
}
