//! A letter on its way out of the house, in a browser: started from a template, printed, copied, sent, and on record.

use super::{number, open_as};
use crate::browser::{Browser, Screen};
use crate::office::Office;
use crate::server::eventually;
use crate::tour::Tour;
use chancery_test_support::emails_in;
use std::time::Duration;

/// The worker sends a letter at once.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
const CLIENT: &str = "Harbour Lane Bakery";
const ADDRESS: &str = "priya@harbourlane.example";

#[tokio::test]
async fn letter_is_written_from_a_template_and_sent_to_the_client() {
    let office = Office::open();
    let (maya, ruth) = (office.sign_in("maya").await, office.sign_in("ruth").await);
    let clients = maya.clients().await;
    let client = number(clients.iter().find(|client| client["name"] == CLIENT).unwrap());
    let record = format!("/clients/{client}");
    let browser = Browser::start().await;
    let mut tour = Tour::of(&browser, Screen::Wide, "portal");

    open_as(&office, &browser, &ruth, "/templates").await;
    tour.look("letter templates", "Only partners can change templates").await;
    browser.fill("#title", "Reminder").await;
    browser.fill("#text", "Dear {{client.nmae}},").await;
    browser.follow("main form button.button-primary").await;
    tour.look("template with an error", "There is no placeholder {{client.nmae}}").await;
    browser.fill("#text", "Dear {{client.contact}} of {{client.name}},").await;
    browser.follow("main form button.button-primary").await;
    browser.shows("Template created.").await;
    browser.follow("tbody a").await;
    tour.look("edit template", "Save template").await;

    open_as(&office, &browser, &maya, &format!("{record}?open=letter")).await;
    browser.follow(&format!("a[href='{record}/letters/new']")).await;
    tour.look("choose a template", "Choose a template").await;
    let reminder =
        "return [...document.querySelectorAll('main li a')].find(a => a.innerText === 'Reminder').href";
    let reminder = browser.script(reminder).await.as_str().unwrap().to_owned();
    browser.open(&reminder).await;
    browser
        .until(&format!("document.querySelector('#text').value === 'Dear Priya Raman of {CLIENT},'"))
        .await;
    browser.follow(".editor button.button-primary").await;

    let letters = maya.json(&record).await.value()["draft_letters"].clone();
    let letter = letters.as_array().unwrap().iter().find(|letter| letter["title"] == "Reminder").unwrap();
    let page = format!("{record}/letters/{}", number(letter));
    browser.open(&office.portal(&page)).await;
    tour.look("letter", "Dear Priya Raman of").await;
    browser.until("!document.querySelector('[data-print]').hidden").await;
    browser.press("button[data-copies='letter-text']").await;
    browser.until("document.querySelector('[data-copied-by]').textContent !== ''").await;

    browser.follow(&format!("a[href='{page}/send']")).await;
    tour.look("send letter", "Replies go to").await;
    browser.fill("#subject", "").await;
    browser.follow("main form button.button-primary").await;
    browser.shows("Enter a subject").await;
    browser.fill("#subject", "A reminder").await;
    browser.follow("main form button.button-primary").await;
    tour.look("sent letter", "Letter sent.").await;
    browser.shows("A sent letter cannot be changed.").await;
    browser.open(&office.portal(&record)).await;
    browser.shows(&format!("Sent to {ADDRESS}")).await;
    let outbox = office.firm.data().join("outbox");
    let expected =
        [format!("To: {ADDRESS}"), format!("Reply-To: {}", maya.email), "application/pdf".to_owned()];
    eventually("the letter was sent", SEND_TIMEOUT, async || {
        emails_in(&outbox).iter().any(|email| {
            email.contains("Subject: A reminder") && expected.iter().all(|part| email.contains(part.as_str()))
        })
    })
    .await;
    tour.end();
}
