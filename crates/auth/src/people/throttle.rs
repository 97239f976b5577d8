//! Throttles attempts by `ThrottleKey`. An attempt is counted before it is made, so that concurrent attempts cannot
//! exceed the limit. It is counted by the address entered, so that an address without an account is throttled equally.

use super::client_subnet::ClientSubnet;
use super::emails;
use crate::{Provider, store_error_page};
use chancery_domain::{
    AttemptKind, AttemptOrigin, EmailAddress, ThrottleCount, ThrottleDecision, ThrottleKey, TokenHash,
    UnixMillis,
};
use chancery_web::ErrorPage;
use sha2::{Digest, Sha256};
use std::sync::Arc;

chancery_domain::closed_enum! {
    /// What a throttle protects, for the metric and the log.
    enum ThrottleScope {
        Password = "password",
        Code = "code",
        ClientSubnet = "place",
        Emails = "letters",
        Account = "account",
    }
}

fn throttle_scope(key: ThrottleKey<'_>) -> ThrottleScope {
    match key {
        ThrottleKey::PasswordPerAddressAndSubnet(..)
        | ThrottleKey::PasswordPerSubnetAndDay(..)
        | ThrottleKey::FirstPasswordPerDay(_)
        | ThrottleKey::PasswordPerAddress(_)
        | ThrottleKey::PasswordPerDay(_)
        | ThrottleKey::PasswordPerDevice(..)
        | ThrottleKey::PasswordPerDeviceAndDay(..) => ThrottleScope::Password,
        ThrottleKey::CodePerProof(_)
        | ThrottleKey::CodePerAddressAndSubnet(..)
        | ThrottleKey::CodePerSubnetAndDay(..)
        | ThrottleKey::FirstCodePerDay(_)
        | ThrottleKey::CodePerAddress(_)
        | ThrottleKey::CodePerDay(_)
        | ThrottleKey::CodePerDevice(..)
        | ThrottleKey::CodePerDeviceAndDay(..)
        | ThrottleKey::SecondFactorPerAccountAndSubnet(..)
        | ThrottleKey::SecondFactorPerAccount(_)
        | ThrottleKey::SecondFactorPerDay(_)
        | ThrottleKey::SecondFactorPerDevice(..)
        | ThrottleKey::SecondFactorPerDeviceAndDay(..)
        | ThrottleKey::WrongCodePerIdentity(_)
        | ThrottleKey::WrongCodePerIdentityAndDay(_)
        | ThrottleKey::WrongCodePerMailbox(_)
        | ThrottleKey::WrongCodePerMailboxAndDay(_) => ThrottleScope::Code,
        ThrottleKey::AttemptPerSubnet(_)
        | ThrottleKey::PasskeyChallengePerSubnet(_)
        | ThrottleKey::PasskeyChallengePerDevice(_) => ThrottleScope::ClientSubnet,
        ThrottleKey::EmailPerAddressAndSubnet(..)
        | ThrottleKey::FirstEmailPerAddress(_)
        | ThrottleKey::EmailPerAddress(_)
        | ThrottleKey::EmailPerDevice(..)
        | ThrottleKey::EmailPerSubnet(_)
        | ThrottleKey::LockoutEmail(_)
        | ThrottleKey::CodeEmailPerIdentity(_)
        | ThrottleKey::CodeEmailPerIdentityAndDay(_)
        | ThrottleKey::CodeEmailPerMailbox(_)
        | ThrottleKey::CodeEmailPerMailboxAndDay(_)
        | ThrottleKey::InvitationEmail(_) => ThrottleScope::Emails,
        ThrottleKey::ConsentPagePerAccount(_)
        | ThrottleKey::AuthorizationCodePerAccount(_)
        | ThrottleKey::SignInRedirect(_)
        // Only the portal counts exports and letters.
        | ThrottleKey::ExportPerPerson(_)
        | ThrottleKey::ExportPerPersonAndDay(_)
        | ThrottleKey::LetterPerPersonAndDay(_) => ThrottleScope::Account,
    }
}

