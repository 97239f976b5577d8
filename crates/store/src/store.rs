//! Everything that is stored, as one handle for each aggregate. `open` opens a database and makes them all; a surface gets only
//! those that it calls, as one of the narrow stores in `stores`.

use crate::DbError;
use crate::accounts::spending_queue::SpendingQueue;
use crate::audit::step::AuditedSteps;
use crate::db::url::Place;
use crate::db::{Db, query};
use crate::leases::lease::Lease;
use crate::ledger::writer::LedgerWriter;
use crate::opened::{LedgerSlot, Missing, Opened};
use crate::{
    AccountLookup, Accounts, Activity, AuditChains, AuditLog, ClientImports, Clients, DatabaseUrl, Grants,
    IdempotencyKeys, Invoices, IssuedInvoices, KeyLookup, Leases, Ledger, LedgerChains, LedgerPartitions,
    MailboxProofs, OpenError, People, ProviderAccounts, ProviderSessions, SessionRevoker, Sessions,
    SharedSecrets, SignIns, SigningKeys, Spending, StoredReplies, Throttles, UsageReports, open_postgres,
    open_sqlite,
};
use std::sync::Arc;

/// Everything that is stored. For whoever puts a program together, and for tests.
pub struct Store {
    pub account_lookup: AccountLookup,
    pub accounts: Accounts,
    pub activity: Activity,
    pub audit: AuditLog,
    pub audit_chains: AuditChains,
    pub client_imports: ClientImports,
    pub clients: Clients,
    pub grants: Grants,
    pub health: Health,
    pub idempotency: IdempotencyKeys,
    pub invoices: Invoices,
    pub issued_invoices: IssuedInvoices,
    pub keys: KeyLookup,
    pub leases: Leases,
    pub ledger: Ledger,
    pub ledger_chains: LedgerChains,
    pub partitions: LedgerPartitions,
    pub people: People,
    pub proofs: MailboxProofs,
    pub provider_accounts: ProviderAccounts,
    pub provider_sessions: ProviderSessions,
    pub secrets: SharedSecrets,
    pub session_revoker: SessionRevoker,
    pub sessions: Sessions,
    pub sign_ins: SignIns,
    pub signing_keys: SigningKeys,
    pub spending: Spending,
    pub stored_replies: StoredReplies,
    pub throttles: Throttles,
    pub usage_reports: UsageReports,
    pub(crate) lease: Arc<Lease>,
    pub(crate) writer: Arc<LedgerWriter>,
    pub(crate) slot: LedgerSlot,
    pub(crate) db: Db,
}

/// Whether the database answers.
#[derive(Clone)]
pub struct Health {
    db: Db,
}

/// Reads a table, for SQLite would answer a bare `SELECT 1` without looking at its file.
const PING: &str = "SELECT COUNT(*) FROM schema_migrations";

impl Health {
    /// Whether the database answers now.
    pub async fn ping(&self) -> Result<(), DbError> {
        self.db.fetch_one::<u64>(query(PING)).await?;
        Ok(())
    }
}

impl Store {
    /// Opens the database that the URL names, and creates its schema where there is none; a newer one is rejected. Needs a tokio
    /// runtime, for it starts the task that writes the ledger. Call `close` before the runtime ends.
    pub async fn open(url: &DatabaseUrl) -> Result<Self, OpenError> {
        Self::open_or(url, Missing::Create).await
    }

    /// Like `open`, but creates nothing: where there is no database of Chancery's, that is `NoDatabase`. For commands that only
    /// read, so that one that is started in the wrong folder does not leave an empty database there and report that nothing
    /// was ever used.
    pub async fn open_existing(url: &DatabaseUrl) -> Result<Self, OpenError> {
        Self::open_or(url, Missing::Reject).await
    }

    async fn open_or(url: &DatabaseUrl, missing: Missing) -> Result<Self, OpenError> {
        Ok(Self::of(match &url.0 {
            Place::Sqlite(file) => open_sqlite::open(file, missing).await?,
            Place::Postgres(options) => open_postgres::open(url, options, missing).await?,
        }))
    }

    fn of(opened: Opened) -> Self {
        let Opened { db, writer_id, writer, slot, partitions, max_reserving } = opened;
        let (lease, writer) = (Arc::new(Lease::new(db.clone(), writer_id)), Arc::new(writer));
        let audited = AuditedSteps::new(db.clone(), writer_id);
        let queue = Arc::new(SpendingQueue::new(max_reserving));
        Self {
            account_lookup: AccountLookup { db: db.clone() },
            accounts: Accounts { db: db.clone(), audited: audited.clone() },
            activity: Activity { db: db.clone() },
            audit: AuditLog { db: db.clone(), audited: audited.clone() },
            audit_chains: AuditChains { db: db.clone() },
            client_imports: ClientImports { db: db.clone(), audited: audited.clone() },
            clients: Clients { db: db.clone(), audited: audited.clone() },
            grants: Grants { db: db.clone() },
            health: Health { db: db.clone() },
            idempotency: IdempotencyKeys { db: db.clone(), lease: Arc::clone(&lease) },
            invoices: Invoices { db: db.clone(), audited: audited.clone() },
            issued_invoices: IssuedInvoices { db: db.clone() },
            keys: KeyLookup { db: db.clone() },
            leases: Leases { db: db.clone(), lease: Arc::clone(&lease) },
            ledger: Ledger { db: db.clone(), writer: Arc::clone(&writer) },
            ledger_chains: LedgerChains { db: db.clone() },
            partitions,
            people: People { db: db.clone(), audited: audited.clone() },
            proofs: MailboxProofs { db: db.clone() },
            provider_accounts: ProviderAccounts { db: db.clone() },
            provider_sessions: ProviderSessions { db: db.clone() },
            secrets: SharedSecrets { db: db.clone() },
            session_revoker: SessionRevoker { db: db.clone(), audited: audited.clone() },
            sessions: Sessions { db: db.clone(), audited: audited.clone() },
            sign_ins: SignIns { db: db.clone(), audited: audited.clone() },
            signing_keys: SigningKeys { db: db.clone() },
            spending: Spending { db: db.clone(), lease: Arc::clone(&lease), queue: Arc::clone(&queue) },
            stored_replies: StoredReplies { db: db.clone() },
            throttles: Throttles { db: db.clone() },
            usage_reports: UsageReports { db: db.clone(), audited },
            lease,
            writer,
            slot,
            db,
        }
    }

    /// Finishes the writes under way and lets go of the database, without waiting long for sums that take long. Later
    /// calls are `Unavailable`.
    pub async fn close(&self) {
        self.writer.close().await;
        self.lease.give_up().await;
        self.db.close_reads().await;
        match &self.slot {
            LedgerSlot::Sqlite(slot) => slot.close().await,
            LedgerSlot::Postgres(slot) => slot.close().await,
        }
    }

    /// How many commits have carried settled rows since the store was opened.
    pub fn ledger_commits(&self) -> u64 {
        self.writer.commits()
    }
}
