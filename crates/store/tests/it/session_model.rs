//! Conformance: people, their roles and their sessions do what a model in memory does, on two nodes, with permits that are
//! used long after the decision.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{POLICY, authz_request, manage, origin, principal, verified_audit_chains};
use crate::models::{Draw, Model, compare};
use crate::samples::NOON;
use chancery_domain::{
    Identity, OsRandomness, Person, PersonId, Role, SecretToken, SessionTimeouts, TokenHash, UnixMillis,
};
use chancery_policy::{FirmResource, ManageTeam, Permit};
use chancery_store::{
    DbError, NewSession, PersonError, RenewedSession, SessionAuthentication, Store, VerifiedIdentity,
};
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

const TIMES: SessionTimeouts =
    SessionTimeouts { idle: Duration::from_secs(30 * 60), max: Duration::from_secs(12 * 3600) };
const TOUCH_MS: i64 = 30_000;
const MINUTE_MS: i64 = 60_000;

/// The last two have one mailbox.
const PEOPLE: [&str; 5] = ["ann", "ben", "cy", "dee", "dee+work"];

#[derive(Clone, Debug)]
enum Step {
    Wait {
        ms: i64,
    },
    SignIn {
        person: usize,
        role: Role,
        is_directory: bool,
    },
    /// Whoever it is may be a consultant, who gets no permit. It is used by the next change.
    TakePermit {
        by: usize,
    },
    SetRole {
        person: usize,
        role: Role,
    },
    Remove {
        person: usize,
    },
    Restore {
        person: usize,
    },
    SignOut {
        person: usize,
    },
    ChangePassword {
        person: usize,
    },
    /// `replaces` is a session, by its place.
    Start {
        person: usize,
        replaces: Option<usize>,
    },
    Use {
        session: usize,
        ip: &'static str,
    },
    Renew {
        session: usize,
    },
    List {
        person: usize,
    },
    /// The one at this place in the list.
    End {
        person: usize,
        place: usize,
    },
    EndOthers {
        person: usize,
        place: usize,
    },
    DeleteExpired,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    id: PersonId,
    role: Role,
    is_removed: bool,
}

#[derive(Clone, Debug)]
struct Session {
    token: TokenHash,
    person: usize,
    started_at: UnixMillis,
    last_used_at: UnixMillis,
    ip: &'static str,
}

struct Firm {
    _database: Arc<AnyDatabase>,
    stores: [Arc<Store>; 2],
    /// Steps made, which alternate between the stores.
    turn: usize,
    now: UnixMillis,
    members: [Option<Member>; PEOPLE.len()],
    /// In the order of their start, those included that have ended.
    sessions: Vec<Option<Session>>,
    /// With the person, and their role at the decision.
    permit: Option<(Permit<ManageTeam>, usize, Role)>,
    had_partner: bool,
}

fn identity(person: usize) -> Identity {
    Identity { issuer: "https://id.example".to_owned(), subject: PEOPLE[person].to_owned() }
}

fn mailbox(person: usize) -> &'static str {
    PEOPLE[person].split('+').next().unwrap()
}

fn token() -> TokenHash {
    SecretToken::generate(&OsRandomness).hash()
}

/// What a test can compare of an error.
fn kind<T>(outcome: Result<T, PersonError>) -> Result<T, String> {
    outcome.map_err(|error| match error {
        PersonError::Database(DbError::PrincipalChanged(id)) => format!("changed {}", id.0),
        PersonError::Database(error) => panic!("{error}"),
        error => error.to_string(),
    })
}

fn no_such<T>(id: PersonId) -> Result<T, String> {
    Err(PersonError::NoSuchPerson(id).to_string())
}

impl Firm {
    async fn open(database: Arc<AnyDatabase>) -> Self {
        let stores = [database.open().await, database.open().await];
        let (members, sessions) = ([None; PEOPLE.len()], Vec::new());
        Self {
            _database: database,
            stores,
            turn: 0,
            now: NOON,
            members,
            sessions,
            permit: None,
            had_partner: false,
        }
    }

