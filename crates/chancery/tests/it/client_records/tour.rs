//! Checks every page of client records, the team and the audit log in every state (`crate::tour`). `make screenshots` takes
//! those shown in docs/portal.md.

use super::{number, open_as};
use crate::browser::{Browser, Screen};
use crate::office::{Office, SignedInUser};
use crate::tour::Tour;

/// Has a note, a dispute and letters.
const CLIENT: &str = "Harbour Lane Bakery";

fn tour_of(browser: &Browser) -> Tour<'_> {
    Tour::of(browser, Screen::Wide, "portal")
}

async fn client_called(person: &SignedInUser, name: &str) -> i64 {
    let clients = person.clients().await;
    number(clients.iter().find(|client| client["name"] == name).unwrap())
}

#[tokio::test]
async fn consultant_pages_are_accessible() {
    let office = Office::open();
    let (maya, ruth) = (office.sign_in("maya").await, office.sign_in("ruth").await);
    let client = client_called(&maya, CLIENT).await;
    let record = format!("/clients/{client}");
    let browser = Browser::start().await;
    let mut tour = tour_of(&browser);

    open_as(&office, &browser, &maya, "/clients").await;
    tour.look("list", CLIENT).await;
    tour.picture("01-list").await;
    browser.open(&office.portal("/home")).await;
    tour.look("home", "Disputes due").await;
    for (page, path, text) in [
        ("empty search", "/clients?q=zeppelin", "Nothing matches “zeppelin”"),
        ("search of entries", "/clients?q=credit", "Credit for September"),
        ("empty archive", "/clients?archived=1", "No archived clients"),
        ("past the last page", "/clients?page=99", "No page 99"),
        ("overdue", "/clients?disputes=overdue", "Dispute overdue"),
        ("invalid link", "/clients?page=x", "Invalid link"),
        ("new client", "/clients/new", "Only the name is required."),
        ("not yours", "/clients/999999", "You cannot open this page"),
        ("sessions", "/sessions", "Your sessions"),
    ] {
        browser.open(&office.portal(path)).await;
        tour.look(page, text).await;
    }

    browser.open(&office.portal(&record)).await;
    tour.look("record", CLIENT).await;
    tour.picture("02-record").await;
    for tab in ["notes", "disputes", "letters", "archived"] {
        browser.open(&office.portal(&format!("{record}?tab={tab}"))).await;
        tour.look(tab, CLIENT).await;
    }
    browser.script("document.querySelector('#keys').open = true").await;
    tour.look("keys", "Search").await;
    for (form, text) in [
        ("facts", "Save details"),
        ("note", "Save note"),
        ("dispute", "Save dispute"),
        ("letter", "Save letter"),
    ] {
        browser.open(&office.portal(&format!("{record}?open={form}"))).await;
        tour.look(&format!("open form {form}"), text).await;
    }
    browser.fill("#draft-purpose", "Thank her for the meeting of yesterday.").await;
    browser.fill("#draft-max", "16").await;
    browser.press("[data-draft]").await;
    tour.look("unfinished draft", "Draft unfinished. Cost: ").await;
    forms_with_something_to_put_right(&office, &browser, &mut tour, &record).await;
    visit_conflict_and_history(&office, &browser, &mut tour, &record, [&maya, &ruth]).await;

    browser.open(&office.portal(&record)).await;
    browser.press(".history form[action$='/archive'] button").await;
    tour.look("archived client", "Restore client").await;
    browser.open(&office.portal("/clients?archived=1")).await;
    tour.look("archive", CLIENT).await;
    visit_profile(&office, &browser, &mut tour).await;
    assert_eq!(browser.console_errors().await, Vec::<String>::new());
    tour.end();
}

