//! Storage for accounts, keys, the ledger, clients and people: SQLite for one machine, PostgreSQL for many, behind the
//! same handles. Each method is one atomic step. No transaction and no SQL leaves this crate.

mod accounts;
mod audit;
mod billing;
mod clients;
mod db;
mod idempotency;
mod leases;
mod ledger;
mod list_total;
mod logs;
mod open_database;
mod open_postgres;
mod open_sqlite;
mod outbox;
mod people;
mod provider;
mod secrets;
mod session_revoker;
mod store;
mod stores;
mod templates;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod throttles;
mod transfer;

pub use accounts::error::AccountError;
pub use accounts::types::{
    ACCOUNTS_PER_PAGE, AccountChange, AccountChangeOutcome, AccountCursor, AccountEvent, AccountEventId,
    AccountOption, AccountOverview, AccountPage, AccountPosition, AccountQuery, AccountRecord,
    AccountSubject, BillingChange, BillingContact, CapChange, CapStatus, CapStatuses, KeyLimitsChange,
    KeyRotation, KeyUse, KeyWithAccount, KeyWithLastUse, LimitChange, LimitsChange, MAX_ACCOUNT_EVENTS,
    MAX_ACCOUNT_OPTIONS, MAX_KEYS_LISTED, NewAccount, NewKey, ReserveOutcome, SpendingReservation,
};
pub use audit::types::{
    AUDIT_ROWS_PER_PAGE, AuditCursor, AuditListRow, AuditQuery, AuditRowId, ChainedAuditRow, ChangedEntry,
    FieldChange, FieldValue, RecordChange, RecordField,
};
pub use billing::error::InvoiceError;
pub use billing::types::{
    BillableMonth, CreditRequest, INVOICES_PER_PAGE, InvoicePage, InvoiceQuery, InvoiceRecord, InvoiceTotals,
    IssueOutcome, IssueRequest, ListedInvoice, PaymentChange, RenderInvoice, UnbilledMonth,
};
pub use clients::entries::MAX_ENTRIES_PER_CLIENT;
pub use clients::error::ClientError;
pub use clients::matches::{EntryMatch, MAX_MATCHES_PER_CLIENT};
pub use clients::same_name::MAX_SAME_NAME_CLIENTS;
pub use clients::snippet::SnippetPart;
pub use clients::types::{
    ArchiveChange, CLIENTS_PER_PAGE, ClientChange, ClientOrder, ClientOwner, ClientPage, ClientQuery,
    ClientRecord, ClientSummary, ClientVersion, DisputeFilter, DueDispute, ENTRIES_PER_PAGE, EntryChange,
    EntryCounts, EntryCursor, EntryQuery, EntryVersion, LetterEmail, LetterOutcome, MAX_RECENT_CLIENTS,
    MAX_RECORD_PAGE_BYTES, MAX_RECORD_PAGE_ENTRIES, MAX_RECORD_VIEWS, MAX_VERSIONS_PER_READ, MAX_WORK_ITEMS,
    NewClient, NewEntry, OpenedLetter, PastReassignment, RecentClient, RecordPart, RecordView,
    RecordedSearch, RecordedWork, SaveOutcome, UnsentLetter, VersionQuery, VersionRestore, WorkItem,
    WorkQuery, WorkSummary,
};
pub use clients::unsaved_rows::{
    ENDED_SESSION_WINDOW, MAX_UNSAVED_TEXT_BYTES, MAX_UNSAVED_TEXTS_PER_PERSON, NewUnsavedText,
    OPEN_FORM_LIFETIME, UNSAVED_TEXT_LIFETIME, UnsavedForm, UnsavedText,
};
pub use db::error::{DbError, OpenError};
pub use idempotency::types::{ClaimOutcome, FinishedKey, FinishedReply, IdempotencyRecord, KeyClaim};
pub use ledger::error::LedgerError;
pub use ledger::types::{
    AccountUsage, ActivityBatch, ChainedRow, DailyPeak, DailyRejectionTotals, DailyRejections, KeyUsage,
    MAX_ACTIVITY_ROWS, MAX_USAGE_ROWS, MonthlyUsageQuery, Settlement, StoredReply, UsageReport,
};
pub use list_total::{ListTotal, MAX_COUNTED_ROWS};
pub use logs::types::{LogAppend, LogLeaf, LogNode, LogSegment, LoggedUsage, StoredCheckpoint, UnloggedRows};
pub use outbox::error::WebhookError;
pub use outbox::types::{
    Alert, AlertKind, AlertNames, AlertPeriod, AlertSubject, CapRejection, CappedSpending, ClaimedMessage,
    ExpiringKey, ListedWebhook, MAX_WEBHOOKS, MessageKind, NewMessage, SendOutcome, Webhook, WebhookSecret,
};
pub use people::error::PersonError;
pub use people::invitations::{INVITATION_LIFETIME, InvitationError, MAX_INVITATIONS};
pub use people::types::{
    CodeEmailOutcome, CodeOutcome, Invitation, IsConfirmed, LogoutTarget, NamedPerson, NewInvitation,
    NewSession, PendingEmailCode, PendingSignIn, ProviderLogout, ProviderLogoutOutcome, RemovedPerson,
    RenewedSession, SentEmailCode, SessionAuthentication, SignInPurpose, SignedIn, TeamMember,
    VerifiedIdentity,
};
pub use provider::error::ProviderError;
pub use provider::factor_reset::FactorResetError;
pub use provider::factor_types::{
    AccountFactors, AddFactorOutcome, CeremonyKind, FactorCeremony, NewPasskey, NewTotpSecret,
    PendingSecondFactor, RemoveFactorOutcome, StoredPasskey, TotpSecret,
};
pub use provider::factors::MAX_PASSKEYS_PER_ACCOUNT;
pub use provider::types::{
    BackchannelLogout, CodeRedemption, Consent, ConsentRequest, Grant, MailboxProof, NewAuthorizationCode,
    NewKnownDevice, NewProviderAccount, NewProviderSession, PasswordHash, ProofPurpose, ProviderAccount,
    ProviderSession, RedeemOutcome, SigningKey,
};

