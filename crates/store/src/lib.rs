//! Where accounts, keys and the ledger are kept: SQLite for one machine, PostgreSQL for many, behind the same traits.
//! Each method is one atomic step named after what happens; no transaction and no SQL leaves this crate.

mod accounts;
mod audit;
mod billing;
mod clients;
mod db;
mod error;
mod idempotency;
mod leases;
mod ledger;
mod people;
mod postgres_store;
mod provider;
mod secrets;
mod sqlite_store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod throttles;
mod traits;
mod transfer;

pub use accounts::types::{
    ACCOUNTS_PER_PAGE, AccountChoice, AccountDeed, AccountDesk, AccountDone, AccountEvent, AccountEventId,
    AccountOverview, AccountPage, AccountQuery, AccountRecord, AccountSubject, Accounts, BillingChange,
    BillingContact, CapChange, KeyOwner, KeyUse, Keys, LimitsChange, MAX_ACCOUNT_EVENTS,
    MAX_ACCOUNTS_OFFERED, MAX_KEYS_LISTED, NewAccount, NewKey, Reserved, Spending, SpendingReservation,
};
pub use audit::types::{
    AUDIT_ROWS_PER_PAGE, Audit, AuditLine, AuditPlace, AuditQuery, AuditTurn, ChainedAuditRow,
};
pub use billing::types::{
    CreditOrder, INVOICES_PER_PAGE, InvoicePage, InvoiceQuery, InvoiceRecord, InvoiceSums, Invoices,
    IssueOrder, Issued, ListedInvoice, MonthToBill, PaymentDeed, Render, UnbilledMonth,
};
pub use clients::entries::MAX_ENTRIES_PER_CLIENT;
pub use clients::types::{
    CLIENTS_PER_PAGE, Changed, ClientChange, ClientLine, ClientOrder, ClientPage, ClientQuery, ClientRecord,
    ClientRecords, ClientVersion, ENTRIES_PER_PAGE, EntriesWanted, EntryChange, EntryCounts, EntryPlace,
    EntryVersion, Look, MAX_LOOKS, MAX_VERSIONS_AT_ONCE, NewClient, NewEntry, Ownership, VersionsWanted,
};
pub use db::health::Health;
pub use error::StoreError;
pub use idempotency::types::{Claim, Claimed, FinishedReply, IdempotencyKeys, KeptKey, KeyHolder};
pub use leases::types::Leases;
pub use ledger::types::{
    ACTIVITY_LINES_AT_ONCE, AccountUsage, ChainedRow, KeptReply, KeyUsage, Ledger, MAX_USAGE_LINES, Months,
    PeakDay, RefusedDay, RefusedOnDay, Settlement, UsageMonth, UsageReport, UsageReports,
};
pub use people::types::{
    Arrival, CodeSending, CodeTry, HalfSignIn, MailedCode, NewSession, People, RemovedPerson, Sessions,
    SignIn, SignIns, SignedIn, TeamMember,
};
pub use provider::types::{
    CodePresented, Consent, ConsentQuestion, Grant, Grants, MailboxProof, MailboxProofs, NewCode,
    NewProviderAccount, NewProviderSession, PasswordHash, ProofPurpose, ProviderAccount, ProviderAccounts,
    ProviderSession, ProviderSessions, Redeemed, SigningKey, SigningKeys,
};
pub use secrets::types::SharedSecrets;
pub use throttles::types::Throttles;
pub use traits::Store;

pub use accounts::keys::{KeyLabelError, MAX_KEY_LABEL_CHARS, key_label};
pub use db::serving_lock::{LimitsKept, ServingLock, ServingWatch};
pub use db::url::DatabaseUrl;
pub use leases::lease::LEASE;
pub use ledger::usage::{DayUsage, UsageBy, UsageByError, UsageGroup, UsageQuery, UsageSum, UsageTotals};
pub use people::sessions::MAX_SESSIONS_PER_PERSON;
pub use people::sign_ins::MAX_SIGN_INS;
pub use postgres_store::PostgresStore;
pub use sqlite_store::SqliteStore;
pub use transfer::{MoveSource, MoveStep, MoveTarget, MovedTable, Steps};

/// Under the names that the portal still imports from here.
pub use chancery_domain::{
    EMAIL_MEMORY as CODES_MEMORY, EMAIL_PAUSE as CODE_PAUSE, FAILED_EMAIL_PAUSE as FAILED_LETTER_PAUSE,
    MAX_EMAILS_PER_IDENTITY as MAX_CODES_PER_IDENTITY, MAX_EMAILS_PER_MAILBOX as MAX_CODES_PER_MAILBOX,
    MAX_EMAILS_PER_SIGN_IN as MAX_CODES_PER_SIGN_IN, MAX_WRONG_CODES as MAX_CODE_TRIES,
    MAX_WRONG_CODES_PER_MAILBOX as MAX_CODE_TRIES_PER_MAILBOX, WRONG_CODE_MEMORY as CODE_TRIES_MEMORY,
};

use std::sync::Arc;

/// Opens the database that the URL names and brings its schema up to this program's; a newer one is refused. Needs a
/// tokio runtime, for it starts the task that writes the ledger. Call `Health::close` before the runtime ends.
pub async fn open(url: &DatabaseUrl) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match &url.0 {
        db::url::Place::Sqlite(file) => Arc::new(SqliteStore::open(file).await?),
        db::url::Place::Postgres(_) => Arc::new(PostgresStore::open(url).await?),
    })
}

/// Like `open`, but makes nothing: where there is no database of Chancery's, that is `NoDatabase`. For commands that only
/// look, so that one that is started in the wrong folder does not leave an empty database there and report that nothing
/// was ever used. An older schema is still brought up to date.
pub async fn open_existing(url: &DatabaseUrl) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match &url.0 {
        db::url::Place::Sqlite(file) => Arc::new(SqliteStore::open_existing(file).await?),
        db::url::Place::Postgres(_) => Arc::new(PostgresStore::open_existing(url).await?),
    })
}
