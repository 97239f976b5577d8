//! Conformance: the identity provider's accounts, sessions and mailbox proofs.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::samples::NOON;
use chancery_domain::{
    EmailAddress, LocalPath, OsRandomness, SecretToken, SessionTimeouts, TokenHash, UnixMillis,
};
use chancery_store::{
    BackchannelLogout, Grant, MAX_KNOWN_DEVICES, MailboxProof, NewAuthorizationCode, NewKnownDevice,
    NewProviderAccount, NewProviderSession, PasswordHash, ProofPurpose, ProviderAccount, ProviderError,
    SentEmailCode, Store,
};
use std::sync::Arc;
use std::time::Duration;

const TIMES: SessionTimeouts =
    SessionTimeouts { idle: Duration::from_secs(30 * 60), max: Duration::from_secs(12 * 3600) };

fn after_s(seconds: i64) -> UnixMillis {
    UnixMillis(NOON.0 + seconds * 1000)
}

fn address(text: &str) -> EmailAddress {
    text.parse().unwrap()
}

fn token() -> TokenHash {
    SecretToken::generate(&OsRandomness).hash()
}

fn hash(text: &str) -> PasswordHash {
    PasswordHash(text.to_owned())
}

async fn account(store: &Store, name: &str) -> ProviderAccount {
    let new = NewProviderAccount {
        subject: format!("subject of {name}"),
        email: address(&format!("{name}@example.com")),
        password_hash: hash("first"),
        at: NOON,
    };
    store.provider_accounts.create_provider_account(new).await.unwrap()
}

async fn start(store: &Store, account: &ProviderAccount, at: UnixMillis) -> TokenHash {
    let token = token();
    let new = NewProviderSession {
        token,
        subject: account.subject.clone(),
        password_version: account.password_version,
        sid: SecretToken::generate(&OsRandomness).reveal().to_owned(),
        amr: "pwd".to_owned(),
        at,
    };
    store.provider_sessions.start_provider_session(new).await.unwrap();
    token
}

async fn is_open(store: &Store, token: TokenHash, now: UnixMillis) -> bool {
    store.provider_sessions.provider_session(token, TIMES, now).await.unwrap().is_some()
}

pub async fn provider_account_is_found_by_email_and_subject(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let maya = account(&store, "maya").await;
    assert_eq!(maya.email, address("MAYA@example.com"));
    assert_eq!((maya.created_at, &maya.password_hash), (NOON, &hash("first")));
    let found =
        store.provider_accounts.provider_account_by_email(&address("maya@example.com")).await.unwrap();
    assert_eq!(found, Some(maya.clone()));
    assert_eq!(store.provider_accounts.provider_account(&maya.subject).await.unwrap(), Some(maya));
    assert_eq!(store.provider_accounts.provider_account("maya@example.com").await.unwrap(), None);
    assert_eq!(
        store.provider_accounts.provider_account_by_email(&address("omar@example.com")).await.unwrap(),
        None
    );
}

