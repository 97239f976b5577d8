//! Which passwords are accepted. There are no composition rules: they make passwords alike and hard to type, not hard to
//! guess.

use super::common::is_common;
use crate::limits::{MAX_PASSWORD_CHARS, MIN_CONTEXT_WORD_CHARS, MIN_PASSWORD_CHARS};
use chancery_domain::EmailAddress;
use unicode_normalization::UnicodeNormalization;

const PRODUCT_NAME: &str = "chancery";

/// Why a new password is rejected. The texts are shown to the user: which rule, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    #[error("Use at least {MIN_PASSWORD_CHARS} characters")]
    TooShort,
    #[error("Use at most {MAX_PASSWORD_CHARS} characters")]
    TooLong,
    #[error(
        "This password is too common: it is on a public list. Choose another, for example a few random words."
    )]
    Common,
    #[error(
        "Do not use your email address as your password. Choose another, for example a few random words."
    )]
    EqualsEmail,
    #[error(
        "This password is mostly your email address or the name of the firm. Digits and symbols do not count. Use other \
         words."
    )]
    ContextWords,
}

/// What an attacker knows about the account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PasswordContext<'a> {
    pub email: &'a EmailAddress,
    pub firm_name: &'a str,
}

/// A password that passed `check`.
pub(crate) struct NewPassword(String);

impl NewPassword {
    pub(crate) fn check(typed: &str, context: &PasswordContext<'_>) -> Result<Self, PasswordError> {
        let password = normalize(typed).ok_or(PasswordError::TooLong)?;
        if password.chars().count() < MIN_PASSWORD_CHARS {
            return Err(PasswordError::TooShort);
        }
        let lowercase = password.to_lowercase();
        let email = context.email.as_str();
        if lowercase == email || Some(lowercase.as_str()) == email.split('@').next() {
            return Err(PasswordError::EqualsEmail);
        }
        if is_common(&password) {
            return Err(PasswordError::Common);
        }
        if is_mostly_context(&lowercase, context) {
            return Err(PasswordError::ContextWords);
        }
        Ok(Self(password))
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Normalizes to NFKC, so that the same text matches whatever keyboard typed it. Returns `None` if too long.
pub(super) fn normalize(typed: &str) -> Option<String> {
    // A character takes at most four bytes, so longer input need not be normalized.
    if typed.len() > MAX_PASSWORD_CHARS * 4 {
        return None;
    }
    let password: String = typed.nfkc().collect();
    (password.chars().count() <= MAX_PASSWORD_CHARS).then_some(password)
}

/// Whether more than half of the password's letters are words that belong to the account.
fn is_mostly_context(lowercase: &str, context: &PasswordContext<'_>) -> bool {
    let mut rest: String = lowercase.chars().filter(|c| c.is_alphabetic()).collect();
    let letters = rest.chars().count();
    for word in context_words(context) {
        // A space, so that what is left and right of the word does not become another word.
        rest = rest.replace(&word, " ");
    }
    let others = rest.chars().filter(|c| c.is_alphabetic()).count();
    2 * others < letters
}

/// Longest first, so that a short word does not break up a long one.
fn context_words(context: &PasswordContext<'_>) -> Vec<String> {
    let email = context.email.as_str();
    let (local, domain) = email.split_once('@').unwrap_or((email, ""));
    // Without the last label, which is `com` and the like.
    let domain = domain.rsplit_once('.').map_or(domain, |(rest, _)| rest);
    let texts = [local, domain, context.firm_name, PRODUCT_NAME];
    let mut words: Vec<String> = texts.into_iter().flat_map(split_words).collect();
    words.sort_by_key(|word| std::cmp::Reverse(word.chars().count()));
    words
}

fn split_words(text: &str) -> Vec<String> {
    let text = text.nfkc().collect::<String>().to_lowercase();
    let words = text.split(|c: char| !c.is_alphabetic());
    words.filter(|word| word.chars().count() >= MIN_CONTEXT_WORD_CHARS).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn email() -> EmailAddress {
        "maya.longlastname@example.com".parse().unwrap()
    }

    fn problem(typed: &str) -> Option<PasswordError> {
        let email = email();
        let context = PasswordContext { email: &email, firm_name: "Hale & Ward Advisers" };
        NewPassword::check(typed, &context).err()
    }

    #[test]
    fn long_uncommon_passwords_are_accepted() {
        for typed in [
            "correct horse",
            "0918273645a",
            "пароль для меня",
            "  blanks  too  ",
            "🐎🐎🐎🐎🐎🐎🐎🐎🐎🐄",
            &"ab".repeat(64),
            "09182736450",
        ] {
            assert_eq!(problem(typed), None, "{typed}");
        }
    }

    #[test]
    fn short_long_common_and_email_passwords_are_rejected() {
        for (typed, expected) in [
            ("", PasswordError::TooShort),
            ("ninechars", PasswordError::TooShort),
            ("éééééé", PasswordError::TooShort),
            (&"x".repeat(129), PasswordError::TooLong),
            (&"x".repeat(100_000), PasswordError::TooLong),
            ("Password123", PasswordError::Common),
            ("1234567890", PasswordError::Common),
            ("QWERTYUIOP", PasswordError::Common),
            ("zzzzzzzzzzzzz", PasswordError::Common),
            ("MAYA.longlastname@example.com", PasswordError::EqualsEmail),
            ("maya.longlastname", PasswordError::EqualsEmail),
        ] {
            assert_eq!(problem(typed), Some(expected), "{typed:.40}");
        }
    }

    #[test]
    fn passwords_from_names_and_digits_are_rejected() {
        for typed in [
            "Hale&Ward2026",
            "haleward!!1",
            "Advisers-2026",
            "Maya1987!!!!",
            "LongLastName#1",
            "example2026!",
            "Chancery-2026!",
            "x-maya-hale-1",
        ] {
            assert_eq!(problem(typed), Some(PasswordError::ContextWords), "{typed}");
        }
        for typed in ["maya likes green tea", "the hale old oak tree", "2026 sailing to norway"] {
            assert_eq!(problem(typed), None, "other words outweigh them: {typed}");
        }
    }

    #[test]
    fn every_text_says_what_to_do() {
        use PasswordError::*;
        for error in [TooShort, TooLong, Common, EqualsEmail, ContextWords] {
            let text = error.to_string();
            assert!(text.contains("Use ") || text.contains("Choose another"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn password_check_never_panics_and_enforces_length(typed in "\\PC{0,200}") {
            let email = email();
            let context = PasswordContext { email: &email, firm_name: "Hale & Ward" };
            if let Ok(NewPassword(password)) = NewPassword::check(&typed, &context) {
                let chars = password.chars().count();
                prop_assert!((MIN_PASSWORD_CHARS..=MAX_PASSWORD_CHARS).contains(&chars));
            }
        }

        #[test]
        fn digits_and_symbols_never_rescue_a_context_word(before in "[0-9!-/ ]{2,20}", after in "[0-9!-/ ]{0,20}") {
            let typed = format!("{before}advisers{after}");
            prop_assert_eq!(problem(&typed), Some(PasswordError::ContextWords));
        }
    }
}
