//! The ledger alone.

use chancery_bench::accounts::{create_account, create_key, usage_row};
use chancery_domain::RateLimits;
use chancery_store::{DatabaseUrl, Store};

pub async fn settle(iterations: usize) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&DatabaseUrl::sqlite_file(&folder.path().join("chancery.db"))).await.unwrap();
    let limits = RateLimits { requests_per_min: 1, tokens_per_min: 1 };
    let account = create_account(&store, "Settled", limits).await;
    let (key, _) = create_key(&store, account, "").await;
    for _ in 0..iterations {
        store.ledger.settle(usage_row(account, key).into()).await.unwrap();
    }
    store.close().await;
}
