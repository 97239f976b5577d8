//! Undo in the confirmation of a change, and earlier versions that are restored.

use super::{Firm, assert_has, form, json, new_client, new_entry};
use crate::tests::browser::{Browser, Reply};
use crate::tests::firm::manage;
use axum::http::StatusCode;
use chancery_domain::{PersonId, Role};

async fn set_role(firm: &Firm, person: i64, role: Role) {
    let portal = &firm.portal.portal;
    portal.store.people.set_role(manage(portal), PersonId(person), role).await.unwrap();
}

/// Presses the button of the notice on the page behind this redirect.
async fn undo(browser: &mut Browser, done: &Reply) -> Reply {
    let page = browser.get(done.location()).await;
    let notice = page.body.split("class=\"notice").nth(1).unwrap_or_else(|| panic!("{}", page.body));
    let part =
        |text: &str, from: &str| text.split(from).nth(1).unwrap().split('"').next().unwrap().to_owned();
    let button = notice.split("<form").nth(1).unwrap_or_else(|| panic!("no Undo in {notice}"));
    let button = button.split("</form>").next().unwrap();
    assert!(button.contains(">Undo</button>"), "{button}");
    let fields: Vec<(String, String)> = button
        .split("<input ")
        .skip(1)
        .map(|input| (part(input, "name=\""), part(input, "value=\"")))
        .collect();
    let fields: Vec<(&str, &str)> =
        fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    browser.post(&part(button, "action=\""), &form(&fields)).await
}

#[tokio::test]
async fn every_confirmed_change_of_a_client_can_be_undone() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    let edit = form(&[("version", "1"), ("name", "Harbour Bakery"), ("contact", "Luis")]);
    let done = firm.ann.post(&path, &edit).await;
    let undone = undo(&mut firm.ann, &done).await;
    assert_eq!(undone.location(), format!("{path}?done=version&undo=3"));
    let record = json(&mut firm.ann, &path).await;
    assert_eq!((&record["name"], &record["contact"]), (&"Harbour Lane Bakery".into(), &"".into()));

    let done = firm.ann.post(&format!("{path}/archive"), "").await;
    undo(&mut firm.ann, &done).await;
    assert_eq!(json(&mut firm.ann, &path).await["archived"], false);

    let ben = form(&[("owner", &firm.number_of("ben@company.com").await.to_string())]);
    let done = firm.ruth.post(&format!("{path}/reassign"), &ben).await;
    assert_eq!(firm.ann.get(&path).await.status, StatusCode::FORBIDDEN);
    undo(&mut firm.ruth, &done).await;
    assert_eq!(json(&mut firm.ann, &path).await["owner"], "ann@company.com");
}

#[tokio::test]
async fn every_confirmed_change_of_an_entry_can_be_undone() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let entry = new_entry(&mut firm.ann, client, "meeting_note", "Call", "They called.").await;
    let (path, record) = (format!("/clients/{client}/entries/{entry}"), format!("/clients/{client}"));
    let edit =
        form(&[("kind", "meeting_note"), ("version", "1"), ("title", "Call"), ("text", "They wrote.")]);
    let done = firm.ann.post(&path, &edit).await;
    let done = undo(&mut firm.ann, &done).await;
    assert_eq!(json(&mut firm.ann, &record).await["meeting_notes"][0]["text"], "They called.");
    // Undo can be undone, too.
    undo(&mut firm.ann, &done).await;
    assert_eq!(json(&mut firm.ann, &record).await["meeting_notes"][0]["text"], "They wrote.");
    let done = firm.ann.post(&format!("{path}/archive"), "").await;
    undo(&mut firm.ann, &done).await;
    assert_eq!(json(&mut firm.ann, &record).await["meeting_notes"][0]["id"], entry);
}

#[tokio::test]
async fn undo_never_undoes_a_later_change() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    let edit = |version, name| form(&[("version", version), ("name", name)]);
    let mine = firm.ann.post(&path, &edit("1", "Harbour Bakery")).await;
    firm.ruth.post(&path, &edit("2", "Harbour Street Bakery")).await;
    let rejected = undo(&mut firm.ann, &mine).await;
    assert_eq!(rejected.status, StatusCode::CONFLICT);
    assert_has(&rejected, &["Nothing was undone or restored.", "/versions"]);
    assert_eq!(json(&mut firm.ann, &path).await["name"], "Harbour Street Bakery");
    for change in ["archive", "restore"] {
        let stale = firm.ann.post(&format!("{path}/{change}"), &form(&[("version", "2")])).await;
        assert_eq!(stale.status, StatusCode::CONFLICT, "{change}");
    }
}

