//! Conformance: invitations give their role once, expire, and go out with an email each.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{POLICY, People};
use crate::firm::{authz_request, decisions, events, manage, origin, people, principal};
use crate::samples::NOON;
use chancery_domain::{
    Action, AuditEvent, EmailAddress, EventKind, Identity, OsRandomness, Person, Principal, Role,
    SecretToken, Throttle, UnixMillis,
};
use chancery_policy::{FirmResource, InvitePerson, Permit};
use chancery_store::{
    INVITATION_LIFETIME, InvitationError, MessageKind, NewInvitation, NewMessage, PersonError, Store,
    VerifiedIdentity,
};
use std::sync::Arc;
use std::time::Duration;

pub fn permit(by: Principal, at: UnixMillis) -> Permit<InvitePerson> {
    POLICY.decide(&authz_request(by, at), FirmResource).unwrap()
}

/// An email with an id of its own.
pub fn email_to(address: &EmailAddress) -> NewMessage {
    NewMessage {
        kind: MessageKind::Email,
        destination: address.to_string(),
        event_id: format!("eml_{}", SecretToken::generate(&OsRandomness).reveal()),
        payload: "{}".to_owned(),
        created_at: NOON,
        expires_at: NOON.after(Duration::from_secs(3_600)),
    }
}

pub fn invitation(email: &str, role: Role) -> NewInvitation {
    let email: EmailAddress = email.parse().unwrap();
    NewInvitation { message: email_to(&email), email, role }
}

async fn invite(store: &Store, email: &str, role: Role, at: UnixMillis) -> Result<(), InvitationError> {
    store.invitations.invite_person(permit(Principal::Operator, at), &invitation(email, role)).await
}

async fn sign_in(store: &Store, subject: &str, email: &str, at: UnixMillis) -> Result<Person, PersonError> {
    let identity = Identity { issuer: "https://id.example".to_owned(), subject: subject.to_owned() };
    let (email, role) = (email.parse().unwrap(), Role::Consultant);
    store.people.sign_in(VerifiedIdentity { identity, email, role, origin: origin(at) }).await
}

async fn emails(store: &Store) -> usize {
    let claim = SecretToken::generate(&OsRandomness);
    let claim_ends_at = UnixMillis(NOON.0 + 1);
    let emails = (MessageKind::Email, None);
    store.outbox.claim_messages(emails, &claim, NOON, claim_ends_at, 100).await.unwrap().len()
}

pub async fn invitation_gives_its_role_once_at_first_sign_in(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    invite(&store, "nora@example.com", Role::Partner, NOON).await.unwrap();
    assert_eq!(sign_in(&store, "x", "nora+x@example.com", NOON).await.unwrap().role, Role::Consultant);
    assert_eq!(sign_in(&store, "nora", "nora@example.com", NOON).await.unwrap().role, Role::Partner);
    assert!(store.invitations.list_invitations(NOON).await.unwrap().is_empty());
    assert_eq!(sign_in(&store, "twin", "nora@example.com", NOON).await.unwrap().role, Role::Consultant);
    let joined: Vec<_> =
        events(&store).await.into_iter().map(|row| (row.event.kind, row.event.new_role)).collect();
    assert!(joined.contains(&(EventKind::PersonJoined, Some(Role::Partner))), "{joined:?}");
}

pub async fn expired_invitation_gives_no_role_and_is_deleted(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    for email in ["nora@example.com", "omar@example.com", "pia@example.com"] {
        invite(&store, email, Role::Partner, NOON).await.unwrap();
    }
    let last = UnixMillis(NOON.after(INVITATION_LIFETIME).0 - 1);
    assert_eq!(store.invitations.list_invitations(last).await.unwrap().len(), 3);
    assert_eq!(sign_in(&store, "omar", "omar@example.com", last).await.unwrap().role, Role::Partner);
    // Sending it again renews it.
    let pia: EmailAddress = "pia@example.com".parse().unwrap();
    let (operator, email) = (permit(Principal::Operator, last), email_to(&pia));
    store.invitations.resend_invitation(operator, &pia, &email).await.unwrap();
    let over = NOON.after(INVITATION_LIFETIME);
    let left = store.invitations.list_invitations(over).await.unwrap();
    assert_eq!(left.iter().map(|pending| pending.email.clone()).collect::<Vec<_>>(), [pia]);
    assert_eq!(store.invitations.delete_expired_invitations(over, 100).await.unwrap(), 1);
    assert_eq!(store.invitations.delete_expired_invitations(over, 100).await.unwrap(), 0);
    assert_eq!(sign_in(&store, "nora", "nora@example.com", over).await.unwrap().role, Role::Consultant);
}

