//! The narrow stores: for each surface, only the handles that it calls.

use crate::store::Store;
use crate::{
    AccountLookup, Accounts, Activity, Alerts, AuditChains, AuditLog, BackchannelLogouts, ClientImports,
    Clients, FactorCeremonies, FactorResets, Grants, IdempotencyKeys, Invitations, Invoices, IssuedInvoices,
    KeyLookup, KnownDevices, Leases, Ledger, LedgerChains, LedgerPartitions, LetterTemplates, LogReader,
    LogWriter, MailboxProofs, Outbox, People, ProviderAccounts, ProviderSessions, SecondFactors,
    SessionRevoker, Sessions, SharedSecrets, SignIns, SigningKeys, Spending, StoredReplies, Throttles,
    UsageReports, Webhooks,
};

/// What metering calls: keys, the ledger, and what requests reserve while they run.
#[derive(Clone)]
pub struct MeteringStore {
    pub activity: Activity,
    pub idempotency: IdempotencyKeys,
    pub keys: KeyLookup,
    pub leases: Leases,
    pub ledger: Ledger,
    pub log_reader: LogReader,
    pub partitions: LedgerPartitions,
    pub spending: Spending,
}

/// What the client portal calls.
#[derive(Clone)]
pub struct PortalStore {
    pub account_lookup: AccountLookup,
    pub accounts: Accounts,
    pub audit: AuditLog,
    pub clients: Clients,
    pub factor_resets: FactorResets,
    pub invitations: Invitations,
    pub invoices: Invoices,
    pub keys: KeyLookup,
    pub letter_templates: LetterTemplates,
    pub outbox: Outbox,
    pub people: People,
    pub secrets: SharedSecrets,
    pub session_revoker: SessionRevoker,
    pub sessions: Sessions,
    pub sign_ins: SignIns,
    pub throttles: Throttles,
    pub usage_reports: UsageReports,
}

/// What the identity provider calls.
#[derive(Clone)]
pub struct ProviderStore {
    pub backchannel_logouts: BackchannelLogouts,
    pub ceremonies: FactorCeremonies,
    pub grants: Grants,
    pub known_devices: KnownDevices,
    pub outbox: Outbox,
    pub proofs: MailboxProofs,
    pub provider_accounts: ProviderAccounts,
    pub provider_sessions: ProviderSessions,
    pub second_factors: SecondFactors,
    pub secrets: SharedSecrets,
    pub session_revoker: SessionRevoker,
    pub signing_keys: SigningKeys,
    pub throttles: Throttles,
}

/// What `verify` reads.
#[derive(Clone)]
pub struct VerifyStore {
    pub account_lookup: AccountLookup,
    pub audit_chains: AuditChains,
    pub issued_invoices: IssuedInvoices,
    pub ledger_chains: LedgerChains,
    pub log_reader: LogReader,
    pub stored_replies: StoredReplies,
}

/// What the command line and server start-up call.
#[derive(Clone)]
pub struct AdminStore {
    pub account_lookup: AccountLookup,
    pub accounts: Accounts,
    pub audit: AuditLog,
    pub client_imports: ClientImports,
    pub clients: Clients,
    pub factor_resets: FactorResets,
    pub invitations: Invitations,
    pub invoices: Invoices,
    pub keys: KeyLookup,
    pub ledger: Ledger,
    pub letter_templates: LetterTemplates,
    pub people: People,
    pub secrets: SharedSecrets,
    pub session_revoker: SessionRevoker,
    pub webhooks: Webhooks,
}

/// What sends alerts and other messages.
#[derive(Clone)]
pub struct AlertStore {
    pub alerts: Alerts,
    pub outbox: Outbox,
    pub people: People,
    pub webhooks: Webhooks,
}

/// What the checkpointer and receipts use.
#[derive(Clone)]
pub struct LogStore {
    /// Has the claims of periodic tasks.
    pub alerts: Alerts,
    pub reader: LogReader,
    pub writer: LogWriter,
}

impl Store {
    pub fn logs(&self) -> LogStore {
        LogStore {
            alerts: self.alerts.clone(),
            reader: self.log_reader.clone(),
            writer: self.log_writer.clone(),
        }
    }

    pub fn metering(&self) -> MeteringStore {
        MeteringStore {
            activity: self.activity.clone(),
            idempotency: self.idempotency.clone(),
            keys: self.keys.clone(),
            leases: self.leases.clone(),
            ledger: self.ledger.clone(),
            log_reader: self.log_reader.clone(),
            partitions: self.partitions.clone(),
            spending: self.spending.clone(),
        }
    }

    pub fn portal(&self) -> PortalStore {
        PortalStore {
            account_lookup: self.account_lookup.clone(),
            accounts: self.accounts.clone(),
            audit: self.audit.clone(),
            clients: self.clients.clone(),
            factor_resets: self.factor_resets.clone(),
            invitations: self.invitations.clone(),
            invoices: self.invoices.clone(),
            keys: self.keys.clone(),
            letter_templates: self.letter_templates.clone(),
            outbox: self.outbox.clone(),
            people: self.people.clone(),
            secrets: self.secrets.clone(),
            session_revoker: self.session_revoker.clone(),
            sessions: self.sessions.clone(),
            sign_ins: self.sign_ins.clone(),
            throttles: self.throttles.clone(),
            usage_reports: self.usage_reports.clone(),
        }
    }

    pub fn provider(&self) -> ProviderStore {
        ProviderStore {
            backchannel_logouts: self.backchannel_logouts.clone(),
            ceremonies: self.ceremonies.clone(),
            grants: self.grants.clone(),
            known_devices: self.known_devices.clone(),
            outbox: self.outbox.clone(),
            proofs: self.proofs.clone(),
            provider_accounts: self.provider_accounts.clone(),
            provider_sessions: self.provider_sessions.clone(),
            second_factors: self.second_factors.clone(),
            secrets: self.secrets.clone(),
            session_revoker: self.session_revoker.clone(),
            signing_keys: self.signing_keys.clone(),
            throttles: self.throttles.clone(),
        }
    }

    pub fn verify(&self) -> VerifyStore {
        VerifyStore {
            account_lookup: self.account_lookup.clone(),
            audit_chains: self.audit_chains.clone(),
            issued_invoices: self.issued_invoices.clone(),
            ledger_chains: self.ledger_chains.clone(),
            log_reader: self.log_reader.clone(),
            stored_replies: self.stored_replies.clone(),
        }
    }

    pub fn admin(&self) -> AdminStore {
        AdminStore {
            account_lookup: self.account_lookup.clone(),
            accounts: self.accounts.clone(),
            audit: self.audit.clone(),
            client_imports: self.client_imports.clone(),
            clients: self.clients.clone(),
            factor_resets: self.factor_resets.clone(),
            invitations: self.invitations.clone(),
            invoices: self.invoices.clone(),
            keys: self.keys.clone(),
            ledger: self.ledger.clone(),
            letter_templates: self.letter_templates.clone(),
            people: self.people.clone(),
            secrets: self.secrets.clone(),
            session_revoker: self.session_revoker.clone(),
            webhooks: self.webhooks.clone(),
        }
    }

    pub fn alerting(&self) -> AlertStore {
        AlertStore {
            alerts: self.alerts.clone(),
            outbox: self.outbox.clone(),
            people: self.people.clone(),
            webhooks: self.webhooks.clone(),
        }
    }
}
