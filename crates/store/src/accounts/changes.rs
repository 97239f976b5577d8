//! What is done with accounts and keys at the desk: each deed is a step of a transaction that holds what it is about, so that
//! the line in the history tells what truly was before. Whoever holds a key and an account takes the key first.

use crate::accounts::accounts::{AccountRows, StoredAccount, StoredBilling, the_one};
use crate::accounts::history::{self as history, Line};
use crate::accounts::keys::{KeyRows, StoredKey, label_must_fit, why_not_on_account};
use crate::audit::step::Stopped;
use crate::db::both::{for_both_connections, stored_row};
use crate::db::error_codes::is_unique_violation;
use crate::{
    AccountDeed, AccountDone, AccountEventId, AccountSubject, BillingChange, BillingContact, LimitsChange,
    NewAccount, NewKey, StoreError,
};
use chancery_domain::{Account, AccountId, AccountState, Asked, Key, KeyId, KeyPrefix, KeyState};
use sqlx::{PgConnection, SqliteConnection};

/// How what a deed is about is held until the transaction ends: SQLite has one writer anyway. Requests that are being billed do
/// not wait for it.
trait HoldForDeeds {
    const ACCOUNT_TO_READ: &'static str;
    const ACCOUNT_TO_CHANGE: &'static str;
    const KEY_TO_CHANGE: &'static str;
}

impl HoldForDeeds for SqliteConnection {
    const ACCOUNT_TO_READ: &'static str = "SELECT * FROM accounts WHERE id = $1";
    const ACCOUNT_TO_CHANGE: &'static str = Self::ACCOUNT_TO_READ;
    const KEY_TO_CHANGE: &'static str = "SELECT * FROM api_keys WHERE prefix = $1";
}

impl HoldForDeeds for PgConnection {
    const ACCOUNT_TO_READ: &'static str = "SELECT * FROM accounts WHERE id = $1 FOR SHARE";
    const ACCOUNT_TO_CHANGE: &'static str = "SELECT * FROM accounts WHERE id = $1 FOR NO KEY UPDATE";
    const KEY_TO_CHANGE: &'static str = "SELECT * FROM api_keys WHERE prefix = $1 FOR NO KEY UPDATE";
}

const BILLING_OF: &str = "SELECT id, billing_address, billing_email FROM accounts WHERE id = $1";
const SET_BILLING: &str = "UPDATE accounts SET billing_address = COALESCE($2, billing_address), \
    billing_email = COALESCE($3, billing_email) WHERE id = $1 RETURNING id, billing_address, billing_email";
const SET_LABEL: &str = "UPDATE api_keys SET label = $2 WHERE id = $1";
const ADD_EVENT: &str = "INSERT INTO account_events (account_id, key_id, deed, detail, by_id, at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6) RETURNING id";

stored_row! {
    struct StoredEventId {
        id: i64,
    }
}

/// What a line of the history is about.
#[derive(Clone, Copy)]
struct AboutLine {
    account: Option<AccountId>,
    key: Option<KeyId>,
}

#[async_trait::async_trait]
pub(crate) trait AccountDeeds {
    async fn do_deed(&mut self, asked: &Asked, deed: &AccountDeed) -> Result<AccountDone, Stopped>;
}

for_both_connections! {
    impl AccountDeeds {
        async fn do_deed(&mut self, asked: &Asked, deed: &AccountDeed) -> Result<AccountDone, Stopped> {
            match deed {
                AccountDeed::Make(new) => self.make_account(asked, new).await,
                AccountDeed::SetLimits { account, change } => self.set_limits_of(asked, *account, *change).await,
                AccountDeed::SetBilling { account, change } => self.set_billing_of(asked, *account, change).await,
                AccountDeed::Close(account) => self.close_account_of(asked, *account).await,
                AccountDeed::MakeKey(new) => self.make_key(asked, new).await,
                AccountDeed::LabelKey { key, label } => self.label_key(asked, key, label).await,
                AccountDeed::AttachKey { key, account } => self.attach_key_to(asked, key, *account).await,
                AccountDeed::RevokeKey(key) => self.revoke_key_of(asked, key).await,
            }
        }
    }
}

#[async_trait::async_trait]
trait Deeds {
    /// The account, held so that nobody changes it meanwhile.
    async fn held_account(&mut self, id: AccountId) -> Result<Account, Stopped>;
    async fn held_key(&mut self, prefix: &KeyPrefix) -> Result<Key, Stopped>;
    async fn add_line(
        &mut self,
        asked: &Asked,
        about: AboutLine,
        line: Line,
    ) -> Result<AccountEventId, Stopped>;

