//! Email addresses, and the rule for who may sign up: only addresses at exactly the company's domain. Far fewer forms are
//! accepted than email allows, because an address that can be parsed in two ways could let a stranger in.

use std::fmt;
use std::str::FromStr;

/// The limits of SMTP and DNS.
const MAX_ADDRESS_CHARS: usize = 254;
const MAX_LOCAL_PART_CHARS: usize = 64;
const MAX_LABEL_CHARS: usize = 63;

/// An address in lower case, because a mailbox does not depend on case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EmailAddress(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmailError {
    #[error("an address has exactly one `@`")]
    AtSignCount,
    #[error(
        "the part before `@` must be 1 to {MAX_LOCAL_PART_CHARS} ASCII letters, digits, `.`, `+`, `-`, `_` or `'`"
    )]
    Local,
    #[error("the part after `@` must be a domain such as `example.com`")]
    Domain,
    #[error("an address has at most {MAX_ADDRESS_CHARS} characters")]
    TooLong,
}

/// The domain whose addresses may sign up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompanyDomain(String);

impl EmailAddress {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The mailbox that attempts are counted for, and that a removal holds for: `maya+anything@` is delivered to `maya@`.
    pub fn mailbox(&self) -> String {
        let Some((local, domain)) = self.0.rsplit_once('@') else { return self.0.clone() };
        match local.split_once('+') {
            Some((name, _)) if !name.is_empty() => format!("{name}@{domain}"),
            _ => self.0.clone(),
        }
    }

    /// Whether the address is at exactly this domain, not at a subdomain.
    pub fn has_domain(&self, domain: &CompanyDomain) -> bool {
        self.0.rsplit_once('@').is_some_and(|(_, own)| own == domain.0)
    }
}

impl FromStr for EmailAddress {
    type Err = EmailError;

    fn from_str(text: &str) -> Result<Self, EmailError> {
        let (local, domain) = text.split_once('@').ok_or(EmailError::AtSignCount)?;
        if domain.contains('@') {
            return Err(EmailError::AtSignCount);
        }
        if text.len() > MAX_ADDRESS_CHARS {
            return Err(EmailError::TooLong);
        }
        let is_dot_atom = local.split('.').all(|atom| !atom.is_empty() && atom.bytes().all(is_atext));
        if local.len() > MAX_LOCAL_PART_CHARS || !is_dot_atom {
            return Err(EmailError::Local);
        }
        if !is_domain(domain) {
            return Err(EmailError::Domain);
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

impl FromStr for CompanyDomain {
    type Err = EmailError;

    fn from_str(text: &str) -> Result<Self, EmailError> {
        if is_domain(text) { Ok(Self(text.to_ascii_lowercase())) } else { Err(EmailError::Domain) }
    }
}

/// Excludes `%` and `!`: many mail servers still treat `x%evil.com@company.com` and `evil.com!x@company.com` as routes, and
/// would deliver a code for the company's mailbox to `x@evil.com`. Real addresses do not use the other characters.
fn is_atext(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"'+-_".contains(&byte)
}

/// Excludes internationalized labels (`xn--`), because people cannot tell look-alikes apart.
fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=MAX_LABEL_CHARS).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
            && !label.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("xn--"))
    };
    text.contains('.') && text.split('.').all(is_label)
}

