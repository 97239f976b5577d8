//! Conformance: a person who is demoted or removed between the policy's decision and the step that it allows gets
//! nothing, and changes nothing. Permits are decided first, and used after the change.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{
    NEWEST, People, ask, create, create_whole, decisions, firm_permit, manage, new_client, note, people,
    permit, principal, read_parts, search_for, sign_in,
};
use crate::invitations::{self, email_to, invitation};
use crate::samples::NOON;
use chancery_domain::{
    AccountId, ClientId, Day, EntryId, Month, Person, PersonId, RateLimits, Role, SessionTimeouts, Version,
};
use chancery_policy::{
    CreateClient, EditClient, ExportClient, ListClients, ManageTeam, NewClientResource, Permit, ReadAudit,
    ReassignClient,
};
use chancery_store::{
    AccountChange, ArchiveChange, AuditQuery, ClientChange, ClientError, ClientRecord, DbError, EntryChange,
    ListTotal, MonthlyUsageQuery, NewAccount, Store, VersionQuery, WorkQuery,
};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// What happens to a principal after the decision.
#[derive(Clone, Copy, Debug)]
enum AccessChange {
    Demoted,
    Removed,
}

impl AccessChange {
    const ALL: [Self; 2] = [Self::Demoted, Self::Removed];

    async fn apply(self, store: &Store, person: PersonId) {
        match self {
            Self::Demoted => {
                drop(store.people.set_role(manage(NOON), person, Role::Consultant).await.unwrap());
            }
            Self::Removed => {
                drop(store.people.remove_person(manage(NOON), person, Box::new(|_| true)).await.unwrap());
            }
        }
    }
}

/// A firm with a partner to change for each case; Ruth stays a partner. Maya has a client with a note.
struct ChangingFirm {
    people: People,
    client: ClientId,
    entry: EntryId,
}

impl ChangingFirm {
    async fn open(store: &Store) -> Self {
        let people = people(store).await;
        let mut new = new_client("Harbour Lane Bakery");
        new.entries.push(note(people.maya.id, NOON, "A note"));
        let client = create_whole(store, &people.maya, new).await;
        let record = store.clients.read_client(permit(&people.ruth, client, people.maya.id), &NEWEST).await;
        let entry = record.unwrap().unwrap().entries[0].id;
        Self { people, client, entry }
    }

    fn owner(&self) -> PersonId {
        self.people.maya.id
    }

    /// As Ruth sees it.
    async fn record(&self, store: &Store) -> ClientRecord {
        let permit = permit(&self.people.ruth, self.client, self.owner());
        store.clients.read_client(permit, &NEWEST).await.unwrap().unwrap()
    }
}

/// The step was rejected because of its principal, and for no other reason.
fn assert_rejected<T, E: Debug>(change: AccessChange, what: &str, outcome: Result<T, E>) {
    match outcome {
        Ok(_) => panic!("{change:?}: {what} went through"),
        Err(error) => {
            let error = format!("{error:?}");
            assert!(error.contains("PrincipalChanged"), "{change:?}: {what}: {error}");
        }
    }
}

pub async fn changed_principal_reads_no_client(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let firm = ChangingFirm::open(&store).await;
    let (client, owner, clients) = (firm.client, firm.owner(), &store.clients);
    for change in AccessChange::ALL {
        let partner = sign_in(&store, &format!("{change:?}").to_lowercase(), Role::Partner).await;
        let list: Permit<ListClients> = firm_permit(&partner);
        let owners: Permit<ListClients> = firm_permit(&partner);
        let page = permit(&partner, client, owner);
        let whole = permit(&partner, client, owner);
        let export: Permit<ExportClient> = permit(&partner, client, owner);
        let draft: Permit<EditClient> = permit(&partner, client, owner);
        let versions = permit(&partner, client, owner);
        let entry_versions = permit(&partner, client, owner);
        let matches = permit(&partner, client, owner);
        let searched = clients.list_clients(firm_permit(&partner), &search_for("lease")).await.unwrap();
        let search = searched.search.unwrap();
        let work_query = WorkQuery { owner: None, due_by: Day::containing(NOON) };
        let find_work: Permit<ListClients> = firm_permit(&partner);
        let read_work = permit(&partner, client, owner);
        let work = clients.find_work(firm_permit(&partner), work_query).await.unwrap();
        let before = firm.record(&store).await;
        change.apply(&store, partner.id).await;
        let recorded = decisions(&store).await.len();

        assert_rejected(change, "matches", clients.find_matches(&search, vec![matches]).await);
        assert_rejected(change, "what waits", clients.find_work(find_work, work_query).await);
        assert_rejected(change, "its entries", clients.read_work(&work, vec![read_work]).await);
        assert_rejected(change, "list", clients.list_clients(list, &search_for("")).await);
        assert_rejected(change, "owners", clients.client_owners(&owners, None, None, 20).await);
        assert_rejected(change, "page", clients.read_client(page, &NEWEST).await);
        assert_rejected(change, "whole record", clients.open_record(whole).await);
        assert_rejected(change, "export", clients.open_records(vec![export]).await);
        assert_rejected(change, "draft", clients.read_for_draft(draft, &[firm.entry]).await);
        assert_rejected(change, "versions", clients.client_versions(versions, VersionQuery::NEWEST).await);
        let read = clients.entry_versions(entry_versions, firm.entry, VersionQuery::NEWEST).await;
        assert_rejected(change, "entry versions", read);

        assert_eq!(decisions(&store).await.len(), recorded, "nothing was allowed, so nothing is on record");
        let after = firm.record(&store).await;
        assert_eq!(after.views.len(), before.views.len(), "no view was counted");
    }
}