    async fn make_account(&mut self, asked: &Asked, new: &NewAccount) -> Result<AccountDone, Stopped>;
    async fn set_limits_of(
        &mut self,
        asked: &Asked,
        id: AccountId,
        change: LimitsChange,
    ) -> Result<AccountDone, Stopped>;
    async fn set_billing_of(
        &mut self,
        asked: &Asked,
        id: AccountId,
        change: &BillingChange,
    ) -> Result<AccountDone, Stopped>;
    async fn close_account_of(&mut self, asked: &Asked, id: AccountId) -> Result<AccountDone, Stopped>;
    async fn make_key(&mut self, asked: &Asked, new: &NewKey) -> Result<AccountDone, Stopped>;
    async fn label_key(
        &mut self,
        asked: &Asked,
        key: &KeyPrefix,
        label: &str,
    ) -> Result<AccountDone, Stopped>;
    async fn attach_key_to(
        &mut self,
        asked: &Asked,
        key: &KeyPrefix,
        to: AccountId,
    ) -> Result<AccountDone, Stopped>;
    async fn revoke_key_of(&mut self, asked: &Asked, key: &KeyPrefix) -> Result<AccountDone, Stopped>;
}

fn about_account(id: AccountId) -> AboutLine {
    AboutLine { account: Some(id), key: None }
}

fn about_key(key: &Key) -> AboutLine {
    AboutLine { account: key.account, key: Some(key.id) }
}

fn done_to_account(account: Account, event: Option<AccountEventId>) -> AccountDone {
    AccountDone { subject: AccountSubject::Account(account), event }
}

fn done_to_key(key: Key, event: Option<AccountEventId>) -> AccountDone {
    AccountDone { subject: AccountSubject::Key(key), event }
}

/// What a failure means where a name must be free.
fn unless_taken(error: sqlx::Error, taken: impl FnOnce() -> StoreError) -> Stopped {
    if is_unique_violation(&error) { taken().into() } else { error.into() }
}

/// One row that a statement must have given back.
fn given_back<T>(rows: Vec<T>) -> Result<T, StoreError> {
    let missing = || StoreError::Unavailable("what was written was not given back".to_owned());
    rows.into_iter().next().ok_or_else(missing)
}

