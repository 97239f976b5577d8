//! Every page of invoices, usage and accounts, in every state, looked at (`crate::tour`). `make screenshots` pictures those that
//! docs/portal.md shows.

use super::open_as;
use super::past::{BRIGHTWATER, Documents, NORTHGATE, Past, office_that_bills};
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
    assert_eq!(browser.complaints().await, Vec::<String>::new());
    tour.end();
}

#[tokio::test]
async fn the_pages_of_invoices_keep_nobody_out() {
    let office = office_that_bills();
    let ruth = office.sign_in("ruth").await;
    let browser = Browser::start().await;
    let mut tour = tour_of(&browser);
    open_as(&office, &browser, &ruth, "/invoices").await;
    tour.look_everywhere("no invoices", "No invoices yet").await;

    let past = Past::of(&office, &ruth).await;
    browser.open(&office.portal("/invoices")).await;
    tour.look("drafts alone", "Ready to issue").await;
    let documents = past.invoice().await;
    browser.open(&office.portal("/invoices")).await;
    for text in ["Overdue", "Paid", "Void", "Credit note", "Running"] {
        browser.shows(text).await;
    }
    tour.look_everywhere("invoices", "Ready to issue").await;
    tour.picture("07-invoices").await;
    the_bar_of_a_phone_is_reached_by_touch(&browser).await;
    let (account, last, running) = (past.brightwater.account, past.last, past.running);
    for (page, path, text) in [
        ("invoices of an account", format!("/invoices?account={account}"), BRIGHTWATER),
        ("months to invoice", "/invoices?state=draft".to_owned(), "Months to invoice"),
        ("nothing fits", "/invoices?state=paid&year=1999".to_owned(), "Nothing fits these filters"),
        ("no such page", "/invoices?page=9".to_owned(), "There is no page 9"),
        ("address not read", "/invoices?state=x".to_owned(), "This address cannot be read"),
        ("no such invoice", "/invoices/1999-0001".to_owned(), "There is no such invoice"),
        ("draft that is ready", format!("/invoices/drafts/{account}/{last}"), "Issuing is final"),
        ("draft that runs", format!("/invoices/drafts/{account}/{running}"), "It can be issued from"),
        ("empty draft", format!("/invoices/drafts/{account}/2001-01"), "Nothing to invoice"),
    ] {
        browser.open(&office.portal(&path)).await;
        tour.look_everywhere(page, text).await;
    }
    the_documents(&office, &browser, &mut tour, &documents).await;
    at_the_end(&browser, tour).await;
}

async fn the_documents(office: &Office, browser: &Browser, tour: &mut Tour<'_>, documents: &Documents) {
    for (page, number, text) in [
        ("paid invoice", documents.paid, "Not paid after all"),
        ("overdue invoice", documents.overdue, "Mark as paid"),
        ("void invoice", documents.void, "Open the draft"),
        ("credit note", documents.credit_note, "The address of the account was wrong"),
        ("issued invoice", documents.issued, "Left to pay"),
    ] {
        browser.open(&office.portal(&format!("/invoices/{number}"))).await;
        tour.look_everywhere(page, text).await;
    }
    tour.picture("08-invoice").await;

    let credit = office.portal(&format!("/invoices/{}/credit", documents.issued));
    browser.open(&credit).await;
    tour.look_everywhere("credit form", "How much").await;
    browser.follow("main form button.button-primary").await;
    tour.look_everywhere("credit form with errors", "to put right").await;
    assert_eq!(browser.status().await, 422);
    assert!(browser.title().await.starts_with("Error: "));
    browser.press("#part").await;
    browser.fill("#amount", "2.50").await;
    browser.fill("#reason", "Two requests were sent twice").await;
    browser.follow("main form button.button-primary").await;
    tour.look_everywhere("preview of a credit note", "What it will say").await;
    browser.follow("form.actions button.button-primary").await;
    tour.look("new credit note", "can no longer change").await;
}

/// The bar scrolls by itself where it is too narrow; every link of it can be reached, and none is cut off for good.
async fn the_bar_of_a_phone_is_reached_by_touch(browser: &Browser) {
    browser.show_on(Screen::Phone, Scheme::Light).await;
    let reached = "return [...document.querySelectorAll('.bar-nav a')].filter(link => { \
        link.scrollIntoView({block: 'nearest', inline: 'nearest'}); const box = link.getBoundingClientRect(); \
        return box.left < 0 || box.right > innerWidth || box.height < 24 }).map(link => link.innerText)";
    assert_eq!(browser.script(reached).await, serde_json::json!([]), "out of reach");
    browser.show_on(Screen::Wide, Scheme::Light).await;
}

