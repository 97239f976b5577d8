//! Conformance: a letter is sent once, with its record, its email and its audit row in one step; templates need a permit.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{ask, create, decisions, firm_permit, note, people, permit, principal, read};
use crate::outbox;
use crate::samples::NOON;
use chancery_domain::{
    Action, ClientId, ContactDetails, Decision, EntryId, EntryKind, LetterHeading, LetterTemplateId,
    MAX_LETTER_TEMPLATES, Person, Principal, Throttle, ThrottleKey, TokenHash, Version,
};
use chancery_policy::{EditClient, FirmResource, ManageTemplates, Permit, ReadClient};
use chancery_store::{
    ArchiveChange, ClientChange, ClientError, EntryChange, LetterEmail, LetterOutcome, LetterTemplateContent,
    LetterTemplateError, NewEntry, NewUnsavedText, SaveOutcome, Store, UnsavedForm,
};
use std::sync::Arc;

const ADDRESS: &str = "priya@harbourlane.example";

/// Gives the client an email address, and adds a letter.
pub async fn add_letter(store: &Store, owner: &Person, client: ClientId) -> EntryId {
    let record = read(store, owner, client).await.unwrap().unwrap();
    let details = ContactDetails { email: ADDRESS.parse().unwrap(), ..record.client.details };
    let change = ClientChange { version: record.client.version, name: record.client.name, details };
    store.clients.edit_client(permit::<EditClient>(owner, client, owner.id), change).await.unwrap();
    let letter =
        NewEntry { kind: EntryKind::DraftLetter, is_open: true, ..note(owner.id, NOON, "Your lease") };
    store.clients.add_entry(permit(owner, client, owner.id), letter).await.unwrap().id
}

/// The email of a letter's first version.
pub fn email_of(letter: EntryId, number: usize) -> LetterEmail {
    LetterEmail {
        letter,
        version: Version::FIRST,
        to: ADDRESS.parse().unwrap(),
        subject: "Your lease".parse().unwrap(),
        heading: LetterHeading {
            firm_name: "Marlow & Finch".to_owned(),
            letterhead: "48 Commercial Wharf\nBoston".to_owned(),
            recipient: "Harbour Lane Bakery\n12 Harbour Lane".to_owned(),
            date: "13 November 2026".to_owned(),
        },
        message: outbox::message(number),
    }
}

pub fn template(title: &str) -> LetterTemplateContent {
    LetterTemplateContent { title: title.parse().unwrap(), text: "Dear {{client.contact}}".parse().unwrap() }
}

async fn send(store: &Store, by: &Person, client: ClientId, email: &LetterEmail) -> LetterOutcome {
    store.clients.send_letter(permit(by, client, by.id), email).await.unwrap()
}

pub async fn letter_is_sent_once_and_cannot_be_changed_afterwards(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    let letter = add_letter(&store, &people.maya, client).await;
    let before = decisions(&store).await.len();
    assert_eq!(send(&store, &people.maya, client, &email_of(letter, 1)).await, LetterOutcome::Sent);
    assert_eq!(store.outbox.next_attempt_at().await.unwrap(), Some(outbox::message(1).created_at));
    assert!(!store.outbox.is_letter_undelivered(letter).await.unwrap());
    let again = send(&store, &people.maya, client, &email_of(letter, 2)).await;
    assert_eq!(again, LetterOutcome::AlreadySent);
    let audited = decisions(&store).await.split_off(before);
    assert_eq!(audited.len(), 2);
    for row in audited {
        assert_eq!((row.access_request.action, row.decision), (Action::EditClient, Decision::Allowed));
    }

    let reading = permit::<ReadClient>(&people.maya, client, people.maya.id);
    let sent = store.clients.read_letter(reading, letter).await.unwrap().unwrap().letter;
    assert_eq!((sent.is_open, sent.version), (false, Version(2)));
    let on_record = sent.sent.unwrap();
    assert_eq!((on_record.at, on_record.to.as_str()), (NOON, ADDRESS));
    assert_eq!((on_record.by.id, on_record.subject.as_str()), (people.maya.id, "Your lease"));
    assert_eq!(on_record.heading, email_of(letter, 1).heading);
    let change = EntryChange {
        entry: letter,
        version: Version(2),
        title: "Another title".parse().unwrap(),
        text: "Other words.".parse().unwrap(),
        at: None,
        is_open: true,
        dispute: None,
    };
    let editing = permit::<EditClient>(&people.maya, client, people.maya.id);
    let rejected = store.clients.edit_entry(editing, change).await.unwrap_err();
    assert!(
        matches!(rejected, ClientError::LetterSent { letter: sent, .. } if sent == letter),
        "{rejected:?}"
    );
    let typing = permit::<EditClient>(&people.maya, client, people.maya.id);
    let form = UnsavedForm::Entry(letter);
    let typed = NewUnsavedText { form, session: TokenHash([1; 32]), fields: "{}" };
    let rejected = store.clients.save_unsaved_text(typing, typed).await.unwrap_err();
    assert!(matches!(rejected, ClientError::LetterSent { .. }), "{rejected:?}");
    let archiving = permit::<EditClient>(&people.maya, client, people.maya.id);
    let archived = store.clients.set_entry_archived(archiving, letter, ArchiveChange::ARCHIVE).await.unwrap();
    assert!(matches!(archived, SaveOutcome::Saved(entry) if entry.sent.is_some()));
}