for_both_connections! {
    impl Deeds {
        async fn held_account(&mut self, id: AccountId) -> Result<Account, Stopped> {
            let found: Option<StoredAccount> =
                sqlx::query_as(Self::ACCOUNT_TO_CHANGE).bind(id.0).fetch_optional(&mut *self).await?;
            Ok(found.ok_or(StoreError::NoSuchAccountId(id))?.into_account()?)
        }

        async fn held_key(&mut self, prefix: &KeyPrefix) -> Result<Key, Stopped> {
            // PostgreSQL refuses to compare with what it cannot keep; no stored prefix holds it either.
            if prefix.as_str().contains('\0') {
                return Err(StoreError::NoSuchKey.into());
            }
            let found: Option<StoredKey> =
                sqlx::query_as(Self::KEY_TO_CHANGE).bind(prefix.as_str()).fetch_optional(&mut *self).await?;
            Ok(found.ok_or(StoreError::NoSuchKey)?.into_key()?)
        }

        async fn add_line(&mut self, asked: &Asked, about: AboutLine, line: Line) -> Result<AccountEventId, Stopped> {
            let add = sqlx::query_as(ADD_EVENT)
                .bind(about.account.map(|account| account.0))
                .bind(about.key.map(|key| key.0))
                .bind(line.deed)
                .bind(line.words)
                .bind(asked.by.person().map(|person| person.0))
                .bind(asked.at.0);
            let rows: Vec<StoredEventId> = add.fetch_all(&mut *self).await?;
            Ok(AccountEventId(given_back(rows)?.id))
        }

        async fn make_account(&mut self, asked: &Asked, new: &NewAccount) -> Result<AccountDone, Stopped> {
            let rows = self.insert_account(new).await;
            let rows = rows.map_err(|error| unless_taken(error, || StoreError::AccountNameTaken(new.name.clone())))?;
            let account = the_one(rows, &new.name)?;
            let event = self.add_line(asked, about_account(account.id), history::account_made(account.limits)).await?;
            Ok(done_to_account(account, Some(event)))
        }

        async fn set_limits_of(
            &mut self,
            asked: &Asked,
            id: AccountId,
            change: LimitsChange,
        ) -> Result<AccountDone, Stopped> {
            let before = self.held_account(id).await?;
            let after = the_one(self.update_limits(&before.name, change).await?, &before.name)?;
            let event = match history::limits_set(&before, &after) {
                None => None,
                Some(line) => Some(self.add_line(asked, about_account(id), line).await?),
            };
            Ok(done_to_account(after, event))
        }

        async fn set_billing_of(
            &mut self,
            asked: &Asked,
            id: AccountId,
            change: &BillingChange,
        ) -> Result<AccountDone, Stopped> {
            let account = self.held_account(id).await?;
            let before: Vec<StoredBilling> = sqlx::query_as(BILLING_OF).bind(id.0).fetch_all(&mut *self).await?;
            let set = sqlx::query_as(SET_BILLING)
                .bind(id.0)
                .bind(change.address.as_ref().map(|address| address.as_str()))
                .bind(change.email.as_ref().map(|email| email.as_str()));
            let after: Vec<StoredBilling> = set.fetch_all(&mut *self).await?;
            let contact = |rows| given_back(rows).map(StoredBilling::into_contact);
            let (before, after): (BillingContact, BillingContact) = (contact(before)?, contact(after)?);
            let event = match history::billing_set(&before, &after) {
                None => None,
                Some(line) => Some(self.add_line(asked, about_account(id), line).await?),
            };
            Ok(done_to_account(account, event))
        }

        async fn close_account_of(&mut self, asked: &Asked, id: AccountId) -> Result<AccountDone, Stopped> {
            let before = self.held_account(id).await?;
            let after = the_one(self.mark_closed(&before.name, asked.at).await?, &before.name)?;
            let event = match before.state {
                AccountState::Closed { .. } => None,
                AccountState::Open => Some(self.add_line(asked, about_account(id), history::account_closed()).await?),
            };
            Ok(done_to_account(after, event))
        }

        async fn make_key(&mut self, asked: &Asked, new: &NewKey) -> Result<AccountDone, Stopped> {
            label_must_fit(&new.label)?;
            if let Some(account) = new.account {
                let held: Vec<StoredAccount> =
                    sqlx::query_as(Self::ACCOUNT_TO_READ).bind(account.0).fetch_all(&mut *self).await?;
                if held.iter().all(|account| account.closed_at_ms.is_some()) {
                    return Err(why_not_on_account(held, account).into());
                }
            }
            let rows = self.insert_key(new).await;
            let rows = rows.map_err(|error| unless_taken(error, || StoreError::KeyPrefixTaken(new.prefix.clone())))?;
            let key = given_back(rows)?.into_key()?;
            let event = self.add_line(asked, about_key(&key), history::key_made(&key)).await?;
            Ok(done_to_key(key, Some(event)))
        }

        async fn label_key(&mut self, asked: &Asked, key: &KeyPrefix, label: &str) -> Result<AccountDone, Stopped> {
            label_must_fit(label)?;
            let key = self.held_key(key).await?;
            let Some(line) = history::key_labelled(&key, label) else { return Ok(done_to_key(key, None)) };
            sqlx::query(SET_LABEL).bind(key.id.0).bind(label).execute(&mut *self).await?;
            let event = self.add_line(asked, about_key(&key), line).await?;
            Ok(done_to_key(Key { label: label.to_owned(), ..key }, Some(event)))
        }

        async fn attach_key_to(
            &mut self,
            asked: &Asked,
            key: &KeyPrefix,
            to: AccountId,
        ) -> Result<AccountDone, Stopped> {
            let key = self.held_key(key).await?;
            if let KeyState::Revoked { .. } = key.state {
                return Err(StoreError::KeyRevoked(key.prefix).into());
            }
            let held: Vec<StoredAccount> =
                sqlx::query_as(Self::ACCOUNT_TO_READ).bind(to.0).fetch_all(&mut *self).await?;
            if !self.move_key(key.id, to).await? {
                return Err(why_not_on_account(held, to).into());
            }
            let to = given_back(held)?.into_account()?;
            if key.account == Some(to.id) {
                return Ok(done_to_key(key, None));
            }
            let from = match key.account {
                None => None,
                Some(from) => {
                    let from: Vec<StoredAccount> =
                        sqlx::query_as(crate::accounts::keys::ACCOUNT_WITH_ID).bind(from.0).fetch_all(&mut *self).await?;
                    Some(given_back(from)?.into_account()?)
                }
            };
            if from.is_some() {
                self.add_line(asked, about_key(&key), history::key_gone(&key, &to.name)).await?;
            }
            let line = history::key_attached(&key, from.as_ref().map(|from| &from.name));
            let key = Key { account: Some(to.id), ..key };
            let event = self.add_line(asked, about_key(&key), line).await?;
            Ok(done_to_key(key, Some(event)))
        }

        async fn revoke_key_of(&mut self, asked: &Asked, key: &KeyPrefix) -> Result<AccountDone, Stopped> {
            let key = self.held_key(key).await?;
            if let KeyState::Revoked { .. } = key.state {
                return Ok(done_to_key(key, None));
            }
            if !self.mark_revoked(key.id, asked.at).await? {
                return Err(StoreError::NoSuchKey.into());
            }
            let event = self.add_line(asked, about_key(&key), history::key_revoked(&key)).await?;
            Ok(done_to_key(Key { state: KeyState::Revoked { at: asked.at }, ..key }, Some(event)))
        }
    }
}
