//! Bounds what may be tried, as `ThrottleKey` says. An attempt is counted before it is made, so that however many come at once,
//! no more than the limit get through; and it is counted by what was typed, so that an address without an account runs out
//! just the same.

use super::letters;
use super::place::Place;
use crate::{Provider, refused};
use chancery_domain::{EmailAddress, ThrottleCount, ThrottleDecision, ThrottleKey, UnixMillis};
use chancery_web::ErrorPage;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// What a bound protects, for the metric and the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guards {
    Password,
    Code,
    Place,
    Letters,
    Account,
}

impl Guards {
    fn as_str(self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::Code => "code",
            Self::Place => "place",
            Self::Letters => "letters",
            Self::Account => "account",
        }
    }
}

fn guards(key: ThrottleKey<'_>) -> Guards {
    match key {
        ThrottleKey::PasswordPerAddressAndSubnet(..)
        | ThrottleKey::PasswordPerAddress(_)
        | ThrottleKey::PasswordPerDay(_) => Guards::Password,
        ThrottleKey::CodePerProof(_)
        | ThrottleKey::CodePerAddressAndSubnet(..)
        | ThrottleKey::CodePerSubnetAndDay(..)
        | ThrottleKey::CodePerAddress(_)
        | ThrottleKey::CodePerDay(_)
        | ThrottleKey::WrongCodePerIdentity(_)
        | ThrottleKey::WrongCodePerMailbox(_) => Guards::Code,
        ThrottleKey::AttemptPerSubnet(_) => Guards::Place,
        ThrottleKey::EmailPerAddressAndSubnet(..)
        | ThrottleKey::EmailPerAddress(_)
        | ThrottleKey::EmailPerSubnet(_)
        | ThrottleKey::LockoutEmail(_)
        | ThrottleKey::CodeEmailPerIdentity(_)
        | ThrottleKey::CodeEmailPerMailbox(_) => Guards::Letters,
        ThrottleKey::ConsentPagePerAccount(_)
        | ThrottleKey::AuthorizationCodePerAccount(_)
        | ThrottleKey::SignInDetour(_) => Guards::Account,
    }
}

fn reason(key: ThrottleKey<'_>) -> &'static str {
    match guards(key) {
        Guards::Password => "There were too many tries to sign in with this e-mail address.",
        Guards::Place => "There were too many tries from your network.",
        Guards::Code => "There were too many wrong codes for this e-mail address.",
        Guards::Account => "There were too many sign-ins to applications with this account.",
        Guards::Letters => match key {
            ThrottleKey::EmailPerSubnet(_) => "Too many messages were asked for from your network.",
            _ => "There were too many messages to this e-mail address.",
        },
    }
}

/// By what an address is known in the log: enough to see that two lines are about the same one, and too little to say
/// which it is.
pub(crate) fn in_log(email: &EmailAddress) -> String {
    let hash = Sha256::new().chain_update("log\0").chain_update(email.mailbox()).finalize();
    hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// A try that may be made.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    /// After this one.
    pub(crate) left: u32,
    /// Of what this was the last.
    last_of: Vec<ThrottleKey<'a>>,
}

impl Turn<'_> {
    /// To be called when the try was wrong: where it was the last one, the log says so and the owner of the mailbox is told.
    pub(crate) fn was_wrong(&self, provider: &Arc<Provider>, place: Place) {
        for key in &self.last_of {
            record(*key, Some(place));
        }
        let locked =
            self.last_of.iter().filter(|key| matches!(guards(**key), Guards::Password | Guards::Code));
        if let Some(email) = locked.filter_map(|key| key.address()).next() {
            letters::tell_of_lockout(provider, email.clone());
        }
    }
}

