//! Recomputes what the ledger says from the ledger's own rows, and names what differs. A server may add rows meanwhile:
//! the sums are asked for before and after the rows are read, and since rows are only ever added, what the rows make
//! must lie between the two. Without a server the two are equal, and so must the rows be.

use crate::MeterError;
use crate::limits::VERIFY_PAGE_ROWS;
use chancery_domain::{Day, KeyId, UsageRow};
use chancery_store::{Store, UsageBy, UsageGroup, UsageQuery, UsageSum, UsageTotals};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What was looked at and what was found. No findings means that everything agrees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    pub total: UsageTotals,
    pub findings: Vec<String>,
}

fn add(totals: &mut UsageTotals, row: &UsageRow) -> Result<(), MeterError> {
    totals.requests += 1;
    totals.input_tokens += u64::from(row.input_tokens);
    totals.output_tokens += u64::from(row.output_tokens);
    totals.cost = totals.cost.checked_add(row.cost)?;
    Ok(())
}

fn lies_between(rows: &UsageTotals, low: &UsageTotals, high: &UsageTotals) -> bool {
    (low.requests..=high.requests).contains(&rows.requests)
        && (low.input_tokens..=high.input_tokens).contains(&rows.input_tokens)
        && (low.output_tokens..=high.output_tokens).contains(&rows.output_tokens)
        && (low.cost..=high.cost).contains(&rows.cost)
}

type Sums = BTreeMap<UsageGroup, UsageTotals>;

/// Reads the whole ledger: each row's cost must follow from its tokens and prices, and every sum by day, model and key
/// must be the sum of its rows. `progress` is told the number of rows read so far.
pub async fn verify_ledger(
    store: &dyn Store,
    mut progress: impl FnMut(u64),
) -> Result<Verification, MeterError> {
    let mut found = Verification::default();
    let before = all_sums(store).await?;
    let keys = store.list_keys().await?;
    let prefixes: HashMap<KeyId, UsageGroup> =
        keys.into_iter().map(|owner| (owner.key.id, UsageGroup::Key(owner.key.prefix))).collect();
    let mut rows = [Sums::new(), Sums::new(), Sums::new()];
    let mut last = None;
    loop {
        let page = store.ledger_rows(last.as_ref(), VERIFY_PAGE_ROWS).await?;
        let Some(end) = page.last() else { break };
        last = Some(end.request_id.clone());
        for row in &page {
            check_cost(row, &mut found.findings);
            add(&mut found.total, row)?;
            add(rows[0].entry(UsageGroup::Day(Day::of(row.at))).or_default(), row)?;
            add(rows[1].entry(UsageGroup::Model(row.model.clone())).or_default(), row)?;
            // A key that is not in the list was made since; its rows are in the later sums alone, which is no finding.
            if let Some(group) = prefixes.get(&row.key) {
                add(rows[2].entry(group.clone()).or_default(), row)?;
            }
        }
        progress(found.total.requests);
    }
    let after = all_sums(store).await?;
    for (index, by) in UsageBy::ALL.into_iter().enumerate() {
        compare(by, [&before[index], &rows[index], &after[index]], &mut found.findings);
    }
    Ok(found)
}

fn check_cost(row: &UsageRow, findings: &mut Vec<String>) {
    let recomputed = match row.recomputed_cost() {
        Ok(cost) if cost == row.cost => return,
        Ok(cost) => cost.to_string(),
        Err(error) => error.to_string(),
    };
    let (id, cost) = (&row.request_id, row.cost);
    findings.push(format!("ledger row {id}: it says {cost}, its tokens and prices say {recomputed}"));
}

async fn all_sums(store: &dyn Store) -> Result<Vec<Sums>, MeterError> {
    let mut all = Vec::new();
    for by in UsageBy::ALL {
        let sums = store.usage(UsageQuery { account: None, from: None, to: None, by }).await?;
        let entry = |sum: UsageSum| {
            let UsageSum { group, requests, input_tokens, output_tokens, cost } = sum;
            (group, UsageTotals { requests, input_tokens, output_tokens, cost })
        };
        all.push(sums.into_iter().map(entry).collect());
    }
    Ok(all)
}

fn compare(by: UsageBy, [before, rows, after]: [&Sums; 3], findings: &mut Vec<String>) {
    let groups: BTreeSet<&UsageGroup> = before.keys().chain(rows.keys()).chain(after.keys()).collect();
    for group in groups {
        let of = |sums: &Sums| sums.get(group).copied().unwrap_or_default();
        if !lies_between(&of(rows), &of(before), &of(after)) {
            let (by, rows, sums) = (by.as_str(), of(rows), of(after));
            findings.push(format!("usage by {by}, {group:?}: the sum is {sums:?}, its rows make {rows:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(entries: &[(&str, u64)]) -> Sums {
        let entry = |(model, requests): &(&str, u64)| {
            let sum =
                UsageTotals { requests: *requests, input_tokens: 5 * requests, ..UsageTotals::default() };
            (UsageGroup::Model((*model).to_owned()), sum)
        };
        entries.iter().map(entry).collect()
    }

    fn findings(before: &[(&str, u64)], rows: &[(&str, u64)], after: &[(&str, u64)]) -> usize {
        let mut findings = Vec::new();
        compare(UsageBy::Model, [&sums(before), &sums(rows), &sums(after)], &mut findings);
        findings.len()
    }

    #[test]
    fn a_row_in_the_wrong_group_is_found_though_the_total_is_right() {
        assert_eq!(findings(&[("a", 2), ("b", 1)], &[("a", 2), ("b", 1)], &[("a", 2), ("b", 1)]), 0);
        assert_eq!(findings(&[("a", 1), ("b", 2)], &[("a", 2), ("b", 1)], &[("a", 1), ("b", 2)]), 2);
        assert_eq!(findings(&[("a", 3)], &[("a", 2), ("b", 1)], &[("a", 3)]), 2);
    }

    #[test]
    fn rows_that_a_running_server_adds_meanwhile_are_no_finding() {
        assert_eq!(findings(&[("a", 1)], &[("a", 2)], &[("a", 3), ("b", 1)]), 0);
        assert_eq!(findings(&[("a", 3)], &[("a", 2)], &[("a", 4)]), 1);
    }
}
