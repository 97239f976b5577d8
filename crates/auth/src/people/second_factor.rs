//! `/sign-in/second-factor`: what a correct password leads to if the account has a second factor. Until then, there is
//! no session: the browser holds a token for a sign-in that waits, and only its hash is stored.

use super::client_subnet::ClientSubnet;
use super::factor_emails::{FactorChange, notify};
use super::form::{PostedForm, Problems};
use super::throttle;
use crate::authentication_methods::{AuthenticationMethod, AuthenticationMethods};
use crate::known_device::known_device;
use crate::limits::SECOND_FACTOR_TTL;
use crate::passkeys;
use crate::recovery_codes;
use crate::signed_in::{begin_session, reject_duplicate_sessions, see_other, to_second_factor_set_up};
use crate::{Provider, store_error_page, totp};
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use chancery_domain::{LocalPath, SecretToken, ThrottleKey, TokenHash};
use chancery_store::{AccountFactors, PendingSecondFactor, ProviderAccount};
use chancery_web::{Cookie, CookieLookup, ErrorPage, find_cookie, page};
use serde::Deserialize;
use std::sync::Arc;

const COOKIE: Cookie = Cookie { name: "__Host-second_factor", path: "/" };
const PATH: &str = "/sign-in/second-factor";

pub(super) const INVALID_CODE: &str = "Enter the six-digit code from your authenticator app";
pub(super) const PASSKEY_REJECTED: &str = "That passkey was not accepted. Try again, or use another way.";
pub(super) const PASSKEY_MISSING: &str =
    "Your browser sent no passkey. Turn on JavaScript for this site, or use another way.";

#[derive(Template)]
#[template(path = "second_factor.html")]
struct SecondFactorPage<'a> {
    firm_name: &'a str,
    email: &'a str,
    problems: Problems,
    code: &'a str,
    has_totp: bool,
    /// For the script. `None` without a passkey that works here.
    passkey_options: Option<String>,
    /// The account has passkeys, but not at this address.
    has_unusable_passkeys: bool,
}

#[derive(Deserialize)]
pub(crate) struct CodeFields {
    #[serde(default)]
    code: String,
}

#[derive(Deserialize)]
pub(crate) struct RecoveryFields {
    #[serde(default)]
    recovery_code: String,
}

#[derive(Deserialize)]
pub(crate) struct PasskeyFields {
    #[serde(default)]
    credential: String,
}

/// Continues after a correct password: to the second factor if the account has one, else to a session.
pub(super) async fn continue_after_password(
    provider: &Provider,
    headers: &HeaderMap,
    account: &ProviderAccount,
    return_to: &LocalPath,
) -> Result<Response, ErrorPage> {
    let factors = account_factors(provider, account).await?;
    if factors.is_empty() {
        return begin_single_factor_session(provider, headers, account, return_to).await;
    }
    let token = SecretToken::generate(provider.randomness.as_ref());
    let pending = PendingSecondFactor {
        subject: account.subject.clone(),
        password_version: account.password_version,
        return_to: return_to.clone(),
        expires_at: provider.clock.now().after(SECOND_FACTOR_TTL),
    };
    let begun = provider.store.ceremonies.begin_second_factor(token.hash(), &pending).await;
    begun.map_err(store_error_page)?;
    let cookie = COOKIE.set(token.reveal(), Some(SECOND_FACTOR_TTL));
    let cookie = cookie.ok_or_else(|| ErrorPage::internal("the sign-in token does not fit in a header"))?;
    let mut response = see_other(PATH);
    response.headers_mut().append(header::SET_COOKIE, cookie);
    Ok(response)
}

/// Starts a session of a person who has proved a password only. If the firm requires a second factor, its set-up is
/// next.
pub(super) async fn begin_single_factor_session(
    provider: &Provider,
    headers: &HeaderMap,
    account: &ProviderAccount,
    return_to: &LocalPath,
) -> Result<Response, ErrorPage> {
    let methods = AuthenticationMethods::new(&[AuthenticationMethod::Password]);
    let cookies = begin_session(provider, headers, account, &methods).await?;
    let mut response = match provider.settings.requires_second_factor() {
        true => to_second_factor_set_up(return_to),
        false => see_other(return_to.as_str()),
    };
    cookies.append_to(&mut response);
    Ok(response)
}

