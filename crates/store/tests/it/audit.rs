//! Conformance: every decision is in an audit chain, can be found, and can never be removed.

use crate::databases::{AnyDatabase, SqliteFile, TestDatabase};
use crate::firm::{
    POLICY, after_s, ask, authz_request, create, decisions, firm_permit, manage, note, origin, people,
    permit, principal, read, search_for, sign_in, verified_audit_chains,
};
use crate::samples::NOON;
use chancery_domain::{
    Action, ClientId, ContactDetails, Decision, EventKind, OsRandomness, PersonId, Principal, Role,
    SecretToken, SessionTimeouts, Version,
};
use chancery_policy::{
    ClientResource, EditClient, FirmResource, ManageTeam, ReadAudit, ReadClient, ReadTeam,
};
use chancery_store::{
    AUDIT_ROWS_PER_PAGE, ArchiveChange, AuditCursor, AuditQuery, ClientChange, ClientError, DatabaseUrl,
    DbError, EntryQuery, FieldChange, FieldValue, NewSession, RecordField, SessionAuthentication, Store,
};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

pub async fn concurrent_decisions_on_two_nodes_form_valid_chains(database: Arc<AnyDatabase>) {
    const DECISIONS: usize = 60;
    let stores = [database.open().await, database.open().await];
    let people = Arc::new(people(&stores[0]).await);
    let client = create(&stores[0], &people.maya, "Harbour Lane Bakery").await;
    let mut deciding = JoinSet::new();
    for number in 0..DECISIONS {
        let (store, people) = (Arc::clone(&stores[number % 2]), Arc::clone(&people));
        deciding.spawn(async move {
            match number % 4 {
                0 => drop(read(&store, &people.maya, client).await.unwrap().unwrap()),
                1 => {
                    drop(
                        store.clients.list_clients(firm_permit(&people.tom), &search_for("")).await.unwrap(),
                    );
                }
                2 => drop(create(&store, &people.tom, "Calder & Sons").await),
                _ => {
                    let resource = ClientResource { id: client, owner: Some(people.maya.id) };
                    let denial = ask::<ReadClient>(principal(&people.tom), resource).unwrap_err();
                    store.audit.record_denial(denial).await.unwrap();
                }
            }
        });
    }
    deciding.join_all().await;
    let chains = verified_audit_chains(&stores[0]).await;
    match &*database {
        AnyDatabase::Sqlite(_) => assert_eq!(chains.len(), 2, "one for each store"),
        AnyDatabase::Postgres(_) => assert!(chains.len() >= 2, "one for each connection that wrote"),
    }
    assert_eq!(chains.values().map(Vec::len).sum::<usize>(), DECISIONS + 4, "one created, three joined");
}

pub async fn audit_rows_have_client_names_and_what_changed(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbor Lane Bakery").await;
    let edit = |at| {
        let resource = ClientResource { id: client, owner: Some(people.maya.id) };
        let request = authz_request(principal(&people.maya), after_s(at));
        POLICY.decide::<EditClient>(&request, resource).unwrap()
    };
    let (version, name) = (Version(1), "Harbour Lane Bakery".parse().unwrap());
    let details =
        ContactDetails { telephone: "+1 617 555 0142".parse().unwrap(), ..ContactDetails::default() };
    store.clients.edit_client(edit(10), ClientChange { version, name, details }).await.unwrap();
    let entry = store.clients.add_entry(edit(20), note(people.maya.id, NOON, "Flour")).await.unwrap();
    // Nothing was saved, so nothing is said to have changed.
    store.clients.set_entry_archived(edit(30), entry.id, ArchiveChange::RESTORE).await.unwrap();
    store.clients.set_entry_archived(edit(40), entry.id, ArchiveChange::ARCHIVE).await.unwrap();

    let request = authz_request(principal(&people.ruth), after_s(100));
    let permit = POLICY.decide::<ReadAudit>(&request, FirmResource).unwrap();
    let query = AuditQuery { action: Some(Action::EditClient), ..AuditQuery::default() };
    let lines = store.audit.read_audit(&permit, &query).await.unwrap();
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().all(|line| line.client_name.as_ref().unwrap().as_str() == "Harbour Lane Bakery"));
    let changes = store.audit.read_changes(&permit, &lines).await.unwrap();
    let of = |line| changes.iter().filter(|change| change.is_of(line)).collect::<Vec<_>>();
    let text = |text: &str| FieldValue::Text(text.to_owned());

    let [archived] = of(&lines[0])[..] else { panic!("{changes:?}") };
    let (old, new) = (FieldValue::Flag(false), FieldValue::Flag(true));
    assert_eq!(archived.fields, [FieldChange { field: RecordField::Archived, old, new }]);
    assert!(of(&lines[1]).is_empty(), "{changes:?}");
    let [added] = of(&lines[2])[..] else { panic!("{changes:?}") };
    assert_eq!((added.is_new, added.entry.as_ref().unwrap().id), (true, entry.id));
    let [edited] = of(&lines[3])[..] else { panic!("{changes:?}") };
    assert_eq!((edited.entry.as_ref(), edited.by), (None, Some(people.maya.id)));
    assert_eq!(
        edited.fields,
        [
            FieldChange {
                field: RecordField::Name,
                old: text("Harbor Lane Bakery"),
                new: text("Harbour Lane Bakery"),
            },
            FieldChange { field: RecordField::Telephone, old: text(""), new: text("+1 617 555 0142") },
        ]
    );
    let unknown = POLICY.decide::<ReadClient>(&request, ClientResource { id: ClientId(4711), owner: None });
    store.clients.read_client(unknown.unwrap(), &crate::firm::NEWEST).await.unwrap();
    let query = AuditQuery { client: Some(ClientId(4711)), ..AuditQuery::default() };
    let lines = store.audit.read_audit(&permit, &query).await.unwrap();
    assert_eq!(lines[0].client_name, None, "there is no such client");
    assert_eq!(store.audit.read_changes(&permit, &lines).await.unwrap(), []);
}