pub async fn changed_principal_is_cut_off_between_pages(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let firm = ChangingFirm::open(&store).await;
    for change in AccessChange::ALL {
        let partner = sign_in(&store, &format!("{change:?}").to_lowercase(), Role::Partner).await;
        let list: Permit<ListClients> = firm_permit(&partner);
        let audit: Permit<ReadAudit> = firm_permit(&partner);
        let all = AuditQuery::default();
        assert_eq!(store.clients.client_owners(&list, None, None, 20).await.unwrap().len(), 1);
        assert!(!store.audit.read_audit(&audit, &all).await.unwrap().is_empty());
        let export = permit(&partner, firm.client, firm.owner());
        let mut reader = store.clients.open_records(vec![export]).await.unwrap();
        change.apply(&store, partner.id).await;

        let page = reader.next_page().await;
        assert!(
            matches!(&page, Err(ClientError::Database(DbError::PrincipalChanged(id))) if *id == partner.id),
            "{change:?}: {page:?}"
        );
        let next = store.clients.client_owners(&list, None, Some(ClientId(0)), 20).await;
        assert_rejected(change, "next clients", next);
        assert_rejected(change, "next audit rows", store.audit.read_audit_page(&audit, &all).await);
    }
    let mut reader =
        store.clients.open_records(vec![permit(&firm.people.ruth, firm.client, firm.owner())]).await.unwrap();
    assert_eq!(read_parts(&mut reader).await.len(), 1, "others go on");
}

pub async fn changed_principal_writes_no_client(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let firm = ChangingFirm::open(&store).await;
    let (client, owner, clients, tom) = (firm.client, firm.owner(), &store.clients, firm.people.tom.id);
    for change in AccessChange::ALL {
        let partner = sign_in(&store, &format!("{change:?}").to_lowercase(), Role::Partner).await;
        let edit = || -> Permit<EditClient> { permit(&partner, client, owner) };
        let created: Permit<CreateClient> = ask(principal(&partner), NewClientResource(tom)).unwrap();
        let imported: Permit<CreateClient> = ask(principal(&partner), NewClientResource(tom)).unwrap();
        let (edited, added, entry_edited, entry_archived) = (edit(), edit(), edit(), edit());
        let archived = permit(&partner, client, owner);
        let reassigned: Permit<ReassignClient> = permit(&partner, client, owner);
        let reassigned_with_others = vec![permit(&partner, client, owner)];
        let before = firm.record(&store).await;
        change.apply(&store, partner.id).await;
        let recorded = decisions(&store).await.len();

        assert_rejected(change, "create", clients.create_client(created, new_client("New")).await);
        let import = store.client_imports.import_clients(vec![(imported, new_client("New"))], &|_| {}).await;
        assert_rejected(change, "import", import);
        let details = ClientChange {
            version: before.client.version,
            name: "Renamed".parse().unwrap(),
            details: before.client.details.clone(),
        };
        assert_rejected(change, "edit", clients.edit_client(edited, details).await);
        assert_rejected(
            change,
            "archive",
            clients.set_client_archived(archived, ArchiveChange::ARCHIVE).await,
        );
        assert_rejected(change, "reassign", clients.reassign_client(reassigned, tom, None).await);
        let moved = clients.reassign_clients(BTreeMap::from([(tom, reassigned_with_others)])).await;
        assert_rejected(change, "reassign several", moved);
        assert_rejected(change, "add", clients.add_entry(added, note(owner, NOON, "New")).await);
        let text = EntryChange {
            entry: firm.entry,
            version: Version::FIRST,
            title: "Renamed".parse().unwrap(),
            text: before.entries[0].text.clone(),
            at: None,
            is_open: false,
            dispute: None,
        };
        assert_rejected(change, "edit entry", clients.edit_entry(entry_edited, text).await);
        let archived = clients.set_entry_archived(entry_archived, firm.entry, ArchiveChange::ARCHIVE).await;
        assert_rejected(change, "archive entry", archived);

        assert_eq!(decisions(&store).await.len(), recorded, "nothing was allowed, so nothing is on record");
        let after = firm.record(&store).await;
        assert_eq!((after.client, after.entries), (before.client, before.entries), "{change:?}");
        let list = clients.list_clients(firm_permit(&firm.people.ruth), &search_for("")).await.unwrap();
        assert_eq!(list.total, ListTotal::Exact(1), "{change:?}: no client was created");
    }
}

