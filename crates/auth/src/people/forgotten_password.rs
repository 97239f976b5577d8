//! `GET` and `POST /forgotten-password`: asks for the email address. The response is the same whether or not it has an
//! account.

use super::client_subnet::ClientSubnet;
use super::form::{PostedForm, Problems, ReturnToParam, TypedAddress, local_path, read_email};
use super::mailbox_proof::{begin, take_email_quota};
use super::throttle::RequestOrigin;
use crate::Provider;
use crate::known_device::known_device;
use crate::signed_in::see_other;
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use chancery_domain::LocalPath;
use chancery_store::ProofPurpose;
use chancery_web::{ErrorPage, page};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "forgotten_password.html")]
struct ForgottenPasswordPage<'a> {
    firm_name: &'a str,
    problems: Problems,
    email: &'a str,
    return_to: &'a LocalPath,
}

#[derive(Deserialize)]
pub(crate) struct Fields {
    #[serde(default)]
    email: String,
    #[serde(default)]
    return_to: String,
}

pub(crate) async fn show(
    State(provider): State<Arc<Provider>>,
    ReturnToParam(return_to): ReturnToParam,
) -> Result<Response, ErrorPage> {
    show_page(&provider, "", &return_to)
}

/// The link on the sign-in page, with the address that was typed there.
pub(crate) async fn show_with_address(
    State(provider): State<Arc<Provider>>,
    PostedForm(fields): PostedForm<TypedAddress>,
) -> Result<Response, ErrorPage> {
    show_page(&provider, fields.email.trim(), &local_path(&fields.return_to))
}

fn show_page(provider: &Provider, email: &str, return_to: &LocalPath) -> Result<Response, ErrorPage> {
    let firm_name = &provider.settings.firm_name;
    let template = ForgottenPasswordPage { firm_name, problems: Problems::default(), email, return_to };
    page(StatusCode::OK, &template)
}

pub(crate) async fn send(
    State(provider): State<Arc<Provider>>,
    subnet: ClientSubnet,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<Fields>,
) -> Result<Response, ErrorPage> {
    let return_to = local_path(&fields.return_to);
    let email = match read_email(&fields.email) {
        Ok(email) => email,
        Err(text) => {
            let template = ForgottenPasswordPage {
                firm_name: &provider.settings.firm_name,
                problems: Problems::one("email", text),
                email: fields.email.trim(),
                return_to: &return_to,
            };
            return page(StatusCode::UNPROCESSABLE_ENTITY, &template);
        }
    };
    let origin = RequestOrigin { subnet, known_device: known_device(&provider, &headers, &email).await? };
    take_email_quota(&provider, origin, &email).await?;
    let cookie = begin(&provider, ProofPurpose::NewPassword, email, return_to).await?;
    let mut response = see_other("/forgotten-password/code");
    response.headers_mut().append(header::SET_COOKIE, cookie);
    Ok(response)
}
