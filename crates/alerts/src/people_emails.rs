//! Emails to people that the portal and the command line send alike. Short lines of plain text; a name is the only part
//! that its person chose, and has no line breaks.

use chancery_domain::{EmailAddress, UnixMillis};
use chancery_mail::Email;
use std::time::Duration;

/// How long such an email is sent again while the mail server does not accept it.
pub const PEOPLE_EMAIL_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// `invited_by` is a partner's name and address; `None` for the command line.
pub fn invitation_email(
    to: &EmailAddress,
    firm_name: &str,
    portal_url: &str,
    invited_by: Option<&str>,
    expires_at: UnixMillis,
) -> Email {
    let invited_by = invited_by.unwrap_or("Your administrator");
    let expires_at = expires_at.to_utc_minute();
    Email {
        to: to.clone().into(),
        subject: format!("Invitation to the client portal of {firm_name}"),
        text: format!(
            "{invited_by}\n\
             invited you to the client portal of {firm_name}.\n\
             \n\
             Sign in with this address, {to}:\n\
             \n\
             \x20   {portal_url}/\n\
             \n\
             The invitation is valid until {expires_at}.\n\
             \n\
             If you do not know what this is about, ignore this email.\n"
        ),
    }
}

/// `reset_by` is a partner's name and address; `None` for the command line.
pub fn factors_reset_email(to: &EmailAddress, firm_name: &str, reset_by: Option<&str>) -> Email {
    let reset_by = match reset_by {
        Some(partner) => format!("The partner {partner}"),
        None => "Your administrator".to_owned(),
    };
    Email {
        to: to.clone().into(),
        subject: "Your second factors were reset".to_owned(),
        text: format!(
            "{reset_by}\n\
             reset the second factors of your account at {firm_name}: passkeys,\n\
             authenticator app and recovery codes no longer work, and you are\n\
             signed out at the sign-in service. Your password is unchanged.\n\
             \n\
             Sign in again and set up your second factors on the security page.\n\
             \n\
             If you did not ask for this, contact your administrator now.\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emails_to_people_name_who_acted_and_what_to_do() {
        let to: EmailAddress = "ann@example.com".parse().unwrap();
        // 27 November 2026, 09:14 UTC.
        let expires_at = UnixMillis(1_795_770_840_000);
        let partner = Some("Ruth Hale (ruth@example.com)");
        let url = "https://portal.example.com";
        let invited = invitation_email(&to, "Marlow & Finch", url, partner, expires_at);
        for part in
            ["Ruth Hale (ruth@example.com)\n", "https://portal.example.com/\n", "until 2026-11-27 09:14 UTC"]
        {
            assert!(invited.text.contains(part), "{part}: {}", invited.text);
        }
        let by_operator = invitation_email(&to, "Marlow & Finch", url, None, expires_at);
        assert!(by_operator.text.starts_with("Your administrator\n"), "{}", by_operator.text);
        let reset = factors_reset_email(&to, "Marlow & Finch", partner);
        assert!(reset.text.starts_with("The partner Ruth Hale (ruth@example.com)\n"), "{}", reset.text);
        for email in [invited, by_operator, reset] {
            assert_eq!(email.to.as_str(), to.as_str());
            assert!(email.text.lines().all(|line| line.chars().count() < 76), "{}", email.text);
        }
    }
}
