//! `/audit`, for partners: who requested which record, when, and the decision. Available as a page, JSON and CSV, with the
//! same filters.

mod changes;
pub(crate) mod csv;
mod descriptions;
mod filters;
pub(crate) mod page;
mod remembered_filters;
mod view_groups;
