//! What people read about an account's day beside its bill: how often its requests were refused, by the code that the caller got,
//! and its busiest sixty seconds, as the limits saw them.
//!
//! 1. **Count.** A request that is refused, and one whose work begins, changes a number in this process's memory. Nothing of it
//!    waits for a database. A key that is unknown or revoked is nobody's, and leaves no trace.
//! 2. **Note.** Every few seconds, and once more when the process ends, what has changed goes to the store: refusals are added
//!    to those of their day, and peaks raise those of theirs, so several nodes come to one sum.
//! 3. **Keep.** It goes in parts, so that nobody waits long for them. What the store did not take is kept for the next time. Where its answer was lost, refusals may be added twice.
//!
//! A process that dies loses the refusals of a few seconds. Nothing is billed by these numbers.

use crate::limits::{MAX_COUNTED_PEAKS, MAX_COUNTED_REFUSALS};
use crate::{Caller, MeterError};
use chancery_domain::{AccountId, Amount, Clock, Day, KeyId, UnixMillis};
use chancery_store::{ACTIVITY_LINES_AT_ONCE, DbError, MeteringStore, PeakDay, RefusedDay};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Refusals that are counted, by the code that the caller gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RefusedFor {
    RateLimited,
    NoBillingAccount,
    SpendingCapReached,
}

impl RefusedFor {
    fn of(error: &MeterError) -> Option<Self> {
        match error {
            MeterError::RateLimited { .. } => Some(Self::RateLimited),
            MeterError::NoBillingAccount => Some(Self::NoBillingAccount),
            MeterError::SpendingCapReached(_) => Some(Self::SpendingCapReached),
            _ => None,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::RateLimited => "rate_limited",
            Self::NoBillingAccount => "no_billing_account",
            Self::SpendingCapReached => "spending_cap_reached",
        }
    }
}

pub(crate) struct Activity {
    clock: Arc<dyn Clock>,
    counts: Mutex<Counts>,
    /// One at a time, so that the last one at the end finds what the one before it could not note.
    noting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Counts {
    refusals: HashMap<RefusalLine, Refusals>,
    peaks: HashMap<(AccountId, Day), Peak>,
    /// Whether some of the peaks are noted.
    may_have_noted: bool,
    /// Refusals and admissions for which there was no room.
    left_out: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct RefusalLine {
    account: Option<AccountId>,
    key: KeyId,
    day: Day,
    why: RefusedFor,
}

#[derive(Clone, Copy)]
struct Refusals {
    count: u64,
    last_at: UnixMillis,
}

/// The day's highest so far, as far as this process remembers.
struct Peak {
    highest: PeakDay,
    /// Noted peaks stay for a while, so that only what rises is noted again.
    is_noted: bool,
}

impl Activity {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, counts: Mutex::default(), noting: tokio::sync::Mutex::default() }
    }

    /// Counts the refusal if it is one of those that are.
    pub(crate) fn refused(&self, account: Option<AccountId>, key: KeyId, error: &MeterError) {
        let Some(why) = RefusedFor::of(error) else { return };
        let at = self.clock.now();
        let line = RefusalLine { account, key, day: Day::of(at), why };
        self.counts().add(line, Refusals { count: 1, last_at: at });
    }

    /// `used` is where the account stands with this request.
    pub(crate) fn admitted(&self, caller: Caller, used: Amount) {
        let at = self.clock.now();
        let Amount { requests, tokens } = used;
        let (account, day) = (caller.account, Day::of(at));
        self.counts().raise(PeakDay { account, day, requests, requests_at: at, tokens, tokens_at: at });
    }

    /// What is to be noted. Whoever takes it notes it or gives it back.
    fn take(&self) -> Taken {
        let today = Day::of(self.clock.now());
        let mut counts = self.counts();
        let left_out = std::mem::take(&mut counts.left_out);
        let refusals = std::mem::take(&mut counts.refusals).into_iter().collect();
        counts.peaks.retain(|(_, day), peak| !peak.is_noted || *day >= today);
        let unnoted = counts.peaks.values_mut().filter(|peak| !peak.is_noted).map(|peak| {
            peak.is_noted = true;
            peak.highest
        });
        let peaks = unnoted.collect();
        counts.may_have_noted = true;
        Taken { refusals, peaks, left_out }
    }

    fn give_back(&self, taken: Taken) {
        let mut counts = self.counts();
        for (line, refusals) in taken.refusals {
            counts.add(line, refusals);
        }
        for peak in taken.peaks {
            // It is remembered as noted, which it is not.
            match counts.peaks.get_mut(&(peak.account, peak.day)) {
                Some(remembered) => remembered.is_noted = false,
                None => counts.raise(peak),
            }
        }
    }

