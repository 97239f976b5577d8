//! Everything that is stored, in one object that can be shared.

use crate::{
    AccountDesk, Accounts, Audit, ClientRecords, Grants, Health, IdempotencyKeys, Invoices, Keys, Leases,
    Ledger, MailboxProofs, Months, People, ProviderAccounts, ProviderSessions, Sessions, SharedSecrets,
    SignIns, SigningKeys, Spending, Throttles, UsageReports,
};

/// Everything that is kept, in one object that can be shared.
pub trait Store:
    Accounts
    + Keys
    + Ledger
    + Months
    + Spending
    + IdempotencyKeys
    + Leases
    + People
    + Sessions
    + SignIns
    + ProviderAccounts
    + ProviderSessions
    + MailboxProofs
    + Throttles
    + Grants
    + SigningKeys
    + SharedSecrets
    + ClientRecords
    + Audit
    + Invoices
    + UsageReports
    + AccountDesk
    + Health
{
}

impl<T> Store for T where
    T: Accounts
        + Keys
        + Ledger
        + Months
        + Spending
        + IdempotencyKeys
        + Leases
        + People
        + Sessions
        + SignIns
        + ProviderAccounts
        + ProviderSessions
        + MailboxProofs
        + Throttles
        + Grants
        + SigningKeys
        + SharedSecrets
        + ClientRecords
        + Audit
        + Invoices
        + UsageReports
        + AccountDesk
        + Health
{
}
