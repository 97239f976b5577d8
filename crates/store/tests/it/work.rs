//! Conformance: what is due is shown to whoever may read the client, and follows every change of an entry; earlier
//! versions are restored as new ones.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{
    POLICY, People, after_s, authz_request, create_whole, decisions, firm_permit, listed, new_client, note,
    people, permit, principal, read, search_for,
};
use crate::samples::NOON;
use chancery_domain::{
    Action, ClientId, Day, DisputeDetails, Entry, EntryId, EntryKind, MinorUnits, Person, RequestId, Version,
};
use chancery_policy::{AuthzRequest, ClientResource, EditClient, Permit, ReadClient, ReassignClient};
use chancery_store::{
    ArchiveChange, ClientChange, ClientQuery, DisputeFilter, EntryChange, EntryQuery, MAX_WORK_ITEMS,
    NewClient, NewEntry, RecordedWork, SaveOutcome, Store, VersionRestore, WorkQuery, WorkSummary,
};
use std::sync::Arc;

fn today() -> Day {
    Day::containing(NOON)
}

/// Due this many days from today.
fn dispute(owner: &Person, title: &str, days: i32) -> NewEntry {
    let due = Some(Day(today().0 + days));
    NewEntry {
        kind: EntryKind::BillingDispute,
        is_open: true,
        dispute: DisputeDetails { amount: Some(MinorUnits(12_050)), due },
        ..note(owner.id, NOON, title)
    }
}

async fn disputed(store: &Store, owner: &Person, name: &str, entries: Vec<NewEntry>) -> ClientId {
    create_whole(store, owner, NewClient { entries, ..new_client(name) }).await
}

async fn found_work(store: &Store, by: &Person, owner: Option<&Person>) -> RecordedWork {
    let query = WorkQuery { owner: owner.map(|owner| owner.id), due_by: Day(today().0 + 7) };
    store.clients.find_work(firm_permit(by), query).await.unwrap()
}

/// With a permit for each client.
async fn work(store: &Store, by: &Person, owner: Option<&Person>) -> WorkSummary {
    let found = found_work(store, by, owner).await;
    let permits = found.clients().into_iter().map(|found| permit(by, found.client, found.owner)).collect();
    store.clients.read_work(&found, permits).await.unwrap()
}

fn titles(summary: &WorkSummary) -> Vec<&str> {
    summary.disputes.iter().map(|dispute| dispute.item.title.as_str()).collect()
}

async fn firm(store: &Store) -> (People, ClientId, ClientId) {
    let people = people(store).await;
    let maya = vec![dispute(&people.maya, "Late", -3), dispute(&people.maya, "Soon", 7)];
    let maya = disputed(store, &people.maya, "Harbour Lane Bakery", maya).await;
    let tom = vec![dispute(&people.tom, "Today", 0), dispute(&people.tom, "Far", 8)];
    let tom = disputed(store, &people.tom, "Calder & Sons", tom).await;
    (people, maya, tom)
}

pub async fn due_disputes_are_those_of_readable_clients_earliest_first(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (people, maya, _) = firm(&store).await;
    let mine = work(&store, &people.maya, None).await;
    assert_eq!(titles(&mine), ["Late", "Soon"]);
    let late = &mine.disputes[0];
    assert_eq!(
        (late.amount, late.due, late.item.client),
        (Some(MinorUnits(12_050)), Day(today().0 - 3), maya)
    );
    assert_eq!(titles(&work(&store, &people.ruth, None).await), ["Late", "Today", "Soon"]);
    assert_eq!(titles(&work(&store, &people.ruth, Some(&people.tom)).await), ["Today"]);
    assert_eq!(work(&store, &people.maya, Some(&people.tom)).await, WorkSummary::default());
    assert!(found_work(&store, &people.maya, Some(&people.tom)).await.clients().is_empty());
}

