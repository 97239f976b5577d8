//! Client records: entries, versions, search, lists, views and imports; `reads` and `record_reader` read whole records.

pub(crate) mod changes;
pub(crate) mod entries;
pub(crate) mod error;
pub(crate) mod import;
pub(crate) mod list;
pub(crate) mod locks;
pub(crate) mod page_slots;
pub(crate) mod reads;
pub(crate) mod record_reader;
pub(crate) mod records;
pub(crate) mod rows;
pub(crate) mod search;
pub(crate) mod types;
pub(crate) mod versions;
pub(crate) mod views;
