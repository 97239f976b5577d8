//! What is counted, each with its limit.

use crate::throttle::{MAX_FIRST_CODES, MAX_FIRST_EMAILS, MAX_FIRST_PASSWORDS, Throttle};
use crate::{EmailAddress, Identity, PersonId, TokenHash};
use sha2::{Digest, Sha256};
use std::net::IpAddr;

/// A subnet is the result of `rate_limit_subnet`. Plus-addresses of one mailbox share a count, except at the portal, whose
/// identity provider may treat them as different.
#[derive(Clone, Copy, Debug)]
pub enum ThrottleKey<'a> {
    PasswordPerAddressAndSubnet(&'a EmailAddress, IpAddr),
    PasswordPerSubnetAndDay(&'a EmailAddress, IpAddr),
    FirstPasswordPerDay(&'a EmailAddress),
    PasswordPerAddress(&'a EmailAddress),
    PasswordPerDay(&'a EmailAddress),
    /// Keyed by the hash of the known device's token, as are all keys of devices.
    PasswordPerDevice(&'a EmailAddress, TokenHash),
    PasswordPerDeviceAndDay(&'a EmailAddress, TokenHash),
    /// Password and code attempts.
    AttemptPerSubnet(IpAddr),
    /// Keyed by the hash of the proof's token.
    CodePerProof(TokenHash),
    CodePerAddressAndSubnet(&'a EmailAddress, IpAddr),
    CodePerSubnetAndDay(&'a EmailAddress, IpAddr),
    FirstCodePerDay(&'a EmailAddress),
    CodePerAddress(&'a EmailAddress),
    CodePerDay(&'a EmailAddress),
    CodePerDevice(&'a EmailAddress, TokenHash),
    CodePerDeviceAndDay(&'a EmailAddress, TokenHash),
    /// Keyed by the account's exact address: only someone with its password gets this far.
    SecondFactorPerAccountAndSubnet(&'a EmailAddress, IpAddr),
    SecondFactorPerAccount(&'a EmailAddress),
    SecondFactorPerDay(&'a EmailAddress),
    SecondFactorPerDevice(&'a EmailAddress, TokenHash),
    SecondFactorPerDeviceAndDay(&'a EmailAddress, TokenHash),
    PasskeyChallengePerSubnet(IpAddr),
    /// In a browser in which anyone signed in before.
    PasskeyChallengePerDevice(TokenHash),
    EmailPerAddressAndSubnet(&'a EmailAddress, IpAddr),
    FirstEmailPerAddress(&'a EmailAddress),
    EmailPerAddress(&'a EmailAddress),
    EmailPerDevice(&'a EmailAddress, TokenHash),
    EmailPerSubnet(IpAddr),
    /// The email that warns of too many attempts.
    LockoutEmail(&'a EmailAddress),
    /// Keyed by the account's subject.
    ConsentPagePerAccount(&'a str),
    AuthorizationCodePerAccount(&'a str),
    /// Keyed by the marker that an authorization request gets when it is redirected to sign-in.
    SignInRedirect(&'a str),
    WrongCodePerIdentity(&'a Identity),
    WrongCodePerIdentityAndDay(&'a Identity),
    WrongCodePerMailbox(&'a EmailAddress),
    WrongCodePerMailboxAndDay(&'a EmailAddress),
    CodeEmailPerIdentity(&'a Identity),
    CodeEmailPerIdentityAndDay(&'a Identity),
    CodeEmailPerMailbox(&'a EmailAddress),
    CodeEmailPerMailboxAndDay(&'a EmailAddress),
    InvitationEmail(&'a EmailAddress),
    /// Files with many records, of any kind together.
    ExportPerPerson(PersonId),
    ExportPerPersonAndDay(PersonId),
    /// Letters to clients by email.
    LetterPerPersonAndDay(PersonId),
}

/// What an address is attempted with. Each has its own counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptKind {
    Password,
    Code,
    /// An email with a code.
    Email,
}

/// Where an attempt comes from.
#[derive(Clone, Copy, Debug)]
pub enum AttemptOrigin {
    /// A browser in which the address's account was signed in before, by the hash of its token.
    KnownDevice(TokenHash),
    Subnet {
        subnet: IpAddr,
        /// Whether it is one of the first attempts of this kind, for this address, from this subnet.
        is_first: bool,
    },
}

impl AttemptKind {
    /// The count that says whether an attempt from this subnet is one of its first, and how many are.
    pub fn first_attempts(self, email: &EmailAddress, subnet: IpAddr) -> (ThrottleKey<'_>, u32) {
        match self {
            Self::Password => (ThrottleKey::PasswordPerSubnetAndDay(email, subnet), MAX_FIRST_PASSWORDS),
            Self::Code => (ThrottleKey::CodePerSubnetAndDay(email, subnet), MAX_FIRST_CODES),
            Self::Email => (ThrottleKey::EmailPerAddressAndSubnet(email, subnet), MAX_FIRST_EMAILS),
        }
    }

    /// The limit of the first attempts of all subnets. Once it is reached, first attempts count as further ones.
    pub fn first_from_everywhere(self, email: &EmailAddress) -> ThrottleKey<'_> {
        match self {
            Self::Password => ThrottleKey::FirstPasswordPerDay(email),
            Self::Code => ThrottleKey::FirstCodePerDay(email),
            Self::Email => ThrottleKey::FirstEmailPerAddress(email),
        }
    }

    /// The keys that one attempt for this address counts against.
    pub fn keys(self, email: &EmailAddress, origin: AttemptOrigin) -> Vec<ThrottleKey<'_>> {
        use ThrottleKey as Key;
        match (origin, self) {
            (AttemptOrigin::KnownDevice(device), Self::Password) => {
                vec![Key::PasswordPerDevice(email, device), Key::PasswordPerDeviceAndDay(email, device)]
            }
            (AttemptOrigin::KnownDevice(device), Self::Code) => {
                vec![Key::CodePerDevice(email, device), Key::CodePerDeviceAndDay(email, device)]
            }
            (AttemptOrigin::KnownDevice(device), Self::Email) => vec![Key::EmailPerDevice(email, device)],
            (AttemptOrigin::Subnet { subnet, is_first }, kind) => {
                let mut keys = kind.subnet_keys(email, subnet);
                match is_first {
                    true => keys.push(kind.first_from_everywhere(email)),
                    false => keys.extend(kind.further_keys(email)),
                }
                keys
            }
        }
    }

    fn subnet_keys(self, email: &EmailAddress, subnet: IpAddr) -> Vec<ThrottleKey<'_>> {
        use ThrottleKey as Key;
        match self {
            Self::Password => vec![
                Key::AttemptPerSubnet(subnet),
                Key::PasswordPerAddressAndSubnet(email, subnet),
                Key::PasswordPerSubnetAndDay(email, subnet),
            ],
            Self::Code => vec![
                Key::AttemptPerSubnet(subnet),
                Key::CodePerAddressAndSubnet(email, subnet),
                Key::CodePerSubnetAndDay(email, subnet),
            ],
            Self::Email => vec![Key::EmailPerSubnet(subnet), Key::EmailPerAddressAndSubnet(email, subnet)],
        }
    }

    /// Limit all further attempts of all subnets.
    fn further_keys(self, email: &EmailAddress) -> Vec<ThrottleKey<'_>> {
        match self {
            Self::Password => {
                vec![ThrottleKey::PasswordPerAddress(email), ThrottleKey::PasswordPerDay(email)]
            }
            Self::Code => vec![ThrottleKey::CodePerAddress(email), ThrottleKey::CodePerDay(email)],
            Self::Email => vec![ThrottleKey::EmailPerAddress(email)],
        }
    }
}

impl<'a> ThrottleKey<'a> {
    /// Every count of passwords for this address that concerns this subnet. A new password resets them.
    pub fn all_passwords(email: &'a EmailAddress, subnet: IpAddr) -> [Self; 5] {
        [
            Self::PasswordPerAddressAndSubnet(email, subnet),
            Self::PasswordPerSubnetAndDay(email, subnet),
            Self::FirstPasswordPerDay(email),
            Self::PasswordPerAddress(email),
            Self::PasswordPerDay(email),
        ]
    }

    /// The keys that one code of an authenticator app counts against. A known device has its own, as for passwords.
    pub fn second_factor(
        email: &'a EmailAddress,
        subnet: IpAddr,
        known_device: Option<TokenHash>,
    ) -> Vec<Self> {
        match known_device {
            Some(device) => vec![
                Self::SecondFactorPerDevice(email, device),
                Self::SecondFactorPerDeviceAndDay(email, device),
            ],
            None => vec![
                Self::AttemptPerSubnet(subnet),
                Self::SecondFactorPerAccountAndSubnet(email, subnet),
                Self::SecondFactorPerAccount(email),
                Self::SecondFactorPerDay(email),
            ],
        }
    }

    /// The keys that one recovery code counts against. It cannot be guessed, so guesses from elsewhere do not count: an
    /// owner whose attempts an attacker used up still gets in with it.
    pub fn recovery_code(email: &'a EmailAddress, subnet: IpAddr) -> [Self; 2] {
        [Self::AttemptPerSubnet(subnet), Self::SecondFactorPerAccountAndSubnet(email, subnet)]
    }

    pub fn throttle(self) -> Throttle {
        match self {
            Self::PasswordPerAddressAndSubnet(..) => Throttle::PASSWORD_PER_ADDRESS_AND_SUBNET,
            Self::PasswordPerSubnetAndDay(..) => Throttle::PASSWORD_PER_SUBNET_AND_DAY,
            Self::FirstPasswordPerDay(_) => Throttle::FIRST_PASSWORD_PER_DAY,
            Self::PasswordPerAddress(_) => Throttle::PASSWORD_PER_ADDRESS,
            Self::PasswordPerDay(_) => Throttle::PASSWORD_PER_DAY,
            Self::PasswordPerDevice(..) => Throttle::PASSWORD_PER_DEVICE,
            Self::PasswordPerDeviceAndDay(..) => Throttle::PASSWORD_PER_DEVICE_AND_DAY,
            Self::AttemptPerSubnet(_) => Throttle::ATTEMPT_PER_SUBNET,
            Self::CodePerProof(_) => Throttle::CODE_PER_PROOF,
            Self::CodePerAddressAndSubnet(..) => Throttle::CODE_PER_ADDRESS_AND_SUBNET,
            Self::CodePerSubnetAndDay(..) => Throttle::CODE_PER_SUBNET_AND_DAY,
            Self::FirstCodePerDay(_) => Throttle::FIRST_CODE_PER_DAY,
            Self::CodePerAddress(_) => Throttle::CODE_PER_ADDRESS,
            Self::CodePerDay(_) => Throttle::CODE_PER_DAY,
            Self::CodePerDevice(..) => Throttle::CODE_PER_DEVICE,
            Self::CodePerDeviceAndDay(..) => Throttle::CODE_PER_DEVICE_AND_DAY,
            Self::SecondFactorPerAccountAndSubnet(..) => Throttle::SECOND_FACTOR_PER_ACCOUNT_AND_SUBNET,
            Self::SecondFactorPerAccount(_) => Throttle::SECOND_FACTOR_PER_ACCOUNT,
            Self::SecondFactorPerDay(_) => Throttle::SECOND_FACTOR_PER_DAY,
            Self::SecondFactorPerDevice(..) => Throttle::SECOND_FACTOR_PER_DEVICE,
            Self::SecondFactorPerDeviceAndDay(..) => Throttle::SECOND_FACTOR_PER_DEVICE_AND_DAY,
            Self::PasskeyChallengePerSubnet(_) => Throttle::PASSKEY_CHALLENGE_PER_SUBNET,
            Self::PasskeyChallengePerDevice(_) => Throttle::PASSKEY_CHALLENGE_PER_DEVICE,
            Self::EmailPerAddressAndSubnet(..) => Throttle::EMAIL_PER_ADDRESS_AND_SUBNET,
            Self::FirstEmailPerAddress(_) => Throttle::FIRST_EMAIL_PER_ADDRESS,
            Self::EmailPerAddress(_) => Throttle::EMAIL_PER_ADDRESS,
            Self::EmailPerDevice(..) => Throttle::EMAIL_PER_DEVICE,
            Self::EmailPerSubnet(_) => Throttle::EMAIL_PER_SUBNET,
            Self::LockoutEmail(_) => Throttle::LOCKOUT_EMAIL,
            Self::ConsentPagePerAccount(_) => Throttle::CONSENT_PAGE_PER_ACCOUNT,
            Self::AuthorizationCodePerAccount(_) => Throttle::AUTHORIZATION_CODE_PER_ACCOUNT,
            Self::SignInRedirect(_) => Throttle::SIGN_IN_REDIRECT,
            Self::WrongCodePerIdentity(_) => Throttle::WRONG_CODE_PER_IDENTITY,
            Self::WrongCodePerIdentityAndDay(_) => Throttle::WRONG_CODE_PER_IDENTITY_AND_DAY,
            Self::WrongCodePerMailbox(_) => Throttle::WRONG_CODE_PER_MAILBOX,
            Self::WrongCodePerMailboxAndDay(_) => Throttle::WRONG_CODE_PER_MAILBOX_AND_DAY,
            Self::CodeEmailPerIdentity(_) => Throttle::CODE_EMAIL_PER_IDENTITY,
            Self::CodeEmailPerIdentityAndDay(_) => Throttle::CODE_EMAIL_PER_IDENTITY_AND_DAY,
            Self::CodeEmailPerMailbox(_) => Throttle::CODE_EMAIL_PER_MAILBOX,
            Self::CodeEmailPerMailboxAndDay(_) => Throttle::CODE_EMAIL_PER_MAILBOX_AND_DAY,
            Self::InvitationEmail(_) => Throttle::INVITATION_EMAIL,
            Self::ExportPerPerson(_) => Throttle::EXPORT_PER_PERSON,
            Self::ExportPerPersonAndDay(_) => Throttle::EXPORT_PER_PERSON_AND_DAY,
            Self::LetterPerPersonAndDay(_) => Throttle::LETTER_PER_PERSON_AND_DAY,
        }
    }

    /// The key in the database. It is a hash, so that what strangers type is not stored.
    pub fn hash(self) -> TokenHash {
        match self {
            Self::PasswordPerAddressAndSubnet(email, subnet) => {
                hash("password per address and subnet", &[&email.mailbox(), &subnet.to_string()])
            }
            Self::PasswordPerSubnetAndDay(email, subnet) => {
                hash("password per subnet and day", &[&email.mailbox(), &subnet.to_string()])
            }
            Self::FirstPasswordPerDay(email) => hash("first password per day", &[&email.mailbox()]),
            Self::PasswordPerAddress(email) => hash("password per address", &[&email.mailbox()]),
            Self::PasswordPerDay(email) => hash("password per day", &[&email.mailbox()]),
            Self::PasswordPerDevice(email, device) => device_hash("password per device", email, device),
            Self::PasswordPerDeviceAndDay(email, device) => {
                device_hash("password per device and day", email, device)
            }
            Self::AttemptPerSubnet(subnet) => hash("attempt per subnet", &[&subnet.to_string()]),
            Self::CodePerProof(proof) => digest("code per proof", &[&proof.0]),
            Self::CodePerAddressAndSubnet(email, subnet) => {
                hash("code per address and subnet", &[&email.mailbox(), &subnet.to_string()])
            }
            Self::CodePerSubnetAndDay(email, subnet) => {
                hash("code per subnet and day", &[&email.mailbox(), &subnet.to_string()])
            }
            Self::FirstCodePerDay(email) => hash("first code per day", &[&email.mailbox()]),
            Self::CodePerAddress(email) => hash("code per address", &[&email.mailbox()]),
            Self::CodePerDay(email) => hash("code per day", &[&email.mailbox()]),
            Self::CodePerDevice(email, device) => device_hash("code per device", email, device),
            Self::CodePerDeviceAndDay(email, device) => device_hash("code per device and day", email, device),
            Self::SecondFactorPerAccountAndSubnet(email, subnet) => {
                hash("second factor per account and subnet", &[email.as_str(), &subnet.to_string()])
            }
            Self::SecondFactorPerAccount(email) => hash("second factor per account", &[email.as_str()]),
            Self::SecondFactorPerDay(email) => hash("second factor per day", &[email.as_str()]),
            Self::SecondFactorPerDevice(email, device) => {
                device_hash("second factor per device", email, device)
            }
            Self::SecondFactorPerDeviceAndDay(email, device) => {
                device_hash("second factor per device and day", email, device)
            }
            Self::PasskeyChallengePerSubnet(subnet) => {
                hash("passkey challenge per subnet", &[&subnet.to_string()])
            }
            Self::PasskeyChallengePerDevice(device) => digest("passkey challenge per device", &[&device.0]),
            Self::EmailPerAddressAndSubnet(email, subnet) => {
                hash("email per address and subnet", &[&email.mailbox(), &subnet.to_string()])
            }
            Self::FirstEmailPerAddress(email) => hash("first email per address", &[&email.mailbox()]),
            Self::EmailPerAddress(email) => hash("email per address", &[&email.mailbox()]),
            Self::EmailPerDevice(email, device) => device_hash("email per device", email, device),
            Self::EmailPerSubnet(subnet) => hash("email per subnet", &[&subnet.to_string()]),
            Self::LockoutEmail(email) => hash("lockout email", &[&email.mailbox()]),
            Self::ConsentPagePerAccount(subject) => hash("consent page per account", &[subject]),
            Self::AuthorizationCodePerAccount(subject) => hash("authorization code per account", &[subject]),
            Self::SignInRedirect(mark) => hash("sign-in detour", &[mark]),
            Self::WrongCodePerIdentity(Identity { issuer, subject }) => {
                hash("wrong code per identity", &[issuer, subject])
            }
            Self::WrongCodePerIdentityAndDay(Identity { issuer, subject }) => {
                hash("wrong code per identity and day", &[issuer, subject])
            }
            Self::WrongCodePerMailbox(email) => hash("wrong code per mailbox", &[email.as_str()]),
            Self::WrongCodePerMailboxAndDay(email) => {
                hash("wrong code per mailbox and day", &[email.as_str()])
            }
            Self::CodeEmailPerIdentity(Identity { issuer, subject }) => {
                hash("code email per identity", &[issuer, subject])
            }
            Self::CodeEmailPerIdentityAndDay(Identity { issuer, subject }) => {
                hash("code email per identity and day", &[issuer, subject])
            }
            Self::CodeEmailPerMailbox(email) => hash("code email per mailbox", &[email.as_str()]),
            Self::CodeEmailPerMailboxAndDay(email) => {
                hash("code email per mailbox and day", &[email.as_str()])
            }
            Self::InvitationEmail(email) => hash("invitation email", &[&email.mailbox()]),
            Self::ExportPerPerson(person) => digest("export per person", &[&person.0.to_be_bytes()]),
            Self::ExportPerPersonAndDay(person) => {
                digest("export per person and day", &[&person.0.to_be_bytes()])
            }
            Self::LetterPerPersonAndDay(person) => {
                digest("letter per person and day", &[&person.0.to_be_bytes()])
            }
        }
    }

    /// Whether the key counts one subnet, as opposed to all of them.
    pub fn is_per_subnet(self) -> bool {
        matches!(
            self,
            Self::PasswordPerAddressAndSubnet(..)
                | Self::PasswordPerSubnetAndDay(..)
                | Self::CodePerAddressAndSubnet(..)
                | Self::CodePerSubnetAndDay(..)
                | Self::SecondFactorPerAccountAndSubnet(..)
                | Self::PasskeyChallengePerSubnet(_)
                | Self::EmailPerAddressAndSubnet(..)
                | Self::AttemptPerSubnet(_)
                | Self::EmailPerSubnet(_)
        )
    }

    /// Whether a correct attempt clears the count. From all other counts only that attempt is subtracted.
    pub fn is_reset_by_success(self) -> bool {
        matches!(
            self,
            Self::PasswordPerAddressAndSubnet(..)
                | Self::PasswordPerDevice(..)
                | Self::PasswordPerDeviceAndDay(..)
                | Self::CodePerAddressAndSubnet(..)
                | Self::CodePerDevice(..)
                | Self::CodePerDeviceAndDay(..)
                | Self::SecondFactorPerAccountAndSubnet(..)
                | Self::SecondFactorPerDevice(..)
                | Self::SecondFactorPerDeviceAndDay(..)
        )
    }

    pub fn address(self) -> Option<&'a EmailAddress> {
        match self {
            Self::PasswordPerAddressAndSubnet(email, _)
            | Self::PasswordPerSubnetAndDay(email, _)
            | Self::FirstPasswordPerDay(email)
            | Self::PasswordPerAddress(email)
            | Self::PasswordPerDay(email)
            | Self::PasswordPerDevice(email, _)
            | Self::PasswordPerDeviceAndDay(email, _)
            | Self::CodePerAddressAndSubnet(email, _)
            | Self::CodePerSubnetAndDay(email, _)
            | Self::FirstCodePerDay(email)
            | Self::CodePerAddress(email)
            | Self::CodePerDay(email)
            | Self::CodePerDevice(email, _)
            | Self::CodePerDeviceAndDay(email, _)
            | Self::SecondFactorPerAccountAndSubnet(email, _)
            | Self::SecondFactorPerAccount(email)
            | Self::SecondFactorPerDay(email)
            | Self::SecondFactorPerDevice(email, _)
            | Self::SecondFactorPerDeviceAndDay(email, _)
            | Self::EmailPerAddressAndSubnet(email, _)
            | Self::FirstEmailPerAddress(email)
            | Self::EmailPerAddress(email)
            | Self::EmailPerDevice(email, _)
            | Self::LockoutEmail(email)
            | Self::WrongCodePerMailbox(email)
            | Self::WrongCodePerMailboxAndDay(email)
            | Self::CodeEmailPerMailbox(email)
            | Self::CodeEmailPerMailboxAndDay(email)
            | Self::InvitationEmail(email) => Some(email),
            _ => None,
        }
    }
}

fn device_hash(label: &str, email: &EmailAddress, device: TokenHash) -> TokenHash {
    digest(label, &[email.mailbox().as_bytes(), &device.0])
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
    use crate::UnixMillis;
    use crate::throttle::{ThrottleCount, ThrottleDecision};
    use std::collections::HashMap;

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
        let origins = [
            AttemptOrigin::KnownDevice(TokenHash([8; 32])),
            AttemptOrigin::Subnet { subnet, is_first: true },
            AttemptOrigin::Subnet { subnet, is_first: false },
        ];
        let kinds = [AttemptKind::Password, AttemptKind::Code, AttemptKind::Email];
        let mut attempts = Vec::new();
        for kind in kinds {
            for origin in origins {
                attempts.extend(kind.keys(&email, origin));
            }
        }
        let app = ThrottleKey::second_factor(&email, subnet, None);
        let app_on_device = ThrottleKey::second_factor(&email, subnet, Some(TokenHash([8; 32])));
        let keys = [
            &attempts[..],
            &app[..],
            &app_on_device[..],
            &[
                ThrottleKey::PasskeyChallengePerSubnet(subnet),
                ThrottleKey::PasskeyChallengePerDevice(TokenHash([7; 32])),
                ThrottleKey::CodePerProof(TokenHash([7; 32])),
                ThrottleKey::CodePerProof(TokenHash([8; 32])),
                ThrottleKey::LockoutEmail(&email),
                ThrottleKey::ConsentPagePerAccount("maya"),
                ThrottleKey::AuthorizationCodePerAccount("maya"),
                ThrottleKey::SignInRedirect("maya"),
                ThrottleKey::WrongCodePerIdentity(&one),
                ThrottleKey::WrongCodePerIdentity(&other),
                ThrottleKey::WrongCodePerIdentityAndDay(&one),
                ThrottleKey::WrongCodePerMailbox(&email),
                ThrottleKey::WrongCodePerMailboxAndDay(&email),
                ThrottleKey::CodeEmailPerIdentity(&one),
                ThrottleKey::CodeEmailPerIdentityAndDay(&one),
                ThrottleKey::CodeEmailPerMailbox(&email),
                ThrottleKey::CodeEmailPerMailboxAndDay(&email),
                ThrottleKey::InvitationEmail(&email),
                ThrottleKey::ExportPerPerson(PersonId(1)),
                ThrottleKey::ExportPerPerson(PersonId(2)),
                ThrottleKey::ExportPerPersonAndDay(PersonId(1)),
                ThrottleKey::LetterPerPersonAndDay(PersonId(1)),
            ],
        ];
        // The keys of one subnet are there for first and for further attempts, and some for passwords and codes.
        let keys = keys.concat();
        let hashes: std::collections::BTreeSet<[u8; 32]> = keys.iter().map(|key| key.hash().0).collect();
        let names: std::collections::BTreeSet<String> = keys.iter().map(|key| format!("{key:?}")).collect();
        assert_eq!(hashes.len(), names.len());
    }

    #[test]
    fn known_device_shares_no_count_with_anyone() {
        let (email, subnet) = ("maya@example.com".parse().unwrap(), IpAddr::from([192, 0, 2, 1]));
        let hashes = |kind: AttemptKind, origin| -> Vec<[u8; 32]> {
            kind.keys(&email, origin).iter().map(|key| key.hash().0).collect()
        };
        for kind in [AttemptKind::Password, AttemptKind::Code, AttemptKind::Email] {
            let own = hashes(kind, AttemptOrigin::KnownDevice(TokenHash([1; 32])));
            let others = [
                hashes(kind, AttemptOrigin::KnownDevice(TokenHash([2; 32]))),
                hashes(kind, AttemptOrigin::Subnet { subnet, is_first: true }),
                hashes(kind, AttemptOrigin::Subnet { subnet, is_first: false }),
            ];
            assert!(others.concat().iter().all(|other| !own.contains(other)), "{kind:?}");
        }
        let second_factor = |device: Option<u8>| -> Vec<[u8; 32]> {
            let device = device.map(|byte| TokenHash([byte; 32]));
            ThrottleKey::second_factor(&email, subnet, device).iter().map(|key| key.hash().0).collect()
        };
        let own = second_factor(Some(1));
        let others = [second_factor(Some(2)), second_factor(None)].concat();
        assert!(others.iter().all(|other| !own.contains(other)), "codes of an app");
    }

    /// All attempts of an attack on one address, decided as the provider and the store do.
    #[derive(Default)]
    struct Attack {
        counts: HashMap<[u8; 32], ThrottleCount>,
        guesses: u32,
    }

    impl Attack {
        fn count(&self, key: ThrottleKey<'_>, now: UnixMillis) -> u32 {
            let stored = self.counts.get(&key.hash().0).copied();
            key.throttle().current(stored, now).map_or(0, |current| current.count)
        }

        /// Returns whether the attempt was allowed.
        fn attempt(
            &mut self,
            kind: AttemptKind,
            email: &EmailAddress,
            subnet: IpAddr,
            now: UnixMillis,
        ) -> bool {
            let (own, max_first) = kind.first_attempts(email, subnet);
            let first = kind.first_from_everywhere(email);
            let is_first =
                self.count(own, now) < max_first && self.count(first, now) < first.throttle().limit;
            let keys = kind.keys(email, AttemptOrigin::Subnet { subnet, is_first });
            if keys.iter().any(|key| self.count(*key, now) >= key.throttle().limit) {
                return false;
            }
            for key in keys {
                let stored = self.counts.get(&key.hash().0).copied();
                if let ThrottleDecision::Allowed(count) = key.throttle().count(stored, now) {
                    self.counts.insert(key.hash().0, count);
                }
            }
            self.guesses += 1;
            true
        }
    }

    #[test]
    fn attack_from_hundreds_of_subnets_stays_below_the_daily_bound() {
        let email: EmailAddress = "maya@example.com".parse().unwrap();
        for (kind, max_guesses) in [
            (AttemptKind::Password, Throttle::MAX_PASSWORDS_PER_DAY),
            (AttemptKind::Code, Throttle::MAX_CODES_PER_DAY),
        ] {
            let mut attack = Attack::default();
            for minute in (0..24 * 60).step_by(10) {
                let now = UnixMillis(1_794_744_000_000 + minute * 60_000);
                for subnet in 0..400_u32 {
                    let subnet = IpAddr::from((0xC612_0000 + subnet).to_be_bytes());
                    while attack.attempt(kind, &email, subnet, now) {}
                }
            }
            assert_eq!(attack.guesses, max_guesses, "{kind:?}: all of the bound, and no more");
        }
    }

    #[test]
    fn subnet_without_part_in_the_attack_still_gets_its_first_attempts() {
        let (email, now) =
            ("maya@example.com".parse::<EmailAddress>().unwrap(), UnixMillis(1_794_744_000_000));
        for kind in [AttemptKind::Password, AttemptKind::Code, AttemptKind::Email] {
            let mut attack = Attack::default();
            for subnet in 0..20_u8 {
                while attack.attempt(kind, &email, IpAddr::from([192, 0, 2, subnet]), now) {}
            }
            let involved = IpAddr::from([192, 0, 2, 0]);
            assert!(!attack.attempt(kind, &email, involved, now), "{kind:?}");
            assert!(attack.attempt(kind, &email, IpAddr::from([198, 51, 100, 7]), now), "{kind:?}");
        }
    }

    #[test]
    fn first_attempts_are_counted_apart_from_further_ones() {
        let (email, subnet) = ("maya@example.com".parse().unwrap(), IpAddr::from([192, 0, 2, 1]));
        for kind in [AttemptKind::Password, AttemptKind::Code, AttemptKind::Email] {
            let (count, limit) = kind.first_attempts(&email, subnet);
            assert!(limit < count.throttle().limit, "{kind:?}");
            let from_everywhere = |is_first| -> Vec<[u8; 32]> {
                let keys = kind.keys(&email, AttemptOrigin::Subnet { subnet, is_first });
                keys.iter().filter(|key| !key.is_per_subnet()).map(|key| key.hash().0).collect()
            };
            let (first, further) = (from_everywhere(true), from_everywhere(false));
            assert!(!first.is_empty() && first.iter().all(|key| !further.contains(key)), "{kind:?}");
        }
    }
}
