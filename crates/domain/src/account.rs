//! Billing accounts: who pays, how much they may use per minute, and how much they may spend in a month.

use crate::{AccountId, Nanos, UnixMillis};
use std::fmt;
use std::str::FromStr;

/// What an account is called on the command line and on invoices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountName(String);

/// Longest account name, in characters.
const MAX_NAME_CHARS: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use 1 to {MAX_NAME_CHARS} visible characters, without spaces at the ends")]
pub struct AccountNameError;

impl FromStr for AccountName {
    type Err = AccountNameError;

    fn from_str(text: &str) -> Result<Self, AccountNameError> {
        let chars = text.chars().count();
        let is_clean = text.trim() == text && !text.chars().any(|c| c.is_control() || is_invisible(c));
        if is_clean && (1..=MAX_NAME_CHARS).contains(&chars) {
            Ok(Self(text.to_owned()))
        } else {
            Err(AccountNameError)
        }
    }
}

/// Characters that are invisible or reverse the text, so that two different names look the same.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

impl AccountName {
    /// Skips validation, because stored names may predate the current rules.
    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Caps on one account's use of the generation API, over all its keys together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimits {
    pub requests_per_min: u32,
    pub tokens_per_min: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountState {
    Open,
    Closed { at: UnixMillis },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub id: AccountId,
    pub name: AccountName,
    pub limits: RateLimits,
    /// Spending cap per calendar month (UTC); `None` means no cap.
    pub spend_per_month: Option<Nanos>,
    pub created_at: UnixMillis,
    pub state: AccountState,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_name_must_be_visible_and_bounded() {
        for good in ["Hale & Ward", "a", "Büro Süd", &"x".repeat(100)] {
            assert!(good.parse::<AccountName>().is_ok(), "{good:?} was refused");
        }
        for bad in ["", " a", "a ", "a\nb", "a\0", "a\u{200b}b", "\u{202e}a", &"x".repeat(101)] {
            assert!(bad.parse::<AccountName>().is_err(), "{bad:?} was taken");
        }
    }
}