pub async fn what_waits_needs_a_permit_for_each_client_in_the_same_request(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (people, bakery, calder) = firm(&store).await;
    let (maya, tom, ruth) = (&people.maya, &people.tom, &people.ruth);
    let letter = NewEntry { kind: EntryKind::DraftLetter, is_open: true, ..note(tom.id, NOON, "Reply") };
    store.clients.add_entry(permit(tom, calder, tom.id), letter).await.unwrap();
    read(&store, ruth, bakery).await.unwrap();
    read(&store, ruth, calder).await.unwrap();
    let before = decisions(&store).await.len();
    let found = found_work(&store, ruth, None).await;
    let read_with =
        async |permits: Vec<Permit<ReadClient>>| store.clients.read_work(&found, permits).await.unwrap();
    let other_request = AuthzRequest {
        request_id: RequestId::from_stored("req_9".to_owned()),
        ..authz_request(principal(ruth), NOON)
    };
    let resource = ClientResource { id: bakery, owner: Some(maya.id) };
    let of_other_request = POLICY.decide::<ReadClient>(&other_request, resource).unwrap();
    for (permits, what) in [
        (Vec::new(), "no permit"),
        (vec![of_other_request], "a permit of another request"),
        (vec![permit(maya, bakery, maya.id)], "a permit of another person"),
    ] {
        assert_eq!(read_with(permits).await, WorkSummary::default(), "{what}");
    }
    let of_bakery = read_with(vec![permit(ruth, bakery, maya.id)]).await;
    assert_eq!(titles(&of_bakery), ["Late", "Soon"]);
    assert!(of_bakery.letters.is_empty(), "{of_bakery:?}");
    let recent: Vec<ClientId> = of_bakery.recent.iter().map(|recent| recent.summary.client.id).collect();
    assert_eq!(recent, [bakery]);
    let mayas = found_work(&store, maya, None).await;
    let outside = store.clients.read_work(&mayas, vec![permit(maya, calder, maya.id)]).await.unwrap();
    assert_eq!(outside, WorkSummary::default(), "what was not found is not read");
    let decided = decisions(&store).await;
    let actions: Vec<Action> = decided[before..].iter().map(|row| row.access_request.action).collect();
    assert_eq!(actions, [Action::ListClients; 2], "one row for each request");

    // A permit for a former owner's client reads nothing.
    let reassign = permit::<ReassignClient>(ruth, bakery, maya.id);
    store.clients.reassign_client(reassign, tom.id, None).await.unwrap();
    assert_eq!(read_with(vec![permit(ruth, bakery, maya.id)]).await, WorkSummary::default());
    assert_eq!(read_with(vec![permit(ruth, bakery, tom.id)]).await, WorkSummary::default());
}

pub async fn due_disputes_are_bounded_and_the_earliest_of_all(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    for number in 0..15 {
        let entries = (0..3).map(|entry| dispute(&people.maya, "One", entry * 30 - number)).collect();
        disputed(&store, &people.maya, &format!("Client {number}"), entries).await;
    }
    let many = (0..30).map(|day| dispute(&people.maya, "Many", day - 60)).collect();
    disputed(&store, &people.maya, "The last", many).await;
    let found = work(&store, &people.maya, None).await.disputes;
    assert_eq!(found.len(), MAX_WORK_ITEMS as usize);
    let expected: Vec<i32> = (0..20).map(|day| today().0 + day - 60).collect();
    assert_eq!(found.iter().map(|dispute| dispute.due.0).collect::<Vec<_>>(), expected);
}

pub async fn resolved_and_archived_disputes_are_not_due(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (people, client, _) = firm(&store).await;
    let edit = || permit::<EditClient>(&people.maya, client, people.maya.id);
    let overdue =
        ClientQuery { disputes: Some(DisputeFilter::DueBefore(today())), page: 1, ..ClientQuery::default() };
    let open = ClientQuery { disputes: Some(DisputeFilter::Open), ..overdue.clone() };
    assert_eq!(listed(&store, &people.ruth, &overdue).await, (vec![client.0], 1));
    assert_eq!(listed(&store, &people.ruth, &open).await.1, 2);
    let search = ClientQuery { words: "calder".to_owned(), ..open.clone() };
    assert_eq!(listed(&store, &people.ruth, &search).await.1, 1);
    assert_eq!(listed(&store, &people.maya, &search).await.1, 0);

    let record = read(&store, &people.maya, client).await.unwrap().unwrap();
    let late = record.entries.iter().find(|entry| entry.title.as_str() == "Late").unwrap();
    let change = EntryChange {
        entry: late.id,
        version: late.version,
        title: late.title.clone(),
        text: late.text.clone(),
        at: None,
        is_open: false,
        dispute: None,
    };
    store.clients.edit_entry(edit(), change).await.unwrap();
    assert_eq!(titles(&work(&store, &people.maya, None).await), ["Soon"]);
    assert_eq!(listed(&store, &people.ruth, &overdue).await.1, 0);
    assert_eq!(listed(&store, &people.ruth, &open).await.1, 2);
    let soon = record.entries.iter().find(|entry| entry.title.as_str() == "Soon").unwrap();
    store.clients.set_entry_archived(edit(), soon.id, ArchiveChange::ARCHIVE).await.unwrap();
    assert!(work(&store, &people.maya, None).await.disputes.is_empty());
    assert_eq!(listed(&store, &people.ruth, &open).await.1, 1);
    let kind = Some(EntryKind::BillingDispute);
    let resolved = EntryQuery { kind, is_open: Some(false), ..EntryQuery::default() };
    let read = permit(&people.maya, client, people.maya.id);
    let record = store.clients.read_client(read, &resolved).await.unwrap().unwrap();
    assert_eq!(record.entries.iter().map(|entry| entry.id).collect::<Vec<_>>(), [late.id]);
    assert_eq!(record.entries[0].dispute, late.dispute, "what a form does not have is not changed");
}

