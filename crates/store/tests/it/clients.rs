//! Conformance: client records, of which nothing is read or changed without a permit and a row in the audit.

use crate::databases::TestDatabase;
use crate::firm::{
    NEWEST, after_s, ask, asker, create, create_whole, decisions, firm_permit, listed, new_client, note,
    people, permit, read, words,
};
use crate::samples::NOON;
use chancery_domain::{
    Action, Asker, ClientId, ContactFacts, Day, Decision, EntryKind, PersonId, UnixMillis, Version,
};
use chancery_policy::{
    ArchiveClient, ClientInQuestion, CreateClient, EditClient, ExportClient, ListClients, NewClientFor,
    Permit, ReadClient, ReassignClient, TheFirm,
};
use chancery_store::{
    Changed, ClientChange, ClientOrder, ClientQuery, ClientRecords, ENTRIES_PER_PAGE, EntriesWanted,
    EntryChange, EntryPlace, MAX_ENTRIES_PER_CLIENT, NewClient, NewEntry, Ownership, People as _, StoreError,
};
use std::sync::Arc;

fn facts() -> ContactFacts {
    ContactFacts {
        contact: "Priya Raman, owner".parse().unwrap(),
        email: "priya@harbourlane.example".parse().unwrap(),
        telephone: "+1 617 555 0142".parse().unwrap(),
        address: "12 Harbour Lane\nBoston".parse().unwrap(),
        since: Some(Day::of(NOON)),
    }
}

pub async fn clients_are_numbered_from_1001_and_come_back_as_they_were_made<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let people = people(&*store).await;
    assert!(!store.has_clients().await.unwrap());
    assert_eq!(store.owner_of(ClientId(1001)).await.unwrap(), None);
    let new = NewClient { facts: facts(), ..new_client("Harbour Lane Bakery") };
    let first = create_whole(&*store, &people.maya, new).await;
    let second = create(&*store, &people.tom, "Calder & Sons").await;
    assert_eq!((first, second), (ClientId(1001), ClientId(1002)));
    assert!(store.has_clients().await.unwrap());
    assert_eq!(store.owner_of(first).await.unwrap(), Some(people.maya.id));

    let record = read(&*store, &people.maya, first).await.unwrap().unwrap();
    assert_eq!(record.client.name.as_str(), "Harbour Lane Bakery");
    assert_eq!(record.client.facts, facts());
    assert_eq!(
        (record.client.owner.id, record.client.owner.email.as_str()),
        (people.maya.id, "maya@example.com")
    );
    assert_eq!((record.client.version, record.client.created_at), (Version::FIRST, NOON));
    assert_eq!((record.client.archived_at, record.client.last_entry_at), (None, None));
    assert!(record.entries.is_empty() && !record.has_more);
}

pub async fn a_client_for_somebody_who_was_removed_is_refused<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let people = people(&*store).await;
    store.remove_person(people.tom.id, NOON).await.unwrap();
    for owner in [people.tom.id, PersonId(777)] {
        let permit: Permit<CreateClient> = ask(asker(&people.ruth), NewClientFor(owner)).unwrap();
        let refused = store.create_client(permit, new_client("Calder & Sons")).await.unwrap_err();
        assert!(matches!(refused, StoreError::NoSuchPerson(person) if person == owner), "{refused:?}");
    }
    assert!(!store.has_clients().await.unwrap());
    assert!(decisions(&*store).await.is_empty(), "nothing was done, so nothing is on record");
    assert_eq!(create(&*store, &people.maya, "Next").await, ClientId(1001), "no number was lost");
}

