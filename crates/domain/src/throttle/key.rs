//! What is counted, each with its limit.

use crate::throttle::Throttle;
use crate::{EmailAddress, Identity, TokenHash};
use sha2::{Digest, Sha256};
use std::net::IpAddr;

/// A subnet is the result of `rate_limit_subnet`. Plus-addresses of one mailbox share a count, except at the portal, whose
/// identity provider may treat them as different.
#[derive(Clone, Copy, Debug)]
pub enum ThrottleKey<'a> {
    PasswordPerAddressAndSubnet(&'a EmailAddress, IpAddr),
    PasswordPerAddress(&'a EmailAddress),
    PasswordPerDay(&'a EmailAddress),
    /// Password and code attempts.
    AttemptPerSubnet(IpAddr),
    /// Keyed by the hash of the proof's token.
    CodePerProof(TokenHash),
    CodePerAddressAndSubnet(&'a EmailAddress, IpAddr),
    CodePerSubnetAndDay(&'a EmailAddress, IpAddr),
    CodePerAddress(&'a EmailAddress),
    CodePerDay(&'a EmailAddress),
    EmailPerAddressAndSubnet(&'a EmailAddress, IpAddr),
    EmailPerAddress(&'a EmailAddress),
    EmailPerSubnet(IpAddr),
    /// The email that warns of too many attempts.
    LockoutEmail(&'a EmailAddress),
    /// Keyed by the account's subject.
    ConsentPagePerAccount(&'a str),
    AuthorizationCodePerAccount(&'a str),
    /// Keyed by the marker that an authorization request gets when it is redirected to sign-in.
    SignInRedirect(&'a str),
    WrongCodePerIdentity(&'a Identity),
    WrongCodePerMailbox(&'a EmailAddress),
    CodeEmailPerIdentity(&'a Identity),
    CodeEmailPerMailbox(&'a EmailAddress),
}

impl<'a> ThrottleKey<'a> {
    /// The keys that one password attempt for this address from this subnet counts against, per-subnet keys first.
    pub fn password(email: &'a EmailAddress, subnet: IpAddr) -> [Self; 4] {
        [
            Self::AttemptPerSubnet(subnet),
            Self::PasswordPerAddressAndSubnet(email, subnet),
            Self::PasswordPerAddress(email),
            Self::PasswordPerDay(email),
        ]
    }

    /// The keys that one code attempt counts against.
    pub fn code(proof: TokenHash, email: &'a EmailAddress, subnet: IpAddr) -> [Self; 6] {
        let [of_subnet, of_subnet_today, of_address, of_address_today] = Self::codes(email, subnet);
        [
            Self::AttemptPerSubnet(subnet),
            Self::CodePerProof(proof),
            of_subnet,
            of_subnet_today,
            of_address,
            of_address_today,
        ]
    }

    /// The keys that decide whether codes for this address may be tried from this subnet at all.
    pub fn codes(email: &'a EmailAddress, subnet: IpAddr) -> [Self; 4] {
        [
            Self::CodePerAddressAndSubnet(email, subnet),
            Self::CodePerSubnetAndDay(email, subnet),
            Self::CodePerAddress(email),
            Self::CodePerDay(email),
        ]
    }

    /// The keys that one email with a code counts against.
    pub fn email_with_code(email: &'a EmailAddress, subnet: IpAddr) -> [Self; 3] {
        [
            Self::EmailPerSubnet(subnet),
            Self::EmailPerAddressAndSubnet(email, subnet),
            Self::EmailPerAddress(email),
        ]
    }

    pub fn throttle(self) -> Throttle {
        match self {
            Self::PasswordPerAddressAndSubnet(..) => Throttle::PASSWORD_PER_ADDRESS_AND_SUBNET,
            Self::PasswordPerAddress(_) => Throttle::PASSWORD_PER_ADDRESS,
            Self::PasswordPerDay(_) => Throttle::PASSWORD_PER_DAY,
            Self::AttemptPerSubnet(_) => Throttle::ATTEMPT_PER_SUBNET,
            Self::CodePerProof(_) => Throttle::CODE_PER_PROOF,
            Self::CodePerAddressAndSubnet(..) => Throttle::CODE_PER_ADDRESS_AND_SUBNET,
            Self::CodePerSubnetAndDay(..) => Throttle::CODE_PER_SUBNET_AND_DAY,
            Self::CodePerAddress(_) => Throttle::CODE_PER_ADDRESS,
            Self::CodePerDay(_) => Throttle::CODE_PER_DAY,
            Self::EmailPerAddressAndSubnet(..) => Throttle::EMAIL_PER_ADDRESS_AND_SUBNET,
            Self::EmailPerAddress(_) => Throttle::EMAIL_PER_ADDRESS,
            Self::EmailPerSubnet(_) => Throttle::EMAIL_PER_SUBNET,
            Self::LockoutEmail(_) => Throttle::LOCKOUT_EMAIL,
            Self::ConsentPagePerAccount(_) => Throttle::CONSENT_PAGE_PER_ACCOUNT,
            Self::AuthorizationCodePerAccount(_) => Throttle::AUTHORIZATION_CODE_PER_ACCOUNT,
            Self::SignInRedirect(_) => Throttle::SIGN_IN_REDIRECT,
            Self::WrongCodePerIdentity(_) => Throttle::WRONG_CODE_PER_IDENTITY,
            Self::WrongCodePerMailbox(_) => Throttle::WRONG_CODE_PER_MAILBOX,
            Self::CodeEmailPerIdentity(_) => Throttle::CODE_EMAIL_PER_IDENTITY,
            Self::CodeEmailPerMailbox(_) => Throttle::CODE_EMAIL_PER_MAILBOX,
        }
    }

    /// The key in the database. It is a hash, so that what strangers type is not stored.
    pub fn hash(self) -> TokenHash {
        match self {
            Self::PasswordPerAddressAndSubnet(email, subnet) => {
                hash("password per address and subnet", &[&email.mailbox(), &subnet.to_string()])
            }
            Self::PasswordPerAddress(email) => hash("password per address", &[&email.mailbox()]),
            Self::PasswordPerDay(email) => hash("password per day", &[&email.mailbox()]),
            Self::AttemptPerSubnet(subnet) => hash("attempt per subnet", &[&subnet.to_string()]),
            Self::CodePerProof(proof) => digest("code per proof", &[&proof.0]),
            Self::CodePerAddressAndSubnet(email, subnet) => {
                hash("code per address and subnet", &[&email.mailbox(), &subnet.to_string()])
            }
            Self::CodePerSubnetAndDay(email, subnet) => {
                hash("code per subnet and day", &[&email.mailbox(), &subnet.to_string()])
            }
            Self::CodePerAddress(email) => hash("code per address", &[&email.mailbox()]),
            Self::CodePerDay(email) => hash("code per day", &[&email.mailbox()]),
            Self::EmailPerAddressAndSubnet(email, subnet) => {
                hash("email per address and subnet", &[&email.mailbox(), &subnet.to_string()])
            }
            Self::EmailPerAddress(email) => hash("email per address", &[&email.mailbox()]),
            Self::EmailPerSubnet(subnet) => hash("email per subnet", &[&subnet.to_string()]),
            Self::LockoutEmail(email) => hash("lockout email", &[&email.mailbox()]),
            Self::ConsentPagePerAccount(subject) => hash("consent page per account", &[subject]),
            Self::AuthorizationCodePerAccount(subject) => hash("authorization code per account", &[subject]),
            Self::SignInRedirect(mark) => hash("sign-in detour", &[mark]),
            Self::WrongCodePerIdentity(Identity { issuer, subject }) => {
                hash("wrong code per identity", &[issuer, subject])
            }
            Self::WrongCodePerMailbox(email) => hash("wrong code per mailbox", &[email.as_str()]),
            Self::CodeEmailPerIdentity(Identity { issuer, subject }) => {
                hash("code email per identity", &[issuer, subject])
            }
            Self::CodeEmailPerMailbox(email) => hash("code email per mailbox", &[email.as_str()]),
        }
    }

    /// Whether the key counts one subnet, as opposed to all of them.
    pub fn is_per_subnet(self) -> bool {
        matches!(
            self,
            Self::PasswordPerAddressAndSubnet(..)
                | Self::CodePerAddressAndSubnet(..)
                | Self::CodePerSubnetAndDay(..)
                | Self::EmailPerAddressAndSubnet(..)
                | Self::AttemptPerSubnet(_)
                | Self::EmailPerSubnet(_)
        )
    }

    pub fn address(self) -> Option<&'a EmailAddress> {
        match self {
            Self::PasswordPerAddressAndSubnet(email, _)
            | Self::PasswordPerAddress(email)
            | Self::PasswordPerDay(email)
            | Self::CodePerAddressAndSubnet(email, _)
            | Self::CodePerSubnetAndDay(email, _)
            | Self::CodePerAddress(email)
            | Self::CodePerDay(email)
            | Self::EmailPerAddressAndSubnet(email, _)
            | Self::EmailPerAddress(email)
            | Self::LockoutEmail(email)
            | Self::WrongCodePerMailbox(email)
            | Self::CodeEmailPerMailbox(email) => Some(email),
            _ => None,
        }
    }
}

fn hash(label: &str, parts: &[&str]) -> TokenHash {
    let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
    digest(label, &parts)
}

/// Prefixes each part with its length, so that two different lists never produce the same bytes.
fn digest(label: &str, parts: &[&[u8]]) -> TokenHash {
    let hash = parts.iter().fold(Sha256::new().chain_update(label), |hash, part| {
        hash.chain_update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes()).chain_update(part)
    });
    TokenHash(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plus_addresses_share_one_throttle_count() {
        let key = |text: &str| ThrottleKey::EmailPerAddress(&text.parse().unwrap()).hash().0;
        assert_eq!(key("maya@example.com"), key("maya+1@example.com"));
        assert_eq!(key("maya+1@example.com"), key("maya+2+3@example.com"));
        assert_ne!(key("maya@example.com"), key("omar@example.com"));
        assert_ne!(key("maya@example.com"), key("maya@example.org"));
        assert_ne!(key("+a@example.com"), key("+b@example.com"), "no name before the plus");
    }

    #[test]
    fn throttle_key_hashes_are_distinct() {
        let (email, subnet) = ("maya@example.com".parse().unwrap(), IpAddr::from([192, 0, 2, 1]));
        let identity =
            |issuer: &str, subject: &str| Identity { issuer: issuer.to_owned(), subject: subject.to_owned() };
        let (one, other) = (identity("https://id.example", "ab"), identity("https://id.examplea", "b"));
        let keys = [
            &ThrottleKey::password(&email, subnet)[..],
            &ThrottleKey::code(TokenHash([7; 32]), &email, subnet),
            &ThrottleKey::email_with_code(&email, subnet),
            &[
                ThrottleKey::LockoutEmail(&email),
                ThrottleKey::ConsentPagePerAccount("maya"),
                ThrottleKey::AuthorizationCodePerAccount("maya"),
                ThrottleKey::SignInRedirect("maya"),
                ThrottleKey::WrongCodePerIdentity(&one),
                ThrottleKey::WrongCodePerIdentity(&other),
                ThrottleKey::WrongCodePerMailbox(&email),
                ThrottleKey::CodeEmailPerIdentity(&one),
                ThrottleKey::CodeEmailPerMailbox(&email),
            ],
        ];
        // `AttemptPerSubnet` counts passwords and codes alike.
        let keys = keys.concat();
        let hashes: std::collections::BTreeSet<[u8; 32]> = keys.iter().map(|key| key.hash().0).collect();
        assert_eq!(hashes.len(), keys.len() - 1);
    }
}