pub async fn unsent_letters_and_viewed_clients_are_newest_first(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let letter = |title: &str, seconds| NewEntry {
        kind: EntryKind::DraftLetter,
        is_open: true,
        ..note(people.maya.id, after_s(seconds), title)
    };
    let sent = NewEntry { is_open: false, ..letter("Sent", 9) };
    let one = disputed(&store, &people.maya, "One", vec![letter("Older", 1), sent]).await;
    let two = disputed(&store, &people.maya, "Two", vec![letter("Newer", 2)]).await;
    read(&store, &people.maya, two).await.unwrap();
    read(&store, &people.ruth, one).await.unwrap();
    for by in [&people.maya, &people.ruth] {
        let summary = work(&store, by, None).await;
        let letters: Vec<&str> = summary.letters.iter().map(|letter| letter.item.title.as_str()).collect();
        assert_eq!(letters, ["Newer", "Older"], "{}", by.email);
    }
    let viewed = |summary: WorkSummary| -> Vec<ClientId> {
        summary.recent.iter().map(|recent| recent.summary.client.id).collect()
    };
    assert_eq!(viewed(work(&store, &people.maya, None).await), [two]);
    assert_eq!(viewed(work(&store, &people.ruth, None).await), [one]);
    assert!(viewed(work(&store, &people.ruth, Some(&people.ruth)).await).is_empty());
    assert_eq!(work(&store, &people.tom, None).await, WorkSummary::default());
}

pub async fn restored_version_is_a_new_version_with_the_old_content(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (people, client, _) = firm(&store).await;
    let edit = || permit::<EditClient>(&people.maya, client, people.maya.id);
    let record = read(&store, &people.maya, client).await.unwrap().unwrap();
    let before = record.entries[0].clone();
    let change = EntryChange {
        entry: before.id,
        version: before.version,
        title: "Changed".parse().unwrap(),
        text: "Changed".parse().unwrap(),
        at: Some(after_s(60)),
        is_open: false,
        dispute: Some(DisputeDetails::default()),
    };
    store.clients.edit_entry(edit(), change).await.unwrap();
    let restore = |current, to| VersionRestore { current: Version(current), to: Version(to) };
    let stale = store.clients.restore_entry_version(edit(), before.id, restore(1, 1)).await.unwrap();
    assert!(matches!(stale, SaveOutcome::Conflict(_)), "{stale:?}");
    for (entry, version) in [(before.id, 9), (EntryId(987_654), 1)] {
        let missing = store.clients.restore_entry_version(edit(), entry, restore(2, version)).await.unwrap();
        assert_eq!(missing, SaveOutcome::NotFound);
    }
    let restored = store.clients.restore_entry_version(edit(), before.id, restore(2, 1)).await.unwrap();
    assert_eq!(restored, SaveOutcome::Saved(Entry { version: Version(3), ..before }));

    let change = ClientChange {
        version: Version::FIRST,
        name: "Renamed".parse().unwrap(),
        details: record.client.details.clone(),
    };
    store.clients.edit_client(edit(), change).await.unwrap();
    assert_eq!(listed(&store, &people.maya, &search_for("harbour")).await.1, 0);
    let restored = store.clients.restore_client_version(edit(), restore(2, 1)).await.unwrap();
    let SaveOutcome::Saved(restored) = restored else { panic!("{restored:?}") };
    assert_eq!((restored.name, restored.version), (record.client.name, Version(3)));
    assert_eq!(listed(&store, &people.maya, &search_for("harbour")).await.1, 1);
    let last =
        decisions(&store).await.into_iter().rev().find(|row| row.access_request.client == Some(client));
    assert_eq!(last.unwrap().access_request.action, Action::EditClient);
}
