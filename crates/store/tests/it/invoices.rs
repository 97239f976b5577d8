//! Conformance: invoices are issued once, under numbers without gaps, are never changed, and are reversed by credit
//! notes.

use crate::billing::{
    credit, credit_after, document, issue, issue_new, issue_request, month, noon_of, permit_at, read_invoice,
    record_million_tokens, render, terms, used,
};
use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{decisions, people, principal};
use crate::samples::{HOSTILE_TEXTS, account, billed_key, key, prices};
use chancery_domain::{
    AccountId, Action, Buyer, ContactEmail, CreditAmount, CreditError, Credited, Day, Decision, Invoice,
    InvoiceAmounts, InvoiceEventKind, InvoiceKind, InvoiceNumber, InvoiceState, LineItem, MinorUnits,
    ModelUsage, Nanos, PostalAddress, Principal, Seller, UnixMillis,
};
use chancery_policy::{ManageInvoices, ReadInvoices};
use chancery_store::{
    BillableMonth, CreditRequest, DbError, InvoiceError, IssueOutcome, IssueRequest, LedgerError,
    PaymentChange,
};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;

fn number(text: &str) -> InvoiceNumber {
    text.parse().unwrap()
}

pub async fn issued_invoice_round_trips(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let ruth = people(&store).await.ruth;
    let billed_key = billed_key(&store).await;
    let hostile = HOSTILE_TEXTS.join("\n").replace('\'', "''");
    let address =
        format!("UPDATE accounts SET billing_address = '{hostile}', billing_email = 'bills@example.com'");
    database.raw(&address).await.unwrap();
    // 0.0000205 and 0.0000008 in the first half of the month, then a price that gives odd nanos.
    for (index, (day, prices, tokens)) in [
        ("2026-10-01", prices(100, 400), [205, 2]),
        ("2026-10-31", prices(100, 400), [4_000_000, 3]),
        ("2026-10-16", prices(101, 403), [12_345_677, 7_654_321]),
        ("2026-09-30", prices(100, 400), [1, 1]),
        ("2026-11-01", prices(100, 400), [1, 1]),
    ]
    .into_iter()
    .enumerate()
    {
        store.ledger.settle(used(index, billed_key, noon_of(day), prices, tokens).into()).await.unwrap();
    }
    let seller = Seller {
        name: HOSTILE_TEXTS[5].to_owned(),
        letterhead: HOSTILE_TEXTS.join("\n"),
        payment: HOSTILE_TEXTS[0].to_owned(),
    };
    let mut terms = terms();
    terms.seller = seller.clone();
    let order = IssueRequest { account: billed_key.0, month: month("2026-10"), terms: terms.clone() };
    let at = noon_of("2026-11-02");
    let rendered = Arc::new(Mutex::new(None));
    let keeping = {
        let rendered = Arc::clone(&rendered);
        move |invoice: &Invoice| {
            *rendered.lock().unwrap() = Some(invoice.clone());
            render(invoice)
        }
    };
    let issued = store
        .invoices
        .issue_invoice(permit_at(principal(&ruth), at), &order, Box::new(keeping))
        .await
        .unwrap();
    assert_eq!(issued, IssueOutcome::New(number("2026-0001")));

    let permit = permit_at::<ReadInvoices>(principal(&ruth), at);
    let record = store.invoices.read_invoice(permit, number("2026-0001")).await.unwrap().unwrap();
    let invoice = rendered.lock().unwrap().take().unwrap();
    assert_eq!(record.invoice, invoice, "what the document was made of");
    let usage = |prices, requests, input_tokens, output_tokens, cost| ModelUsage {
        model: "smollm2-135m".to_owned(),
        prices,
        requests,
        input_tokens,
        cached_input_tokens: 0,
        output_tokens,
        cost: Nanos(cost),
    };
    let of_october = [
        usage(prices(100, 400), 2, 4_000_205, 5, 400_022_500),
        usage(prices(101, 403), 1, 12_345_677, 7_654_321, 4_331_604_740),
    ];
    let bill = InvoiceAmounts::of(&of_october, &terms).unwrap();
    assert_eq!((bill.exact, bill.lines.len()), (Nanos(4_731_627_240), 4));
    let buyer = Buyer {
        account: billed_key.0,
        name: "Hale & Ward".parse().unwrap(),
        address: PostalAddress::from_stored(HOSTILE_TEXTS.join("\n")),
        email: ContactEmail::from_stored("bills@example.com".to_owned()),
    };
    let expected = Invoice {
        number: number("2026-0001"),
        kind: InvoiceKind::Invoice,
        month: month("2026-10"),
        issued_at: at,
        due: "2026-12-02".parse().unwrap(),
        seller,
        buyer: buyer.clone(),
        bill,
    };
    assert_eq!(record.invoice, expected);
    assert_eq!((record.state, record.credited), (InvoiceState::Issued, Credited::default()));
    let [event] = record.events.as_slice() else { panic!("{:?}", record.events) };
    assert_eq!((event.kind, event.at), (InvoiceEventKind::Issued, at));
    assert_eq!(event.by.as_ref().unwrap().email.as_str(), "ruth@example.com");

    let permit = permit_at::<ReadInvoices>(principal(&ruth), at);
    let bytes = store.invoices.read_invoice_document(permit, number("2026-0001")).await.unwrap().unwrap();
    assert_eq!(bytes, document(&expected), "byte for byte");
    assert_eq!(store.issued_invoices.issued_document(number("2026-0001")).await.unwrap().unwrap(), bytes);
    assert_eq!(record.document_hash.as_slice(), Sha256::digest(&bytes).as_slice());

    let permit = permit_at::<ReadInvoices>(Principal::Operator, at);
    let to_bill =
        store.invoices.billable_month(permit, billed_key.0, month("2026-10")).await.unwrap().unwrap();
    let invoice = Some(number("2026-0001"));
    assert_eq!(
        to_bill,
        BillableMonth { buyer, month: month("2026-10"), usage: of_october.to_vec(), invoice }
    );
    assert_eq!(store.issued_invoices.month_usage(billed_key.0, month("2026-10")).await.unwrap(), of_october);

    assert_eq!(store.issued_invoices.issued_invoices(None, 10).await.unwrap(), [record]);
    let billed = store.issued_invoices.billed_months(None, 10).await.unwrap();
    assert_eq!(billed, [(billed_key.0, month("2026-10"), number("2026-0001"))]);
    assert_eq!(store.issued_invoices.last_invoice_numbers().await.unwrap(), [number("2026-0001")]);

    let noted: Vec<_> =
        decisions(&store).await.into_iter().map(|row| (row.access_request.action, row.decision)).collect();
    let read = (Action::ReadInvoices, Decision::Allowed);
    assert_eq!(noted, [(Action::ManageInvoices, Decision::Allowed), read, read, read]);
}

