//! The pages for users: signing in and out, signing up, resetting a password, and what protects an account. The
//! protocol for clients is elsewhere.

mod client_subnet;
mod emails;
mod factor_emails;
mod forgotten_password;
mod forgotten_password_code;
mod form;
mod home;
mod mailbox_proof;
mod passkey_sign_in;
pub(crate) mod scripts;
mod second_factor;
mod security;
mod sign_in;
mod sign_out;
mod sign_up;
mod sign_up_code;
pub(crate) mod throttle;

use crate::Provider;
use axum::Router;
use axum::routing::{get, post};
use std::sync::Arc;

pub(crate) fn routes() -> Router<Arc<Provider>> {
    Router::new()
        .route("/", get(home::show))
        .route("/consents/withdraw", post(home::withdraw_consent))
        .route("/sign-in", get(sign_in::show).post(sign_in::send))
        .route("/sign-in/address", post(sign_in::show_with_address))
        .route("/sign-in/passkey", get(passkey_sign_in::show).post(passkey_sign_in::send))
        .route("/sign-in/second-factor", get(second_factor::show).post(second_factor::send_code))
        .route("/sign-in/second-factor/recovery-code", post(second_factor::send_recovery_code))
        .route("/sign-in/second-factor/passkey", post(second_factor::send_passkey))
        .route("/sign-out", post(sign_out::send))
        .route("/signed-out", get(sign_out::show))
        .route("/sign-up", get(sign_up::show).post(sign_up::send))
        .route("/sign-up/code", get(sign_up_code::show).post(sign_up_code::send))
        .route("/sign-up/code/resend", post(sign_up_code::resend))
        .route("/forgotten-password", get(forgotten_password::show).post(forgotten_password::send))
        .route("/forgotten-password/address", post(forgotten_password::show_with_address))
        .route(
            "/forgotten-password/code",
            get(forgotten_password_code::show).post(forgotten_password_code::send),
        )
        .route("/forgotten-password/code/resend", post(forgotten_password_code::resend))
        .route(scripts::SCRIPT_PATH, get(scripts::show))
        .merge(security::routes())
}