async fn visit_profile(office: &Office, browser: &Browser, tour: &mut Tour<'_>) {
    browser.open(&office.portal("/profile")).await;
    tour.look("profile", "Your profile").await;
    tour.picture("11-profile").await;
    browser.fill("#name", "maya@home").await;
    browser.press("main form button.button-primary").await;
    tour.look("profile with an error", "A name cannot contain").await;
    assert_eq!(browser.status().await, 422);
    browser.fill("#name", "Maya Castellanos").await;
    browser.press("main form button.button-primary").await;
    tour.look("saved profile", "Profile saved.").await;
    assert_eq!(browser.text(".bar-person").await, "Maya Castellanos");
}

async fn forms_with_something_to_put_right(
    office: &Office,
    browser: &Browser,
    tour: &mut Tour<'_>,
    record: &str,
) {
    browser.open(&office.portal(&format!("{record}?open=note"))).await;
    browser.press(".editor button.button-primary").await;
    tour.look("note with errors", "Fix 2 problems").await;
    assert!(browser.title().await.starts_with("Error: "));
    browser.open(&office.portal("/clients/new")).await;
    browser.fill("#email", "not an address").await;
    browser.press("main form button.button-primary").await;
    tour.look("new client with errors", "Fix 2 problems").await;
    assert_eq!(browser.status().await, 422);
    browser.open(&office.portal(&format!("{record}?open=facts"))).await;
    browser.fill("#name", "").await;
    browser.press("#facts-form button.button-primary").await;
    tour.look("facts with an error", "Edit details").await;
    assert_eq!(browser.status().await, 422);
}

/// Ruth saves while Maya is editing.
async fn visit_conflict_and_history(
    office: &Office,
    browser: &Browser,
    tour: &mut Tour<'_>,
    record: &str,
    [maya, ruth]: [&SignedInUser; 2],
) {
    let letters = maya.json(record).await.value()["draft_letters"].take();
    let (id, letter) = (&letters[0]["id"], &letters[1]);
    browser.open(&office.portal(&format!("{record}?open=entry-{id}#entry-{id}"))).await;
    tour.look("editor", "Save letter").await;
    tour.picture_from("03-editor", ".entry-open").await;

    let (id, at) = (&letter["id"], letter["at"].as_str().unwrap());
    browser.open(&office.portal(&format!("{record}?open=entry-{id}#entry-{id}"))).await;
    browser.fill("#title", "Plan for the autumn, with dates").await;
    let text = format!("{}\n\nThe dates are enclosed.", letter["text"].as_str().unwrap());
    let version = letter["version"].to_string();
    let form = [
        ("kind", "draft_letter"),
        ("version", &version),
        ("title", letter["title"].as_str().unwrap()),
        ("text", &text),
        ("at", &at[..16]),
    ];
    assert_eq!(ruth.post(&format!("{record}/entries/{id}"), &form).await.status.as_u16(), 303);
    browser.press(".editor button.button-primary").await;
    tour.look("conflict", "Continue editing").await;
    assert_eq!(browser.status().await, 409);
    tour.picture_from("04-conflict", ".entry-open").await;
    browser.follow(".editor button.button-primary").await;
    tour.look("merging", "Not saved yet.").await;
    browser.follow(".editor button.button-primary").await;
    browser.shows("3 versions").await;
    browser.open(&office.portal(&format!("{record}/entries/{id}/versions"))).await;
    browser.script("document.querySelectorAll('details').forEach(details => { details.open = true })").await;
    tour.look("versions of a letter", "Version 3").await;

    browser.open(&office.portal(&format!("{record}?open=facts"))).await;
    // The form has what was typed into it before, an empty name.
    browser.fill("#name", CLIENT).await;
    browser.fill("#contact", "Priya Raman and her brother").await;
    let details = [("version", "1"), ("name", CLIENT), ("contact", "Priya Raman"), ("address", "Boston")];
    assert_eq!(ruth.post(record, &details).await.status.as_u16(), 303);
    browser.press("#facts-form button.button-primary").await;
    tour.look("conflict of facts", "Continue editing").await;
    browser.follow("#facts-form button.button-danger").await;
    browser.shows("Version 3").await;
    browser.open(&office.portal(&format!("{record}/versions"))).await;
    tour.look("versions of the facts", "Version 3").await;
}

