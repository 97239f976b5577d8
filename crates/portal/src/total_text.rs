//! How pages write the number of rows of a list.

use chancery_domain::group_thousands;
use chancery_store::ListTotal;

pub(crate) fn total_text(total: ListTotal) -> String {
    match total {
        ListTotal::Exact(total) => group_thousands(total),
        ListTotal::MoreThan(counted) => format!("more than {}", group_thousands(counted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_that_is_not_counted_to_the_end_says_so() {
        assert_eq!(total_text(ListTotal::Exact(27)), "27");
        assert_eq!(total_text(ListTotal::Exact(100_000)), "100,000");
        assert_eq!(total_text(ListTotal::MoreThan(1_000)), "more than 1,000");
    }
}
