//! Typed text is never lost: it is stored while people type, comes back after a reload or an ended session, and survives drafts.

use super::{open_as, ready};
use crate::browser::Browser;
use crate::office::{Office, SignedInUser};
use serde_json::json;

const TEXT: &str = "return document.querySelector('#text').value";
const STORED: &str = "A copy of your text was stored at ";
const RESTORED: &str = "Restored unsaved text";

#[tokio::test]
async fn typed_text_is_never_lost() {
    let office = Office::open();
    let (maya, ruth) = (office.sign_in("maya").await, office.sign_in("ruth").await);
    let browser = Browser::start().await;

    letter_editor_is_tall_and_text_survives_a_reload(&office, &browser, &maya).await;
    estimate_follows_the_number(&browser).await;
    own_text_survives_drafts_and_undo_reverts_them(&browser).await;
    confirmation_is_on_screen_after_saving(&office, &browser).await;
    assert_eq!(browser.console_errors().await, Vec::<String>::new());
    text_comes_back_after_an_ended_session(&office, &browser, &ruth).await;
}

async fn letter_editor_is_tall_and_text_survives_a_reload(
    office: &Office,
    browser: &Browser,
    maya: &SignedInUser,
) {
    open_as(office, browser, maya, "/clients/1037?open=letter").await;
    let height = browser.script("return document.querySelector('#text').offsetHeight").await;
    assert!(height.as_i64().unwrap() >= 440, "the editor is {height} px tall");
    browser.fill("#text", "My own words.").await;
    browser.shows(STORED).await;
    browser.open(&office.portal("/clients/1037?open=letter")).await;
    ready(browser).await;
    browser.shows(RESTORED).await;
    assert_eq!(browser.script(TEXT).await, "My own words.");
}

async fn estimate_follows_the_number(browser: &Browser) {
    browser.fill("#draft-max", "600").await;
    browser.shows(" for 600 tokens of output and up to ").await;
    let at_600 = browser.text("#draft-max-hint").await;
    browser.fill("#draft-max", "16").await;
    browser.shows(" for 16 tokens of output and up to ").await;
    let at_16 = browser.text("#draft-max-hint").await;
    let cost = |text: &str| text.split(" for ").next().unwrap().to_owned();
    assert_ne!(cost(&at_16), cost(&at_600));
    browser.fill("#draft-max", "abc").await;
    browser.shows("Enter a whole number from 16 to 4,000.").await;
}

/// Uses the real model.
async fn own_text_survives_drafts_and_undo_reverts_them(browser: &Browser) {
    browser.fill("#draft-purpose", "Thank her for the meeting of yesterday, at length.").await;
    browser.fill("#draft-max", "2000").await;
    browser.press("[data-draft]").await;
    browser.until("document.querySelector('#text').value !== 'My own words.'").await;
    browser.press("[data-draft-stop]").await;
    browser.shows("Stopped. The partial draft is in the editor and is billed.").await;
    let undone = "const text = document.querySelector('#text'); const draft = text.value; text.focus(); \
        document.execCommand('undo'); const own = text.value; document.execCommand('redo'); \
        return [own, text.value === draft && draft !== own]";
    assert_eq!(browser.script(undone).await, json!(["My own words.", true]));

    browser.fill("#draft-max", "abc").await;
    browser.press("[data-draft]").await;
    browser.until("document.querySelector('#draft-max[aria-invalid=true]')").await;
    let state = "const field = document.activeElement; const described = field.getAttribute('aria-describedby'); \
        return [field.id, described.split(' ').some((id) => document.getElementById(id).matches('.error')), \
        document.querySelector('[data-draft-back]').hidden]";
    assert_eq!(browser.script(state).await, json!(["draft-max", true, false]));
    browser.press("[data-draft-back]").await;
    assert_eq!(browser.script(TEXT).await, "My own words.");
}

async fn confirmation_is_on_screen_after_saving(office: &Office, browser: &Browser) {
    browser.fill("#title", "Thank you").await;
    browser.follow(".editor button.button-primary").await;
    browser.shows("Letter added.").await;
    // Saved text is not offered again.
    browser.open(&office.portal("/clients/1037?open=letter")).await;
    ready(browser).await;
    assert!(!browser.page_text().await.contains(RESTORED));

    browser.open(&office.portal("/clients/1037")).await;
    ready(browser).await;
    browser.follow(".timeline > li:last-child a[data-open]").await;
    browser.fill("#title", "A clearer title").await;
    browser.follow(".editor button.button-primary").await;
    browser.shows("Saved.").await;
    browser
        .until(
            "(() => { const { top, bottom } = document.querySelector('.entry-notice').getBoundingClientRect(); \
            return top >= 0 && bottom <= innerHeight; })()",
        )
        .await;
}

async fn text_comes_back_after_an_ended_session(office: &Office, browser: &Browser, ruth: &SignedInUser) {
    browser.open(&office.portal("/clients/1037?open=note")).await;
    ready(browser).await;
    browser.fill("#title", "Half an hour").await;
    let people = ruth.json("/team").await.value();
    let id = people["people"].as_array().unwrap().iter().find(|one| one["email"] == "maya@example.com");
    let id = id.unwrap()["id"].to_string();
    assert_eq!(ruth.post("/team/sign-out", &[("person", &id)]).await.status.as_u16(), 303);
    browser.fill("#text", "Written when the session was over.").await;
    browser.follow(".editor button.button-primary").await;
    assert_eq!(browser.status().await, 401);
    browser.shows("Your text is stored.").await;
    let maya = office.sign_in("maya").await;
    maya.use_in_browser(browser).await;
    let link =
        browser.script("return document.querySelector('main a.button-primary').getAttribute('href')").await;
    assert_eq!(link, "/auth/sign-in?return_to=%2Fclients%2F1037%3Fopen%3Dnote");
    let typed = "return [document.querySelector('#title').value, document.querySelector('#text').value]";
    open_as(office, browser, &maya, "/clients/1037?open=note").await;
    browser.shows(RESTORED).await;
    assert_eq!(browser.script(typed).await, json!(["Half an hour", "Written when the session was over."]));
    browser.follow("form[data-discards] button").await;
    assert_eq!(browser.script(typed).await, json!(["", ""]));
}
