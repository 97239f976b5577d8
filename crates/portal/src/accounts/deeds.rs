//! What is done with accounts: `POST /accounts` makes one, `POST /accounts/{account}/limits`, `…/billing` and `…/close` change
//! it. Limits have no version that must match: the history tells whoever comes second what was before.

use super::account::{self, Open as OpenAccount};
use super::forms::{BillingTyped, Form, LimitsTyped, NewAccountTyped};
use super::list::{self, Open as OpenList};
use super::{AccountNumber, done, manage, refused};
use crate::clients::posted::Posted;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::Response;
use chancery_domain::AccountId;
use chancery_store::{AccountDeed, AccountDone, AccountSubject, NewAccount, StoreError};
use chancery_web::{Problems, Refusal};
use std::sync::Arc;

pub(crate) async fn make(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    form: Result<Posted<NewAccountTyped>, Refusal>,
) -> Result<Response, Refusal> {
    let permit = manage(&portal, &who).await?;
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
    match portal.store.do_with_account(permit, AccountDeed::Make(new)).await {
        Ok(AccountDone { subject: AccountSubject::Account(account), event }) => {
            Ok(done(Some(account.id), event))
        }
        Ok(AccountDone { subject: AccountSubject::Key(key), .. }) => {
            Err(Refusal::internal(format!("a new account is the key {}", key.prefix)))
        }
        Err(StoreError::AccountNameTaken(_)) => {
            let words = "There is already an account of this name, perhaps a closed one; choose another";
            again(typed, Problems::one("name", words)).await
        }
        Err(error) => Err(refused(&error)),
    }
}

pub(crate) async fn limits(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    number: Result<AccountNumber, Refusal>,
    form: Result<Posted<LimitsTyped>, Refusal>,
) -> Result<Response, Refusal> {
    let permit = manage(&portal, &who).await?;
    let (AccountNumber(id), Posted(typed)) = (number?, form?);
    match typed.read() {
        Ok(change) => {
            let deed = AccountDeed::SetLimits { account: id, change };
            changed(id, portal.store.do_with_account(permit, deed).await)
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
    number: Result<AccountNumber, Refusal>,
    form: Result<Posted<BillingTyped>, Refusal>,
) -> Result<Response, Refusal> {
    let permit = manage(&portal, &who).await?;
    let (AccountNumber(id), Posted(typed)) = (number?, form?);
    match typed.read() {
        Ok(change) => {
            let deed = AccountDeed::SetBilling { account: id, change };
            changed(id, portal.store.do_with_account(permit, deed).await)
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
    number: Result<AccountNumber, Refusal>,
) -> Result<Response, Refusal> {
    let permit = manage(&portal, &who).await?;
    let AccountNumber(id) = number?;
    changed(id, portal.store.do_with_account(permit, AccountDeed::Close(id)).await)
}

fn changed(id: AccountId, outcome: Result<AccountDone, StoreError>) -> Result<Response, Refusal> {
    outcome.map(|outcome| done(Some(id), outcome.event)).map_err(|error| refused(&error))
}
