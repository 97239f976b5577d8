//! Conformance: every decision is in its process's chain, can be found again, and can never be taken back.

use crate::databases::{SqliteFile, TestDatabase, on_a_fresh};
use crate::firm::{
    POLICY, after_s, arrive, ask, asker, asking, create, decisions, firm_permit, manage, origin, people,
    permit, read, sound_audit, words,
};
use crate::samples::NOON;
use chancery_domain::{
    Action, Asker, ClientId, Decision, EventKind, OsRandomness, PersonId, Role, SecretToken, SessionTimes,
};
use chancery_policy::{ClientInQuestion, ManageTeam, ReadAudit, ReadClient, ReadTeam, TheFirm};
use chancery_store::{AUDIT_ROWS_PER_PAGE, AuditQuery, AuditTurn, DatabaseUrl, NewSession, Store};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

pub async fn decisions_of_many_at_once_and_of_two_nodes_make_a_sound_chain_each<D: TestDatabase>(
    database: Arc<D>,
) {
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
                1 => drop(store.clients.list_clients(firm_permit(&people.tom), &words("")).await.unwrap()),
                2 => drop(create(&store, &people.tom, "Calder & Sons").await),
                _ => {
                    let about = ClientInQuestion { id: client, owner: Some(people.maya.id) };
                    let denial = ask::<ReadClient>(asker(&people.tom), about).unwrap_err();
                    store.audit.note_denial(denial).await.unwrap();
                }
            }
        });
    }
    deciding.join_all().await;
    let chains = sound_audit(&stores[0]).await;
    assert_eq!(chains.len(), 2);
    assert_eq!(chains.values().map(Vec::len).sum::<usize>(), DECISIONS + 4, "one created, three joined");
}

pub async fn the_audit_is_read_newest_first_by_who_what_and_when<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    for number in 0..250 {
        let (person, id) = match number % 5 {
            0 => (&people.tom, client),
            1 => (&people.tom, ClientId(4711)),
            _ => (&people.maya, client),
        };
        let about = ClientInQuestion { id, owner: (id == client).then_some(people.maya.id) };
        // Some decisions are of one moment.
        match POLICY.decide::<ReadClient>(&asking(asker(person), after_s(number / 3)), about) {
            Ok(permit) => drop(store.clients.read_client(permit, &crate::firm::NEWEST).await.unwrap()),
            Err(denial) => store.audit.note_denial(denial).await.unwrap(),
        }
    }
    let team = ask::<ReadTeam>(Asker::Operator, TheFirm).unwrap();
    let times = SessionTimes { idle: Duration::from_secs(1800), max: Duration::from_secs(43_200) };
    store.people.read_team(team, times).await.unwrap();

    let late = |at| POLICY.decide::<ReadAudit>(&asking(asker(&people.ruth), after_s(at)), TheFirm).unwrap();
    let first = store.audit.read_audit(&late(1000), &AuditQuery::default()).await.unwrap();
    assert_eq!(first.len(), AUDIT_ROWS_PER_PAGE as usize);
    assert_eq!(first[0].row.action_name(), Action::ReadAudit.as_str(), "this decision is included");
    assert_eq!(first[0].person.as_ref().unwrap().email.as_str(), "ruth@example.com");

    let whole = async |query: AuditQuery| {
        let permit = late(1000);
        let read = async |turn| {
            store.audit.read_more_audit(&permit, &AuditQuery { turn, ..query.clone() }).await.unwrap()
        };
        let (mut lines, mut turn) = (Vec::new(), None);
        loop {
            let page = read(turn).await;
            let Some(last) = page.last() else { break };
            turn = Some(AuditTurn::Before(last.place));
            lines.extend(page);
        }
        // The same rows the other way round.
        let (mut back, mut turn) = (Vec::new(), lines.last().map(|oldest| AuditTurn::After(oldest.place)));
        while turn.is_some() {
            let page = read(turn).await;
            turn = page.first().map(|newest| AuditTurn::After(newest.place));
            back.splice(0..0, page);
        }
        assert_eq!(back.as_slice(), lines.split_last().map_or(&lines[..], |(_, newer)| newer));
        let key = |line: &chancery_store::AuditLine| (line.row.at(), line.place.0);
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
    assert_eq!(count(AuditQuery { decision: Some(Decision::Refused), ..any() }).await, 100);
    assert_eq!(count(AuditQuery { action: Some(Action::ReadClient), ..any() }).await, 250);
    assert_eq!(count(AuditQuery { from: Some(after_s(10)), until: Some(after_s(20)), ..any() }).await, 30);
    let both = AuditQuery { person: Some(people.tom.id), client: Some(client), ..any() };
    assert_eq!(count(AuditQuery { until: Some(after_s(1)), ..both.clone() }).await, 1);
    assert_eq!(count(both).await, 50);
    assert_eq!(count(AuditQuery { person: Some(PersonId(777)), ..any() }).await, 0);
    let unknown = chancery_store::AuditPlace(i64::MAX);
    for turn in [AuditTurn::Before(unknown), AuditTurn::After(unknown)] {
        assert_eq!(
            store.audit.read_audit(&late(1), &AuditQuery { turn: Some(turn), ..any() }).await.unwrap(),
            []
        );
    }
}

