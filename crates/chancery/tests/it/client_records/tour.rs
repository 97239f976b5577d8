//! Every page of client records, of the team and of the audit, in every state, looked at (`crate::tour`). `make screenshots`
//! pictures those that docs/portal.md shows.

use super::{number, open_as};
use crate::browser::{Browser, Screen};
use crate::office::{Office, Somebody};
use crate::tour::Tour;

/// Has a note, a dispute and letters.
const CLIENT: &str = "Harbour Lane Bakery";

fn tour_of(browser: &Browser) -> Tour<'_> {
    Tour::of(browser, Screen::Wide, "portal")
}

async fn client_called(person: &Somebody, name: &str) -> i64 {
    let clients = person.clients().await;
    number(clients.iter().find(|client| client["name"] == name).unwrap())
}

#[tokio::test]
async fn the_pages_of_a_consultant_keep_nobody_out() {
    let office = Office::open();
    let (maya, ruth) = (office.sign_in("maya").await, office.sign_in("ruth").await);
    let client = client_called(&maya, CLIENT).await;
    let record = format!("/clients/{client}");
    let browser = Browser::start().await;
    let mut tour = tour_of(&browser);

    open_as(&office, &browser, &maya, "/clients").await;
    tour.look_everywhere("list", CLIENT).await;
    tour.picture("01-list").await;
    for (page, path, text) in [
        ("empty search", "/clients?q=zeppelin", "Nothing matches “zeppelin”"),
        ("empty shelf", "/clients?archived=1", "Nothing is archived"),
        ("past the last page", "/clients?page=99", "There is no page 99"),
        ("address not read", "/clients?page=x", "This address cannot be read"),
        ("new client", "/clients/new", "Only the name is needed now"),
        ("not yours", "/clients/999999", "You cannot open this page"),
        ("sessions", "/sessions", "Your sessions"),
    ] {
        browser.open(&office.portal(path)).await;
        tour.look_everywhere(page, text).await;
    }

    browser.open(&office.portal(&record)).await;
    tour.look_everywhere("record", CLIENT).await;
    tour.picture("02-record").await;
    for tab in ["notes", "disputes", "letters", "archived"] {
        browser.open(&office.portal(&format!("{record}?tab={tab}"))).await;
        tour.look(tab, CLIENT).await;
    }
    browser.script("document.querySelector('#keys').open = true").await;
    tour.look_everywhere("keys", "to the search").await;
    for (form, text) in [
        ("facts", "Save facts"),
        ("note", "Save note"),
        ("dispute", "Save dispute"),
        ("letter", "Save letter"),
    ] {
        browser.open(&office.portal(&format!("{record}?open={form}"))).await;
        tour.look_everywhere(&format!("open form {form}"), text).await;
    }
    browser.fill("#draft-purpose", "Thank her for the meeting of yesterday.").await;
    browser.fill("#draft-max", "16").await;
    browser.press("[data-draft]").await;
    tour.look_everywhere("drafted letter", "The draft is in the editor.").await;
    forms_with_something_to_put_right(&office, &browser, &mut tour, &record).await;
    a_conflict_and_its_versions(&office, &browser, &mut tour, &record, [&maya, &ruth]).await;

    browser.open(&office.portal(&record)).await;
    browser.press(".history form[action$='/archive'] button").await;
    tour.look_everywhere("archived client", "Restore client").await;
    browser.open(&office.portal("/clients?archived=1")).await;
    tour.look("shelf", CLIENT).await;
    assert_eq!(browser.complaints().await, Vec::<String>::new());
    tour.end();
}

async fn forms_with_something_to_put_right(
    office: &Office,
    browser: &Browser,
    tour: &mut Tour<'_>,
    record: &str,
) {
    browser.open(&office.portal(&format!("{record}?open=note"))).await;
    browser.press(".editor button.button-primary").await;
    tour.look_everywhere("note with errors", "to put right").await;
    assert!(browser.title().await.starts_with("Error: "));
    browser.open(&office.portal("/clients/new")).await;
    browser.fill("#email", "not an address").await;
    browser.press("main form button.button-primary").await;
    tour.look_everywhere("new client with errors", "to put right").await;
    assert_eq!(browser.status().await, 422);
    browser.open(&office.portal(&format!("{record}?open=facts"))).await;
    browser.fill("#name", "").await;
    browser.press("#facts-form button.button-primary").await;
    tour.look("facts with an error", "Edit facts").await;
    assert_eq!(browser.status().await, 422);
}

