//! Chancery's pure domain rules: ids, time, money, prices, keys, accounts, limits, usage and client records. Nothing here does
//! I/O or is async. Time and randomness are passed in as values or behind a trait.

#[macro_use]
mod closed_enum;

mod account;
mod audit;
mod chain;
mod client;
mod client_dates;
mod clock;
mod csv_injection;
mod day;
mod email;
mod idempotency;
mod ids;
mod invoice;
mod key;
mod key_limits;
mod letter_template;
mod local_path;
mod loopback_host;
mod mask_url;
mod minor_units;
mod money;
mod month;
mod number_format;
mod panic_message;
mod person;
mod person_name;
mod price;
mod randomness;
mod rate_limit;
mod rate_limit_subnet;
mod session;
mod suggestion;
mod tax;
mod telephone;
mod text;
mod throttle;
mod time_zone;
mod token;
mod usage;

pub use account::{Account, AccountName, AccountNameError, AccountState, RateLimits};
pub use audit::{
    AccessRequest, Action, AuditEvent, AuditRow, AuditedDecision, AuditedEvent, Decision, EventKind,
    EventOrigin, Principal, UnknownAction, UnknownDecision, UnknownEventKind,
};
pub use chain::{ChainHash, ChainHasher, ChainHead, ChainRow, LogName, TreeHash, UnknownLog, leaf_hash};
pub use client::{
    Client, ClientId, ClientName, ContactDetails, ContactEmail, ContactField, DisputeDetails, DisputeStatus,
    DisputeStatusError, EmailSubject, Entry, EntryId, EntryKind, EntryKindError, EntryText, EntryTitle,
    LetterHeading, MAX_ADDRESS_CHARS, MAX_CLIENT_NAME_CHARS, MAX_CONTACT_FIELD_CHARS, MAX_ENTRY_TEXT_CHARS,
    MAX_ENTRY_TITLE_CHARS, PersonRef, PostalAddress, SentLetter, Version,
};
pub use client_dates::{ClientDateError, check_client_since, check_due_day, check_entry_day};
pub use clock::{Clock, ManualClock, SystemClock, TimestampError, UnixMillis};
pub use csv_injection::{escape_csv_formula, unescape_csv_formula};
pub use day::{Day, DayError};
pub use email::{CompanyDomain, EmailAddress, EmailError, is_plain_mailbox};
pub use idempotency::{Fingerprint, IdempotencyKey, IdempotencyKeyError};
pub use ids::{AccountId, KeyId, RequestId, WriterId};
pub use invoice::{
    Buyer, CREDIT_REASON_BOUNDS, CreditAmount, CreditError, Credited, Direction, ISSUE_GRACE_MIN, Invoice,
    InvoiceAmounts, InvoiceEvent, InvoiceEventKind, InvoiceKind, InvoiceLine, InvoiceNumber,
    InvoiceNumberError, InvoiceState, InvoiceStateError, InvoiceTerms, LineItem, ModelUsage, Seller, Tax,
    outstanding, total_after_credits,
};
pub use key::{ApiKey, ApiKeyError, Key, KeyHash, KeyPrefix, KeyState, PreviousSecret};
pub use key_limits::{
    AllowedModels, AllowedModelsError, ExpiryError, KeyLimits, LimitScope, MAX_ALLOWED_MODELS_CHARS,
    parse_expiry,
};
pub use letter_template::{
    LetterTemplateId, MAX_LETTER_TEMPLATES, Placeholder, TemplateError, check_template, fill_template,
};
pub use local_path::LocalPath;
pub use loopback_host::is_loopback_host;
pub use mask_url::{mask_url, mask_urls};
pub use minor_units::MinorUnits;
pub use money::{AmountError, Currency, CurrencyError, MoneyError, Nanos};
pub use month::{Month, MonthError};
pub use number_format::{AlignedAmount, align_amounts, group_thousands};
pub use panic_message::panic_message;
pub use person::{Identity, Person, PersonId, Profile, Role, RoleError};
pub use person_name::{MAX_PERSON_NAME_CHARS, PersonName, PersonNameError};
pub use price::{BilledTokens, CachedTokensError, PriceError, Prices, TokenPrice};
pub use randomness::{BufferedRandomness, OsRandomness, Randomness, SeededRandomness};
pub use rate_limit::{
    COALESCE_SPAN, LimitUsage, MAX_EXACT_ENTRIES, RateLimitExceeded, RateLimitStatus, ReservedEntry,
    SlidingWindow, WINDOW, WindowEntryId, ceil_seconds,
};
pub use rate_limit_subnet::rate_limit_subnet;
pub use session::{Session, SessionId, SessionTimeouts};
pub use suggestion::closest_match;
pub use tax::{TaxRate, TaxRateError};
pub use telephone::Telephone;
pub use text::{LineMode, TextBounds, TextError};
pub use throttle::{
    AttemptKind, AttemptOrigin, CODE_EMAIL_INTERVAL, CODE_EMAIL_WINDOW, CodeCounts, CodeEmailDenied,
    CodeOwner, FAILED_CODE_EMAIL_INTERVAL, MAX_CODE_EMAILS_PER_IDENTITY,
    MAX_CODE_EMAILS_PER_IDENTITY_AND_DAY, MAX_CODE_EMAILS_PER_MAILBOX, MAX_CODE_EMAILS_PER_MAILBOX_AND_DAY,
    MAX_CODE_EMAILS_PER_SIGN_IN, MAX_FIRST_CODES, MAX_FIRST_EMAILS, MAX_FIRST_PASSWORDS, MAX_WRONG_CODES,
    MAX_WRONG_CODES_PER_MAILBOX, Throttle, ThrottleCount, ThrottleDecision, ThrottleExpiry, ThrottleKey,
    WRONG_CODE_LOCKOUT,
};
pub use time_zone::{TimeZoneName, UnknownTimeZone};
pub use token::{EmailCode, SecretToken, TokenHash};
pub use usage::{RowCostError, StopReason, UsageRow};