pub(super) async fn account_factors(
    provider: &Provider,
    account: &ProviderAccount,
) -> Result<AccountFactors, ErrorPage> {
    provider.store.second_factors.account_factors(&account.subject).await.map_err(store_error_page)
}

/// The sign-in of this browser that waits for its second factor.
struct Pending {
    token: SecretToken,
    account: ProviderAccount,
    return_to: LocalPath,
    factors: AccountFactors,
}

impl Pending {
    async fn find(provider: &Provider, headers: &HeaderMap) -> Result<Option<Self>, ErrorPage> {
        reject_duplicate_sessions(headers)?;
        let CookieLookup::One(value) = find_cookie(headers, COOKIE.name) else { return Ok(None) };
        let Some(token) = SecretToken::parse(value) else { return Ok(None) };
        let found = provider.store.ceremonies.pending_second_factor(token.hash(), provider.clock.now()).await;
        let Some((account, pending)) = found.map_err(store_error_page)? else { return Ok(None) };
        let factors = account_factors(provider, &account).await?;
        Ok(Some(Self { token, account, return_to: pending.return_to, factors }))
    }

    fn passkey_key(&self) -> TokenHash {
        self.token.hash_with("passkey")
    }

    async fn show(&self, provider: &Provider, problems: Problems, code: &str) -> Result<Response, ErrorPage> {
        let passkeys = &self.factors.passkeys;
        let passkey_options = match passkeys.is_empty() {
            true => None,
            false => {
                let subject = Some(self.account.subject.as_str());
                passkeys::begin_authentication(provider, self.passkey_key(), subject, passkeys).await?
            }
        };
        let status = if problems.any() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
        let template = SecondFactorPage {
            firm_name: &provider.settings.firm_name,
            email: self.account.email.as_str(),
            problems,
            code,
            has_totp: self.factors.totp_created_at.is_some(),
            has_unusable_passkeys: !passkeys.is_empty() && passkey_options.is_none(),
            passkey_options,
        };
        page(status, &template)
    }

    /// Both factors are proved: starts the session. Works once.
    async fn finish(
        &self,
        provider: &Provider,
        headers: &HeaderMap,
        method: AuthenticationMethod,
    ) -> Result<Response, ErrorPage> {
        let consumed = provider.store.ceremonies.consume_second_factor(self.token.hash()).await;
        if !consumed.map_err(store_error_page)? {
            return Err(sign_in_expired());
        }
        let methods = AuthenticationMethods::new(&[AuthenticationMethod::Password, method]);
        let cookies = begin_session(provider, headers, &self.account, &methods).await?;
        let mut response = see_other(self.return_to.as_str());
        cookies.append_to(&mut response);
        if let Some(expired_cookie) = COOKIE.expire() {
            response.headers_mut().append(header::SET_COOKIE, expired_cookie);
        }
        Ok(response)
    }
}

pub(crate) async fn show(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    match Pending::find(&provider, &headers).await? {
        // An administrator may have reset the factors meanwhile.
        Some(pending) if !pending.factors.is_empty() => {
            pending.show(&provider, Problems::default(), "").await
        }
        _ => Ok(see_other("/sign-in")),
    }
}

