//! Where accounts, keys and the ledger are kept: SQLite for one machine, PostgreSQL for many, behind the same handles.
//! Each method is one atomic step named after what happens; no transaction and no SQL leaves this crate.

mod accounts;
mod audit;
mod billing;
mod clients;
mod db;
mod idempotency;
mod leases;
mod ledger;
mod open_postgres;
mod open_sqlite;
mod opened;
mod people;
mod provider;
mod secrets;
mod session_revoker;
mod store;
mod stores;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod throttles;
mod transfer;

pub use accounts::error::AccountError;
pub use accounts::types::{
    ACCOUNTS_PER_PAGE, AccountChoice, AccountDeed, AccountDone, AccountEvent, AccountEventId,
    AccountOverview, AccountPage, AccountQuery, AccountRecord, AccountSubject, BillingChange, BillingContact,
    CapChange, KeyOwner, KeyUse, LimitsChange, MAX_ACCOUNT_EVENTS, MAX_ACCOUNTS_OFFERED, MAX_KEYS_LISTED,
    NewAccount, NewKey, Reserved, SpendingReservation,
};
pub use audit::types::{AUDIT_ROWS_PER_PAGE, AuditLine, AuditPlace, AuditQuery, AuditTurn, ChainedAuditRow};
pub use billing::error::InvoiceError;
pub use billing::types::{
    CreditOrder, INVOICES_PER_PAGE, InvoicePage, InvoiceQuery, InvoiceRecord, InvoiceSums, IssueOrder,
    Issued, ListedInvoice, MonthToBill, PaymentDeed, Render, UnbilledMonth,
};
pub use clients::entries::MAX_ENTRIES_PER_CLIENT;
pub use clients::error::ClientError;
pub use clients::types::{
    CLIENTS_PER_PAGE, Changed, ClientChange, ClientLine, ClientOrder, ClientPage, ClientQuery, ClientRecord,
    ClientVersion, ENTRIES_PER_PAGE, EntriesWanted, EntryChange, EntryCounts, EntryPlace, EntryVersion, Look,
    MAX_LOOKS, MAX_VERSIONS_AT_ONCE, NewClient, NewEntry, Ownership, VersionsWanted,
};
pub use db::error::{DbError, OpenError};
pub use idempotency::types::{Claim, Claimed, FinishedReply, KeptKey, KeyHolder};
pub use ledger::error::LedgerError;
pub use ledger::types::{
    ACTIVITY_LINES_AT_ONCE, AccountUsage, ChainedRow, KeptReply, KeyUsage, MAX_USAGE_LINES, PeakDay,
    RefusedDay, RefusedOnDay, Settlement, UsageMonth, UsageReport,
};
pub use people::error::PersonError;
pub use people::types::{
    Arrival, CodeSending, CodeTry, HalfSignIn, MailedCode, NewSession, RemovedPerson, SignIn, SignedIn,
    TeamMember,
};
pub use provider::error::ProviderError;
pub use provider::types::{
    CodePresented, Consent, ConsentQuestion, Grant, MailboxProof, NewCode, NewProviderAccount,
    NewProviderSession, PasswordHash, ProofPurpose, ProviderAccount, ProviderSession, Redeemed, SigningKey,
};

pub use accounts::keys::{KeyLabelError, MAX_KEY_LABEL_CHARS, key_label};
pub use db::serving_lock::{LimitsKept, ServingLock, ServingWatch};
pub use db::url::DatabaseUrl;
pub use leases::lease::LEASE;
pub use ledger::usage::{DayUsage, UsageBy, UsageByError, UsageGroup, UsageQuery, UsageSum, UsageTotals};
pub use people::sessions::MAX_SESSIONS_PER_PERSON;
pub use people::sign_ins::MAX_SIGN_INS;
pub use transfer::{MoveSource, MoveStep, MoveTarget, MovedTable, Steps, TransferError};

/// Under the names that the portal still imports from here.
pub use chancery_domain::{
    EMAIL_MEMORY as CODES_MEMORY, EMAIL_PAUSE as CODE_PAUSE, FAILED_EMAIL_PAUSE as FAILED_LETTER_PAUSE,
    MAX_EMAILS_PER_IDENTITY as MAX_CODES_PER_IDENTITY, MAX_EMAILS_PER_MAILBOX as MAX_CODES_PER_MAILBOX,
    MAX_EMAILS_PER_SIGN_IN as MAX_CODES_PER_SIGN_IN, MAX_WRONG_CODES as MAX_CODE_TRIES,
    MAX_WRONG_CODES_PER_MAILBOX as MAX_CODE_TRIES_PER_MAILBOX, WRONG_CODE_MEMORY as CODE_TRIES_MEMORY,
};

pub use accounts::activity::Activity;
pub use accounts::keys::KeyLookup;
pub use accounts::lookup::AccountLookup;
pub use accounts::overview::Accounts;
pub use accounts::spending::Spending;
pub use audit::log::{AuditChains, AuditLog};
pub use billing::invoices::{Invoices, IssuedInvoices};
pub use clients::import::ClientImports;
pub use clients::steps::Clients;
pub use idempotency::keys::{IdempotencyKeys, StoredReplies};
pub use leases::orphans::Leases;
pub use ledger::chains::{Ledger, LedgerChains};
pub use ledger::months::LedgerPartitions;
pub use ledger::reports::UsageReports;
pub use people::roles::People;
pub use people::sessions::Sessions;
pub use people::sign_ins::SignIns;
pub use provider::accounts::ProviderAccounts;
pub use provider::grants::Grants;
pub use provider::proofs::MailboxProofs;
pub use provider::sessions::ProviderSessions;
pub use provider::signing_keys::SigningKeys;
pub use secrets::shared::SharedSecrets;
pub use session_revoker::SessionRevoker;
pub use store::{Health, Store};
pub use stores::{AdminStore, MeteringStore, PortalStore, ProviderStore, VerifyStore};
pub use throttles::counts::Throttles;
