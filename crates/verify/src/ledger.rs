//! Recomputes the ledger from its own rows:
//!
//! 1. each row's cost, from its tokens and prices;
//! 2. each writer's chain, from its first row to its end (`chain`);
//! 3. each daily total, from its rows;
//! 4. each reply stored under an idempotency key: its tokens and stop reason are read from its ledger row, so the row must
//!    exist and bill the same account.
//!
//! A server may add rows meanwhile. Rows are only ever added, together with their totals, so the sum of the rows is between the
//! totals read before and those read after. Without a server both readings are equal, and so must the sum be.

use crate::chain::{ChainError, ChainedTable, HeadError, verify_chains};
use crate::{Findings, VerifyError};
use chancery_domain::{
    AccountId, ChainHash, ChainHead, Day, KeyId, MoneyError, Prices, TokenPrice, UsageRow, WriterId,
};
use chancery_store::{ChainedRow, DailyUsage, DbError, FinishedKey, UsageTotals, VerifyStore};
use std::collections::BTreeMap;

/// Rows per page.
const PAGE_ROWS: u32 = 1_000;
const MAX_REPORTED_FINDINGS: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerVerification {
    pub total: UsageTotals,
    /// The end of each writer's chain. Storing these elsewhere lets an auditor prove later that nothing before them was rewritten,
    /// even by an attacker who recomputed all hashes after it.
    pub chains: Vec<(WriterId, ChainHead)>,
    pub findings: Findings,
}

/// What one daily total is grouped by.
type SumKey = (AccountId, Day, KeyId, String, [TokenPrice; 3]);
type Lines = BTreeMap<SumKey, Line>;

/// One daily total: as stored before the rows were read, as summed from the rows, and as stored after.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    before: UsageTotals,
    rows: UsageTotals,
    after: UsageTotals,
}

/// Calls `progress` with the number of rows read so far.
pub async fn verify_ledger(
    store: &VerifyStore,
    progress: impl FnMut(u64),
) -> Result<LedgerVerification, VerifyError> {
    let mut findings = Findings::with_limit(MAX_REPORTED_FINDINGS);
    let (mut total, mut lines) = (UsageTotals::default(), Lines::new());
    read_stored_sums(store, &mut lines, |line| &mut line.before).await?;
    let visit = |row: &UsageRow, findings: &mut Findings| {
        check_cost(row, findings);
        add(&mut total, row)?;
        let line = (row.account, Day::containing(row.at), row.key, row.model.clone(), price_key(row.prices));
        Ok(add(&mut lines.entry(line).or_default().rows, row)?)
    };
    let summary = verify_chains(&LedgerTable(store), &mut findings, visit, progress).await?;
    read_stored_sums(store, &mut lines, |line| &mut line.after).await?;
    compare(&lines, &mut findings);
    check_stored_replies(store, &mut findings).await?;
    Ok(LedgerVerification { total, chains: summary.chains, findings })
}

async fn read_stored_sums(
    store: &VerifyStore,
    lines: &mut Lines,
    part: fn(&mut Line) -> &mut UsageTotals,
) -> Result<(), VerifyError> {
    let mut last: Option<DailyUsage> = None;
    loop {
        let page = store.ledger_chains.daily_usage(last.as_ref(), PAGE_ROWS).await?;
        let Some(end) = page.last() else { return Ok(()) };
        last = Some(end.clone());
        for usage in page {
            let line = (usage.account, usage.day, usage.key, usage.model, price_key(usage.prices));
            *part(lines.entry(line).or_default()) = usage.totals;
        }
    }
}

/// Prices have no order of their own.
fn price_key(Prices { input, cached_input, output }: Prices) -> [TokenPrice; 3] {
    [input, cached_input, output]
}

struct LedgerTable<'a>(&'a VerifyStore);

impl ChainedTable for LedgerTable<'_> {
    type Link = ChainedRow;
    type Row = UsageRow;

    fn parts(link: &ChainedRow) -> (&UsageRow, u64, ChainHash) {
        (&link.row, link.position, link.hash)
    }

    async fn next_writer(&self, writer: Option<WriterId>) -> Result<Option<WriterId>, DbError> {
        self.0.ledger_chains.next_writer(writer).await
    }

    async fn links_after(
        &self,
        writer: WriterId,
        last: Option<&ChainedRow>,
    ) -> Result<Vec<ChainedRow>, DbError> {
        self.0.ledger_chains.chained_rows(writer, last, PAGE_ROWS).await
    }

    async fn head(&self, writer: WriterId) -> Result<Option<ChainHead>, DbError> {
        self.0.ledger_chains.chain_head(writer).await
    }

    fn expected_hash(writer: WriterId, chain: &ChainHead, row: &UsageRow) -> ChainHash {
        chain.next_hash(writer, row)
    }

    fn describe(writer: WriterId, chain_error: ChainError<'_, ChainedRow>) -> String {
        let name = |link: &ChainedRow| format!("ledger row {}", link.row.request_id);
        match chain_error {
            ChainError::DuplicatePosition(link) => {
                format!("{}: duplicate row number {} of writer {writer}", name(link), link.position)
            }
            ChainError::Gap { link, missing } => {
                format!("{}: row {} of writer {writer}, row {missing} is missing", name(link), link.position)
            }
            ChainError::Altered(link) => format!(
                "{}: hash mismatch at row {} of writer {writer}, the row or the chain before it was altered",
                name(link),
                link.position
            ),
            ChainError::Head { last, rows, error } => {
                let last = last.map_or("none".to_owned(), |last| last.row.request_id.to_string());
                match error {
                    HeadError::UnknownWriter => {
                        format!("ledger row {last}: unknown writer {writer}")
                    }
                    HeadError::Truncated { written } => format!(
                        "writer {writer}: {written} rows written, rows from {rows} on are missing; last \
                         row found: {last}"
                    ),
                    HeadError::BeyondHead { written } => format!(
                        "ledger row {last}: row {} of writer {writer}, which wrote only {written}",
                        rows - 1
                    ),
                    HeadError::HeadMismatch => {
                        format!(
                            "ledger row {last}: does not match the recorded chain head of writer {writer}"
                        )
                    }
                }
            }
        }
    }
}

