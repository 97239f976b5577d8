//! What the provider writes to people: plain ASCII, short lines, and in a letter with a code no other six digits. No letter
//! has a link to press with a code in it, because a person who is used to those is a person who can be fished.

use super::throttle;
use crate::Provider;
use crate::limits::{CODE_LASTS, LETTER_PATIENCE, LETTERS_AT_ONCE};
use chancery_domain::{EmailAddress, MailCode, ThrottleKey};
use chancery_mail::Letter;
use chancery_store::ProviderAccount;
use std::sync::Arc;
use tokio::sync::Semaphore;

static UNDER_WAY: Semaphore = Semaphore::const_new(LETTERS_AT_ONCE);

/// Looks whether the address has an account and sends what is right then, while the reply is on its way already: how long
/// that takes tells nobody anything, nor whether there is room for a letter: one that gets no turn is dropped, and the log
/// says so. `choose` gives no letter where none is to be sent.
pub(crate) fn send_in_background(
    provider: &Arc<Provider>,
    email: EmailAddress,
    choose: impl FnOnce(EmailAddress, Option<ProviderAccount>) -> Option<Letter> + Send + 'static,
) {
    let provider = Arc::clone(provider);
    tokio::spawn(async move {
        let letter = match provider.store.provider_accounts.provider_account_with_email(&email).await {
            Ok(account) => choose(email, account),
            Err(error) => {
                tracing::error!(%error, "a letter was not sent: whether there is an account cannot be read");
                return;
            }
        };
        if let Some(letter) = letter {
            send(&provider, &letter).await;
        }
    });
}

async fn send(provider: &Provider, letter: &Letter) {
    let Ok(Ok(_turn)) = tokio::time::timeout(LETTER_PATIENCE, UNDER_WAY.acquire()).await else {
        tracing::error!(
            "a letter of the identity provider was dropped: the mail server takes none for too long"
        );
        return;
    };
    if let Err(error) = provider.mailer.send(letter).await {
        tracing::error!(%error, "a letter of the identity provider was not sent");
    }
}

/// Tells whoever has an account with this address that there were too many tries, a few times a day at most.
pub(crate) fn tell_of_lockout(provider: &Arc<Provider>, email: EmailAddress) {
    let provider = Arc::clone(provider);
    tokio::spawn(async move {
        match provider.store.provider_accounts.provider_account_with_email(&email).await {
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, "an owner was not told of too many tries");
                return;
            }
        }
        if throttle::take_turn(&provider, &[ThrottleKey::LockoutEmail(&email)]).await.is_ok() {
            send(&provider, &too_many_tries(email)).await;
        }
    });
}

fn minutes() -> u64 {
    CODE_LASTS.as_secs() / 60
}

pub(crate) fn sign_up_code(to: EmailAddress, code: &MailCode) -> Letter {
    let text = format!(
        "Somebody, hopefully you, is signing up with this e-mail address.\n\n\
         Your code:\n\n    {}\n\n\
         It works for {} minutes, in the browser where you signed up.\n\n\
         If it was not you, do nothing: without the code there is no account.\n\
         Never tell the code to anybody, whoever they say they are.\n",
        code.reveal(),
        minutes()
    );
    Letter { to, subject: "Your code to sign up".to_owned(), text }
}

pub(crate) fn already_an_account(to: EmailAddress) -> Letter {
    let text = "Somebody, hopefully you, tried to sign up with this e-mail address.\n\n\
         You already have an account, so there is nothing to sign up for and\n\
         there is no code. Nothing was changed.\n\n\
         Sign in with your password instead. If you have forgotten it, choose\n\
         \"Forgotten your password?\" on the sign-in page.\n\n\
         If it was not you, do nothing.\n"
        .to_owned();
    Letter { to, subject: "You already have an account".to_owned(), text }
}

pub(crate) fn new_password_code(to: EmailAddress, code: &MailCode) -> Letter {
    let text = format!(
        "Somebody, hopefully you, wants to set a new password for your account.\n\n\
         Your code:\n\n    {}\n\n\
         It works for {} minutes, in the browser where you asked for it.\n\n\
         If it was not you, do nothing: your password stays as it is.\n\
         Never tell the code to anybody, whoever they say they are.\n",
        code.reveal(),
        minutes()
    );
    Letter { to, subject: "Your code for a new password".to_owned(), text }
}

pub(crate) fn password_changed(to: EmailAddress) -> Letter {
    let text = "The password of your account was just changed, with a code from this\n\
         mailbox. You were signed out everywhere you had signed in with it.\n\n\
         If it was not you, somebody reads your mail: tell the firm's\n\
         administrator at once, and set a new password from a device that you\n\
         trust.\n"
        .to_owned();
    Letter { to, subject: "Your password was changed".to_owned(), text }
}

pub(crate) fn too_many_tries(to: EmailAddress) -> Letter {
    let text = "Somebody tried several wrong passwords or codes for your account. Your\n\
         password was not guessed and nothing was changed, but more tries are\n\
         refused for a while.\n\n\
         If it was you, wait and try again, or choose \"Forgotten your password?\"\n\
         on the sign-in page.\n\n\
         If it was not you, there is nothing that you must do. If these letters\n\
         keep coming, tell the firm's administrator.\n"
        .to_owned();
    Letter { to, subject: "Too many tries to sign in".to_owned(), text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::OsRandomness;

    fn six_digit_runs(text: &str) -> usize {
        text.split(|letter: char| !letter.is_ascii_digit()).filter(|run| run.len() == 6).count()
    }

    #[test]
    fn letters_are_plain_short_lines_and_a_code_is_the_only_six_digits() {
        let to: EmailAddress = "maya@example.com".parse().unwrap();
        let code = MailCode::generate(&OsRandomness);
        let letters = [
            (sign_up_code(to.clone(), &code), 1),
            (new_password_code(to.clone(), &code), 1),
            (already_an_account(to.clone()), 0),
            (password_changed(to.clone()), 0),
            (too_many_tries(to), 0),
        ];
        for (letter, codes) in letters {
            assert_eq!(six_digit_runs(&letter.text), codes, "{}", letter.text);
            assert_eq!(letter.text.contains(code.reveal()), codes == 1);
            assert!(letter.text.is_ascii() && letter.subject.is_ascii());
            assert_eq!(six_digit_runs(&letter.subject), 0);
            for line in letter.text.lines() {
                assert!(line.len() < 76 && line == line.trim_end(), "{line:?}");
            }
        }
    }
}
