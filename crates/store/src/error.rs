//! What can go wrong in the store. The texts are for operators and logs; the HTTP crates choose their own words.

use chancery_domain::{AccountName, KeyPrefix, RequestId};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("there is already an account named {0}")]
    AccountNameTaken(AccountName),
    #[error("there is no account named {0}; `chancery account list` shows those there are")]
    NoSuchAccount(AccountName),
    #[error("the account {0} is closed")]
    AccountClosed(AccountName),
    #[error("there is no such key; `chancery key list` shows those there are")]
    NoSuchKey,
    #[error("the key {0} is revoked; make a new one with `chancery key create`")]
    KeyRevoked(KeyPrefix),
    #[error("there is already a key with the prefix {0}")]
    KeyPrefixTaken(KeyPrefix),
    #[error("request {0} is already in the ledger with other values")]
    RequestAlreadyBilled(RequestId),
    #[error(
        "the database was made by a newer chancery (its schema is {found}, this program knows {known}); start that version"
    )]
    NewerSchema { found: i64, known: i64 },
    #[error("{what} in the database cannot be read: {why}")]
    Corrupt { what: &'static str, why: String },
    #[error("the database did not answer: {0}")]
    Unavailable(String),
}
