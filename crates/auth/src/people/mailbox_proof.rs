//! Proof that a mailbox belongs to the user, before an account is created, its password is reset, or its first second
//! factor is added.
//!
//! 1. A form names an address. Emails are counted per address and per subnet, and the throttles for codes are checked.
//! 2. A proof is created: a random token in a browser cookie, and a row with hashes of the token and of a six-digit code.
//!    The row is created **whether or not the address has an account**, and the response is the same.
//! 3. In the background, the account is looked up. Then the code is sent, or an email without one, or nothing (`emails`).
//!    Nobody knows a code that was not sent.
//! 4. The user enters the code. The attempt is counted for this proof, the address and the subnet, and only then compared.
//!    The fifth wrong code destroys the proof.
//! 5. The correct code is used up in the same transaction that creates the account or changes its password. It works once,
//!    however many requests race, and an earlier failure does not use it up. The transaction ends all other proofs of the
//!    mailbox. For the first factor, it is used up at once (`security::email_code`).

use super::client_subnet::ClientSubnet;
use super::emails;
use super::throttle::{self, RequestOrigin};
use crate::known_device::known_device;
use crate::limits::{EMAIL_CODE_TTL, MAX_CODES_PER_PROOF, RESEND_INTERVAL};
use crate::{Provider, store_error_page};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use chancery_domain::{
    AttemptKind, EmailAddress, EmailCode, LocalPath, SecretToken, ThrottleKey, TokenHash, UnixMillis,
};
use chancery_store::{MailboxProof, PasswordHash, ProofPurpose, SentEmailCode};
use chancery_web::{Cookie, CookieLookup, ErrorPage, find_cookie};
use std::sync::Arc;
use std::time::Duration;

/// Why a mailbox is being proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProofFlow {
    SignUp,
    NewPassword,
    FirstFactor,
}

impl ProofFlow {
    pub(crate) fn cookie(self) -> Cookie {
        match self {
            Self::SignUp => Cookie { name: "__Host-sign_up", path: "/" },
            Self::NewPassword => Cookie { name: "__Host-new_password", path: "/" },
            Self::FirstFactor => Cookie { name: "__Host-first_factor", path: "/" },
        }
    }

    /// Path of the first page of this flow.
    pub(crate) fn start(self) -> &'static str {
        match self {
            Self::SignUp => "/sign-up",
            Self::NewPassword => "/forgotten-password",
            Self::FirstFactor => "/security",
        }
    }

    fn matches_purpose(self, purpose: &ProofPurpose) -> bool {
        match self {
            Self::SignUp => matches!(purpose, ProofPurpose::SignUp(_)),
            Self::NewPassword => matches!(purpose, ProofPurpose::NewPassword),
            Self::FirstFactor => matches!(purpose, ProofPurpose::FirstFactor),
        }
    }
}

/// Counts an email, or rejects it if no more may be sent. Call it before any costly work.
pub(crate) async fn take_email_quota(
    provider: &Provider,
    origin: RequestOrigin,
    email: &EmailAddress,
) -> Result<(), ErrorPage> {
    throttle::check(provider, &throttle::attempt_keys(provider, AttemptKind::Code, email, origin).await?)
        .await?;
    let keys = throttle::attempt_keys(provider, AttemptKind::Email, email, origin).await?;
    throttle::count(provider, Some(origin.subnet), &keys).await
}

/// Creates a proof and sends its email. Returns the browser's cookie.
pub(crate) async fn begin(
    provider: &Arc<Provider>,
    purpose: ProofPurpose,
    email: EmailAddress,
    return_to: LocalPath,
) -> Result<HeaderValue, ErrorPage> {
    let flow = match purpose {
        ProofPurpose::SignUp(_) => ProofFlow::SignUp,
        ProofPurpose::NewPassword => ProofFlow::NewPassword,
        ProofPurpose::FirstFactor => ProofFlow::FirstFactor,
    };
    let token = SecretToken::generate(provider.randomness.as_ref());
    let (code, sent_code) = generate_code(provider, &token, 1);
    let proof = MailboxProof { purpose, email: email.clone(), return_to, code: sent_code };
    provider.store.proofs.begin_proof(token.hash(), proof).await.map_err(|error| store_error_page(&error))?;
    send(provider, flow, email, code, sent_code.hash);
    let cookie = flow.cookie().set(token.reveal(), Some(EMAIL_CODE_TTL * MAX_CODES_PER_PROOF));
    cookie.ok_or_else(|| ErrorPage::internal("the proof token does not fit in a header"))
}

