//! Secrets held by a browser or a mailbox: sessions, pending sign-ins, links in emails. Each has 256 random bits. Only a SHA-256
//! is stored; it needs no salt, because there is nothing to guess.

use crate::Randomness;
use crate::key::push_random_chars;
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

const ALPHANUMERIC: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
/// This many uniform draws from 62 characters carry 256 bits.
const TOKEN_CHARS: usize = 43;

/// The secret itself. Its `Debug` shows nothing, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretToken(String);

impl SecretToken {
    pub fn generate(randomness: &dyn Randomness) -> Self {
        let mut text = String::with_capacity(TOKEN_CHARS);
        push_random_chars(&mut text, TOKEN_CHARS, ALPHANUMERIC, randomness);
        Self(text)
    }

    /// Returns `None` for text that cannot be one of our tokens.
    pub fn parse(text: &str) -> Option<Self> {
        let is_valid = text.len() == TOKEN_CHARS && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_valid.then(|| Self(text.to_owned()))
    }

    pub fn hash(&self) -> TokenHash {
        TokenHash(Sha256::digest(self.0.as_bytes()).into())
    }

    /// Hashes a short text with this token, so that the text cannot be guessed from the hash alone.
    pub fn hash_with(&self, short: &str) -> TokenHash {
        TokenHash(Sha256::new().chain_update(&self.0).chain_update([0]).chain_update(short).finalize().into())
    }

    /// The secret, only to be sent to its holder.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretToken(…)")
    }
}

/// The stored form of a `SecretToken`.
#[derive(Clone, Copy, Debug)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    /// Compares in constant time.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

/// A six-digit verification code sent by email.
#[derive(Clone, PartialEq, Eq)]
pub struct EmailCode(String);

impl EmailCode {
    pub const DIGITS: usize = 6;

    pub fn generate(randomness: &dyn Randomness) -> Self {
        let mut text = String::with_capacity(Self::DIGITS);
        push_random_chars(&mut text, Self::DIGITS, b"0123456789", randomness);
        Self(text)
    }

    /// Ignores spaces and hyphens, which people and mail programs insert, and line endings, which pasting adds.
    pub fn parse(typed: &str) -> Option<Self> {
        let digits: String = typed.chars().filter(|sign| !sign.is_whitespace() && *sign != '-').collect();
        let is_code = digits.len() == Self::DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_code.then_some(Self(digits))
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for EmailCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MailCode(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SeededRandomness;

    #[test]
    fn token_round_trips_and_debug_hides_it() {
        let randomness = SeededRandomness::new(3);
        let token = SecretToken::generate(&randomness);
        assert_eq!(SecretToken::parse(token.reveal()), Some(token.clone()));
        assert_ne!(token, SecretToken::generate(&randomness));
        assert!(token.hash().matches(&SecretToken::parse(token.reveal()).unwrap().hash()));
        assert!(!format!("{token:?}").contains(token.reveal()));
        for text in ["", "x", &format!("{}x", token.reveal()), &token.reveal().replace(|_| true, "-")] {
            assert_eq!(SecretToken::parse(text), None);
        }
    }

    #[test]
    fn code_parsing_ignores_spaces_and_hyphens() {
        let code = EmailCode::generate(&SeededRandomness::new(3));
        assert_eq!(code.reveal().len(), 6);
        let (first, second) = code.reveal().split_at(3);
        for typed in [format!("{first} {second}"), format!(" {first}-{second}\r\n"), code.reveal().to_owned()]
        {
            assert_eq!(EmailCode::parse(&typed), Some(code.clone()));
        }
        for typed in ["", "12345", "1234567", "12345a", "１２３４５６", "12 34 5"] {
            assert_eq!(EmailCode::parse(typed), None, "{typed}");
        }
    }

    #[test]
    fn code_hash_depends_on_token() {
        let randomness = SeededRandomness::new(3);
        let (one, other) = (SecretToken::generate(&randomness), SecretToken::generate(&randomness));
        assert!(one.hash_with("123456").matches(&one.hash_with("123456")));
        assert!(!one.hash_with("123456").matches(&other.hash_with("123456")));
    }
}