pub async fn missing_invoice_is_none_and_read_is_audited(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (account, _) = billed_key(&store).await;
    let permit = || permit_at::<ReadInvoices>(Principal::Operator, noon_of("2026-11-02"));
    assert_eq!(store.invoices.read_invoice(permit(), number("2026-0001")).await.unwrap(), None);
    assert_eq!(store.invoices.read_invoice_document(permit(), number("2026-0001")).await.unwrap(), None);
    assert_eq!(
        store.invoices.billable_month(permit(), AccountId(777), month("2026-10")).await.unwrap(),
        None
    );
    let unused = store.invoices.billable_month(permit(), account, month("2026-10")).await.unwrap().unwrap();
    assert_eq!((unused.usage, unused.invoice), (Vec::new(), None));
    assert_eq!(decisions(&store).await.len(), 4);
    assert_eq!(store.issued_invoices.issued_invoices(None, 10).await.unwrap(), []);
    assert_eq!(store.issued_invoices.last_invoice_numbers().await.unwrap(), []);
    let pay = permit_at::<ManageInvoices>(Principal::Operator, noon_of("2026-11-02"));
    let outcome = store.invoices.record_payment(pay, number("2026-0001"), PaymentChange::Paid).await;
    assert!(matches!(outcome, Err(InvoiceError::NoSuchInvoice(named)) if named == number("2026-0001")));
    let outcome = credit(&store, number("2026-0001"), CreditAmount::Full, "2026-11-02").await;
    assert!(matches!(outcome, Err(InvoiceError::NoSuchInvoice(_))), "{outcome:?}");
}