pub async fn raw_sql_cannot_change_remove_or_replace_a_decision<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let people = people(&store).await;
    create(&store, &people.maya, "Harbour Lane Bakery").await;
    let before = decisions(&store).await;
    for sql in [
        "UPDATE audit_rows SET decision = 'refused'",
        "UPDATE audit_rows SET client_id = 7 WHERE place = 0",
        "DELETE FROM audit_rows",
        "DELETE FROM audit_rows WHERE id = 1",
    ] {
        let error = database.raw(sql).await.unwrap_err().to_string();
        assert!(error.contains("append-only"), "{sql}: {error}");
    }
    assert_eq!(decisions(&store).await, before);
    let writer = store.audit_chains.audit_writer_after(None).await.unwrap().unwrap();
    let again = format!(
        "INSERT INTO audit_rows (at_ms, asker, action, request_id, decision, writer_id, place, hash) \
         VALUES (0, 'operator', 'readClient', 'r', 'allowed', {}, 0, {})",
        writer.0,
        D::SOME_HASH
    );
    database.raw(&again).await.unwrap_err();
    assert_eq!(decisions(&store).await, before);
}

pub async fn the_team_is_told_with_its_clients_and_sessions<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let people = people(&store).await;
    let gone = arrive(&store, "anna", Role::Consultant).await;
    let first = create(&store, &people.maya, "One").await;
    create(&store, &people.maya, "Two").await;
    create(&store, &gone, "Three").await;
    store.clients.set_client_archived(permit(&people.maya, first, people.maya.id), true).await.unwrap();
    for (person, at) in
        [(&people.maya, NOON), (&people.maya, after_s(60)), (&people.tom, after_s(-86_400)), (&gone, NOON)]
    {
        let new = NewSession {
            token: SecretToken::generate(&OsRandomness).hash(),
            person: person.id,
            origin: origin(at),
            place: "192.0.2.1".to_owned(),
            browser: "Firefox".to_owned(),
            replaces: None,
        };
        store.sessions.start_session(new).await.unwrap();
    }
    store.people.remove_person(manage(after_s(90)), gone.id).await.unwrap();
    let times = SessionTimes { idle: Duration::from_secs(1800), max: Duration::from_secs(43_200) };
    let team = POLICY.decide::<ReadTeam>(&asking(asker(&people.ruth), after_s(100)), TheFirm).unwrap();
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
    store.people.note_managing_team(firm_permit::<ManageTeam>(&people.ruth)).await.unwrap();
    let actions: Vec<Action> =
        decisions(&store).await.into_iter().rev().map(|row| row.asked.action).take(2).collect();
    assert_eq!(actions, [Action::ManageTeam, Action::ReadTeam]);
}

const VICTIM_URL: &str = "CHANCERY_TEST_AUDIT_VICTIM_URL";
const CALLERS: usize = 4;

/// The process that the conformance case kills is this same test, started with a URL; it then decides without end.
#[tokio::test]
async fn a_process_tells_of_a_read_only_when_it_is_on_record() {
    if let Ok(url) = std::env::var(VICTIM_URL) {
        read_and_tell(&url.parse().unwrap(), usize::MAX).await;
        return;
    }
    on_a_fresh::<SqliteFile, _>(|database| async move {
        let store = database.open().await;
        let people = people(&store).await;
        create(&store, &people.maya, "Harbour Lane Bakery").await;
        read_and_tell(&database.url(), 5).await;
        assert_eq!(decisions(&store).await.len(), 1 + 5 * CALLERS);
    })
    .await;
}

async fn read_and_tell(url: &DatabaseUrl, reads: usize) {
    let store = Arc::new(Store::open(url).await.unwrap());
    let maya = store.people.people_with_email(&"maya@example.com".parse().unwrap()).await.unwrap().remove(0);
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
        .args(["--exact", "audit::a_process_tells_of_a_read_only_when_it_is_on_record", "--nocapture"])
        .env(VICTIM_URL, url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        told += usize::from(line.unwrap() == "read");
        if told == lines {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    told
}

pub async fn a_killed_process_leaves_every_read_that_it_told_of_in_a_sound_chain<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.maya, "Harbour Lane Bakery").await;
    let mut told = 0;
    for lines in [20, 75] {
        let url = database.url_text();
        told += tokio::task::spawn_blocking(move || kill_after(&url, lines)).await.unwrap();
        sound_audit(&store).await;
    }
    let kept = decisions(&store).await.len() - 1;
    assert!((told..=told + 2 * CALLERS).contains(&kept), "{told} told, {kept} kept");
    let record = read(&store, &people.maya, client).await.unwrap().unwrap();
    assert_eq!(
        record.looks[0].times,
        kept as u64 + 1,
        "each read that is on record was counted, and no other"
    );
}
