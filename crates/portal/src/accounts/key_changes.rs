//! Changes to keys: `POST /accounts/{account}/keys` and `POST /accounts/keys` create one, `POST
//! /accounts/keys/{prefix}/label`, `…/limits`, `…/rotate`, `…/attach` and `…/revoke` change it. They take effect in the API within one second, because it
//! caches keys for half a second.

use super::account::{self, AccountFormState};
use super::changed::changed;
use super::forms::LabelInput;
use super::key_created::{ShownKey, ShownRotation, key_created};
use super::key_forms::{KeyLimitsForm, KeyLimitsInput, NewKeyInput, RotateInput};
use super::list::{self, ListFormState};
use crate::error::{PageError, key_already_created, key_already_rotated, key_not_found};
use crate::path::{AccountNumber, KeyName};
use crate::sign_in::session::SignedIn;
use crate::sign_in::step_up;
use crate::state::Portal;
use crate::time_format::day_and_time;
use axum::extract::State;
use axum::response::Response;
use chancery_domain::{AccountId, ApiKey, KeyPrefix};
use chancery_policy::{FirmResource, ManageAccounts};
use chancery_store::{AccountChange, AccountError, AccountSubject, KeyRotation, NewKey};
use chancery_web::{ErrorPage, Form, PostedForm, Problems};
use serde::Deserialize;
use std::sync::Arc;

/// Creates a key that bills this account.
pub(crate) async fn create_on_account(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: Result<AccountNumber, ErrorPage>,
    form: Result<PostedForm<NewKeyInput>, ErrorPage>,
) -> Result<Response, PageError> {
    create(&portal, &signed_in, number.map(|AccountNumber(id)| Some(id)), form).await
}

/// Creates a key without an account.
pub(crate) async fn create_unattached(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<NewKeyInput>, ErrorPage>,
) -> Result<Response, PageError> {
    create(&portal, &signed_in, Ok(None), form).await
}

/// Creates a key with the prefix of the form, so that sending the form again creates no second key. Without a form, two keys may
/// draw the same public prefix, though it is unlikely. Then another key is drawn, which needs its own decision.
async fn create(
    portal: &Portal,
    signed_in: &SignedIn,
    account: Result<Option<AccountId>, ErrorPage>,
    form: Result<PostedForm<NewKeyInput>, ErrorPage>,
) -> Result<Response, PageError> {
    let mut permit = portal.permit::<ManageAccounts>(signed_in, FirmResource).await?;
    let (account, PostedForm(typed)) = (account?, form?);
    step_up::ensure_recent(portal, signed_in, &format!("{}?open=key", page_of(account))).await?;
    let (label, limits) = match typed.read() {
        Ok(read) => read,
        Err(problems) => {
            let new_key = Some(Form { typed: typed.with_prefix(portal.randomness.as_ref()), problems });
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
    let form_prefix = typed.key_prefix();
    loop {
        let secret = match &form_prefix {
            Some(prefix) => ApiKey::with_new_secret(prefix, portal.randomness.as_ref()),
            None => ApiKey::generate(portal.randomness.as_ref()),
        };
        let new = NewKey {
            prefix: secret.prefix(),
            hash: secret.hash(),
            label: label.clone(),
            account,
            created_at: portal.clock.now(),
            limits: limits.clone(),
        };
        match portal.store.accounts.change_account(permit, AccountChange::CreateKey(new)).await {
            Ok(_) => {
                let is_expired = limits.is_expired(portal.clock.now());
                let shown = ShownKey { secret: &secret, account, label: &label, is_expired, rotation: None };
                return key_created(portal, signed_in, shown).await;
            }
            Err(AccountError::KeyPrefixTaken(prefix)) if form_prefix.is_some() => {
                let found = portal.store.keys.key_by_prefix(&prefix).await?.ok_or_else(key_not_found)?;
                return Err(key_already_created(&prefix, &page_of(found.key.account)).into());
            }
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
            let forms = KeyForms { label: Some(Form { typed, problems }), ..KeyForms::default() };
            render_with_errors(&portal, &signed_in, &prefix, forms).await
        }
    }
}

pub(crate) async fn limits(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    name: Result<KeyName, ErrorPage>,
    form: Result<PostedForm<KeyLimitsForm>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&signed_in, FirmResource).await?;
    let (KeyName(prefix), PostedForm(typed)) = (name?, form?);
    match typed.read() {
        Ok(change) => {
            let account_change = AccountChange::SetKeyLimits { key: prefix, change };
            Ok(changed(portal.store.accounts.change_account(permit, account_change).await?))
        }
        Err(problems) => {
            let forms = KeyForms { limits: Some((typed, problems)), ..KeyForms::default() };
            render_with_errors(&portal, &signed_in, &prefix, forms).await
        }
    }
}

/// Gives the key a new secret and shows it once, like a new key.
pub(crate) async fn rotate(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    name: Result<KeyName, ErrorPage>,
    form: Result<PostedForm<RotateInput>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&signed_in, FirmResource).await?;
    let (KeyName(prefix), PostedForm(typed)) = (name?, form?);
    let found = portal.store.keys.key_by_prefix(&prefix).await?.ok_or_else(key_not_found)?;
    let page = format!("{}?key={prefix}&open=rotate", page_of(found.key.account));
    step_up::ensure_recent(&portal, &signed_in, &page).await?;
    if typed.is_outdated(&found.key.hash) {
        return Err(key_already_rotated(&prefix, &page_of(found.key.account)).into());
    }
    let secret = ApiKey::with_new_secret(&prefix, portal.randomness.as_ref());
    let now = portal.clock.now();
    let rotation = KeyRotation {
        key: prefix.clone(),
        replaces: found.key.hash,
        hash: secret.hash(),
        overlap_ends_at: now.after(typed.overlap()),
        ends_running_overlap: typed.ends_running_overlap(),
    };
    let done = match portal.store.accounts.change_account(permit, AccountChange::RotateKey(rotation)).await {
        Err(AccountError::OverlapRunning { ends_at, .. }) => {
            let until = day_and_time(ends_at, &signed_in.local_time(&portal));
            let message = format!(
                "The key before this one works until {until}. Rotate after that, or select this to stop it now."
            );
            let problems = Problems::one("end-overlap", message);
            let forms = KeyForms { rotate: Form { typed, problems }, ..KeyForms::default() };
            return render_with_errors(&portal, &signed_in, &prefix, forms).await;
        }
        Err(AccountError::KeyAlreadyRotated(_)) => {
            return Err(key_already_rotated(&prefix, &page_of(found.key.account)).into());
        }
        outcome => outcome?,
    };
    let AccountSubject::Key(key) = done.subject else { return Err(key_not_found().into()) };
    let old_works_until = key.overlap_ends_at(now);
    let shown = ShownKey {
        secret: &secret,
        account: key.account,
        label: &key.label,
        is_expired: key.limits.is_expired(now),
        rotation: Some(ShownRotation { old_works_until }),
    };
    key_created(&portal, &signed_in, shown).await
}

