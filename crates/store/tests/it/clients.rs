//! Conformance: nothing of a client record is read or changed without a permit and an audit row.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{
    NEWEST, after_s, ask, create, create_whole, decisions, firm_permit, listed, manage, new_client, note,
    people, permit, principal, read, read_parts, search_for,
};
use crate::samples::NOON;
use chancery_domain::{
    Action, ClientId, ContactDetails, Day, Decision, EntryId, EntryKind, PersonId, Principal, Telephone,
    Version,
};
use chancery_policy::{
    ArchiveClient, ClientResource, CreateClient, EditClient, ExportClient, FirmResource, ListClients,
    NewClientResource, Permit, ReadClient, ReassignClient,
};
use chancery_store::{
    ArchiveChange, ClientChange, ClientError, ClientOrder, ClientOwner, ClientQuery, ENTRIES_PER_PAGE,
    EntryChange, EntryCursor, EntryQuery, ImportPart, MAX_ENTRIES_PER_CLIENT, NewClient, NewEntry,
    PastReassignment, SaveOutcome, VersionQuery,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

fn details() -> ContactDetails {
    ContactDetails {
        contact: "Priya Raman, owner".parse().unwrap(),
        email: "priya@harbourlane.example".parse().unwrap(),
        telephone: "+1 617 555 0142".parse().unwrap(),
        address: "12 Harbour Lane\nBoston".parse().unwrap(),
        since: Some(Day::containing(NOON)),
    }
}

pub async fn client_ids_start_at_1001_and_records_round_trip(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    assert!(!store.client_imports.has_clients().await.unwrap());
    assert_eq!(store.clients.owner_of(ClientId(1001)).await.unwrap(), None);
    let new = NewClient { details: details(), ..new_client("Harbour Lane Bakery") };
    let first = create_whole(&store, &people.maya, new).await;
    let second = create(&store, &people.tom, "Calder & Sons").await;
    assert_eq!((first, second), (ClientId(1001), ClientId(1002)));
    assert!(store.client_imports.has_clients().await.unwrap());
    assert_eq!(store.clients.owner_of(first).await.unwrap(), Some(people.maya.id));

    let record = read(&store, &people.maya, first).await.unwrap().unwrap();
    assert_eq!(record.client.name.as_str(), "Harbour Lane Bakery");
    assert_eq!(record.client.details, details());
    assert_eq!(
        (record.client.owner.id, record.client.owner.email.as_str()),
        (people.maya.id, "maya@example.com")
    );
    assert_eq!((record.client.version, record.client.created_at), (Version::FIRST, NOON));
    assert_eq!((record.client.archived_at, record.client.last_entry_at), (None, None));
    assert!(record.entries.is_empty() && !record.has_more);
}

pub async fn creating_client_for_removed_owner_is_rejected(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    store.people.remove_person(manage(NOON), people.tom.id, Box::new(|_| true)).await.unwrap();
    for owner in [people.tom.id, PersonId(777)] {
        let permit: Permit<CreateClient> = ask(principal(&people.ruth), NewClientResource(owner)).unwrap();
        let rejected = store.clients.create_client(permit, new_client("Calder & Sons")).await.unwrap_err();
        assert!(matches!(rejected, ClientError::NoSuchPerson(person) if person == owner), "{rejected:?}");
    }
    assert!(!store.client_imports.has_clients().await.unwrap());
    assert_eq!(
        decisions(&store).await.len(),
        1,
        "nothing was done but the removal, so nothing else is on record"
    );
    assert_eq!(create(&store, &people.maya, "Next").await, ClientId(1001), "no number was lost");
}

pub async fn import_is_atomic_and_assigns_ids_in_order(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let permit = |owner| ask::<CreateClient>(Principal::Operator, NewClientResource(owner)).unwrap();
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
    let rejected = store.client_imports.import_clients(clients(PersonId(777)), &|_| {}).await.unwrap_err();
    assert!(matches!(rejected, ClientError::NoSuchPerson(PersonId(777))), "{rejected:?}");
    assert!(!store.client_imports.has_clients().await.unwrap() && decisions(&store).await.is_empty());

    let done = std::sync::Mutex::new(Vec::new());
    let numbers = store
        .client_imports
        .import_clients(clients(people.tom.id), &|count| done.lock().unwrap().push(count))
        .await
        .unwrap();
    assert_eq!(numbers.len(), 1201);
    assert!(numbers.windows(2).all(|pair| pair[1].0 == pair[0].0 + 1));
    let done = done.into_inner().unwrap();
    assert!(done.len() > 1 && done.is_sorted() && done.last() == Some(&1201), "{done:?}");

    let decisions = decisions(&store).await;
    assert_eq!(
        decisions.iter().map(|row| row.access_request.client).collect::<Vec<_>>(),
        numbers.iter().map(|number| Some(*number)).collect::<Vec<_>>()
    );
    assert!(decisions.iter().all(|row| row.access_request.by == Principal::Operator
        && row.access_request.action == Action::CreateClient));

    let record = read(&store, &people.ruth, numbers[6]).await.unwrap().unwrap();
    assert_eq!(record.client.name.as_str(), "Client 6");
    assert_eq!(record.client.last_entry_at, Some(after_s(6)));
    assert_eq!(
        (record.counts.open_disputes, record.counts.open_letters, record.counts.meeting_notes),
        (1, 1, 1)
    );
    assert!(record.entries.iter().all(|entry| entry.is_open == (entry.kind != EntryKind::MeetingNote)));
    let (_, active) = listed(&store, &people.ruth, &ClientQuery { page: 1, ..ClientQuery::default() }).await;
    let archived = ClientQuery { page: 1, is_archived: true, ..ClientQuery::default() };
    assert_eq!((active, listed(&store, &people.ruth, &archived).await.1), (1201 - 240, 240));
    let versions = store
        .clients
        .client_versions(crate::firm::permit(&people.ruth, numbers[5], people.tom.id), VersionQuery::NEWEST)
        .await;
    let (_, versions) = versions.unwrap().unwrap();
    assert_eq!((versions.len(), versions[0].is_archived, versions[0].by.clone()), (1, true, None));
}

pub async fn import_in_parts_is_written_only_with_its_end(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let part = |more_entries: i64, name: &str| {
        let more_entries =
            (0..more_entries).map(|number| note(people.tom.id, after_s(number), "More")).collect();
        let permit = ask::<CreateClient>(Principal::Operator, NewClientResource(people.maya.id)).unwrap();
        let entries = vec![note(people.maya.id, NOON, "First")];
        ImportPart::Clients {
            more_entries,
            clients: vec![(permit, NewClient { entries, ..new_client(name) })],
        }
    };
    let import = async |parts: Vec<ImportPart>| {
        let (sender, received) = tokio::sync::mpsc::channel(parts.len());
        parts.into_iter().for_each(|part| sender.try_send(part).ok().unwrap());
        drop(sender);
        store.client_imports.import_parts(received, &|_| {}).await
    };
    let rejected = import(vec![part(0, "One"), part(3, "Two")]).await.unwrap_err();
    assert!(matches!(rejected, ClientError::ImportIncomplete), "{rejected:?}");
    let too_many = part(i64::try_from(MAX_ENTRIES_PER_CLIENT).unwrap(), "Two");
    let rejected = import(vec![part(0, "One"), too_many, ImportPart::End]).await.unwrap_err();
    assert!(matches!(rejected, ClientError::TooManyEntries { .. }), "{rejected:?}");
    assert!(!store.client_imports.has_clients().await.unwrap() && decisions(&store).await.is_empty());

    let numbers = import(vec![part(0, "One"), part(3, "Two"), ImportPart::End]).await.unwrap();
    assert_eq!((numbers.len(), decisions(&store).await.len()), (2, 2));
    let [one, two] = numbers[..] else { panic!("{numbers:?}") };
    let one = read(&store, &people.ruth, one).await.unwrap().unwrap();
    assert_eq!((one.entries.len(), one.counts.meeting_notes), (4, 4));
    assert_eq!(one.client.last_entry_at, Some(after_s(2)));
    assert_eq!(read(&store, &people.ruth, two).await.unwrap().unwrap().entries.len(), 1);
}

pub async fn each_read_and_denial_adds_one_audit_row(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    read(&store, &people.maya, client).await.unwrap().unwrap();
    let resource = ClientResource { id: client, owner: Some(people.maya.id) };
    store
        .audit
        .record_denial(ask::<ReadClient>(principal(&people.tom), resource).unwrap_err())
        .await
        .unwrap();
    let unknown = ClientResource { id: ClientId(9999), owner: None };
    store.audit.record_denial(ask::<ReadClient>(principal(&people.tom), unknown).unwrap_err()).await.unwrap();
    assert_eq!(read(&store, &people.ruth, ClientId(9999)).await.unwrap(), None);
    listed(&store, &people.tom, &search_for("")).await;

    let rows: Vec<_> = decisions(&store)
        .await
        .into_iter()
        .map(|row| {
            (
                row.access_request.by.person(),
                row.access_request.action,
                row.access_request.client.map(|client| client.0),
                row.decision,
            )
        })
        .collect();
    let (maya, tom, ruth) = (Some(people.maya.id), Some(people.tom.id), Some(people.ruth.id));
    assert_eq!(
        rows,
        [
            (maya, Action::CreateClient, Some(1001), Decision::Allowed),
            (maya, Action::ReadClient, Some(1001), Decision::Allowed),
            (tom, Action::ReadClient, Some(1001), Decision::Denied),
            (tom, Action::ReadClient, Some(9999), Decision::Denied),
            (ruth, Action::ReadClient, Some(9999), Decision::Allowed),
            (tom, Action::ListClients, None, Decision::Allowed),
        ]
    );
}

/// The request also names another client's entry, an unknown one, an archived one, and one of its own twice.
pub async fn draft_reads_only_own_unarchived_entries_and_audits_an_edit(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let maya = people.maya.id;
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    let other = create(&store, &people.maya, "Calder & Sons").await;
    let mut ids = Vec::new();
    for (of, at_s, title) in
        [(client, 0, "Older"), (client, 60, "Newer"), (client, 30, "Away"), (other, 0, "Another's")]
    {
        let added = store
            .clients
            .add_entry(permit(&people.maya, of, maya), note(maya, after_s(at_s), title))
            .await
            .unwrap();
        ids.push(added.id);
    }
    store
        .clients
        .set_entry_archived(permit(&people.maya, client, maya), ids[2], ArchiveChange::ARCHIVE)
        .await
        .unwrap();
    let decided = decisions(&store).await.len();
    let named = [ids.as_slice(), &[ids[0], EntryId(987_654)]].concat();
    let edit = permit::<EditClient>(&people.maya, client, maya);
    let (found, entries) = store.clients.read_for_draft(edit, &named).await.unwrap().unwrap();
    assert_eq!(found.id, client);
    assert_eq!(entries.iter().map(|entry| entry.id).collect::<Vec<_>>(), [ids[1], ids[0]], "newest first");
    let rows = decisions(&store).await.split_off(decided);
    let rows: Vec<_> =
        rows.iter().map(|row| (row.access_request.action, row.access_request.client, row.decision)).collect();
    assert_eq!(rows, [(Action::EditClient, Some(client), Decision::Allowed)]);

    let (early, late) =
        (permit::<EditClient>(&people.maya, client, maya), permit(&people.tom, client, people.tom.id));
    store.clients.reassign_client(permit(&people.ruth, client, maya), people.tom.id, None).await.unwrap();
    let rejected = store.clients.read_for_draft(early, &[]).await.unwrap_err();
    assert!(matches!(rejected, ClientError::OwnerChanged(changed) if changed == client), "{rejected:?}");
    assert_eq!(store.clients.read_for_draft(late, &[]).await.unwrap().unwrap().1, []);
    let unknown =
        ask::<EditClient>(principal(&people.ruth), ClientResource { id: ClientId(9999), owner: None });
    assert_eq!(store.clients.read_for_draft(unknown.unwrap(), &[]).await.unwrap(), None);
}

fn change(version: Version, name: &str) -> ClientChange {
    ClientChange { version, name: name.parse().unwrap(), details: details() }
}

pub async fn edit_adds_version_and_keeps_history(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbor Lane Bakery").await;
    let edit = || permit::<EditClient>(&people.maya, client, people.maya.id);
    let SaveOutcome::Saved(saved) =
        store.clients.edit_client(edit(), change(Version(1), "Harbour Lane Bakery")).await.unwrap()
    else {
        panic!("it was not saved");
    };
    assert_eq!((saved.version, saved.name.as_str()), (Version(2), "Harbour Lane Bakery"));
    // A change without effect creates no version.
    let again = store.clients.edit_client(edit(), change(Version(2), "Harbour Lane Bakery")).await.unwrap();
    assert_eq!(again, SaveOutcome::Saved(saved.clone()));
    let away = permit::<ArchiveClient>(&people.ruth, client, people.maya.id);
    store.clients.set_client_archived(away, ArchiveChange::ARCHIVE).await.unwrap();
    store
        .clients
        .reassign_client(permit(&people.ruth, client, people.maya.id), people.tom.id, None)
        .await
        .unwrap();

    let (now, versions) = store
        .clients
        .client_versions(permit(&people.tom, client, people.tom.id), VersionQuery::NEWEST)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(now.version, Version(4));
    let summaries: Vec<_> = versions
        .iter()
        .map(|version| {
            let by = version.by.as_ref().map(|by| by.id);
            (version.version.0, version.name.as_str(), version.owner.id, version.is_archived, by)
        })
        .collect();
    let (maya, tom, ruth) = (people.maya.id, people.tom.id, people.ruth.id);
    assert_eq!(
        summaries,
        [
            (4, "Harbour Lane Bakery", tom, true, Some(ruth)),
            (3, "Harbour Lane Bakery", maya, true, Some(ruth)),
            (2, "Harbour Lane Bakery", maya, false, Some(maya)),
            (1, "Harbor Lane Bakery", maya, false, Some(maya)),
        ]
    );
    assert_eq!(
        (versions[3].details.clone(), versions[2].details.clone()),
        (ContactDetails::default(), details())
    );
    assert_eq!(versions[0].by.as_ref().unwrap().email.as_str(), "ruth@example.com");
}

pub async fn edit_of_stale_version_conflicts_without_change(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbor Lane Bakery").await;
    let edit = || permit::<EditClient>(&people.maya, client, people.maya.id);
    store.clients.edit_client(edit(), change(Version(1), "First")).await.unwrap();
    let before = decisions(&store).await.len();
    for version in [1, 3, 0] {
        match store.clients.edit_client(edit(), change(Version(version), "Second")).await.unwrap() {
            SaveOutcome::Conflict(now) => assert_eq!((now.version, now.name.as_str()), (Version(2), "First")),
            other => panic!("{other:?}"),
        }
    }
    let (now, versions) = store
        .clients
        .client_versions(permit(&people.maya, client, people.maya.id), VersionQuery::NEWEST)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((now.name.as_str(), versions.len()), ("First", 2));
    assert_eq!(decisions(&store).await.len(), before + 4, "three edits and a look were decided");
}

pub async fn concurrent_edits_yield_one_save_and_one_conflict(database: Arc<AnyDatabase>) {
    let stores = [database.open().await, database.open().await];
    let people = people(&stores[0]).await;
    let client = create(&stores[0], &people.maya, "Harbor Lane Bakery").await;
    let entry = stores[0]
        .clients
        .add_entry(permit(&people.maya, client, people.maya.id), note(people.maya.id, NOON, "One"))
        .await;
    let entry = entry.unwrap().id;
    for round in 0..20_i64 {
        let editing = [0, 1].map(|editor| {
            let (store, owner) = (Arc::clone(&stores[editor]), people.maya.id);
            let of_client = permit::<EditClient>(&people.maya, client, owner);
            let of_entry = permit::<EditClient>(&people.ruth, client, owner);
            tokio::spawn(async move {
                let expected = change(Version(round + 1), &format!("Round {round} by {editor}"));
                let client = store.clients.edit_client(of_client, expected).await.unwrap();
                let expected = EntryChange {
                    entry,
                    version: Version(round + 1),
                    title: format!("Round {round} by {editor}").parse().unwrap(),
                    text: "Text".parse().unwrap(),
                    at: Some(NOON),
                    is_open: false,
                    dispute: None,
                };
                (client, store.clients.edit_entry(of_entry, expected).await.unwrap())
            })
        });
        let (mut clients, mut entries) = (Vec::new(), Vec::new());
        for editor in editing {
            let (client, entry) = editor.await.unwrap();
            clients.push(client);
            entries.push(entry);
        }
        let saved = |changed: &&SaveOutcome<_>| matches!(changed, SaveOutcome::Saved(_));
        assert_eq!(clients.iter().filter(saved).count(), 1, "{clients:?}");
        let (
            SaveOutcome::Saved(one) | SaveOutcome::Conflict(one),
            SaveOutcome::Saved(other) | SaveOutcome::Conflict(other),
        ) = (&clients[0], &clients[1])
        else {
            panic!("{clients:?}");
        };
        assert_eq!(one, other, "who came second learns what the first has saved");
        assert_eq!(entries.iter().filter(|changed| matches!(changed, SaveOutcome::Saved(_))).count(), 1);
    }
    let (_, versions) = stores[0]
        .clients
        .client_versions(permit(&people.maya, client, people.maya.id), VersionQuery::NEWEST)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(versions.len(), 21);

    let page = |before: Option<i64>, limit| VersionQuery::Page { before: before.map(Version), limit };
    let cases: [(VersionQuery, &[i64]); 5] = [
        (page(None, 3), &[21, 20, 19]),
        (page(Some(3), 3), &[2, 1]),
        (VersionQuery::CurrentAnd(Version(4)), &[21, 4]),
        (VersionQuery::CurrentAnd(Version(99)), &[21]),
        (VersionQuery::None, &[]),
    ];
    for (query, numbers) in cases {
        let read = permit(&people.maya, client, people.maya.id);
        let (_, versions) = stores[0].clients.client_versions(read, query).await.unwrap().unwrap();
        let of_client: Vec<i64> = versions.iter().map(|version| version.version.0).collect();
        let read = permit(&people.maya, client, people.maya.id);
        let (_, versions) = stores[0].clients.entry_versions(read, entry, query).await.unwrap().unwrap();
        let of_entry: Vec<i64> = versions.iter().map(|version| version.version.0).collect();
        assert_eq!((of_client.as_slice(), of_entry.as_slice()), (numbers, numbers), "{query:?}");
    }
}

pub async fn archived_client_keeps_data_and_leaves_default_list(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    let other = create(&store, &people.maya, "Calder & Sons").await;
    let archive = || permit::<ArchiveClient>(&people.maya, client, people.maya.id);
    let SaveOutcome::Saved(away) =
        store.clients.set_client_archived(archive(), ArchiveChange::ARCHIVE).await.unwrap()
    else {
        panic!()
    };
    assert_eq!((away.archived_at, away.version), (Some(NOON), Version(2)));
    assert_eq!(
        store.clients.set_client_archived(archive(), ArchiveChange::ARCHIVE).await.unwrap(),
        SaveOutcome::Saved(away),
        "nothing changes twice"
    );
    let active = search_for("");
    let archived = ClientQuery { is_archived: true, ..search_for("") };
    for person in [&people.maya, &people.ruth] {
        assert_eq!(listed(&store, person, &active).await, (vec![other.0], 1));
        assert_eq!(listed(&store, person, &archived).await, (vec![client.0], 1));
        assert_eq!(listed(&store, person, &search_for("bakery")).await, (vec![], 0));
        assert_eq!(
            listed(&store, person, &ClientQuery { is_archived: true, ..search_for("bakery") }).await.1,
            1
        );
    }
    assert!(read(&store, &people.maya, client).await.unwrap().is_some());
    let SaveOutcome::Saved(back) =
        store.clients.set_client_archived(archive(), ArchiveChange::RESTORE).await.unwrap()
    else {
        panic!()
    };
    assert_eq!((back.archived_at, back.version), (None, Version(3)));
    assert_eq!(listed(&store, &people.maya, &active).await.1, 2);
}

pub async fn reassigned_client_is_readable_only_by_new_owner(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    let reassign = |owner| permit::<ReassignClient>(&people.ruth, client, owner);
    let SaveOutcome::Saved(same) =
        store.clients.reassign_client(reassign(people.maya.id), people.maya.id, None).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(same.version, Version(1), "to whom it is already is no change");
    let SaveOutcome::Saved(moved) =
        store.clients.reassign_client(reassign(people.maya.id), people.tom.id, None).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(
        (moved.owner.id, moved.owner.email.as_str(), moved.version),
        (people.tom.id, "tom@example.com", Version(2))
    );
    assert_eq!(store.clients.owner_of(client).await.unwrap(), Some(people.tom.id));
    for query in [search_for(""), search_for("bakery"), search_for("1001")] {
        assert_eq!(listed(&store, &people.maya, &query).await, (vec![], 0));
        assert_eq!(listed(&store, &people.tom, &query).await, (vec![client.0], 1));
        assert_eq!(listed(&store, &people.ruth, &query).await, (vec![client.0], 1));
    }
    store.people.remove_person(manage(NOON), people.maya.id, Box::new(|_| true)).await.unwrap();
    let rejected =
        store.clients.reassign_client(reassign(people.tom.id), people.maya.id, None).await.unwrap_err();
    assert!(
        matches!(rejected, ClientError::NoSuchPerson(person) if person == people.maya.id),
        "{rejected:?}"
    );
    let unknown: Permit<ReassignClient> =
        ask(principal(&people.ruth), ClientResource { id: ClientId(5), owner: None }).unwrap();
    assert_eq!(
        store.clients.reassign_client(unknown, people.tom.id, None).await.unwrap(),
        SaveOutcome::NotFound
    );
}

pub async fn bulk_reassign_is_atomic(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let permit_to_make =
        || ask::<CreateClient>(Principal::Operator, NewClientResource(people.maya.id)).unwrap();
    let new = (0..700).map(|number| (permit_to_make(), new_client(&format!("Client {number}")))).collect();
    let clients = store.client_imports.import_clients(new, &|_| {}).await.unwrap();
    let toms = create(&store, &people.tom, "Toms own").await;
    let before = decisions(&store).await.len();

    let permits =
        |owner| clients.iter().map(|client| permit(&people.ruth, *client, owner)).collect::<Vec<_>>();
    let mut wrong = permits(people.maya.id);
    wrong.push(permit(&people.ruth, toms, people.maya.id));
    let rejected =
        store.clients.reassign_clients(BTreeMap::from([(people.tom.id, wrong)])).await.unwrap_err();
    assert!(matches!(rejected, ClientError::OwnerChanged(client) if client == toms), "{rejected:?}");
    assert_eq!(listed(&store, &people.maya, &search_for("")).await.1, 700);
    let rejected = store
        .clients
        .reassign_clients(BTreeMap::from([(PersonId(777), permits(people.maya.id))]))
        .await
        .unwrap_err();
    assert!(matches!(rejected, ClientError::NoSuchPerson(PersonId(777))), "{rejected:?}");
    assert_eq!(decisions(&store).await.len(), before + 1, "only the list was read");

    let mut twice = permits(people.maya.id);
    twice.push(permit(&people.ruth, clients[0], people.maya.id));
    assert_eq!(store.clients.reassign_clients(BTreeMap::from([(people.tom.id, twice)])).await.unwrap(), 700);
    assert_eq!(listed(&store, &people.maya, &search_for("")).await.1, 0);
    assert_eq!(listed(&store, &people.tom, &search_for("client")).await.1, 700);
    let list = ask::<ListClients>(principal(&people.ruth), FirmResource).unwrap();
    let past = store.clients.reassigned_at(&list, NOON).await.unwrap();
    let former = |past: &PastReassignment| {
        (past.now.owner, past.former_owner, past.can_undo) == (people.tom.id, people.maya.id, true)
    };
    assert!(past.len() == 700 && past.iter().all(former), "{past:?}");
    let own = ask::<ListClients>(principal(&people.maya), FirmResource).unwrap();
    assert_eq!(store.clients.reassigned_at(&own, NOON).await.unwrap(), [], "they are no longer hers to see");
    assert_eq!(store.clients.reassigned_at(&list, NOON.after(Duration::from_secs(1))).await.unwrap(), []);
    assert_eq!(
        store
            .clients
            .reassign_clients(BTreeMap::from([(people.tom.id, permits(people.tom.id))]))
            .await
            .unwrap(),
        0
    );
    let (now, versions) = store
        .clients
        .client_versions(permit(&people.tom, clients[9], people.tom.id), VersionQuery::NEWEST)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((now.version, versions.len(), versions[0].owner.id), (Version(2), 2, people.tom.id));
}

pub async fn permit_for_former_owner_is_invalid(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    let maya = people.maya.id;
    let entry =
        store.clients.add_entry(permit(&people.maya, client, maya), note(maya, NOON, "One")).await.unwrap();
    let read = permit::<ReadClient>(&people.maya, client, maya);
    let (versions, entry_versions) = (permit(&people.maya, client, maya), permit(&people.maya, client, maya));
    let archive = permit::<ArchiveClient>(&people.maya, client, maya);
    let edits: [Permit<EditClient>; 4] = std::array::from_fn(|_| permit(&people.maya, client, maya));
    let export = permit::<ExportClient>(&people.maya, client, maya);
    let reassign = permit::<ReassignClient>(&people.ruth, client, maya);
    store.clients.reassign_client(permit(&people.ruth, client, maya), people.tom.id, None).await.unwrap();
    let before = decisions(&store).await;

    let [edit, add, edit_entry, archive_entry] = edits;
    let entry_change = EntryChange {
        entry: entry.id,
        version: entry.version,
        title: "Two".parse().unwrap(),
        text: entry.text.clone(),
        at: Some(NOON),
        is_open: false,
        dispute: None,
    };
    let rejections = [
        store.clients.read_client(read, &NEWEST).await.unwrap_err(),
        store.clients.client_versions(versions, VersionQuery::NEWEST).await.unwrap_err(),
        store.clients.entry_versions(entry_versions, entry.id, VersionQuery::NEWEST).await.unwrap_err(),
        store.clients.set_client_archived(archive, ArchiveChange::ARCHIVE).await.unwrap_err(),
        store.clients.edit_client(edit, change(Version(2), "Mine")).await.unwrap_err(),
        store.clients.add_entry(add, note(maya, NOON, "Two")).await.unwrap_err(),
        store.clients.edit_entry(edit_entry, entry_change).await.unwrap_err(),
        store.clients.set_entry_archived(archive_entry, entry.id, ArchiveChange::ARCHIVE).await.unwrap_err(),
        store.clients.reassign_client(reassign, maya, None).await.unwrap_err(),
    ];
    for rejection in rejections {
        assert!(
            matches!(rejection, ClientError::OwnerChanged(changed) if changed == client),
            "{rejection:?}"
        );
    }
    assert_eq!(store.clients.open_records(vec![export]).await.unwrap().clients().count(), 0);
    assert_eq!(decisions(&store).await, before, "what was not done is not on record");
    let record = crate::firm::read(&store, &people.tom, client).await.unwrap().unwrap();
    assert_eq!((record.client.version, record.entries), (Version(2), vec![entry]));
    assert_eq!(record.views.iter().map(|look| look.person.id).collect::<Vec<_>>(), [people.tom.id]);
}

pub async fn permit_for_unused_id_does_not_open_later_client(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let unknown = ClientResource { id: ClientId(1001), owner: None };
    let early = ask::<ReadClient>(principal(&people.ruth), unknown).unwrap();
    assert_eq!(
        store.clients.read_client(ask(principal(&people.ruth), unknown).unwrap(), &NEWEST).await.unwrap(),
        None
    );
    let edit = change(Version(1), "New name");
    assert_eq!(
        store.clients.edit_client(ask(principal(&people.ruth), unknown).unwrap(), edit).await.unwrap(),
        SaveOutcome::NotFound
    );
    let rejected = store
        .clients
        .add_entry(ask(principal(&people.ruth), unknown).unwrap(), note(people.ruth.id, NOON, "One"))
        .await;
    assert!(matches!(rejected, Err(ClientError::NoSuchClient(ClientId(1001)))), "{rejected:?}");
    create(&store, &people.maya, "Harbour Lane Bakery").await;
    let rejected = store.clients.read_client(early, &NEWEST).await.unwrap_err();
    assert!(matches!(rejected, ClientError::OwnerChanged(ClientId(1001))), "{rejected:?}");
}

/// Reads with earlier permits while the client is being reassigned. Whatever a person gets was written while the client was
/// theirs.
pub async fn reassign_race_never_shows_client_to_former_owner(database: Arc<AnyDatabase>) {
    const ROUNDS: usize = 200;
    let (store, other) = (database.open().await, database.open().await);
    let people = Arc::new(people(&store).await);
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    let moving = tokio::spawn({
        let (other, people) = (Arc::clone(&other), Arc::clone(&people));
        async move {
            for round in 0..ROUNDS {
                let (from, to) = match round % 2 {
                    0 => (&people.maya, &people.tom),
                    _ => (&people.tom, &people.maya),
                };
                // Writes what only the new owner may see, right after the reassignment.
                other
                    .clients
                    .reassign_client(permit(&people.ruth, client, from.id), to.id, None)
                    .await
                    .unwrap();
                let title = format!("for {}", to.id);
                other
                    .clients
                    .add_entry(permit(to, client, to.id), note(to.id, after_s(round as i64), &title))
                    .await
                    .unwrap();
            }
        }
    });
    let (mut shown, mut rejected) = (0, 0);
    while !moving.is_finished() {
        for person in [&people.maya, &people.tom] {
            let early = permit::<ReadClient>(person, client, person.id);
            match store.clients.read_client(early, &NEWEST).await {
                Ok(Some(record)) => {
                    shown += 1;
                    assert_eq!(record.client.owner.id, person.id, "somebody else's record");
                }
                Err(ClientError::OwnerChanged(_)) => rejected += 1,
                other => panic!("{other:?}"),
            }
            let lines = store
                .clients
                .list_clients(firm_permit::<ListClients>(person), &search_for(""))
                .await
                .unwrap()
                .lines;
            assert!(lines.iter().all(|line| line.client.owner.id == person.id), "{lines:?}");
        }
    }
    moving.await.unwrap();
    assert!(shown > 0 && rejected > 0, "{shown} shown, {rejected} refused");
    crate::firm::verified_audit_chains(&store).await;
}

pub async fn entries_page_newest_first_filtered_by_kind_and_archived(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let (maya, tom) = (people.maya.id, people.tom.id);
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    let other = create(&store, &people.maya, "Calder & Sons").await;
    let edit = || permit::<EditClient>(&people.maya, client, maya);
    let mut entries = Vec::new();
    for number in 0..60_i64 {
        let kind = EntryKind::ALL[number as usize % 3];
        // Some have the same time. Of those, the one written later comes first.
        let at = after_s(-(number / 4));
        let new = NewEntry { kind, is_open: number % 2 == 0, ..note(tom, at, &format!("Number {number}")) };
        entries.push(store.clients.add_entry(edit(), new).await.unwrap());
    }
    store
        .clients
        .add_entry(permit(&people.maya, other, maya), note(maya, after_s(99), "Elsewhere"))
        .await
        .unwrap();
    entries.sort_by_key(|entry| (std::cmp::Reverse(entry.at), std::cmp::Reverse(entry.id)));
    assert_eq!(entries[0].author.email.as_str(), "tom@example.com");

    let read = async |expected: EntryQuery| {
        store.clients.read_client(permit(&people.maya, client, maya), &expected).await.unwrap().unwrap()
    };
    for kind in [None, Some(EntryKind::BillingDispute)] {
        let expected: Vec<_> =
            entries.iter().filter(|entry| kind.is_none_or(|kind| kind == entry.kind)).collect();
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let record = read(EntryQuery { kind, is_open: None, is_archived: false, after }).await;
            assert!(record.entries.len() <= ENTRIES_PER_PAGE as usize);
            after = record.entries.last().map(|entry| EntryCursor { at: entry.at, id: entry.id });
            found.extend(record.entries);
            if !record.has_more {
                break;
            }
        }
        assert_eq!(found.iter().collect::<Vec<_>>(), expected);
    }
    let record = read(NEWEST).await;
    assert_eq!(record.client.last_entry_at, Some(NOON));
    let counts = &record.counts;
    assert_eq!(
        (counts.meeting_notes, counts.billing_disputes, counts.draft_letters, counts.archived),
        (20, 20, 20, 0)
    );
    assert_eq!((counts.open_disputes, counts.open_letters), (10, 10));
    let line =
        &store.clients.list_clients(firm_permit(&people.maya), &search_for("bakery")).await.unwrap().lines[0];
    assert_eq!((line.open_disputes, line.open_letters), (10, 10));

    // Archives the four newest.
    for entry in &entries[..4] {
        let SaveOutcome::Saved(away) =
            store.clients.set_entry_archived(edit(), entry.id, ArchiveChange::ARCHIVE).await.unwrap()
        else {
            panic!()
        };
        assert_eq!((away.archived_at, away.version), (Some(NOON), Version(2)));
        assert_eq!(
            store.clients.set_entry_archived(edit(), entry.id, ArchiveChange::ARCHIVE).await.unwrap(),
            SaveOutcome::Saved(away)
        );
    }
    let record = read(NEWEST).await;
    assert_eq!(record.entries, entries[4..29]);
    assert_eq!((record.client.last_entry_at, record.counts.archived), (Some(after_s(-1)), 4));
    let away = read(EntryQuery { is_archived: true, ..EntryQuery::default() }).await;
    assert_eq!(
        away.entries.iter().map(|entry| entry.id).collect::<Vec<_>>(),
        entries[..4].iter().map(|entry| entry.id).collect::<Vec<_>>()
    );
    store.clients.set_entry_archived(edit(), entries[0].id, ArchiveChange::RESTORE).await.unwrap();
    assert_eq!(read(NEWEST).await.client.last_entry_at, Some(NOON));
}