/// Whether the text is one mailbox in plain form, `name@domain`, where mail programs cannot find another one: no display name,
/// `<…>`, group, list, quotes, comment, encoded word or address literal. Name and domain may be international.
pub fn is_plain_mailbox(text: &str) -> bool {
    // Fullwidth and ideographic forms of `@`, `<`, `,` and dots are read as the plain ones.
    let is_international = |c: char| {
        let is_punctuation = matches!(c, '\u{80}'..='\u{bf}' | '\u{2000}'..='\u{200b}' | '\u{200e}'..='\u{206f}'
            | '\u{3000}'..='\u{3004}' | '\u{3008}'..='\u{3020}' | '\u{fe10}'..='\u{fe6f}' | '\u{ff00}'..='\u{ff0f}'
            | '\u{ff1a}'..='\u{ff20}' | '\u{ff3b}'..='\u{ff40}' | '\u{ff5b}'..='\u{ff65}');
        !c.is_ascii() && !c.is_control() && !c.is_whitespace() && !is_punctuation
    };
    let is_in_name =
        |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || is_international(c);
    let is_in_label = |c: char| c.is_ascii_alphanumeric() || c == '-' || is_international(c);
    let Some((name, domain)) = text.split_once('@') else { return false };
    !name.contains("=?")
        && name.split('.').all(|atom| !atom.is_empty() && atom.chars().all(is_in_name))
        && domain.split('.').all(|label| !label.is_empty() && label.chars().all(is_in_label))
}

