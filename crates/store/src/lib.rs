//! Where accounts, keys and the ledger are kept: SQLite for one machine, PostgreSQL for many, behind the same traits.
//! Each method is one atomic step named after what happens; no transaction and no SQL leaves this crate.

mod account_deeds;
mod account_desk;
mod account_history;
mod accounts;
mod attempts;
mod audit;
mod audit_chain;
mod billing_traits;
mod both;
mod client_changes;
mod client_list;
mod client_looks;
mod client_records;
mod client_rows;
mod client_traits;
mod client_words;
mod clients;
mod db;
mod decided;
mod entries;
mod error;
mod failure;
mod gaps;
mod grants;
mod health;
mod idempotency;
mod invoice_issue;
mod invoice_list;
mod invoice_months;
mod invoice_rows;
mod invoices;
mod keys;
mod lease;
mod ledger;
mod ledger_batch;
mod ledger_months;
mod ledger_postgres;
mod ledger_sqlite;
mod ledger_writer;
mod mailbox_proofs;
mod migrations;
mod moving;
mod new_clients;
mod patience;
mod people;
mod postgres;
mod provider_accounts;
mod provider_sessions;
mod provider_traits;
mod serving_lock;
mod sessions;
mod shared_secrets;
mod sign_ins;
mod signing_keys;
mod slot;
mod spending;
mod spending_turns;
mod sqlite;
mod team;
mod traits;
mod transaction;
mod url;
mod usage;
mod usage_reports;

pub use billing_traits::{
    ACCOUNTS_PER_PAGE, ACTIVITY_LINES_AT_ONCE, AccountChoice, AccountDeed, AccountDesk, AccountDone,
    AccountEvent, AccountEventId, AccountOverview, AccountPage, AccountQuery, AccountRecord, AccountSubject,
    AccountUsage, BillingChange, BillingContact, CreditOrder, INVOICES_PER_PAGE, InvoicePage, InvoiceQuery,
    InvoiceRecord, InvoiceSums, Invoices, IssueOrder, Issued, KeyUsage, KeyUse, ListedInvoice,
    MAX_ACCOUNT_EVENTS, MAX_ACCOUNTS_OFFERED, MAX_KEYS_LISTED, MAX_USAGE_LINES, MonthToBill, PaymentDeed,
    PeakDay, RefusedDay, RefusedOnDay, Render, UnbilledMonth, UsageMonth, UsageReport, UsageReports,
};
pub use client_traits::{
    AUDIT_ROWS_PER_PAGE, Audit, AuditLine, AuditPlace, AuditQuery, AuditTurn, CLIENTS_PER_PAGE,
    ChainedAuditRow, Changed, ClientChange, ClientLine, ClientOrder, ClientPage, ClientQuery, ClientRecord,
    ClientRecords, ClientVersion, ENTRIES_PER_PAGE, EntriesWanted, EntryChange, EntryCounts, EntryPlace,
    EntryVersion, Look, MAX_LOOKS, MAX_VERSIONS_AT_ONCE, NewClient, NewEntry, Ownership, TeamMember,
    VersionsWanted,
};
pub use entries::MAX_ENTRIES_PER_CLIENT;
pub use error::StoreError;
pub use keys::{KeyLabelError, MAX_KEY_LABEL_CHARS, key_label};
pub use lease::LEASE;
pub use moving::{MoveSource, MoveStep, MoveTarget, MovedTable, Steps};
pub use postgres::PostgresStore;
pub use provider_traits::{
    Attempt, Attempts, CodePresented, Consent, ConsentQuestion, Counted, Grant, Grants, MailboxProof,
    MailboxProofs, NewCode, NewProviderAccount, NewProviderSession, PasswordHash, ProofPurpose,
    ProviderAccount, ProviderAccounts, ProviderSession, ProviderSessions, Redeemed, SigningKey, SigningKeys,
};
pub use serving_lock::{LimitsKept, ServingLock, ServingWatch};
pub use sessions::MAX_SESSIONS_PER_PERSON;
pub use sign_ins::{
    CODE_PAUSE, CODE_TRIES_MEMORY, CODES_MEMORY, FAILED_LETTER_PAUSE, MAX_CODE_TRIES,
    MAX_CODE_TRIES_PER_MAILBOX, MAX_CODES_PER_IDENTITY, MAX_CODES_PER_MAILBOX, MAX_CODES_PER_SIGN_IN,
    MAX_SIGN_INS,
};
pub use sqlite::SqliteStore;
pub use traits::{
    Accounts, Arrival, CapChange, ChainedRow, Claim, Claimed, CodeSending, CodeTry, FinishedReply,
    HalfSignIn, Health, IdempotencyKeys, KeptKey, KeptReply, KeyHolder, KeyOwner, Keys, Leases, Ledger,
    LimitsChange, MailedCode, Months, NewAccount, NewKey, NewSession, People, RemovedPerson, Reserved,
    Sessions, Settlement, SharedSecrets, SignIn, SignIns, SignedIn, Spending, SpendingReservation, Store,
};
pub use url::DatabaseUrl;
pub use usage::{DayUsage, UsageBy, UsageByError, UsageGroup, UsageQuery, UsageSum, UsageTotals};

use std::sync::Arc;

/// Opens the database that the URL names and brings its schema up to this program's; a newer one is refused. Needs a
/// tokio runtime, for it starts the task that writes the ledger. Call `Health::close` before the runtime ends.
pub async fn open(url: &DatabaseUrl) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match &url.0 {
        url::Place::Sqlite(file) => Arc::new(SqliteStore::open(file).await?),
        url::Place::Postgres(_) => Arc::new(PostgresStore::open(url).await?),
    })
}

/// Like `open`, but makes nothing: where there is no database of Chancery's, that is `NoDatabase`. For commands that only
/// look, so that one that is started in the wrong folder does not leave an empty database there and report that nothing
/// was ever used. An older schema is still brought up to date.
pub async fn open_existing(url: &DatabaseUrl) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match &url.0 {
        url::Place::Sqlite(file) => Arc::new(SqliteStore::open_existing(file).await?),
        url::Place::Postgres(_) => Arc::new(PostgresStore::open_existing(url).await?),
    })
}