/// One line for each bound that is reached, when it is reached.
fn record(key: ThrottleKey<'_>, place: Option<Place>) {
    let of = guards(key).as_str();
    metrics::counter!("chancery_auth_bounds_reached_total", "of" => of).increment(1);
    let address = key.address().map(in_log).unwrap_or_default();
    let peer = place.map(|place| place.0.to_string()).unwrap_or_default();
    let from_one_place = key.is_per_subnet();
    tracing::warn!(
        of,
        peer,
        address,
        from_one_place,
        "a bound on tries is reached; more are refused for a while"
    );
}

/// Counts a try for all of these and says that it may be made; or refuses it, for as long as the longest wait of those
/// that have none left. What is refused is counted nowhere.
pub(crate) async fn take_turn<'a>(
    provider: &Provider,
    all: &[ThrottleKey<'a>],
) -> Result<Turn<'a>, ErrorPage> {
    check(provider, all).await?;
    let now = provider.clock.now();
    let mut turn = Turn { left: u32::MAX, last_of: Vec::new() };
    for (number, key) in all.iter().enumerate() {
        let counted = provider.store.throttles.count_throttle(*key, now).await;
        match counted.map_err(|error| refused(&error))? {
            ThrottleDecision::Allowed(counted) => {
                let left = key.throttle().left(counted);
                turn.left = turn.left.min(left);
                if left == 0 {
                    turn.last_of.push(*key);
                }
            }
            // Others were quicker.
            ThrottleDecision::Denied(counted) => {
                for counted_before in all.iter().take(number) {
                    refund(provider, *counted_before).await?;
                }
                return Err(too_many(*key, counted, now));
            }
        }
    }
    Ok(turn)
}

/// `take_turn` for what is not right or wrong: the last one is recorded at once.
pub(crate) async fn count(
    provider: &Provider,
    place: Option<Place>,
    all: &[ThrottleKey<'_>],
) -> Result<(), ErrorPage> {
    let turn = take_turn(provider, all).await?;
    for key in turn.last_of {
        record(key, place);
    }
    Ok(())
}

/// Denies when no attempt is left of one of these; counts nothing.
pub(crate) async fn check(provider: &Provider, all: &[ThrottleKey<'_>]) -> Result<(), ErrorPage> {
    let now = provider.clock.now();
    let mut longest: Option<(ThrottleKey<'_>, ThrottleCount)> = None;
    for key in all {
        let counted =
            provider.store.throttles.throttle_count(*key, now).await.map_err(|error| refused(&error))?;
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
    provider.store.throttles.refund_throttle(key).await.map_err(|error| refused(&error))
}

pub(crate) async fn reset(provider: &Provider, key: ThrottleKey<'_>) -> Result<(), ErrorPage> {
    provider.store.throttles.reset_throttle(key).await.map_err(|error| refused(&error))
}

/// Waiting as long as it says is enough: trying meanwhile does not lengthen it.
fn too_many(key: ThrottleKey<'_>, counted: ThrottleCount, now: UnixMillis) -> ErrorPage {
    let wait_ms = counted.expires_at.0.saturating_sub(now.0).max(1);
    wait(reason(key), wait_ms)
}

/// A refusal for so long.
pub(crate) fn wait(reason: &str, wait_ms: i64) -> ErrorPage {
    let wait_s = u32::try_from(wait_ms.max(1)).map_or(u32::MAX, |ms| ms.div_ceil(1000));
    let advice = match wait_s {
        0..=90 => format!("Nothing was changed. Try again in {wait_s} seconds."),
        91..=5_400 => format!("Nothing was changed. Try again in {} minutes.", wait_s.div_ceil(60)),
        _ => format!("Nothing was changed. Try again in {} hours.", wait_s.div_ceil(3_600)),
    };
    ErrorPage::too_many(reason, wait_s).advice(advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_knows_an_address_by_less_than_would_tell_it() {
        let email: EmailAddress = "maya@example.com".parse().unwrap();
        assert_eq!(in_log(&email).len(), 8);
        assert_ne!(in_log(&email), in_log(&"omar@example.com".parse().unwrap()));
    }
}
