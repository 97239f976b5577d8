//! Changes to keys: `POST /accounts/{account}/keys` and `POST /accounts/keys` create one, `POST
//! /accounts/keys/{prefix}/label`, `…/attach` and `…/revoke` change it. They take effect in the API within one second, because it
//! caches keys for half a second.

use super::account::{self, AccountFormState};
use super::changed::changed;
use super::forms::LabelInput;
use super::key_created::key_created;
use super::list::{self, ListFormState};
use crate::error::{PageError, key_not_found};
use crate::path::{AccountNumber, KeyName};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::Response;
use chancery_domain::{AccountId, ApiKey, KeyPrefix};
use chancery_policy::{FirmResource, ManageAccounts};
use chancery_store::{AccountChange, AccountError, NewKey};
use chancery_web::{ErrorPage, Form, PostedForm, Problems};
use serde::Deserialize;
use std::sync::Arc;

/// Creates a key that bills this account.
pub(crate) async fn create_on_account(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: Result<AccountNumber, ErrorPage>,
    form: Result<PostedForm<LabelInput>, ErrorPage>,
) -> Result<Response, PageError> {
    create(&portal, &signed_in, number.map(|AccountNumber(id)| Some(id)), form).await
}

/// Creates a key without an account.
pub(crate) async fn create_unattached(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<LabelInput>, ErrorPage>,
) -> Result<Response, PageError> {
    create(&portal, &signed_in, Ok(None), form).await
}

/// Two keys may have the same public prefix, though it is unlikely. Then another key is drawn, which needs its own decision.
async fn create(
    portal: &Portal,
    signed_in: &SignedIn,
    account: Result<Option<AccountId>, ErrorPage>,
    form: Result<PostedForm<LabelInput>, ErrorPage>,
) -> Result<Response, PageError> {
    let mut permit = portal.permit::<ManageAccounts>(signed_in, FirmResource).await?;
    let (account, PostedForm(typed)) = (account?, form?);
    let label = match typed.read("label") {
        Ok(label) => label,
        Err(problems) => {
            let new_key = Form { typed, problems };
            return match account {
                Some(id) => {
                    account::render_with_errors(
                        portal,
                        signed_in,
                        id,
                        AccountFormState { new_key, ..AccountFormState::default() },
                    )
                    .await
                }
                None => {
                    list::render_with_errors(
                        portal,
                        signed_in,
                        ListFormState { new_key, ..ListFormState::default() },
                    )
                    .await
                }
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
        match portal.store.accounts.change_account(permit, AccountChange::CreateKey(new)).await {
            Ok(_) => return key_created(portal, signed_in, &secret, account, &label).await,
            Err(AccountError::KeyPrefixTaken(_)) => {
                permit = portal.permit::<ManageAccounts>(signed_in, FirmResource).await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

pub(crate) async fn label(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    name: Result<KeyName, ErrorPage>,
    form: Result<PostedForm<LabelInput>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&signed_in, FirmResource).await?;
    let (KeyName(prefix), PostedForm(typed)) = (name?, form?);
    match typed.read("key-label") {
        Ok(label) => {
            let account_change = AccountChange::LabelKey { key: prefix, label };
            Ok(changed(portal.store.accounts.change_account(permit, account_change).await?))
        }
        Err(problems) => {
            let label = Form { typed, problems };
            render_with_errors(&portal, &signed_in, &prefix, Some(label), Problems::default()).await
        }
    }
}

/// The account to attach a key to.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct AttachForm {
    account: String,
}

pub(crate) async fn attach(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    name: Result<KeyName, ErrorPage>,
    form: Result<PostedForm<AttachForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&signed_in, FirmResource).await?;
    let (KeyName(prefix), PostedForm(AttachForm { account })) = (name?, form?);
    let Some(account) = account.parse().ok().map(AccountId) else {
        let problems = Problems::one("to", "Choose an account");
        return render_with_errors(&portal, &signed_in, &prefix, None, problems).await;
    };
    let account_change = AccountChange::AttachKey { key: prefix.clone(), account };
    match portal.store.accounts.change_account(permit, account_change).await {
        Err(AccountError::AccountClosed(_) | AccountError::NoSuchAccountId(_)) => {
            let problems = Problems::one("to", "This account was closed. Choose another.");
            render_with_errors(&portal, &signed_in, &prefix, None, problems).await
        }
        outcome => Ok(changed(outcome?)),
    }
}

/// The key to attach to an account.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct AttachKeyForm {
    key: String,
}

/// `POST /accounts/{account}/attach`: like `attach`, but from the account's page.
pub(crate) async fn attach_to_account(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: Result<AccountNumber, ErrorPage>,
    form: Result<PostedForm<AttachKeyForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&signed_in, FirmResource).await?;
    let (AccountNumber(id), PostedForm(AttachKeyForm { key })) = (number?, form?);
    if key.is_empty() {
        let attach = Problems::one("key", "Choose a key");
        return account::render_with_errors(
            &portal,
            &signed_in,
            id,
            AccountFormState { attach, ..AccountFormState::default() },
        )
        .await;
    }
    let account_change = AccountChange::AttachKey { key: KeyPrefix::from_stored(key), account: id };
    Ok(changed(portal.store.accounts.change_account(permit, account_change).await?))
}

pub(crate) async fn revoke(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    name: Result<KeyName, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&signed_in, FirmResource).await?;
    let KeyName(prefix) = name?;
    Ok(changed(portal.store.accounts.change_account(permit, AccountChange::RevokeKey(prefix)).await?))
}

/// Shows the page with the key's form again.
async fn render_with_errors(
    portal: &Portal,
    signed_in: &SignedIn,
    prefix: &KeyPrefix,
    key_label: Option<Form<LabelInput>>,
    attach: Problems,
) -> Result<Response, PageError> {
    let found = portal.store.keys.key_by_prefix(prefix).await?;
    let key = Some(prefix.to_string());
    match found.ok_or_else(key_not_found)?.key.account {
        Some(account) => {
            let open = AccountFormState { key, key_label, key_attach: attach, ..AccountFormState::default() };
            account::render_with_errors(portal, signed_in, account, open).await
        }
        None => {
            let open = ListFormState { key, key_label, attach_problems: attach, ..ListFormState::default() };
            list::render_with_errors(portal, signed_in, open).await
        }
    }
}