/// Ruth saves while Maya writes.
async fn a_conflict_and_its_versions(
    office: &Office,
    browser: &Browser,
    tour: &mut Tour<'_>,
    record: &str,
    [maya, ruth]: [&Somebody; 2],
) {
    let letters = maya.json(record).await.value()["draft_letters"].take();
    let (id, letter) = (&letters[0]["id"], &letters[1]);
    browser.open(&office.portal(&format!("{record}?open=entry-{id}#entry-{id}"))).await;
    tour.look_everywhere("editor", "Save letter").await;
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
    tour.look_everywhere("conflict", "Save mine over theirs").await;
    assert_eq!(browser.status().await, 409);
    tour.picture_from("04-conflict", ".entry-open").await;
    browser.press(".editor button.button-primary").await;
    browser.shows("3 versions").await;
    browser.open(&office.portal(&format!("{record}/entries/{id}/versions"))).await;
    browser.script("document.querySelectorAll('details').forEach(details => { details.open = true })").await;
    tour.look_everywhere("versions of a letter", "Version 3").await;

    browser.open(&office.portal(&format!("{record}?open=facts"))).await;
    browser.fill("#contact", "Priya Raman and her brother").await;
    let facts = [("version", "1"), ("name", CLIENT), ("contact", "Priya Raman"), ("address", "Boston")];
    assert_eq!(ruth.post(record, &facts).await.status.as_u16(), 303);
    browser.press("#facts-form button.button-primary").await;
    tour.look_everywhere("conflict of facts", "Save mine over theirs").await;
    browser.press("#facts-form button.button-primary").await;
    browser.shows("Now version 3").await;
    browser.open(&office.portal(&format!("{record}/versions"))).await;
    tour.look_everywhere("versions of the facts", "Version 3").await;
}

#[tokio::test]
async fn the_pages_of_a_partner_keep_nobody_out() {
    let office = Office::open();
    let (maya, ruth) = (office.sign_in("maya").await, office.sign_in("ruth").await);
    let omar = office.sign_in("omar").await;
    let client = client_called(&maya, CLIENT).await;
    assert_eq!(maya.page("/clients/999999").await.status.as_u16(), 403);
    let browser = Browser::start().await;
    let mut tour = tour_of(&browser);

    open_as(&office, &browser, &ruth, "/clients").await;
    tour.look_everywhere("list of all", "Every owner").await;
    browser.open(&office.portal(&format!("/clients/{client}"))).await;
    tour.look_everywhere("record of another", "Reassign").await;
    for (page, path, text) in [
        ("second page", "/clients?page=2", "of 38"),
        ("new client for somebody", "/clients/new", "Whose client it is"),
        ("no such client", "/clients/999999", "There is no such client"),
        ("audit of nothing", "/audit?client=424242", "Nothing fits these filters"),
        ("audit with errors", "/audit?client=x&from=y", "2 filters cannot be read"),
        ("usage", "/usage", "days in UTC"),
        ("usage with errors", "/usage?account=x&month=y", "Two things to put right"),
    ] {
        browser.open(&office.portal(path)).await;
        tour.look_everywhere(page, text).await;
    }

    for path in ["/clients", "/clients/1001", "/clients/1002", "/clients/1003", "/clients/1004"] {
        maya.page(path).await;
        omar.page(path).await;
    }
    browser.open(&office.portal("/audit")).await;
    tour.look_everywhere("audit", "Refused").await;
    tour.picture("06-audit").await;

    browser.open(&office.portal("/team")).await;
    tour.look_everywhere("team", "omar@example.com").await;
    tour.picture("05-team").await;
    let people = ruth.json("/team").await.value();
    for person in people["people"].as_array().unwrap() {
        browser.open(&office.portal(&format!("/team?person={}", person["id"]))).await;
        browser
            .script("document.querySelectorAll('details').forEach(details => { details.open = true })")
            .await;
        tour.look_everywhere(&format!("team {}", person["email"]), "Sessions").await;
    }
    let omar =
        people["people"].as_array().unwrap().iter().find(|person| person["email"] == "omar@example.com");
    let omar = omar.unwrap()["id"].to_string();
    assert_eq!(ruth.post("/team/remove", &[("person", &omar)]).await.status.as_u16(), 303);
    browser.open(&office.portal(&format!("/team?person={omar}&done=removed"))).await;
    tour.look_everywhere("somebody removed", "Let them in again").await;
    browser.open(&office.portal("/team")).await;
    tour.look("team with somebody removed", "Still owns clients").await;

    assert_eq!(browser.complaints().await, Vec::<String>::new());
    tour.end();
}
