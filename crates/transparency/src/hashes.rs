//! Reads the hashes that trees and proofs need: nodes as they are stored, leaves from their rows.

use crate::error::LogError;
use chancery_domain::{LogName, TreeHash};
use chancery_store::{LogLeaf, LogReader};
use chancery_tlog::{CompactTree, HashRange, ProofPlan, subtree_hash};
use std::ops::Range;

/// The tree over the first `size` rows of the log, ready to grow.
pub async fn read_tree(reader: &LogReader, log: LogName, size: u64) -> Result<CompactTree, LogError> {
    let subtrees = read_plan(reader, log, &ProofPlan::subtrees(size)).await?;
    CompactTree::from_subtrees(size, &subtrees).ok_or(LogError::MissingHashes { log, index: size })
}

/// Proves that the tree over the first `size` rows has the leaf.
pub async fn prove_inclusion(
    reader: &LogReader,
    log: LogName,
    size: u64,
    index: u64,
) -> Result<Vec<TreeHash>, LogError> {
    read_plan(reader, log, &ProofPlan::inclusion(size, index)?).await
}

/// Proves that the tree over the first `size` rows begins with the older one.
pub(crate) async fn prove_consistency(
    reader: &LogReader,
    log: LogName,
    size: u64,
    old_size: u64,
) -> Result<Vec<TreeHash>, LogError> {
    read_plan(reader, log, &ProofPlan::consistency(size, old_size)?).await
}

async fn read_plan(reader: &LogReader, log: LogName, plan: &ProofPlan) -> Result<Vec<TreeHash>, LogError> {
    let mut hashes = Vec::new();
    for HashRange { level, first, count } in plan.ranges() {
        let indexes = first..first + count;
        let range = match level {
            0 => read_leaves(reader, log, indexes).await?,
            level => reader.log_nodes(log, level, indexes).await?,
        };
        let hash = subtree_hash(&range).filter(|_| range.len() as u64 == count);
        hashes.push(hash.ok_or(LogError::MissingHashes { log, index: first })?);
    }
    Ok(plan.finish(&hashes)?)
}

/// At most a tile's width of leaves.
async fn read_leaves(
    reader: &LogReader,
    log: LogName,
    indexes: Range<u64>,
) -> Result<Vec<TreeHash>, LogError> {
    let limit = u32::try_from(indexes.end - indexes.start).unwrap_or(u32::MAX);
    let (mut hashes, mut next) = (Vec::new(), indexes.start);
    for segment in reader.log_segments(log, indexes.start, limit).await? {
        let end = segment.first_index.saturating_add(segment.rows);
        if segment.first_index > next || end <= next {
            return Err(LogError::MissingHashes { log, index: next });
        }
        let until = end.min(indexes.end);
        let from = segment.first_position + (next - segment.first_index);
        let positions = from..from + (until - next);
        let leaves = reader.log_leaves(log, segment.writer, positions.clone()).await?;
        if let Some(position) = first_missing(&leaves, positions) {
            return Err(LogError::MissingRow { log, writer: segment.writer, position });
        }
        hashes.extend(leaves.iter().map(|leaf| leaf.hash));
        next = until;
        if next == indexes.end {
            return Ok(hashes);
        }
    }
    Err(LogError::MissingHashes { log, index: next })
}

/// The first position that has no leaf, or more than one.
pub fn first_missing(leaves: &[LogLeaf], mut positions: Range<u64>) -> Option<u64> {
    let mut found = leaves.iter().map(|leaf| leaf.position);
    let missing = positions.find(|position| found.next() != Some(*position));
    missing.or_else(|| found.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_duplicate_positions_are_found() {
        let missing = |found: &[u64], positions| {
            let leaf = |position: &u64| LogLeaf { position: *position, hash: TreeHash([0; 32]) };
            first_missing(&found.iter().map(leaf).collect::<Vec<_>>(), positions)
        };
        assert_eq!(missing(&[3, 4, 5], 3..6), None);
        assert_eq!(missing(&[3, 5], 3..6), Some(4));
        assert_eq!(missing(&[3, 4], 3..6), Some(5));
        assert_eq!(missing(&[3, 3, 4, 5], 3..6), Some(4));
        assert_eq!(missing(&[3, 4, 5, 5], 3..6), Some(5));
        assert_eq!(missing(&[], 3..3), None);
    }
}