pub async fn month_is_invoiceable_one_hour_after_its_end(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    record_million_tokens(&store, 1, billed_key, "2026-10-31").await;
    let end = month("2026-11").first_day().start();
    for early in [noon_of("2026-10-31"), end, UnixMillis(end.0 + 3_599_999)] {
        let permit = permit_at(Principal::Operator, early);
        let error = store
            .invoices
            .issue_invoice(permit, &issue_request(billed_key.0, "2026-10"), Box::new(render))
            .await
            .unwrap_err();
        assert!(matches!(error, InvoiceError::MonthStillOpen { month: open } if open == month("2026-10")));
        assert!(error.to_string().contains("2026-11-01T01:00:00"), "{error}");
    }
    let permit = permit_at(Principal::Operator, UnixMillis(end.0 + 3_600_000));
    let issued = store
        .invoices
        .issue_invoice(permit, &issue_request(billed_key.0, "2026-10"), Box::new(render))
        .await
        .unwrap();
    assert_eq!(issued, IssueOutcome::New(number("2026-0001")));
}

pub async fn issuing_without_usage_or_account_is_rejected(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    record_million_tokens(&store, 1, billed_key, "2026-10-31").await;
    let error = issue(&store, billed_key.0, "2026-09", "2026-11-02").await.unwrap_err();
    assert!(matches!(error, InvoiceError::NothingToBill { month: of, .. } if of == month("2026-09")));
    let error = issue(&store, AccountId(777), "2026-10", "2026-11-02").await.unwrap_err();
    assert!(matches!(error, InvoiceError::NoSuchAccountId(AccountId(777))), "{error:?}");
    let mut bad = issue_request(billed_key.0, "2026-10");
    bad.terms.seller.letterhead = "a\0b".to_owned();
    let permit = permit_at(Principal::Operator, noon_of("2026-11-02"));
    let error = store.invoices.issue_invoice(permit, &bad, Box::new(render)).await.unwrap_err();
    assert!(matches!(error, InvoiceError::Database(DbError::NulCharacter { .. })), "{error:?}");
    // A closed account is still billed for its usage.
    store.close_account(&"Hale & Ward".parse().unwrap(), noon_of("2026-11-01")).await.unwrap();
    assert_eq!(issue_new(&store, billed_key.0, "2026-10", "2026-11-02").await, number("2026-0001"));
}

pub async fn overflowing_month_is_rejected_by_name(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    record_million_tokens(&store, 1, billed_key, "2026-10-15").await;
    for cost in [i64::MAX, i64::MAX / 2 + 1] {
        let most = format!(
            "INSERT INTO daily_usage SELECT account_id, day + {}, key_id, model, input_price_nanos, \
             cached_price_nanos, output_price_nanos, 1, 1, 0, 1, {cost} FROM daily_usage WHERE day = {}",
            if cost == i64::MAX { 1 } else { 2 },
            Day::containing(noon_of("2026-10-15")).0
        );
        database.raw(&most).await.unwrap();
    }
    let too_large = |error: InvoiceError| {
        assert!(
            matches!(error, InvoiceError::MonthTooLarge { month: of } if of == month("2026-10")),
            "{error:?}"
        );
        assert!(!error.to_string().contains("days"), "{error}");
    };
    too_large(issue(&store, billed_key.0, "2026-10", "2026-11-02").await.unwrap_err());
    let unread = store.issued_invoices.month_usage(billed_key.0, month("2026-10")).await.unwrap_err();
    assert!(matches!(unread, DbError::SumTooLarge), "{unread:?}");
    let permit = permit_at::<ReadInvoices>(Principal::Operator, noon_of("2026-11-02"));
    too_large(store.invoices.billable_month(permit, billed_key.0, month("2026-10")).await.unwrap_err());
    assert_eq!(store.issued_invoices.last_invoice_numbers().await.unwrap(), []);
}

