//! Conformance: secrets are encrypted in the database, for their row alone, and their key can be rotated.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::firm::{origin, sign_in};
use crate::outbox::{permit, webhook};
use crate::samples::NOON;
use chancery_domain::{
    Identity, LocalPath, OsRandomness, Role, SecretToken, SeededRandomness, TokenHash, UnixMillis,
};
use chancery_store::testing::TestKeys;
use chancery_store::{
    CeremonyKind, CodeOutcome, DbError, EncryptionKey, FactorCeremony, NewProviderAccount, NewSession,
    NewTotpSecret, PasswordHash, PendingEmailCode, SecretError, SentEmailCode, SessionAuthentication,
    SigningKey, Store,
};
use std::collections::BTreeMap;
use std::sync::Arc;

const PRIVATE_KEY: &str = "the private key of a signing key";
const SESSION_ID_TOKEN: &str = "the.id.token-of-a-session";
const PENDING_ID_TOKEN: &str = "the.id.token-of-a-sign-in";
const TOTP_SECRET: &str = "secret of an authenticator app";
const CEREMONY_STATE: &str = "secret of an enrolment";
const SUBJECT: &str = "subject-of-maya";

/// Few enough that a rotation is quick, and enough for several of its transactions.
const SECRETS: usize = 60;

fn key(seed: u64) -> EncryptionKey {
    EncryptionKey::generate(&SeededRandomness::new(seed)).unwrap()
}

/// A node whose key file has these keys, the newest first.
async fn node(database: &AnyDatabase, keys: &Arc<TestKeys>) -> Arc<Store> {
    let store = Store::open(&database.url()).await.unwrap();
    let keys = Arc::clone(keys);
    store.encryption.use_keys(keys);
    Arc::new(store)
}

fn keys(seeds: &[u64]) -> Arc<TestKeys> {
    Arc::new(TestKeys::new(seeds.iter().map(|seed| key(*seed)).collect()))
}

fn authentication(id_token: &str) -> SessionAuthentication {
    let id_token = Some(id_token.as_bytes().to_vec());
    SessionAuthentication { authenticated_at: NOON, sid: None, id_token }
}

fn in_an_hour() -> UnixMillis {
    UnixMillis(NOON.0 + 3_600_000)
}

/// What `add_one_of_each` stored, as far as it is random.
struct Added {
    shared: SecretToken,
    session: TokenHash,
    pending: SecretToken,
    ceremony: TokenHash,
}

async fn add_one_of_each(store: &Store) -> Added {
    let shared = SecretToken::generate(&OsRandomness);
    store.secrets.shared_secret("portal", &shared).await.unwrap();
    let signing_key = SigningKey {
        generation: 1,
        key_id: "first".to_owned(),
        private_key: PRIVATE_KEY.as_bytes().to_vec(),
        signs_from: NOON,
        signs_until: in_an_hour(),
        published_until: in_an_hour(),
    };
    assert!(store.signing_keys.add_signing_key(signing_key).await.unwrap());
    let maya = sign_in(store, "maya", Role::Consultant).await;
    let session = SecretToken::generate(&OsRandomness).hash();
    let new = NewSession {
        token: session,
        binding: None,
        person: maya.id,
        authentication: authentication(SESSION_ID_TOKEN),
        origin: origin(NOON),
        ip_address: "192.0.2.1".to_owned(),
        user_agent: "Firefox".to_owned(),
        replaces: None,
    };
    store.sessions.start_session(new).await.unwrap();
    let pending = SecretToken::generate(&OsRandomness);
    let waiting = PendingEmailCode {
        identity: Identity { issuer: "https://id.example".to_owned(), subject: "omar".to_owned() },
        email: "omar@example.com".parse().unwrap(),
        is_email_verified: true,
        directory_role: None,
        authentication: authentication(PENDING_ID_TOKEN),
        return_to: LocalPath::parse("/").unwrap(),
        code: SentEmailCode {
            hash: pending.hash_with("123456"),
            expires_at: in_an_hour(),
            sent: 1,
            sent_at: NOON,
        },
        is_email_sent: false,
    };
    store.sign_ins.begin_pending_email_code(pending.hash(), waiting, NOON).await.unwrap();
    let account = NewProviderAccount {
        subject: SUBJECT.to_owned(),
        email: "maya@example.com".parse().unwrap(),
        password_hash: PasswordHash("hash".to_owned()),
        at: NOON,
    };
    store.provider_accounts.create_provider_account(account).await.unwrap();
    let totp = NewTotpSecret {
        subject: SUBJECT.to_owned(),
        secret: TOTP_SECRET.as_bytes().to_vec(),
        step: 1,
        recovery_codes: Vec::new(),
        at: NOON,
    };
    store.second_factors.add_totp(&totp).await.unwrap();
    let ceremony = SecretToken::generate(&OsRandomness).hash();
    let state = FactorCeremony {
        kind: CeremonyKind::TotpEnrolment,
        subject: Some(SUBJECT.to_owned()),
        state: CEREMONY_STATE.to_owned(),
        expires_at: in_an_hour(),
    };
    store.ceremonies.begin_ceremony(ceremony, &state).await.unwrap();
    store.webhooks.add_webhook(permit(), &webhook(1)).await.unwrap();
    Added { shared, session, pending, ceremony }
}