pub async fn removed_consultant_loses_their_own_clients(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let client = create(&store, &people.tom, "Toms own").await;
    let (read, edited) =
        (permit(&people.tom, client, people.tom.id), permit(&people.tom, client, people.tom.id));
    AccessChange::Removed.apply(&store, people.tom.id).await;
    assert_rejected(AccessChange::Removed, "page", store.clients.read_client(read, &NEWEST).await);
    let added = store.clients.add_entry(edited, note(people.tom.id, NOON, "New")).await;
    assert_rejected(AccessChange::Removed, "add", added);
}

pub async fn changed_partner_manages_nothing(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let times = SessionTimeouts { idle: Duration::from_secs(1800), max: Duration::from_secs(43_200) };
    let account = || {
        let limits = RateLimits { requests_per_min: 60, tokens_per_min: 60_000 };
        NewAccount { name: "Brightwater Claims".parse().unwrap(), limits, created_at: NOON }
    };
    for change in AccessChange::ALL {
        let partner = sign_in(&store, &format!("{change:?}").to_lowercase(), Role::Partner).await;
        let manage_team = || -> Permit<ManageTeam> { firm_permit(&partner) };
        let (own_role, role, removal, restoration, sign_out, recorded_only) =
            (manage_team(), manage_team(), manage_team(), manage_team(), manage_team(), manage_team());
        let (team, audit) = (firm_permit(&partner), firm_permit(&partner));
        let (invited, canceled) =
            (invitations::permit(principal(&partner), NOON), invitations::permit(principal(&partner), NOON));
        let reset = firm_permit(&partner);
        let (usage, accounts) = (firm_permit(&partner), firm_permit(&partner));
        let (created, invoice) = (firm_permit(&partner), firm_permit(&partner));
        change.apply(&store, partner.id).await;
        let (recorded, members) = (decisions(&store).await.len(), store.people.list_people().await.unwrap());

        let promoted = store.people.set_role(own_role, partner.id, Role::Partner).await;
        assert_rejected(change, "promote themselves", promoted);
        let promoted = store.people.set_role(role, people.tom.id, Role::Partner).await;
        assert_rejected(change, "promote", promoted);
        assert_rejected(
            change,
            "remove",
            store.people.remove_person(removal, people.tom.id, Box::new(|_| true)).await,
        );
        let restored = store.people.restore_person(restoration, partner.id).await;
        assert_rejected(change, "restore themselves", restored);
        assert_rejected(change, "sign out", store.people.sign_out_person(sign_out, people.tom.id).await);
        assert_rejected(change, "team form", store.people.record_team_management(recorded_only).await);
        assert_rejected(change, "team", store.people.read_team(team, times).await);
        assert_rejected(change, "audit", store.audit.read_audit(&audit, &AuditQuery::default()).await);
        let new = invitation("nora@example.com", Role::Partner);
        assert_rejected(change, "invite", store.invitations.invite_person(invited, &new).await);
        assert_rejected(change, "cancel", store.invitations.cancel_invitation(canceled, &new.email).await);
        let notice = email_to(&people.tom.email);
        let reset =
            store.factor_resets.reset_factors(reset, people.tom.id, &notice, Box::new(|_| true)).await;
        assert_rejected(change, "reset factors", reset);
        let everybody = MonthlyUsageQuery { account: None, month: Month::containing(NOON) };
        assert_rejected(change, "usage", store.usage_reports.read_usage(usage, everybody).await);
        let read = store.accounts.read_account(accounts, AccountId(1), Month::containing(NOON)).await;
        assert_rejected(change, "account", read);
        let opened = store.accounts.change_account(created, AccountChange::CreateAccount(account())).await;
        assert_rejected(change, "create account", opened);
        let number = "2026-0001".parse().unwrap();
        assert_rejected(change, "invoice", store.invoices.read_invoice(invoice, number).await);

        assert_eq!(decisions(&store).await.len(), recorded, "nothing was allowed, so nothing is on record");
        assert_eq!(store.people.list_people().await.unwrap(), members, "{change:?}");
        assert!(store.invitations.list_invitations(NOON).await.unwrap().is_empty(), "{change:?}");
        assert!(store.account_lookup.list_accounts().await.unwrap().is_empty(), "{change:?}");
    }
}

