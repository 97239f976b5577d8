//! Public types of invoices.

use crate::UsageTotals;
use chancery_domain::{
    AccountId, AccountName, Buyer, CreditAmount, Credited, Currency, Day, Invoice, InvoiceEvent, InvoiceKind,
    InvoiceNumber, InvoiceState, InvoiceTerms, MinorUnits, ModelUsage, Month, UnixMillis,
};

/// Page size of the list of invoices, and of months that are not invoiced yet.
pub const INVOICES_PER_PAGE: u32 = 25;

/// Renders the document of an invoice that has just got its number. It runs in the transaction that issues the invoice,
/// so neither exists without the other; on a thread of the database, and again if the transaction is repeated. An error rolls back.
pub type RenderInvoice = Box<dyn Fn(&Invoice) -> Result<Vec<u8>, String> + Send>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceQuery {
    pub account: Option<AccountId>,
    /// `None` lists all, and only then credit notes too. `Draft` lists no invoices, only months that are not invoiced.
    pub state: Option<InvoiceState>,
    /// The year of issue.
    pub year: Option<i16>,
    /// Starts at 1.
    pub page: u32,
    /// Invoices due before this day are overdue.
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

/// A month with usage that no invoice bills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnbilledMonth {
    pub account: AccountId,
    pub name: AccountName,
    pub month: Month,
    pub totals: UsageTotals,
}

/// Totals of one currency over all invoices that match the query, on all pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceTotals {
    pub currency: Currency,
    /// Totals minus credits, without void invoices and credit notes.
    pub billed: MinorUnits,
    /// The unpaid part of `billed`.
    pub outstanding: MinorUnits,
    /// The part of `outstanding` that is past due.
    pub overdue: MinorUnits,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InvoicePage {
    /// Newest number first.
    pub invoices: Vec<ListedInvoice>,
    /// Number of invoices that match the query.
    pub total: u64,
    pub sums: Vec<InvoiceTotals>,
    /// Newest month first, then by account. Empty if `state` is set to anything but `Draft`; here the year filter
    /// applies to the month. If `state` is `Draft` the list is paginated, otherwise it is on the first page only, up to
    /// `INVOICES_PER_PAGE`.
    pub unbilled: Vec<UnbilledMonth>,
    /// Number of unbilled months.
    pub unbilled_total: u64,
}

/// An account's usage in a month, and the buyer to bill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillableMonth {
    pub buyer: Buyer,
    pub month: Month,
    pub usage: Vec<ModelUsage>,
    /// The invoice that bills it, unless void.
    pub invoice: Option<InvoiceNumber>,
}

/// An invoice with its state and history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceRecord {
    pub invoice: Invoice,
    pub state: InvoiceState,
    pub credited: Credited,
    /// Oldest first.
    pub events: Vec<InvoiceEvent>,
    /// SHA-256 of the issued document.
    pub document_hash: [u8; 32],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssueRequest {
    pub account: AccountId,
    pub month: Month,
    pub terms: InvoiceTerms,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IssueOutcome {
    New(InvoiceNumber),
    /// It was issued before, perhaps by a concurrent request. Nothing was changed.
    AlreadyIssued(InvoiceNumber),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreditRequest {
    pub invoice: InvoiceNumber,
    pub amount: CreditAmount,
    /// The credited amount that the caller expects, so that an order sent twice credits once.
    pub expected_credited: Credited,
    /// Shown on the credit note.
    pub reason: String,
    /// The current seller; currency and tax are those of the invoice.
    pub terms: InvoiceTerms,
}

/// Marks an invoice as paid or unpaid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaymentChange {
    Paid,
    Unpaid,
}
