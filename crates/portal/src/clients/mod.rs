//! The pages of client records: the list, the record, and what is done to it. Each page or change has a file; each asks the policy
//! through `authz` and offers nobody a change that it would deny.

pub(crate) mod archive;
mod conflict;
mod differences;
pub(crate) mod done;
pub(crate) mod entry_add;
pub(crate) mod entry_edit;
pub(crate) mod entry_form;
mod entry_view;
pub(crate) mod export;
pub(crate) mod facts_edit;
mod facts_form;
mod json;
pub(crate) mod list;
mod list_query;
pub(crate) mod new_client;
mod people;
pub(crate) mod reassign;
pub(crate) mod record;
pub(crate) mod record_query;
mod text;
pub(crate) mod versions;
