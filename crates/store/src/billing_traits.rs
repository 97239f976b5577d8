//! Invoices, usage and billing accounts as the portal and the command line see them. As with client records, nothing is read or
//! changed without a permit, and the decision is written down with what it allows. Long reads come right after their decision.

use crate::{LimitsChange, StoreError, UsageSum, UsageTotals};
use async_trait::async_trait;
use chancery_domain::{
    Account, AccountId, AccountName, Buyer, ContactEmail, CreditAmount, Credited, Currency, Day, Invoice,
    InvoiceEvent, InvoiceKind, InvoiceNumber, InvoiceState, InvoiceTerms, Key, KeyId, KeyPrefix, MinorUnits,
    ModelUsage, Month, PersonRef, PostalAddress, UnixMillis,
};
use chancery_policy::{ManageAccounts, ManageInvoices, Permit, ReadAccounts, ReadInvoices, ReadUsage};

/// Invoices, and months that are not invoiced yet, on one page of their list.
pub const INVOICES_PER_PAGE: u32 = 25;
/// Accounts on one page of their list.
pub const ACCOUNTS_PER_PAGE: u32 = 50;
/// Keys that are listed together. Those that are not revoked come first; a firm that has more of them has other tools.
pub const MAX_KEYS_LISTED: u32 = 200;
/// Accounts that a form offers to choose from.
pub const MAX_ACCOUNTS_OFFERED: u32 = 1_000;
/// Lines of an account's history that its page shows.
pub const MAX_ACCOUNT_EVENTS: u32 = 50;

/// Makes the document of an invoice that has just got its number. It runs within the step that issues it, so that there is
/// never one without the other; an error undoes the step.
pub type Render<'a> = &'a (dyn Fn(&Invoice) -> Result<Vec<u8>, String> + Send + Sync);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceQuery {
    pub account: Option<AccountId>,
    /// None: all. `Draft` lists no invoices, only months that are not invoiced.
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

#[async_trait]
pub trait Invoices: Send + Sync + 'static {
    async fn list_invoices(
        &self,
        permit: Permit<ReadInvoices>,
        query: &InvoiceQuery,
    ) -> Result<InvoicePage, StoreError>;

    /// None where there is no such account. A month without usage has none.
    async fn month_to_bill(
        &self,
        permit: Permit<ReadInvoices>,
        account: AccountId,
        month: Month,
    ) -> Result<Option<MonthToBill>, StoreError>;

    async fn read_invoice(
        &self,
        permit: Permit<ReadInvoices>,
        number: InvoiceNumber,
    ) -> Result<Option<InvoiceRecord>, StoreError>;

    /// The PDF, byte for byte as it was issued.
    async fn read_invoice_document(
        &self,
        permit: Permit<ReadInvoices>,
        number: InvoiceNumber,
    ) -> Result<Option<Vec<u8>>, StoreError>;

    /// Issues the invoice of a month that has ended, under the next number. However many do so at once, there is one. The moment
    /// is that of the permit. `MonthStillOpen` up to an hour after its end, `NothingToBill` without usage, `NoSuchAccountId`.
    async fn issue_invoice(
        &self,
        permit: Permit<ManageInvoices>,
        order: &IssueOrder,
        render: Render<'_>,
    ) -> Result<Issued, StoreError>;

    /// Issues a credit note under the next number. Where nothing is left of the invoice it is void, and its month can be
    /// invoiced again. `NoSuchInvoice`, also for a credit note; `CreditRefused` where there is less left, or nothing.
    async fn credit_invoice(
        &self,
        permit: Permit<ManageInvoices>,
        order: &CreditOrder,
        render: Render<'_>,
    ) -> Result<InvoiceNumber, StoreError>;

    /// Doing it again changes nothing. `NoSuchInvoice`, also for a credit note; `InvoiceIsVoid`. Gives the state that it is in now.
    async fn note_payment(
        &self,
        permit: Permit<ManageInvoices>,
        number: InvoiceNumber,
        deed: PaymentDeed,
    ) -> Result<InvoiceState, StoreError>;

    /// For those who verify them: everything that was issued, by number, a page at a time.
    async fn issued_invoices(
        &self,
        after: Option<InvoiceNumber>,
        limit: u32,
    ) -> Result<Vec<InvoiceRecord>, StoreError>;

    /// For those who verify them: the PDF as it is kept.
    async fn issued_document(&self, number: InvoiceNumber) -> Result<Option<Vec<u8>>, StoreError>;

    /// For those who verify them: the last number that was given in each year.
    async fn last_invoice_numbers(&self) -> Result<Vec<InvoiceNumber>, StoreError>;

    /// For those who verify them: which invoice is said to bill each month, of those that are.
    async fn billed_months(
        &self,
        after: Option<(AccountId, Month)>,
        limit: u32,
    ) -> Result<Vec<(AccountId, Month, InvoiceNumber)>, StoreError>;

    /// For those who verify them: what an account has used in a month, by model and prices, from the sums by day.
    async fn month_usage(&self, account: AccountId, month: Month) -> Result<Vec<ModelUsage>, StoreError>;
}