fn reason(key: ThrottleKey<'_>) -> &'static str {
    match throttle_scope(key) {
        ThrottleScope::Password => "Too many sign-in attempts for this email address.",
        ThrottleScope::ClientSubnet => "Too many attempts from your network.",
        ThrottleScope::Code => "Too many incorrect codes for this email address.",
        ThrottleScope::Account => "Too many application sign-ins with this account.",
        ThrottleScope::Emails => match key {
            ThrottleKey::EmailPerSubnet(_) => "Too many emails requested from your network.",
            _ => "Too many emails to this address.",
        },
    }
}

/// Pseudonym of an address in the log: enough to correlate lines, too little to reveal the address.
pub(crate) fn log_id(email: &EmailAddress) -> String {
    let hash = Sha256::new().chain_update("log\0").chain_update(email.mailbox()).finalize();
    hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// Where a request comes from: its network, and its browser if the address's account was signed in in it before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestOrigin {
    pub(crate) subnet: ClientSubnet,
    pub(crate) known_device: Option<TokenHash>,
}

/// The keys that an attempt of this kind for this address counts against now.
pub(crate) async fn attempt_keys<'a>(
    provider: &Provider,
    kind: AttemptKind,
    email: &'a EmailAddress,
    origin: RequestOrigin,
) -> Result<Vec<ThrottleKey<'a>>, ErrorPage> {
    if let Some(device) = origin.known_device {
        return Ok(kind.keys(email, AttemptOrigin::KnownDevice(device)));
    }
    let subnet = origin.subnet.0;
    let (own, max_first) = kind.first_attempts(email, subnet);
    let first = kind.first_from_everywhere(email);
    let is_first = current_count(provider, own).await? < max_first
        && current_count(provider, first).await? < first.throttle().limit;
    Ok(kind.keys(email, AttemptOrigin::Subnet { subnet, is_first }))
}

async fn current_count(provider: &Provider, key: ThrottleKey<'_>) -> Result<u32, ErrorPage> {
    let counted = provider.store.throttles.throttle_count(key, provider.clock.now()).await;
    Ok(counted.map_err(|error| store_error_page(&error))?.map_or(0, |counted| counted.count))
}

/// A correct attempt counts against nothing.
pub(crate) async fn settle_success(provider: &Provider, keys: &[ThrottleKey<'_>]) -> Result<(), ErrorPage> {
    if let Some((of, address)) = keys.first().copied().map(log_fields) {
        tracing::info!(of, address, "attempt accepted");
    }
    for key in keys {
        match key.is_reset_by_success() {
            true => reset(provider, *key).await?,
            false => refund(provider, *key).await?,
        }
    }
    Ok(())
}

/// A permitted attempt.
#[derive(Debug)]
pub(crate) struct Attempt<'a> {
    /// Attempts left after this one.
    pub(crate) left: u32,
    /// The first of its throttles, for the log.
    first: Option<ThrottleKey<'a>>,
    /// The throttles whose last attempt this was.
    exhausted: Vec<ThrottleKey<'a>>,
}

impl Attempt<'_> {
    /// Call this when the attempt was wrong: logs it. If it was the last one, emails the owner of the mailbox.
    pub(crate) fn record_failure(&self, provider: &Arc<Provider>, subnet: ClientSubnet) {
        if let Some((of, address)) = self.first.map(log_fields) {
            tracing::info!(of, peer = %subnet.0, address, "attempt rejected");
        }
        for key in &self.exhausted {
            record(*key, Some(subnet));
        }
        let locked = self
            .exhausted
            .iter()
            .filter(|key| matches!(throttle_scope(**key), ThrottleScope::Password | ThrottleScope::Code));
        if let Some(email) = locked.filter_map(|key| key.address()).next() {
            emails::email_lockout(provider, email.clone());
        }
    }
}

/// What was attempted, and a pseudonym of the address that it was for.
fn log_fields(key: ThrottleKey<'_>) -> (&'static str, String) {
    (throttle_scope(key).as_str(), key.address().map(log_id).unwrap_or_default())
}

/// Logs a throttle once, when its limit is reached.
fn record(key: ThrottleKey<'_>, subnet: Option<ClientSubnet>) {
    let (of, address) = log_fields(key);
    metrics::counter!("chancery_auth_bounds_reached_total", "of" => of).increment(1);
    let peer = subnet.map(|subnet| subnet.0.to_string()).unwrap_or_default();
    let from_one_place = key.is_per_subnet();
    tracing::warn!(of, peer, address, from_one_place, "throttle limit reached");
}