pub async fn invoice_numbers_have_no_gaps_under_race(database: Arc<AnyDatabase>) {
    const ACCOUNTS: usize = 24;
    let stores = [database.open().await, database.open().await];
    let mut numbers = BTreeSet::new();
    let mut issuing = JoinSet::new();
    for index in 0..ACCOUNTS {
        // The last six are issued in the next year, which has its own numbers.
        let on = if index < 18 { "2026-11-02" } else { "2027-01-03" };
        if index == 18 {
            numbers.extend(std::mem::take(&mut issuing).join_all().await);
        }
        let account = account(&stores[0], &format!("Account {index}")).await.id;
        let key = key(&stores[0], Some(account)).await.id;
        record_million_tokens(&stores[0], index, (account, key), "2026-10-15").await;
        let store = Arc::clone(&stores[index % 2]);
        issuing.spawn(async move {
            if index % 3 == 0 {
                let failing = |_: &Invoice| Err("there is no paper".to_owned());
                let permit = permit_at(Principal::Operator, noon_of("2026-11-02"));
                let error = store
                    .invoices
                    .issue_invoice(permit, &issue_request(account, "2026-10"), Box::new(failing))
                    .await
                    .unwrap_err();
                assert!(
                    matches!(&error, InvoiceError::DocumentFailed { why, .. } if why == "there is no paper")
                );
            }
            issue_new(&store, account, "2026-10", on).await
        });
    }
    numbers.extend(issuing.join_all().await);
    let of_year = |year, last| (1..=last).map(move |serial| InvoiceNumber { year, serial });
    let expected: BTreeSet<InvoiceNumber> = of_year(2026, 18).chain(of_year(2027, 6)).collect();
    assert_eq!(numbers, expected);
    assert_eq!(
        stores[0].issued_invoices.last_invoice_numbers().await.unwrap(),
        [number("2026-0018"), number("2027-0006")]
    );
    let mut pages = Vec::new();
    loop {
        let after = pages.last().copied();
        let page = stores[1].issued_invoices.issued_invoices(after, 7).await.unwrap();
        pages.extend(page.iter().map(|record| record.invoice.number));
        for record in &page {
            assert_eq!((record.events.len(), record.invoice.bill.lines.len()), (1, 2));
        }
        if page.is_empty() {
            break;
        }
    }
    assert_eq!(pages, expected.into_iter().collect::<Vec<_>>());
    let mut billed = Vec::new();
    loop {
        let after = billed.last().map(|(account, month, _)| (*account, *month));
        let page = stores[1].issued_invoices.billed_months(after, 5).await.unwrap();
        if page.is_empty() {
            break;
        }
        billed.extend(page);
    }
    assert_eq!(billed.len(), ACCOUNTS);
}

pub async fn invoice_numbers_and_dates_are_monotonic(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    for (index, day) in ["2026-08-15", "2026-09-15", "2026-10-15"].into_iter().enumerate() {
        record_million_tokens(&store, index, billed_key, day).await;
    }
    // One of two nodes has a slow clock, even across New Year.
    let first = issue_new(&store, billed_key.0, "2026-08", "2026-11-03").await;
    let second = issue_new(&store, billed_key.0, "2026-09", "2026-11-02").await;
    let third = issue_new(&store, billed_key.0, "2026-10", "2027-01-01").await;
    let note = credit(&store, first, CreditAmount::Full, "2026-12-31").await.unwrap();
    let issued = store.issued_invoices.issued_invoices(None, 10).await.unwrap();
    let numbers: Vec<_> = issued.iter().map(|record| record.invoice.number).collect();
    assert_eq!(numbers, [first, second, third, note]);
    assert_eq!(numbers, ["2026-0001", "2026-0002", "2027-0001", "2027-0002"].map(number));
    let moments: Vec<_> = issued.iter().map(|record| record.invoice.issued_at).collect();
    assert_eq!(moments, ["2026-11-03", "2026-11-03", "2027-01-01", "2027-01-01"].map(noon_of));
    assert_eq!(issued[1].events[0].at, noon_of("2026-11-03"));
    assert_eq!(issued[1].invoice.due, "2026-12-03".parse::<Day>().unwrap());
}

