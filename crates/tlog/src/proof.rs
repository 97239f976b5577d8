//! Inclusion and consistency proofs. A proof is planned first, because its hashes come from a database: the plan lists the
//! ranges of leaf hashes and stored nodes that it needs, and turns their hashes into the proof.

use crate::tree::TILE_HEIGHT;
use chancery_domain::TreeHash;
use std::cell::RefCell;
use tlog_tiles::{
    Error, Hash, HashReader, check_record, check_tree, node_hash, prove_record, prove_tree,
    split_stored_hash_index, sub_tree_index,
};

/// Hashes that lie side by side in one tile and together are one subtree: leaf hashes at level 0, stored nodes above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashRange {
    pub level: u8,
    pub first: u64,
    /// A power of two, less than `TILE_WIDTH`.
    pub count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the hashes are not those of the tree")]
pub struct ProofError;

impl From<Error> for ProofError {
    fn from(_: Error) -> Self {
        Self
    }
}

#[derive(Clone, Copy, Debug)]
enum Goal {
    Subtrees,
    Inclusion { index: u64 },
    Consistency { old_size: u64 },
}

/// Which hashes a proof needs.
#[derive(Clone, Debug)]
pub struct ProofPlan {
    goal: Goal,
    size: u64,
    /// The subtrees, as `tlog_tiles` numbers them.
    subtrees: Vec<u64>,
}

impl ProofPlan {
    /// The subtrees that make up the tree, for `CompactTree::from_subtrees`.
    pub fn subtrees(size: u64) -> Self {
        Self { goal: Goal::Subtrees, size, subtrees: sub_tree_index(0, size, Vec::new()) }
    }

    /// Proves that the tree of this size has the leaf. Fails unless the index is below the size.
    pub fn inclusion(size: u64, index: u64) -> Result<Self, ProofError> {
        let recorder = Recorder::default();
        prove_record(size, index, &recorder)?;
        Ok(Self { goal: Goal::Inclusion { index }, size, subtrees: recorder.0.into_inner() })
    }

    /// Proves that the tree of this size begins with the leaves of the older tree. Fails unless the old size is from 1 to the size.
    pub fn consistency(size: u64, old_size: u64) -> Result<Self, ProofError> {
        let recorder = Recorder::default();
        prove_tree(size, old_size, &recorder)?;
        Ok(Self { goal: Goal::Consistency { old_size }, size, subtrees: recorder.0.into_inner() })
    }

    /// Where the hashes of each needed subtree are.
    pub fn ranges(&self) -> Vec<HashRange> {
        let range = |subtree: &u64| {
            let (level, index) = split_stored_hash_index(*subtree);
            let height = level % TILE_HEIGHT;
            HashRange { level: level / TILE_HEIGHT, first: index << height, count: 1 << height }
        };
        self.subtrees.iter().map(range).collect()
    }

    /// The proof, from the hash of each range in order (`subtree_hash`).
    pub fn finish(&self, hashes: &[TreeHash]) -> Result<Vec<TreeHash>, ProofError> {
        if hashes.len() != self.subtrees.len() {
            return Err(ProofError);
        }
        let known = Known(hashes.iter().map(|hash| Hash(hash.0)).collect());
        let proof = match self.goal {
            Goal::Subtrees => known.0,
            Goal::Inclusion { index } => prove_record(self.size, index, &known)?,
            Goal::Consistency { old_size } => prove_tree(self.size, old_size, &known)?,
        };
        Ok(proof.into_iter().map(|hash| TreeHash(hash.0)).collect())
    }
}

/// Notes which hashes a proof asks for. What it answers is not used.
#[derive(Default)]
struct Recorder(RefCell<Vec<u64>>);

impl HashReader for Recorder {
    fn read_hashes(&self, indexes: &[u64]) -> Result<Vec<Hash>, Error> {
        self.0.borrow_mut().extend_from_slice(indexes);
        Ok(vec![Hash::default(); indexes.len()])
    }
}

/// Answers the one question of a proof with the hashes that the plan has listed.
struct Known(Vec<Hash>);

impl HashReader for Known {
    fn read_hashes(&self, indexes: &[u64]) -> Result<Vec<Hash>, Error> {
        match indexes.len() == self.0.len() {
            true => Ok(self.0.clone()),
            false => Err(Error::BadMath),
        }
    }
}

/// The hash over a range. `None` unless their number is a power of two.
pub fn subtree_hash(hashes: &[TreeHash]) -> Option<TreeHash> {
    match hashes {
        [hash] => Some(*hash),
        hashes if hashes.len().is_power_of_two() => {
            let (left, right) = hashes.split_at(hashes.len() / 2);
            let (left, right) = (subtree_hash(left)?, subtree_hash(right)?);
            Some(TreeHash(node_hash(Hash(left.0), Hash(right.0)).0))
        }
        _ => None,
    }
}

