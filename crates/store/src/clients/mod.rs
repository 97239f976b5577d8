//! Client records: entries, versions, search, lists, views, imports and exports.

pub(crate) mod changes;
pub(crate) mod entries;
pub(crate) mod error;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod list;
pub(crate) mod records;
pub(crate) mod rows;
pub(crate) mod search;
pub(crate) mod types;
pub(crate) mod versions;
pub(crate) mod views;
