//! What prevents an invoice from being issued: no billing address, or text that the fonts cannot print. Checked on the preview,
//! on the page that asks for confirmation, and again in the transaction that issues the invoice.

use crate::error::PageError;
use crate::state::Portal;
use crate::unprintable::{UNPRINTABLE_ADVICE, unprintable_sentence};
use chancery_domain::{AccountId, Invoice, Month};
use chancery_invoicing::{UnprintableText, unprintable_text};
use chancery_web::ErrorPage;

pub(super) enum IssueProblem {
    NoAddress(AccountId, Month),
    Unprintable(Vec<UnprintableText>),
}

impl IssueProblem {
    /// Fails if a font cannot be loaded.
    pub(super) fn of(portal: &Portal, invoice: &Invoice) -> Result<Option<Self>, String> {
        if invoice.buyer.address.as_str().is_empty() {
            return Ok(Some(Self::NoAddress(invoice.buyer.account, invoice.month)));
        }
        let texts = unprintable_text(invoice, &portal.settings.pdf_fonts)?;
        Ok((!texts.is_empty()).then_some(Self::Unprintable(texts)))
    }
}

impl From<IssueProblem> for ErrorPage {
    fn from(problem: IssueProblem) -> Self {
        match problem {
            IssueProblem::NoAddress(account, month) => {
                let reason = "An invoice needs the billing address of its account. Nothing was issued.";
                ErrorPage::conflict("no_billing_address", "No billing address", reason)
                    .advice("Add the address, then issue the invoice.")
                    .next_link(address_form(account, month), "Add address")
            }
            IssueProblem::Unprintable(texts) => {
                let reason = format!("{} Nothing was issued.", unprintable_sentence(&texts));
                ErrorPage::conflict("unprintable_text", "Text cannot be printed", reason)
                    .advice(UNPRINTABLE_ADVICE)
                    .next_link("/invoices", "Go to invoices")
            }
        }
    }
}

/// The form for an account's billing address. Once it is saved, it leads to the draft.
pub(super) fn address_form(account: AccountId, month: Month) -> String {
    format!("/accounts/{account}?open=billing&draft={month}#billing")
}

pub(super) fn unprintable(portal: &Portal, invoice: &Invoice) -> Result<Vec<UnprintableText>, PageError> {
    unprintable_text(invoice, &portal.settings.pdf_fonts).map_err(|error| ErrorPage::internal(error).into())
}
