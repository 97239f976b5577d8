//! Authenticates callers and finds the account that pays. A key's state is cached for less than a second. That keeps most
//! requests off the database, and a revocation still takes effect within one second on every node. `unknown_keys` does the same
//! for keys that do not exist.

use crate::MeterError;
use crate::limits::{KEY_CACHE_CAPACITY, KEY_CACHE_TTL};
use crate::rate_limits::{Bucket, KeyBucket, Reservation};
use crate::unknown_keys::UnknownKeys;
use chancery_domain::{
    AccountId, AccountState, ApiKey, Clock, KeyHash, KeyId, KeyLimits, KeyPrefix, LimitScope, RateLimits,
    RequestId,
};
use chancery_store::{KeyWithAccount, MeteringStore};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// An authenticated key, and the account that it bills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub account: AccountId,
    pub key: KeyId,
    /// The account's limits, at most as old as the key's state.
    pub limits: RateLimits,
    /// The key's own limits.
    pub key_limits: KeyLimits,
    /// Whether the account or the key had a spending cap when the key was looked up.
    pub is_capped: bool,
}

impl Caller {
    /// The smaller of the account's and the key's tokens per minute, and whose it is.
    pub(crate) fn tokens_per_min(&self) -> (LimitScope, u32) {
        match self.key_limits.tokens_per_min {
            Some(limit) if limit < self.limits.tokens_per_min => (LimitScope::Key, limit),
            _ => (LimitScope::Account, self.limits.tokens_per_min),
        }
    }

    pub(crate) fn key_bucket(&self) -> Option<KeyBucket> {
        let limits = self.key_limits.rate_limits()?;
        Some(KeyBucket { bucket: Bucket::Key(self.account, self.key), limits })
    }

    /// One request that generates, and the tokens it may use.
    pub(crate) fn generation(&self, request_id: RequestId, tokens: u64) -> Reservation {
        let bucket = Bucket::Generation(self.account);
        Reservation { bucket, request_id, limits: self.limits, key: self.key_bucket(), tokens }
    }

    /// One request that generates nothing.
    pub(crate) fn read(&self, request_id: RequestId) -> Reservation {
        let limits = |requests_per_min| RateLimits { requests_per_min, tokens_per_min: 0 };
        let key = self.key_limits.requests_per_min.map(|requests_per_min| KeyBucket {
            bucket: Bucket::KeyReads(self.account, self.key),
            limits: limits(requests_per_min),
        });
        let bucket = Bucket::Reads(self.account);
        Reservation { bucket, request_id, limits: limits(self.limits.requests_per_min), key, tokens: 0 }
    }
}

/// What a caller sends to identify itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct PresentedKey<'a> {
    /// The text after `Bearer `, if any.
    pub text: Option<&'a str>,
    /// The address by which failures are counted, if it is known.
    pub peer: Option<IpAddr>,
}

impl<'a> From<Option<&'a str>> for PresentedKey<'a> {
    fn from(text: Option<&'a str>) -> Self {
        Self { text, peer: None }
    }
}

impl PresentedKey<'_> {
    /// `InvalidKey` if it is missing or malformed.
    pub fn hash(self) -> Result<HashedKey, MeterError> {
        let key = self.text.and_then(|text| ApiKey::parse(text).ok()).ok_or(MeterError::InvalidKey)?;
        Ok(HashedKey { prefix: key.prefix(), hash: key.hash(), peer: self.peer })
    }
}

/// A well-formed key that a caller sent, for a request that checks it more than once.
pub struct HashedKey {
    prefix: KeyPrefix,
    hash: KeyHash,
    peer: Option<IpAddr>,
}

/// A valid key, with or without an account that pays.
pub(crate) enum ValidKey {
    Billable(Caller),
    /// The key has no account, or a closed one.
    NotBillable {
        account: Option<AccountId>,
        key: KeyId,
    },
}

pub struct Authenticator {
    store: Arc<MeteringStore>,
    clock: Arc<dyn Clock>,
    cache: Mutex<HashMap<KeyPrefix, CachedKey>>,
    unknown_keys: UnknownKeys,
}

#[derive(Clone)]
struct CachedKey {
    record: Arc<KeyWithAccount>,
    /// When the query was sent, not when it returned: the result may be as old as the query.
    read_at: Instant,
}

enum CacheLookup {
    Fresh(Arc<KeyWithAccount>),
    /// The key existed when it was last read.
    Expired,
    Absent,
}

impl Authenticator {
    pub fn new(store: Arc<MeteringStore>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, cache: Mutex::default(), unknown_keys: UnknownKeys::default() }
    }

    pub async fn authenticate(&self, presented: impl Into<PresentedKey<'_>>) -> Result<Caller, MeterError> {
        match self.validate_key(&presented.into().hash()?).await? {
            ValidKey::Billable(caller) => Ok(caller),
            ValidKey::NotBillable { .. } => Err(MeterError::NoBillingAccount),
        }
    }

    pub(crate) async fn validate_key(&self, presented: &HashedKey) -> Result<ValidKey, MeterError> {
        let HashedKey { prefix, hash, peer } = presented;
        let record = self.find_key(prefix, *peer).await?.ok_or(MeterError::InvalidKey)?;
        if !record.key.accepts(hash, self.clock.now()) {
            return Err(MeterError::InvalidKey);
        }
        let (key, key_limits) = (record.key.id, &record.key.limits);
        Ok(match &record.account {
            Some(account) if account.state == AccountState::Open => ValidKey::Billable(Caller {
                account: account.id,
                key,
                limits: account.limits,
                key_limits: key_limits.clone(),
                is_capped: account.spend_per_month.is_some() || key_limits.spend_per_month.is_some(),
            }),
            account => ValidKey::NotBillable { account: account.as_ref().map(|account| account.id), key },
        })
    }

    async fn find_key(
        &self,
        prefix: &KeyPrefix,
        peer: Option<IpAddr>,
    ) -> Result<Option<Arc<KeyWithAccount>>, MeterError> {
        let read_at = self.clock.monotonic();
        match self.cached(prefix, read_at) {
            CacheLookup::Fresh(record) => return Ok(Some(record)),
            CacheLookup::Expired => {}
            CacheLookup::Absent if self.unknown_keys.may_look_up(prefix, peer, read_at) => {}
            CacheLookup::Absent => return Ok(None),
        }
        let Some(record) = self.store.keys.key_by_prefix(prefix).await? else {
            self.unknown_keys.record_absent(prefix.clone(), peer, read_at);
            return Ok(None);
        };
        let record = Arc::new(record);
        self.cache_key(prefix.clone(), CachedKey { record: Arc::clone(&record), read_at });
        Ok(Some(record))
    }

    fn cached(&self, prefix: &KeyPrefix, now: Instant) -> CacheLookup {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        match cache.get(prefix) {
            Some(entry) if now.saturating_duration_since(entry.read_at) < KEY_CACHE_TTL => {
                CacheLookup::Fresh(Arc::clone(&entry.record))
            }
            Some(_) => CacheLookup::Expired,
            None => CacheLookup::Absent,
        }
    }

    fn cache_key(&self, prefix: KeyPrefix, entry: CachedKey) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= KEY_CACHE_CAPACITY {
            cache.retain(|_, old| entry.read_at.saturating_duration_since(old.read_at) < KEY_CACHE_TTL);
            if cache.len() >= KEY_CACHE_CAPACITY {
                cache.clear();
            }
        }
        cache.insert(prefix, entry);
    }
}