pub async fn concurrent_issues_of_one_month_create_one_invoice(database: Arc<AnyDatabase>) {
    const TASKS: usize = 16;
    let stores = [database.open().await, database.open().await];
    let billed_key = billed_key(&stores[0]).await;
    record_million_tokens(&stores[0], 1, billed_key, "2026-10-15").await;
    let mut issuing = JoinSet::new();
    for index in 0..TASKS {
        let store = Arc::clone(&stores[index % 2]);
        issuing.spawn(async move { issue(&store, billed_key.0, "2026-10", "2026-11-02").await.unwrap() });
    }
    let outcomes = issuing.join_all().await;
    let new = outcomes.iter().filter(|issued| **issued == IssueOutcome::New(number("2026-0001"))).count();
    let already =
        outcomes.iter().filter(|issued| **issued == IssueOutcome::AlreadyIssued(number("2026-0001"))).count();
    assert_eq!((new, already), (1, TASKS - 1));
    assert_eq!(stores[0].issued_invoices.issued_invoices(None, 10).await.unwrap().len(), 1);
    assert_eq!(stores[0].issued_invoices.last_invoice_numbers().await.unwrap(), [number("2026-0001")]);
    assert_eq!(decisions(&stores[0]).await.len(), TASKS, "each is on record");
}