/// The page that lists the keys of an account, or those without one.
fn page_of(account: Option<AccountId>) -> String {
    account.map_or_else(|| "/accounts".to_owned(), |account| format!("/accounts/{account}"))
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
        let attach = Problems::one("to", "Choose an account");
        let forms = KeyForms { attach, ..KeyForms::default() };
        return render_with_errors(&portal, &signed_in, &prefix, forms).await;
    };
    let account_change = AccountChange::AttachKey { key: prefix.clone(), account };
    match portal.store.accounts.change_account(permit, account_change).await {
        Err(AccountError::AccountClosed(_) | AccountError::NoSuchAccountId(_)) => {
            let attach = Problems::one("to", "This account was closed. Choose another.");
            let forms = KeyForms { attach, ..KeyForms::default() };
            render_with_errors(&portal, &signed_in, &prefix, forms).await
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

/// The forms of a key that are shown again.
#[derive(Default)]
struct KeyForms {
    label: Option<Form<LabelInput>>,
    limits: Option<(KeyLimitsForm, Problems)>,
    rotate: Form<RotateInput>,
    attach: Problems,
}

/// Shows the page with the key's form again.
async fn render_with_errors(
    portal: &Portal,
    signed_in: &SignedIn,
    prefix: &KeyPrefix,
    KeyForms { label: key_label, limits, rotate: key_rotate, attach }: KeyForms,
) -> Result<Response, PageError> {
    let found = portal.store.keys.key_by_prefix(prefix).await?.ok_or_else(key_not_found)?.key;
    let key = Some(prefix.to_string());
    let key_limits = limits.map(|(typed, problems)| Form {
        typed: typed.typed_over(KeyLimitsInput::of(&found.limits)),
        problems,
    });
    let is_rotating = key_rotate.problems.any();
    match found.account {
        Some(account) => {
            let key_attach = attach;
            let open = AccountFormState {
                key,
                key_label,
                key_limits,
                key_rotate,
                is_rotating,
                key_attach,
                ..AccountFormState::default()
            };
            account::render_with_errors(portal, signed_in, account, open).await
        }
        None => {
            let attach_problems = attach;
            let open = ListFormState {
                key,
                key_label,
                key_limits,
                key_rotate,
                is_rotating,
                attach_problems,
                ..ListFormState::default()
            };
            list::render_with_errors(portal, signed_in, open).await
        }
    }
}