impl fmt::Display for EmailAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for CompanyDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn may_sign_up(address: &str) -> bool {
        let domain: CompanyDomain = "Company.com".parse().unwrap();
        address.parse::<EmailAddress>().is_ok_and(|address| address.has_domain(&domain))
    }

    #[test]
    fn company_addresses_may_sign_up_in_any_case() {
        for address in ["x@company.com", "X@COMPANY.COM", "ruth.hale+bills@Company.Com", "o'neil@company.com"]
        {
            assert!(may_sign_up(address), "{address}");
        }
        let written: EmailAddress = "X@COMPANY.COM".parse().unwrap();
        assert_eq!(written, "x@company.com".parse().unwrap());
    }

    #[test]
    fn lookalike_addresses_may_not_sign_up() {
        for address in [
            "x@evil-company.com",
            "x@company.com.evil.com",
            "x@evil.com@company.com",
            "\"x@company.com\"@evil.com",
            "\"x@evil.com\"@company.com",
            "x@mail.company.com",
            "x@company.com.",
            "x@.company.com",
            "x@company..com",
            "x@company.com,y@company.com",
            "x,y@company.com",
            "x y@company.com",
            " x@company.com",
            "x@company.com ",
            "x%evil.com@company.com",
            "evil.com!x@company.com",
            "x/evil@company.com",
            "=?utf-8?q?x?=@company.com",
            "x@company.com\r\nBcc: y@evil.com",
            "x\n@company.com",
            "x\0@company.com",
            "x@company.com\0",
            "x@\u{ff43}ompany.com",
            "x@compаny.com",
            "ｘ@company.com",
            "x@xn--cmpany-2ya.com",
            "x@XN--company.com",
            "=?utf-8?q?x?=@evil.com",
            "=?utf-8?q?x?=@company.com",
            "<x@company.com>",
            "x <x@company.com>",
            "x(@evil.com)@company.com",
            "x@[127.0.0.1]",
            "x@company",
            "@company.com",
            "x@",
            ".x@company.com",
            "x.@company.com",
            "x..y@company.com",
            "",
        ] {
            assert!(!may_sign_up(address), "{address:?}");
        }
        assert!(!may_sign_up(&format!("{}@company.com", "x".repeat(65))));
    }

    #[test]
    fn plain_mailbox_has_no_second_reading() {
        for plain in [
            "priya@harbourlane.example",
            "A.B+c=d/e@hale.example",
            "o'neil@hale",
            "a?b@hale.example",
            "x@büro.example",
            "x@xn--bro-hoa.example",
            "संपर्क@उदाहरण.परीक्षा",
            "info@例え.テスト",
        ] {
            assert!(is_plain_mailbox(plain), "{plain}");
        }
        for other in [
            "",
            "x",
            "@hale.example",
            "x@",
            "x@y@hale.example",
            "<x@hale.example>",
            "X <x@hale.example>",
            "x@hale.example>",
            "Us:x@hale.example;",
            "x@[1.2.3.4]",
            "x@[IPv6:::1]",
            "=?utf-8?q?x?=@hale.example",
            "x=?utf-8?b?eA==?=@hale.example",
            "x@=?utf-8?q?hale?=.example",
            "\"x\"@hale.example",
            "\"x y\"@hale.example",
            "x@hale.example,y@hale.example",
            "x,y@hale.example",
            "x(y)@hale.example",
            "x@hale.example(y)",
            "x\\y@hale.example",
            "x..y@hale.example",
            ".x@hale.example",
            "x@hale..example",
            "x@hale.example.",
            "x@hale.example:25",
            "x y@hale.example",
            "x@hale.example\r\nBcc: y@hale.example",
            "x@hale.example\u{85}",
            "x\u{ff20}y@hale.example",
            "x@hale\u{3002}example",
            "x@hale.example\u{ff0c}y",
            "\u{ff1c}x@hale.example",
        ] {
            assert!(!is_plain_mailbox(other), "{other:?}");
        }
    }

    #[test]
    fn mailbox_ignores_case_and_what_follows_a_plus() {
        let mailbox = |text: &str| text.parse::<EmailAddress>().unwrap().mailbox();
        for address in ["maya@example.com", "MAYA@Example.com", "maya+x@example.com", "Maya+a+b@example.com"]
        {
            assert_eq!(mailbox(address), "maya@example.com", "{address}");
        }
        assert_eq!(mailbox("+x@example.com"), "+x@example.com", "no name before the plus");
        assert_ne!(mailbox("ma.ya@example.com"), mailbox("maya@example.com"), "dots are part of the name");
    }

    proptest! {
        #[test]
        fn plus_variants_have_the_mailbox_of_their_address(
            name in "[A-Za-z0-9]([A-Za-z0-9_.-]{0,8}[A-Za-z0-9])?",
            tag in "[A-Za-z0-9_+-]{0,8}",
            domain in "[a-z]{1,8}\\.(com|org)",
        ) {
            let plain = format!("{name}@{domain}").parse::<EmailAddress>();
            let tagged = format!("{name}+{tag}@{}", domain.to_uppercase()).parse::<EmailAddress>();
            if let (Ok(plain), Ok(tagged)) = (plain, tagged) {
                prop_assert_eq!(plain.mailbox(), plain.as_str());
                prop_assert_eq!(tagged.mailbox(), plain.mailbox());
                let other = format!("x{name}@{domain}").parse::<EmailAddress>();
                prop_assert!(other.is_ok_and(|other| other.mailbox() != plain.mailbox()));
            }
        }

        #[test]
        fn mailbox_is_what_precedes_the_first_plus(text in "[a-zA-Z0-9.+_'-]{1,20}@[a-z]{1,5}\\.com") {
            if let Ok(address) = text.parse::<EmailAddress>() {
                let mailbox = address.mailbox();
                let (name, domain) = mailbox.split_once('@').unwrap();
                prop_assert!(!name.is_empty() && (name.starts_with('+') || !name.contains('+')), "{}", mailbox);
                prop_assert!(address.as_str().starts_with(name) && address.as_str().ends_with(domain));
            }
        }

        #[test]
        fn plain_mailbox_has_no_special_of_rfc_5322(text in "[a-z@.<>(),:;\\[\\]\\\\\" =?-]{1,12}", any in "\\PC{0,40}") {
            for text in [text, any] {
                let has_special = text.contains(['<', '>', '(', ')', ',', ':', ';', '[', ']', '\\', '"', ' ']);
                prop_assert!(!is_plain_mailbox(&text) || (!has_special && !text.contains("=?") && text.matches('@').count() == 1));
                prop_assert!(text.parse::<EmailAddress>().is_err() || is_plain_mailbox(&text));
            }
        }

        #[test]
        fn accepted_address_is_printable_ascii_with_one_at_sign(text in "\\PC{0,80}") {
            if let Ok(address) = text.parse::<EmailAddress>() {
                prop_assert!(address.as_str().bytes().all(|byte| byte.is_ascii_graphic()));
                prop_assert_eq!(address.as_str().matches('@').count(), 1);
                prop_assert_eq!(address.as_str().parse::<EmailAddress>(), Ok(address));
            }
        }
    }
}