pub use accounts::keys::{KeyLabelError, MAX_KEY_LABEL_CHARS, key_label};
pub use db::postgres::{ProbeError, probe};
pub use db::serving_lock::{LimitStorage, ServingLock, ServingLockStatus};
pub use db::url::DatabaseUrl;
pub use leases::lease::LEASE_DURATION;
pub use ledger::usage::{DailyUsage, UsageBy, UsageByError, UsageGroup, UsageQuery, UsageSum, UsageTotals};
pub use people::sessions::MAX_SESSIONS_PER_PERSON;
pub use people::sign_ins::MAX_SIGN_INS;
pub use transfer::{
    ProgressCallback, TransferError, TransferProgress, TransferSource, TransferTarget, TransferredTable,
};

pub use accounts::activity::Activity;
pub use accounts::keys::KeyLookup;
pub use accounts::lookup::AccountLookup;
pub use accounts::overview::Accounts;
pub use accounts::spending::Spending;
pub use audit::log::{AuditChains, AuditLog};
pub use billing::invoices::{Invoices, IssuedInvoices};
pub use clients::import::{ClientImports, ImportPart};
pub use clients::record_reader::RecordReader;
pub use clients::records::Clients;
pub use idempotency::records::{IdempotencyKeys, StoredReplies};
pub use leases::orphans::Leases;
pub use ledger::chains::{Ledger, LedgerChains};
pub use ledger::partitions::LedgerPartitions;
pub use ledger::reports::UsageReports;
pub use logs::append::LogWriter;
pub use logs::reads::LogReader;
pub use outbox::alerts::{Alerts, SentAlerts};
pub use outbox::messages::{Outbox, code_email_id};
pub use outbox::webhooks::Webhooks;
pub use people::invitations::Invitations;
pub use people::roles::People;
pub use people::sessions::Sessions;
pub use people::sign_ins::SignIns;
pub use provider::accounts::ProviderAccounts;
pub use provider::backchannel_logouts::BackchannelLogouts;
pub use provider::ceremonies::FactorCeremonies;
pub use provider::factor_reset::FactorResets;
pub use provider::factors::SecondFactors;
pub use provider::grants::Grants;
pub use provider::known_devices::{KnownDevices, MAX_KNOWN_DEVICES};
pub use provider::proofs::MailboxProofs;
pub use provider::sessions::ProviderSessions;
pub use provider::signing_keys::SigningKeys;
pub use secrets::cipher::{EncryptionKey, InvalidEncryptionKey};
pub use secrets::encryption::{EncryptionKeyUsage, SecretEncryption};
pub use secrets::error::SecretError;
pub use secrets::key_id::EncryptionKeyId;
pub use secrets::keyring::EncryptionKeySource;
pub use secrets::rotation::RotationSummary;
pub use secrets::shared::SharedSecrets;
pub use session_revoker::SessionRevoker;
pub use store::{Health, Store};
pub use stores::{AdminStore, AlertStore, LogStore, MeteringStore, PortalStore, ProviderStore, VerifyStore};
pub use templates::letter_templates::{
    LetterTemplate, LetterTemplateContent, LetterTemplateError, LetterTemplates,
};
pub use throttles::counts::Throttles;
