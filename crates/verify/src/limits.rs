//! Holds the limits against the ledger. Limits have no history: what is known of them is the last minute, and what an
//! account's limits were then is not recorded. So what can be checked is that nothing was forgotten: whatever the ledger
//! has of the last minute must be in the account's window too, which may hold more (running work, and work that was
//! not billed). Only a store that other processes can ask can be checked; a server's own memory cannot.

use crate::VerifyError;
use chancery_domain::{AccountId, Amount, RequestId, UnixMillis, WINDOW};
use chancery_metering::Limiter;
use chancery_store::VerifyStore;
use std::collections::BTreeMap;
use std::time::Duration;

/// Rows that are read at once.
const PAGE_ROWS: u32 = 1_000;

/// How far clocks may be apart, and a check may take, when the limits are held against the ledger's last minute.
const WINDOW_MARGIN: Duration = Duration::from_secs(15);

/// How many accounts have rows of the last minute, and what differs.
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
    let billed = billed_lately(store, now).await?;
    let mut findings = Vec::new();
    for account in store.account_lookup.list_accounts().await? {
        let Some(billed) = billed.get(&account.id) else { continue };
        let counted = limiter.status(account.id, account.limits).await?.used;
        if counted.requests < billed.requests || counted.tokens < billed.tokens {
            findings.push(format!(
                "limits: account {}: the ledger has {} requests with {} tokens of the last minute, and the limits' store counts {} with {}",
                account.name, billed.requests, billed.tokens, counted.requests, counted.tokens
            ));
        }
    }
    Ok(LimitVerification { accounts: billed.len(), findings })
}

/// What was admitted so lately that it is in its window for the rest of this check, whatever the clocks.
async fn billed_lately(
    store: &VerifyStore,
    now: UnixMillis,
) -> Result<BTreeMap<AccountId, Amount>, VerifyError> {
    let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    let since = UnixMillis(now.0 - millis(WINDOW - WINDOW_MARGIN));
    let mut billed: BTreeMap<AccountId, Amount> = BTreeMap::new();
    // An id has the time at which its request came in, which is before it is admitted.
    let mut last = RequestId::first_at(UnixMillis(since.0 - millis(WINDOW)));
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
