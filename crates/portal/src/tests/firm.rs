//! A firm with signed-in people and their clients: two consultants, Ann and Ben, and two partners,
//! Ruth and Rob.

use super::TestPortal;
use super::browser::{Browser, claims};
use crate::state::Portal;
use chancery_domain::{
    AccountId, Action, AuditedDecision, ClientId, ContactDetails, ContactEmail, Decision, DisputeDetails,
    EntryId, EntryKind, MAX_ENTRY_TEXT_CHARS, OsRandomness, PersonId, Principal, RequestId, Role,
    SecretToken, TokenHash, Version,
};
use chancery_policy::{
    AuthzRequest, ClientResource, CreateClient, EditClient, FirmResource, ManageAccounts, ManageTeam,
    NewClientResource, Permit,
};
use chancery_store::{
    AccountChange, BillingChange, ClientChange, NewClient, NewEntry, NewProviderAccount, NewProviderSession,
    PasswordHash,
};

pub(super) struct Firm {
    pub(super) portal: TestPortal,
    pub(super) ann: TestPerson,
    pub(super) ben: TestPerson,
    pub(super) ruth: TestPerson,
    pub(super) rob: TestPerson,
    newcomers: u32,
}

pub(super) struct TestPerson {
    name: String,
    pub(super) id: PersonId,
    pub(super) browser: Browser,
}

/// A client with an entry of each kind; `entry` is the note.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientWithEntry {
    pub(super) client: ClientId,
    pub(super) entry: EntryId,
}

impl Firm {
    pub(super) async fn open() -> Self {
        Self::at(TestPortal::open().await).await
    }

    pub(super) async fn at(portal: TestPortal) -> Self {
        let ann = TestPerson::sign_in(&portal, "ann").await;
        let ben = TestPerson::sign_in(&portal, "ben").await;
        let ruth = TestPerson::sign_in(&portal, "ruth").await;
        let rob = TestPerson::sign_in(&portal, "rob").await;
        portal.portal.store.people.set_role(manage(&portal.portal), rob.id, Role::Partner).await.unwrap();
        Self { portal, ann, ben, ruth, rob, newcomers: 0 }
    }

    /// Signs in a new consultant.
    pub(super) async fn newcomer(&mut self) -> TestPerson {
        self.newcomers += 1;
        TestPerson::sign_in(&self.portal, &format!("newcomer{}", self.newcomers)).await
    }

    /// A request of this person, in their current role.
    async fn authz_request_of(&self, person: PersonId) -> AuthzRequest {
        let portal = &self.portal.portal;
        let people = portal.store.people.list_people().await.unwrap();
        let role = people.iter().find(|known| known.id == person).unwrap().role;
        AuthzRequest {
            by: Principal::Person { id: person, role },
            at: portal.clock.now(),
            request_id: RequestId::new(portal.clock.now(), portal.randomness.as_ref()),
        }
    }

    pub(super) async fn client(&self, owner: PersonId, name: &str) -> ClientWithEntry {
        let portal = &self.portal.portal;
        let authz_request = self.authz_request_of(owner).await;
        let entry = |kind, title: &str| NewEntry {
            kind,
            title: title.parse().unwrap(),
            text: format!("{title} of {name}.").parse().unwrap(),
            at: portal.clock.now(),
            author: owner,
            is_open: kind != EntryKind::MeetingNote,
            dispute: DisputeDetails::default(),
            is_archived: false,
        };
        let new = NewClient {
            name: name.parse().unwrap(),
            details: ContactDetails::default(),
            entries: vec![
                entry(EntryKind::BillingDispute, "A dispute"),
                entry(EntryKind::DraftLetter, "A letter"),
            ],
            is_archived: false,
        };
        let permit = portal.policy.decide::<CreateClient>(&authz_request, NewClientResource(owner)).unwrap();
        let client = portal.store.clients.create_client(permit, new).await.unwrap();
        let about = ClientResource { id: client, owner: Some(owner) };
        let permit = portal.policy.decide::<EditClient>(&authz_request, about).unwrap();
        let note =
            portal.store.clients.add_entry(permit, entry(EntryKind::MeetingNote, "A note")).await.unwrap();
        ClientWithEntry { client, entry: note.id }
    }

    /// Gives a client an address that predates today's rule.
    pub(super) async fn store_email(&self, client: ClientId, version: i64, email: &str) {
        let portal = &self.portal.portal;
        let about = ClientResource { id: client, owner: Some(self.ann.id) };
        let by = self.authz_request_of(self.ann.id).await;
        let permit = portal.policy.decide::<EditClient>(&by, about).unwrap();
        let details = ContactDetails {
            email: ContactEmail::from_stored(email.to_owned()),
            ..ContactDetails::default()
        };
        let name = "Harbour Lane".parse().unwrap();
        let change = ClientChange { version: Version(version), name, details };
        portal.store.clients.edit_client(permit, change).await.unwrap();
    }

