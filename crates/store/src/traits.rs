//! The store as the rest of Chancery sees it: one trait per aggregate. What the built-in identity provider keeps is in
//! `provider_traits`.

use crate::{
    AccountDesk, Attempts, Audit, BillingContact, ClientRecords, DayUsage, Grants, Invoices, MailboxProofs,
    ProviderAccounts, ProviderSessions, SigningKeys, StoreError, UsageQuery, UsageReports, UsageSum,
};
use async_trait::async_trait;
use chancery_domain::{
    Account, AccountId, AccountName, ChainHash, ChainHead, EmailAddress, Fingerprint, IdempotencyKey,
    Identity, Key, KeyHash, KeyId, KeyPrefix, LocalPath, Nanos, Person, PersonId, RateLimits, RequestId,
    Role, SecretToken, Session, SessionId, SessionTimes, TokenHash, UnixMillis, UsageRow, WriterId,
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
    + Attempts
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
        + Attempts
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

#[derive(Clone, Debug)]
pub struct NewAccount {
    pub name: AccountName,
    pub limits: RateLimits,
    pub created_at: UnixMillis,
}

/// What to change of an account's limits; `None` leaves a limit as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct LimitsChange {
    pub requests_per_min: Option<u32>,
    pub tokens_per_min: Option<u32>,
    pub spend_per_month: CapChange,
}

/// What to do with the cap on what an account spends in a month.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CapChange {
    #[default]
    Keep,
    Remove,
    Set(Nanos),
}

#[async_trait]
pub trait Accounts: Send + Sync + 'static {
    async fn create_account(&self, new: NewAccount) -> Result<Account, StoreError>;

    /// All accounts, by name, closed ones included.
    async fn list_accounts(&self) -> Result<Vec<Account>, StoreError>;

    async fn account_named(&self, name: &AccountName) -> Result<Account, StoreError>;

    async fn set_limits(&self, name: &AccountName, change: LimitsChange) -> Result<Account, StoreError>;

    /// Closing keeps the account, its keys and its ledger; its keys stop generating. Closing it again changes nothing.
    async fn close_account(&self, name: &AccountName, at: UnixMillis) -> Result<Account, StoreError>;

    /// Where the invoices of all accounts go, in the order of `list_accounts`.
    async fn billing_contacts(&self) -> Result<Vec<(AccountId, BillingContact)>, StoreError>;
}

#[derive(Clone, Debug)]
pub struct NewKey {
    pub prefix: KeyPrefix,
    pub hash: KeyHash,
    pub label: String,
    pub account: Option<AccountId>,
    pub created_at: UnixMillis,
}

/// A key together with the account it bills, read in one step.
#[derive(Clone, Debug)]
pub struct KeyOwner {
    pub key: Key,
    pub account: Option<Account>,
}

#[async_trait]
pub trait Keys: Send + Sync + 'static {
    /// Refused with `AccountClosed` when the account is closed and with `NoSuchAccountId` when there is none.
    async fn create_key(&self, new: NewKey) -> Result<Key, StoreError>;

    /// All keys, oldest first, revoked ones included.
    async fn list_keys(&self) -> Result<Vec<KeyOwner>, StoreError>;

    async fn key_with_prefix(&self, prefix: &KeyPrefix) -> Result<Option<KeyOwner>, StoreError>;

    /// From now on the key bills this account; what it used before stays where it was billed. Refused for a revoked
    /// key and for a closed account.
    async fn attach_key(&self, key: KeyId, account: AccountId) -> Result<(), StoreError>;

    /// Revoking again changes nothing: the first time stands.
    async fn revoke_key(&self, key: KeyId, at: UnixMillis) -> Result<(), StoreError>;
}

/// A row of the ledger with its place in its writer's chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainedRow {
    pub row: UsageRow,
    /// The first is 0.
    pub place: u64,
    pub hash: ChainHash,
}

/// What becomes durable together when a request has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    pub row: UsageRow,
    /// Whether the request set something aside with `reserve_spending`.
    pub is_reserved: bool,
    /// What to keep of the reply, where the request claimed an idempotency key.
    pub kept: Option<KeptReply>,
}

/// What to keep under a key of the row's account, beside what the row says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptReply {
    pub key: IdempotencyKey,
    pub output_text: String,
    pub cached_tokens: u32,
    pub expires_at: UnixMillis,
}

/// A row and nothing else.
impl From<UsageRow> for Settlement {
    fn from(row: UsageRow) -> Self {
        Self { row, is_reserved: false, kept: None }
    }
}

