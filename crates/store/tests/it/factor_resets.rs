//! Conformance: a reset of second factors, its notice and its audit row are one step.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{POLICY, People, authz_request, decisions, manage, origin, people, principal};
use crate::invitations::email_to;
use crate::samples::NOON;
use chancery_domain::{
    Action, AuditEvent, EventKind, OsRandomness, Person, PersonId, Principal, SecretToken, SessionTimeouts,
    TokenHash, UnixMillis,
};
use chancery_policy::{FirmResource, Permit, ResetFactors};
use chancery_store::{
    AccountFactors, FactorResetError, Grant, MessageKind, NewAuthorizationCode, NewPasskey,
    NewProviderAccount, NewProviderSession, NewSession, NewTotpSecret, PasswordHash, SessionAuthentication,
    Store,
};
use std::sync::Arc;
use std::time::Duration;

const TIMES: SessionTimeouts =
    SessionTimeouts { idle: Duration::from_secs(30 * 60), max: Duration::from_secs(12 * 3600) };

fn permit(by: Principal) -> Permit<ResetFactors> {
    POLICY.decide(&authz_request(by, NOON), FirmResource).unwrap()
}

/// Creates the person's account at the provider, and signs a browser in there.
async fn sign_in_at_provider(store: &Store, person: &Person) -> TokenHash {
    let new = NewProviderAccount {
        subject: person.identity.subject.clone(),
        email: person.email.clone(),
        password_hash: PasswordHash("x".to_owned()),
        at: NOON,
    };
    let account = store.provider_accounts.create_provider_account(new).await.unwrap();
    let token = SecretToken::generate(&OsRandomness).hash();
    let new = NewProviderSession {
        token,
        subject: account.subject,
        password_version: account.password_version,
        sid: SecretToken::generate(&OsRandomness).reveal().to_owned(),
        amr: "pwd".to_owned(),
        at: NOON,
    };
    store.provider_sessions.start_provider_session(new).await.unwrap();
    token
}

async fn sign_in_to_portal(store: &Store, person: &Person) -> TokenHash {
    let token = SecretToken::generate(&OsRandomness).hash();
    let new = NewSession {
        token,
        binding: None,
        person: person.id,
        authentication: SessionAuthentication::at(NOON),
        origin: origin(NOON),
        ip_address: "192.0.2.1".to_owned(),
        user_agent: "Firefox".to_owned(),
        replaces: None,
    };
    store.sessions.start_session(new).await.unwrap();
    token
}

/// Adds one of each: a passkey, an authenticator app, and the recovery codes that come with the first.
async fn add_factors(store: &Store, person: &Person) {
    let subject = &person.identity.subject;
    let recovery_codes: Vec<TokenHash> =
        (0..10).map(|_| SecretToken::generate(&OsRandomness).hash()).collect();
    let passkey = NewPasskey {
        credential_id: format!("credential of {subject}").into_bytes(),
        subject: subject.clone(),
        name: "Laptop".to_owned(),
        credential: "{}".to_owned(),
        recovery_codes,
        at: NOON,
    };
    store.second_factors.add_passkey(&passkey).await.unwrap();
    let app = NewTotpSecret {
        subject: subject.clone(),
        secret: b"12345678901234567890".to_vec(),
        step: 100,
        recovery_codes: Vec::new(),
        at: NOON,
    };
    store.second_factors.add_totp(&app).await.unwrap();
}

async fn factors(store: &Store, person: &Person) -> AccountFactors {
    store.second_factors.account_factors(&person.identity.subject).await.unwrap()
}

fn count(factors: &AccountFactors) -> (usize, bool, u64) {
    (factors.passkeys.len(), factors.totp_created_at.is_some(), factors.recovery_codes)
}

pub async fn factor_reset_deletes_all_factors_of_one_account(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let People { maya, tom, ruth } = people(&store).await;
    let mayas = sign_in_at_provider(&store, &maya).await;
    sign_in_at_provider(&store, &tom).await;
    for person in [&maya, &tom] {
        add_factors(&store, person).await;
    }
    let session = store.provider_sessions.provider_session(mayas, TIMES, NOON).await.unwrap().unwrap();
    let grant = Grant {
        client_id: "portal".to_owned(),
        redirect_uri: "https://portal.example/auth/callback".to_owned(),
        code_challenge: "challenge".to_owned(),
        subject: maya.identity.subject.clone(),
        password_version: session.account.password_version,
        scope: "openid email".to_owned(),
        nonce: None,
        sid: session.sid.clone(),
        amr: session.amr,
        authenticated_at: NOON,
    };
    let (expires_at, delete_after) =
        (NOON.after(Duration::from_secs(60)), NOON.after(Duration::from_secs(700)));
    let code = SecretToken::generate(&OsRandomness).hash();
    store.grants.issue_code(NewAuthorizationCode { code, grant, expires_at, delete_after }).await.unwrap();
    let notice = email_to(&maya.email);
    store
        .factor_resets
        .reset_factors(permit(principal(&ruth)), maya.id, &notice, Box::new(|_| true))
        .await
        .unwrap();
    assert_eq!(count(&factors(&store, &maya).await), (0, false, 0));
    assert_eq!(count(&factors(&store, &tom).await), (1, true, 10));
    let claim = SecretToken::generate(&OsRandomness);
    let ends_at = NOON.after(Duration::from_secs(60));
    let announced = store.backchannel_logouts.claim_backchannel_logouts(&claim, NOON, ends_at, 10).await;
    let announced: Vec<String> = announced.unwrap().into_iter().map(|logout| logout.sid).collect();
    assert_eq!(announced, [session.sid]);
    // They can set up new ones.
    add_factors(&store, &maya).await;
    assert_eq!(count(&factors(&store, &maya).await), (1, true, 10));
}

