//! Notices to the owner of an account about changes of how it is protected.

use super::emails;
use crate::Provider;
use chancery_domain::EmailAddress;
use chancery_mail::Email;
use std::sync::Arc;

/// A change that the owner must hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FactorChange {
    PasskeyAdded,
    PasskeyRenamed,
    PasskeyRemoved,
    AuthenticatorAdded,
    AuthenticatorRemoved,
    RecoveryCodesReplaced,
    RecoveryCodeUsed { left: u64 },
    PasswordChanged,
}

/// Sends the notice in the background.
pub(crate) fn notify(provider: &Arc<Provider>, email: &EmailAddress, change: FactorChange) {
    emails::send_in_background(provider, email.clone(), None, move |to, _| Some(notice(to, change)));
}

fn notice(to: EmailAddress, change: FactorChange) -> Email {
    let (subject, what) = match change {
        FactorChange::PasskeyAdded => ("Passkey added", "A passkey was added to your account.".to_owned()),
        FactorChange::PasskeyRenamed => {
            ("Passkey renamed", "A passkey of your account has a new name.".to_owned())
        }
        FactorChange::PasskeyRemoved => {
            ("Passkey removed", "A passkey was removed from your account.".to_owned())
        }
        FactorChange::AuthenticatorAdded => (
            "Authenticator app added",
            "An authenticator app was added to your account. Signing in now asks for\nits codes.".to_owned(),
        ),
        FactorChange::AuthenticatorRemoved => (
            "Authenticator app removed",
            "The authenticator app was removed from your account. Its codes no longer\nwork.".to_owned(),
        ),
        FactorChange::RecoveryCodesReplaced => (
            "Recovery codes replaced",
            "Your account has new recovery codes. The earlier codes no longer work.".to_owned(),
        ),
        FactorChange::RecoveryCodeUsed { left } => (
            "Recovery code used",
            format!("Someone signed in to your account with a recovery code. Codes left: {left}."),
        ),
        FactorChange::PasswordChanged => (
            "Your password was changed",
            "Your password was changed on the security page of your account. All other\n\
             browsers were signed out."
                .to_owned(),
        ),
    };
    let text = format!(
        "{what}\n\n\
         If this was you, you do not need to do anything.\n\n\
         If this was not you, someone else can use your account. Contact your\n\
         administrator now and reset your password from a trusted device.\n"
    );
    Email { to: to.into(), subject: subject.to_owned(), text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_short_ascii_lines_without_codes() {
        for change in [
            FactorChange::PasskeyAdded,
            FactorChange::PasskeyRenamed,
            FactorChange::PasskeyRemoved,
            FactorChange::AuthenticatorAdded,
            FactorChange::AuthenticatorRemoved,
            FactorChange::RecoveryCodesReplaced,
            FactorChange::RecoveryCodeUsed { left: 9 },
            FactorChange::PasswordChanged,
        ] {
            let email = notice("maya@example.com".parse().unwrap(), change);
            assert!(email.text.is_ascii() && email.subject.is_ascii());
            for line in email.text.lines() {
                assert!(line.len() < 80 && line == line.trim_end(), "{line:?}");
            }
        }
    }
}