pub async fn racing_first_sign_ins_use_one_invitation(database: Arc<AnyDatabase>) {
    let stores = [database.open().await, database.open().await];
    invite(&stores[0], "nora@example.com", Role::Partner, NOON).await.unwrap();
    let racing: Vec<_> = (0..8)
        .map(|number| {
            let store = Arc::clone(&stores[number % 2]);
            let subject = format!("nora{number}");
            tokio::spawn(
                async move { sign_in(&store, &subject, "nora@example.com", NOON).await.unwrap().role },
            )
        })
        .collect();
    let mut partners = 0;
    for arrived in racing {
        partners += usize::from(arrived.await.unwrap() == Role::Partner);
    }
    assert_eq!(partners, 1);
}

pub async fn invitation_and_its_email_are_one_step_and_audited(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let People { ruth, .. } = people(&store).await;
    let new = invitation("nora@example.com", Role::Partner);
    store.invitations.invite_person(permit(principal(&ruth), NOON), &new).await.unwrap();
    let pending = store.invitations.list_invitations(NOON).await.unwrap();
    let [pending] = &pending[..] else { panic!("{pending:?}") };
    assert_eq!((&pending.email, pending.role, pending.last_sent_at), (&new.email, Role::Partner, NOON));
    assert_eq!(pending.invited_by.as_ref().map(|person| person.id), Some(ruth.id));
    assert_eq!(emails(&store).await, 1);
    store.invitations.cancel_invitation(permit(principal(&ruth), NOON), &new.email).await.unwrap();
    let again = store.invitations.cancel_invitation(permit(principal(&ruth), NOON), &new.email).await;
    assert!(matches!(again, Err(InvitationError::NoSuchInvitation(_))));
    let lost =
        store.invitations.resend_invitation(permit(principal(&ruth), NOON), &new.email, &new.message).await;
    assert!(matches!(lost, Err(InvitationError::NoSuchInvitation(_))));
    let effect =
        |kind| Some(AuditEvent { kind, subject: None, old_role: None, new_role: Some(Role::Partner) });
    let audited = decisions(&store).await.into_iter();
    let audited = audited.filter(|row| row.access_request.action == Action::InvitePerson);
    let audited: Vec<_> = audited.map(|row| (row.effect, row.invited)).collect();
    let nora = Some(new.email.clone());
    assert_eq!(
        audited,
        [
            (effect(EventKind::PersonInvited), nora.clone()),
            (effect(EventKind::InvitationCanceled), nora),
            (None, None),
            (None, None)
        ],
        "a rejected change is a decision without an effect"
    );
}

pub async fn members_and_removed_people_cannot_be_invited(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let People { maya, .. } = people(&store).await;
    store.people.remove_person(manage(NOON), maya.id, Box::new(|_| true)).await.unwrap();
    for email in ["tom@example.com", "tom+x@example.com"] {
        let outcome = invite(&store, email, Role::Partner, NOON).await;
        assert!(matches!(outcome, Err(InvitationError::AlreadyOnTeam(_))), "{email}: {outcome:?}");
    }
    for email in ["maya@example.com", "maya+x@example.com"] {
        let outcome = invite(&store, email, Role::Partner, NOON).await;
        assert!(matches!(outcome, Err(InvitationError::PersonRemoved(_))), "{email}: {outcome:?}");
    }
    assert!(store.invitations.list_invitations(NOON).await.unwrap().is_empty());
    assert_eq!(emails(&store).await, 0);
}

pub async fn invitation_emails_are_throttled_per_mailbox(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let limit = usize::try_from(Throttle::INVITATION_EMAIL.limit).unwrap();
    for number in 0..limit {
        invite(&store, &format!("nora+{number}@example.com"), Role::Consultant, NOON).await.unwrap();
    }
    let too_many = invite(&store, "nora@example.com", Role::Consultant, NOON).await;
    let Err(InvitationError::TooManyEmails { until, .. }) = too_many else { panic!("{too_many:?}") };
    assert_eq!(until, NOON.after(Throttle::INVITATION_EMAIL.window));
    let nora: EmailAddress = "nora+0@example.com".parse().unwrap();
    let again =
        store.invitations.resend_invitation(permit(Principal::Operator, NOON), &nora, &email_to(&nora)).await;
    assert!(matches!(again, Err(InvitationError::TooManyEmails { .. })), "{again:?}");
    invite(&store, "omar@example.com", Role::Consultant, NOON).await.unwrap();
    assert_eq!(emails(&store).await, limit + 1);
    invite(&store, "nora@example.com", Role::Consultant, until).await.unwrap();
}