#[tokio::test]
async fn reassignment_is_undone_only_by_a_person_who_may_still_reassign() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    let (ann, ben) = (firm.number_of("ann@company.com").await, firm.number_of("ben@company.com").await);
    set_role(&firm, ben, Role::Partner).await;
    let to = |owner: i64, version: &str| form(&[("owner", &owner.to_string()), ("version", version)]);
    let done = firm.ben.post(&format!("{path}/reassign"), &to(ben, "")).await;
    assert_eq!(done.location(), format!("{path}?done=reassigned&undo=2_{ann}"));
    assert_has(&firm.ben.get(done.location()).await, &["The owner is now ", ">Undo</button>"]);

    set_role(&firm, ben, Role::Consultant).await;
    assert!(!firm.ben.get(done.location()).await.body.contains(">Undo<"), "the owner may not reassign");
    let denied = firm.ben.post(&format!("{path}/reassign"), &to(ann, "2")).await;
    assert_eq!(denied.status, StatusCode::FORBIDDEN);
    assert_eq!(json(&mut firm.ben, &path).await["owner"], "ben@company.com");

    firm.ben.post(&path, &form(&[("version", "2"), ("name", "Harbour Bakery")])).await;
    let late = firm.ruth.post(&format!("{path}/reassign"), &to(ann, "2")).await;
    assert_eq!(late.status, StatusCode::CONFLICT);
    assert_eq!(json(&mut firm.ben, &path).await["owner"], "ben@company.com");
}

#[tokio::test]
async fn no_undo_is_offered_where_nothing_changed_or_the_user_may_not() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    let same = firm.ann.post(&path, &form(&[("version", "1"), ("name", "Harbour Lane Bakery")])).await;
    assert_eq!(same.location(), format!("{path}?done=facts"));
    assert!(!firm.ann.get(same.location()).await.body.contains(">Undo<"));
    let made_up = firm.ann.get(&format!("{path}?done=reassigned&undo=1_1")).await;
    assert!(!made_up.body.contains(">Undo<"), "consultants do not reassign");
}

#[tokio::test]
async fn history_restores_an_earlier_version_as_a_new_one() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let entry = new_entry(&mut firm.ann, client, "draft_letter", "Credit", "First.").await;
    let path = format!("/clients/{client}/entries/{entry}");
    for (version, text) in [("1", "Second."), ("2", "Third.")] {
        let fields = [("kind", "draft_letter"), ("version", version), ("title", "Credit"), ("text", text)];
        firm.ann.post(&path, &form(&fields)).await;
    }
    let page = firm.ann.get(&format!("{path}/versions")).await;
    assert_eq!(page.body.matches("Restore this version").count(), 2, "all but the current one");
    let action = format!("{path}/versions/restore");
    assert_has(&page, &[&format!("action=\"{action}\""), "name=\"current\" value=\"3\""]);
    let restore =
        |version: &'static str, current: &'static str| form(&[("version", version), ("current", current)]);
    assert_eq!(firm.ben.post(&action, &restore("1", "3")).await.status, StatusCode::FORBIDDEN);
    assert_eq!(firm.ann.post(&action, &restore("1", "2")).await.status, StatusCode::CONFLICT);
    assert_eq!(firm.ann.post(&action, &restore("9", "3")).await.status, StatusCode::NOT_FOUND);
    assert_eq!(firm.ann.post(&action, &restore("", "3")).await.status, StatusCode::BAD_REQUEST);
    let reply = firm.ann.post(&action, &restore("1", "3")).await;
    assert_eq!(reply.location(), format!("/clients/{client}?done=entry-version&undo=4_{entry}"));
    assert_has(&firm.ann.get(reply.location()).await, &["Version restored.", ">Undo</button>"]);
    let letter = json(&mut firm.ann, &format!("/clients/{client}")).await["draft_letters"][0].clone();
    assert_eq!((&letter["text"], &letter["version"]), (&"First.".into(), &4.into()));
}
