//! Letters that leave the firm: their page, PDF and email, what is on record afterwards; and letter templates.

use super::TestPortal;
use super::browser::{Browser, Reply};
use super::firm::Firm;
use axum::http::{StatusCode, header};
use chancery_domain::{
    Action, ClientId, Decision, EntryId, LetterTemplateId, Principal, RequestId, Throttle, ThrottleKey,
};
use chancery_policy::{AuthzRequest, FirmResource, ManageTemplates, Permit};
use chancery_store::LetterTemplateContent;
use serde_json::Value;

const ADDRESS: &str = "priya@harbourlane.example";

fn form(fields: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

async fn letters_json(browser: &mut Browser, client: ClientId) -> Vec<Value> {
    let accept = std::mem::replace(&mut browser.accept, "application/json");
    let reply = browser.get(&format!("/clients/{client}")).await;
    browser.accept = accept;
    let record: Value = serde_json::from_str(&reply.body).unwrap();
    record["draft_letters"].as_array().unwrap().clone()
}

fn called<'a>(letters: &'a [Value], title: &str) -> &'a Value {
    letters.iter().find(|letter| letter["title"] == title).unwrap()
}

/// Gives Ann's client an email address, and adds a letter to it.
pub(super) async fn add_letter(firm: &mut Firm, client: ClientId) -> EntryId {
    let (browser, path) = (&mut firm.ann.browser, format!("/clients/{client}"));
    let details = form(&[
        ("name", "Harbour Lane <Bakery>"),
        ("contact", "Priya Raman, owner"),
        ("email", ADDRESS),
        ("address", "12 Harbour Lane\r\nBoston"),
        ("version", "1"),
    ]);
    assert_eq!(browser.post(&path, &details).await.status, StatusCode::SEE_OTHER);
    let text = "Dear Priya,\r\n\r\nThank you for your call.\r\n\r\nAnn";
    let letter = form(&[("kind", "draft_letter"), ("title", "Your lease"), ("text", text), ("is_open", "1")]);
    assert_eq!(browser.post(&format!("{path}/entries"), &letter).await.status, StatusCode::SEE_OTHER);
    EntryId(called(&letters_json(browser, client).await, "Your lease")["id"].as_i64().unwrap())
}

/// A template, created by the command line.
pub(super) async fn add_template(portal: &TestPortal) -> LetterTemplateId {
    let request_id = RequestId::from_stored("req_operator".to_owned());
    let at = portal.portal.clock.now();
    let authz_request = AuthzRequest { by: Principal::Operator, at, request_id };
    let permit: Permit<ManageTemplates> = portal.portal.policy.decide(&authz_request, FirmResource).unwrap();
    let content = LetterTemplateContent {
        title: "Thank you, {{client.name}}".parse().unwrap(),
        text: "{{today}}\n\nDear {{client.contact}},\n\nThank you. {{client.address}}\n\n{{me.name}}"
            .parse()
            .unwrap(),
    };
    portal.portal.store.letter_templates.create_letter_template(permit, &content).await.unwrap()
}

async fn firm_with_letter() -> (Firm, ClientId, EntryId) {
    let mut firm = Firm::open().await;
    let client = firm.client(firm.ann.id, "Harbour Lane").await.client;
    let letter = add_letter(&mut firm, client).await;
    (firm, client, letter)
}

fn send_form(version: &str, to: &str, subject: &str) -> String {
    form(&[("version", version), ("to", to), ("subject", subject)])
}

fn assert_has(reply: &Reply, parts: &[&str]) {
    for part in parts {
        assert!(reply.body.contains(part), "no {part:?} in {}", reply.body);
    }
}

#[tokio::test]
async fn letter_page_and_pdf_have_the_letterhead_and_escape_text() {
    let (mut firm, client, letter) = firm_with_letter().await;
    let path = format!("/clients/{client}/letters/{letter}");
    let page = firm.ann.browser.get(&path).await;
    assert_eq!(page.status, StatusCode::OK);
    assert_has(
        &page,
        &[
            "Marlow &#38; Finch",
            "48 Commercial Wharf<br>Boston, MA 02110",
            "Harbour Lane &#60;Bakery&#62;<br>Priya Raman, owner<br>12 Harbour Lane<br>Boston",
            "<p dir=\"auto\">Thank you for your call.</p>",
            "data-copies=\"letter-text\"",
            "Send by email",
            ">Draft</span>",
        ],
    );
    let (headers, pdf) = firm.ann.browser.download(&format!("{path}/pdf")).await;
    assert_eq!(headers[header::CONTENT_TYPE], "application/pdf");
    assert!(headers[header::CONTENT_DISPOSITION].to_str().unwrap().starts_with("inline; filename=\"letter-"));
    assert!(pdf.starts_with(b"%PDF-"));
    let decisions = firm.decisions().await;
    let mut reads = decisions.iter().rev().take(2).map(|row| (row.access_request.action, row.decision));
    assert!(reads.all(|read| read == (Action::ReadClient, Decision::Allowed)), "{decisions:?}");
    let record = firm.ann.browser.get(&format!("/clients/{client}")).await;
    assert_has(&record, &[&format!("href=\"{path}\""), "Print or send"]);
}

