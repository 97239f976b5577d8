//! Checks every page of invoices, usage and accounts in every state (`crate::tour`). `make screenshots` takes those shown in
//! docs/portal.md.

use super::billing_history::{BRIGHTWATER, Documents, NORTHGATE, Past, office_that_bills};
use super::open_as;
use crate::browser::{Browser, Scheme, Screen};
use crate::office::Office;
use crate::tour::Tour;

fn tour_of(browser: &Browser) -> Tour<'_> {
    Tour::of(browser, Screen::Wide, "portal")
}

async fn open_details(browser: &Browser) {
    browser.script("document.querySelectorAll('details').forEach(details => { details.open = true })").await;
}

async fn at_the_end(browser: &Browser, tour: Tour<'_>) {
    assert_eq!(browser.console_errors().await, Vec::<String>::new());
    tour.end();
}

#[tokio::test]
async fn invoice_pages_are_accessible() {
    let office = office_that_bills();
    let ruth = office.sign_in("ruth").await;
    let browser = Browser::start().await;
    let mut tour = tour_of(&browser);
    open_as(&office, &browser, &ruth, "/invoices").await;
    tour.look("no invoices", "No invoices yet").await;

    let past = Past::of(&office, &ruth).await;
    browser.open(&office.portal("/invoices")).await;
    tour.look("drafts alone", "Ready to issue").await;
    let documents = past.invoice().await;
    browser.open(&office.portal("/invoices")).await;
    for text in ["Overdue", "Paid", "Void", "Credit note", "In progress"] {
        browser.shows(text).await;
    }
    tour.look("invoices", "Ready to issue").await;
    tour.picture("07-invoices").await;
    phone_navigation_works_by_touch(&browser).await;
    let (account, last, running) = (past.brightwater.account, past.last, past.running);
    for (page, path, text) in [
        ("invoices of an account", format!("/invoices?account={account}"), BRIGHTWATER),
        ("unbilled usage", "/invoices?state=draft".to_owned(), "Unbilled usage"),
        ("no match", "/invoices?state=paid&year=1999".to_owned(), "No invoices match these filters"),
        ("no such page", "/invoices?page=9".to_owned(), "No page 9"),
        ("invalid link", "/invoices?state=x".to_owned(), "Invalid link"),
        ("no such invoice", "/invoices/1999-0001".to_owned(), "Invoice not found"),
        (
            "draft that is ready",
            format!("/invoices/drafts/{account}/{last}"),
            "You cannot change an invoice after you issue it.",
        ),
        (
            "confirmation before issuing",
            format!("/invoices/drafts/{account}/{last}/issue"),
            "You cannot change or delete it.",
        ),
        (
            "draft that runs",
            format!("/invoices/drafts/{account}/{running}"),
            "You can issue this invoice from",
        ),
        ("empty draft", format!("/invoices/drafts/{account}/2001-01"), "Nothing to invoice"),
    ] {
        browser.open(&office.portal(&path)).await;
        tour.look(page, text).await;
    }
    the_documents(&office, &browser, &mut tour, &documents).await;
    at_the_end(&browser, tour).await;
}

async fn the_documents(office: &Office, browser: &Browser, tour: &mut Tour<'_>, documents: &Documents) {
    for (page, number, text) in [
        ("paid invoice", documents.paid, "Mark as unpaid"),
        ("overdue invoice", documents.overdue, "Mark as paid"),
        ("void invoice", documents.void, "Open draft"),
        ("credit note", documents.credit_note, "The address of the account was wrong"),
        ("issued invoice", documents.issued, "Amount due"),
    ] {
        browser.open(&office.portal(&format!("/invoices/{number}"))).await;
        tour.look(page, text).await;
    }
    tour.picture("08-invoice").await;

    let credit = office.portal(&format!("/invoices/{}/credit", documents.issued));
    browser.open(&credit).await;
    tour.look("credit form", "Amount").await;
    browser.follow("main form button.button-primary").await;
    tour.look("credit form with errors", "Fix 2 problems").await;
    assert_eq!(browser.status().await, 422);
    assert!(browser.title().await.starts_with("Error: "));
    browser.press("#part").await;
    browser.fill("#amount", "2.50").await;
    browser.fill("#reason", "Two requests were sent twice").await;
    browser.follow("main form button.button-primary").await;
    tour.look("preview of a credit note", "Preview").await;
    browser.follow("form.actions button.button-primary").await;
    tour.look("new credit note", "can no longer be changed").await;
}

