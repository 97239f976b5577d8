//! Recomputes what the ledger says from the ledger's own rows, and names what differs:
//!
//! 1. each row's cost, from its tokens and prices;
//! 2. each writer's chain, from its first row to its end: a row that was changed, moved, removed or put in between no
//!    longer fits the hashes, and rows missing at the end are missed because the end is kept apart;
//! 3. each sum by day, from its rows;
//! 4. each reply that is kept under an idempotency key, by the row it belongs to: what it says of tokens and of how it
//!    ended is read from there, so the row must be there and bill the same account.
//!
//! A server may add rows meanwhile. Rows are only ever added, together with their chain's end and their sums: so an end
//! that is read after the rows is as far as they are or further, and what the rows make lies between the sums read before
//! and those read after. Without a server the two are equal, and so must the rows be.

use crate::MeterError;
use crate::limits::{VERIFY_FINDINGS, VERIFY_PAGE_ROWS};
use chancery_domain::{AccountId, ChainHash, ChainHead, Day, KeyId, Prices, TokenPrice, UsageRow, WriterId};
use chancery_store::{ChainedRow, DayUsage, KeptKey, Store, UsageTotals};
use std::collections::BTreeMap;

/// What was looked at and what was found. No findings means that everything agrees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    pub total: UsageTotals,
    /// Where each writer's chain ends. Whoever notes these elsewhere can tell later that nothing before them was
    /// rewritten, not even by somebody who rewrote everything after it too.
    pub chains: Vec<(WriterId, ChainHead)>,
    /// The first of them, in the order of the ledger.
    pub findings: Vec<String>,
    /// How many more there are.
    pub more_findings: u64,
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
    store: &dyn Store,
    mut progress: impl FnMut(u64),
) -> Result<Verification, MeterError> {
    let mut found = Verification::default();
    let mut lines = Lines::new();
    read_kept_sums(store, &mut lines, |line| &mut line.before).await?;
    let mut last = None;
    while let Some(writer) = store.writer_after(last).await? {
        last = Some(writer);
        found.read_chain(store, writer, &mut lines, &mut progress).await?;
    }
    read_kept_sums(store, &mut lines, |line| &mut line.after).await?;
    found.compare(&lines);
    found.check_kept_replies(store).await?;
    Ok(found)
}

async fn read_kept_sums(
    store: &dyn Store,
    lines: &mut Lines,
    part: fn(&mut Line) -> &mut UsageTotals,
) -> Result<(), MeterError> {
    let mut last: Option<DayUsage> = None;
    loop {
        let page = store.day_usage(last.as_ref(), VERIFY_PAGE_ROWS).await?;
        let Some(end) = page.last() else { return Ok(()) };
        last = Some(end.clone());
        for usage in page {
            let Prices { input, output } = usage.prices;
            let line = (usage.account, usage.day, usage.key, usage.model, input, output);
            *part(lines.entry(line).or_default()) = usage.totals;
        }
    }
}

impl Verification {
    fn finds(&mut self, finding: String) {
        if self.findings.len() < VERIFY_FINDINGS {
            self.findings.push(finding);
        } else {
            self.more_findings += 1;
        }
    }

    async fn read_chain(
        &mut self,
        store: &dyn Store,
        writer: WriterId,
        lines: &mut Lines,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), MeterError> {
        let mut chain = ChainHead::default();
        let mut last: Option<ChainedRow> = None;
        let mut end = None;
        loop {
            let page = store.chained_rows(writer, last.as_ref(), VERIFY_PAGE_ROWS).await?;
            for chained in &page {
                self.check_cost(&chained.row);
                self.check_link(writer, &mut chain, chained);
                let row = &chained.row;
                add(&mut self.total, row)?;
                let Prices { input, output } = row.prices;
                let line = (row.account, Day::of(row.at), row.key, row.model.clone(), input, output);
                add(&mut lines.entry(line).or_default().rows, row)?;
            }
            progress(self.total.requests);
            match page.into_iter().next_back() {
                Some(row) => last = Some(row),
                // The writer may have gone on before its end was read; then there are more rows by now.
                None if end.is_some_and(|end: ChainHead| end.rows > chain.rows) => break,
                None => {
                    end = store.chain_head(writer).await?;
                    if end.is_none_or(|end| end.rows <= chain.rows) {
                        break;
                    }
                }
            }
        }
        self.check_end(writer, chain, end, last.as_ref());
        self.chains.push((writer, chain));
        Ok(())
    }