    fn id(&self, person: usize) -> PersonId {
        self.members[person].map_or(PersonId(777), |member| member.id)
    }

    fn active(&self, person: usize) -> Option<Member> {
        self.members[person].filter(|member| !member.is_removed)
    }

    fn has_partner(&self, is_counted: impl Fn(usize) -> bool) -> bool {
        (0..PEOPLE.len())
            .any(|one| is_counted(one) && self.active(one).is_some_and(|it| it.role == Role::Partner))
    }

    fn is_active(&self, session: &Session) -> bool {
        let (oldest_start, oldest_use) = TIMES.active_cutoffs(self.now);
        session.started_at > oldest_start && session.last_used_at > oldest_use
    }

    /// Places of the person's active sessions, as the list shows them.
    fn listed(&self, person: usize) -> Vec<usize> {
        let is_listed = |session: &Session| session.person == person && self.is_active(session);
        let sessions = self.sessions.iter().enumerate();
        let mut places: Vec<usize> =
            sessions.filter(|(_, it)| it.as_ref().is_some_and(is_listed)).map(|(place, _)| place).collect();
        places.sort_by_key(|place| {
            Reverse((self.sessions[*place].as_ref().map(|session| session.last_used_at), *place))
        });
        places
    }

    /// Returns how many ended.
    fn end(&mut self, is_ended: impl Fn(usize, &Session) -> bool) -> u64 {
        let mut ended = 0;
        for (place, session) in self.sessions.iter_mut().enumerate() {
            if session.as_ref().is_some_and(|session| is_ended(place, session)) {
                *session = None;
                ended += 1;
            }
        }
        ended
    }

    /// The permit that was taken before, or the operator's; and whether its principal has changed since.
    fn take_permit(&mut self) -> (Permit<ManageTeam>, Result<(), String>) {
        let Some((permit, by, role)) = self.permit.take() else { return (manage(self.now), Ok(())) };
        let is_unchanged = self.active(by).is_some_and(|member| member.role == role);
        (permit, if is_unchanged { Ok(()) } else { Err(format!("changed {}", self.id(by).0)) })
    }

    fn expect_sign_in(
        &mut self,
        person: usize,
        role: Role,
        is_directory: bool,
    ) -> Result<Option<Role>, String> {
        let removed = |id| Err(PersonError::PersonRemoved(id).to_string());
        let Some(known) = self.members[person] else {
            let same = (0..PEOPLE.len()).filter(|one| mailbox(*one) == mailbox(person));
            let removed_ids = same.filter_map(|one| self.members[one]).filter(|it| it.is_removed);
            return removed_ids.map(|it| it.id).min().map_or(Ok(None), removed);
        };
        if known.is_removed {
            return removed(known.id);
        }
        let is_last = known.role == Role::Partner && !self.has_partner(|one| one != person);
        let new_role = if is_directory && !is_last { role } else { known.role.max(role) };
        self.members[person] = Some(Member { role: new_role, ..known });
        Ok(Some(new_role))
    }

    fn expect_set_role(&mut self, person: usize, role: Role) -> Result<Role, String> {
        let Some(known) = self.active(person) else { return no_such(self.id(person)) };
        let keeps_a_partner =
            known.role != Role::Partner || role == Role::Partner || self.has_partner(|one| one != person);
        if !keeps_a_partner {
            return Err(PersonError::LastPartner.to_string());
        }
        self.members[person] = Some(Member { role, ..known });
        Ok(role)
    }

