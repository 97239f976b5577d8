//! Malicious names, notes and letters: on every page that shows them, no script runs, no markup escapes, and a phone does not
//! scroll sideways.

use super::{open_as, ready};
use crate::browser::{Browser, Scheme, Screen};
use crate::office::{Office, SignedInUser};
use serde_json::{Value, json};

/// Sets fields by script, because not everything can be typed, and submits the form as a person does.
async fn send(browser: &Browser, form: &str, fields: &[(&str, &str)]) {
    for (field, text) in fields {
        let set = format!("document.querySelector('#{field}').value = {}", json!(text));
        browser.script(&set).await;
    }
    browser.press(&format!("{form} button.button-primary")).await;
}

/// Asserts that no script ran: an open dialog would fail the next command by itself.
async fn unharmed(browser: &Browser, page: &str) {
    for screen in [Screen::Wide, Screen::Phone] {
        browser.show_on(screen, Scheme::Light).await;
        let look = "const page = document.documentElement; \
            const isTooWide = (element) => element.scrollWidth > element.clientWidth + 1 \
                && element.clientWidth > 1 && getComputedStyle(element).overflowX === 'visible'; \
            const wide = page.scrollWidth > page.clientWidth && ['the page scrolls sideways', \
                ...[...document.querySelectorAll('body *')].filter(isTooWide).map(element => element.outerHTML.slice(0, 200))]; \
            const foreign = document.querySelectorAll('main script, main img, main iframe, main svg, main b, [onerror], [onload]'); \
            const links = [...document.querySelectorAll('a[href]')].filter(link => link.protocol === 'javascript:'); \
            return [wide, foreign.length, links.length, window.harm ?? null]";
        assert_eq!(browser.script(look).await, json!([false, 0, 0, null]), "{page} on {screen:?}");
    }
    assert_eq!(browser.console_errors().await, Vec::<String>::new(), "{page}");
}

fn long_word() -> String {
    "Donaudampfschifffahrtsgesellschaftskapitän".repeat(4)
}

#[tokio::test]
async fn hostile_text_is_shown_escaped_and_runs_nothing() {
    let office = Office::open();
    let (maya, ruth) = (office.sign_in("maya").await, office.sign_in("ruth").await);
    let browser = Browser::start().await;
    open_as(&office, &browser, &maya, "/clients/new").await;

    let name = format!(
        "<script>window.harm=1</script>\"'><img src=x onerror=window.harm=2>{{{{7*7}}}} 😀 {}",
        long_word()
    );
    let name = name.chars().take(200).collect::<String>();
    let address = "</textarea><script>window.harm=3</script>\n<!-- ]]> ${7*7}\n=HYPERLINK(\"http://x\")";
    let contact = "javascript:alert(1)//\" onmouseover=\"window.harm=4";
    let email = "x'onload=window.harm=5{{7*7}}&quot@x.example";
    let details = [("name", &*name), ("contact", contact), ("address", address), ("email", email)];
    turned_around(&browser, &details).await;
    send(&browser, "main form", &details).await;
    browser.wait_for_url(&office.portal("/clients/1039")).await;
    ready(&browser).await;
    assert_eq!(browser.text("h1").await, name);
    let shown = browser.page_text().await;
    for text in [contact, "</textarea><script>window.harm=3</script>", email] {
        assert!(shown.contains(text), "{text} is not shown as it was written: {shown}");
    }
    unharmed(&browser, "record").await;

    let texts = entries(&browser, &office, &maya).await;
    on_every_page(&browser, &office, &ruth).await;
    let record = maya.json("/clients/1039").await.value();
    assert_eq!((&record["name"], &record["address"]), (&json!(name), &json!(address)));
    assert_eq!(record["meeting_notes"][0]["text"], texts, "kept as it was written");
}

/// A name with a right-to-left override is rejected, and the form keeps what was typed.
async fn turned_around(browser: &Browser, details: &[(&str, &str)]) {
    let mut turned = details.to_vec();
    turned[0].1 = "Harbour \u{202e}yrekaB";
    send(browser, "main form", &turned).await;
    browser.shows("invisible character (U+202E)").await;
    assert_eq!(browser.status().await, 422);
    for (field, text) in &turned[1..] {
        let value = browser.script(&format!("return document.querySelector('#{field}').value")).await;
        assert_eq!(value, *text, "what was typed is not lost");
    }
    unharmed(browser, "form that came back").await;
}

/// Creates a note, a dispute and a letter; returns the text.
async fn entries(browser: &Browser, office: &Office, maya: &SignedInUser) -> Value {
    let title = format!("</h2><b>not bold</b> {{{{ title }}}} {}", long_word());
    let title = title.chars().take(200).collect::<String>();
    let text = format!(
        "</textarea></div><script>window.harm=6</script>\n\n- <img src=x onerror=window.harm=7>\n- [x](javascript:alert(3))\n\n\
         {{{{ constructor.constructor('window.harm=8')() }}}} <%= 7*7 %> 👩‍👩‍👧‍👦 &lt;b&gt; &amp;\n\n{}",
        "W".repeat(400)
    );
    for (open, kind) in
        [("note", "meeting_notes"), ("dispute", "billing_disputes"), ("letter", "draft_letters")]
    {
        browser.open(&office.portal(&format!("/clients/1039?open={open}"))).await;
        send(browser, ".editor", &[("title", &title), ("text", &text)]).await;
        browser.wait_for_url(&office.portal("/clients/1039?done=")).await;
        ready(browser).await;
        browser.shows("<img src=x onerror=window.harm=7>").await;
        unharmed(browser, open).await;
        let entry = maya.json("/clients/1039").await.value()[kind][0]["id"].to_string();
        browser.open(&office.portal(&format!("/clients/1039?open=entry-{entry}"))).await;
        assert_eq!(
            browser.script("return document.querySelector('#text').value").await,
            text,
            "in the editor again"
        );
        unharmed(browser, "editor").await;
        send(browser, ".editor", &[("title", "<i>Another</i> title")]).await;
        browser.shows("2 versions").await;
        browser.open(&office.portal(&format!("/clients/1039/entries/{entry}/versions"))).await;
        browser
            .script("document.querySelectorAll('details').forEach(details => { details.open = true })")
            .await;
        unharmed(browser, "versions").await;
    }
    json!(text)
}

/// As a partner, who can open all of them.
async fn on_every_page(browser: &Browser, office: &Office, ruth: &SignedInUser) {
    let search = "%3Cscript%3Ewindow.harm%3D9%3C%2Fscript%3E%22%27";
    for path in [
        "/clients",
        "/clients?q=script",
        &format!("/clients?q={search}"),
        &format!("/clients?sort={search}"),
        &format!("/clients/1039?tab={search}"),
        &format!("/clients/1039?done={search}"),
        "/clients/1039/versions",
        "/clients/1039?open=facts",
        &format!("/audit?client={search}&from={search}"),
        &format!("/{search}"),
    ] {
        open_as(office, browser, ruth, path).await;
        unharmed(browser, path).await;
    }
}
