//! Client records, the team and the audit log in a browser without scripts.

use super::open_as;
use crate::browser::Browser;
use crate::office::{Office, SignedInUser};

#[tokio::test]
async fn client_records_work_without_scripts() {
    let office = Office::open();
    let (maya, omar, ruth) =
        (office.sign_in("maya").await, office.sign_in("omar").await, office.sign_in("ruth").await);
    let browser = Browser::start().await;
    browser.switch_scripts_off().await;
    open_as(&office, &browser, &ruth, "/clients").await;
    assert_eq!(
        browser.script("return typeof htmx + document.querySelector('#keys').hidden").await,
        "undefinedtrue"
    );

    pages_are_turned_sorted_and_searched(&office, &browser).await;
    maya.use_in_browser(&browser).await;
    let record = create_client_in_browser(&office, &browser).await;
    add_edit_and_conflict_note(&office, &browser, &record, &ruth).await;
    draft_letter_in_browser(&office, &browser, &record).await;
    it_is_archived_and_restored(&office, &browser, &record).await;
    ruth.use_in_browser(&browser).await;
    it_gets_another_owner(&office, &browser, &record, [&maya, &omar]).await;
    change_role_in_browser(&office, &browser, &omar).await;
    filter_audit_in_browser(&office, &browser).await;
}

async fn pages_are_turned_sorted_and_searched(office: &Office, browser: &Browser) {
    browser.shows("1–25 of 38").await;
    browser.follow("#page-next").await;
    browser.wait_for_url(&office.portal("/clients?page=2")).await;
    browser.shows("26–38 of 38").await;
    browser.follow("#sort-name").await;
    browser.wait_for_url(&office.portal("/clients?sort=name")).await;
    assert_eq!(browser.text("tbody [data-row]").await, "Abbots Mill Brewery");
    browser.follow("#sort-name").await;
    browser.wait_for_url(&office.portal("/clients?sort=-name")).await;
    browser.fill("#q", "garage").await;
    browser.follow("form.search button").await;
    browser.wait_for_url(&office.portal("/clients?q=garage")).await;
    assert_eq!(browser.text("tbody [data-row]").await, "D'Angelo's Garage");
    assert!(browser.url().await.as_str().contains("sort=-name"), "the order stays");
}

/// Returns the client's path.
async fn create_client_in_browser(office: &Office, browser: &Browser) -> String {
    browser.open(&office.portal("/clients/new")).await;
    browser.follow("main form button.button-primary").await;
    assert_eq!(browser.status().await, 422);
    browser.fill("#name", "Plain Paper Mill").await;
    browser.fill("#contact", "Nora Quill").await;
    browser.follow("main form button.button-primary").await;
    let url = browser.wait_for_url(&office.portal("/clients/1039")).await;
    assert_eq!(browser.text("h1").await, "Plain Paper Mill");
    url.path().to_owned()
}

async fn add_edit_and_conflict_note(office: &Office, browser: &Browser, record: &str, ruth: &SignedInUser) {
    browser.follow("a[href*='open=note']").await;
    browser.fill("#title", "First meeting").await;
    browser.fill("#text", "They like it plain.").await;
    browser.follow(".editor button.button-primary").await;
    browser.shows("They like it plain.").await;

    let note = ruth.json(record).await.value()["meeting_notes"][0].take();
    browser.follow("a[data-open]").await;
    browser.wait_for_url(&office.portal(&format!("{record}?open=entry-{}", note["id"]))).await;
    browser.fill("#text", "They like it plain, and white.").await;
    browser.follow(".editor button.button-primary").await;
    browser.shows("and white.").await;
    browser.shows("2 versions").await;

    browser.follow("a[data-open]").await;
    browser.fill("#text", "They like it plain, and grey.").await;
    let at = &note["at"].as_str().unwrap()[..16];
    let ruths_edit = [
        ("kind", "meeting_note"),
        ("version", "2"),
        ("title", "First meeting"),
        ("text", "They like it plain, and blue."),
        ("at", at),
    ];
    let saved = ruth.post(&format!("{record}/entries/{}", note["id"]), &ruths_edit).await;
    assert_eq!(saved.status.as_u16(), 303, "{}", saved.body);
    browser.follow(".editor button.button-primary").await;
    browser.shows("Someone else edited this.").await;
    assert_eq!(browser.status().await, 409);
    // The form is below other entries, so the page scrolls to it.
    browser.until(&format!("document.activeElement.id === 'entry-{}'", note["id"])).await;
    browser.shows("blue.").await;
    let mine = browser.script("return document.querySelector('#text').value").await;
    assert_eq!(mine, "They like it plain, and grey.");
    let danger = browser.text(".editor .button-danger").await;
    assert_eq!(danger, "Overwrite saved version", "it is not the primary button");
    browser.follow(".editor button.button-primary").await;
    browser.shows("Not saved yet.").await;
    let mine = browser.script("return document.querySelector('#text').value").await;
    assert_eq!(mine, "They like it plain, and grey.");
    browser.follow(".editor button.button-primary").await;
    browser.shows("They like it plain, and grey.").await;
    browser.follow(".notice button").await;
    browser.shows("Version restored.").await;
    browser.shows("They like it plain, and blue.").await;
    browser.follow("a[href$='/versions']:not([href='/clients/1039/versions'])").await;
    browser.shows("Version 5").await;
    // The second on the page is the one before the current version.
    browser.follow("article:nth-of-type(2) form button").await;
    browser.shows("They like it plain, and grey.").await;
}