async fn assert_all_readable(store: &Store, added: &Added) {
    let other = SecretToken::generate(&OsRandomness);
    assert_eq!(store.secrets.shared_secret("portal", &other).await.unwrap(), added.shared);
    let signing_keys = store.signing_keys.signing_keys().await.unwrap();
    assert_eq!(signing_keys[0].private_key, PRIVATE_KEY.as_bytes());
    let id_token = store.sessions.stored_id_token(added.session).await.unwrap().unwrap();
    assert_eq!(id_token, SESSION_ID_TOKEN.as_bytes());
    let pending = store.sign_ins.pending_email_code(added.pending.hash(), NOON).await.unwrap().unwrap();
    assert_eq!(pending.authentication, authentication(PENDING_ID_TOKEN));
    let totp = store.second_factors.totp_secret(SUBJECT).await.unwrap().unwrap();
    assert_eq!(totp.secret, TOTP_SECRET.as_bytes());
    let kind = CeremonyKind::TotpEnrolment;
    let ceremony = store.ceremonies.find_ceremony(added.ceremony, kind, NOON).await.unwrap().unwrap();
    assert_eq!(ceremony.state, CEREMONY_STATE);
    let webhook = webhook(1);
    let found = store.webhooks.webhook_by_id(&webhook.id).await.unwrap();
    assert_eq!(found, Some(webhook));
}

/// The number of secrets that each key encrypts.
async fn secrets_by_key(store: &Store) -> BTreeMap<String, u64> {
    let mut secrets = BTreeMap::new();
    for usage in store.encryption.encryption_key_usage().await.unwrap() {
        *secrets.entry(usage.key.unwrap().to_string()).or_default() += usage.count;
    }
    secrets
}

async fn add_shared_secrets(store: &Store, prefix: &str) -> Vec<(String, SecretToken)> {
    let mut added = Vec::new();
    for number in 0..SECRETS {
        let (name, secret) = (format!("{prefix}-{number}"), SecretToken::generate(&OsRandomness));
        assert_eq!(store.secrets.shared_secret(&name, &secret).await.unwrap(), secret);
        added.push((name, secret));
    }
    added
}

async fn assert_unchanged(store: &Store, secrets: &[(String, SecretToken)]) {
    let other = SecretToken::generate(&OsRandomness);
    for (name, secret) in secrets {
        assert_eq!(store.secrets.shared_secret(name, &other).await.unwrap(), *secret, "{name}");
    }
}

pub async fn database_copy_contains_no_plain_secret(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let added = add_one_of_each(&store).await;
    store.close().await;
    assert!(database.contains(SUBJECT.as_bytes()).await, "the copy was read");
    for secret in [
        added.shared.reveal(),
        PRIVATE_KEY,
        SESSION_ID_TOKEN,
        PENDING_ID_TOKEN,
        TOTP_SECRET,
        CEREMONY_STATE,
        webhook(1).secret.reveal(),
    ] {
        assert!(!database.contains(secret.as_bytes()).await, "{secret}");
    }
}

