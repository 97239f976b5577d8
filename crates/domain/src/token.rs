//! Secrets that a browser or a mailbox holds for us: sessions, sign-ins under way, links in mail. 256 random bits each; only
//! a SHA-256 is kept, which is enough without salt, because there is nothing to guess.

use crate::Randomness;
use crate::key::push_uniform;
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

const MIXED: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
/// As many uniform draws from 62 characters carry 256 bits.
const TOKEN_CHARS: usize = 43;

/// The secret itself. Its `Debug` shows nothing, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretToken(String);

impl SecretToken {
    pub fn generate(randomness: &dyn Randomness) -> Self {
        let mut text = String::with_capacity(TOKEN_CHARS);
        push_uniform(&mut text, TOKEN_CHARS, MIXED, randomness);
        Self(text)
    }

    /// None for what was never one of ours.
    pub fn parse(text: &str) -> Option<Self> {
        let is_ours = text.len() == TOKEN_CHARS && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_ours.then(|| Self(text.to_owned()))
    }

    pub fn hash(&self) -> TokenHash {
        TokenHash(Sha256::digest(self.0.as_bytes()).into())
    }

    /// A hash of something short that cannot be guessed from the hash without this token.
    pub fn hash_with(&self, short: &str) -> TokenHash {
        TokenHash(Sha256::new().chain_update(&self.0).chain_update([0]).chain_update(short).finalize().into())
    }

    /// To be given to the one who holds it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretToken(…)")
    }
}

/// What is kept of a `SecretToken`.
#[derive(Clone, Copy, Debug)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    /// Compared in constant time.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

/// Six digits that a person reads in a mail and types.
#[derive(Clone, PartialEq, Eq)]
pub struct MailCode(String);

impl MailCode {
    pub const DIGITS: usize = 6;

    pub fn generate(randomness: &dyn Randomness) -> Self {
        let mut text = String::with_capacity(Self::DIGITS);
        push_uniform(&mut text, Self::DIGITS, b"0123456789", randomness);
        Self(text)
    }

    /// Blanks and hyphens between digits are how people and mail programs write it, and pasting brings line ends along.
    pub fn parse(typed: &str) -> Option<Self> {
        let digits: String = typed.chars().filter(|sign| !sign.is_whitespace() && *sign != '-').collect();
        let is_code = digits.len() == Self::DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_code.then_some(Self(digits))
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for MailCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MailCode(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SeededRandomness;

    #[test]
    fn a_token_reads_back_and_tells_nothing_of_itself() {
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
    fn a_code_is_six_digits_however_it_is_typed() {
        let code = MailCode::generate(&SeededRandomness::new(3));
        assert_eq!(code.reveal().len(), 6);
        let (first, second) = code.reveal().split_at(3);
        for typed in [format!("{first} {second}"), format!(" {first}-{second}\r\n"), code.reveal().to_owned()]
        {
            assert_eq!(MailCode::parse(&typed), Some(code.clone()));
        }
        for typed in ["", "12345", "1234567", "12345a", "１２３４５６", "12 34 5"] {
            assert_eq!(MailCode::parse(typed), None, "{typed}");
        }
    }

    #[test]
    fn a_codes_hash_is_worth_nothing_without_its_token() {
        let randomness = SeededRandomness::new(3);
        let (one, other) = (SecretToken::generate(&randomness), SecretToken::generate(&randomness));
        assert!(one.hash_with("123456").matches(&one.hash_with("123456")));
        assert!(!one.hash_with("123456").matches(&other.hash_with("123456")));
    }
}
