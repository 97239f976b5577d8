//! Text of the emails: plain ASCII in short lines, so that every mail client shows them alike. In an email with a code, the code is
//! the only run of six digits.

use crate::sign_in::visitor::Visitor;
use chancery_domain::{EmailAddress, EmailCode, MAX_WRONG_CODES, WRONG_CODE_LOCKOUT};
use chancery_mail::Email;
use std::time::Duration;

pub(crate) fn code(to: &EmailAddress, code: &EmailCode, ttl: Duration, visitor: &Visitor) -> Email {
    let (code, minutes) = (code.reveal(), ttl.as_secs() / 60);
    let Visitor { ip_address, browser, .. } = visitor;
    Email {
        to: to.clone().into(),
        subject: "Your sign-in code".to_owned(),
        text: format!(
            "Your code for the client portal is\n\
             \n\
             \x20   {code}\n\
             \n\
             Enter it on the sign-in page. It works once, for {minutes} minutes.\n\
             \n\
             Requested from {ip_address}\n\
             with {browser}.\n\
             \n\
             If this was not you, someone knows your password. Change it now, and do\n\
             not share this code. We never ask for it by phone or email.\n"
        ),
    }
}

pub(crate) fn lockout(to: &EmailAddress, provider_host: &str, visitor: &Visitor) -> Email {
    let minutes = WRONG_CODE_LOCKOUT.as_secs() / 60;
    let Visitor { ip_address, browser, .. } = visitor;
    Email {
        to: to.clone().into(),
        subject: "Sign-in locked after incorrect codes".to_owned(),
        text: format!(
            "We locked sign-in to your client portal account for {minutes} minutes after\n\
             {MAX_WRONG_CODES} incorrect codes. Active sessions are not affected.\n\
             \n\
             The last incorrect code came from {ip_address}\n\
             with {browser}.\n\
             \n\
             If this was you, sign in again later and use the latest code.\n\
             \n\
             If this was not you, someone knows your password. Change it now at\n\
             {provider_host}\n\
             and contact your administrator.\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{RequestId, SeededRandomness};

    #[test]
    fn emails_are_short_ascii_lines_with_one_six_digit_code() {
        let to: EmailAddress = "ann123456@example.com".parse().unwrap();
        let visitor = Visitor {
            ip_address: "2001:db8:1111:2222:3333:4444:5555:6666".to_owned(),
            browser: "Samsung Internet on Android".to_owned(),
            session: None,
            must_ask_again: false,
            ip: None,
            request_id: RequestId::from_stored("req_1".to_owned()),
        };
        let code = EmailCode::generate(&SeededRandomness::new(7));
        let minutes = Duration::from_secs(600);
        let with_code = super::code(&to, &code, minutes, &visitor);
        let locked = lockout(&to, "id.example.com", &visitor);
        for email in [&with_code, &locked] {
            assert!(email.text.is_ascii() && email.subject.is_ascii());
            assert!(email.text.lines().all(|line| line.len() < 76), "{}", email.text);
        }
        let runs: Vec<&str> =
            with_code.text.split(|c: char| !c.is_ascii_digit()).filter(|run| run.len() >= 6).collect();
        assert_eq!(runs, [code.reveal()]);
        assert!(with_code.text.contains("10 minutes"));
    }
}
