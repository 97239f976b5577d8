//! `/usage`, for partners: what was used and spent in a month, by day, model, key and account, against the limits, and what was
//! refused. Everything comes from one report of the store; charts are drawn here.

mod axis;
mod breakdown;
mod calendar;
mod chart;
mod comparison;
mod daily;
mod json;
mod limits_card;
mod meter;
pub(crate) mod money;
pub(crate) mod page;
mod query;
mod refusals;
mod stats;
