//! A Merkle tree that only grows. It remembers one hash for each 1 bit of its size, however many leaves it has.

use chancery_domain::TreeHash;
use tlog_tiles::{EMPTY_HASH, Hash, node_hash};

/// Levels between two stored nodes, as in C2SP's tlog-tiles. Leaf hashes are not stored: they are computed from rows.
pub(crate) const TILE_HEIGHT: u8 = 8;

/// How many nodes of one level the node above them covers.
pub const TILE_WIDTH: u64 = 1 << TILE_HEIGHT;

/// A node that is stored: the hash over `TILE_WIDTH` to the power of `level` leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileNode {
    /// At least 1.
    pub level: u8,
    /// Among the nodes of its level, from 0.
    pub index: u64,
    pub hash: TreeHash,
}

/// The hashes of the perfect subtrees that make up the tree, largest first.
#[derive(Clone, Debug, Default)]
pub struct CompactTree {
    size: u64,
    subtrees: Vec<Hash>,
}

impl CompactTree {
    /// From the subtrees that `ProofPlan::subtrees` plans for this size. `None` if their number is wrong.
    pub fn from_subtrees(size: u64, subtrees: &[TreeHash]) -> Option<Self> {
        let subtrees: Vec<Hash> = subtrees.iter().map(|hash| Hash(hash.0)).collect();
        (subtrees.len() == size.count_ones() as usize).then_some(Self { size, subtrees })
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn root(&self) -> TreeHash {
        let root = self.subtrees.iter().rev().copied().reduce(|right, left| node_hash(left, right));
        TreeHash(root.unwrap_or(EMPTY_HASH).0)
    }

    /// Appends a leaf, and adds the nodes to `nodes` that it completes and that are to be stored.
    pub fn push(&mut self, leaf: TreeHash, nodes: &mut Vec<TileNode>) {
        let (index, mut level) = (self.size, 0_u8);
        let mut hash = Hash(leaf.0);
        // Each 1 bit at the end of the index is a subtree that this leaf completes.
        while (index >> level) & 1 == 1 {
            let Some(left) = self.subtrees.pop() else { break };
            hash = node_hash(left, hash);
            level += 1;
            if level % TILE_HEIGHT == 0 {
                let hash = TreeHash(hash.0);
                nodes.push(TileNode { level: level / TILE_HEIGHT, index: index >> level, hash });
            }
        }
        self.subtrees.push(hash);
        self.size += 1;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use tlog_tiles::record_hash;

    pub(crate) fn leaf(number: u64) -> TreeHash {
        TreeHash(record_hash(&number.to_be_bytes()).0)
    }

    /// RFC 6962, section 2.1, word by word.
    pub(crate) fn root_of(leaves: &[TreeHash]) -> TreeHash {
        match leaves {
            [] => TreeHash(EMPTY_HASH.0),
            [leaf] => *leaf,
            leaves => {
                let split = 1 << (leaves.len() - 1).ilog2();
                let (left, right) = leaves.split_at(split);
                TreeHash(node_hash(Hash(root_of(left).0), Hash(root_of(right).0)).0)
            }
        }
    }

    pub(crate) fn tree_of(leaves: &[TreeHash]) -> (CompactTree, Vec<TileNode>) {
        let (mut tree, mut nodes) = (CompactTree::default(), Vec::new());
        leaves.iter().for_each(|leaf| tree.push(*leaf, &mut nodes));
        (tree, nodes)
    }

    #[test]
    fn stored_nodes_are_the_roots_of_full_tiles() {
        let leaves: Vec<TreeHash> = (0..600).map(leaf).collect();
        let (_, nodes) = tree_of(&leaves);
        let expected: Vec<TileNode> = [0, 1]
            .map(|index| TileNode {
                level: 1,
                index: index as u64,
                hash: root_of(&leaves[index * 256..(index + 1) * 256]),
            })
            .to_vec();
        assert_eq!(nodes, expected);
        let leaves: Vec<TreeHash> = (0..TILE_WIDTH * TILE_WIDTH).map(leaf).collect();
        let (tree, nodes) = tree_of(&leaves);
        assert_eq!(nodes.len(), 257);
        assert_eq!(nodes.last().map(|node| (node.level, node.index, node.hash)), Some((2, 0, tree.root())));
    }

    #[test]
    fn wrong_number_of_subtrees_is_no_tree() {
        assert!(CompactTree::from_subtrees(3, &[leaf(0)]).is_none());
        assert!(CompactTree::from_subtrees(0, &[]).is_some());
    }

    proptest! {
        #[test]
        fn root_is_that_of_rfc_6962_at_every_size(size in 0_u64..700) {
            let leaves: Vec<TreeHash> = (0..size).map(leaf).collect();
            let (tree, _) = tree_of(&leaves);
            prop_assert_eq!((tree.size(), tree.root()), (size, root_of(&leaves)));
        }

        #[test]
        fn every_kind_of_tampering_changes_the_root(size in 2_usize..400, at in 0_usize..400, other in 0_usize..400) {
            let leaves: Vec<TreeHash> = (0..size as u64).map(leaf).collect();
            let (at, other) = (at % size, other % size);
            let root = root_of(&leaves);
            let mut edited = leaves.clone();
            edited[at] = leaf(1_000_000);
            let mut removed = leaves.clone();
            removed.remove(at);
            let mut inserted = leaves.clone();
            inserted.insert(at, leaf(1_000_000));
            let truncated = &leaves[..at];
            for tampered in [edited.as_slice(), removed.as_slice(), inserted.as_slice(), truncated] {
                prop_assert_ne!(tree_of(tampered).0.root(), root);
            }
            if at != other {
                let mut swapped = leaves.clone();
                swapped.swap(at, other);
                prop_assert_ne!(tree_of(&swapped).0.root(), root);
            }
        }
    }
}
