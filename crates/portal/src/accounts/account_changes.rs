//! Changes of accounts: `POST /accounts` creates one, `POST /accounts/{account}/limits`, `…/billing` and `…/close` change
//! it. Limits have no version that must match: the history tells whoever comes second what was before.

use super::account::{self, Open as OpenAccount};
use super::changed::changed;
use super::forms::{BillingTyped, LimitsTyped, NewAccountTyped};
use super::list::{self, Open as OpenList};
use crate::error::PageError;
use crate::path::AccountNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::Response;
use chancery_policy::{ManageAccounts, TheFirm};
use chancery_store::{AccountDeed, AccountError, NewAccount};
use chancery_web::{ErrorPage, Form, Posted, Problems};
use std::sync::Arc;

pub(crate) async fn create(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    form: Result<Posted<NewAccountTyped>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&who, TheFirm).await?;
    let Posted(typed) = form?;
    let again = async |typed, problems| {
        let open = OpenList { new_account: Some(Form { typed, problems }), ..OpenList::default() };
        list::put_right(&portal, &who, open).await
    };
    let (name, limits) = match typed.read() {
        Ok(read) => read,
        Err(problems) => return again(typed, problems).await,
    };
    let new = NewAccount { name, limits, created_at: portal.clock.now() };
    match portal.store.accounts.do_with_account(permit, AccountDeed::Make(new)).await {
        Ok(done) => Ok(changed(done)),
        Err(AccountError::AccountNameTaken(_)) => {
            let words = "There is already an account of this name, perhaps a closed one; choose another";
            again(typed, Problems::one("name", words)).await
        }
        Err(error) => Err(error.into()),
    }
}

pub(crate) async fn limits(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    number: Result<AccountNumber, ErrorPage>,
    form: Result<Posted<LimitsTyped>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&who, TheFirm).await?;
    let (AccountNumber(id), Posted(typed)) = (number?, form?);
    match typed.read() {
        Ok(change) => {
            let deed = AccountDeed::SetLimits { account: id, change };
            Ok(changed(portal.store.accounts.do_with_account(permit, deed).await?))
        }
        Err(problems) => {
            let limits = Some(Form { typed, problems });
            account::put_right(&portal, &who, id, OpenAccount { limits, ..OpenAccount::default() }).await
        }
    }
}

pub(crate) async fn billing(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    number: Result<AccountNumber, ErrorPage>,
    form: Result<Posted<BillingTyped>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&who, TheFirm).await?;
    let (AccountNumber(id), Posted(typed)) = (number?, form?);
    match typed.read() {
        Ok(change) => {
            let deed = AccountDeed::SetBilling { account: id, change };
            Ok(changed(portal.store.accounts.do_with_account(permit, deed).await?))
        }
        Err(problems) => {
            let billing = Some(Form { typed, problems });
            account::put_right(&portal, &who, id, OpenAccount { billing, ..OpenAccount::default() }).await
        }
    }
}

pub(crate) async fn close(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    number: Result<AccountNumber, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageAccounts>(&who, TheFirm).await?;
    let AccountNumber(id) = number?;
    Ok(changed(portal.store.accounts.do_with_account(permit, AccountDeed::Close(id)).await?))
}
