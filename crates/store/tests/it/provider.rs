//! Conformance: the identity provider's accounts, sessions and mailboxes that are being proved.

use crate::databases::TestDatabase;
use crate::samples::NOON;
use chancery_domain::{
    EmailAddress, LocalPath, OsRandomness, SecretToken, SessionTimes, TokenHash, UnixMillis,
};
use chancery_store::{
    MailboxProof, MailedCode, NewProviderAccount, NewProviderSession, PasswordHash, ProofPurpose,
    ProviderAccount, ProviderError, Store,
};
use std::sync::Arc;
use std::time::Duration;

const TIMES: SessionTimes =
    SessionTimes { idle: Duration::from_secs(30 * 60), max: Duration::from_secs(12 * 3600) };

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

pub async fn an_account_is_found_by_address_and_by_subject<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let maya = account(&store, "maya").await;
    assert_eq!(maya.email, address("MAYA@example.com"));
    assert_eq!((maya.created_at, &maya.password_hash), (NOON, &hash("first")));
    let found =
        store.provider_accounts.provider_account_with_email(&address("maya@example.com")).await.unwrap();
    assert_eq!(found, Some(maya.clone()));
    assert_eq!(store.provider_accounts.provider_account(&maya.subject).await.unwrap(), Some(maya));
    assert_eq!(store.provider_accounts.provider_account("maya@example.com").await.unwrap(), None);
    assert_eq!(
        store.provider_accounts.provider_account_with_email(&address("omar@example.com")).await.unwrap(),
        None
    );
}

pub async fn of_many_signing_up_with_one_address_one_gets_the_account<D: TestDatabase>(database: Arc<D>) {
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
    let mut made = Vec::new();
    for outcome in racing {
        match outcome.await.unwrap() {
            Ok(account) => made.push(account),
            Err(ProviderError::EmailTaken(email)) => assert_eq!(email, address("maya@example.com")),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(made.len(), 1);
    assert_eq!(
        store.provider_accounts.provider_account(&made[0].subject).await.unwrap().as_ref(),
        made.first()
    );
}

pub async fn a_provider_session_tells_whose_it_is_until_it_is_ended<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let maya = account(&store, "maya").await;
    let (one, other) = (start(&store, &maya, NOON).await, start(&store, &maya, after_s(5)).await);
    let found = store.provider_sessions.provider_session(other, TIMES, after_s(10)).await.unwrap().unwrap();
    assert_eq!((found.account, found.started_at), (maya.clone(), after_s(5)));
    assert!(store.provider_sessions.end_provider_session(one).await.unwrap());
    assert!(!store.provider_sessions.end_provider_session(one).await.unwrap());
    assert!(!is_open(&store, one, after_s(10)).await && is_open(&store, other, after_s(10)).await);
    assert_eq!(store.session_revoker.end_provider_sessions_of(&maya.subject).await.unwrap(), 1);
    assert!(!is_open(&store, other, after_s(10)).await);
    assert!(!is_open(&store, token(), after_s(10)).await);
}

pub async fn a_provider_session_ends_idle_and_old_and_lives_while_used<D: TestDatabase>(database: Arc<D>) {
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
    assert_eq!(store.provider_sessions.forget_ended_provider_sessions(TIMES, now, 1).await.unwrap(), 1);
    assert_eq!(store.provider_sessions.forget_ended_provider_sessions(TIMES, now, 10).await.unwrap(), 1);
    assert!(is_open(&store, young, now).await);
}

pub async fn a_new_password_ends_every_session_and_those_begun_with_the_old_one<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let (maya, omar) = (account(&store, "maya").await, account(&store, "omar").await);
    let (hers, his) = (start(&store, &maya, NOON).await, start(&store, &omar, NOON).await);
    let changed = store.provider_accounts.set_password(&maya.email, &hash("second")).await.unwrap().unwrap();
    assert_eq!((&changed.subject, &changed.password_hash), (&maya.subject, &hash("second")));
    assert_ne!(changed.password_version, maya.password_version);
    assert!(!is_open(&store, hers, after_s(1)).await);
    assert!(is_open(&store, his, after_s(1)).await, "another's stays");
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
        code: MailedCode { hash: code, expires_at: after_s(600), sent: 1, sent_at: NOON },
    }
}