pub async fn secrets_round_trip_encrypted(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    assert_eq!(store.encryption.current_encryption_key().await.unwrap(), None);
    let added = add_one_of_each(&store).await;
    assert_all_readable(&store, &added).await;
    let another_node = database.open().await;
    assert_all_readable(&another_node, &added).await;
    another_node.encryption.check_encryption_keys().await.unwrap();
    let typed = added.pending.hash_with("123456");
    let outcome = store.sign_ins.verify_code(added.pending.hash(), typed, &origin(NOON)).await.unwrap();
    let CodeOutcome::Accepted(accepted) = outcome else { panic!("{outcome:?}") };
    assert_eq!(accepted.authentication, authentication(PENDING_ID_TOKEN));
    let kind = CeremonyKind::TotpEnrolment;
    let consumed = store.ceremonies.consume_ceremony(added.ceremony, kind, NOON).await.unwrap().unwrap();
    assert_eq!(consumed.state, CEREMONY_STATE);
    assert_eq!(secrets_by_key(&store).await.into_values().collect::<Vec<_>>(), [5], "two are gone");
}

pub async fn secret_changed_or_swapped_between_rows_is_rejected(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    add_one_of_each(&store).await;
    let new_secret = || SecretToken::generate(&OsRandomness);
    store.secrets.shared_secret("another", &new_secret()).await.unwrap();
    for change in [
        "UPDATE shared_secrets SET secret = (SELECT secret FROM shared_secrets WHERE name = 'another') \
         WHERE name = 'portal'",
        "UPDATE shared_secrets SET secret = (SELECT secret FROM webhooks) WHERE name = 'portal'",
        "UPDATE shared_secrets SET secret = substr(secret, 1, length(secret) - 1) WHERE name = 'portal'",
        "UPDATE shared_secrets SET secret = substr(secret, 1, 3) WHERE name = 'portal'",
    ] {
        database.raw(change).await.unwrap();
        let read = store.secrets.shared_secret("portal", &new_secret()).await;
        assert!(matches!(read, Err(DbError::Secret(SecretError::Rejected { .. }))), "{change}: {read:?}");
    }
    database.raw("UPDATE signing_keys SET private_key = (SELECT secret FROM totp_secrets)").await.unwrap();
    let error = store.signing_keys.signing_keys().await.unwrap_err();
    assert!(error.to_string().contains("a signing key in the database cannot be decrypted"), "{error}");
    // A row that is renamed does not decrypt either.
    database.raw("UPDATE webhooks SET id = 'wh_002'").await.unwrap();
    assert!(store.webhooks.webhook_by_id("wh_002").await.is_err());
}

pub async fn wrong_key_is_rejected_with_its_location(database: Arc<AnyDatabase>) {
    let first = node(&database, &keys(&[1])).await;
    first.encryption.check_encryption_keys().await.unwrap();
    assert_eq!(first.encryption.current_encryption_key().await.unwrap(), Some(key(1).id()));
    first.secrets.shared_secret("portal", &SecretToken::generate(&OsRandomness)).await.unwrap();

    let stranger = node(&database, &keys(&[2])).await;
    let error = stranger.encryption.check_encryption_keys().await.unwrap_err();
    assert!(matches!(error, DbError::Secret(SecretError::UnknownKey { .. })), "{error:?}");
    for part in ["the keys of this test", key(1).id().to_string().as_str()] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let new_secret = SecretToken::generate(&OsRandomness);
    for name in ["portal", "another"] {
        assert!(stranger.secrets.shared_secret(name, &new_secret).await.is_err(), "{name}");
    }
    let without = node(&database, &keys(&[])).await;
    let error = without.encryption.check_encryption_keys().await.unwrap_err();
    assert!(matches!(error, DbError::Secret(SecretError::NoKey(_))), "{error:?}");

    // The key of a rotation that has not finished is still needed.
    let both = node(&database, &keys(&[2, 1])).await;
    database.raw("DELETE FROM current_encryption_key").await.unwrap();
    assert!(stranger.encryption.check_encryption_keys().await.is_err());
    assert_eq!(first.encryption.current_encryption_key().await.unwrap(), None, "its key does not fit");
    both.encryption.check_encryption_keys().await.unwrap();
    let error = stranger.encryption.check_encryption_keys().await.unwrap_err();
    assert!(error.to_string().contains("a shared secret"), "{error}");
}