    fn expect_remove(&mut self, person: usize) -> Result<Vec<PersonId>, String> {
        if self.active(person).is_none() {
            return no_such(self.id(person));
        }
        let is_same = |one: usize| mailbox(one) == mailbox(person);
        if self.has_partner(is_same) && !self.has_partner(|one| !is_same(one)) {
            return Err(PersonError::LastPartner.to_string());
        }
        let mut removed = Vec::new();
        for one in (0..PEOPLE.len()).filter(|one| is_same(*one)) {
            if let Some(member) = self.members[one].as_mut().filter(|member| !member.is_removed) {
                member.is_removed = true;
                removed.push(member.id);
            }
        }
        removed.sort();
        Ok(removed)
    }

    fn expect_restore(&mut self, person: usize) -> Result<Role, String> {
        let Some(member) = self.members[person].as_mut().filter(|member| member.is_removed) else {
            return no_such(self.id(person));
        };
        member.is_removed = false;
        let role = member.role;
        self.end(|_, session| session.person == person);
        Ok(role)
    }

    async fn start(&mut self, store: &Store, person: usize, replaces: Option<usize>) {
        let token = token();
        let replaced = replaces.and_then(|place| self.sessions[place].as_ref()).map(|session| session.token);
        let new = NewSession {
            token,
            binding: None,
            person: self.id(person),
            authentication: SessionAuthentication::at(self.now),
            origin: origin(self.now),
            ip_address: "192.0.2.1".to_owned(),
            user_agent: "Firefox".to_owned(),
            replaces: replaced,
        };
        let outcome = kind(store.sessions.start_session(new).await);
        self.end(|place, _| Some(place) == replaces);
        if self.active(person).is_some() {
            outcome.unwrap();
            let (started_at, last_used_at) = (self.now, self.now);
            self.sessions.push(Some(Session { token, person, started_at, last_used_at, ip: "192.0.2.1" }));
        } else {
            assert_eq!(outcome, no_such(self.id(person)));
        }
    }

    async fn use_session(&mut self, store: &Store, place: usize, ip: &'static str) {
        let Some(session) = self.sessions[place].clone() else { return };
        let used = store.sessions.active_session(session.token, ip, TIMES, self.now).await.unwrap();
        let owner = self.active(session.person).filter(|_| self.is_active(&session));
        let found = used.map(|it| {
            let times = (it.session.started_at, it.session.last_used_at);
            (it.person.id, it.person.role, times, it.session.ip_address)
        });
        let times = (session.started_at, session.last_used_at);
        assert_eq!(found, owner.map(|owner| (owner.id, owner.role, times, session.ip.to_owned())));
        let is_due = session.last_used_at.0 + TOUCH_MS <= self.now.0 || session.ip != ip;
        if owner.is_some() && is_due && session.last_used_at < self.now {
            self.sessions[place] = Some(Session { last_used_at: self.now, ip, ..session });
        }
    }

    async fn renew(&mut self, store: &Store, place: usize) {
        let Some(session) = self.sessions[place].clone() else { return };
        let renewed = RenewedSession {
            person: self.id(session.person),
            old_token: session.token,
            token: token(),
            binding: None,
            authentication: SessionAuthentication::at(self.now),
            confirmed_at: self.now,
            step_up: Some(origin(self.now)),
        };
        let old = RenewedSession { token: token(), ..renewed.clone() };
        let new_token = renewed.token;
        assert!(store.sessions.renew_session(renewed).await.unwrap());
        assert!(!store.sessions.renew_session(old).await.unwrap(), "the old token is void");
        self.sessions[place] = Some(Session { token: new_token, ..session });
    }