#[tokio::test]
async fn entry_that_is_no_letter_has_no_letter_page() {
    let mut firm = Firm::open().await;
    let created = firm.client(firm.ann.id, "Harbour Lane").await;
    let path = format!("/clients/{}/letters/{}", created.client, created.entry);
    for path in [path.clone(), format!("{path}/pdf"), format!("{path}/send")] {
        assert_eq!(firm.ann.browser.get(&path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    for step in ["send", "copy"] {
        let reply = firm.ann.browser.post(&format!("{path}/{step}"), "version=1").await;
        assert_eq!(reply.status, StatusCode::NOT_FOUND, "{step}");
    }
}

#[tokio::test]
async fn letter_is_sent_once_to_the_recorded_address_and_is_on_record() {
    let (mut firm, client, letter) = firm_with_letter().await;
    let path = format!("/clients/{client}/letters/{letter}");
    let preview = firm.ann.browser.get(&format!("{path}/send")).await;
    assert_eq!(preview.status, StatusCode::OK);
    assert_has(&preview, &["name=\"subject\"", "value=\"Your lease\"", "ann@<wbr>company.com", "50 letters"]);
    let letters = letters_json(&mut firm.ann.browser, client).await;
    let draft = called(&letters, "Your lease");
    assert_eq!((&draft["status"], &draft["sent_at"]), (&"draft".into(), &Value::Null));

    let before = firm.portal.emails().len();
    let typed = send_form("1", ADDRESS, "About your lease");
    let sent = firm.ann.browser.post(&format!("{path}/send"), &typed).await;
    assert_eq!((sent.status, sent.location()), (StatusCode::SEE_OTHER, &*format!("{path}?done=sent")));
    let again = firm.ann.browser.post(&format!("{path}/send"), &typed).await;
    assert_eq!(again.location(), format!("{path}?done=already-sent"));
    let emails = firm.portal.emails_when(before + 1).await;
    assert_eq!(emails.len(), before + 1, "submitting twice sends once");
    let email = emails.last().unwrap();
    for part in [
        "To: priya@harbourlane.example\r\n",
        "Reply-To: ann@company.com\r\n",
        "Subject: About your lease\r\n",
        "Thank you for your call.",
        "Content-Type: application/pdf",
    ] {
        assert!(email.contains(part), "{part}: {email}");
    }

    let page = firm.ann.browser.get(sent.location()).await;
    assert_has(
        &page,
        &[
            "<strong>Letter sent.</strong>",
            "Sent to priya@<wbr>harbourlane.example",
            "today, 09:14 UTC",
            ">ann@<wbr>company.com</span>. Subject: ",
            "Subject: <bdi>About your lease</bdi>",
            "Copy as new draft",
        ],
    );
    assert!(!page.body.contains("Send by email"), "{}", page.body);
    let letters = letters_json(&mut firm.ann.browser, client).await;
    let sent = called(&letters, "Your lease");
    assert_eq!((&sent["status"], &sent["open"]), (&"sent".into(), &false.into()));
    assert_eq!((&sent["sent_at"], &sent["sent_to"]), (&"2026-11-13T09:14:00.000Z".into(), &ADDRESS.into()));
}

#[tokio::test]
async fn sent_letter_cannot_be_changed_and_can_be_copied() {
    let (mut firm, client, letter) = firm_with_letter().await;
    let path = format!("/clients/{client}/letters/{letter}");
    let typed = send_form("1", ADDRESS, "Your lease");
    assert_eq!(firm.ann.browser.post(&format!("{path}/send"), &typed).await.status, StatusCode::SEE_OTHER);
    let form_of_sent = firm.ann.browser.get(&format!("/clients/{client}?open=entry-{letter}")).await;
    assert_eq!(form_of_sent.status, StatusCode::CONFLICT);
    let change =
        form(&[("kind", "draft_letter"), ("version", "2"), ("title", "New"), ("text", "Other words")]);
    let rejected = firm.ann.browser.post(&format!("/clients/{client}/entries/{letter}"), &change).await;
    assert_eq!(rejected.status, StatusCode::CONFLICT);
    assert_has(&rejected, &["Copy as new draft", "Other words", &path]);
    let copied = firm.ann.browser.post(&format!("{path}/copy"), "").await;
    assert_eq!(copied.status, StatusCode::SEE_OTHER);
    let form_of_copy = firm.ann.browser.get(copied.location().split('#').next().unwrap()).await;
    assert_has(&form_of_copy, &["Edit letter", "Thank you for your call."]);
    let letters = letters_json(&mut firm.ann.browser, client).await;
    let status = |letter: &Value| letter["status"].as_str().unwrap().to_owned();
    let same: Vec<String> =
        letters.iter().filter(|letter| letter["title"] == "Your lease").map(status).collect();
    assert_eq!(same.len(), 2);
    assert!(same.contains(&"sent".to_owned()) && same.contains(&"draft".to_owned()), "{same:?}");
}

#[tokio::test]
async fn sent_letter_stays_as_it_was_printed_when_the_client_moves() {
    let (mut firm, client, letter) = firm_with_letter().await;
    let path = format!("/clients/{client}/letters/{letter}");
    let (_, before) = firm.ann.browser.download(&format!("{path}/pdf")).await;
    let typed = send_form("1", ADDRESS, "Your lease");
    assert_eq!(firm.ann.browser.post(&format!("{path}/send"), &typed).await.status, StatusCode::SEE_OTHER);
    let moved = form(&[
        ("name", "Harbour Lane"),
        ("email", ADDRESS),
        ("address", "9 New Street\r\nSalem"),
        ("version", "2"),
    ]);
    let saved = firm.ann.browser.post(&format!("/clients/{client}"), &moved).await;
    assert_eq!(saved.status, StatusCode::SEE_OTHER);
    let (_, after) = firm.ann.browser.download(&format!("{path}/pdf")).await;
    assert!(before == after, "the PDF is the one that was sent");
    let page = firm.ann.browser.get(&path).await;
    assert_has(&page, &["Harbour Lane &#60;Bakery&#62;<br>Priya Raman, owner<br>12 Harbour Lane<br>Boston"]);
    assert!(!page.body.contains("9 New Street"), "{}", page.body);
}

#[tokio::test]
async fn letter_page_and_preview_warn_about_unsaved_changes_of_their_person() {
    let (mut firm, client, letter) = firm_with_letter().await;
    let path = format!("/clients/{client}/letters/{letter}");
    let number = letter.to_string();
    let typed =
        form(&[("kind", "draft_letter"), ("entry", &number), ("version", "1"), ("text", "Dear all,")]);
    let stored = firm.ann.browser.post(&format!("/clients/{client}/unsaved"), &typed).await;
    assert_eq!(stored.status, StatusCode::NO_CONTENT);
    for path in [path.clone(), format!("{path}/send")] {
        let mine = firm.ann.browser.get(&path).await;
        assert_has(&mine, &["You have unsaved changes.", &format!("/clients/{client}?open=entry-{letter}")]);
        let theirs = firm.ruth.browser.get(&path).await;
        assert!(!theirs.body.contains("You have unsaved changes."), "{}", theirs.body);
    }
}

#[tokio::test]
async fn letter_that_cannot_be_printed_is_not_sent() {
    let (mut firm, client, _) = firm_with_letter().await;
    let letter =
        form(&[("kind", "draft_letter"), ("title", "Tokyo"), ("text", "Dear 東京"), ("is_open", "1")]);
    let added = firm.ann.browser.post(&format!("/clients/{client}/entries"), &letter).await;
    assert_eq!(added.status, StatusCode::SEE_OTHER);
    let letters = letters_json(&mut firm.ann.browser, client).await;
    let path = format!("/clients/{client}/letters/{}", called(&letters, "Tokyo")["id"]);
    let typed = send_form("1", ADDRESS, "Tokyo");
    for reply in [
        firm.ann.browser.get(&format!("{path}/pdf")).await,
        firm.ann.browser.get(&format!("{path}/send")).await,
        firm.ann.browser.post(&format!("{path}/send"), &typed).await,
    ] {
        assert_eq!(reply.status, StatusCode::CONFLICT);
        assert_has(
            &reply,
            &["The text contains characters that cannot be printed: 東 (U+6771), 京 (U+4EAC)."],
        );
    }
    assert!(firm.portal.emails().is_empty());
}

#[tokio::test]
async fn nothing_is_sent_without_an_address_or_if_letter_or_address_changed() {
    let (mut firm, client, letter) = firm_with_letter().await;
    let path = format!("/clients/{client}/letters/{letter}/send");
    for (version, to, subject, status, text) in [
        ("1", "tom@elsewhere.example", "Your lease", StatusCode::CONFLICT, "email address changed"),
        ("7", ADDRESS, "Your lease", StatusCode::CONFLICT, "Someone else edited this letter"),
        ("1", ADDRESS, "", StatusCode::UNPROCESSABLE_ENTITY, "Enter a subject"),
        (
            "1",
            ADDRESS,
            "x\r\nBcc: eve@evil.example",
            StatusCode::UNPROCESSABLE_ENTITY,
            "The subject must be one line",
        ),
        ("x", ADDRESS, "Your lease", StatusCode::BAD_REQUEST, "version"),
    ] {
        let reply = firm.ann.browser.post(&path, &send_form(version, to, subject)).await;
        assert_eq!(reply.status, status, "{version} {to} {subject:?}: {}", reply.body);
        assert_has(&reply, &[text]);
    }
    let details = form(&[("name", "Harbour Lane"), ("email", ""), ("version", "2")]);
    firm.ann.browser.post(&format!("/clients/{client}"), &details).await;
    let preview = firm.ann.browser.get(&path).await;
    assert_has(&preview, &["has no email address", &format!("/clients/{client}?open=facts#email")]);
    let reply = firm.ann.browser.post(&path, &send_form("1", "", "Your lease")).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    let letters = letters_json(&mut firm.ann.browser, client).await;
    assert_eq!(called(&letters, "Your lease")["status"], "draft");
    assert!(firm.portal.emails().is_empty());
}

#[tokio::test]
async fn address_that_is_no_plain_mailbox_gets_no_letter() {
    let (mut firm, client, letter) = firm_with_letter().await;
    let path = format!("/clients/{client}/letters/{letter}/send");
    let addresses = ["priya@[192.0.2.1]", "=?utf-8?q?priya?=@hale.example", "\"priya\"@hale.example"];
    for (address, version) in addresses.into_iter().zip(2..) {
        firm.store_email(client, version, address).await;
        let preview = firm.ann.browser.get(&path).await;
        assert_has(&preview, &["No email can be sent to this client’s address. Correct it"]);
        let reply = firm.ann.browser.post(&path, &send_form("1", address, "Your lease")).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{address}");
    }
    let letters = letters_json(&mut firm.ann.browser, client).await;
    assert_eq!(called(&letters, "Your lease")["status"], "draft");
    assert!(firm.portal.emails().is_empty());
}

#[tokio::test]
async fn email_must_be_a_plain_mailbox_once_it_is_changed() {
    let mut firm = Firm::open().await;
    let client = firm.client(firm.ann.id, "Harbour Lane").await.client;
    let (path, old) = (format!("/clients/{client}"), "Priya <priya@hale.example>");
    firm.store_email(client, 1, old).await;
    let details = |name, email, version| form(&[("name", name), ("email", email), ("version", version)]);
    let (status, problem) =
        (StatusCode::UNPROCESSABLE_ENTITY, "Enter an email address like name@example.com");
    for changed in ["Ann <ann@hale.example>", "ann@hale.example,ben@hale.example", "ann@[192.0.2.1]"] {
        let reply = firm.ann.browser.post(&path, &details("Harbour Lane", changed, "2")).await;
        assert_eq!(reply.status, status, "{changed}");
        assert_has(&reply, &[problem]);
    }
    let accept = std::mem::replace(&mut firm.ann.browser.accept, "application/json");
    for (name, email, version) in [("Renamed", old, "2"), ("Renamed", "ann@büro.example", "3")] {
        let reply = firm.ann.browser.post(&path, &details(name, email, version)).await;
        assert_eq!(reply.status, StatusCode::SEE_OTHER, "{email}: {}", reply.body);
        let record: Value = serde_json::from_str(&firm.ann.browser.get(&path).await.body).unwrap();
        assert_eq!((&record["name"], &record["email"]), (&Value::from(name), &Value::from(email)));
    }
    firm.ann.browser.accept = accept;
    let reply = firm.ann.browser.post(&path, &details("Renamed", old, "4")).await;
    assert_eq!(reply.status, status, "the old address is no longer the stored one");
}

#[tokio::test]
async fn daily_quota_rejects_a_letter_and_says_when_to_send_again() {
    let (mut firm, client, letter) = firm_with_letter().await;
    let (now, throttles) = (firm.portal.portal.clock.now(), firm.portal.portal.store.throttles.clone());
    for _ in 0..Throttle::LETTER_PER_PERSON_AND_DAY.limit {
        throttles.count_throttle(ThrottleKey::LetterPerPersonAndDay(firm.ann.id), now).await.unwrap();
    }
    let path = format!("/clients/{client}/letters/{letter}/send");
    let typed = send_form("1", ADDRESS, "Your lease");
    let rejected = firm.ann.browser.post(&path, &typed).await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert_has(&rejected, &["You can send letters again from 14 Nov, 09:14 UTC."]);
    let letters = letters_json(&mut firm.ann.browser, client).await;
    assert_eq!(called(&letters, "Your lease")["status"], "draft");
    let by_partner = firm.ruth.browser.post(&path, &typed).await;
    assert_eq!(by_partner.status, StatusCode::SEE_OTHER, "the quota is per person");
}

#[tokio::test]
async fn template_fills_in_the_clients_details_as_plain_text() {
    let (mut firm, client, _) = firm_with_letter().await;
    let template = add_template(&firm.portal).await;
    let path = format!("/clients/{client}/letters/new");
    let choice = firm.ann.browser.get(&path).await;
    assert_has(
        &choice,
        &[&format!("{path}?template={template}#title"), "Thank you, Harbour Lane &#60;Bakery&#62;"],
    );
    assert!(!choice.body.contains("Manage templates"), "{}", choice.body);
    let filled = firm.ann.browser.get(&format!("{path}?template={template}")).await;
    assert_eq!(filled.status, StatusCode::OK);
    assert_has(
        &filled,
        &[
            "value=\"Thank you, Harbour Lane &#60;Bakery&#62;\"",
            "13 November 2026\n\nDear Priya Raman,\n\nThank you. 12 Harbour Lane\nBoston\n\nann@company.com</textarea>",
        ],
    );
    assert_eq!(letters_json(&mut firm.ann.browser, client).await.len(), 2, "nothing was saved");
    let missing = firm.ann.browser.get(&format!("{path}?template=999")).await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn partners_create_change_and_delete_templates() {
    let mut firm = Firm::open().await;
    let typed = form(&[("title", "Reminder"), ("text", "Dear {{client.nmae}},")]);
    let wrong = firm.ruth.browser.post("/templates", &typed).await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_has(&wrong, &["There is no placeholder {{client.nmae}}", "Dear {{client.nmae}},</textarea>"]);
    let typed = form(&[("title", "Reminder"), ("text", "Dear {{client.name}},")]);
    assert_eq!(firm.ruth.browser.post("/templates", &typed).await.status, StatusCode::SEE_OTHER);
    let store = firm.portal.portal.store.letter_templates.clone();
    let created = store.list_letter_templates().await.unwrap().remove(0);
    let path = format!("/templates/{}", created.id);
    assert_has(
        &firm.ruth.browser.get("/templates").await,
        &[&format!("<a href=\"{path}\"><bdi>Reminder</bdi></a>")],
    );
    let typed = form(&[("title", "First reminder"), ("text", "Dear {{client.name}},"), ("version", "1")]);
    assert_eq!(firm.ruth.browser.post(&path, &typed).await.location(), "/templates?done=saved");
    let typed = form(&[("title", "Second reminder"), ("text", "Dear {{client.name}},"), ("version", "1")]);
    let stale = firm.rob.browser.post(&path, &typed).await;
    assert_eq!(stale.status, StatusCode::CONFLICT);
    assert_has(
        &stale,
        &[
            "Someone else edited this template.",
            "<h3 dir=\"auto\">First reminder</h3>",
            "value=\"Second reminder\"",
            "name=\"version\" value=\"2\"",
            "Overwrite saved version",
        ],
    );
    let deleted = firm.ruth.browser.post(&format!("{path}/delete"), "").await;
    assert_eq!(deleted.location(), "/templates?done=deleted");
    assert_eq!(firm.ruth.browser.get(&path).await.status, StatusCode::NOT_FOUND);
    assert!(store.list_letter_templates().await.unwrap().is_empty());
}