pub async fn partner_can_change_their_own_access(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let people = people(&store).await;
    let rita = sign_in(&store, "rita", Role::Partner).await;
    let own: fn(&Person) -> Permit<ManageTeam> = firm_permit;
    let demoted = store.people.set_role(own(&rita), rita.id, Role::Consultant).await.unwrap();
    assert_eq!(demoted.role, Role::Consultant);
    let rob = sign_in(&store, "rob", Role::Partner).await;
    let removed = store.people.remove_person(own(&rob), rob.id, Box::new(|_| true)).await.unwrap();
    assert_eq!(removed.iter().map(|person| person.id).collect::<Vec<_>>(), [rob.id]);
    let left = store.people.list_people().await.unwrap();
    assert!(left.iter().all(|person| (person.role == Role::Partner) == (person.id == people.ruth.id)));
}

/// On one node, steps wait for each other. Two nodes run theirs at the same time.
pub async fn partners_changing_each_other_on_two_nodes_never_deadlock(database: Arc<AnyDatabase>) {
    let (first, second) = (database.open().await, database.open().await);
    people(&first).await;
    for round in 0..10 {
        let one = sign_in(&first, &format!("one{round}"), Role::Partner).await;
        let other = sign_in(&first, &format!("other{round}"), Role::Partner).await;
        let (by_one, by_other): (Permit<ManageTeam>, Permit<ManageTeam>) =
            (firm_permit(&one), firm_permit(&other));
        let (demoted, demoted_too) = tokio::join!(
            first.people.set_role(by_one, other.id, Role::Consultant),
            second.people.set_role(by_other, one.id, Role::Consultant),
        );
        // Whoever is demoted first has no right to demote the other any more.
        assert_ne!(demoted.is_ok(), demoted_too.is_ok(), "round {round}: {demoted:?} {demoted_too:?}");
        for outcome in [demoted, demoted_too] {
            let is_expected = match &outcome {
                Ok(person) => person.role == Role::Consultant,
                Err(error) => format!("{error:?}").contains("PrincipalChanged"),
            };
            assert!(is_expected, "round {round}: {outcome:?}");
        }
    }
}

/// Their own change waits for the one on the other node, and must see it then.
pub async fn demoted_or_removed_partner_racing_it_never_undoes_it(database: Arc<AnyDatabase>) {
    let (first, second) = (database.open().await, database.open().await);
    people(&first).await;
    let own: fn(&Person) -> Permit<ManageTeam> = firm_permit;
    for round in 0..10 {
        let demoted = sign_in(&first, &format!("demoted{round}"), Role::Partner).await;
        let removed = sign_in(&first, &format!("removed{round}"), Role::Partner).await;
        let (by_demoted, by_removed) = (own(&demoted), own(&removed));
        let (demotion, _) = tokio::join!(
            first.people.set_role(manage(NOON), demoted.id, Role::Consultant),
            second.people.set_role(by_demoted, demoted.id, Role::Partner),
        );
        let (removal, _) = tokio::join!(
            first.people.remove_person(manage(NOON), removed.id, Box::new(|_| true)),
            second.people.restore_person(by_removed, removed.id),
        );
        assert!(demotion.is_ok() && removal.is_ok(), "round {round}: {demotion:?} {removal:?}");
        let left = first.people.list_people().await.unwrap();
        let role = left.iter().find(|person| person.id == demoted.id).map(|person| person.role);
        assert_eq!(role, Some(Role::Consultant), "round {round}");
        assert!(left.iter().all(|person| person.id != removed.id), "round {round}");
    }
}