    /// Gives an account a billing email that predates today's rule.
    pub(super) async fn store_billing_email(&self, account: AccountId, email: &str) {
        let portal = &self.portal.portal;
        let by = self.authz_request_of(self.ruth.id).await;
        let permit = portal.policy.decide::<ManageAccounts>(&by, FirmResource).unwrap();
        let email = Some(ContactEmail::from_stored(email.to_owned()));
        let change = AccountChange::SetBilling { account, change: BillingChange { address: None, email } };
        portal.store.accounts.change_account(permit, change).await.unwrap();
    }

    /// A client with notes of the greatest length, and a letter.
    pub(super) async fn long_client(&self, owner: PersonId, name: &str, notes: usize) -> ClientId {
        let portal = &self.portal.portal;
        let authz_request = self.authz_request_of(owner).await;
        let entry = |kind, title: String| NewEntry {
            kind,
            title: title.parse().unwrap(),
            text: "\u{1F4DC}".repeat(MAX_ENTRY_TEXT_CHARS).parse().unwrap(),
            at: portal.clock.now(),
            author: owner,
            is_open: false,
            dispute: DisputeDetails::default(),
            is_archived: false,
        };
        let mut entries = vec![entry(EntryKind::DraftLetter, "A letter".to_owned())];
        entries.extend((0..notes).map(|number| entry(EntryKind::MeetingNote, format!("Note {number}"))));
        let new = NewClient {
            name: name.parse().unwrap(),
            details: ContactDetails::default(),
            entries,
            is_archived: false,
        };
        let permit = portal.policy.decide::<CreateClient>(&authz_request, NewClientResource(owner)).unwrap();
        portal.store.clients.create_client(permit, new).await.unwrap()
    }

    /// All decisions so far, oldest first.
    pub(super) async fn decisions(&self) -> Vec<AuditedDecision> {
        let rows = self.portal.store.all_audit_rows().await.unwrap();
        rows.iter().filter_map(|row| row.as_decision().cloned()).collect()
    }
}

impl TestPerson {
    async fn sign_in(portal: &TestPortal, name: &str) -> Self {
        let browser = sign_in(portal, name).await;
        let email = format!("{name}@company.com").parse().unwrap();
        let people = portal.portal.store.people.people_by_email(&email).await.unwrap();
        Self { name: name.to_owned(), id: people[0].id, browser }
    }

    /// Signs the same person in with another browser.
    pub(super) async fn elsewhere(&self, portal: &TestPortal) -> Browser {
        sign_in(portal, &self.name).await
    }
}

pub(super) async fn sign_in(portal: &TestPortal, name: &str) -> Browser {
    let mut browser = portal.browser();
    let reply = browser.follow_callback(claims(name, &format!("{name}@company.com"))).await;
    assert!(reply.has_session(), "{reply:?}");
    browser
}

/// A permit for the command line to change the team.
pub(super) fn manage(portal: &Portal) -> Permit<ManageTeam> {
    let request_id = RequestId::from_stored("req_operator".to_owned());
    let authz_request = AuthzRequest { by: Principal::Operator, at: portal.clock.now(), request_id };
    portal.policy.decide(&authz_request, FirmResource).unwrap()
}

/// Creates the person's account at the built-in provider, and signs a browser in there.
pub(super) async fn add_provider_account(portal: &TestPortal, person: PersonId) -> TokenHash {
    let people = portal.portal.store.people.list_people().await.unwrap();
    let person = people.into_iter().find(|found| found.id == person).unwrap();
    let new = NewProviderAccount {
        subject: person.identity.subject.clone(),
        email: person.email,
        password_hash: PasswordHash("x".to_owned()),
        at: portal.portal.clock.now(),
    };
    let account = portal.store.provider_accounts.create_provider_account(new).await.unwrap();
    let token = SecretToken::generate(&OsRandomness);
    let new = NewProviderSession {
        token: token.hash(),
        subject: account.subject,
        password_version: account.password_version,
        sid: SecretToken::generate(&OsRandomness).reveal().to_owned(),
        amr: "pwd".to_owned(),
        at: portal.portal.clock.now(),
    };
    portal.store.provider_sessions.start_provider_session(new).await.unwrap();
    token.hash()
}

/// A decision in the form that tests compare.
pub(super) fn in_short(row: &AuditedDecision) -> (Action, Decision, Option<ClientId>, Option<PersonId>) {
    (row.access_request.action, row.decision, row.access_request.client, row.access_request.by.person())
}
