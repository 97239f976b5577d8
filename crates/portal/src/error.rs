//! The portal's error type, and the only place that maps store errors to pages. A handler that knows more about the request handles
//! those errors before they get here.

use crate::time_format::{long_month, utc_text};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use chancery_domain::{
    Action, ClientId, EntryId, InvoiceNumber, KeyPrefix, MAX_LETTER_TEMPLATES, MoneyError,
};
use chancery_store::{
    AccountError, ClientError, DbError, FactorResetError, InvitationError, InvoiceError, LedgerError,
    LetterTemplateError, PersonError,
};
use chancery_web::ErrorPage;
use std::io;
use std::ops::{Deref, DerefMut};
use tokio::task::JoinError;

/// A handler's `Err`: the error page, whatever its source. A separate type, so that `?` converts other crates' errors into
/// pages with the portal's wording.
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

/// For errors before any part of a file was sent.
impl From<io::Error> for PageError {
    fn from(error: io::Error) -> Self {
        Self(ErrorPage::internal(format!("writing the file failed: {error}")))
    }
}

/// For amounts that cannot occur in our documents.
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
            DbError::PrincipalChanged(_) => access_changed().with_log_detail(error.to_string()),
            _ => ErrorPage::internal(error.to_string()),
        })
    }
}

impl From<PersonError> for PageError {
    fn from(error: PersonError) -> Self {
        match error {
            // The caller. Errors about another person go through `colleague_error` first.
            PersonError::PersonRemoved(_) | PersonError::NoSuchPerson(_) => {
                person_removed().with_log_detail(error.to_string()).into()
            }
            PersonError::LastPartner => last_partner().into(),
            PersonError::Database(error) => error.into(),
            // The team page asks.
            error @ PersonError::Unconfirmed(_) => ErrorPage::internal(error.to_string()).into(),
        }
    }
}

impl From<InvitationError> for PageError {
    fn from(error: InvitationError) -> Self {
        match error {
            InvitationError::Database(error) => error.into(),
            InvitationError::NoSuchInvitation(_) => no_such_invitation().into(),
            // The form shows these beside its fields.
            error => ErrorPage::internal(error.to_string()).into(),
        }
    }
}

impl From<FactorResetError> for PageError {
    fn from(error: FactorResetError) -> Self {
        Self(match error {
            FactorResetError::Database(error) => return error.into(),
            FactorResetError::NoSuchPerson(_) => person_not_found(),
            // The team page asks.
            FactorResetError::Unconfirmed(_) => ErrorPage::internal(error.to_string()),
            FactorResetError::OwnFactors => {
                let reason = "You cannot reset your own second factors here. Nothing was changed.";
                ErrorPage::conflict("own_factors", "Not for your own account", reason)
                    .advice(
                        "Change them on the security page of the sign-in service, or ask another partner to reset them.",
                    )
                    .next_link("/team", "Go to team")
            }
            FactorResetError::NoProviderAccount => {
                let reason =
                    "This person does not sign in at the built-in sign-in service. Nothing was changed.";
                ErrorPage::conflict("no_provider_account", "No account here", reason)
                    .advice("Reset their second factors at their sign-in service.")
                    .next_link("/team", "Go to team")
            }
        })
    }
}

impl From<ClientError> for PageError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::NoSuchClient(_) => client_not_found().into(),
            ClientError::NoSuchPerson(_) => person_removed().with_log_detail(error.to_string()).into(),
            ClientError::LetterSent { client, letter } => letter_sent(client, letter).into(),
            ClientError::OwnerChanged(_)
            | ClientError::TooManyEntries { .. }
            | ClientError::ImportIncomplete => ErrorPage::internal(error.to_string()).into(),
            ClientError::Database(error) => error.into(),
        }
    }
}

impl From<LetterTemplateError> for PageError {
    fn from(error: LetterTemplateError) -> Self {
        match error {
            LetterTemplateError::TooManyTemplates => {
                let reason = format!("There are {MAX_LETTER_TEMPLATES} letter templates. Nothing was saved.");
                ErrorPage::conflict("too_many_templates", "Too many templates", reason)
                    .advice("Delete a template that you no longer need, and try again.")
                    .next_link("/templates", "Go to letter templates")
                    .into()
            }
            LetterTemplateError::Database(error) => error.into(),
        }
    }
}

impl From<LedgerError> for PageError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::NoSuchAccountId(_) => account_not_found().into(),
            LedgerError::Database(error) => error.into(),
            error => ErrorPage::internal(error.to_string()).into(),
        }
    }
}