/// Uses the real model; the draft comes back in the page and is saved like any other text.
async fn draft_letter_in_browser(office: &Office, browser: &Browser, record: &str) {
    browser.open(&office.portal(&format!("{record}?open=letter"))).await;
    browser.fill("#title", "Thank you").await;
    browser.follow("[data-draft]").await;
    assert_eq!(browser.status().await, 422, "it does not say what it is for");
    browser.fill("#draft-purpose", "Thank them for the first meeting.").await;
    browser.fill("#draft-max", "16").await;
    browser.follow("[data-draft]").await;
    browser.shows("Total").await;
    browser.shows("Draft unfinished.").await;
    let fields =
        "return [document.querySelector('#title').value, document.querySelector('#text').value.length > 0]";
    assert_eq!(browser.script(fields).await, serde_json::json!(["Thank you", true]));
    browser.follow("[data-rewrite][value=formal]").await;
    assert_eq!(browser.status().await, 200);
    browser.shows("Total").await;
    browser.follow(".editor button.button-primary").await;
    browser.wait_for_url(&office.portal(&format!("{record}?done="))).await;
    browser.shows("Thank you").await;
}

async fn it_is_archived_and_restored(office: &Office, browser: &Browser, record: &str) {
    browser.open(&office.portal(record)).await;
    browser.follow("#tab-notes").await;
    browser.follow("article form[action$='/archive'] button").await;
    browser.shows("Entry archived.").await;
    browser.follow(".notice button").await;
    browser.shows("Entry restored.").await;
    browser.follow("#tab-notes").await;
    browser.follow("article form[action$='/archive'] button").await;
    browser.shows("Entry archived.").await;
    browser.follow("#tab-archived").await;
    browser.follow("article form[action$='/restore'] button").await;
    browser.shows("They like it plain, and grey.").await;
    browser.follow(".history form[action$='/archive'] button").await;
    browser.shows("Restore client").await;
    browser.open(&office.portal("/clients?q=plain")).await;
    browser.shows("Nothing matches").await;
    browser.open(&office.portal("/clients?archived=1")).await;
    browser.follow("tbody [data-row]").await;
    browser.follow(".history form[action$='/restore'] button").await;
    browser.shows("Archive client").await;
}

async fn it_gets_another_owner(
    office: &Office,
    browser: &Browser,
    record: &str,
    [maya, omar]: [&SignedInUser; 2],
) {
    browser.open(&office.portal(record)).await;
    browser.fill_choice("#new-owner", &omar.email).await;
    browser.follow("form[action$='/reassign'] button").await;
    browser.wait_for_url(&office.portal(&format!("{record}?done="))).await;
    assert_eq!(maya.json(record).await.status.as_u16(), 403);
    assert_eq!(omar.json(record).await.status.as_u16(), 200);
}

async fn change_role_in_browser(office: &Office, browser: &Browser, omar: &SignedInUser) {
    browser.open(&office.portal("/team")).await;
    browser.press_link("omar@example.com").await;
    browser.shows("Make omar@example.com a partner").await;
    browser.follow("section[aria-labelledby=role] a[href*='open=role']").await;
    browser.follow("section[aria-labelledby=role] button").await;
    browser.shows("omar@example.com is now a partner.").await;
    assert_eq!(omar.json("/team").await.status.as_u16(), 200);
}

async fn filter_audit_in_browser(office: &Office, browser: &Browser) {
    browser.open(&office.portal("/audit")).await;
    browser.fill_choice("#person", "maya@example.com").await;
    browser.fill_choice("#decision", "Denied").await;
    browser.fill("#client", "1039").await;
    browser.follow(".filter-form button").await;
    browser.wait_for_url(&office.portal("/audit?person=")).await;
    let rows =
        browser.script("return [...document.querySelectorAll('tbody tr')].map(row => row.innerText)").await;
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 1, "{rows:?}");
    let row = rows[0].as_str().unwrap();
    assert!(row.contains("maya@example.com") && row.contains("1039") && row.contains("Denied"), "{row}");
}
