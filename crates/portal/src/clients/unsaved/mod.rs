//! Text that a person typed into a form of a record and has not saved: stored every few seconds by a script, and when a
//! form arrives after the session has ended. It is given back when the same person opens the same form again.

mod fields;
pub(crate) mod record_form;
pub(crate) mod restore;
pub(crate) mod routes;
