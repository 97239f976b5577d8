//! Invoices as the rest of Chancery sees them.

use crate::UsageTotals;
use chancery_domain::{
    AccountId, AccountName, Buyer, CreditAmount, Credited, Currency, Day, Invoice, InvoiceEvent, InvoiceKind,
    InvoiceNumber, InvoiceState, InvoiceTerms, MinorUnits, ModelUsage, Month, UnixMillis,
};

/// Invoices, and months that are not invoiced yet, on one page of their list.
pub const INVOICES_PER_PAGE: u32 = 25;

/// Makes the document of an invoice that has just got its number. It runs within the step that issues it, so that there is
/// never one without the other; an error undoes the step.
pub type Render<'a> = &'a (dyn Fn(&Invoice) -> Result<Vec<u8>, String> + Send + Sync);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceQuery {
    pub account: Option<AccountId>,
    /// None: all, and credit notes too, which no other lists. `Draft` lists no invoices, only months that are not invoiced.
    pub state: Option<InvoiceState>,
    /// In which they were issued.
    pub year: Option<i16>,
    /// The first is 1.
    pub page: u32,
    /// What is due before this day is overdue.
    pub today: Day,
}

/// An invoice or credit note on a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedInvoice {
    pub number: InvoiceNumber,
    pub kind: InvoiceKind,
    pub account: AccountId,
    pub buyer: AccountName,
    pub month: Month,
    pub issued_at: UnixMillis,
    pub due: Day,
    pub currency: Currency,
    pub total: MinorUnits,
    pub credited: Credited,
    pub state: InvoiceState,
}

/// A month in which an account has used something, and which no invoice bills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnbilledMonth {
    pub account: AccountId,
    pub name: AccountName,
    pub month: Month,
    pub totals: UsageTotals,
}

/// What the invoices of one currency come to, of all that fit the query, on whichever page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceSums {
    pub currency: Currency,
    /// Totals less what was credited, void ones and credit notes left out.
    pub billed: MinorUnits,
    /// Of those the ones that are not paid.
    pub outstanding: MinorUnits,
    /// Of those the ones whose day has passed.
    pub overdue: MinorUnits,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InvoicePage {
    /// The latest number first.
    pub invoices: Vec<ListedInvoice>,
    /// How many fit the query.
    pub total: u64,
    pub sums: Vec<InvoiceSums>,
    /// The newest month first; of one month by account. Where `state` is something else than `Draft`, there are none. The year is
    /// that of the month. Only on the first page, up to `INVOICES_PER_PAGE`, unless `state` is `Draft`: then it is these that have
    /// pages.
    pub unbilled: Vec<UnbilledMonth>,
    /// How many there are.
    pub unbilled_total: u64,
}

/// What an account has used in a month, and who would be billed for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonthToBill {
    pub buyer: Buyer,
    pub month: Month,
    pub usage: Vec<ModelUsage>,
    /// The invoice that bills it, if there is one that is not void.
    pub invoice: Option<InvoiceNumber>,
}

/// An invoice with what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceRecord {
    pub invoice: Invoice,
    pub state: InvoiceState,
    pub credited: Credited,
    /// The oldest first.
    pub events: Vec<InvoiceEvent>,
    /// SHA-256 of the document as it was issued.
    pub document_hash: [u8; 32],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssueOrder {
    pub account: AccountId,
    pub month: Month,
    pub terms: InvoiceTerms,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Issued {
    New(InvoiceNumber),
    /// Somebody else was quicker, or it was issued long ago. Nothing was changed.
    Already(InvoiceNumber),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreditOrder {
    pub invoice: InvoiceNumber,
    pub amount: CreditAmount,
    /// What was credited of it as far as whoever orders this knows, so that an order that is sent twice credits once.
    pub credited_before: Credited,
    /// As the note gives it.
    pub reason: String,
    /// Who sends it, as it is now; currency and tax are those of the invoice.
    pub terms: InvoiceTerms,
}

/// What is done with an invoice that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaymentDeed {
    Paid,
    TakenBack,
}
