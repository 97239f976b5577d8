//! A firm with one account and one key, on either database.

use chancery_alerts::{AlertChecker, generate_webhook_secret};
use chancery_domain::{
    Account, ApiKey, Clock, ContactEmail, Currency, EventOrigin, Identity, Key, KeyLimits, ManualClock,
    Month, Nanos, OsRandomness, Prices, Principal, RateLimits, RequestId, Role, SecretToken, StopReason,
    TokenPrice, UnixMillis, UsageRow,
};
use chancery_policy::{AuthzRequest, FirmResource, ManageAccounts, Permit, Policy};
use chancery_store::{
    AccountChange, ActivityBatch, AlertSubject, BillingChange, CapChange, CapRejection, LimitsChange,
    MessageKind, NewAccount, NewKey, NewMessage, SendOutcome, Store, VerifiedIdentity, Webhook,
};
use chancery_test_support::PostgresDatabase;
use std::sync::Arc;
use std::time::Duration;

/// Noon of 2026-11-15 UTC.
pub const NOON: UnixMillis = UnixMillis(1_794_744_000_000);
pub const CAP: Nanos = Nanos(1_000);

pub struct TestFirm {
    pub store: Store,
    pub clock: Arc<ManualClock>,
    pub account: Account,
    checker: AlertChecker,
    _folder: tempfile::TempDir,
    _postgres: Option<PostgresDatabase>,
}

impl TestFirm {
    pub async fn on_sqlite() -> Self {
        Self::open(None).await
    }

    pub async fn on_postgres() -> Self {
        Self::open(Some(PostgresDatabase::create("alerts"))).await
    }

    async fn open(postgres: Option<PostgresDatabase>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = match &postgres {
            Some(database) => Store::open_for_test(&database.url().parse().unwrap()).await.unwrap(),
            None => Store::open_file(&folder.path().join("chancery.db")).await.unwrap(),
        };
        let clock = Arc::new(ManualClock::at(NOON));
        let shared: Arc<dyn Clock> = clock.clone();
        let checker = AlertChecker::new(store.alerting(), Currency::USD, shared, Arc::new(OsRandomness));
        let limits = RateLimits { requests_per_min: 60, tokens_per_min: 60_000 };
        let new = NewAccount { name: "Hale & Ward".parse().unwrap(), limits, created_at: NOON };
        let account = store.create_account(new).await.unwrap();
        Self { store, clock, account, checker, _folder: folder, _postgres: postgres }
    }

    pub async fn set_cap(&self, cap: Nanos) {
        let change = LimitsChange { spend_per_month: CapChange::Set(cap), ..LimitsChange::default() };
        self.store.set_limits(&self.account.name, change).await.unwrap();
    }

    /// Sets an address that an earlier version may have stored.
    pub async fn set_billing_email(&self, email: &str) {
        let email = Some(ContactEmail::from_stored(email.to_owned()));
        let change = BillingChange { address: None, email };
        let change = AccountChange::SetBilling { account: self.account.id, change };
        self.store.change_account(NOON, change).await.unwrap();
    }

    pub async fn key(&self, limits: KeyLimits) -> Key {
        let key = ApiKey::generate(&OsRandomness);
        let new = NewKey {
            prefix: key.prefix(),
            hash: key.hash(),
            label: "backend".to_owned(),
            account: Some(self.account.id),
            created_at: NOON,
            limits,
        };
        self.store.create_key(new).await.unwrap()
    }

    pub async fn person(&self, name: &str, role: Role) {
        let identity = Identity { issuer: "https://id.example".to_owned(), subject: name.to_owned() };
        let email = format!("{name}@example.com").parse().unwrap();
        let origin =
            EventOrigin { ip: None, at: NOON, request_id: RequestId::from_stored("req_1".to_owned()) };
        self.store.people.sign_in(VerifiedIdentity { identity, email, role, origin }).await.unwrap();
    }

    pub async fn webhook(&self, id: &str, url: &str) {
        let webhook = Webhook {
            id: id.to_owned(),
            url: url.to_owned(),
            secret: generate_webhook_secret(&OsRandomness),
            created_at: NOON,
            disabled_at: None,
        };
        self.store.webhooks.add_webhook(permit(), &webhook).await.unwrap();
    }

    /// Spends this much now. At least 2.
    pub async fn spend(&self, key: &Key, cost: u32) {
        let price = TokenPrice::from_nanos_per_token(1);
        let row = UsageRow {
            request_id: RequestId::new(self.clock.now(), &OsRandomness),
            account: self.account.id,
            key: key.id,
            model: "smollm2-135m".to_owned(),
            input_tokens: 1,
            cached_input_tokens: 0,
            output_tokens: cost - 1,
            prices: Prices { input: price, cached_input: price, output: price },
            cost: Nanos(i64::from(cost)),
            at: self.clock.now(),
            stop_reason: StopReason::Complete,
        };
        self.store.ledger.settle(row.into()).await.unwrap();
    }

    pub async fn reject(&self, subject: AlertSubject, cap: Nanos) {
        let month = Month::containing(self.clock.now());
        let rejected = [(CapRejection { subject, month, cap }, self.clock.now())];
        let batch = ActivityBatch { cap_rejections: &rejected, ..ActivityBatch::default() };
        self.store.activity.record_activity(batch).await.unwrap();
    }

    /// Checks once and returns what was enqueued, by destination. All of it counts as sent.
    pub async fn check(&self) -> Vec<NewMessage> {
        self.checker.check_once().await.unwrap();
        let (now, claim) = (self.clock.now(), SecretToken::generate(&OsRandomness));
        let until = now.after(Duration::from_secs(60));
        let mut messages = Vec::new();
        for kind in [MessageKind::Email, MessageKind::Webhook] {
            for claimed in
                self.store.outbox.claim_messages((kind, None), &claim, now, until, 100).await.unwrap()
            {
                assert!(self.store.outbox.finish_message(&claimed, &SendOutcome::Sent, now).await.unwrap());
                messages.push(claimed.message);
            }
        }
        messages.sort_by(|one, two| one.destination.cmp(&two.destination));
        messages
    }

    /// The subjects of the emails that a check sends to Ruth.
    pub async fn subjects(&self) -> Vec<String> {
        let messages = self.check().await;
        let mut subjects: Vec<String> = messages
            .iter()
            .filter(|message| message.destination == "ruth@example.com")
            .map(|message| {
                let email: serde_json::Value = serde_json::from_str(&message.payload).unwrap();
                email["subject"].as_str().unwrap().to_owned()
            })
            .collect();
        subjects.sort();
        subjects
    }

    pub fn account_subject(&self) -> AlertSubject {
        AlertSubject::Account(self.account.id)
    }
}

fn permit() -> Permit<ManageAccounts> {
    let request_id = RequestId::new(NOON, &OsRandomness);
    let authz_request = AuthzRequest { by: Principal::Operator, at: NOON, request_id };
    Policy::load().unwrap().decide(&authz_request, FirmResource).unwrap()
}
