//! Conformance: second factors of the identity provider's accounts, and what is under way with them.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::samples::NOON;
use chancery_domain::{LocalPath, OsRandomness, SecretToken, SessionTimeouts, TokenHash, UnixMillis};
use chancery_store::{
    AccountFactors, AddFactorOutcome, CeremonyKind, FactorCeremony, Grant, MAX_PASSKEYS_PER_ACCOUNT,
    NewAuthorizationCode, NewKnownDevice, NewPasskey, NewProviderAccount, NewProviderSession, NewTotpSecret,
    PasswordHash, PendingSecondFactor, ProviderAccount, RemoveFactorOutcome, Store,
};
use std::sync::Arc;
use std::time::Duration;

const TIMES: SessionTimeouts =
    SessionTimeouts { idle: Duration::from_secs(30 * 60), max: Duration::from_secs(12 * 3600) };

fn after_s(seconds: i64) -> UnixMillis {
    UnixMillis(NOON.0 + seconds * 1000)
}

fn token() -> TokenHash {
    SecretToken::generate(&OsRandomness).hash()
}

fn tokens(count: usize) -> Vec<TokenHash> {
    (0..count).map(|_| token()).collect()
}

async fn account(store: &Store, name: &str) -> ProviderAccount {
    let new = NewProviderAccount {
        subject: format!("subject of {name}"),
        email: format!("{name}@example.com").parse().unwrap(),
        password_hash: PasswordHash("first".to_owned()),
        at: NOON,
    };
    store.provider_accounts.create_provider_account(new).await.unwrap()
}

fn app(account: &ProviderAccount, recovery_codes: &[TokenHash]) -> NewTotpSecret {
    NewTotpSecret {
        subject: account.subject.clone(),
        secret: b"12345678901234567890".to_vec(),
        step: 100,
        recovery_codes: recovery_codes.to_vec(),
        at: NOON,
    }
}

fn passkey(account: &ProviderAccount, id: &[u8], recovery_codes: &[TokenHash]) -> NewPasskey {
    NewPasskey {
        credential_id: id.to_vec(),
        subject: account.subject.clone(),
        name: "Laptop".to_owned(),
        credential: "{\"counter\":0}".to_owned(),
        recovery_codes: recovery_codes.to_vec(),
        at: NOON,
    }
}

pub async fn each_totp_step_is_accepted_once_and_never_an_older_one(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let maya = account(&store, "maya").await;
    let factors = &store.second_factors;
    assert_eq!(factors.totp_secret(&maya.subject).await.unwrap(), None);
    assert!(!factors.accept_totp_step(&maya.subject, 101).await.unwrap(), "there is no app");
    let added = factors.add_totp(&app(&maya, &[])).await.unwrap();
    assert_eq!(added, AddFactorOutcome::Added { is_first: true });
    assert_eq!(factors.add_totp(&app(&maya, &[])).await.unwrap(), AddFactorOutcome::AlreadyExists);
    let stored = factors.totp_secret(&maya.subject).await.unwrap().unwrap();
    assert_eq!((&*stored.secret, stored.last_step), (&b"12345678901234567890"[..], 100));
    for (step, is_accepted) in
        [(100, false), (99, false), (102, true), (101, false), (102, false), (103, true)]
    {
        assert_eq!(factors.accept_totp_step(&maya.subject, step).await.unwrap(), is_accepted, "{step}");
    }
    let racing: Vec<_> = (0..8)
        .map(|_| {
            let (store, subject) = (Arc::clone(&store), maya.subject.clone());
            tokio::spawn(async move { store.second_factors.accept_totp_step(&subject, 104).await.unwrap() })
        })
        .collect();
    let mut accepted = 0;
    for outcome in racing {
        accepted += usize::from(outcome.await.unwrap());
    }
    assert_eq!(accepted, 1);
}

