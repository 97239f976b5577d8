//! Conformance: unsaved text belongs to a person and a form, needs the permit to edit, and is bounded.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{after_s, ask, authz_request, create, decisions, manage, note, people, permit, principal};
use crate::samples::NOON;
use chancery_domain::{ClientId, EntryId, EntryKind, TokenHash, UnixMillis};
use chancery_policy::{ClientResource, EditClient};
use chancery_store::{
    ClientError, ENDED_SESSION_WINDOW, MAX_UNSAVED_TEXTS_PER_PERSON, NewUnsavedText, OPEN_FORM_LIFETIME,
    UNSAVED_TEXT_LIFETIME, UnsavedForm,
};
use std::sync::Arc;
use std::time::Duration;

const SESSION: TokenHash = TokenHash([1; 32]);
const OTHER_SESSION: TokenHash = TokenHash([2; 32]);
const NEW_NOTE: UnsavedForm = UnsavedForm::NewEntry(EntryKind::MeetingNote);

fn text(form: UnsavedForm, fields: &str) -> NewUnsavedText<'_> {
    NewUnsavedText { form, session: SESSION, fields }
}

fn after(time: Duration) -> UnixMillis {
    UnixMillis(NOON.0 + i64::try_from(time.as_millis()).unwrap() + 1)
}

pub async fn unsaved_text_belongs_to_one_person_and_form(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let (maya, ruth) = (&people.maya, &people.ruth);
    let client = create(&store, maya, "Harbour Lane Bakery").await;
    let edit = |person| permit::<EditClient>(person, client, maya.id);
    let clients = &store.clients;
    let before = decisions(&store).await.len();
    for fields in ["{\"text\":\"a\"}", "{\"text\":\"b\"}"] {
        assert!(clients.save_unsaved_text(edit(maya), text(NEW_NOTE, fields)).await.unwrap());
    }
    assert_eq!(decisions(&store).await.len(), before + 1, "the first text of a form is on record");
    let found = clients.open_form(edit(maya), NEW_NOTE, SESSION).await.unwrap().unwrap();
    assert_eq!((found.fields.as_str(), found.saved_at), ("{\"text\":\"b\"}", NOON));
    assert_eq!(decisions(&store).await.len(), before + 2, "and that it was given back");
    assert_eq!(clients.open_form(edit(maya), UnsavedForm::Details, SESSION).await.unwrap(), None);
    assert_eq!(clients.open_form(edit(ruth), NEW_NOTE, SESSION).await.unwrap(), None);
    assert_eq!(decisions(&store).await.len(), before + 2, "nothing was given back");

    let missing = UnsavedForm::Entry(EntryId(777));
    assert!(!clients.save_unsaved_text(edit(maya), text(missing, "{}")).await.unwrap());
    let nobodys = ClientResource { id: ClientId(777), owner: None };
    let nobodys = ask::<EditClient>(principal(ruth), nobodys).unwrap();
    assert!(!clients.save_unsaved_text(nobodys, text(NEW_NOTE, "{}")).await.unwrap());
    let stale = permit::<EditClient>(ruth, client, ruth.id);
    let rejected = clients.save_unsaved_text(stale, text(NEW_NOTE, "{}")).await.unwrap_err();
    assert!(matches!(rejected, ClientError::OwnerChanged(id) if id == client), "{rejected:?}");

    clients.add_entry(edit(maya), note(maya.id, NOON, "Call")).await.unwrap();
    assert_eq!(clients.open_form(edit(maya), NEW_NOTE, SESSION).await.unwrap(), None, "it is saved");
    clients.save_unsaved_text(edit(maya), text(NEW_NOTE, "{}")).await.unwrap();
    clients.add_copied_entry(edit(maya), note(maya.id, NOON, "Copy")).await.unwrap();
    assert!(
        clients.open_form(edit(maya), NEW_NOTE, SESSION).await.unwrap().is_some(),
        "a copy was not typed"
    );
    assert!(clients.discard_unsaved_text(edit(maya), NEW_NOTE).await.unwrap());
    assert_eq!(clients.open_form(edit(maya), NEW_NOTE, SESSION).await.unwrap(), None);
}

