//! Client records: the list, the record, and changes to it. One file per page or change. Each asks the policy through `authz`, and no
//! page offers a change that the policy would deny.

pub(crate) mod archive;
mod conflict;
pub(crate) mod details_edit;
mod details_form;
mod diff;
mod dispute_amount;
pub(crate) mod done;
pub(crate) mod entry_add;
pub(crate) mod entry_edit;
pub(crate) mod entry_form;
pub(crate) mod entry_view;
pub(crate) mod export;
mod json;
pub(crate) mod list;
mod list_query;
pub(crate) mod new_client;
mod people;
pub(crate) mod reassign;
pub(crate) mod record;
mod record_json;
mod record_pages;
pub(crate) mod record_query;
mod record_tabs;
mod search_matches;
mod text;
mod undo;
pub(crate) mod unsaved;
pub(crate) mod versions;
pub(crate) mod versions_restore;
