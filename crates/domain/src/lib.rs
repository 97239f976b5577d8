//! The rules of Chancery that need no disk, no network and no clock of their own: ids, time, money, prices, keys,
//! accounts, limits, usage, and what a client's record is made of. Nothing here does I/O or is async; time and chance come in as values or behind a trait.

mod account;
mod audit;
mod chain;
mod client;
mod clock;
mod csv_cell;
mod day;
mod email;
mod figures;
mod idempotency;
mod ids;
mod invoice;
mod key;
mod limits;
mod local_path;
mod minor;
mod money;
mod month;
mod panic_message;
mod person;
mod price;
mod randomness;
mod rate_limit_subnet;
mod session;
mod suggestion;
mod tax;
mod text;
mod throttle;
mod token;
mod usage;

pub use account::{Account, AccountName, AccountNameError, AccountState, RateLimits};
pub use audit::{
    Action, ActionError, Asked, Asker, AuditEvent, AuditRow, AuditedDecision, AuditedEvent, Decision,
    DecisionError, EventKind, EventKindError, EventOrigin,
};
pub use chain::{ChainHash, ChainHasher, ChainHead, Chained};
pub use client::{
    Client, ClientId, ClientName, ContactEmail, ContactFacts, Entry, EntryId, EntryKind, EntryKindError,
    EntryText, EntryTitle, FactLine, MAX_ADDRESS_CHARS, MAX_CLIENT_NAME_CHARS, MAX_ENTRY_TEXT_CHARS,
    MAX_ENTRY_TITLE_CHARS, MAX_FACT_CHARS, PersonRef, PostalAddress, Version,
};
pub use clock::{Clock, ManualClock, MomentError, SystemClock, UnixMillis};
pub use csv_cell::{csv_cell, from_csv_cell};
pub use day::{Day, DayError};
pub use email::{CompanyDomain, EmailAddress, EmailError};
pub use figures::{LinedUp, grouped, lined_up};
pub use idempotency::{Fingerprint, IdempotencyKey, IdempotencyKeyError};
pub use ids::{AccountId, KeyId, RequestId, WriterId};
pub use invoice::{
    Bill, Buyer, CREDIT_REASON, CreditAmount, CreditError, Credited, Direction, ISSUE_GRACE_MIN, Invoice,
    InvoiceDeed, InvoiceEvent, InvoiceKind, InvoiceLine, InvoiceNumber, InvoiceNumberError, InvoiceState,
    InvoiceStateError, InvoiceTerms, LineItem, ModelUsage, Seller, Tax, left_of_total, outstanding,
};
pub use key::{ApiKey, ApiKeyError, Key, KeyHash, KeyPrefix, KeyState};
pub use limits::{
    Amount, ENTRY_SPAN, EXACT_ENTRIES, EntryNumber, RateLimitStatus, Refusal, WINDOW, Window, whole_seconds,
};
pub use local_path::LocalPath;
pub use minor::MinorUnits;
pub use money::{AmountError, Currency, CurrencyError, MoneyError, Nanos};
pub use month::{Month, MonthError};
pub use panic_message::panic_message;
pub use person::{Identity, Person, PersonId, Role, RoleError};
pub use price::{PriceError, Prices, TokenPrice};
pub use randomness::{OsRandomness, Randomness, SeededRandomness};
pub use rate_limit_subnet::rate_limit_subnet;
pub use session::{Session, SessionId, SessionTimes};
pub use suggestion::nearest;
pub use tax::{TaxRate, TaxRateError};
pub use text::{Bounds, Lines, TextError};
pub use throttle::{
    CodeCounts, CodeEmailDenied, CodeOwner, EMAIL_MEMORY, EMAIL_PAUSE, FAILED_EMAIL_PAUSE,
    MAX_EMAILS_PER_IDENTITY, MAX_EMAILS_PER_MAILBOX, MAX_EMAILS_PER_SIGN_IN, MAX_WRONG_CODES,
    MAX_WRONG_CODES_PER_MAILBOX, Throttle, ThrottleCount, ThrottleDecision, ThrottleExpiry, ThrottleKey,
    WRONG_CODE_MEMORY,
};
pub use token::{MailCode, SecretToken, TokenHash};
pub use usage::{HowEnded, UsageRow};
