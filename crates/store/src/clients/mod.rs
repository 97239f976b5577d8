//! Client records: entries, versions, search, lists, views, imports, sent letters and unsaved text. `reads` reads records, and
//! `record_reader` those that are longer than a page; `work` is what is due.

pub(crate) mod changes;
pub(crate) mod entries;
pub(crate) mod entry_terms;
pub(crate) mod error;
pub(crate) mod import;
pub(crate) mod letters;
pub(crate) mod list;
mod list_counts;
pub(crate) mod list_filter;
pub(crate) mod locks;
pub(crate) mod matches;
pub(crate) mod page_slots;
pub(crate) mod reads;
pub(crate) mod record_reader;
pub(crate) mod records;
pub(crate) mod restore;
pub(crate) mod rows;
pub(crate) mod same_name;
pub(crate) mod search;
pub(crate) mod snippet;
pub(crate) mod types;
pub(crate) mod unsaved_rows;
pub(crate) mod unsaved_texts;
pub(crate) mod versions;
pub(crate) mod views;
pub(crate) mod work;