fn generate_code(provider: &Provider, token: &SecretToken, sent: u32) -> (EmailCode, SentEmailCode) {
    let code = EmailCode::generate(provider.randomness.as_ref());
    let now = provider.clock.now();
    let sent_code = SentEmailCode {
        hash: token.hash_with(code.reveal()),
        expires_at: UnixMillis(now.0.saturating_add(millis(EMAIL_CODE_TTL))),
        sent,
        sent_at: now,
    };
    (code, sent_code)
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

fn send(provider: &Arc<Provider>, flow: ProofFlow, email: EmailAddress, code: EmailCode, hash: TokenHash) {
    emails::send_in_background(provider, email, Some(hash), move |to, account| match (flow, account) {
        (ProofFlow::SignUp, None) => Some(emails::sign_up_code(to, &code)),
        (ProofFlow::SignUp, Some(_)) => Some(emails::account_exists(to)),
        (ProofFlow::NewPassword, Some(_)) => Some(emails::new_password_code(to, &code)),
        (ProofFlow::FirstFactor, Some(_)) => Some(emails::first_factor_code(to, &code)),
        (ProofFlow::NewPassword | ProofFlow::FirstFactor, None) => None,
    });
}

/// The pending proof of this browser.
pub(crate) struct PendingProof {
    token: SecretToken,
    pub proof: MailboxProof,
    flow: ProofFlow,
    /// Set if the account with the proof's address was signed in in this browser before.
    known_device: Option<TokenHash>,
}

/// Returns `None` if there is no proof, it has expired, or it is for the other flow.
pub(crate) async fn pending_proof(
    provider: &Provider,
    flow: ProofFlow,
    headers: &HeaderMap,
) -> Result<Option<PendingProof>, ErrorPage> {
    let CookieLookup::One(value) = find_cookie(headers, flow.cookie().name) else { return Ok(None) };
    let Some(token) = SecretToken::parse(value) else { return Ok(None) };
    let found = provider
        .store
        .proofs
        .find_proof(token.hash(), provider.clock.now())
        .await
        .map_err(|error| store_error_page(&error))?;
    let Some(proof) = found.filter(|proof| flow.matches_purpose(&proof.purpose)) else { return Ok(None) };
    let known_device = known_device(provider, headers, &proof.email).await?;
    Ok(Some(PendingProof { token, proof, flow, known_device }))
}

/// The proof for this code no longer exists.
pub(crate) fn code_expired(flow: ProofFlow) -> ErrorPage {
    ErrorPage::new(
        StatusCode::GONE,
        "code_gone",
        "Code expired",
        "The code was already used, is older than 10 minutes, was requested in another browser, or was entered incorrectly too often.",
    )
    .advice("Start again to get a new code.")
    .next_link(flow.start(), "Start again")
    .with_cookie(flow.cookie().expire())
}

pub(crate) enum CodeCheck {
    /// The mailbox belongs to the user. The proof is not used up yet.
    Correct,
    Incorrect {
        left: u32,
    },
}

impl PendingProof {
    /// Hashes that identify the proof and its newest code in the store.
    pub(crate) fn keys(&self) -> (TokenHash, TokenHash) {
        (self.token.hash(), self.proof.code.hash)
    }

    fn origin(&self, subnet: ClientSubnet) -> RequestOrigin {
        RequestOrigin { subnet, known_device: self.known_device }
    }

    /// Fails if no attempts are left.
    pub(crate) async fn try_code(
        &self,
        provider: &Arc<Provider>,
        subnet: ClientSubnet,
        typed: &EmailCode,
    ) -> Result<CodeCheck, ErrorPage> {
        let (email, origin) = (&self.proof.email, self.origin(subnet));
        let mut keys = throttle::attempt_keys(provider, AttemptKind::Code, email, origin).await?;
        keys.push(ThrottleKey::CodePerProof(self.token.hash()));
        let attempt = throttle::begin_attempt(provider, &keys).await?;
        if self.proof.code.hash.matches(&self.token.hash_with(typed.reveal())) {
            throttle::settle_success(provider, &keys).await?;
            return Ok(CodeCheck::Correct);
        }
        attempt.record_failure(provider, subnet);
        if attempt.left > 0 {
            return Ok(CodeCheck::Incorrect { left: attempt.left });
        }
        let (token, code) = self.keys();
        provider.store.proofs.consume_proof(token, code).await.map_err(|error| store_error_page(&error))?;
        // If only the proof's own attempts are used up, there is nothing to wait for.
        let keys = throttle::attempt_keys(provider, AttemptKind::Code, email, origin).await?;
        match throttle::check(provider, &keys).await {
            Ok(()) => Err(code_expired(self.flow)),
            Err(rejection) => Err(rejection
                .next_link(self.flow.start(), "Start again later")
                .with_cookie(self.flow.cookie().expire())),
        }
    }

    /// Sends another code, which replaces the last one.
    pub(crate) async fn resend(
        &self,
        provider: &Arc<Provider>,
        subnet: ClientSubnet,
    ) -> Result<(), ErrorPage> {
        let SentEmailCode { sent, sent_at, .. } = self.proof.code;
        let pause_ms =
            sent_at.0.saturating_add(millis(RESEND_INTERVAL)).saturating_sub(provider.clock.now().0);
        if pause_ms > 0 {
            return Err(throttle::wait("An email was just sent. It may take a moment to arrive.", pause_ms));
        }
        if sent >= MAX_CODES_PER_PROOF {
            let mut rejection = ErrorPage::too_many_requests("We have sent the maximum number of emails.", 0);
            rejection.retry_after_s = None;
            return Err(rejection
                .advice("Check your spam folder and the address. The latest code still works.")
                .next_link(self.flow.start(), "Start again"));
        }
        let email = &self.proof.email;
        take_email_quota(provider, self.origin(subnet), email).await?;
        let (code, sent_code) = generate_code(provider, &self.token, sent.saturating_add(1));
        let replaced = provider.store.proofs.replace_proof_code(self.token.hash(), sent_code).await;
        // If not replaced, a concurrent request of this browser won and sends its own email.
        if replaced.map_err(|error| store_error_page(&error))? {
            send(provider, self.flow, email.clone(), code, sent_code.hash);
        }
        Ok(())
    }

    /// The hash of the password chosen at sign-up.
    pub(crate) fn sign_up_password(&self) -> Option<&PasswordHash> {
        match &self.proof.purpose {
            ProofPurpose::SignUp(hash) => Some(hash),
            ProofPurpose::NewPassword | ProofPurpose::FirstFactor => None,
        }
    }
}
