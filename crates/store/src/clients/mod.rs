//! Client records: entries, versions, search, lists, views and imports.

pub(crate) mod changes;
pub(crate) mod clients;
pub(crate) mod entries;
pub(crate) mod import;
pub(crate) mod list;
pub(crate) mod records;
pub(crate) mod rows;
pub(crate) mod search;
pub(crate) mod types;
pub(crate) mod views;