pub async fn entry_edits_stay_in_their_record_and_keep_versions(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let (mayas, toms) = (create(&store, &people.maya, "One").await, create(&store, &people.tom, "Two").await);
    let edit = || permit::<EditClient>(&people.maya, mayas, people.maya.id);
    let dispute =
        NewEntry { kind: EntryKind::BillingDispute, is_open: true, ..note(people.maya.id, NOON, "The bill") };
    let entry = store.clients.add_entry(edit(), dispute).await.unwrap();
    let toms_entry = store
        .clients
        .add_entry(permit(&people.tom, toms, people.tom.id), note(people.tom.id, NOON, "Theirs"))
        .await
        .unwrap();
    let change = |entry: &chancery_domain::Entry, title: &str, is_open| EntryChange {
        entry: entry.id,
        version: entry.version,
        title: title.parse().unwrap(),
        text: entry.text.clone(),
        at: Some(after_s(-60)),
        is_open,
        dispute: None,
    };

    // A permit for one client does not reach another client's entry.
    assert_eq!(
        store.clients.edit_entry(edit(), change(&toms_entry, "Mine", false)).await.unwrap(),
        SaveOutcome::NotFound
    );
    assert_eq!(
        store.clients.set_entry_archived(edit(), toms_entry.id, ArchiveChange::ARCHIVE).await.unwrap(),
        SaveOutcome::NotFound
    );
    let look = permit::<ReadClient>(&people.maya, mayas, people.maya.id);
    assert_eq!(store.clients.entry_versions(look, toms_entry.id, VersionQuery::NEWEST).await.unwrap(), None);

    let SaveOutcome::Saved(settled) =
        store.clients.edit_entry(edit(), change(&entry, "The bill, settled", false)).await.unwrap()
    else {
        panic!()
    };
    assert_eq!((settled.version, settled.is_open, settled.at), (Version(2), false, after_s(-60)));
    let same = change(&settled, "The bill, settled", false);
    assert_eq!(store.clients.edit_entry(edit(), same).await.unwrap(), SaveOutcome::Saved(settled.clone()));
    let old = change(&entry, "Late", true);
    assert_eq!(store.clients.edit_entry(edit(), old).await.unwrap(), SaveOutcome::Conflict(settled.clone()));
    let by_partner = permit::<EditClient>(&people.ruth, mayas, people.maya.id);
    store.clients.set_entry_archived(by_partner, entry.id, ArchiveChange::ARCHIVE).await.unwrap();

    let (now, versions) = store
        .clients
        .entry_versions(permit(&people.maya, mayas, people.maya.id), entry.id, VersionQuery::NEWEST)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((now.version, now.archived_at), (Version(3), Some(NOON)));
    let summaries: Vec<_> = versions
        .iter()
        .map(|v| (v.version.0, v.title.as_str(), v.is_open, v.is_archived, v.by.as_ref().map(|by| by.id)))
        .collect();
    let (maya, ruth) = (Some(people.maya.id), Some(people.ruth.id));
    assert_eq!(
        summaries,
        [
            (3, "The bill, settled", false, true, ruth),
            (2, "The bill, settled", false, false, maya),
            (1, "The bill", true, false, maya),
        ]
    );
    let open_note = NewEntry { is_open: true, ..note(people.maya.id, NOON, "A note") };
    assert!(!store.clients.add_entry(edit(), open_note).await.unwrap().is_open, "a note is never open");
    let by_unknown_author = note(PersonId(777), NOON, "Whose?");
    assert!(matches!(
        store.clients.add_entry(edit(), by_unknown_author).await,
        Err(ClientError::NoSuchPerson(PersonId(777)))
    ));
}

