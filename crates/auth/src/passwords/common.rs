//! The passwords that attackers try first. `README.md` beside this file says where the list comes from.

use std::sync::LazyLock;

/// Sorted, lower case, one per line.
const LIST: &str = include_str!("common.txt");

/// Split into lines at the first use, so that starting the server costs nothing.
static COMMON: LazyLock<Vec<&str>> = LazyLock::new(|| LIST.lines().collect());

/// Whether the password is on the list, or is one character repeated. Upper case and surrounding spaces do not matter.
pub(super) fn is_common(password: &str) -> bool {
    let password = password.trim().to_lowercase();
    let mut chars = password.chars();
    let first = chars.next();
    let is_one_char = first.is_some() && chars.all(|c| Some(c) == first);
    is_one_char || COMMON.binary_search_by(|common| (*common).cmp(password.as_str())).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{MAX_PASSWORD_CHARS, MIN_PASSWORD_CHARS};
    use proptest::prelude::*;

    #[test]
    fn list_is_sorted_and_has_ten_thousand_passwords_of_valid_length() {
        assert!(COMMON.len() >= 10_000, "{}", COMMON.len());
        assert!(COMMON.is_sorted_by(|one, next| one < next), "sorted, and none is there twice");
        for common in COMMON.iter() {
            let chars = common.chars().count();
            assert!((MIN_PASSWORD_CHARS..=MAX_PASSWORD_CHARS).contains(&chars), "{common}");
            assert_eq!((common.to_lowercase().as_str(), common.trim()), (*common, *common));
        }
    }

    #[test]
    fn common_passwords_are_recognized_in_any_case() {
        for password in
            ["1234567890", "QWERTYUIOP", "Password123", " password123 ", "zzzzzzzzzz", "1Q2W3E4R5T"]
        {
            assert!(is_common(password), "{password}");
        }
        for password in ["", "correct horse", "walnut ledger candle", "password12345678x"] {
            assert!(!is_common(password), "{password}");
        }
    }

    proptest! {
        #[test]
        fn every_line_is_found_in_any_case(index in 0_usize..10_000, upper in any::<[bool; 16]>()) {
            let mixed: String = COMMON[index]
                .chars()
                .enumerate()
                .map(|(at, c)| if upper[at % upper.len()] { c.to_ascii_uppercase() } else { c })
                .collect();
            prop_assert!(is_common(&mixed), "{}", mixed);
        }
    }
}
