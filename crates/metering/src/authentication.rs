//! Who is calling, and who pays. A key's state is read from the store and remembered for less than a second: that
//! keeps the database out of most requests and still lets a revocation work within one second, on every node.

use crate::MeterError;
use crate::limits::{KEY_MEMORY, KEYS_REMEMBERED};
use chancery_domain::{AccountId, AccountState, ApiKey, Clock, KeyId, KeyPrefix, KeyState, RateLimits};
use chancery_store::{KeyOwner, MeteringStore};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A key that was checked for this request, and the account that it bills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub account: AccountId,
    pub key: KeyId,
    /// The account's, at most as old as the key's state.
    pub limits: RateLimits,
    /// Whether the account had a spending cap when its key was looked up.
    pub is_capped: bool,
}

/// A key that is valid, whether or not anybody pays for it.
pub(crate) enum KnownKey {
    Payer(Caller),
    /// It bills no account, or one that is closed.
    Unpaid {
        account: Option<AccountId>,
        key: KeyId,
    },
}

pub struct Authenticator {
    store: Arc<MeteringStore>,
    clock: Arc<dyn Clock>,
    remembered: Mutex<HashMap<KeyPrefix, Remembered>>,
}

#[derive(Clone)]
struct Remembered {
    owner: Arc<KeyOwner>,
    /// When the store was asked, not when it answered: the answer may be as old as the question.
    asked_at: Instant,
}

impl Authenticator {
    pub fn new(store: Arc<MeteringStore>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, remembered: Mutex::default() }
    }

    /// `presented` is what followed `Bearer `, if anything did.
    pub async fn authenticate(&self, presented: Option<&str>) -> Result<Caller, MeterError> {
        match self.known_key(presented).await? {
            KnownKey::Payer(caller) => Ok(caller),
            KnownKey::Unpaid { .. } => Err(MeterError::NoBillingAccount),
        }
    }

    pub(crate) async fn known_key(&self, presented: Option<&str>) -> Result<KnownKey, MeterError> {
        let key = presented.and_then(|text| ApiKey::parse(text).ok()).ok_or(MeterError::InvalidKey)?;
        let owner = self.owner_of(&key.prefix()).await?.ok_or(MeterError::InvalidKey)?;
        if !owner.key.hash.matches(&key.hash()) || owner.key.state != KeyState::Active {
            return Err(MeterError::InvalidKey);
        }
        let key = owner.key.id;
        Ok(match &owner.account {
            Some(account) if account.state == AccountState::Open => KnownKey::Payer(Caller {
                account: account.id,
                key,
                limits: account.limits,
                is_capped: account.spend_per_month.is_some(),
            }),
            account => KnownKey::Unpaid { account: account.as_ref().map(|account| account.id), key },
        })
    }

    async fn owner_of(&self, prefix: &KeyPrefix) -> Result<Option<Arc<KeyOwner>>, MeterError> {
        let asked_at = self.clock.monotonic();
        if let Some(owner) = self.recall(prefix, asked_at) {
            return Ok(Some(owner));
        }
        let Some(owner) = self.store.keys.key_with_prefix(prefix).await? else { return Ok(None) };
        let owner = Arc::new(owner);
        self.remember(prefix.clone(), Remembered { owner: Arc::clone(&owner), asked_at });
        Ok(Some(owner))
    }

    fn recall(&self, prefix: &KeyPrefix, now: Instant) -> Option<Arc<KeyOwner>> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let known = remembered.get(prefix)?;
        (now.saturating_duration_since(known.asked_at) < KEY_MEMORY).then(|| Arc::clone(&known.owner))
    }

    fn remember(&self, prefix: KeyPrefix, known: Remembered) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= KEYS_REMEMBERED {
            remembered.retain(|_, old| known.asked_at.saturating_duration_since(old.asked_at) < KEY_MEMORY);
            if remembered.len() >= KEYS_REMEMBERED {
                remembered.clear();
            }
        }
        remembered.insert(prefix, known);
    }
}
