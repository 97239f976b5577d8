//! Authenticates callers and finds the account that pays. A key's state is cached for less than a second. That keeps most
//! requests off the database, and a revocation still takes effect within one second on every node. `unknown_keys` does the same
//! for keys that do not exist.

use crate::MeterError;
use crate::limits::{KEY_CACHE_CAPACITY, KEY_CACHE_TTL};
use crate::unknown_keys::UnknownKeys;
use chancery_domain::{AccountId, AccountState, ApiKey, Clock, KeyId, KeyPrefix, KeyState, RateLimits};
use chancery_store::{KeyWithAccount, MeteringStore};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// An authenticated key, and the account that it bills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub account: AccountId,
    pub key: KeyId,
    /// The account's limits, at most as old as the key's state.
    pub limits: RateLimits,
    /// Whether the account had a spending cap when its key was looked up.
    pub is_capped: bool,
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
        match self.validate_key(presented.into()).await? {
            ValidKey::Billable(caller) => Ok(caller),
            ValidKey::NotBillable { .. } => Err(MeterError::NoBillingAccount),
        }
    }

    pub(crate) async fn validate_key(&self, presented: PresentedKey<'_>) -> Result<ValidKey, MeterError> {
        let key = presented.text.and_then(|text| ApiKey::parse(text).ok()).ok_or(MeterError::InvalidKey)?;
        let record = self.find_key(&key.prefix(), presented.peer).await?.ok_or(MeterError::InvalidKey)?;
        if !record.key.hash.matches(&key.hash()) || record.key.state != KeyState::Active {
            return Err(MeterError::InvalidKey);
        }
        let key = record.key.id;
        Ok(match &record.account {
            Some(account) if account.state == AccountState::Open => ValidKey::Billable(Caller {
                account: account.id,
                key,
                limits: account.limits,
                is_capped: account.spend_per_month.is_some(),
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
