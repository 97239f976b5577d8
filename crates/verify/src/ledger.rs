//! Recomputes what the ledger says from its own rows:
//!
//! 1. each row's cost, from its tokens and prices;
//! 2. each writer's chain, from its first row to its end (`chain`);
//! 3. each sum by day, from its rows;
//! 4. each reply that is kept under an idempotency key, by the row it belongs to: what it says of tokens and of how it
//!    ended is read from there, so the row must be there and bill the same account.
//!
//! A server may add rows meanwhile. Rows are only ever added, together with their sums: so what the rows make lies between
//! the sums read before and those read after. Without a server the two are equal, and so must the rows be.

use crate::chain::{ChainedTable, EndFlaw, Flaw, walk};
use crate::{Findings, VerifyError};
use chancery_domain::{
    AccountId, ChainHash, ChainHead, Day, KeyId, MoneyError, Prices, TokenPrice, UsageRow, WriterId,
};
use chancery_store::{ChainedRow, DayUsage, DbError, KeptKey, UsageTotals, VerifyStore};
use std::collections::BTreeMap;

/// Rows that are read at once.
const PAGE_ROWS: u32 = 1_000;
const MAX_FINDINGS_TOLD: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerVerification {
    pub total: UsageTotals,
    /// Where each writer's chain ends. Whoever notes these elsewhere can tell later that nothing before them was
    /// rewritten, not even by somebody who rewrote everything after it too.
    pub chains: Vec<(WriterId, ChainHead)>,
    pub findings: Findings,
}

/// What one line of the sums by day is about.
type SumKey = (AccountId, Day, KeyId, String, TokenPrice, TokenPrice);
type Lines = BTreeMap<SumKey, Line>;

/// One line of the sums by day: as it was kept before the rows were read, as the rows make it, and as it was kept then.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    before: UsageTotals,
    rows: UsageTotals,
    after: UsageTotals,
}

/// `progress` is told the number of rows read so far.
pub async fn verify_ledger(
    store: &VerifyStore,
    progress: impl FnMut(u64),
) -> Result<LedgerVerification, VerifyError> {
    let mut findings = Findings::at_most(MAX_FINDINGS_TOLD);
    let (mut total, mut lines) = (UsageTotals::default(), Lines::new());
    read_kept_sums(store, &mut lines, |line| &mut line.before).await?;
    let visit = |row: &UsageRow, findings: &mut Findings| {
        check_cost(row, findings);
        add(&mut total, row)?;
        let Prices { input, output } = row.prices;
        let line = (row.account, Day::of(row.at), row.key, row.model.clone(), input, output);
        Ok(add(&mut lines.entry(line).or_default().rows, row)?)
    };
    let walked = walk(&LedgerTable(store), &mut findings, visit, progress).await?;
    read_kept_sums(store, &mut lines, |line| &mut line.after).await?;
    compare(&lines, &mut findings);
    check_kept_replies(store, &mut findings).await?;
    Ok(LedgerVerification { total, chains: walked.chains, findings })
}

async fn read_kept_sums(
    store: &VerifyStore,
    lines: &mut Lines,
    part: fn(&mut Line) -> &mut UsageTotals,
) -> Result<(), VerifyError> {
    let mut last: Option<DayUsage> = None;
    loop {
        let page = store.ledger_chains.day_usage(last.as_ref(), PAGE_ROWS).await?;
        let Some(end) = page.last() else { return Ok(()) };
        last = Some(end.clone());
        for usage in page {
            let Prices { input, output } = usage.prices;
            let line = (usage.account, usage.day, usage.key, usage.model, input, output);
            *part(lines.entry(line).or_default()) = usage.totals;
        }
    }
}

struct LedgerTable<'a>(&'a VerifyStore);

