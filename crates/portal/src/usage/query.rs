//! What an address of the page asks for: `account`, all where it is left out, and `month`, this one where it is left out.

use super::calendar::month_words;
use chancery_domain::{AccountId, Month};
use chancery_web::{ErrorPage, Problems};
use openidconnect::url::form_urlencoded;

/// What was asked for, as far as it could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) account: Option<AccountId>,
    pub(super) month: Month,
    pub(super) problems: Problems,
}

impl Asked {
    /// Of several values of one name the last counts.
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
            text => {
                text.parse::<Month>().map_err(|_| "Write a month as YYYY-MM, for example 2026-10.".to_owned())
            }
        };
        let read_month = read_month.and_then(|month| match month > this_month {
            false => Ok(month),
            true => Err(format!("This month has not begun. Choose one up to {}.", month_words(this_month))),
        });
        let month = read_month.unwrap_or_else(|what| {
            problems.add("month", what);
            this_month
        });
        Self { account: read_account, month, problems }
    }

    /// There is no account of this number: all are shown to choose from.
    pub(super) fn without_account(self) -> Self {
        let mut problems = Problems::one("account", NO_SUCH_ACCOUNT);
        problems.0.extend(self.problems.0);
        Self { account: None, problems, ..self }
    }

    /// For programs, which no form can be shown again.
    pub(super) fn error(&self) -> Option<ErrorPage> {
        let error = ErrorPage::invalid_values("This cannot be shown", &self.problems)?;
        Some(error.next_link("/usage", "Go to the usage"))
    }
}

const NO_SUCH_ACCOUNT: &str = "There is no such account. Choose one from the list.";

/// Where a month of an account is, or of all.
pub(super) fn address(account: Option<AccountId>, month: Month) -> String {
    match account {
        Some(account) => format!("/usage?account={account}&month={month}"),
        None => format!("/usage?month={month}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Asked {
        Asked::read(query, "2026-11".parse().unwrap())
    }

    #[test]
    fn an_address_leads_to_an_account_and_a_month() {
        let october = "2026-10".parse().unwrap();
        for account in [None, Some(AccountId(7))] {
            let address = address(account, october);
            let asked = read(address.split_once('?').unwrap().1);
            assert_eq!(asked, Asked { account, month: october, problems: Problems::default() });
        }
        for query in ["", "account=&month=", "other=1", "account=+&month=2026-11"] {
            let asked = read(query);
            assert_eq!((asked.account, asked.month.to_string()), (None, "2026-11".to_owned()));
            assert!(asked.error().is_none(), "{query}");
        }
    }

    #[test]
    fn what_cannot_be_shown_is_named_with_what_to_choose() {
        for (query, field, word) in [
            ("account=hale", "account", "list"),
            ("account=99999999999999999999", "account", "list"),
            ("month=october", "month", "YYYY-MM"),
            ("month=2026-13", "month", "YYYY-MM"),
            ("month=2026-12", "month", "November 2026"),
            ("month=%ff%00", "month", "YYYY-MM"),
        ] {
            let asked = read(query);
            assert!(asked.problems.of(field).is_some_and(|text| text.contains(word)), "{query}: {asked:?}");
            assert!(asked.error().unwrap().reason.starts_with(&format!("`{field}`: ")));
        }
        let both = read("account=x&month=y").error().unwrap();
        assert!(both.reason.contains("`account`") && both.reason.contains("`month`"));
        let unknown = read("account=7&month=y").without_account();
        assert_eq!(unknown.account, None);
        assert_eq!(unknown.problems.0.len(), 2);
    }
}
