//! A firm with people who are signed in, and clients that are somebody's: two consultants, Ann and Ben, and two partners,
//! Ruth and Rob.

use super::Desk;
use super::browser::{Browser, claims};
use crate::state::Portal;
use chancery_domain::{
    Action, Asker, AuditedDecision, ClientId, ContactFacts, Decision, EntryId, EntryKind, PersonId,
    RequestId, Role,
};
use chancery_policy::{
    Asking, ClientInQuestion, CreateClient, EditClient, ManageTeam, NewClientFor, Permit, TheFirm,
};
use chancery_store::{NewClient, NewEntry};

pub(super) struct Firm {
    pub(super) desk: Desk,
    pub(super) ann: Somebody,
    pub(super) ben: Somebody,
    pub(super) ruth: Somebody,
    pub(super) rob: Somebody,
    newcomers: u32,
}

pub(super) struct Somebody {
    name: String,
    pub(super) id: PersonId,
    pub(super) browser: Browser,
}

/// A client with an entry of each kind; `entry` is the note.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub(super) client: ClientId,
    pub(super) entry: EntryId,
}

impl Firm {
    pub(super) async fn open() -> Self {
        Self::at(Desk::open().await).await
    }

    pub(super) async fn at(desk: Desk) -> Self {
        let ann = Somebody::arrive(&desk, "ann").await;
        let ben = Somebody::arrive(&desk, "ben").await;
        let ruth = Somebody::arrive(&desk, "ruth").await;
        let rob = Somebody::arrive(&desk, "rob").await;
        desk.portal.store.people.set_role(manage(&desk.portal), rob.id, Role::Partner).await.unwrap();
        Self { desk, ann, ben, ruth, rob, newcomers: 0 }
    }

    /// Somebody new, who is a consultant.
    pub(super) async fn newcomer(&mut self) -> Somebody {
        self.newcomers += 1;
        Somebody::arrive(&self.desk, &format!("newcomer{}", self.newcomers)).await
    }

    pub(super) async fn client(&self, owner: PersonId, name: &str) -> Made {
        let portal = &self.desk.portal;
        let asking = Asking {
            by: Asker::Person { id: owner, role: Role::Partner },
            at: portal.clock.now(),
            request_id: RequestId::new(portal.clock.now(), portal.randomness.as_ref()),
        };
        let entry = |kind, title: &str| NewEntry {
            kind,
            title: title.parse().unwrap(),
            text: format!("{title} of {name}.").parse().unwrap(),
            at: portal.clock.now(),
            author: owner,
            is_open: kind != EntryKind::MeetingNote,
            is_archived: false,
        };
        let new = NewClient {
            name: name.parse().unwrap(),
            facts: ContactFacts::default(),
            entries: vec![
                entry(EntryKind::BillingDispute, "A dispute"),
                entry(EntryKind::DraftLetter, "A letter"),
            ],
            is_archived: false,
        };
        let permit = portal.policy.decide::<CreateClient>(&asking, NewClientFor(owner)).unwrap();
        let client = portal.store.clients.create_client(permit, new).await.unwrap();
        let about = ClientInQuestion { id: client, owner: Some(owner) };
        let permit = portal.policy.decide::<EditClient>(&asking, about).unwrap();
        let note =
            portal.store.clients.add_entry(permit, entry(EntryKind::MeetingNote, "A note")).await.unwrap();
        Made { client, entry: note.id }
    }

    /// What was decided so far, the oldest first.
    pub(super) async fn decisions(&self) -> Vec<AuditedDecision> {
        let store = &self.desk.store;
        let mut rows = Vec::new();
        let mut writer = None;
        while let Some(next) = store.audit_chains.audit_writer_after(writer).await.unwrap() {
            let mut place = 0;
            loop {
                let found = store.audit_chains.audit_rows(next, place, 500).await.unwrap();
                place += found.len() as u64;
                if found.is_empty() {
                    break;
                }
                rows.extend(found.iter().filter_map(|chained| chained.row.as_decision().cloned()));
            }
            writer = Some(next);
        }
        rows
    }
}

impl Somebody {
    async fn arrive(desk: &Desk, name: &str) -> Self {
        let browser = sign_in(desk, name).await;
        let email = format!("{name}@company.com").parse().unwrap();
        let people = desk.portal.store.people.people_with_email(&email).await.unwrap();
        Self { name: name.to_owned(), id: people[0].id, browser }
    }

    /// The same person in another browser.
    pub(super) async fn elsewhere(&self, desk: &Desk) -> Browser {
        sign_in(desk, &self.name).await
    }
}

pub(super) async fn sign_in(desk: &Desk, name: &str) -> Browser {
    let mut browser = desk.browser();
    let reply = browser.come_back(claims(name, &format!("{name}@company.com"))).await;
    assert!(reply.has_session(), "{reply:?}");
    browser
}

/// The command line changes something about the team.
pub(super) fn manage(portal: &Portal) -> Permit<ManageTeam> {
    let request_id = RequestId::from_stored("req_operator".to_owned());
    let asking = Asking { by: Asker::Operator, at: portal.clock.now(), request_id };
    portal.policy.decide(&asking, TheFirm).unwrap()
}

/// A decision as tests compare it.
pub(super) fn in_short(row: &AuditedDecision) -> (Action, Decision, Option<ClientId>, Option<PersonId>) {
    (row.asked.action, row.decision, row.asked.client, row.asked.by.person())
}
