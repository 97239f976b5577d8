//! Conformance: what the built-in identity provider gives out, and the keys it signs with.

use crate::databases::TestDatabase;
use crate::samples::{HOSTILE, NOON};
use chancery_domain::{OsRandomness, SecretToken, TokenHash, UnixMillis};
use chancery_store::{
    CodePresented, Consent, ConsentQuestion, DbError, Grant, NewCode, ProviderError, Redeemed, SigningKey,
    Store,
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
        authenticated_at: NOON,
    }
}

async fn issue(store: &Store, grant: Grant) -> TokenHash {
    let code = token();
    store
        .grants
        .issue_code(NewCode { code, grant, expires_at: after_s(60), forgotten_at: after_s(700) })
        .await
        .unwrap();
    code
}

/// As its rightful taker would, half a minute later.
fn presented(code: TokenHash) -> CodePresented {
    let Grant { client_id, redirect_uri, code_challenge, .. } = grant();
    CodePresented {
        code,
        client_id,
        redirect_uri,
        code_challenge,
        access_token: token(),
        access_expires_at: after_s(630),
        now: after_s(30),
    }
}

pub async fn a_code_gives_one_token_and_a_replay_takes_it_back<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let code = issue(&store, grant()).await;
    let first = presented(code);
    assert_eq!(store.grants.redeem_code(first.clone()).await.unwrap(), Redeemed::Yes(grant()));
    assert_eq!(store.grants.access(first.access_token, after_s(629)).await.unwrap(), Some(grant()));
    assert_eq!(
        store.grants.access(first.access_token, after_s(630)).await.unwrap(),
        None,
        "its time is over"
    );
    assert_eq!(store.grants.access(token(), after_s(31)).await.unwrap(), None, "another token");

    let second = presented(code);
    assert_eq!(store.grants.redeem_code(second.clone()).await.unwrap(), Redeemed::Replayed(grant()));
    assert_eq!(store.grants.access(first.access_token, after_s(31)).await.unwrap(), None, "revoked");
    assert_eq!(store.grants.access(second.access_token, after_s(31)).await.unwrap(), None);
    assert_eq!(store.grants.redeem_code(presented(token())).await.unwrap(), Redeemed::Unknown);
}

pub async fn a_code_is_for_its_client_its_address_its_verifier_and_its_minute<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
    let wrong: [fn(&mut CodePresented); 4] = [
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
        assert_eq!(outcome, Redeemed::Mismatch { grant: grant(), is_late: case == 3 }, "case {case}");
        assert_eq!(store.grants.access(spoilt.access_token, after_s(31)).await.unwrap(), None, "case {case}");
        let again = store.grants.redeem_code(presented(code)).await.unwrap();
        assert_eq!(again, Redeemed::Replayed(grant()), "a code that was shown around is worth nothing");
    }
}

pub async fn of_many_racing_with_one_code_one_wins_at_most_and_keeps_nothing<D: TestDatabase>(
    database: Arc<D>,
) {
    let store = database.open().await;
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
                Redeemed::Yes(_) => winners += 1,
                other => assert_eq!(other, Redeemed::Replayed(grant())),
            }
        }
        for access_token in access_tokens {
            assert_eq!(store.grants.access(access_token, after_s(31)).await.unwrap(), None);
        }
        assert_eq!(winners, 1);
    }
}

pub async fn grants_come_back_as_they_were_given<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    for text in HOSTILE {
        let hostile = Grant {
            nonce: Some(text.to_owned()),
            scope: text.to_owned(),
            subject: text.to_owned(),
            ..grant()
        };
        let code = issue(&store, hostile.clone()).await;
        assert_eq!(store.grants.redeem_code(presented(code)).await.unwrap(), Redeemed::Yes(hostile));
    }
    let plain = Grant { nonce: None, ..grant() };
    let code = issue(&store, plain.clone()).await;
    assert_eq!(store.grants.redeem_code(presented(code)).await.unwrap(), Redeemed::Yes(plain));
    let nul = Grant { nonce: Some("a\0b".to_owned()), ..grant() };
    let new = NewCode { code: token(), grant: nul, expires_at: NOON, forgotten_at: NOON };
    assert!(matches!(
        store.grants.issue_code(new).await,
        Err(ProviderError::Database(DbError::NulCharacter { .. }))
    ));
}

