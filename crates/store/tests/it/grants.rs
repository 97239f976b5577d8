//! Conformance: consents, codes and tokens of the built-in identity provider, and its signing keys.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::samples::{HOSTILE_TEXTS, NOON};
use chancery_domain::{OsRandomness, SecretToken, TokenHash, UnixMillis};
use chancery_store::{
    CodeRedemption, Consent, ConsentRequest, DbError, Grant, NewAuthorizationCode, NewProviderAccount,
    NewProviderSession, PasswordHash, ProviderError, RedeemOutcome, SigningKey, Store,
};
use std::sync::Arc;

fn after_s(seconds: i64) -> UnixMillis {
    UnixMillis(NOON.0 + seconds * 1000)
}

fn token() -> TokenHash {
    SecretToken::generate(&OsRandomness).hash()
}

fn grant() -> Grant {
    Grant {
        client_id: "portal".to_owned(),
        redirect_uri: "https://portal.example/auth/callback".to_owned(),
        code_challenge: "challenge".to_owned(),
        subject: "ann".to_owned(),
        password_version: 3,
        scope: "openid email".to_owned(),
        nonce: Some("nonce".to_owned()),
        sid: "session".to_owned(),
        amr: "pwd".to_owned(),
        authenticated_at: NOON,
    }
}

/// Starts the session that the grants belong to. Returns its token.
async fn begin_session(store: &Store) -> TokenHash {
    let account = NewProviderAccount {
        subject: "ann".to_owned(),
        email: "ann@example.com".parse().unwrap(),
        password_hash: PasswordHash("x".to_owned()),
        at: NOON,
    };
    let account = store.provider_accounts.create_provider_account(account).await.unwrap();
    let session = NewProviderSession {
        token: token(),
        subject: account.subject,
        password_version: account.password_version,
        sid: grant().sid,
        amr: "pwd".to_owned(),
        at: NOON,
    };
    let token = session.token;
    store.provider_sessions.start_provider_session(session).await.unwrap();
    token
}

async fn issue(store: &Store, grant: Grant) -> TokenHash {
    let code = token();
    store
        .grants
        .issue_code(NewAuthorizationCode { code, grant, expires_at: after_s(60), delete_after: after_s(700) })
        .await
        .unwrap();
    code
}

/// A redemption by the rightful client, half a minute later.
fn presented(code: TokenHash) -> CodeRedemption {
    let Grant { client_id, redirect_uri, code_challenge, .. } = grant();
    CodeRedemption {
        code,
        client_id,
        redirect_uri,
        code_challenge,
        access_token: token(),
        access_expires_at: after_s(630),
        now: after_s(30),
    }
}

pub async fn replayed_code_revokes_its_access_token(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    begin_session(&store).await;
    let code = issue(&store, grant()).await;
    let first = presented(code);
    assert_eq!(store.grants.redeem_code(first.clone()).await.unwrap(), RedeemOutcome::Granted(grant()));
    assert_eq!(
        store.grants.grant_for_access_token(first.access_token, after_s(629)).await.unwrap(),
        Some(grant())
    );
    assert_eq!(
        store.grants.grant_for_access_token(first.access_token, after_s(630)).await.unwrap(),
        None,
        "its time is over"
    );
    assert_eq!(
        store.grants.grant_for_access_token(token(), after_s(31)).await.unwrap(),
        None,
        "another token"
    );

    let second = presented(code);
    assert_eq!(store.grants.redeem_code(second.clone()).await.unwrap(), RedeemOutcome::Replayed(grant()));
    assert_eq!(
        store.grants.grant_for_access_token(first.access_token, after_s(31)).await.unwrap(),
        None,
        "revoked"
    );
    assert_eq!(store.grants.grant_for_access_token(second.access_token, after_s(31)).await.unwrap(), None);
    assert_eq!(store.grants.redeem_code(presented(token())).await.unwrap(), RedeemOutcome::Unknown);
}

