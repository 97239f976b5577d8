//! What scripts add: a list that filters as you type, a warning about unsaved changes, and a redirect when the session has ended.

use super::{open_as, ready};
use crate::browser::Browser;
use crate::office::Office;
use serde_json::json;

/// Records whether the page asks for confirmation when it is left.
const WATCH: &str = "sessionStorage.removeItem('asked'); addEventListener('beforeunload', (event) => \
    sessionStorage.setItem('asked', String(event.defaultPrevented)))";
const CONFIRMATION_SHOWN: &str = "return sessionStorage.getItem('asked')";

#[tokio::test]
async fn scripts_enhance_pages_without_losing_data() {
    let office = Office::open();
    let (maya, ruth) = (office.sign_in("maya").await, office.sign_in("ruth").await);
    let browser = Browser::start().await;
    open_as(&office, &browser, &maya, "/clients").await;

    client_list_filters_while_typing(&browser).await;
    search_marks_matches_in_entries_and_opens_them(&office, &browser).await;
    tabs_and_sort_orders_swap_part_of_the_page(&office, &browser).await;
    unsaved_changes_are_guarded(&office, &browser).await;
    draft_fills_the_editor_and_counts_as_unsaved(&office, &browser).await;
    edit_replaces_the_selection_only(&office, &browser).await;
    assert_eq!(browser.console_errors().await, Vec::<String>::new());

    // The session ends while the list is open: the next partial request redirects the whole page to sign-in.
    open_as(&office, &browser, &maya, "/clients").await;
    let people = ruth.json("/team").await.value();
    let id = people["people"].as_array().unwrap().iter().find(|one| one["email"] == "maya@example.com");
    let id = id.unwrap()["id"].to_string();
    assert_eq!(ruth.post("/team/sign-out", &[("person", &id)]).await.status.as_u16(), 303);
    browser.type_keys("/bakery").await;
    browser.wait_for_url(&format!("{}/sign-in", office.server.auth)).await;
    browser.shows("Sign in").await;
    let (title, page) = (browser.title().await, browser.page_text().await);
    assert!(!title.contains("Clients") && !page.contains("Harbour"), "{title}: {page}");
}

async fn client_list_filters_while_typing(browser: &Browser) {
    browser.script("window.isTheSamePage = true").await;
    browser.type_keys("/harb").await;
    browser.until("document.querySelectorAll('[data-row]').length === 1").await;
    let state = "return [document.activeElement.id, document.querySelector('#q').value, location.search, \
        document.querySelector('#total').innerText, document.querySelector('[data-row]').innerText, window.isTheSamePage]";
    let expected = json!(["q", "harb", "?q=harb&disputes=", "1", "Harbour Lane Bakery", true]);
    assert_eq!(browser.script(state).await, expected);
    browser.type_keys("zzz").await;
    browser.shows("Nothing matches “harbzzz”").await;
    assert_eq!(
        browser.script("return [document.activeElement.id, location.search]").await,
        json!(["q", "?q=harbzzz&disputes="])
    );
    // The URL that the script wrote also works on reload.
    browser.script("location.reload()").await;
    browser.until("!window.isTheSamePage").await;
    ready(browser).await;
    browser.shows("Nothing matches “harbzzz”").await;
}

async fn search_marks_matches_in_entries_and_opens_them(office: &Office, browser: &Browser) {
    browser.open(&office.portal("/clients?q=credit")).await;
    ready(browser).await;
    let marks = "const marks = [...document.querySelectorAll('.found-in mark')]; \
        return [marks.length > 0, marks.every(mark => /^credit/i.test(mark.innerText))]";
    assert_eq!(browser.script(marks).await, json!([true, true]));
    let entry = browser.script("return document.querySelector('.found-in a').hash").await;
    browser.follow(".found-in a").await;
    browser.wait_for_url(&office.portal("/clients/1")).await;
    assert_eq!(browser.script("return location.hash").await, entry);
    let target = "return /credit/i.test(document.querySelector(':target').innerText)";
    assert_eq!(browser.script(target).await, true);
}

async fn tabs_and_sort_orders_swap_part_of_the_page(office: &Office, browser: &Browser) {
    browser.open(&office.portal("/clients")).await;
    ready(browser).await;
    browser.script("window.isTheSamePage = true").await;
    browser.press("#sort-name").await;
    browser.wait_for_url(&office.portal("/clients?sort=name")).await;
    browser.until("document.querySelector('th[aria-sort=ascending] #sort-name')").await;
    assert_eq!(
        browser.script("return [window.isTheSamePage, document.activeElement.id]").await,
        json!([true, "sort-name"])
    );
    browser.script("history.back()").await;
    browser.wait_for_url(&office.portal("/clients")).await;
    browser.until("!document.querySelector('th[aria-sort=ascending]')").await;

    browser.open(&office.portal("/clients/1037")).await;
    ready(browser).await;
    browser.script("window.isTheSamePage = true").await;
    browser.press("#tab-letters").await;
    browser.wait_for_url(&office.portal("/clients/1037?tab=letters")).await;
    browser.until("document.querySelector('#tab-letters[aria-current=page]')").await;
    let kinds = "return [window.isTheSamePage, new Set([...document.querySelectorAll('.timeline > li')].map(li => li.className)).size]";
    assert_eq!(browser.script(kinds).await, json!([true, 1]));
}