async fn is_signed_in(store: &Store, token: TokenHash) -> bool {
    store.provider_sessions.provider_session(token, TIMES, NOON).await.unwrap().is_some()
}

async fn emails(store: &Store) -> Vec<String> {
    let claim = SecretToken::generate(&OsRandomness);
    let ends_at = UnixMillis(NOON.0 + 1);
    let claimed =
        store.outbox.claim_messages((MessageKind::Email, None), &claim, NOON, ends_at, 100).await.unwrap();
    claimed.into_iter().map(|claimed| claimed.message.destination).collect()
}

pub async fn factor_reset_ends_sessions_and_is_audited(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let People { maya, tom, ruth } = people(&store).await;
    let (mayas, toms) = (sign_in_at_provider(&store, &maya).await, sign_in_at_provider(&store, &tom).await);
    let (mayas_portal, toms_portal) =
        (sign_in_to_portal(&store, &maya).await, sign_in_to_portal(&store, &tom).await);
    for by in [principal(&ruth), Principal::Operator] {
        store
            .factor_resets
            .reset_factors(permit(by), maya.id, &email_to(&maya.email), Box::new(|_| true))
            .await
            .unwrap();
    }
    assert!(!is_signed_in(&store, mayas).await && is_signed_in(&store, toms).await);
    let in_portal =
        async |token| store.sessions.active_session(token, "192.0.2.1", TIMES, NOON).await.unwrap();
    assert!(in_portal(mayas_portal).await.is_none() && in_portal(toms_portal).await.is_some());
    assert_eq!(emails(&store).await, ["maya@example.com", "maya@example.com"]);
    let audited = decisions(&store).await.into_iter();
    let audited = audited.filter(|row| row.access_request.action == Action::ResetFactors);
    let audited: Vec<_> = audited.map(|row| (row.access_request.by, row.effect)).collect();
    let effect = Some(AuditEvent::new(EventKind::FactorsReset, maya.id));
    assert_eq!(audited, [(principal(&ruth), effect), (Principal::Operator, effect)]);
}

pub async fn rejected_factor_reset_changes_nothing(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let People { maya, tom, ruth } = people(&store).await;
    let (mayas, ruths) = (sign_in_at_provider(&store, &maya).await, sign_in_at_provider(&store, &ruth).await);
    for person in [&maya, &ruth] {
        add_factors(&store, person).await;
    }
    let reset = async |by, person| {
        store
            .factor_resets
            .reset_factors(permit(by), person, &email_to(&maya.email), Box::new(|_| true))
            .await
    };
    let notice = email_to(&maya.email);
    let all_but_one = store.factor_resets.reset_factors(
        permit(principal(&ruth)),
        maya.id,
        &notice,
        Box::new(|count| count == 11),
    );
    assert!(matches!(all_but_one.await, Err(FactorResetError::Unconfirmed(_))));
    assert!(matches!(reset(principal(&ruth), ruth.id).await, Err(FactorResetError::OwnFactors)));
    assert!(matches!(reset(principal(&ruth), tom.id).await, Err(FactorResetError::NoProviderAccount)));
    let unknown = reset(principal(&ruth), PersonId(987)).await;
    assert!(matches!(unknown, Err(FactorResetError::NoSuchPerson(PersonId(987)))));
    store.people.remove_person(manage(NOON), maya.id, Box::new(|_| true)).await.unwrap();
    assert!(matches!(reset(principal(&ruth), maya.id).await, Err(FactorResetError::NoSuchPerson(_))));
    assert!(is_signed_in(&store, mayas).await && is_signed_in(&store, ruths).await);
    for person in [&maya, &ruth] {
        assert_eq!(count(&factors(&store, person).await), (1, true, 10));
    }
    assert!(emails(&store).await.is_empty());
    let audited = decisions(&store).await.into_iter();
    let audited: Vec<_> = audited.filter(|row| row.access_request.action == Action::ResetFactors).collect();
    assert!(audited.len() == 5 && audited.iter().all(|row| row.effect.is_none()), "{audited:?}");
}
