//! A model's name in the folder, which becomes a file name.

use crate::limits::MAX_NAME_BYTES;
use std::fmt;
use std::str::FromStr;

/// Letters, digits, `.`, `_` and `-`, beginning with a letter or digit: never a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelName(String);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid model name {0:?}: use 1 to {MAX_NAME_BYTES} letters, digits, `.`, `_` and `-`, beginning with a letter or digit, \
     without `.gguf` at the end"
)]
pub struct InvalidName(String);

impl ModelName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ModelName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_valid = text.len() <= MAX_NAME_BYTES
            && text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text.bytes().all(is_allowed)
            && !text.to_ascii_lowercase().ends_with(".gguf");
        if is_valid { Ok(Self(text.to_owned())) } else { Err(InvalidName(text.to_owned())) }
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_folder() {
        for name in ["qwen2.5-coder-0.5b", "a", "My_Model.v2", &"a".repeat(64)] {
            assert_eq!(name.parse::<ModelName>().unwrap().as_str(), name);
        }
        let long = "a".repeat(65);
        for name in
            ["", ".", "..", "../a", "a/b", "a\\b", ".hidden", "-a", "a b", "a\0", "ü", "a.gguf", &long]
        {
            let error = name.parse::<ModelName>().unwrap_err().to_string();
            assert!(error.contains("1 to 64 letters"), "{error}");
        }
    }
}
