//! Secrets that all nodes share.

use crate::databases::TestDatabase;
use chancery_domain::{OsRandomness, SecretToken};
use std::sync::Arc;

pub async fn the_secret_that_was_drawn_first_is_everybodys<D: TestDatabase>(database: Arc<D>) {
    let store = database.open().await;
    let drawn = || SecretToken::generate(&OsRandomness);
    let racers = (0..8).map(|_| {
        let (store, drawn) = (Arc::clone(&store), drawn());
        tokio::spawn(async move { store.secrets.shared_secret("portal", &drawn).await.unwrap() })
    });
    let mut seen = Vec::new();
    for racer in racers.collect::<Vec<_>>() {
        seen.push(racer.await.unwrap());
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "one secret for all");
    assert_eq!(store.secrets.shared_secret("portal", &drawn()).await.unwrap(), seen[0]);
    assert_ne!(store.secrets.shared_secret("another", &drawn()).await.unwrap(), seen[0]);
}
