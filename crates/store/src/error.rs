//! What can go wrong in the store. The texts are for operators and logs; the HTTP crates choose their own words. None
//! of them carries a password.

use chancery_domain::{
    AccountId, AccountName, ClientId, ClientName, CreditError, EmailAddress, InvoiceNumber, KeyPrefix, Month,
    PersonId, RequestId,
};
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("there is already an account named {0}")]
    AccountNameTaken(AccountName),
    #[error("there is no account named {0}; `chancery account list` shows those there are")]
    NoSuchAccount(AccountName),
    #[error("there is no account number {0}; `chancery account list` shows those there are")]
    NoSuchAccountId(AccountId),
    #[error("the account {0} is closed")]
    AccountClosed(AccountName),
    #[error("there is no such key; `chancery key list` shows those there are")]
    NoSuchKey,
    #[error("the key {0} is revoked; make a new one with `chancery key create`")]
    KeyRevoked(KeyPrefix),
    #[error("there is already a key with the prefix {0}")]
    KeyPrefixTaken(KeyPrefix),
    #[error("{what} holds a NUL character, which a database cannot keep; leave it out")]
    NulCharacter { what: &'static str },
    #[error("request {0} is already in the ledger with other values")]
    RequestAlreadyBilled(RequestId),
    /// The row breaks one of the ledger's own rules; sending it again will not help.
    #[error("the ledger refused request {request}: {why}")]
    LedgerRefused { request: RequestId, why: String },
    /// Sending it again will not help, unless the month's invoice is voided.
    #[error(
        "the ledger rejected request {request}: {month} is invoiced for its account, and nothing is added to it any more"
    )]
    MonthInvoiced { request: RequestId, month: Month },
    #[error("what request {0} had set aside of its account's spending cap is gone")]
    ReservationGone(RequestId),
    #[error("the idempotency key that request {0} had claimed is no longer its own")]
    ClaimGone(RequestId),
    #[error("there is no person number {0}; `chancery user list` shows those there are")]
    NoSuchPerson(PersonId),
    #[error("person number {0} was removed from the firm")]
    PersonRemoved(PersonId),
    #[error("this is the last partner; make another one first with `chancery user role EMAIL partner`")]
    LastPartner,
    #[error("there is already an account of the identity provider with the address {0}")]
    EmailTaken(EmailAddress),
    /// The decision was made for another owner: ask the policy again.
    #[error("client number {0} has changed hands in this moment")]
    OwnerChanged(ClientId),
    #[error("there is no client number {0}")]
    NoSuchClient(ClientId),
    #[error(
        "the record of {client} would have more than {max} entries, which is the most; begin another client for what is new"
    )]
    TooManyEntries { client: ClientName, max: u64 },
    #[error("{month} can be invoiced from {from} on: it is still running, or requests of it are still under way", from = .month.can_be_issued_from().to_iso())]
    MonthStillOpen { month: Month },
    #[error("the account {account} has used nothing in {month}, so there is nothing to invoice")]
    NothingToBill { account: AccountName, month: Month },
    #[error("there is no invoice {0}; `chancery invoice list` shows those there are")]
    NoSuchInvoice(InvoiceNumber),
    #[error("invoice {0} is void: it was credited as a whole")]
    InvoiceIsVoid(InvoiceNumber),
    #[error("invoice {number} was not credited: {why}")]
    CreditRefused { number: InvoiceNumber, why: CreditError },
    #[error(
        "another credit note was made for invoice {0} meanwhile, and nothing was issued; look at what is left of it with `chancery invoice show {0}`, and try again"
    )]
    CreditedMeanwhile(InvoiceNumber),
    #[error("the document of invoice {number} could not be made, and nothing was issued: {why}")]
    DocumentFailed { number: InvoiceNumber, why: String },
    #[error(
        "what was used in {month} comes to more than can be counted exactly, so no invoice can bill it; nothing was issued"
    )]
    MonthTooLarge { month: Month },
    #[error("these invoices come to more than can be counted exactly; ask for one account, or for one year")]
    InvoicesTooLarge,
    #[error("the sum is too large to be counted exactly; ask for fewer days")]
    SumTooLarge,

    #[error("there is no Chancery database at {place}; is `--data` (or `database.url`) right?")]
    NoDatabase { place: String },
    #[error("{0}; a database URL is `sqlite:PATH` or `postgres://USER:PASSWORD@HOST:PORT/DATABASE`")]
    BadUrl(String),
    #[error(
        "there is no folder {folder} to keep the database in; create it, or choose another with `--data` or `database.url`"
    )]
    NoFolder { folder: PathBuf },
    #[error(
        "the database file {file} cannot be opened: {why}; let the user that chancery runs as write to it and to its folder, or choose another with `--data` or `database.url`"
    )]
    CannotOpen { file: PathBuf, why: String },
    #[error(
        "{file} is not a database; move it away to start an empty one, restore a backup, or choose another file with `--data` or `database.url`"
    )]
    NotADatabase { file: PathBuf },
    #[error(
        "the database already holds another program's tables; choose an empty one with `--data` or `database.url`"
    )]
    ForeignDatabase,
    #[error(
        "the database was made by a newer chancery (its schema is {found}, this program knows {known}); start that version"
    )]
    NewerSchema { found: i64, known: i64 },
    #[error(
        "the database was made by a chancery from before the first release, whose schema cannot be brought up to date; start with an empty data folder (`--data`) or database (`database.url`)"
    )]
    OldSchema,
    #[error(
        "the database's schema is not the one this program makes: {why}; start the version that made it, or restore a backup"
    )]
    SchemaMismatch { why: String },
    #[error(
        "another chancery server, or a large import, runs on the database file {file}, and a SQLite file is for one; stop the other, or use PostgreSQL (`database.url`) and Redis (`limits.store = \"redis://…\"`) for several"
    )]
    FileIsServed { file: PathBuf },
    #[error(
        "another chancery server runs on this database, and this one keeps the limits per minute in its own memory, so that accounts could use them once with each; set `limits.store = \"redis://…\"` for all servers, or stop the other"
    )]
    ServedByAnother,
    #[error(
        "another chancery server runs on this database and keeps the limits per minute in its own memory, so that accounts could use them once with each; set its `limits.store` to the Redis of this one and restart it, or stop it"
    )]
    ServedWithLimitsInMemory,
    #[error(
        "the target already holds rows (in {table}), and a firm moves into an empty database: make one with `createdb`; or, if an earlier move filled this one, check it with `chancery verify`"
    )]
    TargetHoldsRows { table: &'static str },
    #[error(
        "{table}.{column} of the row {row} holds a NUL character, which PostgreSQL cannot keep; the target is as it was. Write that text anew in Chancery, or cut it off there in the SQLite file (`UPDATE {table} SET {column} = substr({column}, 1, instr({column}, char(0)) - 1) WHERE instr({column}, char(0)) > 0`), and try again"
    )]
    NulInTable { table: &'static str, column: String, row: String },
    #[error("the rows of {table} could not be moved: {why}; the target is as it was")]
    NotMoved { table: &'static str, why: String },
    /// A defect of ours, or of somebody who changed the schema.
    #[error(
        "the two databases are not made alike: {why}; the target is as it was; move with the version that made the source, and report this"
    )]
    NotAlike { why: String },
    #[error("{what} in the database cannot be read: {why}")]
    Corrupt { what: &'static str, why: String },

    #[error("the database has no room left on its disk: {0}; free some space, nothing was half-written")]
    DiskFull(String),
    #[error(
        "the database cannot be written: {0}; let the user that chancery runs as write to it, or connect to the primary server"
    )]
    ReadOnly(String),
    #[error("the database did not answer: {0}")]
    Unavailable(String),
}
