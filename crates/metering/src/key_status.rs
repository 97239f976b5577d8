//! What a caller's key may use, and what is left of it.

use crate::rate_limits::Bucket;
use crate::{Caller, Meter, MeterError};
use chancery_domain::{AccountName, AllowedModels, KeyPrefix, LimitUsage, Month, Nanos, UnixMillis};
use chancery_store::{CapStatus, KeyWithAccount};

#[derive(Clone, Debug)]
pub struct KeyStatus {
    pub prefix: KeyPrefix,
    /// Empty if none was given.
    pub label: String,
    pub account: AccountName,
    pub expires_at: Option<UnixMillis>,
    /// When the key was last used to generate.
    pub last_used_at: Option<UnixMillis>,
    /// `None` means all models.
    pub models: Option<AllowedModels>,
    pub limits: ScopedLimits,
    pub remaining: ScopedLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopedLimits {
    pub key: LimitNumbers,
    pub account: LimitNumbers,
}

/// Limits, or what is left of them. `None` where there is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitNumbers {
    pub requests_per_min: Option<u64>,
    pub tokens_per_min: Option<u64>,
    pub spend_per_month: Option<Nanos>,
}

impl Meter {
    /// The caller's key as it is stored now, with what its account and itself have left. The caps are those of this month.
    pub async fn key_status(&self, caller: &Caller) -> Result<KeyStatus, MeterError> {
        let record = self.store.keys.key_by_id(caller.key).await?.ok_or(MeterError::InvalidKey)?;
        let KeyWithAccount { key, account: Some(account), last_used_at } = record else {
            return Err(MeterError::NoBillingAccount);
        };
        let account_rates =
            self.limiter.status(Bucket::Generation(account.id), account.limits).await?.remaining();
        let key_rates = match key.limits.rate_limits() {
            Some(limits) => self.limiter.status(Bucket::Key(account.id, key.id), limits).await?.remaining(),
            None => LimitUsage::default(),
        };
        let month = Month::containing(self.clock.now());
        let caps = self.store.spending.cap_statuses(account.id, key.id, month).await?;
        let cap_left = |status: CapStatus| Nanos(status.remaining().0.max(0));
        Ok(KeyStatus {
            limits: ScopedLimits {
                key: LimitNumbers {
                    requests_per_min: key.limits.requests_per_min.map(u64::from),
                    tokens_per_min: key.limits.tokens_per_min.map(u64::from),
                    spend_per_month: key.limits.spend_per_month,
                },
                account: LimitNumbers {
                    requests_per_min: Some(account.limits.requests_per_min.into()),
                    tokens_per_min: Some(account.limits.tokens_per_min.into()),
                    spend_per_month: account.spend_per_month,
                },
            },
            remaining: ScopedLimits {
                key: LimitNumbers {
                    requests_per_min: key.limits.requests_per_min.map(|_| key_rates.requests),
                    tokens_per_min: key.limits.tokens_per_min.map(|_| key_rates.tokens),
                    spend_per_month: caps.key.map(cap_left),
                },
                account: LimitNumbers {
                    requests_per_min: Some(account_rates.requests),
                    tokens_per_min: Some(account_rates.tokens),
                    spend_per_month: caps.account.map(cap_left),
                },
            },
            expires_at: key.limits.expires_at,
            // What this process has not flushed yet is newer.
            last_used_at: last_used_at.max(self.activity.last_use(key.id)),
            models: key.limits.models,
            prefix: key.prefix,
            label: key.label,
            account: account.name,
        })
    }
}