pub async fn credit_note_cannot_exceed_remaining_amount(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let ruth = people(&store).await.ruth;
    let billed_key = billed_key(&store).await;
    record_million_tokens(&store, 1, billed_key, "2026-10-15").await;
    let invoice = issue_new(&store, billed_key.0, "2026-10", "2026-11-02").await;
    let before = read_invoice(&store, invoice).await;
    assert_eq!(
        (before.invoice.bill.subtotal, before.invoice.bill.total),
        (MinorUnits(1200), MinorUnits(1275))
    );
    let part = |minor| CreditAmount::Part(MinorUnits(minor));
    for (amount, rejection) in [
        (part(1201), CreditError::ExceedsRemaining),
        (part(0), CreditError::NotPositive),
        (part(-1), CreditError::NotPositive),
    ] {
        let outcome = credit(&store, invoice, amount, "2026-11-03").await;
        assert!(
            matches!(outcome, Err(InvoiceError::CreditRejected { why, .. }) if why == rejection),
            "{outcome:?}"
        );
    }
    assert_eq!(read_invoice(&store, invoice).await, before, "a refusal changes nothing");

    let reason = HOSTILE_TEXTS.join("\n");
    let mut terms = terms();
    // The seller is the current one; currency and tax are those of the invoice.
    terms.seller.name = "Marlow, Finch & Hale".to_owned();
    (terms.currency, terms.tax) = ("JPY".parse().unwrap(), None);
    let expected_credited = Credited::default();
    let order =
        CreditRequest { invoice, amount: part(333), expected_credited, reason: reason.clone(), terms };
    let permit = || permit_at::<ManageInvoices>(principal(&ruth), noon_of("2026-11-04"));
    let failing = |_: &Invoice| Err("there is no paper".to_owned());
    let outcome = store.invoices.credit_invoice(permit(), &order, Box::new(failing)).await;
    assert!(matches!(outcome, Err(InvoiceError::DocumentFailed { .. })), "{outcome:?}");
    let note = store.invoices.credit_invoice(permit(), &order, Box::new(render)).await.unwrap();
    assert_eq!(note, number("2026-0002"), "no number was lost");
    let noted = read_invoice(&store, note).await;
    assert_eq!(noted.invoice.kind, InvoiceKind::CreditNote { of: invoice, reason });
    assert_eq!(noted.invoice.seller.name, "Marlow, Finch & Hale");
    assert_eq!((noted.invoice.month, noted.state), (month("2026-10"), InvoiceState::Issued));
    assert_eq!(noted.invoice.due, "2026-11-04".parse::<Day>().unwrap());
    let bill = &noted.invoice.bill;
    assert_eq!((bill.currency, bill.subtotal), (before.invoice.bill.currency, MinorUnits(-333)));
    assert_eq!((bill.tax.as_ref().unwrap().amount, bill.total), (MinorUnits(-21), MinorUnits(-354)));
    assert_eq!(bill.lines.len(), 1);
    assert_eq!((&bill.lines[0].item, bill.exact), (&LineItem::Part, Nanos(-3_330_000_000)));
    assert_eq!(noted.document_hash.as_slice(), Sha256::digest(document(&noted.invoice)).as_slice());

    let after = read_invoice(&store, invoice).await;
    assert_eq!(after.invoice, before.invoice);
    assert_eq!(after.state, InvoiceState::Issued);
    assert_eq!(after.credited, Credited { subtotal: MinorUnits(333), total: MinorUnits(354) });
    let changes: Vec<InvoiceEventKind> = after.events.iter().map(|event| event.kind).collect();
    assert_eq!(changes, [InvoiceEventKind::Issued, InvoiceEventKind::Credited(note)]);
    assert_eq!(after.events[1].by.as_ref().unwrap().id, ruth.id);
    assert_eq!(after.events[0].by, None, "command line");

    let outcome = credit(&store, invoice, part(868), "2026-11-05").await;
    assert!(matches!(outcome, Err(InvoiceError::CreditRejected { why: CreditError::ExceedsRemaining, .. })));
    let outcome = credit(&store, note, CreditAmount::Full, "2026-11-05").await;
    assert!(matches!(outcome, Err(InvoiceError::NoSuchInvoice(of)) if of == note), "{outcome:?}");
    let last = credit(&store, invoice, CreditAmount::Full, "2026-11-05").await.unwrap();
    let void = read_invoice(&store, invoice).await;
    assert_eq!(void.state, InvoiceState::Void);
    assert_eq!(void.credited, Credited { subtotal: MinorUnits(1200), total: MinorUnits(1275) });
    assert_eq!(void.events.last().unwrap().kind, InvoiceEventKind::Voided(last));
    assert_eq!(read_invoice(&store, last).await.invoice.bill.total, MinorUnits(-(1275 - 354)));
    for amount in [part(1), CreditAmount::Full] {
        let outcome = credit(&store, invoice, amount, "2026-11-06").await;
        assert!(matches!(outcome, Err(InvoiceError::CreditRejected { .. })), "{outcome:?}");
    }
    let permit = permit_at::<ManageInvoices>(Principal::Operator, noon_of("2026-11-06"));
    let outcome = store.invoices.record_payment(permit, invoice, PaymentChange::Paid).await;
    assert!(matches!(outcome, Err(InvoiceError::InvoiceIsVoid(of)) if of == invoice), "{outcome:?}");
}

pub async fn concurrent_credits_of_seen_amount_create_one_note(database: Arc<AnyDatabase>) {
    const TASKS: usize = 8;
    let stores = [database.open().await, database.open().await];
    let billed_key = billed_key(&stores[0]).await;
    record_million_tokens(&stores[0], 1, billed_key, "2026-10-15").await;
    let invoice = issue_new(&stores[0], billed_key.0, "2026-10", "2026-11-02").await;
    let part = CreditAmount::Part(MinorUnits(100));
    for round in 1..=2 {
        let seen = read_invoice(&stores[0], invoice).await.credited;
        let mut crediting = JoinSet::new();
        for index in 0..TASKS {
            let store = Arc::clone(&stores[index % 2]);
            crediting.spawn(async move { credit_after(&store, invoice, seen, part, "2026-11-03").await });
        }
        let outcomes = crediting.join_all().await;
        let notes = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        let late = |outcome: &&Result<InvoiceNumber, InvoiceError>| matches!(outcome, Err(InvoiceError::ConcurrentCredit(of)) if *of == invoice);
        assert_eq!((notes, outcomes.iter().filter(late).count()), (1, TASKS - 1), "{outcomes:?}");
        assert_eq!(read_invoice(&stores[0], invoice).await.credited.subtotal, MinorUnits(100 * round));
    }
    assert_eq!(stores[0].issued_invoices.last_invoice_numbers().await.unwrap(), [number("2026-0003")]);
}

