//! Compares the rate limits with the ledger. The limit store only covers the last minute, and past limits are not recorded. So
//! the check is that no usage is missing: what the ledger has of the last minute must be in the account's window too. The window
//! may hold more (running and unbilled work). Only a shared limit store can be checked; a server's own memory cannot.

use crate::VerifyError;
use chancery_domain::{AccountId, LimitUsage, RequestId, UnixMillis, WINDOW};
use chancery_metering::{Bucket, Limiter};
use chancery_store::VerifyStore;
use std::collections::BTreeMap;
use std::time::Duration;

/// Rows per page.
const PAGE_ROWS: u32 = 1_000;

/// Allowance for clock skew and for the duration of the check.
const WINDOW_MARGIN: Duration = Duration::from_secs(15);

/// The number of accounts with rows of the last minute, and the differences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitVerification {
    pub accounts: usize,
    pub findings: Vec<String>,
}

pub async fn verify_limits(
    store: &VerifyStore,
    limiter: &dyn Limiter,
    now: UnixMillis,
) -> Result<LimitVerification, VerifyError> {
    let billed = billed_in_last_window(store, now).await?;
    let mut findings = Vec::new();
    for account in store.account_lookup.list_accounts().await? {
        let Some(billed) = billed.get(&account.id) else { continue };
        let counted = limiter.status(Bucket::Generation(account.id), account.limits).await?.used;
        if counted.requests < billed.requests || counted.tokens < billed.tokens {
            findings.push(format!(
                "limits: account {}: the ledger has {} requests and {} tokens in the last minute, the limit store {} and {}",
                account.name, billed.requests, billed.tokens, counted.requests, counted.tokens
            ));
        }
    }
    Ok(LimitVerification { accounts: billed.len(), findings })
}

/// Usage admitted so recently that it stays in its window for the rest of this check, despite clock skew.
async fn billed_in_last_window(
    store: &VerifyStore,
    now: UnixMillis,
) -> Result<BTreeMap<AccountId, LimitUsage>, VerifyError> {
    let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    let since = UnixMillis(now.0 - millis(WINDOW - WINDOW_MARGIN));
    let mut billed: BTreeMap<AccountId, LimitUsage> = BTreeMap::new();
    // A request id contains the arrival time of its request, which is before admission.
    let mut last = RequestId::min_at(UnixMillis(since.0 - millis(WINDOW)));
    loop {
        let page = store.ledger_chains.ledger_rows(Some(&last), PAGE_ROWS).await?;
        let Some(end) = page.last() else { return Ok(billed) };
        last = end.request_id.clone();
        for row in page.iter().filter(|row| row.at >= since) {
            let amount = billed.entry(row.account).or_default();
            amount.requests += 1;
            amount.tokens += u64::from(row.input_tokens) + u64::from(row.output_tokens);
        }
    }
}