#[tokio::test]
async fn the_pages_of_usage_keep_nobody_out() {
    let office = office_that_bills();
    let ruth = office.sign_in("ruth").await;
    let browser = Browser::start().await;
    let mut tour = tour_of(&browser);
    open_as(&office, &browser, &ruth, "/usage").await;
    tour.look_everywhere("nothing used", "Nothing was used").await;

    let past = Past::of(&office, &ruth).await;
    let (account, last, running) = (past.brightwater.account, past.last, past.running);
    for (page, path, text) in [
        ("usage of all", format!("/usage?month={last}"), NORTHGATE),
        ("usage that runs", format!("/usage?account={account}&month={running}"), "so far"),
        ("empty month", format!("/usage?account={account}&month=2020-02"), "Nothing was used"),
        ("usage with errors", "/usage?account=x&month=y".to_owned(), "Two things to put right"),
        ("usage with an error", "/usage?account=999999".to_owned(), "There is no such account"),
        ("usage", format!("/usage?account={account}&month={last}"), "Refused requests per day"),
    ] {
        browser.open(&office.portal(&path)).await;
        tour.look_everywhere(page, text).await;
    }
    tour.picture("09-usage").await;
    open_details(&browser).await;
    tour.look_everywhere("usage with tables", "rounded for reading").await;
    at_the_end(&browser, tour).await;
}

#[tokio::test]
async fn the_pages_of_accounts_keep_nobody_out() {
    let office = office_that_bills();
    let ruth = office.sign_in("ruth").await;
    let past = Past::of(&office, &ruth).await;
    assert_eq!(ruth.post("/accounts/keys", &[("label", "not in use yet")]).await.status.as_u16(), 200);
    let browser = Browser::start().await;
    let mut tour = tour_of(&browser);
    open_as(&office, &browser, &ruth, "/accounts").await;
    tour.look_everywhere("accounts", NORTHGATE).await;
    open_details(&browser).await;
    tour.look("accounts with open forms", "Make a key without an account").await;
    browser.open(&office.portal("/accounts?page=7")).await;
    tour.look("no such page of accounts", "There is no page 7").await;
    browser.open(&office.portal("/accounts/999999")).await;
    tour.look("no such account", "There is no such account").await;

    browser.open(&office.portal("/accounts?open=account")).await;
    tour.look_everywhere("new account", "As it stands on invoices").await;
    browser.fill("#rpm", "many").await;
    browser.follow("#new-account form button").await;
    tour.look_everywhere("new account with errors", "to put right").await;
    assert_eq!(browser.status().await, 422);

    let account = format!("/accounts/{}", past.brightwater.account);
    an_account(&office, &browser, &mut tour, &account).await;
    browser.open(&office.portal(&account)).await;
    browser.press("section[aria-labelledby=close] summary").await;
    browser.follow("section[aria-labelledby=close] button").await;
    tour.look_everywhere("closed account", "Closed").await;
    at_the_end(&browser, tour).await;
}

async fn an_account(office: &Office, browser: &Browser, tour: &mut Tour<'_>, account: &str) {
    let account = office.portal(account);
    browser.open(&account).await;
    tour.look_everywhere("account", "claims intake, production").await;
    tour.picture("10-account").await;
    open_details(browser).await;
    tour.look_everywhere("account with open forms", "Save address and e-mail").await;
    for (form, field, wrong) in [
        ("limits", "#rpm", "0"),
        ("billing", "#email", "not an address"),
        ("new-key", "#label", &"long ".repeat(60)),
    ] {
        browser.open(&account).await;
        browser.press(&format!("section[aria-labelledby={form}] summary")).await;
        browser.fill(field, wrong).await;
        browser.follow(&format!("section[aria-labelledby={form}] form button")).await;
        assert_eq!(browser.status().await, 422, "{form}");
        assert!(browser.title().await.starts_with("Error: "), "{form}");
        tour.look_everywhere(&format!("{form} with an error"), BRIGHTWATER).await;
    }
    browser.open(&account).await;
    browser.follow("tbody a[href*='key=']").await;
    open_details(browser).await;
    tour.look_everywhere("card of a key", "It cannot be undone").await;

    browser.open(&account).await;
    browser.press("section[aria-labelledby=new-key] summary").await;
    browser.fill("#label", "second server").await;
    browser.follow("section[aria-labelledby=new-key] form button").await;
    tour.look_everywhere("new key", "Copy it now").await;
}