pub async fn concurrent_sign_ups_with_one_email_create_one_account(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let racing: Vec<_> = (0..8)
        .map(|number| {
            let store = Arc::clone(&store);
            let new = NewProviderAccount {
                subject: format!("subject {number}"),
                email: address("maya@example.com"),
                password_hash: hash(&format!("hash {number}")),
                at: NOON,
            };
            tokio::spawn(async move { store.provider_accounts.create_provider_account(new).await })
        })
        .collect();
    let mut created = Vec::new();
    for outcome in racing {
        match outcome.await.unwrap() {
            Ok(account) => created.push(account),
            Err(ProviderError::EmailTaken(email)) => assert_eq!(email, address("maya@example.com")),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(created.len(), 1);
    assert_eq!(
        store.provider_accounts.provider_account(&created[0].subject).await.unwrap().as_ref(),
        created.first()
    );
}

pub async fn provider_session_resolves_account_until_ended(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let maya = account(&store, "maya").await;
    let (one, other) = (start(&store, &maya, NOON).await, start(&store, &maya, after_s(5)).await);
    let found = store.provider_sessions.provider_session(other, TIMES, after_s(10)).await.unwrap().unwrap();
    assert_eq!((found.account, found.started_at), (maya.clone(), after_s(5)));
    assert!(store.provider_sessions.end_provider_session(one).await.unwrap());
    assert!(!store.provider_sessions.end_provider_session(one).await.unwrap());
    assert!(!is_open(&store, one, after_s(10)).await && is_open(&store, other, after_s(10)).await);
    assert_eq!(store.session_revoker.end_provider_sessions(&maya.subject).await.unwrap(), 1);
    assert!(!is_open(&store, other, after_s(10)).await);
    assert!(!is_open(&store, token(), after_s(10)).await);
}

pub async fn provider_session_expires_by_idle_and_absolute_timeout(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let maya = account(&store, "maya").await;
    let idle = start(&store, &maya, NOON).await;
    assert!(is_open(&store, idle, after_s(29 * 60)).await, "and this use counts");
    assert!(is_open(&store, idle, after_s(58 * 60)).await);
    assert!(!is_open(&store, idle, after_s((58 + 30) * 60)).await, "idle");

    let old = start(&store, &maya, NOON).await;
    for minutes in (20..12 * 60).step_by(20) {
        assert!(is_open(&store, old, after_s(minutes * 60)).await, "{minutes}");
    }
    assert!(!is_open(&store, old, after_s(12 * 3600)).await, "old, though it was used");

    let now = after_s(12 * 3600);
    let young = start(&store, &maya, now).await;
    assert_eq!(store.provider_sessions.delete_expired_provider_sessions(TIMES, now, 1).await.unwrap(), 1);
    assert_eq!(store.provider_sessions.delete_expired_provider_sessions(TIMES, now, 10).await.unwrap(), 1);
    assert!(is_open(&store, young, now).await);
}

pub async fn password_change_ends_all_provider_sessions(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (maya, omar) = (account(&store, "maya").await, account(&store, "omar").await);
    let (mayas, omars) = (start(&store, &maya, NOON).await, start(&store, &omar, NOON).await);
    let changed = store.provider_accounts.set_password(&maya.email, &hash("second")).await.unwrap().unwrap();
    assert_eq!((&changed.subject, &changed.password_hash), (&maya.subject, &hash("second")));
    assert_ne!(changed.password_version, maya.password_version);
    assert!(!is_open(&store, mayas, after_s(1)).await);
    assert!(is_open(&store, omars, after_s(1)).await, "another's stays");
    let late = start(&store, &maya, after_s(1)).await;
    assert!(!is_open(&store, late, after_s(1)).await, "the old password was checked before it was changed");
    let new = start(&store, &changed, after_s(1)).await;
    assert!(is_open(&store, new, after_s(1)).await);
    assert_eq!(
        store.provider_accounts.set_password(&address("x@example.com"), &hash("third")).await.unwrap(),
        None
    );
}

/// Gives the application a grant in the session.
async fn grant(store: &Store, session: TokenHash, client_id: &str) {
    let session = store.provider_sessions.provider_session(session, TIMES, NOON).await.unwrap().unwrap();
    let grant = Grant {
        client_id: client_id.to_owned(),
        redirect_uri: "https://portal.example/auth/callback".to_owned(),
        code_challenge: "challenge".to_owned(),
        subject: session.account.subject,
        password_version: session.account.password_version,
        scope: "openid".to_owned(),
        nonce: None,
        sid: session.sid,
        amr: session.amr,
        authenticated_at: session.started_at,
    };
    let new =
        NewAuthorizationCode { code: token(), grant, expires_at: after_s(60), delete_after: after_s(700) };
    store.grants.issue_code(new).await.unwrap();
}

async fn sid(store: &Store, session: TokenHash) -> String {
    store.provider_sessions.provider_session(session, TIMES, NOON).await.unwrap().unwrap().sid
}

async fn claim(store: &Store, now: UnixMillis) -> Vec<BackchannelLogout> {
    let claim = SecretToken::generate(&OsRandomness);
    let ends_at = now.after(Duration::from_secs(60));
    store.backchannel_logouts.claim_backchannel_logouts(&claim, now, ends_at, 100).await.unwrap()
}

/// Claims and finishes all that is due. Returns session and application of each, sorted.
async fn announced(store: &Store) -> Vec<(String, String)> {
    let mut announced = Vec::new();
    for logout in claim(store, NOON).await {
        assert!(store.backchannel_logouts.finish_backchannel_logout(&logout).await.unwrap());
        announced.push((logout.sid, logout.client_id));
    }
    announced.sort();
    announced
}

pub async fn continued_session_keeps_its_sid_and_applications(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (maya, omar) = (account(&store, "maya").await, account(&store, "omar").await);
    let old = start(&store, &maya, NOON).await;
    grant(&store, old, "portal").await;
    let old_sid = sid(&store, old).await;
    let again = |account: &ProviderAccount| NewProviderSession {
        token: token(),
        subject: account.subject.clone(),
        password_version: account.password_version,
        sid: "of a new session".to_owned(),
        amr: "pwd otp mfa".to_owned(),
        at: after_s(5),
    };
    let omars = again(&omar);
    assert!(!store.provider_sessions.continue_provider_session(old, &omars).await.unwrap(), "not his");
    assert!(!store.provider_sessions.continue_provider_session(token(), &again(&maya)).await.unwrap());
    let new = again(&maya);
    assert!(store.provider_sessions.continue_provider_session(old, &new).await.unwrap());
    assert!(!is_open(&store, old, after_s(5)).await, "the old token is worth nothing");
    let session = store.provider_sessions.provider_session(new.token, TIMES, after_s(5)).await.unwrap();
    let session = session.unwrap();
    assert_eq!((session.sid.as_str(), session.started_at), (old_sid.as_str(), after_s(5)));
    assert_eq!(session.amr, "pwd otp mfa");
    assert!(announced(&store).await.is_empty(), "no application is signed out");
    assert!(store.provider_sessions.end_provider_session(new.token).await.unwrap());
    assert_eq!(announced(&store).await, [(old_sid, "portal".to_owned())]);
}

pub async fn ended_sessions_are_announced_once_per_application(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (maya, omar) = (account(&store, "maya").await, account(&store, "omar").await);
    let mut sessions = Vec::new();
    for _ in 0..4 {
        let session = start(&store, &maya, NOON).await;
        for client_id in ["portal", "other", "portal"] {
            grant(&store, session, client_id).await;
        }
        sessions.push((session, sid(&store, session).await));
    }
    let omars = start(&store, &omar, NOON).await;
    grant(&store, omars, "portal").await;
    let of = |sids: &[&String]| {
        let mut rows: Vec<(String, String)> = Vec::new();
        for sid in sids {
            rows.extend(["other", "portal"].map(|client_id| ((*sid).clone(), client_id.to_owned())));
        }
        rows.sort();
        rows
    };
    assert_eq!(store.backchannel_logouts.next_backchannel_logout_at().await.unwrap(), None);

    store.provider_sessions.end_provider_session(sessions[0].0).await.unwrap();
    assert_eq!(announced(&store).await, of(&[&sessions[0].1]));
    store.provider_sessions.end_provider_session(sessions[0].0).await.unwrap();
    assert!(announced(&store).await.is_empty(), "it has ended before");

    let ends = &store.provider_sessions;
    assert!(!ends.end_provider_session_by_sid(&omar.subject, &sessions[1].1).await.unwrap(), "not his");
    assert!(ends.end_provider_session_by_sid(&maya.subject, &sessions[1].1).await.unwrap());
    assert_eq!(announced(&store).await, of(&[&sessions[1].1]));

    store.provider_accounts.set_password(&maya.email, &hash("second")).await.unwrap().unwrap();
    assert_eq!(announced(&store).await, of(&[&sessions[2].1, &sessions[3].1]));

    let spared = start(&store, &omar, NOON).await;
    grant(&store, spared, "portal").await;
    let (spared_sid, omars_sid) = (sid(&store, spared).await, sid(&store, omars).await);
    let revoker = &store.session_revoker;
    assert_eq!(revoker.end_other_provider_sessions(&omar.subject, &spared_sid).await.unwrap(), 1);
    assert_eq!(announced(&store).await, [(omars_sid, "portal".to_owned())]);
    assert!(is_open(&store, spared, NOON).await);
    assert_eq!(revoker.end_provider_sessions(&omar.subject).await.unwrap(), 1);
    assert_eq!(announced(&store).await, [(spared_sid, "portal".to_owned())]);

    // Sessions that merely expire are not announced.
    let expiring = start(&store, &omar, NOON).await;
    grant(&store, expiring, "portal").await;
    let late = after_s(13 * 3600);
    assert_eq!(ends.delete_expired_provider_sessions(TIMES, late, 10).await.unwrap(), 1);
    assert!(announced(&store).await.is_empty());
}

pub async fn logout_token_is_claimed_by_one_process_until_the_claim_ends(database: Arc<AnyDatabase>) {
    let (store, other) = (database.open().await, database.open().await);
    let maya = account(&store, "maya").await;
    let session = start(&store, &maya, NOON).await;
    grant(&store, session, "portal").await;
    store.provider_sessions.end_provider_session(session).await.unwrap();
    let first = claim(&store, NOON).await;
    assert_eq!((first.len(), first[0].attempt, first[0].first_attempt_at), (1, 1, NOON));
    assert_eq!(first[0].subject, maya.subject);
    assert!(claim(&other, after_s(59)).await.is_empty());
    let second = claim(&other, after_s(60)).await;
    assert_eq!((second.len(), second[0].attempt, second[0].first_attempt_at), (1, 2, NOON));
    let logouts = &store.backchannel_logouts;
    assert!(!logouts.finish_backchannel_logout(&first[0]).await.unwrap(), "its claim has ended");
    assert!(!logouts.retry_backchannel_logout(&first[0], after_s(61)).await.unwrap());
    assert!(other.backchannel_logouts.retry_backchannel_logout(&second[0], after_s(100)).await.unwrap());
    assert_eq!(logouts.next_backchannel_logout_at().await.unwrap(), Some(after_s(100)));
    assert!(claim(&store, after_s(99)).await.is_empty());
    let third = claim(&store, after_s(100)).await;
    assert_eq!(third[0].attempt, 3);
    assert!(logouts.finish_backchannel_logout(&third[0]).await.unwrap());
    assert_eq!(logouts.next_backchannel_logout_at().await.unwrap(), None);
}

pub async fn known_devices_are_bounded_and_end_with_the_password(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (maya, omar) = (account(&store, "maya").await, account(&store, "omar").await);
    let devices = &store.known_devices;
    let remember = async |account: &ProviderAccount, browser_token: Option<TokenHash>, at: i64| {
        let new_token = token();
        let (now, expires_at) = (after_s(at), after_s(at + 1_000));
        let subject = account.subject.clone();
        let new = NewKnownDevice { subject, browser_token, new_token, now, expires_at };
        (new_token, devices.remember_device(new).await.unwrap())
    };
    let is_known = async |token: TokenHash, account: &ProviderAccount, at: i64| {
        devices.is_known_device(token, &account.email, after_s(at)).await.unwrap()
    };
    let (first, is_own) = remember(&maya, None, 0).await;
    assert!(!is_own && is_known(first, &maya, 1).await && !is_known(first, &omar, 1).await);
    assert!(!is_known(first, &maya, 1_000).await, "its time is over");
    let (_, is_own) = remember(&omar, Some(first), 10).await;
    assert!(is_own && is_known(first, &omar, 11).await, "two people share a browser");
    let planted = token();
    let (replacement, is_own) = remember(&omar, Some(planted), 11).await;
    assert!(!is_own && !is_known(planted, &omar, 12).await && is_known(replacement, &omar, 12).await);
    let (_, is_own) = remember(&maya, Some(first), 20).await;
    assert!(is_own && is_known(first, &maya, 1_010).await, "another sign-in extends it");

    for number in 0..MAX_KNOWN_DEVICES {
        let (newest, _) = remember(&maya, None, 30 + i64::from(number)).await;
        assert!(is_known(newest, &maya, 60).await);
    }
    assert!(!is_known(first, &maya, 60).await, "the oldest is deleted");
    assert!(is_known(first, &omar, 60).await, "for her alone");

    let (kept, _) = remember(&maya, None, 60).await;
    store.provider_accounts.set_password(&maya.email, &hash("second")).await.unwrap().unwrap();
    assert!(!is_known(kept, &maya, 61).await && is_known(first, &omar, 61).await);
    assert_eq!(devices.delete_expired_devices(after_s(5_000), 1).await.unwrap(), 1);
    assert_eq!(devices.delete_expired_devices(after_s(5_000), 10).await.unwrap(), 1);
}

fn proof(purpose: ProofPurpose, name: &str, code: TokenHash) -> MailboxProof {
    MailboxProof {
        purpose,
        email: address(&format!("{name}@example.com")),
        return_to: LocalPath::parse("/authorize?client_id=x&state=y").unwrap(),
        code: SentEmailCode { hash: code, expires_at: after_s(600), sent: 1, sent_at: NOON },
    }
}

pub async fn proof_is_consumed_once_before_expiry_under_race(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (sign_up, new_password, code) = (token(), token(), token());
    let begun = proof(ProofPurpose::SignUp(hash("chosen")), "maya", code);
    store.proofs.begin_proof(sign_up, begun.clone()).await.unwrap();
    store.proofs.begin_proof(new_password, proof(ProofPurpose::NewPassword, "omar", code)).await.unwrap();
    let found = store.proofs.find_proof(sign_up, after_s(599)).await.unwrap().unwrap();
    assert_eq!(
        (&found.purpose, &found.email, &found.return_to),
        (&begun.purpose, &begun.email, &begun.return_to)
    );
    assert!(found.code.hash.matches(&code));
    assert_eq!((found.code.sent, found.code.sent_at, found.code.expires_at), (1, NOON, after_s(600)));
    assert_eq!(
        store.proofs.find_proof(new_password, NOON).await.unwrap().unwrap().purpose,
        ProofPurpose::NewPassword
    );
    let first_factor = token();
    store.proofs.begin_proof(first_factor, proof(ProofPurpose::FirstFactor, "ann", code)).await.unwrap();
    let found = store.proofs.find_proof(first_factor, NOON).await.unwrap().unwrap();
    assert_eq!(found.purpose, ProofPurpose::FirstFactor);
    assert!(store.proofs.find_proof(sign_up, after_s(600)).await.unwrap().is_none(), "late");

    assert!(!store.proofs.consume_proof(sign_up, token()).await.unwrap(), "another code");
    let racing: Vec<_> = (0..8)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.proofs.consume_proof(sign_up, code).await.unwrap() })
        })
        .collect();
    let mut taken = 0;
    for outcome in racing {
        taken += u32::from(outcome.await.unwrap());
    }
    assert_eq!(taken, 1);
    assert!(store.proofs.find_proof(sign_up, NOON).await.unwrap().is_none());
}

