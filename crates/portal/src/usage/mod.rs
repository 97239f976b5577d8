//! `/usage`, for partners: what was used and spent in a month, by day, model, key and account, against the limits, and what was
//! refused. Everything comes from one report of the store; charts are drawn here.

mod axis;
mod calendar;
mod chart;