/// Uses the real model.
async fn draft_fills_the_editor_and_counts_as_unsaved(office: &Office, browser: &Browser) {
    browser.open(&office.portal("/clients/1037?open=letter")).await;
    ready(browser).await;
    browser.script(WATCH).await;
    browser.fill("#text", "My own words.").await;
    browser.press("[data-draft]").await;
    browser.until("document.querySelector('#draft-purpose[aria-invalid=true]')").await; // the purpose is missing
    assert_eq!(browser.script("return document.querySelector('#text').value").await, "My own words.");

    browser.fill("#draft-purpose", "Thank her for the meeting of yesterday.").await;
    browser.fill("#draft-max", "16").await;
    browser.press("[data-draft]").await;
    // Sixteen tokens are no letter.
    browser.shows("Draft unfinished. Cost: ").await;
    browser.shows("Unfinished.").await;
    let notice = "const notice = document.querySelector('[data-draft-unfinished]'); return [notice.hidden, \
        notice.getAttribute('role'), notice.className.includes('notice-warn'), document.body.innerText.includes('Draft ready')]";
    assert_eq!(browser.script(notice).await, json!([false, "status", true, false]));
    assert!(
        browser
            .script("return document.querySelector('#text').value")
            .await
            .as_str()
            .unwrap()
            .starts_with("Dear ")
    );
    let state = "const text = document.querySelector('#text'); \
        return [text.value.length > 0 && text.value !== 'My own words.', text.readOnly, \
        document.querySelector('[data-draft-receipt]').hidden, document.querySelector('[data-draft-failure]').hidden]";
    assert_eq!(browser.script(state).await, json!([true, false, false, true]));
    browser.press("[data-draft-back]").await;
    assert_eq!(browser.script("return document.querySelector('#text').value").await, "My own words.");
    browser.press("a.wordmark").await;
    browser.until("location.pathname === '/home'").await;
    assert_eq!(browser.script(CONFIRMATION_SHOWN).await, "true", "a draft is not saved by itself");
}

/// Uses the real model. What it writes does not matter, only where it goes.
async fn edit_replaces_the_selection_only(office: &Office, browser: &Browser) {
    browser.open(&office.portal("/clients/1037?open=letter")).await;
    ready(browser).await;
    let own = "Dear Priya,\n\nThank you for the meeting of 12 November.\n\nUntil soon.";
    let fill = format!(
        "const text = document.querySelector('#text'); text.value = {}; text.focus(); \
        const start = text.value.indexOf('Thank'); text.setSelectionRange(start, text.value.indexOf('.') + 1); \
        return text.value.slice(text.selectionStart, text.selectionEnd)",
        json!(own)
    );
    assert_eq!(browser.script(&fill).await, "Thank you for the meeting of 12 November.");
    browser.press("[data-rewrite][value=shorten]").await;
    browser.until("/Cost: /.test(document.querySelector('[data-draft-status]').textContent)").await;
    let state = "const text = document.querySelector('#text'); \
        return [text.value.startsWith('Dear Priya,\\n\\n'), text.value.endsWith('\\n\\nUntil soon.'), text.readOnly, \
        document.querySelector('[data-draft-receipt]').hidden, document.querySelector('[data-rewrite]').disabled]";
    assert_eq!(browser.script(state).await, json!([true, true, false, false, false]));
    browser.press("[data-draft-back]").await;
    assert_eq!(browser.script("return document.querySelector('#text').value").await, own);
}

/// WebDriver answers the browser's confirmation by itself, so the test checks whether the page requests one.
async fn unsaved_changes_are_guarded(office: &Office, browser: &Browser) {
    let form = office.portal("/clients/1037?open=note");
    for (leave, by) in [
        ("a.wordmark", "a link"),
        ("#tab-letters", "a link that changes a part of the page"),
        ("a.button-quiet", "closing the form"),
    ] {
        browser.open(&form).await;
        ready(browser).await;
        browser.script(WATCH).await;
        browser.fill("#title", "Half a title").await;
        browser.press(leave).await;
        browser.until("!location.search.includes('open=note')").await;
        assert_eq!(browser.script(CONFIRMATION_SHOWN).await, "true", "left by {by}");
    }
    // What was typed into the note is restored, so this is another form.
    browser.open(&office.portal("/clients/1037?open=dispute")).await;
    ready(browser).await;
    browser.script(WATCH).await;
    browser.press("a.button-quiet").await;
    browser.until("!location.search.includes('open=dispute')").await;
    assert_eq!(browser.script(CONFIRMATION_SHOWN).await, "false", "nothing was typed");

    browser.open(&form).await;
    ready(browser).await;
    browser.fill("#title", "A whole title").await;
    browser.script(WATCH).await;
    browser.press(".editor button.button-primary").await; // without text
    browser.until("document.title.startsWith('Error: ')").await;
    assert_eq!(browser.script(CONFIRMATION_SHOWN).await, "false", "saving is not leaving");
    browser.script(WATCH).await;
    browser.press("a.wordmark").await;
    browser.until("location.pathname === '/home'").await;
    assert_eq!(
        browser.script(CONFIRMATION_SHOWN).await,
        "true",
        "what came back unsaved is guarded as it stands"
    );
}