pub async fn fully_credited_month_can_be_invoiced_again(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    record_million_tokens(&store, 1, billed_key, "2026-10-15").await;
    let first = issue_new(&store, billed_key.0, "2026-10", "2026-11-02").await;
    let late = used(2, billed_key, noon_of("2026-10-31"), prices(100, 400), [1, 1]);
    let rejected = store.ledger.settle(late.clone().into()).await;
    assert!(matches!(rejected, Err(LedgerError::MonthInvoiced { .. })), "{rejected:?}");
    let note = credit(&store, first, CreditAmount::Full, "2026-11-03").await.unwrap();
    let (invoice, note) = (read_invoice(&store, first).await, read_invoice(&store, note).await);
    assert_eq!(invoice.state, InvoiceState::Void);
    let lines = |record: &chancery_store::InvoiceRecord, sign: i64| -> Vec<(LineItem, i64, i64)> {
        let line = |line: &chancery_domain::InvoiceLine| {
            (line.item.clone(), line.exact.0 * sign, line.amount.0 * sign)
        };
        record.invoice.bill.lines.iter().map(line).collect()
    };
    assert_eq!(lines(&note, -1), lines(&invoice, 1), "the same lines with the sign turned");
    assert_eq!(store.issued_invoices.billed_months(None, 10).await.unwrap(), []);

    store.ledger.settle(late.into()).await.unwrap();
    let second = issue_new(&store, billed_key.0, "2026-10", "2026-11-04").await;
    assert_eq!(second, number("2026-0003"));
    let again = read_invoice(&store, second).await;
    assert_eq!(again.invoice.bill.exact, Nanos(invoice.invoice.bill.exact.0 + 500));
    assert_eq!(read_invoice(&store, first).await, invoice, "the first one stays as it is");
    assert_eq!(
        issue(&store, billed_key.0, "2026-10", "2026-11-05").await.unwrap(),
        IssueOutcome::AlreadyIssued(second)
    );
}

pub async fn payment_is_recorded_once_and_can_be_reverted(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let ruth = people(&store).await.ruth;
    let billed_key = billed_key(&store).await;
    record_million_tokens(&store, 1, billed_key, "2026-10-15").await;
    let invoice = issue_new(&store, billed_key.0, "2026-10", "2026-11-02").await;
    let note = async |change, on: &str| {
        let permit = permit_at::<ManageInvoices>(principal(&ruth), noon_of(on));
        store.invoices.record_payment(permit, invoice, change).await.unwrap()
    };
    let events = async || read_invoice(&store, invoice).await.events;
    assert_eq!(note(PaymentChange::Unpaid, "2026-11-03").await, InvoiceState::Issued);
    assert_eq!(events().await.len(), 1, "there was nothing to take back");
    assert_eq!(note(PaymentChange::Paid, "2026-11-10").await, InvoiceState::Paid);
    assert_eq!(note(PaymentChange::Paid, "2026-11-11").await, InvoiceState::Paid);
    assert_eq!(note(PaymentChange::Unpaid, "2026-11-12").await, InvoiceState::Issued);
    assert_eq!(note(PaymentChange::Paid, "2026-11-13").await, InvoiceState::Paid);
    let changes: Vec<_> = events().await.iter().map(|event| (event.kind, event.at)).collect();
    assert_eq!(
        changes,
        [
            (InvoiceEventKind::Issued, noon_of("2026-11-02")),
            (InvoiceEventKind::Paid, noon_of("2026-11-10")),
            (InvoiceEventKind::MarkedUnpaid, noon_of("2026-11-12")),
            (InvoiceEventKind::Paid, noon_of("2026-11-13")),
        ]
    );
    let by_ruth = |row: &chancery_domain::AuditedDecision| row.access_request.by == principal(&ruth);
    assert_eq!(decisions(&store).await.iter().filter(|row| by_ruth(row)).count(), 5, "each is on record");
    // A paid invoice can be credited too, in part or in full.
    credit(&store, invoice, CreditAmount::Part(MinorUnits(1)), "2026-11-14").await.unwrap();
    assert_eq!(read_invoice(&store, invoice).await.state, InvoiceState::Paid);
    credit(&store, invoice, CreditAmount::Full, "2026-11-14").await.unwrap();
    assert_eq!(read_invoice(&store, invoice).await.state, InvoiceState::Void);
}