#[async_trait]
pub trait Ledger: Send + Sync + 'static {
    /// Returns once the row is on disk, together with its place in this process's chain and what it adds to the sums of
    /// its day. Rows that come in together share one commit. Settling the same row again changes nothing; the same
    /// request with other values is `RequestAlreadyBilled`, and a row whose cost is not its tokens times its prices,
    /// whose account or key is unknown, or whose day's sum would be too large is `LedgerRefused`.
    ///
    /// What the request had set aside of its account's cap is given back in the same transaction; where that is gone,
    /// nothing is written, and that is `ReservationGone`. So is the reply kept under the key that the request claimed;
    /// where the key is no longer its own, nothing is written, and that is `ClaimGone`.
    ///
    /// After `Unavailable` nobody knows whether the row was written; settling it again is safe. Dropping the future
    /// leaves the row to be written, unless the queue was still full: then it was never handed over.
    async fn settle(&self, settlement: Settlement) -> Result<(), StoreError>;

    /// Sums, in the order of their groups, from what is kept by day. A sum too large to be exact is `SumTooLarge`.
    async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageSum>, StoreError>;

    /// The whole ledger in order of request id, a page at a time: up to `limit` rows after the given one. Like the
    /// methods below it may take minutes on a long ledger, and keeps no other call waiting.
    async fn ledger_rows(&self, after: Option<&RequestId>, limit: u32) -> Result<Vec<UsageRow>, StoreError>;

    /// The writer with the next higher number that has rows or an end.
    async fn writer_after(&self, writer: Option<WriterId>) -> Result<Option<WriterId>, StoreError>;

    /// Where the writer's chain is said to end.
    async fn chain_head(&self, writer: WriterId) -> Result<Option<ChainHead>, StoreError>;

    /// One writer's rows in order of their places, a page at a time: up to `limit` rows after the given one.
    async fn chained_rows(
        &self,
        writer: WriterId,
        after: Option<&ChainedRow>,
        limit: u32,
    ) -> Result<Vec<ChainedRow>, StoreError>;

    /// The sums that are kept by day, a page at a time: up to `limit` after the given one.
    async fn day_usage(&self, after: Option<&DayUsage>, limit: u32) -> Result<Vec<DayUsage>, StoreError>;
}

/// The ledger's months, where each has a place of its own.
#[async_trait]
pub trait Months: Send + Sync + 'static {
    /// Makes the places for the rows of this month and the next, so that nobody who settles waits for it, and moves
    /// rows there that came before. To be called every few minutes; it writes only when something is missing.
    async fn make_months_ready(&self, now: UnixMillis) -> Result<(), StoreError>;
}

/// What a request may cost at most, to be set aside of what its account may spend in the month of `at`.
#[derive(Clone, Debug)]
pub struct SpendingReservation {
    pub request_id: RequestId,
    pub account: AccountId,
    pub amount: Nanos,
    /// When the request was admitted; decides the month.
    pub at: UnixMillis,
    pub now: UnixMillis,
    /// The latest moment at which it can still be under way.
    pub expires_at: UnixMillis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    Yes,
    /// The account has no cap, and nothing was written.
    NotNeeded,
    /// What was spent and set aside in the month leaves less than the amount.
    Refused {
        cap: Nanos,
        spent: Nanos,
        set_aside: Nanos,
    },
}

/// The cap on what an account spends in a month: what is in the ledger and what is set aside never pass it together,
/// however many set aside at once. What a dead process had set aside no longer counts.
#[async_trait]
pub trait Spending: Send + Sync + 'static {
    async fn reserve_spending(&self, reservation: SpendingReservation) -> Result<Reserved, StoreError>;

    /// For a request that comes to nothing. Giving back what is gone changes nothing.
    async fn release_spending(&self, request: &RequestId) -> Result<(), StoreError>;
}

/// A request that wants to be the one that runs under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub account: AccountId,
    pub key: IdempotencyKey,
    pub fingerprint: Fingerprint,
    pub request_id: RequestId,
    pub now: UnixMillis,
    /// The latest moment at which it can still be under way.
    pub expires_at: UnixMillis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    Yes,
    HeldBy(KeyHolder),
}

/// The request that has a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHolder {
    pub fingerprint: Fingerprint,
    /// None while it is under way.
    pub reply: Option<FinishedReply>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedReply {
    pub row: UsageRow,
    pub output_text: String,
    pub cached_tokens: u32,
}

/// A key whose request has ended, and the account that the ledger says was billed for that request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptKey {
    pub account: AccountId,
    pub key: IdempotencyKey,
    pub request_id: RequestId,
    /// None where the ledger has no such request.
    pub billed_account: Option<AccountId>,
}

