//! Bounds what may be tried. A try is counted before it is made, so that however many come at once, no more than the
//! bound get through; and it is counted by what was typed, so that an address without an account runs out just the same.

use super::place::Place;
use crate::limits::{
    Bound, CODE_TRIES, CODE_TRIES_A_DAY, LETTERS_FROM_PLACE, LETTERS_TO_ADDRESS, PASSWORD_TRIES,
    TRIES_FROM_PLACE,
};
use crate::{Provider, refused};
use chancery_domain::{EmailAddress, TokenHash, UnixMillis};
use chancery_pages::Refusal;
use chancery_store::Counted;
use sha2::{Digest, Sha256};

/// What is bounded.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tried<'a> {
    PasswordOf(&'a EmailAddress),
    /// A password or a code.
    From(Place),
    CodeOf(&'a EmailAddress),
    CodeOfInADay(&'a EmailAddress),
    LetterTo(&'a EmailAddress),
    LetterFrom(Place),
}

impl Tried<'_> {
    fn bound(self) -> Bound {
        match self {
            Self::PasswordOf(_) => PASSWORD_TRIES,
            Self::From(_) => TRIES_FROM_PLACE,
            Self::CodeOf(_) => CODE_TRIES,
            Self::CodeOfInADay(_) => CODE_TRIES_A_DAY,
            Self::LetterTo(_) => LETTERS_TO_ADDRESS,
            Self::LetterFrom(_) => LETTERS_FROM_PLACE,
        }
    }

    /// Only a hash is kept: what strangers type is nobody's business.
    fn key(self) -> TokenHash {
        let (what, who) = match self {
            Self::PasswordOf(email) => ("password of", email.to_string()),
            Self::From(place) => ("tried from", place.0.to_string()),
            Self::CodeOf(email) => ("code of", email.to_string()),
            Self::CodeOfInADay(email) => ("code in a day of", email.to_string()),
            Self::LetterTo(email) => ("letter to", email.to_string()),
            Self::LetterFrom(place) => ("letter from", place.0.to_string()),
        };
        TokenHash(Sha256::new().chain_update(what).chain_update([0]).chain_update(who).finalize().into())
    }

    fn reason(self) -> &'static str {
        match self {
            Self::PasswordOf(_) => "There were too many tries to sign in with this e-mail address.",
            Self::From(_) => "There were too many tries from your network.",
            Self::CodeOf(_) | Self::CodeOfInADay(_) => {
                "There were too many wrong codes for this e-mail address. Codes that were sent no longer work."
            }
            Self::LetterTo(_) => "There were too many messages to this e-mail address.",
            Self::LetterFrom(_) => "Too many messages were asked for from your network.",
        }
    }
}

/// How many tries are left after this one; none left and over are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Within { left: u32 },
    Over,
}

/// Counts a try and says whether it may be made.
pub(crate) async fn take_turn(provider: &Provider, tried: Tried<'_>) -> Result<Turn, Refusal> {
    let counted = count_one(provider, tried, provider.clock.now()).await?;
    Ok(match tried.bound().attempts.checked_sub(counted.attempts) {
        Some(left) => Turn::Within { left },
        None => Turn::Over,
    })
}

/// Counts a try, and refuses it when there were too many.
pub(crate) async fn count(provider: &Provider, tried: Tried<'_>) -> Result<(), Refusal> {
    let now = provider.clock.now();
    let counted = count_one(provider, tried, now).await?;
    if counted.attempts > tried.bound().attempts { Err(too_many(tried, counted, now)) } else { Ok(()) }
}

async fn count_one(provider: &Provider, tried: Tried<'_>, now: UnixMillis) -> Result<Counted, Refusal> {
    let counted = provider.store.count_attempt(tried.key(), now, after(now, tried.bound())).await;
    counted.map_err(|error| refused(&error))
}

/// Refuses when no try is left; counts nothing.
pub(crate) async fn check(provider: &Provider, tried: Tried<'_>) -> Result<(), Refusal> {
    let (now, bound) = (provider.clock.now(), tried.bound());
    let counted = provider.store.attempts(tried.key(), now).await.map_err(|error| refused(&error))?;
    match counted {
        Some(counted) if counted.attempts >= bound.attempts => Err(too_many(tried, counted, now)),
        _ => Ok(()),
    }
}

pub(crate) async fn take_back(provider: &Provider, tried: Tried<'_>) -> Result<(), Refusal> {
    provider.store.take_back_attempt(tried.key()).await.map_err(|error| refused(&error))
}

pub(crate) async fn forget(provider: &Provider, tried: Tried<'_>) -> Result<(), Refusal> {
    provider.store.forget_attempts(tried.key()).await.map_err(|error| refused(&error))
}

fn after(now: UnixMillis, bound: Bound) -> UnixMillis {
    UnixMillis(now.0.saturating_add(i64::try_from(bound.within.as_millis()).unwrap_or(i64::MAX)))
}

/// Waiting as long as it says is enough: trying meanwhile does not lengthen it.
fn too_many(tried: Tried<'_>, counted: Counted, now: UnixMillis) -> Refusal {
    let wait_ms = counted.forgotten_at.0.saturating_sub(now.0).max(1);
    let mut refusal = wait(tried.reason(), wait_ms);
    refusal.title = "Too many tries";
    match tried {
        // Whoever the address belongs to need not wait: a new password forgets the tries. Everybody is told.
        Tried::PasswordOf(_) => refusal.way_on("/forgotten-password", "Set a new password instead"),
        _ => refusal,
    }
}

/// A refusal for so long.
pub(crate) fn wait(reason: &str, wait_ms: i64) -> Refusal {
    let wait_s = u32::try_from(wait_ms.max(1)).map_or(u32::MAX, |ms| ms.div_ceil(1000));
    let advice = match wait_s {
        0..=90 => format!("Nothing was changed. Try again in {wait_s} seconds."),
        91..=5_400 => format!("Nothing was changed. Try again in {} minutes.", wait_s.div_ceil(60)),
        _ => format!("Nothing was changed. Try again in {} hours.", wait_s.div_ceil(3_600)),
    };
    Refusal::too_many(reason, wait_s).advice(advice)
}