pub async fn raw_sql_cannot_modify_issued_invoices(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let billed_key = billed_key(&store).await;
    record_million_tokens(&store, 1, billed_key, "2026-10-15").await;
    record_million_tokens(&store, 2, billed_key, "2026-09-15").await;
    let void = issue_new(&store, billed_key.0, "2026-09", "2026-11-02").await;
    credit(&store, void, CreditAmount::Full, "2026-11-02").await.unwrap();
    let invoice = issue_new(&store, billed_key.0, "2026-10", "2026-11-02").await;
    credit(&store, invoice, CreditAmount::Part(MinorUnits(100)), "2026-11-02").await.unwrap();
    let (before, bytes) =
        (read_invoice(&store, invoice).await, store.issued_invoices.issued_document(invoice).await.unwrap());
    for sql in [
        "INSERT INTO invoice_lines SELECT year, serial, position + 100, item, model, direction, tokens, price_nanos, \
         exact_nanos, amount_minor FROM invoice_lines",
        "INSERT INTO invoice_events (year, serial, kind, at_ms) SELECT year, serial, 'issued', 0 FROM invoices",
        "INSERT INTO invoice_events (year, serial, kind, at_ms) VALUES (2026, 1, 'voided', 0)",
        "UPDATE invoice_serials SET serial = serial - 1",
        "UPDATE invoice_serials SET serial = serial + 2",
        "UPDATE invoice_serials SET year = year + 1, serial = serial + 1",
        "DELETE FROM invoice_serials",
        "INSERT INTO invoice_serials (year, serial) VALUES (2027, 5)",
        "UPDATE invoices SET state = 'issued' WHERE state = 'void'",
        "UPDATE invoices SET state = 'paid' WHERE state = 'void'",
        "UPDATE invoices SET state = 'void' WHERE state = 'issued'",
        "UPDATE invoices SET credited_subtotal = 0, credited_total = 0 WHERE state = 'issued' AND credited_total > 0",
        "UPDATE invoices SET credited_total = credited_total - 1 WHERE state = 'issued' AND credited_total > 0",
        "UPDATE invoices SET total_minor = 1, subtotal_minor = 1, tax_minor = 0",
        "UPDATE invoices SET buyer_name = 'Somebody else'",
        "UPDATE invoices SET state = 'paid', due_day = due_day + 1",
        "UPDATE invoices SET state = 'draft'",
        "UPDATE invoices SET credited_subtotal = subtotal_minor + 1",
        "DELETE FROM invoices",
        "UPDATE invoice_lines SET tokens = tokens - 1",
        "DELETE FROM invoice_lines",
        "UPDATE invoice_documents SET pdf = pdf",
        "DELETE FROM invoice_documents",
        "UPDATE invoice_events SET at_ms = 0",
        "DELETE FROM invoice_events",
        "UPDATE billing_months SET invoice_year = NULL, invoice_serial = NULL",
        "DELETE FROM billing_months",
        "INSERT INTO billing_months (account_id, month) SELECT account_id, month FROM billing_months",
        "INSERT INTO invoices SELECT * FROM invoices",
        "INSERT INTO invoice_lines SELECT * FROM invoice_lines",
        "INSERT INTO invoice_documents SELECT * FROM invoice_documents",
    ] {
        assert!(database.raw(sql).await.is_err(), "{sql}");
    }
    assert_eq!(read_invoice(&store, invoice).await, before);
    assert_eq!(store.issued_invoices.issued_document(invoice).await.unwrap(), bytes);
    assert_eq!(store.issued_invoices.billed_months(None, 10).await.unwrap().len(), 1);
}