pub async fn entries_per_client_are_bounded(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let most = usize::try_from(MAX_ENTRIES_PER_CLIENT).unwrap();
    let entries = |count| vec![note(people.maya.id, NOON, "A note"); count];
    let new = |count| NewClient { entries: entries(count), ..new_client("Harbour Lane Bakery") };
    let make = || ask::<CreateClient>(principal(&people.maya), NewClientResource(people.maya.id)).unwrap();
    let rejected = store.clients.create_client(make(), new(most + 1)).await.unwrap_err();
    assert!(
        matches!(rejected, ClientError::TooManyEntries { max: MAX_ENTRIES_PER_CLIENT, .. }),
        "{rejected:?}"
    );
    let client = store.clients.create_client(make(), new(most)).await.unwrap();
    let edit = || permit::<EditClient>(&people.maya, client, people.maya.id);
    let one_more = store.clients.add_entry(edit(), note(people.maya.id, NOON, "One more")).await.unwrap_err();
    assert!(one_more.to_string().contains("Harbour Lane Bakery"), "{one_more}");
    let reader = store.clients.open_record(permit(&people.maya, client, people.maya.id)).await;
    let parts = read_parts(&mut reader.unwrap().unwrap()).await;
    assert_eq!(parts.iter().map(|part| part.entries.len()).sum::<usize>(), most);
    // An archived entry still counts toward the limit.
    store.clients.set_entry_archived(edit(), parts[0].entries[0].id, ArchiveChange::ARCHIVE).await.unwrap();
    assert!(store.clients.add_entry(edit(), note(people.maya.id, NOON, "One more")).await.is_err());
}