pub async fn first_factor_comes_with_recovery_codes_and_the_last_takes_them(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (maya, omar) = (account(&store, "maya").await, account(&store, "omar").await);
    let factors = &store.second_factors;
    let subject = &maya.subject;
    assert!(factors.account_factors(subject).await.unwrap().is_empty());
    let replaced = factors.replace_recovery_codes(subject, &tokens(10), Box::new(|_| true)).await.unwrap();
    assert_eq!(replaced, RemoveFactorOutcome::NotFound, "there is no factor");
    factors.add_totp(&app(&maya, &tokens(10))).await.unwrap();
    let second = factors.add_passkey(&passkey(&maya, b"one", &tokens(10))).await.unwrap();
    assert_eq!(second, AddFactorOutcome::Added { is_first: false });
    let all = factors.account_factors(subject).await.unwrap();
    assert_eq!((all.passkeys.len(), all.totp_created_at, all.recovery_codes), (1, Some(NOON), 10));
    let replaced = factors.replace_recovery_codes(subject, &tokens(7), Box::new(|_| true)).await.unwrap();
    assert_eq!(replaced, RemoveFactorOutcome::Removed);
    assert_eq!(factors.account_factors(subject).await.unwrap().recovery_codes, 7);
    factors.add_totp(&app(&omar, &tokens(10))).await.unwrap();

    assert_eq!(
        factors.remove_totp(subject, false, Box::new(|_| true)).await.unwrap(),
        RemoveFactorOutcome::Removed
    );
    assert_eq!(
        factors.remove_totp(subject, false, Box::new(|_| true)).await.unwrap(),
        RemoveFactorOutcome::NotFound
    );
    assert_eq!(factors.account_factors(subject).await.unwrap().recovery_codes, 7, "a factor is left");
    let unconfirmed =
        factors.remove_passkey(subject, b"one", false, Box::new(|count| count == 1)).await.unwrap();
    let left = factors.account_factors(subject).await.unwrap();
    assert_eq!(unconfirmed, RemoveFactorOutcome::Unconfirmed(left), "the codes count with the last factor");
    let removed = factors.remove_passkey(subject, b"one", false, Box::new(|count| count == 8)).await.unwrap();
    assert_eq!(removed, RemoveFactorOutcome::Removed);
    assert_eq!(factors.account_factors(subject).await.unwrap().recovery_codes, 0);
    assert_eq!(factors.account_factors(&omar.subject).await.unwrap().recovery_codes, 10, "another's stay");
}

pub async fn last_factor_is_kept_when_one_is_required(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let maya = account(&store, "maya").await;
    let factors = &store.second_factors;
    factors.add_passkey(&passkey(&maya, b"one", &[])).await.unwrap();
    let removed = factors.remove_passkey(&maya.subject, b"one", true, Box::new(|_| true)).await.unwrap();
    assert_eq!(removed, RemoveFactorOutcome::IsLast);
    factors.add_passkey(&passkey(&maya, b"two", &[])).await.unwrap();
    let racing: Vec<_> = [b"one", b"two"]
        .into_iter()
        .map(|id| {
            let (store, subject) = (Arc::clone(&store), maya.subject.clone());
            tokio::spawn(async move {
                store.second_factors.remove_passkey(&subject, id, true, Box::new(|_| true)).await.unwrap()
            })
        })
        .collect();
    let mut outcomes = Vec::new();
    for outcome in racing {
        outcomes.push(outcome.await.unwrap());
    }
    assert!(outcomes.contains(&RemoveFactorOutcome::Removed), "{outcomes:?}");
    assert!(outcomes.contains(&RemoveFactorOutcome::IsLast), "{outcomes:?}");
    assert_eq!(factors.account_factors(&maya.subject).await.unwrap().passkeys.len(), 1);
}

pub async fn recovery_code_is_consumed_once_under_race(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (maya, omar) = (account(&store, "maya").await, account(&store, "omar").await);
    let codes = tokens(10);
    let factors = &store.second_factors;
    factors.add_totp(&app(&maya, &codes)).await.unwrap();
    assert_eq!(factors.consume_recovery_code(&omar.subject, codes[0]).await.unwrap(), None, "not his");
    assert_eq!(factors.consume_recovery_code(&maya.subject, token()).await.unwrap(), None);
    let racing: Vec<_> = (0..8)
        .map(|_| {
            let (store, subject, code) = (Arc::clone(&store), maya.subject.clone(), codes[0]);
            tokio::spawn(
                async move { store.second_factors.consume_recovery_code(&subject, code).await.unwrap() },
            )
        })
        .collect();
    let mut left = Vec::new();
    for outcome in racing {
        left.extend(outcome.await.unwrap());
    }
    assert_eq!(left, [9]);
}

pub async fn passkey_use_is_recorded_once_for_each_state(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let maya = account(&store, "maya").await;
    let factors = &store.second_factors;
    factors.add_passkey(&passkey(&maya, b"one", &[])).await.unwrap();
    let stored = factors.passkey(b"one").await.unwrap().unwrap();
    assert_eq!((&*stored.name, stored.created_at, stored.last_used_at), ("Laptop", NOON, None));
    assert!(factors.record_passkey_use(&stored, "{\"counter\":1}", after_s(5)).await.unwrap());
    let again = factors.record_passkey_use(&stored, "{\"counter\":1}", after_s(6)).await.unwrap();
    assert!(!again, "its state has changed");
    let stored = factors.passkey(b"one").await.unwrap().unwrap();
    assert_eq!((&*stored.credential, stored.last_used_at), ("{\"counter\":1}", Some(after_s(5))));
    assert!(factors.rename_passkey(&maya.subject, b"one", "Phone").await.unwrap());
    assert_eq!(factors.passkey(b"one").await.unwrap().unwrap().name, "Phone");
    assert_eq!(factors.passkey(b"two").await.unwrap(), None);
}