    /// Gives the store what was counted since the last time.
    pub(crate) async fn note(&self, store: &MeteringStore) -> Result<(), DbError> {
        let _turn = self.noting.lock().await;
        let mut taken = self.take();
        if taken.left_out > 0 {
            let left_out = taken.left_out;
            tracing::warn!(
                left_out,
                "so many keys and accounts were active at once that some refusals or peaks were not counted"
            );
            metrics::counter!("chancery_activity_left_out_total").increment(left_out);
        }
        let outcome = taken.note_in_parts(store).await;
        if outcome.is_err() {
            self.give_back(taken);
        }
        outcome
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn add(&mut self, line: RefusalLine, more: Refusals) {
        let is_full = self.refusals.len() >= MAX_COUNTED_REFUSALS;
        match self.refusals.entry(line) {
            Entry::Occupied(known) => {
                let known = known.into_mut();
                known.count = known.count.saturating_add(more.count);
                known.last_at = known.last_at.max(more.last_at);
            }
            Entry::Vacant(_) if is_full => self.left_out = self.left_out.saturating_add(more.count),
            Entry::Vacant(free) => {
                free.insert(more);
            }
        }
    }

    fn raise(&mut self, more: PeakDay) {
        if self.peaks.len() >= MAX_COUNTED_PEAKS && !self.peaks.contains_key(&(more.account, more.day)) {
            // What is noted is remembered only to save work. Looking through all of it is done once between two notes.
            if std::mem::take(&mut self.may_have_noted) {
                self.peaks.retain(|_, peak| !peak.is_noted);
            }
            if self.peaks.len() >= MAX_COUNTED_PEAKS {
                self.left_out = self.left_out.saturating_add(1);
                return;
            }
        }
        match self.peaks.entry((more.account, more.day)) {
            Entry::Vacant(free) => {
                free.insert(Peak { highest: more, is_noted: false });
            }
            Entry::Occupied(known) => {
                let Peak { highest, is_noted } = known.into_mut();
                if more.requests > highest.requests {
                    (highest.requests, highest.requests_at) = (more.requests, more.requests_at);
                    *is_noted = false;
                }
                if more.tokens > highest.tokens {
                    (highest.tokens, highest.tokens_at) = (more.tokens, more.tokens_at);
                    *is_noted = false;
                }
            }
        }
    }
}

struct Taken {
    refusals: Vec<(RefusalLine, Refusals)>,
    peaks: Vec<PeakDay>,
    left_out: u64,
}

impl Taken {
    /// Leaves what was not noted.
    async fn note_in_parts(&mut self, store: &MeteringStore) -> Result<(), DbError> {
        while let Some(part) = self.refusals.rchunks(ACTIVITY_LINES_AT_ONCE).next() {
            let part: Vec<RefusedDay> = part.iter().map(refused_day).collect();
            store.activity.note_activity(&part, &[]).await?;
            self.refusals.truncate(self.refusals.len() - part.len());
        }
        while let Some(part) = self.peaks.rchunks(ACTIVITY_LINES_AT_ONCE).next() {
            let left = self.peaks.len() - part.len();
            store.activity.note_activity(&[], part).await?;
            self.peaks.truncate(left);
        }
        Ok(())
    }
}

fn refused_day((line, refusals): &(RefusalLine, Refusals)) -> RefusedDay {
    RefusedDay {
        account: line.account,
        day: line.day,
        key: line.key,
        code: line.why.as_str().to_owned(),
        refusals: refusals.count,
        last_at: refusals.last_at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{ManualClock, RateLimits};

    fn activity() -> Activity {
        Activity::new(Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000))))
    }

    fn caller(account: i64) -> Caller {
        let limits = RateLimits { requests_per_min: 1, tokens_per_min: 1 };
        Caller { account: AccountId(account), key: KeyId(account), limits, is_capped: false }
    }

    #[test]
    fn more_than_there_is_room_for_is_left_out_and_told() {
        let activity = activity();
        let more = 3;
        for number in 0..(MAX_COUNTED_REFUSALS + more) as i64 {
            activity.refused(None, KeyId(number), &MeterError::NoBillingAccount);
        }
        activity.refused(None, KeyId(0), &MeterError::NoBillingAccount);
        let taken = activity.take();
        assert_eq!((taken.refusals.len(), taken.left_out), (MAX_COUNTED_REFUSALS, more as u64));
        assert_eq!(taken.refusals.iter().map(|(_, refusals)| refusals.count).max(), Some(2));
        assert_eq!(activity.take().left_out, 0);

        for number in 0..(MAX_COUNTED_PEAKS + more) as i64 {
            activity.admitted(caller(number), Amount { requests: 1, tokens: 1 });
        }
        let taken = activity.take();
        assert_eq!((taken.peaks.len(), taken.left_out), (MAX_COUNTED_PEAKS, more as u64));
        activity.admitted(caller(-1), Amount { requests: 1, tokens: 1 });
        let taken = activity.take();
        assert_eq!((taken.peaks.len(), taken.left_out), (1, 0), "what is noted makes room");
    }

    #[test]
    fn only_what_rises_is_noted_again_and_what_was_not_noted_is() {
        let activity = activity();
        let note = |requests, tokens| {
            activity.admitted(caller(1), Amount { requests, tokens });
            activity.take().peaks.iter().map(|peak| (peak.requests, peak.tokens)).collect::<Vec<_>>()
        };
        assert_eq!(note(2, 20), [(2, 20)]);
        assert_eq!(note(1, 20), []);
        assert_eq!(note(3, 10), [(3, 20)]);
        assert_eq!(note(1, 1), []);
        activity.admitted(caller(1), Amount { requests: 4, tokens: 1 });
        let taken = activity.take();
        activity.admitted(caller(1), Amount { requests: 1, tokens: 30 });
        activity.give_back(taken);
        assert_eq!(note(1, 1), [(4, 30)]);
        assert_eq!(note(1, 1), []);
    }
}
