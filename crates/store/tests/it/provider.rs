//! Conformance: the identity provider's accounts, sessions and mailbox proofs.

use crate::databases::TestDatabase;
use crate::samples::NOON;
use chancery_domain::{
    EmailAddress, LocalPath, OsRandomness, SecretToken, SessionTimeouts, TokenHash, UnixMillis,
};
use chancery_store::{
    MailboxProof, NewProviderAccount, NewProviderSession, PasswordHash, ProofPurpose, ProviderAccount,
    ProviderError, SentEmailCode, Store,
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
        at,
    };
    store.provider_sessions.start_provider_session(new).await.unwrap();
    token
}

async fn is_open(store: &Store, token: TokenHash, now: UnixMillis) -> bool {
    store.provider_sessions.provider_session(token, TIMES, now).await.unwrap().is_some()
}

pub async fn provider_account_is_found_by_email_and_subject<D: TestDatabase>(database: Arc<D>) {
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

pub async fn concurrent_sign_ups_with_one_email_create_one_account<D: TestDatabase>(database: Arc<D>) {
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

pub async fn provider_session_resolves_account_until_ended<D: TestDatabase>(database: Arc<D>) {
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

pub async fn provider_session_expires_by_idle_and_absolute_timeout<D: TestDatabase>(database: Arc<D>) {
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

pub async fn password_change_ends_all_provider_sessions<D: TestDatabase>(database: Arc<D>) {
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

fn proof(purpose: ProofPurpose, name: &str, code: TokenHash) -> MailboxProof {
    MailboxProof {
        purpose,
        email: address(&format!("{name}@example.com")),
        return_to: LocalPath::parse("/authorize?client_id=x&state=y").unwrap(),
        code: SentEmailCode { hash: code, expires_at: after_s(600), sent: 1, sent_at: NOON },
    }
}

pub async fn proof_is_consumed_once_before_expiry_under_race<D: TestDatabase>(database: Arc<D>) {
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

pub async fn replacing_proof_code_succeeds_once<D: TestDatabase>(database: Arc<D>) {
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

pub async fn expired_proofs_are_deleted<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let key = token();
    store.proofs.begin_proof(key, proof(ProofPurpose::NewPassword, "omar", token())).await.unwrap();
    assert!(store.proofs.find_proof(key, NOON).await.unwrap().is_some());
    assert_eq!(store.proofs.delete_expired_proofs(after_s(599), 10).await.unwrap(), 0);
    assert_eq!(store.proofs.delete_expired_proofs(after_s(600), 10).await.unwrap(), 1);
}

pub async fn proof_creates_one_account_and_deletes_other_proofs<D: TestDatabase>(database: Arc<D>) {
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
