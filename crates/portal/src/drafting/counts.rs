//! Counts of tokens as people read them.

use chancery_domain::grouped;

/// `1,846 tokens`
pub(crate) fn tokens(count: u32) -> String {
    let unit = if count == 1 { "token" } else { "tokens" };
    format!("{} {unit}", grouped(count.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_is_no_tokens() {
        assert_eq!(tokens(1), "1 token");
        assert_eq!(tokens(1_846), "1,846 tokens");
    }
}
