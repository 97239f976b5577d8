//! A month's usage by model, by key or by account: rows of one table, and their sum.

use super::money::{Aligned, aligned};
use super::query::address;
use crate::when::grouped;
use chancery_domain::Month;
use chancery_store::{AccountUsage, KeyUsage, UsageGroup, UsageSum, UsageTotals};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Breakdown {
    /// Of its elements, unlike every other on the page.
    pub(super) id: &'static str,
    pub(super) heading: &'static str,
    /// The head of its first column.
    pub(super) column: &'static str,
    pub(super) rows: Vec<Row>,
    pub(super) total: Row,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) link: Option<String>,
    /// A key's prefix.
    pub(super) prefix: Option<String>,
    pub(super) input: String,
    pub(super) output: String,
    pub(super) spend: Aligned,
}

/// What a row is about.
struct Subject {
    name: String,
    link: Option<String>,
    prefix: Option<String>,
    totals: UsageTotals,
}

impl Breakdown {
    pub(super) fn by_model(sums: &[UsageSum], total: &UsageTotals) -> Self {
        let subject = |sum: &UsageSum| {
            let UsageSum { group, requests, input_tokens, output_tokens, cost } = sum.clone();
            let name = match group {
                UsageGroup::Model(model) => model,
                _ => String::new(),
            };
            let totals = UsageTotals { requests, input_tokens, output_tokens, cost };
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
        Self::new(("keys-used", "By key", "Key"), keys.iter().map(subject).collect(), total)
    }

    /// Each leads to its own usage.
    pub(super) fn by_account(accounts: &[AccountUsage], total: &UsageTotals, month: Month) -> Self {
        let subject = |account: &AccountUsage| Subject {
            name: account.name.to_string(),
            link: Some(address(Some(account.account), month)),
            prefix: None,
            totals: account.totals,
        };
        Self::new(("accounts", "By account", "Account"), accounts.iter().map(subject).collect(), total)
    }

    fn new(
        (id, heading, column): (&'static str, &'static str, &'static str),
        subjects: Vec<Subject>,
        total: &UsageTotals,
    ) -> Self {
        let costs = subjects.iter().map(|subject| subject.totals.cost);
        let mut spend = aligned(costs.chain([total.cost]));
        let of_total = spend.pop().unwrap_or_else(Aligned::nothing);
        let row = |(subject, spend): (Subject, Aligned)| Row {
            name: subject.name,
            link: subject.link,
            prefix: subject.prefix,
            input: grouped(subject.totals.input_tokens),
            output: grouped(subject.totals.output_tokens),
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
    use chancery_domain::{AccountId, KeyPrefix, Nanos};

    fn totals(input_tokens: u64, cost: i64) -> UsageTotals {
        UsageTotals { requests: 1, input_tokens, output_tokens: 2, cost: Nanos(cost) }
    }

    #[test]
    fn spend_lines_up_over_all_rows_and_their_sum() {
        let key = |label: &str, cost| KeyUsage {
            prefix: KeyPrefix::from_stored("ck_7f3a".to_owned()),
            label: label.to_owned(),
            totals: totals(1_200, cost),
        };
        let keys = [key("Claims intake", 62_936_134_900), key("", 500_000_000)];
        let table = Breakdown::by_key(&keys, &totals(2_400, 63_436_134_900));
        let spend = |row: &Row| format!("{}|{}", row.spend.amount, row.spend.padding);
        assert_eq!(table.rows.iter().map(spend).collect::<Vec<_>>(), ["62.9361349|", "0.50|00000"]);
        assert_eq!(spend(&table.total), "63.4361349|");
        assert_eq!((table.rows[0].input.as_str(), table.rows[1].name.as_str()), ("1,200", "No label"));
        assert_eq!(table.rows[0].prefix.as_deref(), Some("ck_7f3a"));
    }

    #[test]
    fn an_account_leads_to_its_own_usage_of_the_same_month() {
        let account = AccountUsage {
            account: AccountId(7),
            name: "Hale & Ward".parse().unwrap(),
            totals: totals(1, 1),
        };
        let table = Breakdown::by_account(&[account], &totals(1, 1), "2026-10".parse().unwrap());
        assert_eq!(table.rows[0].link.as_deref(), Some("/usage?account=7&month=2026-10"));
    }
}
