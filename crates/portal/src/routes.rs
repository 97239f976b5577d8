//! Every route of the portal, in one table. Axum cannot say which routes it has, so the router is made from this table, and
//! the tests read it: a route without its cases of who may and who may not (`tests/routes/`) fails them.

use crate::state::Portal;
use crate::{
    audit, callback, clients, code, code_resend, exports, home, session_end, sessions, sign_in, sign_out,
    team,
};
use axum::Router;
use axum::routing::{MethodFilter, on};
use std::sync::Arc;

macro_rules! routes {
    ($($method:ident $path:expr => $handler:path,)*) => {
        pub(crate) fn all() -> Router<Arc<Portal>> {
            Router::new()$(.route(&$path, on(MethodFilter::$method, $handler)))*
        }

        /// Method and path of each.
        #[cfg(test)]
        pub(crate) fn table() -> Vec<(&'static str, String)> {
            vec![$((stringify!($method), $path.to_string()),)*]
        }
    };
}

routes! {
    GET "/" => home::handle,
    GET "/auth/sign-in" => sign_in::handle,
    GET "/auth/callback" => callback::handle,
    GET "/auth/code" => code::show,
    POST "/auth/code" => code::submit,
    POST "/auth/code/resend" => code_resend::handle,
    POST "/auth/sign-out" => sign_out::handle,
    GET "/signed-out" => sign_out::show_signed_out,
    GET "/sessions" => sessions::handle,
    POST "/sessions/end" => session_end::handle,

    GET "/clients" => clients::handle,
    GET "/clients/export.jsonl" => exports::jsonl,
    GET "/clients/export.csv" => exports::csv,

    GET "/team" => team::page::handle,
    POST "/team/role" => team::role::handle,
    POST "/team/reassign" => team::reassign::handle,
    POST "/team/sign-out" => team::sign_out::handle,
    POST "/team/remove" => team::remove::handle,
    POST "/team/restore" => team::remove::restore,

    GET "/audit" => audit::page::handle,
    GET "/audit.csv" => audit::csv::handle,
}
