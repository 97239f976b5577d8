//! Where accounts, keys and the ledger are kept: SQLite for one machine, PostgreSQL for many, behind the same traits.
//! Each method is one atomic step named after what happens; no transaction and no SQL leaves this crate.

mod error;
mod traits;

pub use error::StoreError;
pub use traits::{
    Accounts, Health, KeyOwner, Keys, Ledger, LimitsChange, NewAccount, NewKey, Store, UsageBy, UsageGroup,
    UsageQuery, UsageSum,
};
