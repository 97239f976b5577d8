//! Recomputes a Merkle log from the rows of its table, and compares it with signed checkpoints:
//!
//! 1. the order of rows is the log's own (its segments); all their leaves are computed again, and no row of a writer is left
//!    out between two others;
//! 2. at the size of each checkpoint, the root must be the signed one;
//! 3. the stored nodes, which receipts are proved with, must be the computed ones;
//! 4. every checkpoint in the files must be in the database, and the log must have as many rows.
//!
//! The order can be changed like everything else in the database, but then the roots differ. A server may append meanwhile:
//! checkpoints are read first, so the log is never behind them. Memory is a few hashes, the list of checkpoints, and a number
//! for each writer.

use crate::{Findings, VerifyError};
use chancery_domain::{LogName, TreeHash, WriterId};
use chancery_store::{LogReader, LogSegment, VerifyStore};
use chancery_tlog::{CheckpointError, CompactTree, TileNode, VerifierKeys};
use chancery_transparency::{FiledCheckpoint, FiledCheckpoints, first_missing};
use std::collections::BTreeMap;

/// Rows per page.
const PAGE_ROWS: u64 = 2_000;
/// Segments and checkpoints per page.
const PAGE_ENTRIES: u32 = 1_000;
/// Nodes that are compared at once.
const PAGE_NODES: usize = 256;
const MAX_REPORTED_FINDINGS: usize = 50;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogVerification {
    pub log: LogName,
    /// Rows in the log.
    pub rows: u64,
    /// Checkpoints that were compared, in files and in the database.
    pub checkpoints: u64,
    /// Rows of the largest one in the files.
    pub covered_rows: u64,
    /// Checkpoints in the database that no known key has signed.
    pub unknown_checkpoints: u64,
    pub findings: Findings,
}

/// A root that the log must have.
struct Expected<'a> {
    size: u64,
    root: TreeHash,
    /// `None` for one in the database.
    filed: Option<&'a FiledCheckpoint>,
}

/// `filed` are the checkpoints that this machine or the caller has retained. Calls `progress` with the number of rows read so far.
pub async fn verify_log(
    store: &VerifyStore,
    log: LogName,
    filed: &FiledCheckpoints,
    keys: &VerifierKeys,
    progress: impl FnMut(u64),
) -> Result<LogVerification, VerifyError> {
    let mut verification = LogVerification {
        log,
        rows: 0,
        checkpoints: 0,
        covered_rows: 0,
        unknown_checkpoints: 0,
        findings: Findings::with_limit(MAX_REPORTED_FINDINGS),
    };
    let expected = expected_roots(&store.log_reader, filed, keys, &mut verification).await?;
    let source = |expected: &Expected<'_>| match expected.filed {
        Some(checkpoint) => filed.source(checkpoint),
        None => "the database".to_owned(),
    };
    let mut walk = Walk {
        reader: &store.log_reader,
        log,
        tree: CompactTree::default(),
        nodes: Vec::new(),
        expected: expected.as_slice(),
        matched_rows: 0,
        mismatch: None,
        last_segment: None,
        logged: BTreeMap::new(),
    };
    let is_whole = walk.run(&mut verification.findings, progress).await?;
    let rows = walk.tree.size();
    if let Some(expected) = walk.mismatch {
        let (size, source) = (expected.size, source(expected));
        let (first, last) = (walk.matched_rows, size.saturating_sub(1));
        verification.findings.add(format!(
            "{log} log: its first {size} rows are not those of the checkpoint in {source}: one of the rows {first} to {last} was changed, inserted, moved or removed"
        ));
    } else if let Some(expected) = walk.expected.last().filter(|_| is_whole) {
        let (size, source) = (expected.size, source(expected));
        verification.findings.add(format!(
            "{log} log: it has {rows} rows, but the checkpoint in {source} has {size}: rows were removed"
        ));
    }
    verification.rows = rows;
    Ok(verification)
}

/// The roots of all checkpoints, by size.
async fn expected_roots<'a>(
    reader: &LogReader,
    filed: &'a FiledCheckpoints,
    keys: &VerifierKeys,
    verification: &mut LogVerification,
) -> Result<Vec<Expected<'a>>, VerifyError> {
    let (log, findings) = (verification.log, &mut verification.findings);
    let of_log = filed.checkpoints.iter().filter(|filed| filed.checkpoint.log == log);
    let mut expected: Vec<Expected<'a>> = of_log
        .map(|filed| Expected {
            size: filed.checkpoint.size,
            root: filed.checkpoint.root,
            filed: Some(filed),
        })
        .collect();
    verification.covered_rows = expected.iter().map(|expected| expected.size).max().unwrap_or(0);
    let (filed_count, mut stored_sizes, mut last) = (expected.len(), Vec::new(), 0);
    loop {
        let page = reader.checkpoints_after(log, last, PAGE_ENTRIES).await?;
        let Some(end) = page.last() else { break };
        last = end.size;
        for stored in page {
            stored_sizes.push(stored.size);
            match keys.open(&stored.note) {
                Ok(opened) if (opened.log, opened.size) == (log, stored.size) => {
                    expected.push(Expected { size: opened.size, root: opened.root, filed: None });
                }
                Err(CheckpointError::UnknownKey) => verification.unknown_checkpoints += 1,
                Ok(_) | Err(_) => findings.add(format!(
                    "{log} log: the checkpoint of {} rows in the database was changed",
                    stored.size
                )),
            }
        }
    }
    let lost = expected[..filed_count].iter().find(|filed| stored_sizes.binary_search(&filed.size).is_err());
    if let Some(Expected { size, filed: Some(checkpoint), .. }) = lost {
        let source = filed.source(checkpoint);
        findings.add(format!(
            "{log} log: the checkpoint of {size} rows in {source} is no longer in the database"
        ));
    }
    // The first checkpoint is in the database a moment before it is in its file, or until the next start after a crash.
    if filed.is_folder && filed_count == 0 && expected.len() > 1 {
        findings.add(format!(
            "{log} log: the database has {} checkpoints of this machine's key, and its files have none: they were removed",
            expected.len()
        ));
    }
    verification.checkpoints = expected.len() as u64;
    // Those in files first, so that a finding names the file.
    expected.sort_by_key(|expected| (expected.size, expected.filed.is_none()));
    Ok(expected)
}

