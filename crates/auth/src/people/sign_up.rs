//! `GET` and `POST /sign-up`: users of the firm choose an address and a password. The account is created once the
//! mailbox is proved (`mailbox_proof`). Only an email to the mailbox reveals that the address already has an account.

use super::client_subnet::ClientSubnet;
use super::form::{PostedForm, Problems, ReturnToParam, local_path, read_email};
use super::mailbox_proof::{begin, take_email_quota};
use super::sign_in::hashing_error_page;
use super::throttle::RequestOrigin;
use crate::Provider;
use crate::known_device::known_device;
use crate::limits::MIN_PASSWORD_CHARS;
use crate::passwords::{self, NewPassword};
use crate::signed_in::see_other;
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use chancery_domain::{CompanyDomain, LocalPath};
use chancery_store::ProofPurpose;
use chancery_web::{ErrorPage, page};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "sign_up.html")]
struct SignUpPage<'a> {
    firm_name: &'a str,
    company_domain: &'a CompanyDomain,
    problems: Problems,
    email: &'a str,
    return_to: &'a LocalPath,
}

#[derive(Deserialize)]
pub(crate) struct Fields {
    #[serde(default)]
    email: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    return_to: String,
}

pub(crate) async fn show(
    State(provider): State<Arc<Provider>>,
    ReturnToParam(return_to): ReturnToParam,
) -> Result<Response, ErrorPage> {
    let template = SignUpPage {
        firm_name: &provider.settings.firm_name,
        company_domain: &provider.settings.company_domain,
        problems: Problems::default(),
        email: "",
        return_to: &return_to,
    };
    page(StatusCode::OK, &template)
}

pub(crate) async fn send(
    State(provider): State<Arc<Provider>>,
    subnet: ClientSubnet,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<Fields>,
) -> Result<Response, ErrorPage> {
    let return_to = local_path(&fields.return_to);
    let domain = &provider.settings.company_domain;
    let mut problems = Problems::default();
    let email = match read_email(&fields.email) {
        Ok(email) if email.has_domain(domain) => Some(email),
        Ok(_) => {
            problems.add("email", format!("Enter an address at {domain}"));
            None
        }
        Err(text) => {
            problems.add("email", text);
            None
        }
    };
    let password = email
        .as_ref()
        .map(|email| NewPassword::check(&fields.password, &provider.settings.password_context(email)));
    if let Some(Err(problem)) = &password {
        problems.add("password", problem.to_string());
    } else if password.is_none() && fields.password.is_empty() {
        problems.add("password", passwords::PasswordError::TooShort.to_string());
    }
    let (Some(email), Some(Ok(password))) = (email, password) else {
        let template = SignUpPage {
            firm_name: &provider.settings.firm_name,
            company_domain: domain,
            problems,
            email: fields.email.trim(),
            return_to: &return_to,
        };
        return page(StatusCode::UNPROCESSABLE_ENTITY, &template);
    };
    let origin = RequestOrigin { subnet, known_device: known_device(&provider, &headers, &email).await? };
    take_email_quota(&provider, origin, &email).await?;
    let hash = passwords::hash(password, provider.randomness.as_ref())
        .await
        .map_err(|error| hashing_error_page(&error))?;
    let cookie = begin(&provider, ProofPurpose::SignUp(hash), email, return_to).await?;
    let mut response = see_other("/sign-up/code");
    response.headers_mut().append(header::SET_COOKIE, cookie);
    Ok(response)
}
