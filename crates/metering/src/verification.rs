//! Recomputes what the ledger says from the ledger's own rows, and names what differs.

use crate::MeterError;
use crate::limits::VERIFY_PAGE_ROWS;
use chancery_domain::Nanos;
use chancery_store::{Store, UsageBy, UsageQuery};

/// What was looked at and what was found. No findings means that everything agrees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    pub rows: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cost: Nanos,
    pub findings: Vec<String>,
}

/// Reads the whole ledger: each row's cost must follow from its tokens and prices, and the sums that usage pages and
/// commands show must be the sums of the rows. `progress` is told the number of rows read so far.
pub async fn verify_ledger(
    store: &dyn Store,
    mut progress: impl FnMut(u64),
) -> Result<Verification, MeterError> {
    let mut found = Verification::default();
    let mut last = None;
    loop {
        let page = store.ledger_rows(last.as_ref(), VERIFY_PAGE_ROWS).await?;
        let Some(end) = page.last() else { break };
        last = Some(end.request_id.clone());
        for row in &page {
            let recomputed = row.recomputed_cost()?;
            if recomputed != row.cost {
                found.findings.push(format!(
                    "ledger row {}: it says {}, its tokens and prices say {recomputed}",
                    row.request_id, row.cost
                ));
            }
            found.rows += 1;
            found.input_tokens += u64::from(row.input_tokens);
            found.output_tokens += u64::from(row.output_tokens);
            found.cost = found.cost.checked_add(row.cost)?;
        }
        progress(found.rows);
    }
    for by in [UsageBy::Day, UsageBy::Model, UsageBy::Key] {
        compare_with_sums(store, by, &mut found).await?;
    }
    Ok(found)
}

async fn compare_with_sums(
    store: &dyn Store,
    by: UsageBy,
    found: &mut Verification,
) -> Result<(), MeterError> {
    let sums = store.usage(UsageQuery { account: None, from: None, to: None, by }).await?;
    let mut total = Verification::default();
    for sum in sums {
        total.rows += sum.requests;
        total.input_tokens += sum.input_tokens;
        total.output_tokens += sum.output_tokens;
        total.cost = total.cost.checked_add(sum.cost)?;
    }
    let rows = (found.rows, found.input_tokens, found.output_tokens, found.cost);
    let sums = (total.rows, total.input_tokens, total.output_tokens, total.cost);
    // A server that runs meanwhile adds rows between the two readings, and only adds.
    if sums.0 < rows.0 || (sums.0 == rows.0 && sums != rows) {
        found.findings.push(format!(
            "usage by {by:?}: its sums are {} requests, {} + {} tokens, {}; the rows make {} requests, {} + {} tokens, {}",
            sums.0, sums.1, sums.2, sums.3, rows.0, rows.1, rows.2, rows.3
        ));
    }
    Ok(())
}