pub async fn nothing_is_sent_if_letter_or_address_changed(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    let letter = add_letter(&store, &people.maya, client).await;
    let note = note(people.maya.id, NOON, "A note");
    let note = store.clients.add_entry(permit(&people.maya, client, people.maya.id), note).await.unwrap();
    let elsewhere = LetterEmail { to: "tom@elsewhere.example".parse().unwrap(), ..email_of(letter, 1) };
    for (email, outcome) in [
        (elsewhere, LetterOutcome::RecipientChanged),
        (LetterEmail { version: Version(7), ..email_of(letter, 1) }, LetterOutcome::LetterChanged),
        (email_of(note.id, 1), LetterOutcome::NotFound),
        (email_of(EntryId(999), 1), LetterOutcome::NotFound),
    ] {
        assert_eq!(send(&store, &people.maya, client, &email).await, outcome);
    }
    let limit = Throttle::LETTER_PER_PERSON_AND_DAY.limit;
    for _ in 0..limit {
        let key = ThrottleKey::LetterPerPersonAndDay(people.maya.id);
        store.throttles.count_throttle(key, NOON).await.unwrap();
    }
    let over = send(&store, &people.maya, client, &email_of(letter, 1)).await;
    assert!(matches!(over, LetterOutcome::QuotaExceeded { until } if until > NOON), "{over:?}");
    assert_eq!(store.outbox.next_attempt_at().await.unwrap(), None, "no email waits");
    let reading = permit::<ReadClient>(&people.maya, client, people.maya.id);
    let letter = store.clients.read_letter(reading, letter).await.unwrap().unwrap().letter;
    assert!(letter.is_open && letter.sent.is_none());
}

pub async fn letter_templates_are_bounded_audited_and_versioned(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    assert!(ask::<ManageTemplates>(principal(&people.maya), FirmResource).is_err());
    let manage = || firm_permit::<ManageTemplates>(&people.ruth);
    let templates = &store.letter_templates;
    let id = templates.create_letter_template(manage(), &template("Reminder")).await.unwrap();
    let stored = templates.letter_template(id).await.unwrap().unwrap();
    assert_eq!((stored.title.as_str(), stored.version), ("Reminder", Version::FIRST));
    assert_eq!(stored.changed_by.unwrap().id, people.ruth.id);
    let seen = (id, Version::FIRST);
    let changed = templates.change_letter_template(manage(), seen, &template("Second")).await.unwrap();
    assert!(matches!(changed, SaveOutcome::Saved(now) if now.version == Version(2)));
    let stale = templates.change_letter_template(manage(), seen, &template("Third")).await.unwrap();
    assert!(matches!(stale, SaveOutcome::Conflict(now) if now.title.as_str() == "Second"));
    let missing = (LetterTemplateId(999), Version::FIRST);
    let missing = templates.change_letter_template(manage(), missing, &template("Third")).await.unwrap();
    assert_eq!(missing, SaveOutcome::NotFound);

    let by_operator: Permit<ManageTemplates> = ask(Principal::Operator, FirmResource).unwrap();
    templates.create_letter_template(by_operator, &template("another")).await.unwrap();
    let listed = templates.list_letter_templates().await.unwrap();
    let titles: Vec<&str> = listed.iter().map(|template| template.title.as_str()).collect();
    assert_eq!(titles, ["another", "Second"]);
    for _ in 2..MAX_LETTER_TEMPLATES {
        templates.create_letter_template(manage(), &template("More")).await.unwrap();
    }
    let full = templates.create_letter_template(manage(), &template("Too many")).await.unwrap_err();
    assert!(matches!(full, LetterTemplateError::TooManyTemplates), "{full:?}");
    assert!(templates.delete_letter_template(manage(), id).await.unwrap());
    assert!(!templates.delete_letter_template(manage(), id).await.unwrap());
    let audited = decisions(&store).await;
    let audited = audited.iter().filter(|row| row.access_request.action == Action::ManageTemplates);
    // Created, changed three times, deleted twice; the one that was rejected is not on record.
    assert_eq!(audited.count() as u64, MAX_LETTER_TEMPLATES + 3 + 2);
}