impl From<AccountError> for PageError {
    fn from(error: AccountError) -> Self {
        Self(match &error {
            AccountError::NoSuchAccountId(_) => account_not_found(),
            AccountError::NoSuchKey => key_not_found(),
            AccountError::AccountClosed(name) => {
                let reason = format!("{name} is closed and cannot have keys. Nothing was changed.");
                ErrorPage::conflict("account_closed", "Account closed", reason)
                    .advice("Choose another account or create one.")
                    .next_link("/accounts", "Go to accounts")
            }
            AccountError::KeyRevoked(prefix) => {
                let reason = format!("{prefix} was revoked and cannot be used again. Nothing was changed.");
                ErrorPage::conflict("key_revoked", "Key revoked", reason)
                    .advice("Create a new key.")
                    .next_link("/accounts", "Go to accounts")
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
            InvoiceError::NoSuchAccountId(_) => account_not_found(),
            InvoiceError::NoSuchInvoice(_) => invoice_not_found(),
            InvoiceError::MonthStillOpen { month } => {
                let reason = format!(
                    "{} has not ended, or its last requests are still running. Nothing was issued.",
                    long_month(*month)
                );
                ErrorPage::conflict("month_still_open", "Month not ready to invoice", reason)
                    .advice(format!("You can issue the invoice from {}.", utc_text(month.invoiceable_from())))
                    .next_link("/invoices", "Go to invoices")
            }
            InvoiceError::NothingToBill { account, month } => {
                let reason =
                    format!("{account} has no usage in {} (UTC). Nothing was issued.", long_month(*month));
                ErrorPage::conflict("nothing_to_bill", "Nothing to invoice", reason)
                    .next_link("/invoices", "Go to invoices")
            }
            InvoiceError::InvoiceIsVoid(number) => invoice_is_void(*number),
            InvoiceError::CreditRejected { number, why } => {
                let reason =
                    format!("Invoice {number} was not credited: {why}. Change the amount and try again.");
                ErrorPage::conflict("credit_refused", "Invalid credit amount", reason)
                    .next_link(format!("/invoices/{number}"), "Go to invoice")
            }
            InvoiceError::ConcurrentCredit(number) => {
                let reason =
                    format!("Someone else issued a credit note for invoice {number}. Nothing was issued.");
                ErrorPage::conflict("credited_meanwhile", "Someone else credited this invoice", reason)
                    .next_link(format!("/invoices/{number}"), "Go to invoice")
            }
            InvoiceError::DocumentFailed { .. } => {
                let mut page = ErrorPage::internal(error.to_string());
                page.reason = "The PDF could not be created. Nothing was issued.".to_owned();
                page
            }
            _ => match error {
                InvoiceError::Database(error) => return error.into(),
                error => ErrorPage::internal(error.to_string()),
            },
        })
    }
}

/// Maps store errors about another person, not the caller.
pub(crate) fn colleague_error(error: PersonError) -> PageError {
    match error {
        PersonError::NoSuchPerson(_) | PersonError::PersonRemoved(_) => person_not_found().into(),
        error => error.into(),
    }
}

/// Maps store errors about the account that a month is invoiced to.
pub(crate) fn invoice_account_error(error: InvoiceError) -> PageError {
    match error {
        InvoiceError::NoSuchAccountId(_) => invoice_account_not_found().into(),
        error => error.into(),
    }
}

/// The page for a denied action.
pub(crate) fn forbidden(action: Action) -> ErrorPage {
    let title = match action {
        Action::ReadInvoices | Action::ManageInvoices => "Only partners can open Invoices",
        Action::ReadUsage => "Only partners can open Usage",
        Action::ReadAccounts | Action::ManageAccounts => "Only partners can open Accounts",
        Action::ReadTeam | Action::ManageTeam | Action::InvitePerson | Action::ResetFactors => {
            "Only partners can open Team"
        }
        Action::ManageTemplates => "Only partners can change letter templates",
        Action::ReadAudit => "Only partners can open Audit",
        Action::ListClients
        | Action::CreateClient
        | Action::ReadClient
        | Action::EditClient
        | Action::ArchiveClient
        | Action::ReassignClient
        | Action::ExportClient => return client_forbidden(),
    };
    ErrorPage::new(StatusCode::FORBIDDEN, "forbidden", title, "Your role is consultant.")
        .advice("Ask a partner if you need access.")
        .next_link("/clients", "Go to your clients")
}

/// The same response for another consultant's client and for a client that does not exist.
fn client_forbidden() -> ErrorPage {
    let reason = "It may belong to another consultant, or it may not exist.";
    ErrorPage::new(StatusCode::FORBIDDEN, "forbidden", "You cannot open this page", reason)
        .advice(
            "If you need it for your work, ask a partner to assign the client to you. If you typed the address, check it.",
        )
        .next_link("/clients", "Go to your clients")
}

/// For a person whose role changed, or who was removed, after the policy had decided. Not a 403: an export leaves out
/// clients that are denied, and goes on.
fn access_changed() -> ErrorPage {
    let reason = "Your role changed while this was in progress. Nothing was changed.";
    ErrorPage::conflict("access_changed", "Your access changed", reason)
        .advice("Reload the page and try again.")
        .next_link("/clients", "Go to your clients")
}

fn person_removed() -> ErrorPage {
    let reason = "You were removed from the client portal, so you cannot sign in.";
    ErrorPage::new(StatusCode::FORBIDDEN, "person_removed", "Access removed", reason)
        .advice("If this is a mistake, ask a partner to restore your access.")
        .next_link("/auth/sign-in?as=someone-else", "Sign in as someone else")
}

/// For users who may read every client.
pub(crate) fn client_not_found() -> ErrorPage {
    ErrorPage::missing("Client not found", "No client has this number.")
        .advice("Check the number and try again.")
        .next_link("/clients", "Go to clients")
}

/// Does not reveal whether another client has an entry with this number.
pub(crate) fn entry_not_found(client: ClientId) -> ErrorPage {
    ErrorPage::missing("Entry not found", "This client has no entry with this number.")
        .advice("The link may be out of date.")
        .next_link(format!("/clients/{client}"), "Go to client")
}

/// Does not reveal whether the number is an entry of another kind, or of another client.
pub(crate) fn letter_not_found(client: ClientId) -> ErrorPage {
    ErrorPage::missing("Letter not found", "This client has no letter with this number.")
        .advice("The link may be out of date.")
        .next_link(format!("/clients/{client}"), "Go to client")
}

/// For a change of a letter that was sent by email.
pub(crate) fn letter_sent(client: ClientId, letter: EntryId) -> ErrorPage {
    let reason = "This letter was sent by email and cannot be changed. Nothing was saved.";
    ErrorPage::conflict("letter_sent", "Letter already sent", reason)
        .advice("Open the letter and select “Copy as new draft”.")
        .next_link(format!("/clients/{client}/letters/{letter}"), "Open letter")
}

/// `back` is the page that lists templates.
pub(crate) fn template_not_found(back: String) -> ErrorPage {
    ErrorPage::missing("Template not found", "No letter template has this number.")
        .advice("It may have been deleted. Choose another template.")
        .next_link(back, "Show templates")
}

/// For users who may see every account.
pub(crate) fn account_not_found() -> ErrorPage {
    invoice_account_not_found().next_link("/accounts", "Go to accounts")
}

/// Like `account_not_found`, with a link to the invoices.
pub(crate) fn invoice_account_not_found() -> ErrorPage {
    ErrorPage::missing("Account not found", "No account has this number.")
        .advice("Check the number and try again.")
        .next_link("/invoices", "Go to invoices")
}

/// A form for a new key was sent again. `page` lists the key.
pub(crate) fn key_already_created(prefix: &KeyPrefix, page: &str) -> ErrorPage {
    let reason = format!(
        "This form has already created the key {prefix}. A key is shown only once, so it is not shown again. No second key was created."
    );
    ErrorPage::conflict("key_already_created", "Key already created", reason)
        .advice("If you did not copy it, revoke it and create a new one.")
        .without_typed_text()
        .next_link(format!("{page}?key={prefix}#key-card"), "Go to key")
}

/// A form that rotates a key was sent again. `page` lists the key.
pub(crate) fn key_already_rotated(prefix: &KeyPrefix, page: &str) -> ErrorPage {
    let reason = format!(
        "The key {prefix} was rotated after this form was opened. A key is shown only once, so it is not shown again. Nothing was changed."
    );
    ErrorPage::conflict("key_already_rotated", "Key already rotated", reason)
        .advice("If you did not copy the new key, rotate it again.")
        .next_link(format!("{page}?key={prefix}#key-card"), "Go to key")
}

pub(crate) fn key_not_found() -> ErrorPage {
    ErrorPage::missing("Key not found", "No key has this prefix. Nothing was changed.")
        .advice("Check the prefix and try again.")
        .next_link("/accounts", "Go to accounts")
}

pub(crate) fn invoice_not_found() -> ErrorPage {
    ErrorPage::missing("Invoice not found", "No invoice has this number.")
        .advice("Check the number. Invoice numbers look like 2026-0031.")
        .next_link("/invoices", "Go to invoices")
}

pub(crate) fn invoice_is_void(number: InvoiceNumber) -> ErrorPage {
    let reason = format!("Invoice {number} was fully credited. Nothing was changed.");
    ErrorPage::conflict("invoice_is_void", "Invoice is void", reason)
        .next_link(format!("/invoices/{number}"), "Go to invoice")
}

pub(crate) fn person_not_found() -> ErrorPage {
    let reason = "This person is not on the team. Nothing was changed.";
    ErrorPage::new(StatusCode::NOT_FOUND, "no_such_person", "Person not found", reason)
        .advice("Reload the team page and choose another person.")
        .next_link("/team", "Go to team")
}

fn no_such_invitation() -> ErrorPage {
    let reason = "The invitation was used or canceled, or it has expired. Nothing was changed.";
    ErrorPage::new(StatusCode::NOT_FOUND, "no_such_invitation", "Invitation not found", reason)
        .advice("Reload the team page. You can invite the address again.")
        .next_link("/team#invitations", "Go to invitations")
}

fn last_partner() -> ErrorPage {
    let reason = "The team needs at least one partner. Nothing was changed.";
    ErrorPage::conflict("last_partner", "Last partner", reason)
        .advice("Make someone else a partner first, then try again.")
        .next_link("/team", "Go to team")
}