pub async fn record_lists_its_viewers(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    let at = |person, seconds| {
        let authz_request = crate::firm::authz_request(principal(person), after_s(seconds));
        let resource = ClientResource { id: client, owner: Some(people.maya.id) };
        crate::firm::POLICY.decide::<ReadClient>(&authz_request, resource).unwrap()
    };
    store
        .clients
        .edit_client(permit(&people.ruth, client, people.maya.id), change(Version(1), "Name"))
        .await
        .unwrap();
    let record = store.clients.read_client(at(&people.maya, 1), &NEWEST).await.unwrap().unwrap();
    assert_eq!(record.views.len(), 1, "an edit is no look");
    store.clients.read_client(at(&people.ruth, 2), &NEWEST).await.unwrap();
    store.clients.read_client(at(&people.maya, 3), &NEWEST).await.unwrap();
    let export: Permit<ExportClient> = permit(&people.ruth, client, people.maya.id);
    drop(store.clients.open_records(vec![export]).await.unwrap());
    let operators: Permit<ExportClient> =
        ask(Principal::Operator, ClientResource { id: client, owner: Some(people.maya.id) }).unwrap();
    drop(store.clients.open_records(vec![operators]).await.unwrap());
    let record = store.clients.read_client(at(&people.maya, 5), &NEWEST).await.unwrap().unwrap();
    let views: Vec<_> =
        record.views.iter().map(|look| (look.person.email.as_str(), look.last_at, look.times)).collect();
    assert_eq!(views, [("maya@example.com", after_s(5), 3), ("ruth@example.com", NOON, 2)]);
}

