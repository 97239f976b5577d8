//! Adds billing accounts in bulk, without the store: one by one, 100,000 of them would take minutes.

use chancery_test_support::raw_sql;
use std::ops::Range;

/// Numbers of the same length, so that names sort by number.
const FIRST_NUMBER: u64 = 1_000_000;

/// The last page of the list, whatever its size: an index reaches it as fast as the first, an offset would not.
pub const LATER_PAGE: &str = "/accounts?before=Account+2";

pub async fn add(url: &str, numbers: Range<u64>) {
    if numbers.is_empty() {
        return;
    }
    let (first, last) = (FIRST_NUMBER + numbers.start, FIRST_NUMBER + numbers.end - 1);
    let add = format!(
        "INSERT INTO accounts (name, requests_per_min, tokens_per_min, created_at_ms) \
         WITH RECURSIVE numbers (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM numbers WHERE n < {last}) \
         SELECT 'Account ' || n, 60, 60000, 0 FROM numbers"
    );
    raw_sql(url, &add).await.unwrap();
}