pub async fn replacing_proof_code_succeeds_once(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (key, first, second) = (token(), token(), token());
    store.proofs.begin_proof(key, proof(ProofPurpose::NewPassword, "maya", first)).await.unwrap();
    let new = SentEmailCode { hash: second, expires_at: after_s(660), sent: 2, sent_at: after_s(60) };
    assert!(store.proofs.replace_proof_code(key, new).await.unwrap());
    assert!(!store.proofs.replace_proof_code(key, new).await.unwrap(), "somebody was quicker");
    assert!(!store.proofs.consume_proof(key, first).await.unwrap(), "the first code is no good any more");
    let found = store.proofs.find_proof(key, after_s(650)).await.unwrap().unwrap();
    assert_eq!((found.code.sent, found.code.sent_at), (2, after_s(60)));
    assert!(store.proofs.consume_proof(key, second).await.unwrap());
}

pub async fn expired_proofs_are_deleted(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let key = token();
    store.proofs.begin_proof(key, proof(ProofPurpose::NewPassword, "omar", token())).await.unwrap();
    assert!(store.proofs.find_proof(key, NOON).await.unwrap().is_some());
    assert_eq!(store.proofs.delete_expired_proofs(after_s(599), 10).await.unwrap(), 0);
    assert_eq!(store.proofs.delete_expired_proofs(after_s(600), 10).await.unwrap(), 1);
}