pub async fn passkeys_belong_to_one_account_and_are_bounded(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (maya, omar) = (account(&store, "maya").await, account(&store, "omar").await);
    let factors = &store.second_factors;
    factors.add_passkey(&passkey(&maya, &[0], &[])).await.unwrap();
    let taken = factors.add_passkey(&passkey(&omar, &[0], &tokens(10))).await.unwrap();
    assert_eq!(taken, AddFactorOutcome::AlreadyExists);
    assert_eq!(factors.account_factors(&omar.subject).await.unwrap(), AccountFactors::default());
    assert!(!factors.rename_passkey(&omar.subject, &[0], "Mine").await.unwrap());
    let removed = factors.remove_passkey(&omar.subject, &[0], false, Box::new(|_| true)).await.unwrap();
    assert_eq!(removed, RemoveFactorOutcome::NotFound);
    for number in 1..u8::try_from(MAX_PASSKEYS_PER_ACCOUNT).unwrap() {
        factors.add_passkey(&passkey(&maya, &[number], &[])).await.unwrap();
    }
    let too_many = factors.add_passkey(&passkey(&maya, &[255], &[])).await.unwrap();
    assert_eq!(too_many, AddFactorOutcome::TooMany);
}

pub async fn ceremony_is_consumed_once_before_expiry(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (key, kind) = (token(), CeremonyKind::PasskeyAuthentication);
    let ceremony = |state: &str| FactorCeremony {
        kind,
        subject: None,
        state: state.to_owned(),
        expires_at: after_s(600),
    };
    let ceremonies = &store.ceremonies;
    ceremonies.begin_ceremony(key, &ceremony("first")).await.unwrap();
    ceremonies.begin_ceremony(key, &ceremony("second")).await.unwrap();
    let found = ceremonies.find_ceremony(key, kind, after_s(599)).await.unwrap().unwrap();
    assert_eq!((&*found.state, found.subject), ("second", None), "it replaced the first");
    assert!(ceremonies.find_ceremony(key, kind, after_s(600)).await.unwrap().is_none());
    let other_kind = CeremonyKind::TotpEnrolment;
    assert!(ceremonies.consume_ceremony(key, other_kind, NOON).await.unwrap().is_none());
    assert!(ceremonies.consume_ceremony(key, kind, NOON).await.unwrap().is_some());
    assert!(ceremonies.consume_ceremony(key, kind, NOON).await.unwrap().is_none());
    ceremonies.begin_ceremony(key, &ceremony("third")).await.unwrap();
    assert!(ceremonies.consume_ceremony(key, kind, after_s(600)).await.unwrap().is_none(), "expired");
}

fn pending(account: &ProviderAccount) -> PendingSecondFactor {
    PendingSecondFactor {
        subject: account.subject.clone(),
        password_version: account.password_version,
        return_to: LocalPath::parse("/authorize?x=1").unwrap(),
        expires_at: after_s(600),
    }
}

pub async fn pending_second_factor_ends_with_a_new_password(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let maya = account(&store, "maya").await;
    let ceremonies = &store.ceremonies;
    let (one, two) = (token(), token());
    for token in [one, two] {
        ceremonies.begin_second_factor(token, &pending(&maya)).await.unwrap();
    }
    let found = ceremonies.pending_second_factor(one, after_s(599)).await.unwrap();
    assert_eq!(found, Some((maya.clone(), pending(&maya))));
    assert!(ceremonies.pending_second_factor(one, after_s(600)).await.unwrap().is_none());
    assert!(ceremonies.consume_second_factor(one).await.unwrap());
    assert!(!ceremonies.consume_second_factor(one).await.unwrap());
    assert!(ceremonies.pending_second_factor(one, NOON).await.unwrap().is_none());
    let new = PasswordHash("second".to_owned());
    store.provider_accounts.set_password(&maya.email, &new).await.unwrap();
    assert!(ceremonies.pending_second_factor(two, NOON).await.unwrap().is_none());
}

pub async fn expired_ceremonies_and_sign_ins_are_deleted(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let maya = account(&store, "maya").await;
    let ceremonies = &store.ceremonies;
    for _ in 0..3 {
        let ceremony = FactorCeremony {
            kind: CeremonyKind::PasskeyRegistration,
            subject: Some(maya.subject.clone()),
            state: "{}".to_owned(),
            expires_at: after_s(600),
        };
        ceremonies.begin_ceremony(token(), &ceremony).await.unwrap();
        ceremonies.begin_second_factor(token(), &pending(&maya)).await.unwrap();
    }
    assert_eq!(ceremonies.delete_expired_ceremonies(after_s(599), 10).await.unwrap(), 0);
    assert_eq!(ceremonies.delete_expired_second_factors(after_s(599), 10).await.unwrap(), 0);
    assert_eq!(ceremonies.delete_expired_ceremonies(after_s(600), 2).await.unwrap(), 2);
    assert_eq!(ceremonies.delete_expired_ceremonies(after_s(600), 2).await.unwrap(), 1);
    assert_eq!(ceremonies.delete_expired_second_factors(after_s(600), 10).await.unwrap(), 3);
}