/// Keys by which an account's callers name their requests: of all requests under one key, one row at most reaches the
/// ledger. A key is free when nobody has it, when its time is up, or when its request is under way in a dead process.
#[async_trait]
pub trait IdempotencyKeys: Send + Sync + 'static {
    /// Who has the key, if anybody.
    async fn key_holder(
        &self,
        account: AccountId,
        key: &IdempotencyKey,
        now: UnixMillis,
    ) -> Result<Option<KeyHolder>, StoreError>;

    /// Takes the key if it is free. However many do so at once, one succeeds.
    async fn claim_key(&self, claim: &Claim) -> Result<Claimed, StoreError>;

    /// For a request that comes to nothing. A key that is no longer its own, or whose request has ended, stays.
    async fn free_key(&self, claim: &Claim) -> Result<(), StoreError>;

    /// Removes up to `limit` keys whose time is up, with their replies, and says how many there were.
    async fn forget_expired_keys(&self, now: UnixMillis, limit: u32) -> Result<u64, StoreError>;

    /// The keys whose requests have ended, by account and key, a page at a time: up to `limit` after the given one.
    async fn kept_keys(&self, after: Option<&KeptKey>, limit: u32) -> Result<Vec<KeptKey>, StoreError>;
}

/// What a process holds for its requests, others may take once it is dead: when it has not said for `LEASE` that it
/// lives. Taking removes what was held, so that a process that was only thought dead finds it gone and cannot settle.
#[async_trait]
pub trait Leases: Send + Sync + 'static {
    /// Says that this process lives. To be called every few seconds while anything is held; it writes only when it is
    /// time to.
    async fn renew_lease(&self, now: UnixMillis) -> Result<(), StoreError>;

    /// Removes up to `limit` things that are held by dead processes or past their time, and says how many there were.
    /// Where this process holds something, it says first that it lives.
    async fn forget_dead(&self, now: UnixMillis, limit: u32) -> Result<u64, StoreError>;
}

/// Somebody comes back from the identity provider with a proven mailbox.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub identity: Identity,
    pub email: EmailAddress,
    /// For somebody new; somebody known becomes a partner by it, and is never made less.
    pub role: Role,
    pub at: UnixMillis,
}

/// Somebody who may not sign in any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedPerson {
    pub person: Person,
    pub removed_at: UnixMillis,
}

#[async_trait]
pub trait People: Send + Sync + 'static {
    /// The one person of this identity, made if it is new, with the address as it is now. Refused with `PersonRemoved`.
    async fn arrive(&self, arrival: Arrival) -> Result<Person, StoreError>;

    /// Everybody who was not removed, by address.
    async fn list_people(&self) -> Result<Vec<Person>, StoreError>;

    /// By address.
    async fn list_removed_people(&self) -> Result<Vec<RemovedPerson>, StoreError>;

    /// More than one where several identities have one address.
    async fn people_with_email(&self, email: &EmailAddress) -> Result<Vec<Person>, StoreError>;

    /// Refused with `LastPartner` where nobody would be left who is one.
    async fn set_role(&self, person: PersonId, role: Role) -> Result<Person, StoreError>;

    /// From now on none of the person's sessions opens anything, and none is started. Refused with `LastPartner`.
    async fn remove_person(&self, person: PersonId, at: UnixMillis) -> Result<(), StoreError>;

    /// The person may sign in again, in the role they had; the sessions they had do not come back. Refused with
    /// `NoSuchPerson` for somebody who was not removed.
    async fn restore_person(&self, person: PersonId) -> Result<Person, StoreError>;
}

#[derive(Clone, Debug)]
pub struct NewSession {
    pub token: TokenHash,
    pub person: PersonId,
    pub at: UnixMillis,
    pub place: String,
    pub browser: String,
    /// The session that this browser had until now, whoever's it was. It ends.
    pub replaces: Option<TokenHash>,
}

/// A session and its owner, as they are at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedIn {
    pub session: Session,
    pub person: Person,
}

#[async_trait]
pub trait Sessions: Send + Sync + 'static {
    /// Refused with `NoSuchPerson` for somebody who was removed. Of very many sessions of one person, those go that were
    /// not used for longest.
    async fn start_session(&self, new: NewSession) -> Result<(), StoreError>;

    /// Whose session this is, if it is alive. Notes that it was used, now and then.
    async fn signed_in(
        &self,
        token: TokenHash,
        place: &str,
        times: SessionTimes,
        now: UnixMillis,
    ) -> Result<Option<SignedIn>, StoreError>;

    /// Those that are alive, the last used first.
    async fn sessions_of(
        &self,
        person: PersonId,
        times: SessionTimes,
        now: UnixMillis,
    ) -> Result<Vec<Session>, StoreError>;

    /// Whether there was such a session of that person.
    async fn end_session(&self, person: PersonId, session: SessionId) -> Result<bool, StoreError>;

    /// How many there were.
    async fn end_all_sessions(&self, person: PersonId, except: Option<SessionId>) -> Result<u64, StoreError>;

    /// For somebody whose password was changed: their sign-ins under way that wait for a code end too. How many sessions
    /// there were; none for an identity that never came here.
    async fn end_sessions_of_identity(&self, identity: &Identity) -> Result<u64, StoreError>;

    async fn forget_ended_sessions(
        &self,
        times: SessionTimes,
        now: UnixMillis,
        limit: u32,
    ) -> Result<u64, StoreError>;
}