pub async fn rotation_under_load_keeps_every_secret_readable(database: Arc<AnyDatabase>) {
    let key_file = keys(&[1]);
    let (operator, nodes) = (
        node(&database, &key_file).await,
        [node(&database, &key_file).await, node(&database, &key_file).await],
    );
    let added = add_one_of_each(&operator).await;
    let before = add_shared_secrets(&operator, "before").await;
    // Each node has loaded the old key alone, and learns of the new one while it works.
    let mut load = Vec::new();
    for (number, store) in nodes.iter().enumerate() {
        store.encryption.check_encryption_keys().await.unwrap();
        let (store, before) = (Arc::clone(store), before.clone());
        load.push(tokio::spawn(async move {
            let written = add_shared_secrets(&store, &format!("during-{number}")).await;
            assert_unchanged(&store, &before).await;
            written
        }));
    }
    key_file.replace(vec![key(2), key(1)]);
    let summary = operator.encryption.rotate_encryption_key(key(2).id()).await.unwrap();
    assert_eq!(summary.failed, Vec::<String>::new());
    assert!(summary.rotated >= before.len() as u64, "{summary:?}");
    let mut written = before;
    for task in load {
        written.extend(task.await.unwrap());
    }
    assert_eq!(operator.encryption.current_encryption_key().await.unwrap(), Some(key(2).id()));
    let expected = BTreeMap::from([(key(2).id().to_string(), written.len() as u64 + 7)]);
    assert_eq!(secrets_by_key(&operator).await, expected, "none was stored with the old key meanwhile");

    let without_the_old_key = node(&database, &keys(&[2])).await;
    without_the_old_key.encryption.check_encryption_keys().await.unwrap();
    for store in nodes.iter().chain([&without_the_old_key]) {
        assert_unchanged(store, &written).await;
        assert_all_readable(store, &added).await;
    }
}

pub async fn interrupted_rotation_can_be_resumed(database: Arc<AnyDatabase>) {
    let key_file = keys(&[1]);
    let store = node(&database, &key_file).await;
    let secrets = add_shared_secrets(&store, "secret").await;
    key_file.replace(vec![key(2), key(1)]);
    let rotation = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.encryption.rotate_encryption_key(key(2).id()).await })
    };
    while !secrets_by_key(&store).await.contains_key(&key(2).id().to_string()) {
        tokio::task::yield_now().await;
    }
    rotation.abort();
    // The outcome does not matter: it was aborted, or had just finished.
    let _ = rotation.await;
    assert_unchanged(&*node(&database, &key_file).await, &secrets).await;
    let summary = store.encryption.rotate_encryption_key(key(2).id()).await.unwrap();
    assert_eq!(summary.failed, Vec::<String>::new());
    let expected = BTreeMap::from([(key(2).id().to_string(), secrets.len() as u64)]);
    assert_eq!(secrets_by_key(&store).await, expected);
    assert_unchanged(&*node(&database, &keys(&[2])).await, &secrets).await;
    assert_eq!(store.encryption.rotate_encryption_key(key(2).id()).await.unwrap().rotated, 0);
}

pub async fn secret_that_does_not_decrypt_is_reported_and_left_by_rotation(database: Arc<AnyDatabase>) {
    let store = node(&database, &keys(&[2, 1])).await;
    store.encryption.rotate_encryption_key(key(1).id()).await.unwrap();
    let added = add_one_of_each(&store).await;
    for name in ["one", "two"] {
        store.secrets.shared_secret(name, &SecretToken::generate(&OsRandomness)).await.unwrap();
    }
    let swap = "UPDATE shared_secrets SET secret = (SELECT secret FROM shared_secrets WHERE name = 'one') \
        WHERE name = 'two'";
    database.raw(swap).await.unwrap();
    let summary = store.encryption.rotate_encryption_key(key(2).id()).await.unwrap();
    assert_eq!((summary.rotated, summary.failed.len()), (8, 1), "{summary:?}");
    assert!(summary.failed[0].starts_with("shared_secrets.secret: "), "{summary:?}");
    assert_all_readable(&store, &added).await;
    let by_key = [(key(1).id().to_string(), 1), (key(2).id().to_string(), 8)];
    assert_eq!(secrets_by_key(&store).await, BTreeMap::from(by_key));
}