/// Whether the proof shows that the tree of this size and root has the leaf at this index.
pub fn is_included(
    proof: &[TreeHash],
    (size, root): (u64, TreeHash),
    (index, leaf): (u64, TreeHash),
) -> bool {
    check_record(&to_hashes(proof), size, Hash(root.0), index, Hash(leaf.0)).is_ok()
}

/// Whether the proof shows that the tree begins with the leaves of the old one.
pub fn is_consistent(
    proof: &[TreeHash],
    (size, root): (u64, TreeHash),
    (old_size, old_root): (u64, TreeHash),
) -> bool {
    check_tree(&to_hashes(proof), size, Hash(root.0), old_size, Hash(old_root.0)).is_ok()
}

fn to_hashes(hashes: &[TreeHash]) -> Vec<Hash> {
    hashes.iter().map(|hash| Hash(hash.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::{leaf, root_of, tree_of};
    use crate::{CompactTree, TILE_WIDTH, TileNode};
    use proptest::prelude::*;

    /// A log as it is stored: leaves, and the nodes above them.
    struct Stored {
        leaves: Vec<TreeHash>,
        nodes: Vec<TileNode>,
    }

    impl Stored {
        fn with_leaves(size: u64) -> Self {
            let leaves: Vec<TreeHash> = (0..size).map(leaf).collect();
            let nodes = tree_of(&leaves).1;
            Self { leaves, nodes }
        }

        fn hashes(&self, plan: &ProofPlan) -> Vec<TreeHash> {
            let read = |range: &HashRange| -> Vec<TreeHash> {
                assert!(range.count < TILE_WIDTH);
                let wanted = range.first..range.first + range.count;
                match range.level {
                    0 => wanted.map(|index| self.leaves[index as usize]).collect(),
                    level => {
                        let is_wanted =
                            |node: &&TileNode| node.level == level && wanted.contains(&node.index);
                        self.nodes.iter().filter(is_wanted).map(|node| node.hash).collect()
                    }
                }
            };
            plan.ranges().iter().map(|range| subtree_hash(&read(range)).unwrap()).collect()
        }
    }

    fn root_at(stored: &Stored, size: u64) -> TreeHash {
        root_of(&stored.leaves[..size as usize])
    }

    proptest! {
        #[test]
        fn inclusion_of_every_leaf_can_be_proved_at_any_later_size(size in 1_u64..900, index in 0_u64..900) {
            let (stored, index) = (Stored::with_leaves(size), index % size);
            let plan = ProofPlan::inclusion(size, index).unwrap();
            let proof = plan.finish(&stored.hashes(&plan)).unwrap();
            let root = root_at(&stored, size);
            prop_assert!(is_included(&proof, (size, root), (index, leaf(index))));
            prop_assert!(!is_included(&proof, (size, root), (index, leaf(index + 1))));
            prop_assert!(!is_included(&proof, (size, leaf(0)), (index, leaf(index))) || size == 1);
            if size > 1 {
                prop_assert!(!is_included(&proof[1..], (size, root), (index, leaf(index))));
            }
        }

        #[test]
        fn only_a_tree_that_begins_with_the_old_one_is_consistent(size in 1_u64..900, old_size in 1_u64..900) {
            let (stored, old_size) = (Stored::with_leaves(size), old_size % size + 1);
            prop_assume!(old_size <= size);
            let plan = ProofPlan::consistency(size, old_size).unwrap();
            let proof = plan.finish(&stored.hashes(&plan)).unwrap();
            let (root, old_root) = (root_at(&stored, size), root_at(&stored, old_size));
            prop_assert!(is_consistent(&proof, (size, root), (old_size, old_root)));
            prop_assert!(!is_consistent(&proof, (size, root), (old_size, leaf(1_000_000))));
        }

        #[test]
        fn tree_goes_on_from_its_stored_subtrees(size in 0_u64..900, more in 0_u64..300) {
            let stored = Stored::with_leaves(size + more);
            let plan = ProofPlan::subtrees(size);
            let subtrees = plan.finish(&stored.hashes(&plan)).unwrap();
            let mut tree = CompactTree::from_subtrees(size, &subtrees).unwrap();
            prop_assert_eq!(tree.root(), root_at(&stored, size));
            let mut nodes = Vec::new();
            (size..size + more).for_each(|index| tree.push(leaf(index), &mut nodes));
            prop_assert_eq!(tree.root(), root_at(&stored, size + more));
            prop_assert!(stored.nodes.ends_with(&nodes));
        }
    }

    #[test]
    fn proof_outside_the_tree_is_an_error() {
        assert!(ProofPlan::inclusion(5, 5).is_err());
        assert!(ProofPlan::consistency(5, 6).is_err() && ProofPlan::consistency(5, 0).is_err());
        assert!(ProofPlan::inclusion(5, 1).unwrap().finish(&[]).is_err());
    }
}