pub async fn ended_session_replaces_text_of_its_own_form_only(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    let (maya, ruth) = (people.maya.id, people.ruth.id);
    let edit = || permit::<EditClient>(&people.maya, client, maya);
    let clients = &store.clients;
    clients.open_form(edit(), NEW_NOTE, SESSION).await.unwrap();
    let late = text(NEW_NOTE, "{\"text\":\"late\"}");
    let other = NewUnsavedText { session: OTHER_SESSION, ..late };
    let other_form = NewUnsavedText { form: UnsavedForm::Details, ..late };
    for rejected in [other, other_form] {
        assert!(!clients.save_text_of_ended_session(maya, client, rejected, NOON).await.unwrap());
    }
    assert!(!clients.save_text_of_ended_session(maya, ClientId(777), late, NOON).await.unwrap());
    let of_ruth = clients.save_text_of_ended_session(ruth, client, late, NOON).await.unwrap();
    assert!(!of_ruth, "a form that someone else opened in the same browser");
    let too_late = after(ENDED_SESSION_WINDOW);
    assert!(!clients.save_text_of_ended_session(maya, client, late, too_late).await.unwrap());
    assert!(clients.save_text_of_ended_session(maya, client, late, after_s(60)).await.unwrap());
    let still_too_late = clients.save_text_of_ended_session(maya, client, late, too_late).await.unwrap();
    assert!(!still_too_late, "late text does not give its session more time");
    let found = clients.open_form(edit(), NEW_NOTE, OTHER_SESSION).await.unwrap().unwrap();
    assert_eq!((found.fields.as_str(), found.saved_at), ("{\"text\":\"late\"}", after_s(60)));
    assert!(
        !clients.save_text_of_ended_session(maya, client, late, after_s(60)).await.unwrap(),
        "opened elsewhere"
    );

    // The time starts again when old text is opened.
    let day_later = authz_request(principal(&people.maya), too_late);
    let resource = ClientResource { id: client, owner: Some(maya) };
    let permit = crate::firm::POLICY.decide::<EditClient>(&day_later, resource).unwrap();
    clients.open_form(permit, NEW_NOTE, SESSION).await.unwrap();
    assert!(clients.save_text_of_ended_session(maya, client, late, too_late).await.unwrap());

    store.people.remove_person(manage(NOON), people.maya.id, Box::new(|_| true)).await.unwrap();
    assert!(!clients.save_text_of_ended_session(maya, client, late, too_late).await.unwrap());
    store.people.restore_person(manage(NOON), people.maya.id).await.unwrap();
    assert_eq!(clients.open_form(edit(), NEW_NOTE, SESSION).await.unwrap(), None, "deleted with the person");
}

pub async fn unsaved_texts_are_bounded_in_number_and_age(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let clients = &store.clients;
    let mut ids = Vec::new();
    for number in 0..=MAX_UNSAVED_TEXTS_PER_PERSON {
        let client = create(&store, &people.maya, &format!("Client {number}")).await;
        let resource = ClientResource { id: client, owner: Some(people.maya.id) };
        let at = authz_request(principal(&people.maya), after_s(i64::from(number)));
        let permit = crate::firm::POLICY.decide::<EditClient>(&at, resource).unwrap();
        assert!(clients.save_unsaved_text(permit, text(NEW_NOTE, "{}")).await.unwrap());
        ids.push(client);
    }
    let edit = |client| permit::<EditClient>(&people.maya, client, people.maya.id);
    assert_eq!(clients.open_form(edit(ids[0]), NEW_NOTE, SESSION).await.unwrap(), None, "the oldest");
    for client in &ids[1..] {
        assert!(clients.open_form(edit(*client), NEW_NOTE, SESSION).await.unwrap().is_some(), "{client}");
    }
    assert_eq!(clients.delete_expired_unsaved_texts(NOON, 500).await.unwrap(), 0);
    // Opening the first form again, without typing, did not push any text out, so it is not there itself.
    assert_eq!(clients.delete_expired_unsaved_texts(after(OPEN_FORM_LIFETIME), 500).await.unwrap(), 0);
    let end = after(UNSAVED_TEXT_LIFETIME + Duration::from_secs(3600));
    assert_eq!(clients.delete_expired_unsaved_texts(end, 10).await.unwrap(), 10);
    let left = u64::from(MAX_UNSAVED_TEXTS_PER_PERSON) - 10;
    assert_eq!(clients.delete_expired_unsaved_texts(end, 500).await.unwrap(), left);
}