/// On a narrow screen the navigation bar scrolls; every link must be reachable and fully visible.
async fn phone_navigation_works_by_touch(browser: &Browser) {
    browser.show_on(Screen::Phone, Scheme::Light).await;
    let reached = "return [...document.querySelectorAll('.bar-nav a')].filter(link => { \
        link.scrollIntoView({block: 'nearest', inline: 'nearest'}); const box = link.getBoundingClientRect(); \
        return box.left < 0 || box.right > innerWidth || box.height < 24 }).map(link => link.innerText)";
    assert_eq!(browser.script(reached).await, serde_json::json!([]), "out of reach");
    browser.show_on(Screen::Wide, Scheme::Light).await;
}

#[tokio::test]
async fn usage_pages_are_accessible() {
    let office = office_that_bills();
    let ruth = office.sign_in("ruth").await;
    let browser = Browser::start().await;
    let mut tour = tour_of(&browser);
    open_as(&office, &browser, &ruth, "/usage").await;
    tour.look("nothing used", "No usage in").await;

    let past = Past::of(&office, &ruth).await;
    let (account, last, running) = (past.brightwater.account, past.last, past.running);
    for (page, path, text) in [
        ("usage of all", format!("/usage?month={last}"), NORTHGATE),
        ("usage that runs", format!("/usage?account={account}&month={running}"), "so far"),
        ("empty month", format!("/usage?account={account}&month=2020-02"), "No usage in"),
        ("usage with errors", "/usage?account=x&month=y".to_owned(), "Fix 2 problems"),
        ("usage with an error", "/usage?account=999999".to_owned(), "Account not found"),
        ("usage", format!("/usage?account={account}&month={last}"), "Rejected requests per day"),
    ] {
        browser.open(&office.portal(&path)).await;
        tour.look(page, text).await;
    }
    tour.picture("09-usage").await;
    open_details(&browser).await;
    tour.look("usage with tables", "Daily amounts are rounded.").await;
    at_the_end(&browser, tour).await;
}

#[tokio::test]
async fn account_pages_are_accessible() {
    let office = office_that_bills();
    let ruth = office.sign_in("ruth").await;
    let past = Past::of(&office, &ruth).await;
    assert_eq!(ruth.post("/accounts/keys", &[("label", "not in use yet")]).await.status.as_u16(), 200);
    let browser = Browser::start().await;
    let mut tour = tour_of(&browser);
    open_as(&office, &browser, &ruth, "/accounts").await;
    tour.look("accounts", NORTHGATE).await;
    open_details(&browser).await;
    tour.look("accounts with open forms", "Create an unassigned key").await;
    browser.open(&office.portal("/accounts?after=%7E&closed=1")).await;
    tour.look("behind the last account", "No more accounts").await;
    browser.open(&office.portal("/accounts/999999")).await;
    tour.look("no such account", "Account not found").await;

    browser.open(&office.portal("/accounts?open=account")).await;
    tour.look("new account", "Shown on invoices. You cannot change it later.").await;
    browser.fill("#rpm", "many").await;
    browser.follow("#new-account form button").await;
    tour.look("new account with errors", "Fix 2 problems").await;
    assert_eq!(browser.status().await, 422);

    let account = format!("/accounts/{}", past.brightwater.account);
    an_account(&office, &browser, &mut tour, &account).await;
    browser.open(&office.portal(&account)).await;
    browser.follow("section[aria-labelledby=close] a[href*='open=close']").await;
    browser.follow("section[aria-labelledby=close] button").await;
    tour.look("closed account", "Closed").await;
    at_the_end(&browser, tour).await;
}

async fn an_account(office: &Office, browser: &Browser, tour: &mut Tour<'_>, account: &str) {
    let account = office.portal(account);
    browser.open(&account).await;
    tour.look("account", "claims intake, production").await;
    tour.picture("10-account").await;
    open_details(browser).await;
    tour.look("account with open forms", "Save billing contact").await;
    for (form, field, wrong) in [
        ("limits", "#rpm", "0"),
        ("billing", "#email", "not an address"),
        ("new-key", "#label", &"long ".repeat(60)),
    ] {
        browser.open(&account).await;
        match form {
            "new-key" => browser.follow("section[aria-labelledby=new-key] a[href*='open=key']").await,
            _ => browser.press(&format!("section[aria-labelledby={form}] summary")).await,
        }
        browser.fill(field, wrong).await;
        browser.follow(&format!("section[aria-labelledby={form}] form button")).await;
        assert_eq!(browser.status().await, 422, "{form}");
        assert!(browser.title().await.starts_with("Error: "), "{form}");
        tour.look(&format!("{form} with an error"), BRIGHTWATER).await;
    }
    browser.open(&account).await;
    browser.follow("tbody a[href*='key=']").await;
    open_details(browser).await;
    tour.look("card of a key", "You cannot undo this.").await;

    browser.open(&account).await;
    browser.follow("section[aria-labelledby=new-key] a[href*='open=key']").await;
    browser.fill("#label", "second server").await;
    browser.follow("section[aria-labelledby=new-key] form button").await;
    tour.look("new key", "Copy it now").await;
}