pub async fn export_contains_full_records_with_unchanged_owner(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let maya = people.maya.id;
    let (one, two) = (create(&store, &people.maya, "One").await, create(&store, &people.maya, "Two").await);
    let away =
        create_whole(&store, &people.maya, NewClient { is_archived: true, ..new_client("Three") }).await;
    let first =
        store.clients.add_entry(permit(&people.maya, one, maya), note(maya, NOON, "First")).await.unwrap();
    let second = store
        .clients
        .add_entry(permit(&people.maya, one, maya), note(maya, after_s(1), "Second"))
        .await
        .unwrap();
    let gone = store
        .clients
        .add_entry(permit(&people.maya, one, maya), note(maya, after_s(2), "Gone"))
        .await
        .unwrap();
    store
        .clients
        .set_entry_archived(permit(&people.maya, one, maya), gone.id, ArchiveChange::ARCHIVE)
        .await
        .unwrap();
    let imported = NewEntry { is_archived: true, ..note(maya, after_s(3), "Put away elsewhere") };
    let brought = NewClient { entries: vec![imported, note(maya, NOON, "Kept")], ..new_client("Four") };
    let four = create_whole(&store, &people.maya, brought).await;
    let permits =
        [two, away, one, four].map(|client| permit::<ExportClient>(&people.maya, client, maya)).into();
    store.clients.reassign_client(permit(&people.ruth, two, maya), people.tom.id, None).await.unwrap();
    let before = decisions(&store).await.len();
    let records = read_parts(&mut store.clients.open_records(permits).await.unwrap()).await;
    assert!(records.iter().all(|record| record.is_first && record.is_last), "{records:?}");
    assert_eq!(records.iter().map(|record| record.client.id).collect::<Vec<_>>(), [away, one, four]);
    let [rest @ .., archive] = records[1].entries.as_slice() else { panic!("{:?}", records[1].entries) };
    assert_eq!((archive.id, archive.archived_at.is_some()), (gone.id, true), "what is archived is there too");
    assert_eq!(rest, [first, second]);
    let four_has: Vec<_> =
        records[2].entries.iter().map(|entry| (entry.title.as_str(), entry.archived_at.is_some())).collect();
    assert_eq!(four_has, [("Kept", false), ("Put away elsewhere", true)]);
    assert!(records[0].client.archived_at.is_some());
    let exported: Vec<_> =
        decisions(&store).await.into_iter().skip(before).map(|row| row.access_request.client).collect();
    assert_eq!(exported, [Some(away), Some(one), Some(four)]);
    let record = read(&store, &people.maya, four).await.unwrap().unwrap();
    assert_eq!(
        (record.client.last_entry_at, record.entries.len()),
        (Some(NOON), 1),
        "not counted, not listed"
    );
}

