//! How many rows a list has. A page does not wait until all of them are counted.

/// Most rows that are counted for a page, unless a later page is asked for. Of further ones, the page says only that
/// there are more.
pub const MAX_COUNTED_ROWS: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListTotal {
    Exact(u64),
    /// Counting stopped here.
    MoreThan(u64),
}

impl ListTotal {
    /// How many rows are known to be there.
    pub fn known(self) -> u64 {
        match self {
            Self::Exact(total) => total,
            Self::MoreThan(counted) => counted.saturating_add(1),
        }
    }
}

impl Default for ListTotal {
    fn default() -> Self {
        Self::Exact(0)
    }
}

/// How far rows are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountLimit {
    /// One more than this many.
    UpTo(u64),
    All,
}

impl CountLimit {
    pub(crate) fn total(self, counted: u64) -> ListTotal {
        match self {
            Self::UpTo(limit) if counted > limit => ListTotal::MoreThan(limit),
            _ => ListTotal::Exact(counted),
        }
    }
}