/// Requests of one key that were refused on one day, by the code that the caller got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedDay {
    /// None: the key billed no account.
    pub account: Option<AccountId>,
    pub day: Day,
    pub key: KeyId,
    /// `rate_limited`, `no_billing_account` or `spending_cap_reached`.
    pub code: String,
    pub refusals: u64,
    pub last_at: UnixMillis,
}

/// The busiest sixty seconds of an account's day, as the limits saw them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeakDay {
    pub account: AccountId,
    pub day: Day,
    pub requests: u64,
    pub requests_at: UnixMillis,
    pub tokens: u64,
    pub tokens_at: UnixMillis,
}

/// What to show of a month; of one account, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageMonth {
    pub account: Option<AccountId>,
    pub month: Month,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUsage {
    pub prefix: KeyPrefix,
    pub label: String,
    pub totals: UsageTotals,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountUsage {
    pub account: AccountId,
    pub name: AccountName,
    pub totals: UsageTotals,
}

/// Everything that the page about usage shows, from sums and never from the ledger's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageReport {
    /// The account that was asked for.
    pub account: Option<Account>,
    /// All accounts, by name, to choose from.
    pub accounts: Vec<Account>,
    /// The first month in which anything was used, by whomever.
    pub first_month: Option<Month>,
    /// Days with usage, in order.
    pub days: Vec<UsageSum>,
    /// By model.
    pub models: Vec<UsageSum>,
    pub keys: Vec<KeyUsage>,
    /// By name. Only where all accounts are asked for.
    pub by_account: Vec<AccountUsage>,
    /// Of the month before, for comparison: all of it.
    pub previous: UsageTotals,
    pub refusals: Vec<RefusedDay>,
    /// Days with a peak, in order. Only where one account is asked for.
    pub peaks: Vec<PeakDay>,
}

#[async_trait]
pub trait UsageReports: Send + Sync + 'static {
    /// `NoSuchAccountId`.
    async fn read_usage(
        &self,
        permit: Permit<ReadUsage>,
        query: UsageMonth,
    ) -> Result<UsageReport, StoreError>;

    /// Adds refusals to those of their days, and raises the peaks of theirs. Counts for people to read: what a process that dies
    /// had not noted yet is lost.
    async fn note_activity(&self, refused: &[RefusedDay], peaks: &[PeakDay]) -> Result<(), StoreError>;
}

/// An account on the list of accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountOverview {
    pub account: Account,
    pub active_keys: u64,
    /// Of the month that was asked for.
    pub month: UsageTotals,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountQuery {
    /// Whose sums to show.
    pub month: Month,
    /// The first is 1.
    pub page: u32,
}

/// An account to choose from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountChoice {
    pub id: AccountId,
    pub name: AccountName,
}

