//! Test helpers for all crates: accounts and keys, created and changed with the operator's permit as the command line
//! does it, and a key for the secrets. Only with the feature `testing`, which release builds do not enable.

use crate::db::query;
use crate::{
    AccountChange, AccountChangeOutcome, AccountError, AccountSubject, DatabaseUrl, DbError, EncryptionKey,
    EncryptionKeySource, KeyLimitsChange, KeyRotation, LimitsChange, NewAccount, NewKey, OpenError, Store,
};
use chancery_domain::{
    Account, AccountId, AccountName, AuditRow, Key, KeyPrefix, Principal, RequestId, UnixMillis,
};
use chancery_policy::{AuthzRequest, FirmResource, ManageAccounts, Policy};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// The request id of these decisions in the audit log, so that tests can exclude them from counts.
pub const REQUEST_ID: &str = "req_setup";

static POLICY: LazyLock<Policy> =
    LazyLock::new(|| Policy::load().unwrap_or_else(|error| panic!("the policy cannot be loaded: {error}")));

/// Encrypts the secrets in databases of tests.
pub const ENCRYPTION_KEY: &str = "a2V5IG9mIHRoZSBkYXRhYmFzZXMgaW4gdGVzdHMuLi4=";

/// Keys that a test can replace while stores use them, like the contents of a key file.
pub struct TestKeys(Mutex<Vec<EncryptionKey>>);

impl TestKeys {
    pub fn new(keys: Vec<EncryptionKey>) -> Self {
        Self(Mutex::new(keys))
    }

    pub fn replace(&self, keys: Vec<EncryptionKey>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = keys;
    }
}

impl EncryptionKeySource for TestKeys {
    fn load(&self) -> Result<Vec<EncryptionKey>, String> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn location(&self) -> String {
        "the keys of this test".to_owned()
    }
}

fn changed_account(done: AccountChangeOutcome) -> Account {
    match done.subject {
        AccountSubject::Account(account) => account,
        AccountSubject::Key(key) => panic!("the key {} was changed", key.prefix),
    }
}

fn changed_key(done: AccountChangeOutcome) -> Key {
    match done.subject {
        AccountSubject::Key(key) => key,
        AccountSubject::Account(account) => panic!("the account {} was changed", account.name),
    }
}

impl Store {
    /// Like `open`, with the key of tests.
    pub async fn open_for_test(url: &DatabaseUrl) -> Result<Self, OpenError> {
        let store = Self::open(url).await?;
        let key = ENCRYPTION_KEY.parse::<EncryptionKey>().unwrap_or_else(|error| panic!("{error}"));
        store.encryption.use_keys(Arc::new(TestKeys::new(vec![key])));
        Ok(store)
    }

    /// Like `open_for_test`, for a SQLite file.
    pub async fn open_file(file: &Path) -> Result<Self, OpenError> {
        Self::open_for_test(&DatabaseUrl::sqlite_file(file)).await
    }

    /// The rows of all audit chains, in the order in which they were written.
    pub async fn all_audit_rows(&self) -> Result<Vec<AuditRow>, DbError> {
        Ok(self.db.fetch_all(query("SELECT * FROM audit_rows ORDER BY id")).await?)
    }

    pub async fn change_account(
        &self,
        at: UnixMillis,
        change: AccountChange,
    ) -> Result<AccountChangeOutcome, AccountError> {
        let request_id = RequestId::from_stored(REQUEST_ID.to_owned());
        let decision = POLICY.decide::<ManageAccounts>(
            &AuthzRequest { by: Principal::Operator, at, request_id },
            FirmResource,
        );
        let permit = decision.unwrap_or_else(|_| panic!("the operator may not manage accounts"));
        self.accounts.change_account(permit, change).await
    }

    pub async fn create_account(&self, new: NewAccount) -> Result<Account, AccountError> {
        self.change_account(new.created_at, AccountChange::CreateAccount(new)).await.map(changed_account)
    }

    pub async fn set_limits(
        &self,
        account: &AccountName,
        change: LimitsChange,
    ) -> Result<Account, AccountError> {
        let account = self.account_lookup.account_by_name(account).await?.id;
        let change = AccountChange::SetLimits { account, change };
        self.change_account(UnixMillis(0), change).await.map(changed_account)
    }

    pub async fn close_account(
        &self,
        account: &AccountName,
        at: UnixMillis,
    ) -> Result<Account, AccountError> {
        let account = self.account_lookup.account_by_name(account).await?.id;
        self.change_account(at, AccountChange::Close(account)).await.map(changed_account)
    }

    pub async fn create_key(&self, new: NewKey) -> Result<Key, AccountError> {
        self.change_account(new.created_at, AccountChange::CreateKey(new)).await.map(changed_key)
    }

    pub async fn attach_key(&self, key: &KeyPrefix, account: AccountId) -> Result<Key, AccountError> {
        let change = AccountChange::AttachKey { key: key.clone(), account };
        self.change_account(UnixMillis(0), change).await.map(changed_key)
    }

    pub async fn set_key_limits(
        &self,
        key: &KeyPrefix,
        change: KeyLimitsChange,
    ) -> Result<Key, AccountError> {
        let change = AccountChange::SetKeyLimits { key: key.clone(), change };
        self.change_account(UnixMillis(0), change).await.map(changed_key)
    }

    pub async fn rotate_key(&self, rotation: KeyRotation) -> Result<Key, AccountError> {
        self.change_account(UnixMillis(0), AccountChange::RotateKey(rotation)).await.map(changed_key)
    }

    pub async fn revoke_key(&self, key: &KeyPrefix, at: UnixMillis) -> Result<Key, AccountError> {
        self.change_account(at, AccountChange::RevokeKey(key.clone())).await.map(changed_key)
    }
}
