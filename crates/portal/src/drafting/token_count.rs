//! Formats token counts.

use chancery_domain::group_thousands;

/// `1,846 tokens`
pub(crate) fn tokens(count: u32) -> String {
    let unit = if count == 1 { "token" } else { "tokens" };
    format!("{} {unit}", group_thousands(count.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_counts_are_pluralized() {
        assert_eq!(tokens(1), "1 token");
        assert_eq!(tokens(1_846), "1,846 tokens");
    }
}
