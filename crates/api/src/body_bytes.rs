//! Bounds the request bodies in memory: their bytes in total and per account, and how many an account uploads at once. Bytes
//! count as they arrive, so an announced length reserves nothing, and until the request has begun or failed. A body that never
//! arrives has no bytes but occupies a connection, so uploads are bounded too. Pure except for the lock.

use chancery_domain::AccountId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bytes of one account: this, or this many of the largest bodies if that is more.
const MAX_ACCOUNT_BYTES: usize = 64 * 1024 * 1024;
const MAX_ACCOUNT_BODIES: usize = 8;

/// The bytes of all accounts together, in shares of one account.
const TOTAL_SHARES: usize = 8;

/// Uploads of one account at once. An honest upload takes milliseconds.
const MAX_ACCOUNT_UPLOADS: usize = 512;

/// An account may also use no more bytes than remain free, so existing accounts never exhaust them.
pub(crate) struct BodyBytes {
    max_account_bytes: usize,
    max_total_bytes: usize,
    in_flight: Mutex<InFlight>,
}

#[derive(Default)]
struct InFlight {
    total_bytes: usize,
    /// Only accounts with a body in flight.
    by_account: HashMap<AccountId, AccountBodies>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AccountBodies {
    bytes: usize,
    uploads: usize,
}

/// Which bound was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyBytesExceeded {
    Account { max_bytes: usize },
    Total,
    Uploads { max_uploads: usize },
}

impl BodyBytes {
    pub(crate) fn new(max_body_bytes: usize) -> Arc<Self> {
        let max_account_bytes = MAX_ACCOUNT_BYTES.max(max_body_bytes.saturating_mul(MAX_ACCOUNT_BODIES));
        let max_total_bytes = max_account_bytes.saturating_mul(TOTAL_SHARES);
        Arc::new(Self { max_account_bytes, max_total_bytes, in_flight: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an upload, which has no bytes yet.
    pub(crate) fn start_upload(
        self: &Arc<Self>,
        account: AccountId,
    ) -> Result<ReservedBytes, BodyBytesExceeded> {
        let mut in_flight = self.lock();
        let bodies = in_flight.by_account.entry(account).or_default();
        if bodies.uploads >= MAX_ACCOUNT_UPLOADS {
            return Err(BodyBytesExceeded::Uploads { max_uploads: MAX_ACCOUNT_UPLOADS });
        }
        bodies.uploads += 1;
        drop(in_flight);
        Ok(ReservedBytes { bodies: Arc::clone(self), account, bytes: 0, is_uploading: true })
    }
}

/// The bytes of one body. They are free again when this is dropped.
pub(crate) struct ReservedBytes {
    bodies: Arc<BodyBytes>,
    account: AccountId,
    bytes: usize,
    is_uploading: bool,
}

impl ReservedBytes {
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), BodyBytesExceeded> {
        let BodyBytes { max_account_bytes, max_total_bytes, .. } = *self.bodies;
        let mut in_flight = self.bodies.lock();
        let free_bytes = max_total_bytes.saturating_sub(in_flight.total_bytes);
        let bodies = in_flight.by_account.entry(self.account).or_default();
        let account_bytes = bodies.bytes.saturating_add(bytes);
        if account_bytes > max_account_bytes {
            return Err(BodyBytesExceeded::Account { max_bytes: max_account_bytes });
        }
        if account_bytes > free_bytes {
            return Err(BodyBytesExceeded::Total);
        }
        bodies.bytes = account_bytes;
        in_flight.total_bytes += bytes;
        self.bytes += bytes;
        Ok(())
    }

    /// The body has arrived.
    pub(crate) fn end_upload(&mut self) {
        self.release(0);
    }

    fn release(&mut self, bytes: usize) {
        let uploads = usize::from(std::mem::take(&mut self.is_uploading));
        let mut in_flight = self.bodies.lock();
        in_flight.total_bytes = in_flight.total_bytes.saturating_sub(bytes);
        if let Some(bodies) = in_flight.by_account.get_mut(&self.account) {
            bodies.bytes = bodies.bytes.saturating_sub(bytes);
            bodies.uploads = bodies.uploads.saturating_sub(uploads);
            if *bodies == AccountBodies::default() {
                in_flight.by_account.remove(&self.account);
            }
        }
    }
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn upload(bodies: &Arc<BodyBytes>, account: i64) -> ReservedBytes {
        bodies.start_upload(AccountId(account)).unwrap()
    }

    /// As many bodies of one MiB as the account may have.
    fn fill(bodies: &Arc<BodyBytes>, account: i64) -> Vec<ReservedBytes> {
        std::iter::from_fn(|| {
            let mut reserved = upload(bodies, account);
            reserved.add(MIB).is_ok().then_some(reserved)
        })
        .collect()
    }

    #[test]
    fn account_has_at_most_its_bytes_and_leaves_the_rest_to_others() {
        let bodies = BodyBytes::new(MIB);
        let first = fill(&bodies, 1);
        assert_eq!(first.len(), 64);
        let exceeded = upload(&bodies, 1).add(1);
        assert_eq!(exceeded, Err(BodyBytesExceeded::Account { max_bytes: 64 * MIB }));
        assert_eq!(fill(&bodies, 2).len(), 64);
        drop(first);
        assert_eq!(fill(&bodies, 1).len(), 64);
    }

    #[test]
    fn total_is_bounded_and_a_new_account_still_finds_room() {
        let bodies = BodyBytes::new(MIB);
        let mut reserved: Vec<Vec<ReservedBytes>> = (0..7).map(|account| fill(&bodies, account)).collect();
        reserved.push(fill(&bodies, 7));
        assert_eq!(reserved.iter().map(Vec::len).collect::<Vec<_>>(), [64, 64, 64, 64, 64, 64, 64, 32]);
        assert_eq!(upload(&bodies, 7).add(MIB), Err(BodyBytesExceeded::Total));
        assert!(upload(&bodies, 8).add(MIB).is_ok());
        assert!(bodies.lock().total_bytes <= 8 * 64 * MIB);
    }

    #[test]
    fn larger_bodies_raise_the_bound_of_an_account() {
        assert_eq!(fill(&BodyBytes::new(16 * MIB), 1).len(), 128);
    }

    #[test]
    fn bodies_that_never_arrive_are_bounded_per_account() {
        let bodies = BodyBytes::new(MIB);
        let mut withheld: Vec<ReservedBytes> = (0..MAX_ACCOUNT_UPLOADS).map(|_| upload(&bodies, 1)).collect();
        let exceeded = bodies.start_upload(AccountId(1)).err();
        assert_eq!(exceeded, Some(BodyBytesExceeded::Uploads { max_uploads: MAX_ACCOUNT_UPLOADS }));
        drop(upload(&bodies, 2));
        withheld[0].end_upload();
        drop(upload(&bodies, 1));
    }

    #[test]
    fn released_bodies_leave_no_account_entries() {
        let bodies = BodyBytes::new(MIB);
        for account in 0..1_000 {
            let mut reserved = upload(&bodies, account);
            reserved.add(10).unwrap();
            reserved.add(20).unwrap();
            reserved.end_upload();
            let expected = AccountBodies { bytes: 30, uploads: 0 };
            assert_eq!(bodies.lock().by_account[&AccountId(account)], expected);
        }
        // One without bytes leaves nothing either.
        drop(upload(&bodies, 1));
        let in_flight = bodies.lock();
        assert_eq!((in_flight.total_bytes, in_flight.by_account.len()), (0, 0));
    }
}
