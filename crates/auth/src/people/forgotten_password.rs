//! `GET` and `POST /forgotten-password`: asks for the email address. The response is the same whether or not it has an
//! account.

use super::client_subnet::ClientSubnet;
use super::form::{PostedForm, Problems, ReturnToParam, local_path, read_email};
use super::mailbox_proof::{begin, take_email_quota};
use crate::Provider;
use crate::signed_in::see_other;
use askama::Template;
use axum::extract::State;
use axum::http::{StatusCode, header};
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
    let template = ForgottenPasswordPage {
        firm_name: &provider.settings.firm_name,
        problems: Problems::default(),
        email: "",
        return_to: &return_to,
    };
    page(StatusCode::OK, &template)
}

pub(crate) async fn send(
    State(provider): State<Arc<Provider>>,
    subnet: ClientSubnet,
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
    take_email_quota(&provider, subnet, &email).await?;
    let cookie = begin(&provider, ProofPurpose::NewPassword, email, return_to).await?;
    let mut response = see_other("/forgotten-password/code");
    response.headers_mut().append(header::SET_COOKIE, cookie);
    Ok(response)
}
