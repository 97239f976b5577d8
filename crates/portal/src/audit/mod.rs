//! `/audit`, for partners: who asked for which record when, and what was decided. As a page, as JSON and as a CSV file, with
//! the same filters.

pub(crate) mod csv;
mod filters;
pub(crate) mod page;
mod words;