    /// Whether the row is the next of the chain; afterwards the chain is followed from this row on, so that one change
    /// is not told again for every row after it.
    fn check_link(&mut self, writer: WriterId, chain: &mut ChainHead, chained: &ChainedRow) {
        let ChainedRow { row, place, hash } = chained;
        let request = &row.request_id;
        if *place < chain.rows {
            self.finds(format!(
                "ledger row {request}: another row is number {place} of writer {writer} already"
            ));
            return;
        }
        if *place > chain.rows {
            let missing = chain.rows;
            self.finds(format!(
                "ledger row {request}: it is number {place} of writer {writer}, and number {missing} is missing"
            ));
        } else {
            let expected = match writer {
                WriterId::BEFORE_CHAINS => ChainHash::default(),
                _ => chain.hash_of_next(writer, row),
            };
            if *hash != expected {
                self.finds(format!(
                    "ledger row {request}: it is not what was written as number {place} of writer {writer}, or does not \
                     follow what was written before it"
                ));
            }
        }
        *chain = ChainHead { rows: place + 1, hash: *hash };
    }

    fn check_end(
        &mut self,
        writer: WriterId,
        chain: ChainHead,
        end: Option<ChainHead>,
        last: Option<&ChainedRow>,
    ) {
        let last = last.map_or("none".to_owned(), |last| last.row.request_id.to_string());
        match end {
            None => self.finds(format!(
                "ledger row {last}: it is said to be of writer {writer}, and there is no such writer"
            )),
            Some(end) if end.rows > chain.rows => self.finds(format!(
                "writer {writer}: it wrote {} rows, and those after number {} are missing; the last one there is {last}",
                end.rows, chain.rows
            )),
            Some(end) if end.rows < chain.rows => self.finds(format!(
                "ledger row {last}: it is number {} of writer {writer}, which wrote only {}",
                chain.rows - 1,
                end.rows
            )),
            Some(end) if end.hash != chain.hash => self
                .finds(format!("ledger row {last}: it is not the one that writer {writer} ended with")),
            Some(_) => {}
        }
    }

    fn check_cost(&mut self, row: &UsageRow) {
        let recomputed = match row.recomputed_cost() {
            Ok(cost) if cost == row.cost => return,
            Ok(cost) => cost.to_string(),
            Err(error) => error.to_string(),
        };
        let (id, cost) = (&row.request_id, row.cost);
        self.finds(format!("ledger row {id}: it says {cost}, its tokens and prices say {recomputed}"));
    }

    async fn check_kept_replies(&mut self, store: &dyn Store) -> Result<(), MeterError> {
        let mut last: Option<KeptKey> = None;
        loop {
            let page = store.kept_keys(last.as_ref(), VERIFY_PAGE_ROWS).await?;
            for KeptKey { account, request_id, billed_account, .. } in &page {
                let wrong = match billed_account {
                    Some(billed) if billed == account => continue,
                    Some(billed) => format!("its ledger row bills account {billed}"),
                    None => "it has no ledger row".to_owned(),
                };
                self.finds(format!("reply of {request_id}, kept for account {account}: {wrong}"));
            }
            let Some(end) = page.into_iter().next_back() else { return Ok(()) };
            last = Some(end);
        }
    }

    fn compare(&mut self, lines: &Lines) {
        for ((account, day, key, model, input, output), Line { before, rows, after }) in lines {
            if !lies_between(rows, before, after) {
                let (kept, made) = (in_words(after), in_words(rows));
                self.finds(format!(
                    "usage of {day}, account {account}, key {key}, model {model} at {input} and {output} a million: {kept} \
                     are kept, the rows make {made}"
                ));
            }
        }
    }
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
        let mut found = Verification::default();
        let mut lines = Lines::new();
        set(&mut lines, before, |line| &mut line.before);
        set(&mut lines, rows, |line| &mut line.rows);
        set(&mut lines, after, |line| &mut line.after);
        found.compare(&lines);
        found.findings.len()
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

    #[test]
    fn of_many_findings_the_first_are_told_and_the_others_counted() {
        let mut found = Verification::default();
        (0..VERIFY_FINDINGS + 5).for_each(|number| found.finds(number.to_string()));
        assert_eq!((found.findings.len(), found.more_findings), (VERIFY_FINDINGS, 5));
        assert_eq!(found.findings[0], "0");
    }
}