pub async fn a_consent_question_is_taken_once_and_in_time<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let (page, session) = (token(), token());
    let question = ConsentQuestion {
        subject: "ann".to_owned(),
        session,
        request: "client_id=portal".to_owned(),
        expires_at: after_s(600),
    };
    store.grants.ask_for_consent(page, question.clone()).await.unwrap();
    assert!(store.grants.take_consent_question(token(), NOON).await.unwrap().is_none());
    let taken = store.grants.take_consent_question(page, after_s(599)).await.unwrap().unwrap();
    assert_eq!((taken.subject.as_str(), taken.request.as_str()), ("ann", "client_id=portal"));
    assert!(taken.session.matches(&session));
    assert!(store.grants.take_consent_question(page, after_s(599)).await.unwrap().is_none(), "once");

    store.grants.ask_for_consent(page, question).await.unwrap();
    assert!(store.grants.take_consent_question(page, after_s(600)).await.unwrap().is_none(), "late");
}

pub async fn consents_are_remembered_for_one_person_and_one_client<D: TestDatabase>(database: Arc<D>) {
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
        store.grants.remember_consent(given).await.unwrap();
    }
    assert_eq!(store.grants.consents("ann", "portal").await.unwrap(), ["openid", "openid email"]);
    assert_eq!(store.grants.consents("ben", "portal").await.unwrap(), ["openid"]);
    assert!(store.grants.consents("ben", "other").await.unwrap().is_empty());
    assert_eq!(store.grants.forget_consents("ann", "portal").await.unwrap(), 2);
    assert!(store.grants.consents("ann", "portal").await.unwrap().is_empty());
    assert_eq!(store.grants.consents("ben", "portal").await.unwrap(), ["openid"], "another's stay");
}

pub async fn what_is_of_no_use_any_more_is_forgotten_a_little_at_a_time<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    for _ in 0..3 {
        issue(&store, grant()).await;
    }
    assert_eq!(store.grants.forget_old_grants(after_s(699), 2).await.unwrap(), 0);
    assert_eq!(store.grants.forget_old_grants(after_s(700), 2).await.unwrap(), 2);
    assert_eq!(store.grants.forget_old_grants(after_s(700), 2).await.unwrap(), 1);
    assert_eq!(store.grants.forget_old_grants(after_s(700), 2).await.unwrap(), 0);
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

pub async fn of_many_making_a_signing_key_one_succeeds<D: TestDatabase>(database: Arc<D>) {
    let (store, other_node) = (database.open().await, database.open().await);
    let racers: Vec<_> = (0..8)
        .map(|place| {
            let store = Arc::clone(if place % 2 == 0 { &store } else { &other_node });
            let key = signing_key(1, &format!("key-{place}"));
            tokio::spawn(async move {
                store.signing_keys.add_signing_key(key.clone()).await.unwrap().then_some(key)
            })
        })
        .collect();
    let mut made = Vec::new();
    for racer in racers {
        made.extend(racer.await.unwrap());
    }
    assert_eq!(made.len(), 1);
    assert_eq!(store.signing_keys.signing_keys().await.unwrap(), made);
    assert!(!format!("{made:?}").contains("255"), "the private key is for nobody's log");
}

pub async fn signing_keys_are_kept_in_order_until_nobody_needs_them<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let later = SigningKey { published_until: after_s(300), ..signing_key(2, "second") };
    assert!(store.signing_keys.add_signing_key(later.clone()).await.unwrap());
    assert!(store.signing_keys.add_signing_key(signing_key(1, "first")).await.unwrap());
    assert_eq!(store.signing_keys.signing_keys().await.unwrap(), [signing_key(1, "first"), later.clone()]);
    assert_eq!(store.signing_keys.forget_old_signing_keys(after_s(199)).await.unwrap(), 0);
    assert_eq!(store.signing_keys.forget_old_signing_keys(after_s(200)).await.unwrap(), 1);
    assert_eq!(store.signing_keys.signing_keys().await.unwrap(), [later]);
}