pub async fn proof_creates_one_account_and_deletes_other_proofs(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (first, second, others, code) = (token(), token(), token(), token());
    for (key, name) in [(first, "maya"), (second, "maya"), (others, "omar")] {
        store.proofs.begin_proof(key, proof(ProofPurpose::SignUp(hash("x")), name, code)).await.unwrap();
    }
    let new = || NewProviderAccount {
        subject: format!("{:?}", token().0),
        email: address("maya@example.com"),
        password_hash: hash("chosen"),
        at: NOON,
    };
    assert!(
        store.provider_accounts.create_proven_account(first, token(), new()).await.unwrap().is_none(),
        "another code"
    );
    let racing: Vec<_> = (0..4)
        .map(|_| {
            let (store, new) = (Arc::clone(&store), new());
            tokio::spawn(async move {
                store.provider_accounts.create_proven_account(first, code, new).await.unwrap()
            })
        })
        .collect();
    let mut created = 0;
    for outcome in racing {
        created += u32::from(outcome.await.unwrap().is_some());
    }
    assert_eq!(created, 1);
    assert!(store.proofs.find_proof(second, NOON).await.unwrap().is_none());
    assert!(store.proofs.find_proof(others, NOON).await.unwrap().is_some());

    store.proofs.begin_proof(second, proof(ProofPurpose::SignUp(hash("x")), "maya", code)).await.unwrap();
    let taken = store.provider_accounts.create_proven_account(second, code, new()).await;
    assert!(matches!(taken, Err(ProviderError::EmailTaken(_))), "{taken:?}");
    assert!(store.proofs.find_proof(second, NOON).await.unwrap().is_some(), "what fails changes nothing");

    let maya = address("maya@example.com");
    let changed =
        store.provider_accounts.set_proven_password(second, token(), &maya, &hash("new")).await.unwrap();
    assert!(changed.is_none(), "another code");
    store.proofs.begin_proof(first, proof(ProofPurpose::NewPassword, "maya", code)).await.unwrap();
    let changed =
        store.provider_accounts.set_proven_password(first, code, &maya, &hash("new")).await.unwrap().unwrap();
    assert_eq!((&changed.password_hash, changed.password_version), (&hash("new"), 2));
    assert!(store.proofs.find_proof(second, NOON).await.unwrap().is_none(), "all of the mailbox");
    assert!(
        store
            .provider_accounts
            .set_proven_password(first, code, &maya, &hash("again"))
            .await
            .unwrap()
            .is_none(),
        "once"
    );
}
