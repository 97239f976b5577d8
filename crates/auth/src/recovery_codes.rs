//! Recovery codes, for who has lost the other factors. Only hashes are stored, and each code works once.

use crate::limits::{RECOVERY_CODE_CHARS, RECOVERY_CODES};
use chancery_domain::{Randomness, TokenHash};
use sha2::{Digest, Sha256};

/// Crockford's: no letter looks like a digit.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const GROUP_CHARS: usize = 4;

/// A new set of codes, to be shown once.
pub(crate) struct NewRecoveryCodes(Vec<String>);

impl NewRecoveryCodes {
    pub(crate) fn generate(randomness: &dyn Randomness) -> Self {
        Self((0..RECOVERY_CODES).map(|_| generate_code(randomness)).collect())
    }

    /// As people read them: `abcd-efgh-jkmn-pqrs`.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.0.iter().map(|code| grouped(code)).collect()
    }

    pub(crate) fn hashes(&self, subject: &str) -> Vec<TokenHash> {
        self.0.iter().map(|code| hash(subject, code)).collect()
    }
}

fn generate_code(randomness: &dyn Randomness) -> String {
    let mut draws = [0_u8; RECOVERY_CODE_CHARS];
    randomness.fill(&mut draws);
    // 32 divides 256, so every character is equally likely.
    draws.iter().map(|draw| char::from(ALPHABET[usize::from(draw % 32)])).collect()
}

fn grouped(code: &str) -> String {
    let chars: Vec<char> = code.chars().collect();
    let groups: Vec<String> = chars.chunks(GROUP_CHARS).map(|group| group.iter().collect()).collect();
    groups.join("-")
}

/// The hash of a typed code. `None` if it cannot be one of ours. Capitals, spaces and look-alikes do not matter.
pub(crate) fn hash_typed(subject: &str, typed: &str) -> Option<TokenHash> {
    let code: String = typed
        .chars()
        .filter(|c| !c.is_whitespace() && *c != '-')
        .map(|c| match c.to_ascii_lowercase() {
            'o' => '0',
            'i' | 'l' => '1',
            other => other,
        })
        .collect();
    let is_code = code.len() == RECOVERY_CODE_CHARS && code.bytes().all(|byte| ALPHABET.contains(&byte));
    is_code.then(|| hash(subject, &code))
}

fn hash(subject: &str, code: &str) -> TokenHash {
    let hash = Sha256::new().chain_update("recovery code\0").chain_update(subject).chain_update([0]);
    TokenHash(hash.chain_update(code).finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::OsRandomness;
    use std::collections::HashSet;

    #[test]
    fn typed_recovery_code_matches_only_its_own_hash() {
        let codes = NewRecoveryCodes::generate(&OsRandomness);
        let (texts, hashes) = (codes.texts(), codes.hashes("maya"));
        assert_eq!((texts.len(), texts.iter().collect::<HashSet<_>>().len()), (10, 10));
        for (number, text) in texts.iter().enumerate() {
            assert_eq!(text.len(), 19, "{text}");
            let untidy = format!(" {} ", text.to_uppercase().replace('0', "O").replace('1', "l"));
            for typed in [text, &untidy, &text.replace('-', " ")] {
                let typed = hash_typed("maya", typed).unwrap();
                let matching: Vec<usize> =
                    (0..hashes.len()).filter(|index| hashes[*index].matches(&typed)).collect();
                assert_eq!(matching, [number]);
            }
            assert!(!hashes[number].matches(&hash_typed("omar", text).unwrap()), "another's");
        }
    }

    #[test]
    fn text_that_is_no_recovery_code_has_no_hash() {
        for typed in ["", "123456", "0000-0000-0000-000", "0000-0000-0000-000u", "0000-0000-0000-00000"] {
            assert!(hash_typed("maya", typed).is_none(), "{typed}");
        }
    }
}