pub async fn an_import_is_all_or_nothing_and_gives_numbers_in_order<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let people = people(&*store).await;
    let permit = |owner| ask::<CreateClient>(Asker::Operator, NewClientFor(owner)).unwrap();
    let entry = |kind, at, is_open| NewEntry { kind, is_open, ..note(people.tom.id, at, "A title") };
    let clients = |last_owner| {
        let mut clients: Vec<(Permit<CreateClient>, NewClient)> = (0..1200)
            .map(|number| {
                let owner = if number % 3 == 0 { people.maya.id } else { people.tom.id };
                let entries = match number % 2 {
                    0 => vec![
                        entry(EntryKind::BillingDispute, after_s(number), true),
                        entry(EntryKind::DraftLetter, after_s(-number), true),
                        entry(EntryKind::MeetingNote, after_s(-5), true),
                    ],
                    _ => Vec::new(),
                };
                let new = NewClient {
                    entries,
                    is_archived: number % 5 == 0,
                    ..new_client(&format!("Client {number}"))
                };
                (permit(owner), new)
            })
            .collect();
        clients.push((permit(last_owner), new_client("The last one")));
        clients
    };
    let refused = store.import_clients(clients(PersonId(777)), &|_| {}).await.unwrap_err();
    assert!(matches!(refused, StoreError::NoSuchPerson(PersonId(777))), "{refused:?}");
    assert!(!store.has_clients().await.unwrap() && decisions(&*store).await.is_empty());

    let done = std::sync::Mutex::new(Vec::new());
    let numbers = store
        .import_clients(clients(people.tom.id), &|count| done.lock().unwrap().push(count))
        .await
        .unwrap();
    assert_eq!(numbers.len(), 1201);
    assert!(numbers.windows(2).all(|pair| pair[1].0 == pair[0].0 + 1));
    let done = done.into_inner().unwrap();
    assert!(done.len() > 1 && done.is_sorted() && done.last() == Some(&1201), "{done:?}");

    let decisions = decisions(&*store).await;
    assert_eq!(
        decisions.iter().map(|row| row.asked.client).collect::<Vec<_>>(),
        numbers.iter().map(|number| Some(*number)).collect::<Vec<_>>()
    );
    assert!(
        decisions
            .iter()
            .all(|row| row.asked.by == Asker::Operator && row.asked.action == Action::CreateClient)
    );

    let record = read(&*store, &people.ruth, numbers[6]).await.unwrap().unwrap();
    assert_eq!(record.client.name.as_str(), "Client 6");
    assert_eq!(record.client.last_entry_at, Some(after_s(6)));
    assert_eq!(
        (record.counts.open_disputes, record.counts.open_letters, record.counts.meeting_notes),
        (1, 1, 1)
    );
    assert!(record.entries.iter().all(|entry| entry.is_open == (entry.kind != EntryKind::MeetingNote)));
    let (_, kept) = listed(&*store, &people.ruth, &ClientQuery { page: 1, ..ClientQuery::default() }).await;
    let away = ClientQuery { page: 1, is_archived: true, ..ClientQuery::default() };
    assert_eq!((kept, listed(&*store, &people.ruth, &away).await.1), (1201 - 240, 240));
    let versions = store.client_versions(crate::firm::permit(&people.ruth, numbers[5], people.tom.id)).await;
    let (_, versions) = versions.unwrap().unwrap();
    assert_eq!((versions.len(), versions[0].is_archived, versions[0].by.clone()), (1, true, None));
}

pub async fn a_read_and_a_refusal_are_each_one_row_of_the_audit<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let people = people(&*store).await;
    let client = create(&*store, &people.maya, "Harbour Lane Bakery").await;
    read(&*store, &people.maya, client).await.unwrap().unwrap();
    let about = ClientInQuestion { id: client, owner: Some(people.maya.id) };
    store.note_denial(ask::<ReadClient>(asker(&people.tom), about).unwrap_err()).await.unwrap();
    let nobodys = ClientInQuestion { id: ClientId(9999), owner: None };
    store.note_denial(ask::<ReadClient>(asker(&people.tom), nobodys).unwrap_err()).await.unwrap();
    assert_eq!(read(&*store, &people.ruth, ClientId(9999)).await.unwrap(), None);
    listed(&*store, &people.tom, &words("")).await;

    let rows: Vec<_> = decisions(&*store)
        .await
        .into_iter()
        .map(|row| {
            (row.asked.by.person(), row.asked.action, row.asked.client.map(|client| client.0), row.decision)
        })
        .collect();
    let (maya, tom, ruth) = (Some(people.maya.id), Some(people.tom.id), Some(people.ruth.id));
    assert_eq!(
        rows,
        [
            (maya, Action::CreateClient, Some(1001), Decision::Allowed),
            (maya, Action::ReadClient, Some(1001), Decision::Allowed),
            (tom, Action::ReadClient, Some(1001), Decision::Refused),
            (tom, Action::ReadClient, Some(9999), Decision::Refused),
            (ruth, Action::ReadClient, Some(9999), Decision::Allowed),
            (tom, Action::ListClients, None, Decision::Allowed),
        ]
    );
}