pub async fn code_is_bound_to_client_redirect_uri_verifier_and_expiry(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    begin_session(&store).await;
    let wrong: [fn(&mut CodeRedemption); 4] = [
        |presented| presented.client_id = "other".to_owned(),
        |presented| presented.redirect_uri.push('/'),
        |presented| presented.code_challenge = "Challenge".to_owned(),
        |presented| presented.now = after_s(60),
    ];
    for (case, spoil) in wrong.into_iter().enumerate() {
        let code = issue(&store, grant()).await;
        let mut spoilt = presented(code);
        spoil(&mut spoilt);
        let outcome = store.grants.redeem_code(spoilt.clone()).await.unwrap();
        assert_eq!(outcome, RedeemOutcome::Rejected { grant: grant(), is_expired: case == 3 }, "case {case}");
        assert_eq!(
            store.grants.grant_for_access_token(spoilt.access_token, after_s(31)).await.unwrap(),
            None,
            "case {case}"
        );
        let again = store.grants.redeem_code(presented(code)).await.unwrap();
        assert_eq!(again, RedeemOutcome::Replayed(grant()), "a code that was shown around is worth nothing");
    }
}

pub async fn concurrent_redemptions_leave_no_valid_token(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    begin_session(&store).await;
    for _ in 0..10 {
        let code = issue(&store, grant()).await;
        let racers: Vec<_> = (0..8)
            .map(|_| {
                let (store, presented) = (Arc::clone(&store), presented(code));
                tokio::spawn(async move {
                    (presented.access_token, store.grants.redeem_code(presented).await.unwrap())
                })
            })
            .collect();
        let (mut winners, mut access_tokens) = (0, Vec::new());
        for racer in racers {
            let (access_token, outcome) = racer.await.unwrap();
            access_tokens.push(access_token);
            match outcome {
                RedeemOutcome::Granted(_) => winners += 1,
                other => assert_eq!(other, RedeemOutcome::Replayed(grant())),
            }
        }
        for access_token in access_tokens {
            assert_eq!(store.grants.grant_for_access_token(access_token, after_s(31)).await.unwrap(), None);
        }
        assert_eq!(winners, 1);
    }
}

pub async fn code_of_an_ended_session_is_void(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let session = begin_session(&store).await;
    let (before, after) = (issue(&store, grant()).await, issue(&store, grant()).await);
    assert_eq!(store.grants.redeem_code(presented(before)).await.unwrap(), RedeemOutcome::Granted(grant()));
    assert!(store.provider_sessions.end_provider_session(session).await.unwrap());
    let late = presented(after);
    let outcome = store.grants.redeem_code(late.clone()).await.unwrap();
    assert_eq!(outcome, RedeemOutcome::Rejected { grant: grant(), is_expired: false });
    assert_eq!(store.grants.grant_for_access_token(late.access_token, after_s(31)).await.unwrap(), None);
}

pub async fn grants_round_trip(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    begin_session(&store).await;
    for text in HOSTILE_TEXTS {
        let hostile = Grant {
            nonce: Some(text.to_owned()),
            scope: text.to_owned(),
            subject: text.to_owned(),
            ..grant()
        };
        let code = issue(&store, hostile.clone()).await;
        assert_eq!(store.grants.redeem_code(presented(code)).await.unwrap(), RedeemOutcome::Granted(hostile));
    }
    let plain = Grant { nonce: None, ..grant() };
    let code = issue(&store, plain.clone()).await;
    assert_eq!(store.grants.redeem_code(presented(code)).await.unwrap(), RedeemOutcome::Granted(plain));
    let nul = Grant { nonce: Some("a\0b".to_owned()), ..grant() };
    let new = NewAuthorizationCode { code: token(), grant: nul, expires_at: NOON, delete_after: NOON };
    assert!(matches!(
        store.grants.issue_code(new).await,
        Err(ProviderError::Database(DbError::NulCharacter { .. }))
    ));
}

