//! Parses the forms for accounts and keys. Invalid values are reported by field.

use chancery_domain::{Account, AccountName, ContactEmail, Nanos, RateLimits};
use chancery_mail::Recipient;
use chancery_store::{
    BillingChange, BillingContact, CapChange, LimitsChange, MAX_KEY_LABEL_CHARS, key_label,
};
use chancery_web::{Problems, capitalize};
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NewAccountInput {
    pub(crate) name: String,
    pub(crate) rpm: String,
    pub(crate) tpm: String,
}

impl NewAccountInput {
    pub(super) fn with_limits(limits: RateLimits) -> Self {
        Self {
            name: String::new(),
            rpm: limits.requests_per_min.to_string(),
            tpm: limits.tokens_per_min.to_string(),
        }
    }

    pub(super) fn read(&self) -> Result<(AccountName, RateLimits), Problems> {
        let mut problems = Problems::default();
        let name = match self.name.trim() {
            "" => Err("Enter a name".to_owned()),
            name => name.parse::<AccountName>().map_err(|error| capitalize(&error.to_string())),
        };
        let name = name.map_err(|text| problems.add("name", text)).ok();
        let (rpm, tpm) = (count(&mut problems, "rpm", &self.rpm), count(&mut problems, "tpm", &self.tpm));
        match (name, rpm, tpm) {
            (Some(name), Some(requests_per_min), Some(tokens_per_min)) => {
                Ok((name, RateLimits { requests_per_min, tokens_per_min }))
            }
            _ => Err(problems),
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LimitsInput {
    pub(crate) rpm: String,
    pub(crate) tpm: String,
    /// Empty for no cap.
    pub(crate) cap: String,
}

impl LimitsInput {
    pub(super) fn of(account: &Account) -> Self {
        Self {
            rpm: account.limits.requests_per_min.to_string(),
            tpm: account.limits.tokens_per_min.to_string(),
            cap: account.spend_per_month.map_or_else(String::new, |cap| cap.to_string()),
        }
    }

    pub(super) fn read(&self) -> Result<LimitsChange, Problems> {
        let mut problems = Problems::default();
        let (rpm, tpm) = (count(&mut problems, "rpm", &self.rpm), count(&mut problems, "tpm", &self.tpm));
        let cap = match self.cap.trim() {
            "" => Some(CapChange::Remove),
            text => text.parse::<Nanos>().map(CapChange::Set).ok(),
        };
        if cap.is_none() {
            let message = "Enter an amount like 250 or 12.50, or leave it empty for no cap";
            problems.add("cap", message);
        }
        match (rpm, tpm, cap) {
            (Some(rpm), Some(tpm), Some(spend_per_month)) => {
                Ok(LimitsChange { requests_per_min: Some(rpm), tokens_per_min: Some(tpm), spend_per_month })
            }
            _ => Err(problems),
        }
    }
}

/// A whole number of at least 1, as the command line accepts it or with commas between thousands, as pages show it.
pub(super) fn count(problems: &mut Problems, field: &'static str, typed: &str) -> Option<u32> {
    let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let read = Some(ungrouped(typed.trim())).filter(|text| is_plain(text)).and_then(|text| text.parse().ok());
    let read = read.filter(|number| *number >= 1);
    if read.is_none() {
        problems.add(field, "Enter a whole number, 1 or more");
    }
    read
}

/// `60,000` as `60000`. Commas that do not part thousands stay, and are rejected: `1,5` is not 15.
fn ungrouped(typed: &str) -> String {
    let mut groups = typed.split(',');
    let is_grouped = groups.next().is_some_and(|first| (1..=3).contains(&first.len()))
        && groups.all(|group| group.len() == 3);
    if is_grouped { typed.replace(',', "") } else { typed.to_owned() }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct BillingInput {
    pub(crate) address: String,
    pub(crate) email: String,
    /// The month of the draft invoice that needs the address. Empty if the form was opened elsewhere.
    pub(crate) draft: String,
}

impl BillingInput {
    pub(super) fn of(billing: &BillingContact) -> Self {
        Self {
            address: billing.address.to_string(),
            email: billing.email.as_str().to_owned(),
            draft: String::new(),
        }
    }

    /// `stored` is the account's billing email, which is accepted as it is.
    pub(super) fn read(&self, stored: Option<&ContactEmail>) -> Result<BillingChange, Problems> {
        let mut problems = Problems::default();
        let address = problems.parse("address", &self.address, "");
        let is_unchanged = stored.is_some_and(|stored| stored.as_str() == self.email);
        let email: Option<ContactEmail> =
            if is_unchanged { None } else { problems.parse("email", &self.email, "") };
        // Alerts are sent to it.
        let is_unusable =
            |email: &ContactEmail| !email.as_str().is_empty() && email.as_str().parse::<Recipient>().is_err();
        if email.as_ref().is_some_and(is_unusable) {
            problems.add("email", "Enter an email address like name@example.com");
        }
        if problems.any() { Err(problems) } else { Ok(BillingChange { address, email }) }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LabelInput {
    pub(crate) label: String,
}

impl LabelInput {
    /// `field` is the id of the input.
    pub(super) fn read(&self, field: &'static str) -> Result<String, Problems> {
        key_label(self.label.trim()).map_err(|_| {
            let message = format!("Enter one line of at most {MAX_KEY_LABEL_CHARS} characters");
            Problems::one(field, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(rpm: &str, tpm: &str, cap: &str) -> Result<LimitsChange, Problems> {
        LimitsInput { rpm: rpm.to_owned(), tpm: tpm.to_owned(), cap: cap.to_owned() }.read()
    }

    #[test]
    fn limits_must_be_whole_numbers_and_cap_is_optional() {
        let change = limits("60", " 4294967295 ", "0.000000001").unwrap();
        assert_eq!((change.requests_per_min, change.tokens_per_min), (Some(60), Some(u32::MAX)));
        assert_eq!(change.spend_per_month, CapChange::Set(Nanos(1)));
        assert_eq!(limits("1", "1", " ").unwrap().spend_per_month, CapChange::Remove);
        let grouped = limits("1,200", "4,294,967,295", "").unwrap();
        assert_eq!((grouped.requests_per_min, grouped.tokens_per_min), (Some(1_200), Some(u32::MAX)));
        for bad in
            ["", "0", "-1", "+1", "1.5", "1,5", "60,00", "60000,000", ",000", "4294967296", "sixty", "١"]
        {
            assert!(limits(bad, "1", "").unwrap_err().of("rpm").is_some(), "{bad:?} was taken");
        }
        for bad in ["-1", "1,000", "0.0000000001", "1e3", "none", "9223372036.854775808", "$5"] {
            assert!(limits("1", "1", bad).unwrap_err().of("cap").is_some(), "{bad:?} was taken");
        }
        let all = limits("x", "y", "z").unwrap_err();
        assert_eq!(all.0.iter().map(|problem| problem.field).collect::<Vec<_>>(), ["rpm", "tpm", "cap"]);
    }

    #[test]
    fn billing_contact_is_optional_and_bounded() {
        let read = |address: &str, email: &str| {
            let (address, email) = (address.to_owned(), email.to_owned());
            BillingInput { address, email, draft: String::new() }.read(None)
        };
        let change = read("", "").unwrap();
        assert_eq!((change.address.unwrap().as_str(), change.email.unwrap().as_str()), ("", ""));
        let problems = read(&"x".repeat(501), "nobody").unwrap_err();
        assert!(problems.of("address").is_some() && problems.of("email").is_some());
        let problems = read("", "bills..x@hale.example").unwrap_err();
        assert!(problems.of("email").is_some(), "no email can be sent to it");
        assert!(read("", "bills/2026@hale.example").is_ok());
    }

    #[test]
    fn key_label_is_one_bounded_line() {
        let read = |label: &str| LabelInput { label: label.to_owned() }.read("label");
        assert_eq!(read(" backend ").unwrap(), "backend");
        assert_eq!(read("").unwrap(), "");
        for bad in ["a\nb", "a\0b", &"x".repeat(101)] {
            assert!(read(bad).is_err());
        }
    }
}
