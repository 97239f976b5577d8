//! Proof that a mailbox is the person's, before an account is made or gets a new password.
//!
//! 1. A form names an address. Letters to it, and from this place, are counted; so is it known whether codes may be tried.
//! 2. A proof is begun: a random token in a cookie of the browser, and a row with hashes of the token and of a code of six
//!    digits. The row is there **whether or not the address has an account**, and the reply is the same.
//! 3. In the background, it is looked up whether there is an account. Then the code is sent, or a letter without one, or
//!    nothing (`letters`); the code that was not sent is known to nobody.
//! 4. The code is typed. The try is counted, for this proof, for the address and for this place, and only then compared.
//!    The fifth wrong one destroys the proof.
//! 5. The right one is taken in the same step that makes the account or changes its password, once, however many race:
//!    what fails before that uses no code up. That step ends all other proofs of the mailbox.

use super::letters;
use super::place::Place;
use super::throttle;
use crate::limits::{CODE_LASTS, CODES_PER_PROOF, RESEND_PAUSE};
use crate::{Provider, refused};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use chancery_domain::{EmailAddress, LocalPath, MailCode, SecretToken, ThrottleKey, TokenHash, UnixMillis};
use chancery_store::{MailboxProof, MailedCode, PasswordHash, ProofPurpose};
use chancery_web::{Cookie, ErrorPage, SentCookie, sent_cookie};
use std::sync::Arc;
use std::time::Duration;

/// What differs between the two reasons to prove a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    SignUp,
    NewPassword,
}

impl Errand {
    pub(crate) fn cookie(self) -> Cookie {
        match self {
            Self::SignUp => Cookie { name: "sign_up", path: "/sign-up" },
            Self::NewPassword => Cookie { name: "new_password", path: "/forgotten-password" },
        }
    }

    /// Where one starts again.
    pub(crate) fn start(self) -> &'static str {
        match self {
            Self::SignUp => "/sign-up",
            Self::NewPassword => "/forgotten-password",
        }
    }

    fn is_of(self, purpose: &ProofPurpose) -> bool {
        match self {
            Self::SignUp => matches!(purpose, ProofPurpose::SignUp(_)),
            Self::NewPassword => matches!(purpose, ProofPurpose::NewPassword),
        }
    }
}

/// Whether a letter may be sent at all; counts it. Before any costly work.
pub(crate) async fn ask_for_letter(
    provider: &Provider,
    place: Place,
    email: &EmailAddress,
) -> Result<(), ErrorPage> {
    throttle::check(provider, &ThrottleKey::codes(email, place.0)).await?;
    throttle::count(provider, Some(place), &ThrottleKey::email_with_code(email, place.0)).await
}

/// Begins a proof and has its letter sent. Gives the browser's cookie.
pub(crate) async fn begin(
    provider: &Arc<Provider>,
    purpose: ProofPurpose,
    email: EmailAddress,
    return_to: LocalPath,
) -> Result<HeaderValue, ErrorPage> {
    let errand = match purpose {
        ProofPurpose::SignUp(_) => Errand::SignUp,
        ProofPurpose::NewPassword => Errand::NewPassword,
    };
    let token = SecretToken::generate(provider.randomness.as_ref());
    let (code, mailed) = draw_code(provider, &token, 1);
    let proof = MailboxProof { purpose, email: email.clone(), return_to, code: mailed };
    provider.store.proofs.begin_proof(token.hash(), proof).await.map_err(|error| refused(&error))?;
    send(provider, errand, email, code);
    let cookie = errand.cookie().set(token.reveal(), Some(CODE_LASTS * CODES_PER_PROOF));
    cookie.ok_or_else(|| ErrorPage::internal("a proof's token does not fit a header"))
}