#[tokio::test]
async fn partner_pages_are_accessible() {
    let office = Office::open();
    let (maya, ruth) = (office.sign_in("maya").await, office.sign_in("ruth").await);
    let omar = office.sign_in("omar").await;
    let client = client_called(&maya, CLIENT).await;
    assert_eq!(maya.page("/clients/999999").await.status.as_u16(), 403);
    let browser = Browser::start().await;
    let mut tour = tour_of(&browser);

    open_as(&office, &browser, &ruth, "/clients").await;
    tour.look("list of all", "All owners").await;
    browser.open(&office.portal("/home")).await;
    tour.look("home of the firm", "Letters not sent").await;
    browser.open(&office.portal(&format!("/clients/{client}"))).await;
    tour.look("record of another", "Reassign").await;
    for (page, path, text) in [
        ("second page", "/clients?page=2", "of 38"),
        ("new client of another owner", "/clients/new", "The consultant who works with this client."),
        ("no such client", "/clients/999999", "Client not found"),
        ("audit of nothing", "/audit?client=424242", "No entries match these filters"),
        ("audit with errors", "/audit?client=x&from=y", "Fix 2 problems"),
    ] {
        browser.open(&office.portal(path)).await;
        tour.look(page, text).await;
    }

    for path in ["/clients", "/clients/1001", "/clients/1002", "/clients/1003", "/clients/1004"] {
        maya.page(path).await;
        omar.page(path).await;
    }
    // The page remembers the filter above.
    browser.open(&office.portal("/audit?clear=1")).await;
    tour.look("audit", "Denied").await;
    tour.picture("06-audit").await;

    browser.open(&office.portal("/team")).await;
    tour.look("team", "omar@example.com").await;
    tour.picture("05-team").await;
    let invalid = ruth.post("/team/invitations", &[("email", "nora"), ("role", "partner")]).await;
    assert_eq!(invalid.status.as_u16(), 422);
    let nora = ruth.post("/team/invitations", &[("email", "nora@example.com"), ("role", "partner")]).await;
    assert_eq!(nora.status.as_u16(), 303);
    browser.open(&office.portal("/team?done=invited")).await;
    tour.look("invitations", "Send again").await;
    tour.picture_from("12-invitations", "#invitations").await;
    browser.fill("#email", "nora").await;
    browser.press("#invitations .card button").await;
    tour.look("invitation with an error", "exactly one").await;
    assert_eq!(browser.status().await, 422);
    let people = ruth.json("/team").await.value();
    for person in people["people"].as_array().unwrap() {
        browser.open(&office.portal(&format!("/team?person={}&open=role", person["id"]))).await;
        browser
            .script("document.querySelectorAll('details').forEach(details => { details.open = true })")
            .await;
        tour.look(&format!("team {}", person["email"]), "Sessions").await;
    }
    browser.open(&office.portal("/clients/export")).await;
    tour.look("export", "Download CSV").await;
    let omar =
        people["people"].as_array().unwrap().iter().find(|person| person["email"] == "omar@example.com");
    let omar = omar.unwrap()["id"].to_string();
    browser.open(&office.portal(&format!("/team?person={omar}&open=factors"))).await;
    tour.look("reset of second factors", "Make sure that").await;
    tour.picture_from("13-reset-factors", "#factors").await;
    browser.follow("form[action='/team/remove'] button").await;
    tour.look("confirmation of a removal", "Remove from the team?").await;
    browser.follow("form[action='/team/remove'] button").await;
    browser.shows("was removed and can no longer sign in").await;
    browser.open(&office.portal(&format!("/team?person={omar}&done=removed"))).await;
    tour.look("removed person", "Access").await;
    browser.open(&office.portal("/team")).await;
    tour.look("team with a removed person", "Owns clients").await;

    assert_eq!(browser.console_errors().await, Vec::<String>::new());
    tour.end();
}
