//! A month's usage by model, key or account, as table rows with their total.

use super::query::href;
use chancery_domain::{AlignedAmount, Month, Nanos, align_amounts, group_thousands};
use chancery_store::{AccountUsage, KeyUsage, UsageGroup, UsageSum, UsageTotals};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Breakdown {
    /// Element id, unique on the page.
    pub(super) id: &'static str,
    pub(super) heading: &'static str,
    /// Header of the first column.
    pub(super) column: &'static str,
    pub(super) rows: Vec<Row>,
    pub(super) total: Row,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) link: Option<String>,
    pub(super) prefix: Option<String>,
    pub(super) input: String,
    /// The part of the input that was cached.
    pub(super) cached_input: String,
    pub(super) output: String,
    pub(super) spend: AlignedAmount,
}

struct Subject {
    name: String,
    link: Option<String>,
    prefix: Option<String>,
    totals: UsageTotals,
}

impl Subject {
    fn others(totals: UsageTotals) -> Self {
        Self { name: "Other".to_owned(), link: None, prefix: None, totals }
    }
}

/// Usage of everything that is not listed: the total less the listed rows, if anything remains.
pub(super) fn others<'a>(
    listed: impl IntoIterator<Item = &'a UsageTotals>,
    total: &UsageTotals,
) -> Option<UsageTotals> {
    let left = listed.into_iter().fold(*total, |left, listed| UsageTotals {
        requests: left.requests.saturating_sub(listed.requests),
        input_tokens: left.input_tokens.saturating_sub(listed.input_tokens),
        cached_input_tokens: left.cached_input_tokens.saturating_sub(listed.cached_input_tokens),
        output_tokens: left.output_tokens.saturating_sub(listed.output_tokens),
        cost: Nanos(left.cost.0.saturating_sub(listed.cost.0)),
    });
    (left.requests > 0).then_some(left)
}

impl Breakdown {
    pub(super) fn by_model(sums: &[UsageSum], total: &UsageTotals) -> Self {
        let subject = |sum: &UsageSum| {
            let UsageSum { group, requests, input_tokens, cached_input_tokens, output_tokens, cost } =
                sum.clone();
            let name = match group {
                UsageGroup::Model(model) => model,
                _ => String::new(),
            };
            let totals = UsageTotals { requests, input_tokens, cached_input_tokens, output_tokens, cost };
            Subject { name, link: None, prefix: None, totals }
        };
        Self::new(("models", "By model", "Model"), sums.iter().map(subject).collect(), total)
    }

    pub(super) fn by_key(keys: &[KeyUsage], total: &UsageTotals) -> Self {
        let subject = |key: &KeyUsage| Subject {
            name: if key.label.is_empty() { "No label".to_owned() } else { key.label.clone() },
            link: None,
            prefix: Some(key.prefix.to_string()),
            totals: key.totals,
        };
        let others = others(keys.iter().map(|key| &key.totals), total);
        let subjects = keys.iter().map(subject).chain(others.map(Subject::others));
        Self::new(("keys-used", "By key", "Key"), subjects.collect(), total)
    }

    /// Each row links to the account's own usage.
    pub(super) fn by_account(accounts: &[AccountUsage], total: &UsageTotals, month: Month) -> Self {
        let subject = |account: &AccountUsage| Subject {
            name: account.name.to_string(),
            link: Some(href(Some(account.account), month)),
            prefix: None,
            totals: account.totals,
        };
        let others = others(accounts.iter().map(|account| &account.totals), total);
        let subjects = accounts.iter().map(subject).chain(others.map(Subject::others));
        Self::new(("accounts", "By account", "Account"), subjects.collect(), total)
    }

    fn new(
        (id, heading, column): (&'static str, &'static str, &'static str),
        subjects: Vec<Subject>,
        total: &UsageTotals,
    ) -> Self {
        let costs = subjects.iter().map(|subject| subject.totals.cost);
        let mut spend = align_amounts(costs.chain([total.cost]));
        let of_total = spend.pop().unwrap_or_else(AlignedAmount::default);
        let row = |(subject, spend): (Subject, AlignedAmount)| Row {
            name: subject.name,
            link: subject.link,
            prefix: subject.prefix,
            input: group_thousands(subject.totals.input_tokens),
            cached_input: group_thousands(subject.totals.cached_input_tokens),
            output: group_thousands(subject.totals.output_tokens),
            spend,
        };
        let total = Subject { name: "Total".to_owned(), link: None, prefix: None, totals: *total };
        Self {
            id,
            heading,
            column,
            rows: subjects.into_iter().zip(spend).map(row).collect(),
            total: row((total, of_total)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{AccountId, KeyPrefix};

    fn totals(input_tokens: u64, cost: i64) -> UsageTotals {
        let cached_input_tokens = input_tokens / 100;
        UsageTotals { requests: 1, input_tokens, cached_input_tokens, output_tokens: 2, cost: Nanos(cost) }
    }

    #[test]
    fn spend_is_aligned_across_rows_and_total() {
        let key = |label: &str, cost| KeyUsage {
            prefix: KeyPrefix::from_stored("ck_7f3a".to_owned()),
            label: label.to_owned(),
            totals: totals(1_200, cost),
        };
        let keys = [key("Claims intake", 62_936_134_900), key("", 500_000_000)];
        let both = UsageTotals { requests: 2, output_tokens: 4, ..totals(2_400, 63_436_134_900) };
        let table = Breakdown::by_key(&keys, &both);
        let spend = |row: &Row| format!("{}|{}", row.spend.text, row.spend.pad);
        assert_eq!(table.rows.iter().map(spend).collect::<Vec<_>>(), ["62.9361349|", "0.50|00000"]);
        assert_eq!(spend(&table.total), "63.4361349|");
        assert_eq!((table.rows[0].input.as_str(), table.rows[1].name.as_str()), ("1,200", "No label"));
        assert_eq!((table.rows[0].cached_input.as_str(), table.total.cached_input.as_str()), ("12", "24"));
        assert_eq!(table.rows[0].prefix.as_deref(), Some("ck_7f3a"));
    }

    #[test]
    fn unlisted_usage_is_summed_in_the_last_row() {
        let key = KeyUsage {
            prefix: KeyPrefix::from_stored("ck_7f3a".to_owned()),
            label: "Claims intake".to_owned(),
            totals: totals(1_200, 500_000_000),
        };
        let all = UsageTotals { requests: 9, output_tokens: 5, ..totals(1_234, 750_000_000) };
        let table = Breakdown::by_key(&[key], &all);
        let row = |row: &Row| {
            [row.name.clone(), row.input.clone(), row.output.clone(), row.spend.text.clone()].join(" ")
        };
        assert_eq!(
            table.rows.iter().map(row).collect::<Vec<_>>(),
            ["Claims intake 1,200 2 0.50", "Other 34 3 0.25"]
        );
        assert_eq!(others([&all], &all), None);
    }

    #[test]
    fn account_row_links_to_its_usage_in_the_same_month() {
        let account = AccountUsage {
            account: AccountId(7),
            name: "Hale & Ward".parse().unwrap(),
            totals: totals(1, 1),
        };
        let table = Breakdown::by_account(&[account], &totals(1, 1), "2026-10".parse().unwrap());
        assert_eq!(table.rows[0].link.as_deref(), Some("/usage?account=7&month=2026-10"));
    }
}