async fn start(store: &Store, account: &ProviderAccount) -> TokenHash {
    let token = token();
    let new = NewProviderSession {
        token,
        subject: account.subject.clone(),
        password_version: account.password_version,
        sid: SecretToken::generate(&OsRandomness).reveal().to_owned(),
        amr: "pwd".to_owned(),
        at: NOON,
    };
    store.provider_sessions.start_provider_session(new).await.unwrap();
    token
}

pub async fn changed_password_keeps_one_session(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (maya, omar) = (account(&store, "maya").await, account(&store, "omar").await);
    let (own, other, omars) =
        (start(&store, &maya).await, start(&store, &maya).await, start(&store, &omar).await);
    let session_of =
        async |token| store.provider_sessions.provider_session(token, TIMES, after_s(1)).await.unwrap();
    let own_sid = session_of(own).await.unwrap().sid;
    let device = token();
    let new_device = NewKnownDevice {
        subject: maya.subject.clone(),
        browser_token: None,
        new_token: device,
        now: NOON,
        expires_at: after_s(600),
    };
    store.known_devices.remember_device(new_device).await.unwrap();
    let new = PasswordHash("second".to_owned());
    let (accounts, rotated) = (&store.provider_accounts, token());
    let changed = accounts.change_password(&maya, &new, &own_sid, rotated).await.unwrap().unwrap();
    assert_eq!((changed.password_version, &changed.password_hash), (maya.password_version + 1, &new));
    let stale = accounts.change_password(&maya, &new, &own_sid, token()).await.unwrap();
    assert_eq!(stale, None, "it was changed meanwhile");
    assert!(session_of(own).await.is_none(), "the old token is worth nothing");
    let kept = session_of(rotated).await.unwrap();
    assert_eq!((kept.account, kept.sid), (changed, own_sid));
    assert!(session_of(other).await.is_none() && session_of(omars).await.is_some());
    assert!(!store.known_devices.is_known_device(device, &maya.email, after_s(1)).await.unwrap());
}

pub async fn changed_password_announces_the_sessions_that_end(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let maya = account(&store, "maya").await;
    let mut sids = Vec::new();
    for _ in 0..2 {
        let started = start(&store, &maya).await;
        let session = store.provider_sessions.provider_session(started, TIMES, after_s(1)).await;
        let session = session.unwrap().unwrap();
        let code = NewAuthorizationCode {
            code: token(),
            grant: Grant {
                client_id: "portal".to_owned(),
                subject: maya.subject.clone(),
                password_version: maya.password_version,
                redirect_uri: "https://portal.example/callback".to_owned(),
                scope: "openid email".to_owned(),
                nonce: None,
                code_challenge: "challenge".to_owned(),
                authenticated_at: NOON,
                sid: session.sid.clone(),
                amr: "pwd".to_owned(),
            },
            expires_at: after_s(60),
            delete_after: after_s(700),
        };
        store.grants.issue_code(code).await.unwrap();
        sids.push(session.sid);
    }
    let new = PasswordHash("second".to_owned());
    store.provider_accounts.change_password(&maya, &new, &sids[0], token()).await.unwrap().unwrap();
    let claim = SecretToken::generate(&OsRandomness);
    let logouts = store.backchannel_logouts.claim_backchannel_logouts(&claim, after_s(1), after_s(60), 10);
    let announced: Vec<String> = logouts.await.unwrap().into_iter().map(|logout| logout.sid).collect();
    assert_eq!(announced, [sids[1].clone()], "not the session that stays");
}

pub async fn reauthentication_changes_time_and_methods_of_a_session(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let maya = account(&store, "maya").await;
    let (own, other) = (start(&store, &maya).await, start(&store, &maya).await);
    let sessions = &store.provider_sessions;
    let before = sessions.provider_session(own, TIMES, after_s(10)).await.unwrap().unwrap();
    sessions.reauthenticate_provider_session(own, "pwd otp mfa", after_s(10)).await.unwrap();
    let after = sessions.provider_session(own, TIMES, after_s(10)).await.unwrap().unwrap();
    assert_eq!((&*after.amr, after.started_at, &after.sid), ("pwd otp mfa", after_s(10), &before.sid));
    let other = sessions.provider_session(other, TIMES, after_s(10)).await.unwrap().unwrap();
    assert_eq!((&*other.amr, other.started_at), ("pwd", NOON));
}
