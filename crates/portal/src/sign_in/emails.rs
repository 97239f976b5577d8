//! What letters say: plain ASCII in short lines, so that every mail program shows them alike. The one run of six digits in
//! a letter with a code is the code.

use crate::sign_in::visitor::Visitor;
use chancery_domain::{EmailAddress, MailCode};
use chancery_mail::Letter;
use chancery_store::{CODE_TRIES_MEMORY, MAX_CODE_TRIES};
use std::time::Duration;

pub(crate) fn code(to: &EmailAddress, code: &MailCode, lasts: Duration, visitor: &Visitor) -> Letter {
    let (code, minutes) = (code.reveal(), lasts.as_secs() / 60);
    let Visitor { place, browser, .. } = visitor;
    Letter {
        to: to.clone(),
        subject: "Your sign-in code".to_owned(),
        text: format!(
            "Your code for the client portal is\n\
             \n\
             \x20   {code}\n\
             \n\
             Type it on the page that asked for it. It works for {minutes} minutes, once.\n\
             \n\
             It was asked for from {place}\n\
             with {browser}.\n\
             \n\
             If that was not you, somebody knows your password: change it where you\n\
             sign in, and give this code to nobody. We never ask for it by telephone or\n\
             by mail.\n"
        ),
    }
}

pub(crate) fn lockout(to: &EmailAddress, provider_host: &str, visitor: &Visitor) -> Letter {
    let minutes = CODE_TRIES_MEMORY.as_secs() / 60;
    let Visitor { place, browser, .. } = visitor;
    Letter {
        to: to.clone(),
        subject: "Signing in was stopped after wrong codes".to_owned(),
        text: format!(
            "{MAX_CODE_TRIES} wrong codes or more were typed for your account at the client portal,\n\
             so we stopped its sign-ins. For {minutes} minutes nobody can sign in to it\n\
             with a code. Sessions that you have go on.\n\
             \n\
             The last wrong code came from {place}\n\
             with {browser}.\n\
             \n\
             If that was you, sign in again later and use the newest code.\n\
             \n\
             If it was not, somebody knows your password. Change it now at\n\
             {provider_host}\n\
             and tell the firm's administrator.\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{RequestId, SeededRandomness};

    #[test]
    fn letters_are_plain_short_lines_and_a_code_is_the_only_six_digits() {
        let to: EmailAddress = "ann123456@example.com".parse().unwrap();
        let visitor = Visitor {
            place: "2001:db8:1111:2222:3333:4444:5555:6666".to_owned(),
            browser: "Samsung Internet on Android".to_owned(),
            session: None,
            ip: None,
            request_id: RequestId::from_stored("req_1".to_owned()),
        };
        let code = MailCode::generate(&SeededRandomness::new(7));
        let minutes = Duration::from_secs(600);
        let with_code = super::code(&to, &code, minutes, &visitor);
        let locked = lockout(&to, "id.example.com", &visitor);
        for letter in [&with_code, &locked] {
            assert!(letter.text.is_ascii() && letter.subject.is_ascii());
            assert!(letter.text.lines().all(|line| line.len() < 76), "{}", letter.text);
        }
        let runs: Vec<&str> =
            with_code.text.split(|sign: char| !sign.is_ascii_digit()).filter(|run| run.len() >= 6).collect();
        assert_eq!(runs, [code.reveal()]);
        assert!(with_code.text.contains("10 minutes"));
    }
}