fn check_cost(row: &UsageRow, findings: &mut Findings) {
    let recomputed = match row.recomputed_cost() {
        Ok(cost) if cost == row.cost => return,
        Ok(cost) => cost.to_string(),
        Err(error) => error.to_string(),
    };
    let (id, cost) = (&row.request_id, row.cost);
    findings.add(format!("ledger row {id}: cost is {cost}, recomputed {recomputed}"));
}

async fn check_stored_replies(store: &VerifyStore, findings: &mut Findings) -> Result<(), DbError> {
    let mut last: Option<FinishedKey> = None;
    loop {
        let page = store.stored_replies.finished_keys(last.as_ref(), PAGE_ROWS).await?;
        for FinishedKey { account, request_id, billed_account, .. } in &page {
            let wrong = match billed_account {
                Some(billed) if billed == account => continue,
                Some(billed) => format!("its ledger row bills account {billed}"),
                None => "no ledger row".to_owned(),
            };
            findings.add(format!("stored reply of {request_id}, account {account}: {wrong}"));
        }
        let Some(end) = page.into_iter().next_back() else { return Ok(()) };
        last = Some(end);
    }
}

fn compare(lines: &Lines, findings: &mut Findings) {
    for ((account, day, key, model, prices), Line { before, rows, after }) in lines {
        if !is_between(rows, before, after) {
            let (stored, summed) = (describe_totals(after), describe_totals(rows));
            let [input, cached_input, output] = prices;
            findings.add(format!(
                "usage of {day}, account {account}, key {key}, model {model} at {input}, {cached_input} (cached) and {output} \
                 per million: {stored} are stored, the rows sum to {summed}"
            ));
        }
    }
}

fn add(totals: &mut UsageTotals, row: &UsageRow) -> Result<(), MoneyError> {
    totals.requests += 1;
    totals.input_tokens += u64::from(row.input_tokens);
    totals.cached_input_tokens += u64::from(row.cached_input_tokens);
    totals.output_tokens += u64::from(row.output_tokens);
    totals.cost = totals.cost.checked_add(row.cost)?;
    Ok(())
}

fn is_between(rows: &UsageTotals, low: &UsageTotals, high: &UsageTotals) -> bool {
    (low.requests..=high.requests).contains(&rows.requests)
        && (low.input_tokens..=high.input_tokens).contains(&rows.input_tokens)
        && (low.cached_input_tokens..=high.cached_input_tokens).contains(&rows.cached_input_tokens)
        && (low.output_tokens..=high.output_tokens).contains(&rows.output_tokens)
        && (low.cost..=high.cost).contains(&rows.cost)
}

fn describe_totals(totals: &UsageTotals) -> String {
    let UsageTotals { requests, input_tokens, cached_input_tokens, output_tokens, cost } = totals;
    format!(
        "{requests} requests, {input_tokens} input tokens ({cached_input_tokens} cached), {output_tokens} output tokens, \
         {cost}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(lines: &mut Lines, entries: &[(&str, u64)], part: fn(&mut Line) -> &mut UsageTotals) {
        for (model, requests) in entries {
            let free = TokenPrice::from_nanos_per_token(0);
            let line = (AccountId(1), Day(1), KeyId(1), (*model).to_owned(), [free; 3]);
            *part(lines.entry(line).or_default()) =
                UsageTotals { requests: *requests, input_tokens: 5 * requests, ..UsageTotals::default() };
        }
    }

    fn findings(before: &[(&str, u64)], rows: &[(&str, u64)], after: &[(&str, u64)]) -> usize {
        let (mut found, mut lines) = (Findings::with_limit(100), Lines::new());
        set(&mut lines, before, |line| &mut line.before);
        set(&mut lines, rows, |line| &mut line.rows);
        set(&mut lines, after, |line| &mut line.after);
        compare(&lines, &mut found);
        found.reported.len()
    }

    #[test]
    fn row_in_the_wrong_sum_is_found_even_if_the_total_matches() {
        assert_eq!(findings(&[("a", 2), ("b", 1)], &[("a", 2), ("b", 1)], &[("a", 2), ("b", 1)]), 0);
        assert_eq!(findings(&[("a", 1), ("b", 2)], &[("a", 2), ("b", 1)], &[("a", 1), ("b", 2)]), 2);
        assert_eq!(findings(&[("a", 3)], &[("a", 2), ("b", 1)], &[("a", 3)]), 2);
    }

    #[test]
    fn rows_added_during_verification_are_no_finding() {
        assert_eq!(findings(&[("a", 1)], &[("a", 2)], &[("a", 3), ("b", 1)]), 0);
        assert_eq!(findings(&[("a", 3)], &[("a", 2)], &[("a", 4)]), 1);
    }
}
