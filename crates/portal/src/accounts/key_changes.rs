//! Changes of keys: `POST /accounts/{account}/keys` and `POST /accounts/keys` create one, `POST
//! /accounts/keys/{prefix}/label`, `…/attach` and `…/revoke` change it. They work in the API within one second, which remembers
//! keys for half of one.

use super::account::{self, Open as OpenAccount};
use super::changed::changed;
use super::forms::LabelTyped;
use super::key_created::key_created;
use super::list::{self, Open as OpenList};
use crate::error::{PageError, no_such_key};
use crate::path::{AccountNumber, KeyName};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::Response;
use chancery_domain::{AccountId, ApiKey, KeyPrefix};
use chancery_policy::{ManageAccounts, TheFirm};
use chancery_store::{AccountDeed, AccountError, NewKey};
use chancery_web::{ErrorPage, Form, Posted, Problems};
use serde::Deserialize;
use std::sync::Arc;

/// A key that bills this account.
pub(crate) async fn create_on_account(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    number: Result<AccountNumber, ErrorPage>,
    form: Result<Posted<LabelTyped>, ErrorPage>,
) -> Result<Response, PageError> {
    create(&portal, &who, number.map(|AccountNumber(id)| Some(id)), form).await
}

/// A key that bills no account yet.
pub(crate) async fn create_unattached(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    form: Result<Posted<LabelTyped>, ErrorPage>,
) -> Result<Response, PageError> {
    create(&portal, &who, Ok(None), form).await
}

/// Two keys with the same public part are unlikely, not impossible; then another is drawn, for a decision of its own.
async fn create(
    portal: &Portal,
    who: &SignedIn,
    account: Result<Option<AccountId>, ErrorPage>,
    form: Result<Posted<LabelTyped>, ErrorPage>,
) -> Result<Response, PageError> {
    let mut permit = portal.permit::<ManageAccounts>(who, TheFirm).await?;
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
        match portal.store.accounts.do_with_account(permit, AccountDeed::MakeKey(new)).await {
            Ok(_) => return key_created(portal, who, &secret, account, &label).await,
            Err(AccountError::KeyPrefixTaken(_)) => {
                permit = portal.permit::<ManageAccounts>(who, TheFirm).await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

pub(crate) async fn label(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    name: Result<KeyName, ErrorPage>,
    form: Result<Posted<LabelTyped>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&who, TheFirm).await?;
    let (KeyName(prefix), Posted(typed)) = (name?, form?);
    match typed.read("key-label") {
        Ok(label) => {
            let deed = AccountDeed::LabelKey { key: prefix, label };
            Ok(changed(portal.store.accounts.do_with_account(permit, deed).await?))
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
    name: Result<KeyName, ErrorPage>,
    form: Result<Posted<Chosen>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&who, TheFirm).await?;
    let (KeyName(prefix), Posted(Chosen { account })) = (name?, form?);
    let Some(account) = account.parse().ok().map(AccountId) else {
        let problems = Problems::one("to", "Choose the account that the key is to bill");
        return put_right(&portal, &who, &prefix, None, problems).await;
    };
    let deed = AccountDeed::AttachKey { key: prefix.clone(), account };
    match portal.store.accounts.do_with_account(permit, deed).await {
        Err(AccountError::AccountClosed(_) | AccountError::NoSuchAccountId(_)) => {
            let problems = Problems::one("to", "This account was closed meanwhile; choose another");
            put_right(&portal, &who, &prefix, None, problems).await
        }
        outcome => Ok(changed(outcome?)),
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
    number: Result<AccountNumber, ErrorPage>,
    form: Result<Posted<ChosenKey>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&who, TheFirm).await?;
    let (AccountNumber(id), Posted(ChosenKey { key })) = (number?, form?);
    if key.is_empty() {
        let attach = Problems::one("key", "Choose the key that is to bill this account");
        return account::put_right(&portal, &who, id, OpenAccount { attach, ..OpenAccount::default() }).await;
    }
    let deed = AccountDeed::AttachKey { key: KeyPrefix::from_stored(key), account: id };
    Ok(changed(portal.store.accounts.do_with_account(permit, deed).await?))
}

pub(crate) async fn revoke(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    name: Result<KeyName, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&who, TheFirm).await?;
    let KeyName(prefix) = name?;
    Ok(changed(portal.store.accounts.do_with_account(permit, AccountDeed::RevokeKey(prefix)).await?))
}

/// The page that the key's form stands on, again.
async fn put_right(
    portal: &Portal,
    who: &SignedIn,
    prefix: &KeyPrefix,
    key_label: Option<Form<LabelTyped>>,
    attach: Problems,
) -> Result<Response, PageError> {
    let found = portal.store.keys.key_with_prefix(prefix).await?;
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