/// Counts an attempt for all of these keys and permits it. If a key has no attempt left, rejects the attempt with the
/// longest wait among such keys, and counts nothing.
pub(crate) async fn begin_attempt<'a>(
    provider: &Provider,
    keys: &[ThrottleKey<'a>],
) -> Result<Attempt<'a>, ErrorPage> {
    check(provider, keys).await?;
    let now = provider.clock.now();
    let mut attempt = Attempt { left: u32::MAX, first: keys.first().copied(), exhausted: Vec::new() };
    for (number, key) in keys.iter().enumerate() {
        let counted = provider.store.throttles.count_throttle(*key, now).await;
        match counted.map_err(|error| store_error_page(&error))? {
            ThrottleDecision::Allowed(counted) => {
                let left = key.throttle().left(counted);
                attempt.left = attempt.left.min(left);
                if left == 0 {
                    attempt.exhausted.push(*key);
                }
            }
            // Concurrent attempts were faster.
            ThrottleDecision::Denied(counted) => {
                for counted_before in keys.iter().take(number) {
                    refund(provider, *counted_before).await?;
                }
                return Err(too_many(*key, counted, now));
            }
        }
    }
    Ok(attempt)
}

/// `begin_attempt` for actions that cannot be right or wrong: records a reached limit at once.
pub(crate) async fn count(
    provider: &Provider,
    subnet: Option<ClientSubnet>,
    keys: &[ThrottleKey<'_>],
) -> Result<(), ErrorPage> {
    let attempt = begin_attempt(provider, keys).await?;
    for key in attempt.exhausted {
        record(key, subnet);
    }
    Ok(())
}

/// Rejects if any of these keys has no attempt left. Counts nothing.
pub(crate) async fn check(provider: &Provider, keys: &[ThrottleKey<'_>]) -> Result<(), ErrorPage> {
    let now = provider.clock.now();
    let mut longest: Option<(ThrottleKey<'_>, ThrottleCount)> = None;
    for key in keys {
        let counted = provider
            .store
            .throttles
            .throttle_count(*key, now)
            .await
            .map_err(|error| store_error_page(&error))?;
        let over = counted.filter(|counted| key.throttle().left(*counted) == 0);
        if let Some(over) = over
            && longest.is_none_or(|(_, longest)| longest.expires_at < over.expires_at)
        {
            longest = Some((*key, over));
        }
    }
    match longest {
        Some((key, counted)) => Err(too_many(key, counted, now)),
        None => Ok(()),
    }
}

pub(crate) async fn refund(provider: &Provider, key: ThrottleKey<'_>) -> Result<(), ErrorPage> {
    provider.store.throttles.refund_throttle(key).await.map_err(|error| store_error_page(&error))
}

pub(crate) async fn reset(provider: &Provider, key: ThrottleKey<'_>) -> Result<(), ErrorPage> {
    provider.store.throttles.reset_throttle(key).await.map_err(|error| store_error_page(&error))
}

/// Waiting this long is enough: further attempts do not extend it.
fn too_many(key: ThrottleKey<'_>, counted: ThrottleCount, now: UnixMillis) -> ErrorPage {
    let wait_ms = counted.expires_at.0.saturating_sub(now.0).max(1);
    wait(reason(key), wait_ms)
}

/// An error page that says how long to wait.
pub(crate) fn wait(reason: &str, wait_ms: i64) -> ErrorPage {
    let wait_s = u32::try_from(wait_ms.max(1)).map_or(u32::MAX, |ms| ms.div_ceil(1000));
    let advice = match wait_s {
        0..=1 => "Try again in 1 second.".to_owned(),
        2..=90 => format!("Try again in {wait_s} seconds."),
        91..=5_400 => format!("Try again in {} minutes.", wait_s.div_ceil(60)),
        _ => format!("Try again in {} hours.", wait_s.div_ceil(3_600)),
    };
    ErrorPage::too_many_requests(reason, wait_s).advice(advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_id_does_not_reveal_the_address() {
        let email: EmailAddress = "maya@example.com".parse().unwrap();
        assert_eq!(log_id(&email).len(), 8);
        assert_ne!(log_id(&email), log_id(&"omar@example.com".parse().unwrap()));
    }
}