pub async fn a_proof_is_found_in_time_and_taken_once_however_many_race<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let (sign_up, new_password, code) = (token(), token(), token());
    let begun = proof(ProofPurpose::SignUp(hash("chosen")), "maya", code);
    store.proofs.begin_proof(sign_up, begun.clone()).await.unwrap();
    store.proofs.begin_proof(new_password, proof(ProofPurpose::NewPassword, "omar", code)).await.unwrap();
    let found = store.proofs.proof(sign_up, after_s(599)).await.unwrap().unwrap();
    assert_eq!(
        (&found.purpose, &found.email, &found.return_to),
        (&begun.purpose, &begun.email, &begun.return_to)
    );
    assert!(found.code.hash.matches(&code));
    assert_eq!((found.code.sent, found.code.sent_at, found.code.expires_at), (1, NOON, after_s(600)));
    assert_eq!(
        store.proofs.proof(new_password, NOON).await.unwrap().unwrap().purpose,
        ProofPurpose::NewPassword
    );
    assert!(store.proofs.proof(sign_up, after_s(600)).await.unwrap().is_none(), "late");

    assert!(!store.proofs.take_proof(sign_up, token()).await.unwrap(), "another code");
    let racing: Vec<_> = (0..8)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.proofs.take_proof(sign_up, code).await.unwrap() })
        })
        .collect();
    let mut taken = 0;
    for outcome in racing {
        taken += u32::from(outcome.await.unwrap());
    }
    assert_eq!(taken, 1);
    assert!(store.proofs.proof(sign_up, NOON).await.unwrap().is_none());
}

pub async fn a_new_code_replaces_the_last_one_of_a_proof_once<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let (key, first, second) = (token(), token(), token());
    store.proofs.begin_proof(key, proof(ProofPurpose::NewPassword, "maya", first)).await.unwrap();
    let new = MailedCode { hash: second, expires_at: after_s(660), sent: 2, sent_at: after_s(60) };
    assert!(store.proofs.replace_proof_code(key, new).await.unwrap());
    assert!(!store.proofs.replace_proof_code(key, new).await.unwrap(), "somebody was quicker");
    assert!(!store.proofs.take_proof(key, first).await.unwrap(), "the first code is no good any more");
    let found = store.proofs.proof(key, after_s(650)).await.unwrap().unwrap();
    assert_eq!((found.code.sent, found.code.sent_at), (2, after_s(60)));
    assert!(store.proofs.take_proof(key, second).await.unwrap());
}

pub async fn proofs_whose_time_is_over_are_deleted<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let key = token();
    store.proofs.begin_proof(key, proof(ProofPurpose::NewPassword, "omar", token())).await.unwrap();
    assert!(store.proofs.proof(key, NOON).await.unwrap().is_some());
    assert_eq!(store.proofs.forget_old_proofs(after_s(599), 10).await.unwrap(), 0);
    assert_eq!(store.proofs.forget_old_proofs(after_s(600), 10).await.unwrap(), 1);
}

pub async fn a_proof_makes_one_account_and_ends_all_others_of_its_mailbox<D: TestDatabase>(database: Arc<D>) {
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
    let mut made = 0;
    for outcome in racing {
        made += u32::from(outcome.await.unwrap().is_some());
    }
    assert_eq!(made, 1);
    assert!(store.proofs.proof(second, NOON).await.unwrap().is_none());
    assert!(store.proofs.proof(others, NOON).await.unwrap().is_some());

    store.proofs.begin_proof(second, proof(ProofPurpose::SignUp(hash("x")), "maya", code)).await.unwrap();
    let taken = store.provider_accounts.create_proven_account(second, code, new()).await;
    assert!(matches!(taken, Err(ProviderError::EmailTaken(_))), "{taken:?}");
    assert!(store.proofs.proof(second, NOON).await.unwrap().is_some(), "what fails changes nothing");

    let maya = address("maya@example.com");
    let changed =
        store.provider_accounts.set_proven_password(second, token(), &maya, &hash("new")).await.unwrap();
    assert!(changed.is_none(), "another code");
    store.proofs.begin_proof(first, proof(ProofPurpose::NewPassword, "maya", code)).await.unwrap();
    let changed =
        store.provider_accounts.set_proven_password(first, code, &maya, &hash("new")).await.unwrap().unwrap();
    assert_eq!((&changed.password_hash, changed.password_version), (&hash("new"), 2));
    assert!(store.proofs.proof(second, NOON).await.unwrap().is_none(), "all of the mailbox");
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