    /// Ends the session at that place of the person's list, or all others.
    async fn end_listed(&mut self, store: &Store, person: usize, place: usize, is_spared: bool) {
        let (id, origin) = (self.id(person), origin(self.now));
        let listed = store.sessions.list_sessions(id, TIMES, self.now).await.unwrap();
        let places = self.listed(person);
        let uses: Vec<_> = listed.iter().map(|session| session.last_used_at).collect();
        let expected = places.iter().filter_map(|place| self.sessions[*place].as_ref());
        assert_eq!(uses, expected.map(|session| session.last_used_at).collect::<Vec<_>>());
        let chosen = listed.get(place).map(|session| session.id).zip(places.get(place).copied());
        match chosen {
            Some((session, place)) if !is_spared => {
                assert!(store.sessions.end_session(id, session, &origin).await.unwrap());
                assert!(!store.sessions.end_session(id, session, &origin).await.unwrap(), "it ends once");
                self.end(|one, _| one == place);
            }
            _ => {
                let spared = chosen.map(|(session, _)| session);
                let ended = store.sessions.end_all_sessions(id, spared, &origin).await.unwrap();
                let is_ended = |one, session: &Session| {
                    session.person == person && chosen.is_none_or(|(_, spared)| spared != one)
                };
                assert_eq!(ended, self.end(is_ended));
            }
        }
    }
}

impl Model for Firm {
    type Step = Step;

    fn draw(&self, draw: &Draw) -> Step {
        let person = draw.index(PEOPLE.len());
        let role = draw.one_of(&[Role::Consultant, Role::Partner]);
        let session = draw.index(self.sessions.len().max(1));
        let place = draw.index(3);
        match draw.index(34) {
            0..4 => Step::Wait {
                ms: match draw.index(8) {
                    0 => draw.number(-60..0) * MINUTE_MS,
                    1 => draw.number(0..13 * 60) * MINUTE_MS,
                    // To the very end of a session, and one millisecond beside it.
                    2 => 30 * MINUTE_MS + draw.number(-1..2),
                    _ => draw.number(0..10 * MINUTE_MS),
                },
            },
            4..8 => Step::SignIn { person, role, is_directory: draw.is_one_in(2) },
            8..10 => Step::TakePermit { by: person },
            10..13 => Step::SetRole { person, role },
            13 => Step::Remove { person },
            14..16 => Step::Restore { person },
            16 => Step::SignOut { person },
            17 => Step::ChangePassword { person },
            18 => Step::DeleteExpired,
            19 => Step::List { person },
            20 => Step::End { person, place },
            21 => Step::EndOthers { person, place },
            22..30 if !self.sessions.is_empty() => {
                Step::Use { session, ip: draw.one_of(&["192.0.2.1", "192.0.2.2"]) }
            }
            30 if !self.sessions.is_empty() => Step::Renew { session },
            _ => {
                let replaces = (draw.is_one_in(3) && !self.sessions.is_empty()).then_some(session);
                Step::Start { person, replaces }
            }
        }
    }

