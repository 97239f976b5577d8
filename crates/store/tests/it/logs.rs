//! Conformance: Merkle logs take each row once, in one order, and are append-only.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::samples::{NOON, billed_key, request, row};
use chancery_domain::{LogName, TreeHash, WriterId, leaf_hash};
use chancery_store::{LogAppend, LogNode, LogSegment, LoggedUsage, Store, StoredCheckpoint, UnloggedRows};
use std::sync::Arc;

fn append(size: u64, segments: Vec<LogSegment>) -> LogAppend {
    LogAppend { log: LogName::Ledger, size, segments, nodes: Vec::new() }
}

/// The one writer of the ledger, with this many settled rows.
async fn writer_with_rows(store: &Store, rows: usize) -> WriterId {
    let payer = billed_key(store).await;
    for number in 0..rows {
        store.ledger.settle(row(number, payer).into()).await.unwrap();
    }
    store.ledger_chains.next_writer(None).await.unwrap().unwrap()
}

pub async fn rows_are_unlogged_until_a_segment_has_them(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    assert_eq!(store.log_reader.log_size(LogName::Ledger).await.unwrap(), 0);
    let writer = writer_with_rows(&store, 5).await;
    let unlogged = || store.log_writer.unlogged_rows(LogName::Ledger, 10);
    assert_eq!(unlogged().await.unwrap(), [UnloggedRows { writer, logged: 0, rows: 5 }]);
    let first = LogSegment { first_index: 0, writer, first_position: 0, rows: 3 };
    assert!(store.log_writer.append_to_log(&append(0, vec![first])).await.unwrap());
    assert_eq!(unlogged().await.unwrap(), [UnloggedRows { writer, logged: 3, rows: 5 }]);
    let second = LogSegment { first_index: 3, writer, first_position: 3, rows: 2 };
    assert!(store.log_writer.append_to_log(&append(3, vec![second])).await.unwrap());
    assert!(unlogged().await.unwrap().is_empty());
    assert_eq!(store.log_reader.log_size(LogName::Ledger).await.unwrap(), 5);
    assert_eq!(store.log_reader.log_segments(LogName::Ledger, 2, 9).await.unwrap(), [first, second]);
    assert_eq!(store.log_reader.log_segments(LogName::Ledger, 4, 9).await.unwrap(), [second]);
    // The audit log has rows of its own: the account and the key were created.
    assert_eq!(store.log_reader.log_size(LogName::Audit).await.unwrap(), 0);
    assert_eq!(store.log_writer.unlogged_rows(LogName::Audit, 10).await.unwrap().len(), 1);
}

pub async fn log_takes_an_append_only_at_its_size(database: Arc<AnyDatabase>) {
    let stores = [database.open().await, database.open().await];
    let writer = writer_with_rows(&stores[0], 4).await;
    let all = append(0, vec![LogSegment { first_index: 0, writer, first_position: 0, rows: 4 }]);
    let (one, other) =
        tokio::join!(stores[0].log_writer.append_to_log(&all), stores[1].log_writer.append_to_log(&all));
    assert_ne!(one.unwrap(), other.unwrap(), "one of two racing checkpointers appends");
    assert!(!stores[0].log_writer.append_to_log(&append(3, Vec::new())).await.unwrap());
    assert_eq!(stores[1].log_reader.log_size(LogName::Ledger).await.unwrap(), 4);
}

pub async fn leaves_nodes_and_checkpoints_round_trip(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let writer = writer_with_rows(&store, 4).await;
    let payer = store.log_reader.logged_usage(&request(0)).await.unwrap().unwrap().row;
    let expected = row(2, (payer.account, payer.key));
    let usage = store.log_reader.logged_usage(&request(2)).await.unwrap();
    assert_eq!(usage, Some(LoggedUsage { row: expected.clone(), index: None }));
    let segment = LogSegment { first_index: 0, writer, first_position: 0, rows: 3 };
    let nodes = vec![
        LogNode { level: 1, index: 0, hash: TreeHash([1; 32]) },
        LogNode { level: 1, index: 1, hash: TreeHash([2; 32]) },
        LogNode { level: 2, index: 0, hash: TreeHash([3; 32]) },
    ];
    let append = LogAppend { nodes, ..append(0, vec![segment]) };
    assert!(store.log_writer.append_to_log(&append).await.unwrap());
    let usage = store.log_reader.logged_usage(&request(2)).await.unwrap();
    assert_eq!(usage, Some(LoggedUsage { row: expected.clone(), index: Some(2) }));
    assert_eq!(store.log_reader.logged_usage(&request(3)).await.unwrap().unwrap().index, None);
    assert_eq!(store.log_reader.logged_usage(&request(9)).await.unwrap(), None);
    let leaves = store.log_reader.log_leaves(LogName::Ledger, writer, 1..3).await.unwrap();
    assert_eq!(leaves.iter().map(|leaf| leaf.position).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(leaves[1].hash, leaf_hash(&expected));
    let nodes = store.log_reader.log_nodes(LogName::Ledger, 1, 0..9).await.unwrap();
    assert_eq!(nodes, [TreeHash([1; 32]), TreeHash([2; 32])]);
    assert!(store.log_reader.log_nodes(LogName::Audit, 1, 0..9).await.unwrap().is_empty());
    for (size, note) in [(3, "three\n"), (4, "four\n"), (3, "another three\n")] {
        store.log_writer.record_checkpoint(LogName::Ledger, size, note, NOON).await.unwrap();
    }
    let checkpoints = store.log_reader.checkpoints_after(LogName::Ledger, 0, 9).await.unwrap();
    let stored = |size, note: &str| StoredCheckpoint { size, note: note.to_owned(), at: NOON };
    assert_eq!(checkpoints, [stored(3, "three\n"), stored(4, "four\n")]);
    let after = store.log_reader.checkpoints_after(LogName::Ledger, 3, 1).await.unwrap();
    assert_eq!(after, [stored(4, "four\n")]);
}

pub async fn raw_sql_cannot_change_merkle_logs(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let writer = writer_with_rows(&store, 1).await;
    let segment = LogSegment { first_index: 0, writer, first_position: 0, rows: 1 };
    let node = LogNode { level: 1, index: 0, hash: TreeHash([1; 32]) };
    let append = LogAppend { nodes: vec![node], ..append(0, vec![segment]) };
    assert!(store.log_writer.append_to_log(&append).await.unwrap());
    store.log_writer.record_checkpoint(LogName::Ledger, 1, "one\n", NOON).await.unwrap();
    for table in ["log_segments", "log_nodes", "log_checkpoints"] {
        for change in [format!("UPDATE {table} SET log = 'audit'"), format!("DELETE FROM {table}")] {
            let error = database.raw(&change).await.unwrap_err().to_string();
            assert!(error.contains("append-only"), "{change}: {error}");
        }
    }
}