pub async fn client_owners_page_within_permitted_scope(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let mut all = Vec::new();
    for number in 0..25 {
        let owner = if number % 3 == 0 { &people.maya } else { &people.tom };
        let new = NewClient { is_archived: number % 2 == 0, ..new_client(&format!("Client {number}")) };
        all.push(ClientOwner { client: create_whole(&store, owner, new).await, owner: owner.id });
    }
    let list_owners = async |by: Principal, owner: Option<PersonId>| {
        let list: Permit<ListClients> = ask(by, FirmResource).unwrap();
        let mut listed: Vec<ClientOwner> = Vec::new();
        loop {
            let page = store
                .clients
                .client_owners(&list, owner, listed.last().map(|last| last.client), 4)
                .await
                .unwrap();
            if page.is_empty() {
                return listed;
            }
            listed.extend(page);
        }
    };
    let of = |owner: PersonId| all.iter().copied().filter(|one| one.owner == owner).collect::<Vec<_>>();
    let (maya, tom) = (people.maya.id, people.tom.id);
    assert_eq!(list_owners(Principal::Operator, None).await, all);
    assert_eq!(list_owners(principal(&people.ruth), Some(tom)).await, of(tom));
    assert_eq!(list_owners(principal(&people.maya), None).await, of(maya));
    assert_eq!(list_owners(principal(&people.maya), Some(maya)).await, of(maya));
    assert_eq!(list_owners(principal(&people.maya), Some(tom)).await, []);
}

