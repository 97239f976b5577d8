//! Every route of the portal, in one table. Axum cannot list its routes, so the router is built from this table, and the
//! tests read it too: they fail for a route without authorization cases (`tests/routes/`).

use crate::state::Portal;
use crate::{
    accounts, audit, clients, demo_mail, drafting, home, invoices, letters, profile, scripts, sign_in, team,
    usage, work,
};
use axum::Router;
use axum::routing::{MethodFilter, on};
use std::sync::Arc;

macro_rules! routes {
    ($($method:ident $path:expr => $handler:path,)*) => {
        pub(crate) fn all() -> Router<Arc<Portal>> {
            Router::new()$(.route(&$path, on(MethodFilter::$method, $handler)))*
        }

        /// Method and path of each route.
        #[cfg(test)]
        pub(crate) fn table() -> Vec<(&'static str, String)> {
            vec![$((stringify!($method), $path.to_string()),)*]
        }
    };
}

routes! {
    GET "/" => home::handle,
    GET "/auth/sign-in" => sign_in::begin::handle,
    GET "/auth/callback" => sign_in::callback::handle,
    GET "/auth/code" => sign_in::email_code::show,
    POST "/auth/code" => sign_in::email_code::submit,
    POST "/auth/code/resend" => sign_in::email_code_resend::handle,
    POST "/auth/sign-out" => sign_in::sign_out::handle,
    POST sign_in::backchannel_logout::PATH => sign_in::backchannel_logout::handle,
    GET "/signed-out" => sign_in::signed_out::show,
    GET "/profile" => profile::show,
    POST "/profile" => profile::save,
    GET "/sessions" => sign_in::session_list::handle,
    POST "/sessions/end" => sign_in::session_end::handle,

    GET "/home" => work::handle,

    GET "/clients" => clients::list::handle,
    POST "/clients" => clients::new_client::create,
    GET "/clients/new" => clients::new_client::show,
    GET "/clients/export" => clients::export::show,
    GET "/clients/export.jsonl" => clients::export::jsonl,
    GET "/clients/export.csv" => clients::export::csv,
    GET "/clients/{id}" => clients::record::handle,
    POST "/clients/{id}" => clients::details_edit::handle,
    POST "/clients/{id}/archive" => clients::archive::archive_client,
    POST "/clients/{id}/restore" => clients::archive::restore_client,
    POST "/clients/{id}/reassign" => clients::reassign::handle,
    GET "/clients/{id}/versions" => clients::versions::of_client,
    POST "/clients/{id}/versions/restore" => clients::versions_restore::of_client,
    POST "/clients/{id}/entries" => clients::entry_add::handle,
    POST "/clients/{id}/entries/{entry}" => clients::entry_edit::handle,
    POST "/clients/{id}/entries/{entry}/archive" => clients::archive::archive_entry,
    POST "/clients/{id}/entries/{entry}/restore" => clients::archive::restore_entry,
    GET "/clients/{id}/entries/{entry}/versions" => clients::versions::of_entry,
    POST "/clients/{id}/entries/{entry}/versions/restore" => clients::versions_restore::of_entry,
    POST "/clients/{id}/unsaved" => clients::unsaved::routes::save,
    POST "/clients/{id}/unsaved/discard" => clients::unsaved::routes::discard,
    POST "/clients/{id}/letters/draft" => drafting::endpoint::handle,
    POST "/clients/{id}/letters/rewrite" => drafting::endpoint::rewrite,
    GET "/clients/{id}/letters/new" => letters::new_letter::handle,
    GET "/clients/{id}/letters/{entry}" => letters::page::handle,
    GET "/clients/{id}/letters/{entry}/pdf" => letters::pdf::handle,
    GET "/clients/{id}/letters/{entry}/send" => letters::send::preview,
    POST "/clients/{id}/letters/{entry}/send" => letters::send::send,
    POST "/clients/{id}/letters/{entry}/copy" => letters::copy::handle,

    GET "/templates" => letters::templates::show,
    POST "/templates" => letters::templates::create,
    GET "/templates/{template}" => letters::template_edit::show,
    POST "/templates/{template}" => letters::template_edit::save,
    POST "/templates/{template}/delete" => letters::template_edit::delete,

    GET "/invoices" => invoices::list::handle,
    GET "/invoices.csv" => invoices::list_csv::handle,
    GET "/invoices/drafts/{account}/{month}" => invoices::draft::handle,
    GET "/invoices/drafts/{account}/{month}/issue" => invoices::issue::show,
    POST "/invoices/drafts/{account}/{month}/issue" => invoices::issue::submit,
    GET "/invoices/{document}" => invoices::document::handle,
    POST "/invoices/{number}/paid" => invoices::payment::paid,
    POST "/invoices/{number}/not-paid" => invoices::payment::mark_unpaid,
    GET "/invoices/{number}/credit" => invoices::credit::show,
    POST "/invoices/{number}/credit" => invoices::credit::submit,

    GET "/usage" => usage::page::handle,

    GET "/accounts" => accounts::list::handle,
    POST "/accounts" => accounts::account_changes::create,
    POST "/accounts/keys" => accounts::key_changes::create_unattached,
    POST "/accounts/keys/{prefix}/label" => accounts::key_changes::label,
    POST "/accounts/keys/{prefix}/limits" => accounts::key_changes::limits,
    POST "/accounts/keys/{prefix}/rotate" => accounts::key_changes::rotate,
    POST "/accounts/keys/{prefix}/attach" => accounts::key_changes::attach,
    POST "/accounts/keys/{prefix}/revoke" => accounts::key_changes::revoke,
    GET "/accounts/{account}" => accounts::account::handle,
    POST "/accounts/{account}/limits" => accounts::account_changes::limits,
    POST "/accounts/{account}/billing" => accounts::account_changes::billing,
    POST "/accounts/{account}/close" => accounts::account_changes::close,
    POST "/accounts/{account}/keys" => accounts::key_changes::create_on_account,
    POST "/accounts/{account}/attach" => accounts::key_changes::attach_to_account,

    GET "/team" => team::page::handle,
    POST "/team/role" => team::role::handle,
    POST "/team/reassign" => team::reassign::handle,
    POST "/team/sign-out" => team::sign_out::handle,
    POST "/team/remove" => team::remove::handle,
    POST "/team/restore" => team::remove::restore,
    POST "/team/reset-factors" => team::factor_reset::handle,
    POST "/team/invitations" => team::invitations::invite,
    POST "/team/invitations/resend" => team::invitations::resend,
    POST "/team/invitations/cancel" => team::invitations::cancel,

    GET "/audit" => audit::page::handle,
    GET "/audit.csv" => audit::csv::handle,

    GET demo_mail::MAIL_PATH => demo_mail::handle,

    GET scripts::HTMX_PATH => scripts::htmx,
    GET scripts::DRAFT_PATH => scripts::draft,
    GET scripts::PORTAL_PATH => scripts::portal,
}