/// The log, as far as it has been walked.
struct Walk<'a> {
    reader: &'a LogReader,
    log: LogName,
    tree: CompactTree,
    /// Computed nodes that are not compared yet.
    nodes: Vec<TileNode>,
    /// Roots that are not reached yet.
    expected: &'a [Expected<'a>],
    /// Rows of the last checkpoint that matched.
    matched_rows: u64,
    /// The first root that does not match. All later ones differ because of it.
    mismatch: Option<&'a Expected<'a>>,
    /// Where the last segment begins.
    last_segment: Option<u64>,
    /// How many rows of each writer's chain are in the log.
    logged: BTreeMap<WriterId, u64>,
}

impl Walk<'_> {
    /// Returns whether the log could be walked to its end.
    async fn run(
        &mut self,
        findings: &mut Findings,
        mut progress: impl FnMut(u64),
    ) -> Result<bool, VerifyError> {
        loop {
            let last = self.last_segment;
            let page = self.reader.log_segments(self.log, last.unwrap_or(0), PAGE_ENTRIES).await?;
            // The page begins with the last segment. One that begins within it is not skipped: none should.
            let is_new = |segment: &LogSegment| last.is_none_or(|last| segment.first_index > last);
            let segments: Vec<LogSegment> = page.into_iter().filter(is_new).collect();
            if segments.is_empty() {
                self.compare_nodes(findings).await?;
                return Ok(true);
            }
            for segment in segments {
                if !self.walk_segment(segment, findings, &mut progress).await? {
                    return Ok(false);
                }
            }
        }
    }

    /// Returns whether all rows of the segment are there.
    async fn walk_segment(
        &mut self,
        segment: LogSegment,
        findings: &mut Findings,
        progress: &mut impl FnMut(u64),
    ) -> Result<bool, VerifyError> {
        let (log, writer) = (self.log, segment.writer);
        self.last_segment = Some(segment.first_index);
        if segment.first_index != self.tree.size() || segment.rows == 0 {
            findings.add(format!("{log} log: the segment at row {} is missing", self.tree.size()));
            return Ok(false);
        }
        let end = segment.first_position.saturating_add(segment.rows);
        // Rows that are left out now would never be logged, and could be changed at any time.
        let expected = self.logged.insert(writer, end).unwrap_or(0);
        if segment.first_position != expected {
            findings.add(format!(
                "{log} log: at row {} it has row {} of writer {writer}, not row {expected}",
                segment.first_index, segment.first_position
            ));
        }
        let mut position = segment.first_position;
        while position < end {
            let positions = position..end.min(position + PAGE_ROWS);
            position = positions.end;
            let leaves = self.reader.log_leaves(log, writer, positions.clone()).await?;
            if let Some(missing) = first_missing(&leaves, positions) {
                let row = segment.first_index + (missing - segment.first_position);
                findings.add(format!(
                    "{log} log: row {row} is missing or there twice (row {missing} of writer {writer})"
                ));
                return Ok(false);
            }
            for leaf in leaves {
                self.push(leaf.hash);
            }
            if self.nodes.len() >= PAGE_NODES {
                self.compare_nodes(findings).await?;
            }
            progress(self.tree.size());
        }
        Ok(true)
    }

    fn push(&mut self, leaf: TreeHash) {
        self.tree.push(leaf, &mut self.nodes);
        while let Some((expected, later)) = self.expected.split_first()
            && expected.size <= self.tree.size()
        {
            self.expected = later;
            if self.mismatch.is_some() {
                continue;
            }
            match expected.root == self.tree.root() {
                true => self.matched_rows = expected.size,
                false => self.mismatch = Some(expected),
            }
        }
    }

    /// Compares computed nodes with the stored ones, and removes them from the list.
    async fn compare_nodes(&mut self, findings: &mut Findings) -> Result<(), VerifyError> {
        let mut nodes = std::mem::take(&mut self.nodes);
        nodes.sort_by_key(|node| (node.level, node.index));
        for nodes in nodes.chunk_by(|one, next| one.level == next.level) {
            let (Some(first), Some(last)) = (nodes.first(), nodes.last()) else { continue };
            let stored = self.reader.log_nodes(self.log, first.level, first.index..last.index + 1).await?;
            if !nodes.iter().map(|node| node.hash).eq(stored) {
                findings.add(format!(
                    "{} log: the stored nodes of level {} from {} on are missing or changed",
                    self.log, first.level, first.index
                ));
            }
        }
        Ok(())
    }
}