/// A code of the authenticator app.
pub(crate) async fn send_code(
    State(provider): State<Arc<Provider>>,
    subnet: ClientSubnet,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<CodeFields>,
) -> Result<Response, ErrorPage> {
    let Some(pending) = Pending::find(&provider, &headers).await? else { return Err(sign_in_expired()) };
    let typed = fields.code.trim();
    let Some(code) = totp::parse_code(typed) else {
        return pending.show(&provider, Problems::one("code", INVALID_CODE), typed).await;
    };
    let account = &pending.account;
    let known_device = known_device(&provider, &headers, &account.email).await?;
    let keys = ThrottleKey::second_factor(&account.email, subnet.0, known_device);
    let attempt = throttle::begin_attempt(&provider, &keys).await?;
    let factors = &provider.store.second_factors;
    let stored = factors.totp_secret(&account.subject).await.map_err(store_error_page)?;
    let step = stored.and_then(|stored| totp::matching_step(&stored.secret, &code, provider.clock.now()));
    let problem = match step {
        None => incorrect_code(attempt.left),
        Some(step) => {
            let accepted = factors.accept_totp_step(&account.subject, step).await;
            if accepted.map_err(store_error_page)? {
                throttle::settle_success(&provider, &keys).await?;
                return pending.finish(&provider, &headers, AuthenticationMethod::OneTimeCode).await;
            }
            "This code was already used. Wait for the next one.".to_owned()
        }
    };
    attempt.record_failure(&provider, subnet);
    if attempt.left == 0 {
        throttle::check(&provider, &keys).await?;
    }
    pending.show(&provider, Problems::one("code", problem), "").await
}

fn incorrect_code(left: u32) -> String {
    let attempts = if left == 1 { "1 attempt" } else { &format!("{left} attempts") };
    format!("Incorrect code. Enter the code that the app shows now. {attempts} left.")
}

pub(crate) async fn send_recovery_code(
    State(provider): State<Arc<Provider>>,
    subnet: ClientSubnet,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<RecoveryFields>,
) -> Result<Response, ErrorPage> {
    let Some(pending) = Pending::find(&provider, &headers).await? else { return Err(sign_in_expired()) };
    let account = &pending.account;
    let Some(code) = recovery_codes::hash_typed(&account.subject, &fields.recovery_code) else {
        let problems =
            Problems::one("recovery_code", "Enter one of your recovery codes, such as 4t2n-8k6d-w3px-91hv");
        return pending.show(&provider, problems, "").await;
    };
    let keys = ThrottleKey::recovery_code(&account.email, subnet.0);
    let attempt = throttle::begin_attempt(&provider, &keys).await?;
    let consumed = provider.store.second_factors.consume_recovery_code(&account.subject, code).await;
    let Some(left) = consumed.map_err(store_error_page)? else {
        attempt.record_failure(&provider, subnet);
        if attempt.left == 0 {
            throttle::check(&provider, &keys).await?;
        }
        let text = "Incorrect recovery code. Each code works once. Try another of your codes.";
        return pending.show(&provider, Problems::one("recovery_code", text), "").await;
    };
    for key in keys {
        throttle::refund(&provider, key).await?;
    }
    notify(&provider, &account.email, FactorChange::RecoveryCodeUsed { left });
    pending.finish(&provider, &headers, AuthenticationMethod::OneTimeCode).await
}

pub(crate) async fn send_passkey(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<PasskeyFields>,
) -> Result<Response, ErrorPage> {
    let Some(pending) = Pending::find(&provider, &headers).await? else { return Err(sign_in_expired()) };
    if fields.credential.is_empty() {
        return pending.show(&provider, Problems::one("passkey", PASSKEY_MISSING), "").await;
    }
    let subject =
        passkeys::finish_authentication(&provider, pending.passkey_key(), &fields.credential).await?;
    match subject {
        Some(subject) if subject == pending.account.subject => {
            pending.finish(&provider, &headers, AuthenticationMethod::Passkey).await
        }
        _ => pending.show(&provider, Problems::one("passkey", PASSKEY_REJECTED), "").await,
    }
}

/// The password must be entered again.
fn sign_in_expired() -> ErrorPage {
    ErrorPage::new(
        StatusCode::GONE,
        "sign_in_expired",
        "Sign-in expired",
        "This sign-in was finished already, is older than 10 minutes, was begun in another browser, or the password was changed.",
    )
    .advice("Sign in again with your password.")
    .next_link("/sign-in", "Sign in")
    .with_cookie(COOKIE.expire())
}
