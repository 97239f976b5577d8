//! All stored data, as one handle per aggregate. `open` opens a database and creates all of them; a surface gets only
//! those that it calls, as one of the narrow stores in `stores`.

use crate::DbError;
use crate::accounts::spending_queue::SpendingQueue;
use crate::audit::step::AuditedSteps;
use crate::clients::page_slots::PageSlots;
use crate::db::url::DatabaseLocation;
use crate::db::{Db, query};
use crate::leases::lease::Lease;
use crate::ledger::writer::LedgerWriter;
use crate::open_database::{IfMissing, OpenDatabase};
use crate::secrets::keyring::Keyring;
use crate::{
    AccountLookup, Accounts, Activity, Alerts, AuditChains, AuditLog, BackchannelLogouts, ClientImports,
    Clients, DatabaseUrl, FactorCeremonies, FactorResets, Grants, IdempotencyKeys, Invitations, Invoices,
    IssuedInvoices, KeyLookup, KnownDevices, Leases, Ledger, LedgerChains, LedgerPartitions, LetterTemplates,
    LogReader, LogWriter, MailboxProofs, OpenError, Outbox, People, ProviderAccounts, ProviderSessions,
    SecondFactors, SecretEncryption, SessionRevoker, Sessions, SharedSecrets, SignIns, SigningKeys, Spending,
    StoredReplies, Throttles, UsageReports, Webhooks, open_postgres, open_sqlite,
};
use std::sync::Arc;
use tokio::sync::Notify;

/// Every handle, for the code that wires a program together and for tests.
pub struct Store {
    pub account_lookup: AccountLookup,
    pub accounts: Accounts,
    pub activity: Activity,
    pub alerts: Alerts,
    pub audit: AuditLog,
    pub audit_chains: AuditChains,
    pub backchannel_logouts: BackchannelLogouts,
    pub ceremonies: FactorCeremonies,
    pub client_imports: ClientImports,
    pub clients: Clients,
    pub encryption: SecretEncryption,
    pub factor_resets: FactorResets,
    pub grants: Grants,
    pub health: Health,
    pub idempotency: IdempotencyKeys,
    pub invitations: Invitations,
    pub invoices: Invoices,
    pub issued_invoices: IssuedInvoices,
    pub keys: KeyLookup,
    pub known_devices: KnownDevices,
    pub leases: Leases,
    pub ledger: Ledger,
    pub ledger_chains: LedgerChains,
    pub letter_templates: LetterTemplates,
    pub log_reader: LogReader,
    pub log_writer: LogWriter,
    pub outbox: Outbox,
    pub partitions: LedgerPartitions,
    pub people: People,
    pub proofs: MailboxProofs,
    pub provider_accounts: ProviderAccounts,
    pub provider_sessions: ProviderSessions,
    pub second_factors: SecondFactors,
    pub secrets: SharedSecrets,
    pub session_revoker: SessionRevoker,
    pub sessions: Sessions,
    pub sign_ins: SignIns,
    pub signing_keys: SigningKeys,
    pub spending: Spending,
    pub stored_replies: StoredReplies,
    pub throttles: Throttles,
    pub usage_reports: UsageReports,
    pub webhooks: Webhooks,
    pub(crate) lease: Arc<Lease>,
    pub(crate) writer: Arc<LedgerWriter>,
    pub(crate) db: Db,
}

/// Database health check.
#[derive(Clone)]
pub struct Health {
    db: Db,
}

/// Reads a table, because SQLite answers a bare `SELECT 1` without touching its file.
const PING: &str = "SELECT COUNT(*) FROM schema_migrations";

impl Health {
    pub async fn ping(&self) -> Result<(), DbError> {
        self.db.fetch_one::<u64>(query(PING)).await?;
        Ok(())
    }
}

impl Store {
    /// Opens the database at the URL and creates its schema if there is none. A newer schema is rejected. Requires a
    /// tokio runtime, whose timers bound how long callers wait. Call `close` before the runtime ends.
    pub async fn open(url: &DatabaseUrl) -> Result<Self, OpenError> {
        Self::open_with(url, IfMissing::Create).await
    }

    /// Like `open`, but creates nothing: `NoDatabase` if there is no Chancery database. For read-only commands. One
    /// started in the wrong folder must not leave an empty database there and report that nothing was used.
    pub async fn open_existing(url: &DatabaseUrl) -> Result<Self, OpenError> {
        Self::open_with(url, IfMissing::Reject).await
    }