    async fn make(&mut self, step: &Step) {
        let store = Arc::clone(&self.stores[self.turn % self.stores.len()]);
        self.turn += 1;
        match *step {
            Step::Wait { ms } => self.now.0 += ms,
            Step::SignIn { person, role, is_directory } => {
                let email = format!("{}@example.com", PEOPLE[person]).parse().unwrap();
                let (identity, origin) = (identity(person), origin(self.now));
                let verified = VerifiedIdentity { identity, email, role, origin };
                let outcome = kind(if is_directory {
                    store.people.sign_in_from_directory(verified).await
                } else {
                    store.people.sign_in(verified).await
                });
                match self.expect_sign_in(person, role, is_directory) {
                    Ok(None) => {
                        let Person { id, role: joined, .. } = outcome.unwrap();
                        assert_eq!(joined, role);
                        self.members[person] = Some(Member { id, role, is_removed: false });
                    }
                    Ok(Some(role)) => {
                        assert_eq!(outcome.map(|it| (it.id, it.role)), Ok((self.id(person), role)));
                    }
                    Err(error) => assert_eq!(outcome.map(|it| it.id), Err(error)),
                }
            }
            Step::TakePermit { by } => {
                let Some(Member { id, role, .. }) = self.active(by) else { return };
                let person = store.people.list_people().await.unwrap().into_iter().find(|one| one.id == id);
                let request = authz_request(principal(&person.unwrap()), self.now);
                let permit = POLICY.decide::<ManageTeam>(&request, FirmResource);
                assert_eq!(permit.is_ok(), role == Role::Partner);
                self.permit = permit.ok().map(|permit| (permit, by, role));
            }
            Step::SetRole { person, role } => {
                let (permit, is_valid) = self.take_permit();
                let outcome = kind(store.people.set_role(permit, self.id(person), role).await);
                let expected = is_valid.and_then(|()| self.expect_set_role(person, role));
                assert_eq!(outcome.map(|person| person.role), expected);
            }
            Step::Remove { person } => {
                let (permit, is_valid) = self.take_permit();
                let outcome =
                    kind(store.people.remove_person(permit, self.id(person), Box::new(|_| true)).await);
                let expected = is_valid.and_then(|()| self.expect_remove(person));
                assert_eq!(outcome.map(|people| people.iter().map(|it| it.id).collect::<Vec<_>>()), expected);
            }
            Step::Restore { person } => {
                let (permit, is_valid) = self.take_permit();
                let outcome = kind(store.people.restore_person(permit, self.id(person)).await);
                let expected = is_valid.and_then(|()| self.expect_restore(person));
                assert_eq!(outcome.map(|person| person.role), expected);
            }
            Step::SignOut { person } => {
                let (permit, is_valid) = self.take_permit();
                let outcome = kind(store.people.sign_out_person(permit, self.id(person)).await);
                let expected = is_valid.and_then(|()| {
                    if self.members[person].is_none() {
                        return no_such(self.id(person));
                    }
                    Ok(self.end(|_, session| session.person == person))
                });
                assert_eq!(outcome, expected);
            }
            Step::ChangePassword { person } => {
                let revoker = &store.session_revoker;
                let ended = revoker.end_sessions_of_identity(&identity(person), &origin(self.now)).await;
                assert_eq!(ended.unwrap(), self.end(|_, session| session.person == person));
            }
            Step::Start { person, replaces } => self.start(&store, person, replaces).await,
            Step::Use { session, ip } => self.use_session(&store, session, ip).await,
            Step::Renew { session } => self.renew(&store, session).await,
            Step::List { person } => {
                let listed = store.sessions.list_sessions(self.id(person), TIMES, self.now).await.unwrap();
                assert_eq!(listed.len(), self.listed(person).len());
            }
            Step::End { person, place } => self.end_listed(&store, person, place, false).await,
            Step::EndOthers { person, place } => self.end_listed(&store, person, place, true).await,
            Step::DeleteExpired => {
                let deleted = store.sessions.delete_expired_sessions(TIMES, self.now, 1_000).await.unwrap();
                let (members, (oldest_start, oldest_use)) = (self.members, TIMES.active_cutoffs(self.now));
                let is_over = |_, session: &Session| {
                    session.started_at <= oldest_start
                        || session.last_used_at <= oldest_use
                        || members[session.person].is_some_and(|member| member.is_removed)
                };
                assert_eq!(deleted, self.end(is_over));
            }
        }
        let has_partner = self.has_partner(|_| true);
        assert!(has_partner || !self.had_partner, "the last partner is gone");
        self.had_partner = has_partner;
    }

    async fn finish(self) {
        let mut people: Vec<_> =
            self.stores[0].people.list_people().await.unwrap().iter().map(|it| (it.id, it.role)).collect();
        people.sort();
        let mut expected: Vec<_> =
            (0..PEOPLE.len()).filter_map(|one| self.active(one)).map(|it| (it.id, it.role)).collect();
        expected.sort();
        assert_eq!(people, expected);
        verified_audit_chains(&self.stores[1]).await;
        for store in self.stores {
            store.close().await;
        }
    }
}

pub async fn sessions_and_roles_agree_with_model(database: Arc<AnyDatabase>) {
    compare(async || Firm::open(database.another()).await).await;
}
