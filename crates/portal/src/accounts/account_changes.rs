//! Changes to accounts: `POST /accounts` creates one, `POST /accounts/{account}/limits`, `…/billing` and `…/close` change
//! it. Limits have no version check: after two concurrent changes, the history shows what the second one replaced.

use super::account::{self, AccountFormState};
use super::changed::changed;
use super::forms::{BillingInput, LimitsInput, NewAccountInput};
use super::list::{self, ListFormState};
use crate::error::{PageError, account_not_found};
use crate::path::AccountNumber;
use crate::sign_in::session::SignedIn;
use crate::sign_in::step_up;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::Month;
use chancery_policy::{FirmResource, ManageAccounts, ReadAccounts};
use chancery_store::{AccountChange, AccountError, NewAccount};
use chancery_web::{ErrorPage, Form, PostedForm, Problems};
use std::sync::Arc;

pub(crate) async fn create(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<NewAccountInput>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&signed_in, FirmResource).await?;
    let PostedForm(typed) = form?;
    let render_again = async |typed, problems| {
        let open = ListFormState { new_account: Some(Form { typed, problems }), ..ListFormState::default() };
        list::render_with_errors(&portal, &signed_in, open).await
    };
    let (name, limits) = match typed.read() {
        Ok(read) => read,
        Err(problems) => return render_again(typed, problems).await,
    };
    let new = NewAccount { name, limits, created_at: portal.clock.now() };
    match portal.store.accounts.change_account(permit, AccountChange::CreateAccount(new)).await {
        Ok(done) => Ok(changed(done)),
        Err(AccountError::AccountNameTaken(_)) => {
            let message = "This name is taken, possibly by a closed account. Choose another.";
            render_again(typed, Problems::one("name", message)).await
        }
        Err(error) => Err(error.into()),
    }
}

pub(crate) async fn limits(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: Result<AccountNumber, ErrorPage>,
    form: Result<PostedForm<LimitsInput>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&signed_in, FirmResource).await?;
    let (AccountNumber(id), PostedForm(typed)) = (number?, form?);
    match typed.read() {
        Ok(change) => {
            let account_change = AccountChange::SetLimits { account: id, change };
            Ok(changed(portal.store.accounts.change_account(permit, account_change).await?))
        }
        Err(problems) => {
            let limits = Some(Form { typed, problems });
            let open = AccountFormState { limits, ..AccountFormState::default() };
            account::render_with_errors(&portal, &signed_in, id, open).await
        }
    }
}

pub(crate) async fn billing(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: Result<AccountNumber, ErrorPage>,
    form: Result<PostedForm<BillingInput>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&signed_in, FirmResource).await?;
    let (AccountNumber(id), PostedForm(typed)) = (number?, form?);
    let mut read = typed.read(None);
    if read.as_ref().is_err_and(|problems| problems.of("email").is_some()) {
        // An address that predates today's rule stays valid until it is changed.
        let permit = portal.permit::<ReadAccounts>(&signed_in, FirmResource).await?;
        let month = Month::containing(portal.clock.now());
        let record = portal.store.accounts.read_account(permit, id, month).await?;
        read = typed.read(Some(&record.ok_or_else(account_not_found)?.billing.email));
    }
    match read {
        Ok(change) => {
            let account_change = AccountChange::SetBilling { account: id, change };
            let done = portal.store.accounts.change_account(permit, account_change).await?;
            Ok(match typed.draft.parse::<Month>() {
                Ok(month) => Redirect::to(&format!("/invoices/drafts/{id}/{month}")).into_response(),
                Err(_) => changed(done),
            })
        }
        Err(problems) => {
            let billing = Some(Form { typed, problems });
            let open = AccountFormState { billing, ..AccountFormState::default() };
            account::render_with_errors(&portal, &signed_in, id, open).await
        }
    }
}

pub(crate) async fn close(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: Result<AccountNumber, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&signed_in, FirmResource).await?;
    let AccountNumber(id) = number?;
    step_up::ensure_recent(&portal, &signed_in, &format!("/accounts/{id}?open=close")).await?;
    Ok(changed(portal.store.accounts.change_account(permit, AccountChange::Close(id)).await?))
}