    async fn open_with(url: &DatabaseUrl, if_missing: IfMissing) -> Result<Self, OpenError> {
        Ok(Self::from_parts(match &url.0 {
            DatabaseLocation::Sqlite(file) => open_sqlite::open(file, if_missing).await?,
            DatabaseLocation::Postgres(options) => open_postgres::open(url, options, if_missing).await?,
        }))
    }

    fn from_parts(open_database: OpenDatabase) -> Self {
        let OpenDatabase { db, writer_id, writer, partitions, max_concurrent_reservations } = open_database;
        let (lease, writer) = (Arc::new(Lease::new(db.clone(), writer_id)), Arc::new(writer));
        let audited = AuditedSteps::new(db.clone());
        let (wake, logout_wake) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let keyring = Keyring::default();
        let queue = Arc::new(SpendingQueue::new(max_concurrent_reservations));
        Self {
            account_lookup: AccountLookup { db: db.clone() },
            accounts: Accounts { db: db.clone(), audited: audited.clone() },
            activity: Activity { db: db.clone() },
            alerts: Alerts { db: db.clone(), wake: Arc::clone(&wake) },
            audit: AuditLog { db: db.clone(), audited: audited.clone() },
            audit_chains: AuditChains { db: db.clone() },
            backchannel_logouts: BackchannelLogouts { db: db.clone(), wake: Arc::clone(&logout_wake) },
            ceremonies: FactorCeremonies { db: db.clone(), keyring: keyring.clone() },
            client_imports: ClientImports { db: db.clone(), audited: audited.clone() },
            clients: Clients { db: db.clone(), audited: audited.clone(), page_slots: PageSlots::default() },
            encryption: SecretEncryption { db: db.clone(), keyring: keyring.clone() },
            factor_resets: FactorResets { audited: audited.clone(), logout_wake: Arc::clone(&logout_wake) },
            grants: Grants { db: db.clone() },
            health: Health { db: db.clone() },
            idempotency: IdempotencyKeys { db: db.clone(), lease: Arc::clone(&lease) },
            invitations: Invitations { db: db.clone(), audited: audited.clone() },
            invoices: Invoices { db: db.clone(), audited: audited.clone() },
            issued_invoices: IssuedInvoices { db: db.clone() },
            keys: KeyLookup { db: db.clone() },
            known_devices: KnownDevices { db: db.clone() },
            leases: Leases { db: db.clone(), lease: Arc::clone(&lease) },
            ledger: Ledger { db: db.clone(), writer: Arc::clone(&writer) },
            ledger_chains: LedgerChains { db: db.clone() },
            letter_templates: LetterTemplates { db: db.clone(), audited: audited.clone() },
            log_reader: LogReader { db: db.clone() },
            log_writer: LogWriter { db: db.clone() },
            outbox: Outbox { db: db.clone(), wake },
            partitions,
            people: People { db: db.clone(), audited: audited.clone() },
            proofs: MailboxProofs { db: db.clone() },
            provider_accounts: ProviderAccounts { db: db.clone(), logout_wake: Arc::clone(&logout_wake) },
            provider_sessions: ProviderSessions { db: db.clone(), logout_wake: Arc::clone(&logout_wake) },
            second_factors: SecondFactors { db: db.clone(), keyring: keyring.clone() },
            secrets: SharedSecrets { db: db.clone(), keyring: keyring.clone() },
            session_revoker: SessionRevoker { db: db.clone(), audited: audited.clone(), logout_wake },
            sessions: Sessions { db: db.clone(), audited: audited.clone(), keyring: keyring.clone() },
            sign_ins: SignIns { db: db.clone(), audited: audited.clone(), keyring: keyring.clone() },
            signing_keys: SigningKeys { db: db.clone(), keyring: keyring.clone() },
            spending: Spending { db: db.clone(), lease: Arc::clone(&lease), queue: Arc::clone(&queue) },
            stored_replies: StoredReplies { db: db.clone() },
            throttles: Throttles { db: db.clone() },
            usage_reports: UsageReports { db: db.clone(), audited: audited.clone() },
            webhooks: Webhooks { db: db.clone(), audited, keyring },
            lease,
            writer,
            db,
        }
    }

    /// Finishes pending writes and closes the database, without waiting long for slow reports. Later calls return
    /// `Unavailable`.
    pub async fn close(&self) {
        self.writer.close().await;
        self.lease.release().await;
        self.db.close_reads().await;
        self.db.close_writes().await;
    }

    /// Number of commits with settled rows since the store was opened.
    pub fn ledger_commits(&self) -> u64 {
        self.writer.commits()
    }
}
