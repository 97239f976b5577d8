//! Secrets that all nodes share.

use crate::databases::{AnyDatabase, TestDatabase};
use chancery_domain::{OsRandomness, SecretToken};
use std::sync::Arc;

pub async fn first_shared_secret_wins_on_all_nodes(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let new_secret = || SecretToken::generate(&OsRandomness);
    let racers = (0..8).map(|_| {
        let (store, new_secret) = (Arc::clone(&store), new_secret());
        tokio::spawn(async move { store.secrets.shared_secret("portal", &new_secret).await.unwrap() })
    });
    let mut seen = Vec::new();
    for racer in racers.collect::<Vec<_>>() {
        seen.push(racer.await.unwrap());
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "one secret for all");
    assert_eq!(store.secrets.shared_secret("portal", &new_secret()).await.unwrap(), seen[0]);
    assert_ne!(store.secrets.shared_secret("another", &new_secret()).await.unwrap(), seen[0]);
}
