//! `/usage`, for partners: usage and spend of a month, by day, model, key and account, relative to the limits, and rejected
//! requests. All data comes from one report of the store; charts are drawn here.

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
mod rejections;
mod stats;