impl ChainedTable for LedgerTable<'_> {
    type Link = ChainedRow;
    type Row = UsageRow;

    fn parts(link: &ChainedRow) -> (&UsageRow, u64, ChainHash) {
        (&link.row, link.place, link.hash)
    }

    async fn writer_after(&self, writer: Option<WriterId>) -> Result<Option<WriterId>, DbError> {
        self.0.ledger_chains.writer_after(writer).await
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
        chain.hash_of_next(writer, row)
    }

    fn describe(writer: WriterId, flaw: Flaw<'_, ChainedRow>) -> String {
        let name = |link: &ChainedRow| format!("ledger row {}", link.row.request_id);
        match flaw {
            Flaw::PlaceTaken(link) => {
                format!("{}: another row is number {} of writer {writer} already", name(link), link.place)
            }
            Flaw::Gap { link, missing } => format!(
                "{}: it is number {} of writer {writer}, and number {missing} is missing",
                name(link),
                link.place
            ),
            Flaw::Altered(link) => format!(
                "{}: it is not what was written as number {} of writer {writer}, or does not follow what was written \
                 before it",
                name(link),
                link.place
            ),
            Flaw::End { last, rows, flaw } => {
                let last = last.map_or("none".to_owned(), |last| last.row.request_id.to_string());
                match flaw {
                    EndFlaw::NoSuchWriter => {
                        format!(
                            "ledger row {last}: it is said to be of writer {writer}, and there is no such writer"
                        )
                    }
                    EndFlaw::CutOff { written } => format!(
                        "writer {writer}: it wrote {written} rows, and those after number {rows} are missing; the last \
                         one there is {last}"
                    ),
                    EndFlaw::TooLong { written } => format!(
                        "ledger row {last}: it is number {} of writer {writer}, which wrote only {written}",
                        rows - 1
                    ),
                    EndFlaw::OtherRow => {
                        format!("ledger row {last}: it is not the one that writer {writer} ended with")
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
    findings.add(format!("ledger row {id}: it says {cost}, its tokens and prices say {recomputed}"));
}

async fn check_kept_replies(store: &VerifyStore, findings: &mut Findings) -> Result<(), DbError> {
    let mut last: Option<KeptKey> = None;
    loop {
        let page = store.stored_replies.kept_keys(last.as_ref(), PAGE_ROWS).await?;
        for KeptKey { account, request_id, billed_account, .. } in &page {
            let wrong = match billed_account {
                Some(billed) if billed == account => continue,
                Some(billed) => format!("its ledger row bills account {billed}"),
                None => "it has no ledger row".to_owned(),
            };
            findings.add(format!("reply of {request_id}, kept for account {account}: {wrong}"));
        }
        let Some(end) = page.into_iter().next_back() else { return Ok(()) };
        last = Some(end);
    }
}

fn compare(lines: &Lines, findings: &mut Findings) {
    for ((account, day, key, model, input, output), Line { before, rows, after }) in lines {
        if !lies_between(rows, before, after) {
            let (kept, made) = (in_words(after), in_words(rows));
            findings.add(format!(
                "usage of {day}, account {account}, key {key}, model {model} at {input} and {output} a million: {kept} \
                 are kept, the rows make {made}"
            ));
        }
    }
}

fn add(totals: &mut UsageTotals, row: &UsageRow) -> Result<(), MoneyError> {
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

fn in_words(totals: &UsageTotals) -> String {
    let UsageTotals { requests, input_tokens, output_tokens, cost } = totals;
    format!("{requests} requests, {input_tokens} tokens in, {output_tokens} out, {cost}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(lines: &mut Lines, entries: &[(&str, u64)], part: fn(&mut Line) -> &mut UsageTotals) {
        for (model, requests) in entries {
            let free = TokenPrice::from_nanos_per_token(0);
            let line = (AccountId(1), Day(1), KeyId(1), (*model).to_owned(), free, free);
            *part(lines.entry(line).or_default()) =
                UsageTotals { requests: *requests, input_tokens: 5 * requests, ..UsageTotals::default() };
        }
    }

    fn findings(before: &[(&str, u64)], rows: &[(&str, u64)], after: &[(&str, u64)]) -> usize {
        let (mut found, mut lines) = (Findings::at_most(100), Lines::new());
        set(&mut lines, before, |line| &mut line.before);
        set(&mut lines, rows, |line| &mut line.rows);
        set(&mut lines, after, |line| &mut line.after);
        compare(&lines, &mut found);
        found.told.len()
    }

    #[test]
    fn a_row_in_the_wrong_sum_is_found_though_the_total_is_right() {
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