/// What a sign-in must come back with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignIn {
    pub state: String,
    pub nonce: String,
    pub pkce_verifier: String,
    pub return_to: LocalPath,
    pub expires_at: UnixMillis,
}

/// Somebody whom the identity provider knows and who has yet to type the code from the mail.
#[derive(Clone, Debug)]
pub struct HalfSignIn {
    pub identity: Identity,
    pub email: EmailAddress,
    pub return_to: LocalPath,
    pub code: MailedCode,
    /// Whether the mail server has taken any letter yet.
    pub is_code_sent: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct MailedCode {
    pub hash: TokenHash,
    pub expires_at: UnixMillis,
    /// How many were sent for this sign-in, this one included.
    pub sent: u32,
    pub sent_at: UnixMillis,
}

/// Whether a code may go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeSending {
    /// It is counted as sent.
    Yes,
    /// The last letter of this sign-in is too young.
    NotBefore(UnixMillis),
    /// Very many letters went to this identity, or to its mailbox, and none was used.
    TooMany { until: UnixMillis },
    /// This sign-in has had all its letters.
    NoMore,
    /// Too many wrong codes were typed.
    NoTriesLeft { until: UnixMillis },
    /// There is no such sign-in, or its time is over.
    Gone,
}

#[derive(Clone, Debug)]
pub enum CodeTry {
    /// The sign-in may go on; it is no longer half.
    Right(HalfSignIn),
    Wrong {
        left: u32,
    },
    /// Too many wrong tries: all sign-ins of this identity, or of its mailbox, are gone. `is_news` for the one whose try it was.
    Destroyed {
        half: HalfSignIn,
        is_news: bool,
    },
    /// There is no such sign-in, or its time is over.
    Gone,
}

#[async_trait]
pub trait SignIns: Send + Sync + 'static {
    async fn begin_sign_in(&self, token: TokenHash, sign_in: SignIn) -> Result<(), StoreError>;

    /// Gives it once; None where there is none or its time is over.
    async fn take_sign_in(&self, token: TokenHash, now: UnixMillis) -> Result<Option<SignIn>, StoreError>;

    /// With its first code, which is counted as sent.
    async fn begin_half_sign_in(
        &self,
        token: TokenHash,
        half: HalfSignIn,
        now: UnixMillis,
    ) -> Result<CodeSending, StoreError>;

    async fn half_sign_in(&self, token: TokenHash, now: UnixMillis)
    -> Result<Option<HalfSignIn>, StoreError>;

    /// Whether one more letter may go out; counts it if so. The code of the last one stays in force.
    async fn may_send_code(&self, token: TokenHash, now: UnixMillis) -> Result<CodeSending, StoreError>;

    /// The mail server has taken a letter: its code is in force in the place of the last one. Not where the sign-in is over.
    async fn code_was_sent(
        &self,
        token: TokenHash,
        hash: TokenHash,
        expires_at: UnixMillis,
        now: UnixMillis,
    ) -> Result<bool, StoreError>;

    /// A letter that was counted could not be sent: it counts no more, and the next one may go out after a moment.
    async fn code_was_not_sent(&self, token: TokenHash, now: UnixMillis) -> Result<(), StoreError>;

    async fn try_code(
        &self,
        token: TokenHash,
        typed: TokenHash,
        now: UnixMillis,
    ) -> Result<CodeTry, StoreError>;

    /// Removes up to `limit` of each kind that nobody can use any more, and of more sign-ins than `keep` those that were
    /// begun first; says how much.
    async fn forget_old_sign_ins(&self, now: UnixMillis, limit: u32, keep: u32) -> Result<u64, StoreError>;
}

/// What nodes must agree on without anybody setting it.
#[async_trait]
pub trait SharedSecrets: Send + Sync + 'static {
    /// The secret of this name: the one that was drawn first, by whichever node.
    async fn shared_secret(&self, name: &str, drawn: &SecretToken) -> Result<SecretToken, StoreError>;
}

#[async_trait]
pub trait Health: Send + Sync + 'static {
    /// Whether the database answers now.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Finishes the writes under way and lets go of the database, without waiting long for sums that take long. Later
    /// calls are `Unavailable`.
    async fn close(&self);
}