fn draw_code(provider: &Provider, token: &SecretToken, sent: u32) -> (MailCode, MailedCode) {
    let code = MailCode::generate(provider.randomness.as_ref());
    let now = provider.clock.now();
    let mailed = MailedCode {
        hash: token.hash_with(code.reveal()),
        expires_at: UnixMillis(now.0.saturating_add(millis(CODE_LASTS))),
        sent,
        sent_at: now,
    };
    (code, mailed)
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

fn send(provider: &Arc<Provider>, errand: Errand, email: EmailAddress, code: MailCode) {
    letters::send_in_background(provider, email, move |to, account| match (errand, account) {
        (Errand::SignUp, None) => Some(letters::sign_up_code(to, &code)),
        (Errand::SignUp, Some(_)) => Some(letters::already_an_account(to)),
        (Errand::NewPassword, Some(_)) => Some(letters::new_password_code(to, &code)),
        (Errand::NewPassword, None) => None,
    });
}

/// The proof that this browser has under way.
pub(crate) struct UnderWay {
    token: SecretToken,
    pub proof: MailboxProof,
    errand: Errand,
}

/// None where there is none, where its time is over, or where it is for something else.
pub(crate) async fn under_way(
    provider: &Provider,
    errand: Errand,
    headers: &HeaderMap,
) -> Result<Option<UnderWay>, ErrorPage> {
    let SentCookie::One(value) = sent_cookie(headers, errand.cookie().name) else { return Ok(None) };
    let Some(token) = SecretToken::parse(value) else { return Ok(None) };
    let found = provider
        .store
        .proofs
        .proof(token.hash(), provider.clock.now())
        .await
        .map_err(|error| refused(&error))?;
    let found = found.filter(|proof| errand.is_of(&proof.purpose));
    Ok(found.map(|proof| UnderWay { token, proof, errand }))
}

/// There is nothing to type a code for any more.
pub(crate) fn gone(errand: Errand) -> ErrorPage {
    ErrorPage::new(
        StatusCode::GONE,
        "code_gone",
        "This code no longer works",
        "It was used, it is older than 10 minutes, or this browser did not ask for it.",
    )
    .advice("Start again and you get a new one.")
    .next_link(errand.start(), "Start again")
    .with_cookie(errand.cookie().take_back())
}

pub(crate) enum CodeTry {
    /// The mailbox is the person's. The proof is yet to be used up, with what it is for.
    Right,
    Wrong {
        left: u32,
    },
}

impl UnderWay {
    /// By what the store knows the proof and its newest code.
    pub(crate) fn keys(&self) -> (TokenHash, TokenHash) {
        (self.token.hash(), self.proof.code.hash)
    }

    /// Refuses when the tries are used up.
    pub(crate) async fn try_code(
        &self,
        provider: &Arc<Provider>,
        place: Place,
        typed: &MailCode,
    ) -> Result<CodeTry, ErrorPage> {
        let email = &self.proof.email;
        let all = ThrottleKey::code(self.token.hash(), email, place.0);
        let turn = throttle::take_turn(provider, &all).await?;
        if self.proof.code.hash.matches(&self.token.hash_with(typed.reveal())) {
            for key in all {
                match key {
                    ThrottleKey::CodePerAddressAndSubnet(..) => throttle::reset(provider, key).await?,
                    _ => throttle::refund(provider, key).await?,
                }
            }
            return Ok(CodeTry::Right);
        }
        turn.was_wrong(provider, place);
        if turn.left > 0 {
            return Ok(CodeTry::Wrong { left: turn.left });
        }
        let (token, code) = self.keys();
        provider.store.proofs.take_proof(token, code).await.map_err(|error| refused(&error))?;
        // Where only the proof's own tries are used up, there is nothing to wait for.
        match throttle::check(provider, &ThrottleKey::codes(email, place.0)).await {
            Ok(()) => Err(gone(self.errand)),
            Err(refusal) => Err(refusal
                .next_link(self.errand.start(), "Start again later")
                .with_cookie(self.errand.cookie().take_back())),
        }
    }

    /// Sends another code, which takes the place of the last.
    pub(crate) async fn resend(&self, provider: &Arc<Provider>, place: Place) -> Result<(), ErrorPage> {
        let MailedCode { sent, sent_at, .. } = self.proof.code;
        let pause_ms = sent_at.0.saturating_add(millis(RESEND_PAUSE)).saturating_sub(provider.clock.now().0);
        if pause_ms > 0 {
            return Err(throttle::wait(
                "A message was sent just now. It may take a moment to arrive.",
                pause_ms,
            ));
        }
        if sent >= CODES_PER_PROOF {
            let mut refusal = ErrorPage::too_many("No more messages are sent for this.", 0);
            refusal.retry_after_s = None;
            return Err(refusal
                .advice("Look in spam, and check that the address is right. The newest code still works.")
                .next_link(self.errand.start(), "Start again"));
        }
        let email = &self.proof.email;
        ask_for_letter(provider, place, email).await?;
        let (code, mailed) = draw_code(provider, &self.token, sent.saturating_add(1));
        let replaced = provider.store.proofs.replace_proof_code(self.token.hash(), mailed).await;
        // Not replaced: another request of this browser was quicker, and its letter is on its way.
        if replaced.map_err(|error| refused(&error))? {
            send(provider, self.errand, email.clone(), code);
        }
        Ok(())
    }

    /// The password that was chosen at sign-up.
    pub(crate) fn chosen_password(&self) -> Option<&PasswordHash> {
        match &self.proof.purpose {
            ProofPurpose::SignUp(hash) => Some(hash),
            ProofPurpose::NewPassword => None,
        }
    }
}
