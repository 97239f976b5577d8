//! The portal's one error type, and the only place where errors of the store become pages. What a handler knows better, because
//! it knows what was asked for, it says before it comes to this.

use crate::when::{in_utc, long_month};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use chancery_domain::{ClientId, InvoiceNumber, MoneyError};
use chancery_store::{AccountError, ClientError, DbError, InvoiceError, LedgerError, PersonError};
use chancery_web::ErrorPage;
use std::io;
use std::ops::{Deref, DerefMut};
use tokio::task::JoinError;

/// A handler's `Err`: the error page, whatever it came from. It is a type of its own so that `?` turns other crates' errors into
/// pages in the portal's words.
#[derive(Debug)]
pub(crate) struct PageError(ErrorPage);

impl Deref for PageError {
    type Target = ErrorPage;

    fn deref(&self) -> &ErrorPage {
        &self.0
    }
}

impl DerefMut for PageError {
    fn deref_mut(&mut self) -> &mut ErrorPage {
        &mut self.0
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

impl From<ErrorPage> for PageError {
    fn from(page: ErrorPage) -> Self {
        Self(page)
    }
}

/// Before anything of a file was sent.
impl From<io::Error> for PageError {
    fn from(error: io::Error) -> Self {
        Self(ErrorPage::internal(format!("a line of a file cannot be written: {error}")))
    }
}

/// Amounts that no document of ours can have.
impl From<MoneyError> for PageError {
    fn from(error: MoneyError) -> Self {
        Self(ErrorPage::internal(error.to_string()))
    }
}

impl From<JoinError> for PageError {
    fn from(error: JoinError) -> Self {
        Self(ErrorPage::internal(error.to_string()))
    }
}

impl From<DbError> for PageError {
    fn from(error: DbError) -> Self {
        Self(match &error {
            DbError::Unavailable(_) | DbError::DiskFull(_) | DbError::ReadOnly(_) => {
                ErrorPage::unavailable(error.to_string())
            }
            _ => ErrorPage::internal(error.to_string()),
        })
    }
}

impl From<PersonError> for PageError {
    fn from(error: PersonError) -> Self {
        match error {
            // Whoever asks; about somebody else, `about_colleague` is asked first.
            PersonError::PersonRemoved(_) | PersonError::NoSuchPerson(_) => {
                person_removed().logged(error.to_string()).into()
            }
            PersonError::LastPartner => last_partner().into(),
            PersonError::Database(error) => error.into(),
        }
    }
}

impl From<ClientError> for PageError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::NoSuchClient(_) => no_such_client().into(),
            ClientError::NoSuchPerson(_) => person_removed().logged(error.to_string()).into(),
            ClientError::OwnerChanged(_) | ClientError::TooManyEntries { .. } => {
                ErrorPage::internal(error.to_string()).into()
            }
            ClientError::Database(error) => error.into(),
        }
    }
}

impl From<LedgerError> for PageError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::NoSuchAccountId(_) => no_such_account().into(),
            LedgerError::Database(error) => error.into(),
            error => ErrorPage::internal(error.to_string()).into(),
        }
    }
}

impl From<AccountError> for PageError {
    fn from(error: AccountError) -> Self {
        Self(match &error {
            AccountError::NoSuchAccountId(_) => no_such_account(),
            AccountError::NoSuchKey => no_such_key(),
            AccountError::AccountClosed(name) => {
                let reason = format!("{name} is closed, so no key can bill it. Nothing was changed.");
                ErrorPage::conflict("account_closed", "This account is closed", reason)
                    .advice("Choose another account, or make a new one.")
                    .next_link("/accounts", "Go to the accounts")
            }
            AccountError::KeyRevoked(prefix) => {
                let reason = format!(
                    "{prefix} was revoked meanwhile, and a revoked key never works again. Nothing was changed."
                );
                ErrorPage::conflict("key_revoked", "This key is revoked", reason)
                    .advice("Make a new key in its place.")
                    .next_link("/accounts", "Go to the accounts")
            }
            _ => match error {
                AccountError::Database(error) => return error.into(),
                error => ErrorPage::internal(error.to_string()),
            },
        })
    }
}

impl From<InvoiceError> for PageError {
    fn from(error: InvoiceError) -> Self {
        Self(match &error {
            InvoiceError::NoSuchAccountId(_) => no_such_account(),
            InvoiceError::NoSuchInvoice(_) => no_such_invoice(),
            InvoiceError::MonthStillOpen { month } => {
                let reason = format!(
                    "{} is still running, or requests of it are still under way. Nothing was issued.",
                    long_month(*month)
                );
                ErrorPage::conflict("month_still_open", "This month cannot be invoiced yet", reason)
                    .advice(format!("It can be issued from {} on.", in_utc(month.can_be_issued_from())))
                    .next_link("/invoices", "Go to the invoices")
            }
            InvoiceError::NothingToBill { account, month } => {
                let reason =
                    format!("{account} used nothing in {} (UTC). Nothing was issued.", long_month(*month));
                ErrorPage::conflict("nothing_to_bill", "There is nothing to invoice", reason)
                    .next_link("/invoices", "Go to the invoices")
            }
            InvoiceError::InvoiceIsVoid(number) => invoice_is_void(*number),
            InvoiceError::CreditRefused { number, why } => {
                let reason = format!("Invoice {number} was not credited: {why}.");
                ErrorPage::conflict("credit_refused", "This cannot be credited", reason)
                    .next_link(format!("/invoices/{number}"), "Go to the invoice")
            }
            InvoiceError::CreditedMeanwhile(number) => {
                let reason =
                    format!("Another credit note was made for invoice {number}. Nothing was issued.");
                ErrorPage::conflict("credited_meanwhile", "This invoice was credited meanwhile", reason)
                    .next_link(format!("/invoices/{number}"), "Go to the invoice")
            }
            InvoiceError::DocumentFailed { .. } => {
                let mut page = ErrorPage::internal(error.to_string());
                page.reason = "The document could not be made, so nothing was issued.".to_owned();
                page
            }
            _ => match error {
                InvoiceError::Database(error) => return error.into(),
                error => ErrorPage::internal(error.to_string()),
            },
        })
    }
}