pub async fn chain_stays_whole_after_rejected_steps(database: Arc<AnyDatabase>) {
    const ROUNDS: usize = 3;
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    for _ in 0..ROUNDS {
        read(&store, &people.maya, client).await.unwrap().unwrap();
        let stale = permit::<ReadClient>(&people.ruth, client, people.tom.id);
        let error = store.clients.read_client(stale, &EntryQuery::default()).await.unwrap_err();
        assert!(matches!(error, ClientError::OwnerChanged(changed) if changed == client), "{error}");
        read(&store, &people.ruth, client).await.unwrap().unwrap();
    }
    let rows: Vec<_> = verified_audit_chains(&store).await.into_values().flatten().collect();
    let reads = rows.iter().filter_map(|row| row.as_decision()).map(|row| row.access_request.action);
    assert_eq!(reads.filter(|action| *action == Action::ReadClient).count(), 2 * ROUNDS);
}

/// Steps that are dropped at different points, such as when a browser disconnects: before, within and after the commit.
pub async fn chain_stays_whole_after_cancelled_steps(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    for doubled in 0..12 {
        let turns = async {
            for _ in 0..1 << doubled {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            done = read(&store, &people.maya, client) => drop(done.unwrap().unwrap()),
            () = turns => {}
        }
        read(&store, &people.ruth, client).await.unwrap().unwrap();
    }
    verified_audit_chains(&store).await;
}

pub async fn moved_audit_chain_head_is_read_again(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    database.raw("UPDATE audit_writers SET row_count = row_count + 5").await.unwrap();
    let outcome = read(&store, &people.maya, client).await;
    match &*database {
        AnyDatabase::Sqlite(_) => {
            let error = outcome.unwrap_err();
            assert!(matches!(error, ClientError::Database(DbError::Unavailable(_))), "{error}");
        }
        // The step runs again on a new connection. Or another one runs it, which has a chain of its own.
        AnyDatabase::Postgres(_) => drop(outcome.unwrap().unwrap()),
    }
    for _ in 0..2 {
        read(&store, &people.maya, client).await.unwrap().unwrap();
    }
}

pub async fn audit_pages_newest_first_with_filters(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    for number in 0..250 {
        let (person, id) = match number % 5 {
            0 => (&people.tom, client),
            1 => (&people.tom, ClientId(4711)),
            _ => (&people.maya, client),
        };
        let resource = ClientResource { id, owner: (id == client).then_some(people.maya.id) };
        // Some decisions have the same time.
        match POLICY.decide::<ReadClient>(&authz_request(principal(person), after_s(number / 3)), resource) {
            Ok(permit) => drop(store.clients.read_client(permit, &crate::firm::NEWEST).await.unwrap()),
            Err(denial) => store.audit.record_denial(denial).await.unwrap(),
        }
    }
    let team = ask::<ReadTeam>(Principal::Operator, FirmResource).unwrap();
    let times = SessionTimeouts { idle: Duration::from_secs(1800), max: Duration::from_secs(43_200) };
    store.people.read_team(team, times).await.unwrap();

    let late = |at| {
        POLICY
            .decide::<ReadAudit>(&authz_request(principal(&people.ruth), after_s(at)), FirmResource)
            .unwrap()
    };
    let first = store.audit.read_audit(&late(1000), &AuditQuery::default()).await.unwrap();
    assert_eq!(first.len(), AUDIT_ROWS_PER_PAGE as usize);
    assert_eq!(first[0].row.action_name(), Action::ReadAudit.as_str(), "this decision is included");
    assert_eq!(first[0].person.as_ref().unwrap().email.as_str(), "ruth@example.com");

    let whole = async |query: AuditQuery| {
        let permit = late(1000);
        let read = async |cursor| {
            store.audit.read_audit_page(&permit, &AuditQuery { cursor, ..query.clone() }).await.unwrap()
        };
        let (mut lines, mut cursor) = (Vec::new(), None);
        loop {
            let page = read(cursor).await;
            let Some(last) = page.last() else { break };
            cursor = Some(AuditCursor::Before(last.position));
            lines.extend(page);
        }
        // The same rows, paged in the other direction.
        let (mut back, mut cursor) =
            (Vec::new(), lines.last().map(|oldest| AuditCursor::After(oldest.position)));
        while cursor.is_some() {
            let page = read(cursor).await;
            cursor = page.first().map(|newest| AuditCursor::After(newest.position));
            back.splice(0..0, page);
        }
        assert_eq!(back.as_slice(), lines.split_last().map_or(&lines[..], |(_, newer)| newer));
        let key = |line: &chancery_store::AuditListRow| (line.row.at(), line.position.0);
        assert!(lines.windows(2).all(|pair| key(&pair[0]) > key(&pair[1])), "newest first, each once");
        lines
    };
    assert_eq!(
        whole(AuditQuery::default()).await.len(),
        256,
        "reading on is no further decision; three joined"
    );
    let operators =
        whole(AuditQuery::default()).await.into_iter().filter(|line| line.person.is_none()).count();
    assert_eq!(operators, 1);
    let count = async |query| whole(query).await.len();
    let any = AuditQuery::default;
    assert_eq!(count(AuditQuery { person: Some(people.tom.id), ..any() }).await, 101);
    assert_eq!(count(AuditQuery { event: Some(EventKind::PersonJoined), ..any() }).await, 3);
    assert_eq!(count(AuditQuery { client: Some(ClientId(4711)), ..any() }).await, 50);
    assert_eq!(count(AuditQuery { decision: Some(Decision::Denied), ..any() }).await, 100);
    assert_eq!(count(AuditQuery { action: Some(Action::ReadClient), ..any() }).await, 250);
    assert_eq!(count(AuditQuery { from: Some(after_s(10)), until: Some(after_s(20)), ..any() }).await, 30);
    let both = AuditQuery { person: Some(people.tom.id), client: Some(client), ..any() };
    assert_eq!(count(AuditQuery { until: Some(after_s(1)), ..both.clone() }).await, 1);
    assert_eq!(count(both).await, 50);
    assert_eq!(count(AuditQuery { person: Some(PersonId(777)), ..any() }).await, 0);
    let unknown = chancery_store::AuditRowId(i64::MAX);
    for turn in [AuditCursor::Before(unknown), AuditCursor::After(unknown)] {
        assert_eq!(
            store.audit.read_audit(&late(1), &AuditQuery { cursor: Some(turn), ..any() }).await.unwrap(),
            []
        );
    }
}

pub async fn raw_sql_cannot_modify_audit_rows(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    create(&store, &people.maya, "Harbour Lane Bakery").await;
    let before = decisions(&store).await;
    for sql in [
        "UPDATE audit_rows SET decision = 'refused'",
        "UPDATE audit_rows SET client_id = 7 WHERE position = 0",
        "DELETE FROM audit_rows",
        "DELETE FROM audit_rows WHERE id = 1",
    ] {
        let error = database.raw(sql).await.unwrap_err().to_string();
        assert!(error.contains("append-only"), "{sql}: {error}");
    }
    assert_eq!(decisions(&store).await, before);
    let writer = store.audit_chains.next_audit_writer(None).await.unwrap().unwrap();
    let again = format!(
        "INSERT INTO audit_rows (at_ms, principal_kind, action, request_id, decision, writer_id, position, hash) \
         VALUES (0, 'operator', 'readClient', 'r', 'allowed', {}, 0, {})",
        writer.0,
        database.some_hash()
    );
    database.raw(&again).await.unwrap_err();
    assert_eq!(decisions(&store).await, before);
}

pub async fn team_lists_client_and_session_counts(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let gone = sign_in(&store, "anna", Role::Consultant).await;
    let first = create(&store, &people.maya, "One").await;
    create(&store, &people.maya, "Two").await;
    create(&store, &gone, "Three").await;
    store
        .clients
        .set_client_archived(permit(&people.maya, first, people.maya.id), ArchiveChange::ARCHIVE)
        .await
        .unwrap();
    for (person, at) in
        [(&people.maya, NOON), (&people.maya, after_s(60)), (&people.tom, after_s(-86_400)), (&gone, NOON)]
    {
        let new = NewSession {
            token: SecretToken::generate(&OsRandomness).hash(),
            binding: None,
            person: person.id,
            authentication: SessionAuthentication::at(at),
            origin: origin(at),
            ip_address: "192.0.2.1".to_owned(),
            user_agent: "Firefox".to_owned(),
            replaces: None,
        };
        store.sessions.start_session(new).await.unwrap();
    }
    store.people.remove_person(manage(after_s(90)), gone.id, Box::new(|_| true)).await.unwrap();
    let times = SessionTimeouts { idle: Duration::from_secs(1800), max: Duration::from_secs(43_200) };
    let team = POLICY
        .decide::<ReadTeam>(&authz_request(principal(&people.ruth), after_s(100)), FirmResource)
        .unwrap();
    let team: Vec<_> = store
        .people
        .read_team(team, times)
        .await
        .unwrap()
        .into_iter()
        .map(|m| {
            (
                m.person.email.to_string(),
                m.removed_at,
                m.clients,
                m.archived_clients,
                m.sessions,
                m.last_used_at,
            )
        })
        .collect();
    assert_eq!(
        team,
        [
            ("maya@example.com".to_owned(), None, 1, 1, 2, Some(after_s(60))),
            ("ruth@example.com".to_owned(), None, 0, 0, 0, None),
            ("tom@example.com".to_owned(), None, 0, 0, 0, None),
            ("anna@example.com".to_owned(), Some(after_s(90)), 1, 0, 0, None),
        ]
    );
    store.people.record_team_management(firm_permit::<ManageTeam>(&people.ruth)).await.unwrap();
    let actions: Vec<Action> =
        decisions(&store).await.into_iter().rev().map(|row| row.access_request.action).take(2).collect();
    assert_eq!(actions, [Action::ManageTeam, Action::ReadTeam]);
}

const CHILD_URL: &str = "CHANCERY_TEST_AUDIT_VICTIM_URL";
const CALLERS: usize = 4;

/// The conformance case starts this test as the process to kill, with a URL. It then makes decisions until it is
/// killed.
#[tokio::test]
async fn reads_are_reported_only_after_audit() {
    if let Ok(url) = std::env::var(CHILD_URL) {
        read_and_report(&url.parse().unwrap(), usize::MAX).await;
        return;
    }
    let database = Arc::new(SqliteFile::create());
    let store = database.open().await;
    let people = people(&store).await;
    create(&store, &people.maya, "Harbour Lane Bakery").await;
    read_and_report(&database.url(), 5).await;
    assert_eq!(decisions(&store).await.len(), 1 + 5 * CALLERS);
}

async fn read_and_report(url: &DatabaseUrl, reads: usize) {
    let store = Arc::new(Store::open(url).await.unwrap());
    let maya = store.people.people_by_email(&"maya@example.com".parse().unwrap()).await.unwrap().remove(0);
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (store, maya) = (Arc::clone(&store), maya.clone());
        callers.spawn(async move {
            for _ in 0..reads {
                read(&store, &maya, ClientId(1001)).await.unwrap().unwrap();
                std::io::stdout().write_all(b"read\n").unwrap();
            }
        });
    }
    callers.join_all().await;
}

fn kill_after(url: &str, lines: usize) -> usize {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "audit::reads_are_reported_only_after_audit", "--nocapture"])
        .env(CHILD_URL, url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reported = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        reported += usize::from(line.unwrap() == "read");
        if reported == lines {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    reported
}

pub async fn killed_process_has_audited_every_reported_read(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    let mut reported = 0;
    for lines in [20, 75] {
        let url = database.url_text();
        reported += tokio::task::spawn_blocking(move || kill_after(&url, lines)).await.unwrap();
        verified_audit_chains(&store).await;
    }
    let stored = decisions(&store).await.len() - 1;
    assert!((reported..=reported + 2 * CALLERS).contains(&stored), "{reported} reported, {stored} stored");
    let record = read(&store, &people.maya, client).await.unwrap().unwrap();
    assert_eq!(
        record.views[0].times,
        stored as u64 + 1,
        "each read that is on record was counted, and no other"
    );
}
