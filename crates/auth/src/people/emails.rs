//! The emails that the provider sends: plain ASCII, short lines, and next to a code no other six digits. No email
//! contains a link with a code, because users who are used to clicking those are easy to phish.

use super::throttle;
use crate::Provider;
use crate::limits::{CODE_EMAIL_TTL, EMAIL_CODE_TTL, NOTICE_TTL};
use chancery_domain::{EmailAddress, EmailCode, ThrottleKey, TokenHash};
use chancery_mail::Email;
use chancery_store::{ProviderAccount, code_email_id};
use std::sync::Arc;

/// Looks up the account and sends the appropriate email in the background, after the response. The response time
/// therefore reveals neither whether there is an account nor whether the mail server is slow. The email goes to the
/// outbox, and the worker of this process sends it at once. `code` is the hash of the code that the email may contain.
/// `choose` returns `None` if no email is to be sent.
pub(crate) fn send_in_background(
    provider: &Arc<Provider>,
    email: EmailAddress,
    code: Option<TokenHash>,
    choose: impl FnOnce(EmailAddress, Option<ProviderAccount>) -> Option<Email> + Send + 'static,
) {
    let provider = Arc::clone(provider);
    tokio::spawn(async move {
        let message = match provider.store.provider_accounts.provider_account_by_email(&email).await {
            Ok(account) => choose(email, account),
            Err(error) => {
                tracing::error!(%error, "email not sent, account lookup failed");
                return;
            }
        };
        if let Some(message) = message {
            send(&provider, &message, code).await;
        }
    });
}

/// A code may be replaced or used before its email is sent, which then is not sent at all. It is not sent either when
/// too little time is left to enter the code.
async fn send(provider: &Provider, message: &Email, code: Option<TokenHash>) {
    let (mailer, now) = (&provider.mailer, provider.clock.now());
    let enqueued = match code {
        Some(code) => mailer.enqueue_as(code_email_id(&code), message, now.after(CODE_EMAIL_TTL)).await,
        None => mailer.enqueue(message, now.after(NOTICE_TTL)).await,
    };
    if let Err(error) = enqueued {
        tracing::error!(%error, "email not sent, storing it failed");
    }
}

/// Emails the account's owner about too many attempts, at most a few times a day.
pub(crate) fn email_lockout(provider: &Arc<Provider>, email: EmailAddress) {
    let provider = Arc::clone(provider);
    tokio::spawn(async move {
        match provider.store.provider_accounts.provider_account_by_email(&email).await {
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, "lockout email not sent, account lookup failed");
                return;
            }
        }
        if throttle::begin_attempt(&provider, &[ThrottleKey::LockoutEmail(&email)]).await.is_ok() {
            send(&provider, &too_many_attempts(email), None).await;
        }
    });
}

fn minutes() -> u64 {
    EMAIL_CODE_TTL.as_secs() / 60
}

pub(crate) fn sign_up_code(to: EmailAddress, code: &EmailCode) -> Email {
    let text = format!(
        "Someone is signing up with this email address.\n\n\
         Your code:\n\n    {}\n\n\
         It is valid for {} minutes, in the browser where you signed up.\n\n\
         If this was not you, ignore this email. No account is created without the\n\
         code. Never share it.\n",
        code.reveal(),
        minutes()
    );
    Email { to: to.into(), subject: "Your sign-up code".to_owned(), text }
}

pub(crate) fn account_exists(to: EmailAddress) -> Email {
    let text = "Someone tried to sign up with this email address, but you already have an\n\
         account. Nothing was changed.\n\n\
         Sign in with your password. If you forgot it, choose\n\
         \"Forgot your password?\" on the sign-in page.\n\n\
         If this was not you, ignore this email.\n"
        .to_owned();
    Email { to: to.into(), subject: "You already have an account".to_owned(), text }
}

pub(crate) fn new_password_code(to: EmailAddress, code: &EmailCode) -> Email {
    let text = format!(
        "Someone asked to reset the password of your account.\n\n\
         Your code:\n\n    {}\n\n\
         It is valid for {} minutes, in the browser where you requested it.\n\n\
         If this was not you, ignore this email. Your password stays the same.\n\
         Never share the code.\n",
        code.reveal(),
        minutes()
    );
    Email { to: to.into(), subject: "Your password reset code".to_owned(), text }
}

pub(crate) fn first_factor_code(to: EmailAddress, code: &EmailCode) -> Email {
    let text = format!(
        "Someone is adding a second factor to your account: a passkey or an\n\
         authenticator app.\n\n\
         Your code:\n\n    {}\n\n\
         It is valid for {} minutes, in the browser where you requested it.\n\n\
         If this was not you, someone knows your password: change it now. Never\n\
         share the code.\n",
        code.reveal(),
        minutes()
    );
    Email { to: to.into(), subject: "Your code to add a second factor".to_owned(), text }
}

pub(crate) fn password_changed(to: EmailAddress) -> Email {
    let text = "Your password was changed with a code sent to this address. You were\n\
         signed out everywhere.\n\n\
         If this was not you, someone can read your email. Contact your\n\
         administrator now and reset your password from a trusted device.\n"
        .to_owned();
    Email { to: to.into(), subject: "Your password was changed".to_owned(), text }
}

pub(crate) fn too_many_attempts(to: EmailAddress) -> Email {
    let text = "Someone entered several incorrect passwords or codes for your account.\n\
         Nobody got in. Sign-in is limited for a while. It still works in a browser\n\
         in which you signed in before.\n\n\
         If this was you, wait and try again, or choose \"Forgot your password?\"\n\
         on the sign-in page.\n\n\
         If this was not you, you do not need to do anything. If you get more of\n\
         these emails, contact your administrator.\n"
        .to_owned();
    Email { to: to.into(), subject: "Too many sign-in attempts".to_owned(), text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::OsRandomness;

    fn six_digit_runs(text: &str) -> usize {
        text.split(|c: char| !c.is_ascii_digit()).filter(|run| run.len() == 6).count()
    }

    #[test]
    fn emails_are_short_ascii_lines_with_one_six_digit_code() {
        let to: EmailAddress = "maya@example.com".parse().unwrap();
        let code = EmailCode::generate(&OsRandomness);
        let emails = [
            (sign_up_code(to.clone(), &code), 1),
            (new_password_code(to.clone(), &code), 1),
            (first_factor_code(to.clone(), &code), 1),
            (account_exists(to.clone()), 0),
            (password_changed(to.clone()), 0),
            (too_many_attempts(to), 0),
        ];
        for (email, codes) in emails {
            assert_eq!(six_digit_runs(&email.text), codes, "{}", email.text);
            assert_eq!(email.text.contains(code.reveal()), codes == 1);
            assert!(email.text.is_ascii() && email.subject.is_ascii());
            assert_eq!(six_digit_runs(&email.subject), 0);
            for line in email.text.lines() {
                assert!(line.len() < 76 && line == line.trim_end(), "{line:?}");
            }
        }
    }
}
