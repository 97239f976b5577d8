//! What is done with keys: `POST /accounts/{account}/keys` and `POST /accounts/keys` make one, `POST
//! /accounts/keys/{prefix}/label`, `…/attach` and `…/revoke` change it. They work in the API within one second, which remembers
//! keys for half of one.

use super::account::{self, Open as OpenAccount};
use super::forms::{Form, LabelTyped};
use super::key_made::key_made;
use super::list::{self, Open as OpenList};
use super::{AccountNumber, KeyName, done, manage, no_such_key, refused};
use crate::clients::posted::Posted;
use crate::failure::refused_by_store;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::Response;
use chancery_domain::{AccountId, ApiKey, Key, KeyPrefix};
use chancery_store::{AccountDeed, AccountDone, AccountSubject, NewKey, StoreError};
use chancery_web::{Problems, Refusal};
use serde::Deserialize;
use std::sync::Arc;

/// A key that bills this account.
pub(crate) async fn make_on_account(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    number: Result<AccountNumber, Refusal>,
    form: Result<Posted<LabelTyped>, Refusal>,
) -> Result<Response, Refusal> {
    make(&portal, &who, number.map(|AccountNumber(id)| Some(id)), form).await
}

/// A key that bills no account yet.
pub(crate) async fn make_unattached(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    form: Result<Posted<LabelTyped>, Refusal>,
) -> Result<Response, Refusal> {
    make(&portal, &who, Ok(None), form).await
}

/// Two keys with the same public part are unlikely, not impossible; then another is drawn, for a decision of its own.
async fn make(
    portal: &Portal,
    who: &SignedIn,
    account: Result<Option<AccountId>, Refusal>,
    form: Result<Posted<LabelTyped>, Refusal>,
) -> Result<Response, Refusal> {
    let mut permit = manage(portal, who).await?;
    let (account, Posted(typed)) = (account?, form?);
    let label = match typed.read("label") {
        Ok(label) => label,
        Err(problems) => {
            let new_key = Form { typed, problems };
            return match account {
                Some(id) => {
                    account::put_right(portal, who, id, OpenAccount { new_key, ..OpenAccount::default() })
                        .await
                }
                None => list::put_right(portal, who, OpenList { new_key, ..OpenList::default() }).await,
            };
        }
    };
    loop {
        let secret = ApiKey::generate(portal.randomness.as_ref());
        let new = NewKey {
            prefix: secret.prefix(),
            hash: secret.hash(),
            label: label.clone(),
            account,
            created_at: portal.clock.now(),
        };
        match portal.store.do_with_account(permit, AccountDeed::MakeKey(new)).await {
            Ok(_) => return key_made(portal, who, &secret, account, &label).await,
            Err(StoreError::KeyPrefixTaken(_)) => permit = manage(portal, who).await?,
            Err(error) => return Err(refused(&error)),
        }
    }
}

pub(crate) async fn label(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    name: Result<KeyName, Refusal>,
    form: Result<Posted<LabelTyped>, Refusal>,
) -> Result<Response, Refusal> {
    let permit = manage(&portal, &who).await?;
    let (KeyName(prefix), Posted(typed)) = (name?, form?);
    match typed.read("key-label") {
        Ok(label) => {
            let deed = AccountDeed::LabelKey { key: prefix, label };
            changed(portal.store.do_with_account(permit, deed).await)
        }
        Err(problems) => {
            let label = Form { typed, problems };
            put_right(&portal, &who, &prefix, Some(label), Problems::default()).await
        }
    }
}

/// The account that a key is to bill.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Chosen {
    account: String,
}

pub(crate) async fn attach(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    name: Result<KeyName, Refusal>,
    form: Result<Posted<Chosen>, Refusal>,
) -> Result<Response, Refusal> {
    let permit = manage(&portal, &who).await?;
    let (KeyName(prefix), Posted(Chosen { account })) = (name?, form?);
    let Some(account) = account.parse().ok().map(AccountId) else {
        let problems = Problems::one("to", "Choose the account that the key is to bill");
        return put_right(&portal, &who, &prefix, None, problems).await;
    };
    let deed = AccountDeed::AttachKey { key: prefix.clone(), account };
    match portal.store.do_with_account(permit, deed).await {
        Err(StoreError::AccountClosed(_) | StoreError::NoSuchAccountId(_)) => {
            let problems = Problems::one("to", "This account was closed meanwhile; choose another");
            put_right(&portal, &who, &prefix, None, problems).await
        }
        outcome => changed(outcome),
    }
}

/// A key that an account is to have.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct ChosenKey {
    key: String,
}

/// `POST /accounts/{account}/attach`: like `attach`, begun at the account.
pub(crate) async fn attach_here(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    number: Result<AccountNumber, Refusal>,
    form: Result<Posted<ChosenKey>, Refusal>,
) -> Result<Response, Refusal> {
    let permit = manage(&portal, &who).await?;
    let (AccountNumber(id), Posted(ChosenKey { key })) = (number?, form?);
    if key.is_empty() {
        let attach = Problems::one("key", "Choose the key that is to bill this account");
        return account::put_right(&portal, &who, id, OpenAccount { attach, ..OpenAccount::default() }).await;
    }
    let deed = AccountDeed::AttachKey { key: KeyPrefix::from_stored(key), account: id };
    changed(portal.store.do_with_account(permit, deed).await)
}

pub(crate) async fn revoke(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    name: Result<KeyName, Refusal>,
) -> Result<Response, Refusal> {
    let permit = manage(&portal, &who).await?;
    let KeyName(prefix) = name?;
    changed(portal.store.do_with_account(permit, AccountDeed::RevokeKey(prefix)).await)
}

fn changed(outcome: Result<AccountDone, StoreError>) -> Result<Response, Refusal> {
    match outcome {
        Ok(AccountDone { subject: AccountSubject::Key(Key { account, .. }), event }) => {
            Ok(done(account, event))
        }
        Ok(AccountDone { subject: AccountSubject::Account(account), event }) => {
            Ok(done(Some(account.id), event))
        }
        Err(error) => Err(refused(&error)),
    }
}

/// The page that the key's form stands on, again.
async fn put_right(
    portal: &Portal,
    who: &SignedIn,
    prefix: &KeyPrefix,
    key_label: Option<Form<LabelTyped>>,
    attach: Problems,
) -> Result<Response, Refusal> {
    let found = portal.store.key_with_prefix(prefix).await.map_err(|error| refused_by_store(&error))?;
    let key = Some(prefix.to_string());
    match found.ok_or_else(no_such_key)?.key.account {
        Some(account) => {
            let open = OpenAccount { key, key_label, key_attach: attach, ..OpenAccount::default() };
            account::put_right(portal, who, account, open).await
        }
        None => {
            let open = OpenList { key, key_label, attach_problems: attach, ..OpenList::default() };
            list::put_right(portal, who, open).await
        }
    }
}