/// What the store says of a colleague, and not of the one who asks.
pub(crate) fn about_colleague(error: PersonError) -> PageError {
    match error {
        PersonError::NoSuchPerson(_) | PersonError::PersonRemoved(_) => no_such_colleague().into(),
        error => error.into(),
    }
}

/// What the store says of the account that a month is invoiced to.
pub(crate) fn about_month(error: InvoiceError) -> PageError {
    match error {
        InvoiceError::NoSuchAccountId(_) => no_such_buyer().into(),
        error => error.into(),
    }
}

/// One answer for a client that is somebody else's, for a number that is no client's, and for a page that is not for this
/// person's role.
pub(crate) fn forbidden() -> ErrorPage {
    let reason = "It may belong to another consultant, or it may not exist. We do not say which.";
    ErrorPage::new(StatusCode::FORBIDDEN, "forbidden", "You cannot open this page", reason)
        .advice(
            "If you need it for your work, ask a partner to assign the client to you. If you typed the address, check it.",
        )
        .next_link("/clients", "Go to your clients")
}

fn person_removed() -> ErrorPage {
    let reason = "The firm has taken you out of its client portal, so you cannot sign in.";
    ErrorPage::new(StatusCode::FORBIDDEN, "person_removed", "You are no longer in this portal", reason)
        .advice("If that is a mistake, ask the firm's administrator, who can let you in again.")
        .next_link("/auth/sign-in?as=someone-else", "Sign in as someone else")
}

/// For those who may read every client: there is none of this number.
pub(crate) fn no_such_client() -> ErrorPage {
    ErrorPage::missing("There is no such client", "No client of the firm has this number.")
        .advice("If you typed it, check it.")
        .next_link("/clients", "Go to the clients")
}

/// A client has no entry of this number. Whether another client has, nobody learns here.
pub(crate) fn no_such_entry(client: ClientId) -> ErrorPage {
    ErrorPage::missing("There is no such entry", "This client has no entry of this number.")
        .advice("If a link led here, it is out of date.")
        .next_link(format!("/clients/{client}"), "Go to the client")
}

/// For those who may see every account: there is none of this number.
pub(crate) fn no_such_account() -> ErrorPage {
    no_such_buyer().next_link("/accounts", "Go to the accounts")
}

/// The same among the invoices.
pub(crate) fn no_such_buyer() -> ErrorPage {
    ErrorPage::missing("There is no such account", "No account of the firm has this number.")
        .advice("If you typed it, check it.")
        .next_link("/invoices", "Go to the invoices")
}

pub(crate) fn no_such_key() -> ErrorPage {
    ErrorPage::missing("There is no such key", "No key of the firm begins like this. Nothing was changed.")
        .advice("If you typed it, check it.")
        .next_link("/accounts", "Go to the accounts")
}

pub(crate) fn no_such_invoice() -> ErrorPage {
    ErrorPage::missing("There is no such invoice", "No invoice of the firm has this number.")
        .advice("If you typed it, check it: a number looks like 2026-0031.")
        .next_link("/invoices", "Go to the invoices")
}

pub(crate) fn invoice_is_void(number: InvoiceNumber) -> ErrorPage {
    let reason = format!(
        "Invoice {number} was credited as a whole, so nothing is left of it to do. Nothing was changed."
    );
    ErrorPage::conflict("invoice_is_void", "This invoice is void", reason)
        .next_link(format!("/invoices/{number}"), "Go to the invoice")
}

pub(crate) fn no_such_colleague() -> ErrorPage {
    let reason = "Nobody in the team has this number, or they were removed meanwhile. Nothing was changed.";
    ErrorPage::new(StatusCode::NOT_FOUND, "no_such_person", "There is nobody with this number", reason)
        .advice("Open the team again, and choose somebody who is there.")
        .next_link("/team", "Go to the team")
}

fn last_partner() -> ErrorPage {
    let reason = "This is the last one: without a partner, nobody could manage the team or read the audit. Nothing was changed.";
    ErrorPage::conflict("last_partner", "The firm needs a partner", reason)
        .advice("Make somebody else a partner first, then do this again.")
        .next_link("/team", "Go to the team")
}
