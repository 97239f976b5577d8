//! Bounds what may be tried. A try is counted before it is made, so that however many come at once, no more than the
//! bound get through; and it is counted by what was typed, so that an address without an account runs out just the same.
//!
//! Tries for an address are bounded twice: tightly from one place, so that guessing is hopeless, and loosely over all
//! places, so that a stranger elsewhere does not lock the owner out with a few wrong guesses.

use super::letters;
use super::place::Place;
use crate::limits::{
    Bound, CODE_TRIES, CODE_TRIES_A_DAY, CODE_TRIES_FROM_PLACE, CODE_TRIES_FROM_PLACE_A_DAY,
    CODE_TRIES_OF_PROOF, CODES_FOR_APPLICATIONS, CONSENT_QUESTIONS, LETTERS_FROM_PLACE, LETTERS_TO_ADDRESS,
    LETTERS_TO_ADDRESS_FROM_PLACE, LOCKOUT_LETTERS, PASSWORD_TRIES, PASSWORD_TRIES_A_DAY,
    PASSWORD_TRIES_FROM_PLACE, TRIES_FROM_PLACE,
};
use crate::{Provider, refused};
use chancery_domain::{EmailAddress, TokenHash, UnixMillis};
use chancery_store::{Attempt, Counted};
use chancery_web::ErrorPage;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// What is bounded.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tried<'a> {
    PasswordOfFrom(&'a EmailAddress, Place),
    PasswordOf(&'a EmailAddress),
    PasswordOfInADay(&'a EmailAddress),
    /// A password or a code.
    From(Place),
    /// By the hash of the proof's token.
    CodeOfProof(TokenHash),
    CodeOfFrom(&'a EmailAddress, Place),
    CodeOfFromInADay(&'a EmailAddress, Place),
    CodeOf(&'a EmailAddress),
    CodeOfInADay(&'a EmailAddress),
    LetterToFrom(&'a EmailAddress, Place),
    LetterTo(&'a EmailAddress),
    LetterFrom(Place),
    /// The letter that tells of too many tries.
    LockoutLetterTo(&'a EmailAddress),
    /// By the account's subject.
    ConsentQuestionOf(&'a str),
    CodeForApplicationOf(&'a str),
}

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

impl<'a> Tried<'a> {
    /// All that one password for this address from this place counts for, the tightest first.
    pub(crate) fn password(email: &'a EmailAddress, place: Place) -> [Self; 4] {
        [
            Self::From(place),
            Self::PasswordOfFrom(email, place),
            Self::PasswordOf(email),
            Self::PasswordOfInADay(email),
        ]
    }

    /// All that one code counts for.
    pub(crate) fn code(proof: TokenHash, email: &'a EmailAddress, place: Place) -> [Self; 6] {
        let [from_here, from_here_today, of, of_today] = Self::codes_of(email, place);
        [Self::From(place), Self::CodeOfProof(proof), from_here, from_here_today, of, of_today]
    }

    /// What says whether codes for this address may be tried from this place at all.
    pub(crate) fn codes_of(email: &'a EmailAddress, place: Place) -> [Self; 4] {
        [
            Self::CodeOfFrom(email, place),
            Self::CodeOfFromInADay(email, place),
            Self::CodeOf(email),
            Self::CodeOfInADay(email),
        ]
    }

    /// All that one letter with a code counts for.
    pub(crate) fn letter(email: &'a EmailAddress, place: Place) -> [Self; 3] {
        [Self::LetterFrom(place), Self::LetterToFrom(email, place), Self::LetterTo(email)]
    }

    fn bound(self) -> Bound {
        match self {
            Self::PasswordOfFrom(..) => PASSWORD_TRIES_FROM_PLACE,
            Self::PasswordOf(_) => PASSWORD_TRIES,
            Self::PasswordOfInADay(_) => PASSWORD_TRIES_A_DAY,
            Self::From(_) => TRIES_FROM_PLACE,
            Self::CodeOfProof(_) => CODE_TRIES_OF_PROOF,
            Self::CodeOfFrom(..) => CODE_TRIES_FROM_PLACE,
            Self::CodeOfFromInADay(..) => CODE_TRIES_FROM_PLACE_A_DAY,
            Self::CodeOf(_) => CODE_TRIES,
            Self::CodeOfInADay(_) => CODE_TRIES_A_DAY,
            Self::LetterToFrom(..) => LETTERS_TO_ADDRESS_FROM_PLACE,
            Self::LetterTo(_) => LETTERS_TO_ADDRESS,
            Self::LetterFrom(_) => LETTERS_FROM_PLACE,
            Self::LockoutLetterTo(_) => LOCKOUT_LETTERS,
            Self::ConsentQuestionOf(_) => CONSENT_QUESTIONS,
            Self::CodeForApplicationOf(_) => CODES_FOR_APPLICATIONS,
        }
    }

    /// Only a hash is kept: what strangers type is nobody's business.
    fn key(self) -> TokenHash {
        let place = |place: Place| place.0.to_string();
        let (what, who, from) = match self {
            Self::PasswordOfFrom(email, from) => ("password of, from", mailbox(email), place(from)),
            Self::PasswordOf(email) => ("password of", mailbox(email), String::new()),
            Self::PasswordOfInADay(email) => ("password in a day of", mailbox(email), String::new()),
            Self::From(from) => ("tried from", place(from), String::new()),
            Self::CodeOfProof(proof) => ("code of proof", hex(&proof.0), String::new()),
            Self::CodeOfFrom(email, from) => ("code of, from", mailbox(email), place(from)),
            Self::CodeOfFromInADay(email, from) => ("code in a day of, from", mailbox(email), place(from)),
            Self::CodeOf(email) => ("code of", mailbox(email), String::new()),
            Self::CodeOfInADay(email) => ("code in a day of", mailbox(email), String::new()),
            Self::LetterToFrom(email, from) => ("letter to, from", mailbox(email), place(from)),
            Self::LetterTo(email) => ("letter to", mailbox(email), String::new()),
            Self::LetterFrom(from) => ("letter from", place(from), String::new()),
            Self::LockoutLetterTo(email) => ("lockout letter to", mailbox(email), String::new()),
            Self::ConsentQuestionOf(subject) => ("consent question of", subject.to_owned(), String::new()),
            Self::CodeForApplicationOf(subject) => {
                ("code for application of", subject.to_owned(), String::new())
            }
        };
        let hash = Sha256::new().chain_update(what).chain_update([0]).chain_update(who);
        TokenHash(hash.chain_update([0]).chain_update(from).finalize().into())
    }

    fn guards(self) -> Guards {
        match self {
            Self::PasswordOfFrom(..) | Self::PasswordOf(_) | Self::PasswordOfInADay(_) => Guards::Password,
            Self::CodeOfProof(_)
            | Self::CodeOfFrom(..)
            | Self::CodeOfFromInADay(..)
            | Self::CodeOf(_)
            | Self::CodeOfInADay(_) => Guards::Code,
            Self::From(_) => Guards::Place,
            Self::LetterToFrom(..) | Self::LetterTo(_) | Self::LetterFrom(_) | Self::LockoutLetterTo(_) => {
                Guards::Letters
            }
            Self::ConsentQuestionOf(_) | Self::CodeForApplicationOf(_) => Guards::Account,
        }
    }

    /// Whether one place is meant, as opposed to all.
    fn is_of_one_place(self) -> bool {
        matches!(
            self,
            Self::PasswordOfFrom(..)
                | Self::CodeOfFrom(..)
                | Self::CodeOfFromInADay(..)
                | Self::LetterToFrom(..)
                | Self::From(_)
                | Self::LetterFrom(_)
        )
    }

    fn email(self) -> Option<&'a EmailAddress> {
        match self {
            Self::PasswordOfFrom(email, _)
            | Self::PasswordOf(email)
            | Self::PasswordOfInADay(email)
            | Self::CodeOfFrom(email, _)
            | Self::CodeOfFromInADay(email, _)
            | Self::CodeOf(email)
            | Self::CodeOfInADay(email)
            | Self::LetterToFrom(email, _)
            | Self::LetterTo(email)
            | Self::LockoutLetterTo(email) => Some(email),
            Self::From(_)
            | Self::CodeOfProof(_)
            | Self::LetterFrom(_)
            | Self::ConsentQuestionOf(_)
            | Self::CodeForApplicationOf(_) => None,
        }
    }

    fn reason(self) -> &'static str {
        match self.guards() {
            Guards::Password => "There were too many tries to sign in with this e-mail address.",
            Guards::Place => "There were too many tries from your network.",
            Guards::Code => "There were too many wrong codes for this e-mail address.",
            Guards::Account => "There were too many sign-ins to applications with this account.",
            Guards::Letters => match self {
                Self::LetterFrom(_) => "Too many messages were asked for from your network.",
                _ => "There were too many messages to this e-mail address.",
            },
        }
    }
}

/// The address that tries are counted for: `maya+anything@` reaches the mailbox of `maya@`.
fn mailbox(email: &EmailAddress) -> String {
    let text = email.as_str();
    let Some((local, domain)) = text.rsplit_once('@') else { return text.to_owned() };
    match local.split_once('+') {
        Some((name, _)) if !name.is_empty() => format!("{name}@{domain}"),
        _ => text.to_owned(),
    }
}

/// By what an address is known in the log: enough to see that two lines are about the same one, and too little to say
/// which it is.
pub(crate) fn in_log(email: &EmailAddress) -> String {
    hex(Sha256::new()
        .chain_update("log\0")
        .chain_update(mailbox(email))
        .finalize()
        .get(..4)
        .unwrap_or_default())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A try that may be made.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    /// After this one.
    pub(crate) left: u32,
    /// Of what this was the last.
    last_of: Vec<Tried<'a>>,
}

impl Turn<'_> {
    /// To be called when the try was wrong: where it was the last one, the log says so and the owner of the mailbox is told.
    pub(crate) fn was_wrong(&self, provider: &Arc<Provider>, place: Place) {
        for tried in &self.last_of {
            note(*tried, Some(place));
        }
        let locked =
            self.last_of.iter().filter(|tried| matches!(tried.guards(), Guards::Password | Guards::Code));
        if let Some(email) = locked.filter_map(|tried| tried.email()).next() {
            letters::tell_of_lockout(provider, email.clone());
        }
    }
}

/// One line for each bound that is reached, when it is reached.
fn note(tried: Tried<'_>, place: Option<Place>) {
    let of = tried.guards().as_str();
    metrics::counter!("chancery_auth_bounds_reached_total", "of" => of).increment(1);
    let address = tried.email().map(in_log).unwrap_or_default();
    let peer = place.map(|place| place.0.to_string()).unwrap_or_default();
    let from_one_place = tried.is_of_one_place();
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
pub(crate) async fn take_turn<'a>(provider: &Provider, all: &[Tried<'a>]) -> Result<Turn<'a>, ErrorPage> {
    check(provider, all).await?;
    let now = provider.clock.now();
    let mut turn = Turn { left: u32::MAX, last_of: Vec::new() };
    for (number, tried) in all.iter().enumerate() {
        let bound = tried.bound();
        let counted = provider.store.count_attempt(tried.key(), bound.attempts, now, after(now, bound)).await;
        match counted.map_err(|error| refused(&error))? {
            Attempt::Within(counted) => {
                let left = bound.attempts.saturating_sub(counted.attempts);
                turn.left = turn.left.min(left);
                if left == 0 {
                    turn.last_of.push(*tried);
                }
            }
            // Others were quicker.
            Attempt::Over(counted) => {
                for counted_before in all.iter().take(number) {
                    take_back(provider, *counted_before).await?;
                }
                return Err(too_many(*tried, counted, now));
            }
        }
    }
    Ok(turn)
}

/// `take_turn` for what is not right or wrong: the last one is noted at once.
pub(crate) async fn count(
    provider: &Provider,
    place: Option<Place>,
    all: &[Tried<'_>],
) -> Result<(), ErrorPage> {
    let turn = take_turn(provider, all).await?;
    for tried in turn.last_of {
        note(tried, place);
    }
    Ok(())
}

/// Refuses when no try is left of one of these; counts nothing.
pub(crate) async fn check(provider: &Provider, all: &[Tried<'_>]) -> Result<(), ErrorPage> {
    let now = provider.clock.now();
    let mut longest: Option<(Tried<'_>, Counted)> = None;
    for tried in all {
        let bound = tried.bound();
        let counted = provider.store.attempts(tried.key(), now, after(now, bound)).await;
        let counted = counted.map_err(|error| refused(&error))?;
        let over = counted.filter(|counted| counted.attempts >= bound.attempts);
        if let Some(over) = over
            && longest.is_none_or(|(_, longest)| longest.forgotten_at < over.forgotten_at)
        {
            longest = Some((*tried, over));
        }
    }
    match longest {
        Some((tried, counted)) => Err(too_many(tried, counted, now)),
        None => Ok(()),
    }
}

pub(crate) async fn take_back(provider: &Provider, tried: Tried<'_>) -> Result<(), ErrorPage> {
    provider.store.take_back_attempt(tried.key()).await.map_err(|error| refused(&error))
}

pub(crate) async fn forget(provider: &Provider, tried: Tried<'_>) -> Result<(), ErrorPage> {
    provider.store.forget_attempts(tried.key()).await.map_err(|error| refused(&error))
}

fn after(now: UnixMillis, bound: Bound) -> UnixMillis {
    UnixMillis(now.0.saturating_add(i64::try_from(bound.within.as_millis()).unwrap_or(i64::MAX)))
}

/// Waiting as long as it says is enough: trying meanwhile does not lengthen it.
fn too_many(tried: Tried<'_>, counted: Counted, now: UnixMillis) -> ErrorPage {
    let wait_ms = counted.forgotten_at.0.saturating_sub(now.0).max(1);
    wait(tried.reason(), wait_ms)
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
    fn all_names_of_one_mailbox_are_counted_together_and_no_others() {
        let key = |text: &str| Tried::LetterTo(&text.parse().unwrap()).key().0;
        assert_eq!(key("maya@example.com"), key("maya+1@example.com"));
        assert_eq!(key("maya+1@example.com"), key("maya+2+3@example.com"));
        assert_ne!(key("maya@example.com"), key("omar@example.com"));
        assert_ne!(key("maya@example.com"), key("maya@example.org"));
        assert_ne!(key("+a@example.com"), key("+b@example.com"), "no name before the plus");
    }

    #[test]
    fn the_log_knows_an_address_by_less_than_would_tell_it() {
        let email: EmailAddress = "maya@example.com".parse().unwrap();
        assert_eq!(in_log(&email).len(), 8);
        assert_ne!(in_log(&email), in_log(&"omar@example.com".parse().unwrap()));
    }
}
