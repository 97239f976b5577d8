//! The pages of client records: the list, the record, and what is done to it. Each page or deed has a file; each asks the policy
//! through `authority` and shows nobody a deed that it would refuse.

pub(crate) mod archive;
mod conflict;
mod differences;
pub(crate) mod entry_add;
pub(crate) mod entry_edit;
pub(crate) mod entry_form;
mod entry_number;
mod entry_view;
pub(crate) mod export;
pub(crate) mod facts_edit;
mod facts_form;
mod json;
pub(crate) mod list;
mod list_query;
pub(crate) mod new_client;
pub(crate) mod notice;
pub(crate) mod pagination;
mod people;
pub(crate) mod posted;
pub(crate) mod reassign;
pub(crate) mod record;
pub(crate) mod record_query;
mod text;
pub(crate) mod versions;

use axum::http::StatusCode;
use chancery_web::Refusal;

/// The two halves of an e-mail address, between which a line may break.
pub(crate) fn address_halves(email: &str) -> (&str, &str) {
    email.split_at(email.find('@').map_or(0, |at| at + 1))
}

/// A client has no entry of this number. Whether another client has, nobody learns here.
fn no_such_entry(client: chancery_domain::ClientId) -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "not_found",
        "There is no such entry",
        "This client has no entry of this number.",
    )
    .advice("If a link led here, it is out of date.")
    .way_on(format!("/clients/{client}"), "Go to the client")
}

/// Something in an address that no link of ours has.
fn bad_parameter(name: &str, why: &str) -> Refusal {
    Refusal::new(
        StatusCode::BAD_REQUEST,
        "bad_request",
        "This address cannot be read",
        format!("`{name}` {why}."),
    )
    .advice("If you typed it, check it; if a link led here, it is out of date.")
    .way_on("/clients", "Go to the clients")
}
