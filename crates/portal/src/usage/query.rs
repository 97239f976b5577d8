//! Parses the query string: `account`, by default all, and `month`, by default the current one.

use super::calendar::month_text;
use chancery_domain::{AccountId, Month};
use chancery_web::{ErrorPage, Problems};

/// The valid parameters, and problems with the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UsageQuery {
    pub(super) account: Option<AccountId>,
    pub(super) month: Month,
    pub(super) problems: Problems,
}

impl UsageQuery {
    /// The last value of a repeated parameter counts.
    pub(super) fn read(query: &str, this_month: Month) -> Self {
        let (mut account, mut month) = (String::new(), String::new());
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "account" => value.trim().clone_into(&mut account),
                "month" => value.trim().clone_into(&mut month),
                _ => {}
            }
        }
        let mut problems = Problems::default();
        let read_account = match account.as_str() {
            "" => None,
            number => number.parse().ok().map(AccountId),
        };
        if read_account.is_none() && !account.is_empty() {
            problems.add("account", NO_SUCH_ACCOUNT);
        }
        let read_month = match month.as_str() {
            "" => Ok(this_month),
            text => text.parse::<Month>().map_err(|_| "Enter a month like 2026-10".to_owned()),
        };
        let read_month = read_month.and_then(|month| match month > this_month {
            false => Ok(month),
            true => Err(format!("Choose a month up to {}", month_text(this_month))),
        });
        let month = read_month.unwrap_or_else(|what| {
            problems.add("month", what);
            this_month
        });
        Self { account: read_account, month, problems }
    }

    /// For an unknown account number: shows all accounts to choose from.
    pub(super) fn without_account(self) -> Self {
        let mut problems = Problems::one("account", NO_SUCH_ACCOUNT);
        problems.0.extend(self.problems.0);
        Self { account: None, problems, ..self }
    }

    /// For JSON, which cannot show the form again.
    pub(super) fn error(&self) -> Option<ErrorPage> {
        let error = ErrorPage::invalid_input("Invalid filter", &self.problems)?;
        Some(error.next_link("/usage", "Go to usage"))
    }
}

const NO_SUCH_ACCOUNT: &str = "Account not found. Choose one from the list.";

/// URL of a month, for one account or all.
pub(super) fn href(account: Option<AccountId>, month: Month) -> String {
    match account {
        Some(account) => format!("/usage?account={account}&month={month}"),
        None => format!("/usage?month={month}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> UsageQuery {
        UsageQuery::read(query, "2026-11".parse().unwrap())
    }

    #[test]
    fn usage_query_round_trips_through_the_url() {
        let october = "2026-10".parse().unwrap();
        for account in [None, Some(AccountId(7))] {
            let href = href(account, october);
            let parsed = read(href.split_once('?').unwrap().1);
            assert_eq!(parsed, UsageQuery { account, month: october, problems: Problems::default() });
        }
        for query in ["", "account=&month=", "other=1", "account=+&month=2026-11"] {
            let parsed = read(query);
            assert_eq!((parsed.account, parsed.month.to_string()), (None, "2026-11".to_owned()));
            assert!(parsed.error().is_none(), "{query}");
        }
    }

    #[test]
    fn invalid_usage_queries_say_what_to_choose() {
        for (query, field, word) in [
            ("account=hale", "account", "list"),
            ("account=99999999999999999999", "account", "list"),
            ("month=october", "month", "2026-10"),
            ("month=2026-13", "month", "2026-10"),
            ("month=2026-12", "month", "November 2026"),
            ("month=%ff%00", "month", "2026-10"),
        ] {
            let parsed = read(query);
            assert!(parsed.problems.of(field).is_some_and(|text| text.contains(word)), "{query}: {parsed:?}");
            assert!(parsed.error().unwrap().reason.starts_with(&format!("`{field}`: ")));
        }
        let both = read("account=x&month=y").error().unwrap();
        assert!(both.reason.contains("`account`") && both.reason.contains("`month`"));
        let unknown = read("account=7&month=y").without_account();
        assert_eq!(unknown.account, None);
        assert_eq!(unknown.problems.0.len(), 2);
    }
}