pub async fn consent_request_is_consumed_once_before_expiry(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (page, session) = (token(), token());
    let question = ConsentRequest {
        subject: "ann".to_owned(),
        session,
        request: "client_id=portal".to_owned(),
        expires_at: after_s(600),
    };
    store.grants.create_consent_request(page, question.clone()).await.unwrap();
    assert!(store.grants.consume_consent_request(token(), NOON).await.unwrap().is_none());
    let taken = store.grants.consume_consent_request(page, after_s(599)).await.unwrap().unwrap();
    assert_eq!((taken.subject.as_str(), taken.request.as_str()), ("ann", "client_id=portal"));
    assert!(taken.session.matches(&session));
    assert!(store.grants.consume_consent_request(page, after_s(599)).await.unwrap().is_none(), "once");

    store.grants.create_consent_request(page, question).await.unwrap();
    assert!(store.grants.consume_consent_request(page, after_s(600)).await.unwrap().is_none(), "late");
}

pub async fn consents_are_per_subject_and_client(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let consent = |subject: &str, client_id: &str, scope: &str| Consent {
        subject: subject.to_owned(),
        client_id: client_id.to_owned(),
        scope: scope.to_owned(),
        at: NOON,
    };
    for given in [
        consent("ann", "portal", "openid"),
        consent("ann", "portal", "openid email"),
        consent("ann", "portal", "openid email"),
        consent("ann", "other", "openid"),
        consent("ben", "portal", "openid"),
    ] {
        store.grants.save_consent(given).await.unwrap();
    }
    assert_eq!(store.grants.consents("ann", "portal").await.unwrap(), ["openid", "openid email"]);
    assert_eq!(store.grants.consents("ben", "portal").await.unwrap(), ["openid"]);
    assert!(store.grants.consents("ben", "other").await.unwrap().is_empty());
    assert_eq!(store.grants.revoke_consents("ann", "portal").await.unwrap(), 2);
    assert!(store.grants.consents("ann", "portal").await.unwrap().is_empty());
    assert_eq!(store.grants.consents("ben", "portal").await.unwrap(), ["openid"], "another's stay");
}

pub async fn expired_grants_are_deleted_in_batches(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    for _ in 0..3 {
        issue(&store, grant()).await;
    }
    assert_eq!(store.grants.delete_expired_grants(after_s(699), 2).await.unwrap(), 0);
    assert_eq!(store.grants.delete_expired_grants(after_s(700), 2).await.unwrap(), 2);
    assert_eq!(store.grants.delete_expired_grants(after_s(700), 2).await.unwrap(), 1);
    assert_eq!(store.grants.delete_expired_grants(after_s(700), 2).await.unwrap(), 0);
}

fn signing_key(generation: i64, key_id: &str) -> SigningKey {
    SigningKey {
        generation,
        key_id: key_id.to_owned(),
        private_key: vec![0, 1, 2, 255],
        signs_from: NOON,
        signs_until: after_s(100),
        published_until: after_s(200),
    }
}

pub async fn concurrent_signing_key_creation_has_one_winner(database: Arc<AnyDatabase>) {
    let (store, other_node) = (database.open().await, database.open().await);
    let racers: Vec<_> = (0..8)
        .map(|index| {
            let store = Arc::clone(if index % 2 == 0 { &store } else { &other_node });
            let key = signing_key(1, &format!("key-{index}"));
            tokio::spawn(async move {
                store.signing_keys.add_signing_key(key.clone()).await.unwrap().then_some(key)
            })
        })
        .collect();
    let mut added = Vec::new();
    for racer in racers {
        added.extend(racer.await.unwrap());
    }
    assert_eq!(added.len(), 1);
    assert_eq!(store.signing_keys.signing_keys().await.unwrap(), added);
    assert!(!format!("{added:?}").contains("255"), "the private key is for nobody's log");
}

pub async fn signing_keys_stay_until_published_until(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let later = SigningKey { published_until: after_s(300), ..signing_key(2, "second") };
    assert!(store.signing_keys.add_signing_key(later.clone()).await.unwrap());
    assert!(store.signing_keys.add_signing_key(signing_key(1, "first")).await.unwrap());
    assert_eq!(store.signing_keys.signing_keys().await.unwrap(), [signing_key(1, "first"), later.clone()]);
    assert_eq!(store.signing_keys.delete_expired_signing_keys(after_s(199)).await.unwrap(), 0);
    assert_eq!(store.signing_keys.delete_expired_signing_keys(after_s(200)).await.unwrap(), 1);
    assert_eq!(store.signing_keys.signing_keys().await.unwrap(), [later]);
}