#[derive(Clone, Debug)]
pub struct AccountPage {
    /// By name, closed ones last.
    pub accounts: Vec<AccountOverview>,
    /// How many there are on all pages.
    pub total: u64,
    /// The keys that bill no account: the newest first, revoked ones last, up to `MAX_KEYS_LISTED`.
    pub unattached: Vec<KeyUse>,
    /// How many of these there are.
    pub unattached_total: u64,
    /// Open ones, by name, up to `MAX_ACCOUNTS_OFFERED`.
    pub open_accounts: Vec<AccountChoice>,
    /// What was done with keys while they billed no account: the newest first, up to `MAX_ACCOUNT_EVENTS`.
    pub events: Vec<AccountEvent>,
}

/// Where an account's invoices go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BillingContact {
    pub address: PostalAddress,
    pub email: ContactEmail,
}

/// What to change of it; `None` leaves it as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BillingChange {
    pub address: Option<PostalAddress>,
    pub email: Option<ContactEmail>,
}

/// A key as the pages show it.
#[derive(Clone, Debug)]
pub struct KeyUse {
    pub key: Key,
    /// The last day (UTC) on which something was billed to it.
    pub last_used: Option<Day>,
}

/// One line of an account's history. There is one for what has changed something, and for nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountEvent {
    pub id: AccountEventId,
    /// In plain words, in the past: "made the key ck_7f3a9x4d".
    pub deed: String,
    /// None: the command line.
    pub by: Option<PersonRef>,
    pub at: UnixMillis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccountEventId(pub i64);

#[derive(Clone, Debug)]
pub struct AccountRecord {
    pub account: Account,
    pub billing: BillingContact,
    /// The newest first, revoked ones last, up to `MAX_KEYS_LISTED`.
    pub keys: Vec<KeyUse>,
    /// How many there are.
    pub keys_total: u64,
    /// Of the month that was asked for.
    pub month: UsageTotals,
    /// The newest first, up to `MAX_ACCOUNT_EVENTS`.
    pub events: Vec<AccountEvent>,
    /// Keys that bill no account and are not revoked, the newest first, up to `MAX_KEYS_LISTED`.
    pub unattached: Vec<KeyUse>,
    /// Open ones, by name, up to `MAX_ACCOUNTS_OFFERED`.
    pub open_accounts: Vec<AccountChoice>,
}

/// What can be done with accounts and keys. Keys are named by their public part, as pages and commands name them.
#[derive(Clone, Debug)]
pub enum AccountDeed {
    Make(crate::NewAccount),
    SetLimits { account: AccountId, change: LimitsChange },
    SetBilling { account: AccountId, change: BillingChange },
    Close(AccountId),
    MakeKey(crate::NewKey),
    LabelKey { key: KeyPrefix, label: String },
    AttachKey { key: KeyPrefix, account: AccountId },
    RevokeKey(KeyPrefix),
}

/// What a deed was done to, as it is now.
#[derive(Clone, Debug)]
pub struct AccountDone {
    pub subject: AccountSubject,
    /// Its line in the history, on the account's own page where it has to do with one. None: it was so already, and nothing
    /// was changed.
    pub event: Option<AccountEventId>,
}

#[derive(Clone, Debug)]
pub enum AccountSubject {
    Account(Account),
    Key(Key),
}

#[async_trait]
pub trait AccountDesk: Send + Sync + 'static {
    async fn read_accounts(
        &self,
        permit: Permit<ReadAccounts>,
        query: AccountQuery,
    ) -> Result<AccountPage, StoreError>;

    async fn read_account(
        &self,
        permit: Permit<ReadAccounts>,
        account: AccountId,
        month: Month,
    ) -> Result<Option<AccountRecord>, StoreError>;

    /// One step: the decision, the deed and its line in the history, or none of them. The errors are those of the same deeds in
    /// `Accounts` and `Keys`, but that an account that is not there is `NoSuchAccountId`.
    async fn do_with_account(
        &self,
        permit: Permit<ManageAccounts>,
        deed: AccountDeed,
    ) -> Result<AccountDone, StoreError>;
}