pub async fn rotation_to_an_unknown_key_changes_nothing(database: Arc<AnyDatabase>) {
    let store = node(&database, &keys(&[1])).await;
    let added = add_one_of_each(&store).await;
    let error = store.encryption.rotate_encryption_key(key(2).id()).await.unwrap_err();
    assert!(matches!(error, DbError::Secret(SecretError::UnknownKey { .. })), "{error:?}");
    assert_eq!(store.encryption.current_encryption_key().await.unwrap(), Some(key(1).id()));
    assert_all_readable(&store, &added).await;
}

pub async fn rotation_without_the_current_key_changes_nothing(database: Arc<AnyDatabase>) {
    let store = node(&database, &keys(&[1])).await;
    let added = add_one_of_each(&store).await;
    let with_another_file = node(&database, &keys(&[2])).await;
    let error = with_another_file.encryption.rotate_encryption_key(key(2).id()).await.unwrap_err();
    assert!(matches!(error, DbError::Secret(SecretError::UnknownKey { .. })), "{error:?}");
    assert!(error.to_string().contains(&key(1).id().to_string()), "{error}");
    assert_eq!(store.encryption.current_encryption_key().await.unwrap(), Some(key(1).id()));
    assert_all_readable(&store, &added).await;
}

pub async fn rotations_at_the_same_time_lose_no_secret(database: Arc<AnyDatabase>) {
    let key_file = keys(&[1]);
    let stores = [node(&database, &key_file).await, node(&database, &key_file).await];
    let added = add_one_of_each(&stores[0]).await;
    let secrets = add_shared_secrets(&stores[0], "secret").await;
    key_file.replace(vec![key(3), key(2), key(1)]);
    let rotate = |store: &Arc<Store>, seed: u64| {
        let store = Arc::clone(store);
        tokio::spawn(async move { store.encryption.rotate_encryption_key(key(seed).id()).await })
    };
    for rotation in [rotate(&stores[0], 2), rotate(&stores[1], 3)] {
        match rotation.await.unwrap() {
            Ok(summary) => assert_eq!(summary.failed, Vec::<String>::new()),
            Err(DbError::Secret(SecretError::OtherRotation { .. })) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_unchanged(&stores[0], &secrets).await;
    stores[1].encryption.rotate_encryption_key(key(3).id()).await.unwrap();
    let expected = BTreeMap::from([(key(3).id().to_string(), secrets.len() as u64 + 7)]);
    assert_eq!(secrets_by_key(&stores[0]).await, expected);
    let with_the_last_key = node(&database, &keys(&[3])).await;
    assert_unchanged(&with_the_last_key, &secrets).await;
    assert_all_readable(&with_the_last_key, &added).await;
}

pub async fn webhooks_are_listed_without_their_secrets(database: Arc<AnyDatabase>) {
    let store = node(&database, &keys(&[1])).await;
    store.webhooks.add_webhook(permit(), &webhook(1)).await.unwrap();
    let without = node(&database, &keys(&[])).await;
    let listed = without.webhooks.list_webhooks().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert!(without.webhooks.webhook_by_id(&listed[0].id).await.is_err());
    // One secret that does not decrypt must not keep alerts from all other receivers.
    store.webhooks.add_webhook(permit(), &webhook(2)).await.unwrap();
    let swap = "UPDATE webhooks SET secret = (SELECT secret FROM webhooks WHERE id = 'wh_001') \
        WHERE id = 'wh_002'";
    database.raw(swap).await.unwrap();
    assert!(store.webhooks.webhook_by_id("wh_002").await.is_err());
    assert_eq!(store.webhooks.list_webhooks().await.unwrap().len(), 2);
}