pub async fn hostile_client_texts_round_trip(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let hostile = [
        "'; DROP TABLE clients; --",
        "\"quoted\" & <b>bold</b>",
        "back\\slash",
        "$1 ?1 :name",
        "%_",
        "法律事務所 ⚖️",
        "=HYPERLINK(\"x\")",
        "' OR ''='",
        "{{7*7}}",
        "\u{fdfa}\u{fdfa}",
    ];
    for text in hostile {
        let details = ContactDetails {
            contact: text.parse().unwrap(),
            telephone: Telephone::from_stored(text.to_owned()),
            address: format!("{text}\n{text}").parse().unwrap(),
            ..ContactDetails::default()
        };
        let entry = NewEntry {
            title: text.parse().unwrap(),
            text: format!("{text}\n\n{text}").parse().unwrap(),
            ..note(people.maya.id, NOON, "x")
        };
        let new = NewClient { details: details.clone(), entries: vec![entry.clone()], ..new_client(text) };
        let client = create_whole(&store, &people.maya, new).await;
        let record = read(&store, &people.maya, client).await.unwrap().unwrap();
        assert_eq!((record.client.name.as_str(), &record.client.details), (text, &details));
        assert_eq!((&record.entries[0].title, &record.entries[0].text), (&entry.title, &entry.text));
        let found = listed(
            &store,
            &people.maya,
            &ClientQuery { order: ClientOrder::IdDescending, ..search_for(text) },
        )
        .await;
        assert!(found.0.contains(&client.0), "{text} does not find itself");
    }
    for text in ["\0", "'; --", "\u{10ffff}", "a\u{0}b"] {
        listed(&store, &people.maya, &search_for(text)).await;
    }
    let longest = "ﷺ".repeat(200);
    let client = create(&store, &people.maya, &longest).await;
    assert_eq!(read(&store, &people.maya, client).await.unwrap().unwrap().client.name.as_str(), longest);
}
