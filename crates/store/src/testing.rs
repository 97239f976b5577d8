//! Accounts and keys for tests, of every crate: created and changed as the command line does it, with the operator's permit. Only
//! with the feature `testing`; the product is built without it.

use crate::{
    AccountDeed, AccountDone, AccountError, AccountSubject, DatabaseUrl, LimitsChange, NewAccount, NewKey,
    OpenError, Store,
};
use chancery_domain::{Account, AccountId, AccountName, Asker, Key, KeyPrefix, RequestId, UnixMillis};
use chancery_policy::{Asking, ManageAccounts, Policy, TheFirm};
use std::path::Path;
use std::sync::LazyLock;

/// Under which these decisions are on record, for tests that count others.
pub const REQUEST_ID: &str = "req_setup";

static POLICY: LazyLock<Policy> =
    LazyLock::new(|| Policy::load().unwrap_or_else(|error| panic!("the policy cannot be loaded: {error}")));

fn changed_account(done: AccountDone) -> Account {
    match done.subject {
        AccountSubject::Account(account) => account,
        AccountSubject::Key(key) => panic!("the key {} was changed", key.prefix),
    }
}

fn changed_key(done: AccountDone) -> Key {
    match done.subject {
        AccountSubject::Key(key) => key,
        AccountSubject::Account(account) => panic!("the account {} was changed", account.name),
    }
}

impl Store {
    /// Like `open`, for a SQLite file.
    pub async fn open_file(file: &Path) -> Result<Self, OpenError> {
        Self::open(&DatabaseUrl::sqlite_file(file)).await
    }

    pub async fn change_account(
        &self,
        at: UnixMillis,
        change: AccountDeed,
    ) -> Result<AccountDone, AccountError> {
        let request_id = RequestId::from_stored(REQUEST_ID.to_owned());
        let decision =
            POLICY.decide::<ManageAccounts>(&Asking { by: Asker::Operator, at, request_id }, TheFirm);
        let permit = decision.unwrap_or_else(|_| panic!("the operator may not manage accounts"));
        self.accounts.do_with_account(permit, change).await
    }

    pub async fn create_account(&self, new: NewAccount) -> Result<Account, AccountError> {
        self.change_account(new.created_at, AccountDeed::Make(new)).await.map(changed_account)
    }

    pub async fn set_limits(
        &self,
        account: &AccountName,
        change: LimitsChange,
    ) -> Result<Account, AccountError> {
        let account = self.account_lookup.account_named(account).await?.id;
        let change = AccountDeed::SetLimits { account, change };
        self.change_account(UnixMillis(0), change).await.map(changed_account)
    }

    pub async fn close_account(
        &self,
        account: &AccountName,
        at: UnixMillis,
    ) -> Result<Account, AccountError> {
        let account = self.account_lookup.account_named(account).await?.id;
        self.change_account(at, AccountDeed::Close(account)).await.map(changed_account)
    }

    pub async fn create_key(&self, new: NewKey) -> Result<Key, AccountError> {
        self.change_account(new.created_at, AccountDeed::MakeKey(new)).await.map(changed_key)
    }

    pub async fn attach_key(&self, key: &KeyPrefix, account: AccountId) -> Result<Key, AccountError> {
        let change = AccountDeed::AttachKey { key: key.clone(), account };
        self.change_account(UnixMillis(0), change).await.map(changed_key)
    }

    pub async fn revoke_key(&self, key: &KeyPrefix, at: UnixMillis) -> Result<Key, AccountError> {
        self.change_account(at, AccountDeed::RevokeKey(key.clone())).await.map(changed_key)
    }
}
