//! Conformance: caps, reservations and the ledger do what a model in memory does, on several nodes that come and go, with
//! clocks that jump.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::models::{Draw, Model, compare};
use crate::samples::{NOON, account, all_ledger_rows, key, name, prices, request, row, with_tokens};
use chancery_domain::{AccountId, Key, KeyId, LimitScope, Month, Nanos, UnixMillis, UsageRow};
use chancery_store::{
    CapChange, CapStatus, CapStatuses, KeyLimitsChange, LEASE_DURATION, LedgerError, LimitChange,
    LimitsChange, ReserveOutcome, Settlement, SpendingReservation, Store, UsageBy, UsageQuery,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;

const NODES: usize = 2;
const ACCOUNTS: usize = 2;
const KEYS: usize = 4;
const LEASE_MS: i64 = LEASE_DURATION.as_millis() as i64;
const DAY_MS: i64 = 86_400_000;

#[derive(Clone, Debug)]
enum Step {
    Wait {
        ms: i64,
    },
    SetAccountCap {
        account: usize,
        cap: Option<i64>,
    },
    SetKeyCap {
        key: usize,
        cap: Option<i64>,
    },
    Reserve {
        node: usize,
        key: usize,
        amount: i64,
    },
    /// Reservations by (node, key, amount), all at once.
    Race(Vec<(usize, usize, i64)>),
    /// Settles a request for a share of what it reserved, in percent; one that reserved nothing costs `percent`.
    Settle {
        node: usize,
        number: usize,
        percent: i64,
    },
    SettleOtherValues {
        node: usize,
        number: usize,
    },
    Release {
        node: usize,
        number: usize,
    },
    Renew {
        node: usize,
    },
    Reap {
        node: usize,
    },
    ReadCaps {
        node: usize,
        key: usize,
    },
    /// A new process takes its place, and does not know what this one has reserved.
    Die {
        node: usize,
    },
    ShutDown {
        node: usize,
    },
}

struct Node {
    /// Unique, also among those that died.
    writer: usize,
    store: Arc<Store>,
    /// As the process knows it. The row in the database may be gone, deleted by a node whose clock was a day ahead.
    leased_until: Option<i64>,
}

/// A request that was admitted.
#[derive(Clone)]
struct Request {
    key: usize,
    amount: i64,
    at: UnixMillis,
    is_reserved: bool,
}

struct Reservation {
    key: usize,
    month: Month,
    amount: i64,
    writer: usize,
}

struct Ledger {
    database: Arc<AnyDatabase>,
    nodes: Vec<Node>,
    now: UnixMillis,
    accounts: Vec<AccountId>,
    keys: Vec<Key>,
    account_caps: [Option<i64>; ACCOUNTS],
    key_caps: [Option<i64>; KEYS],
    requests: Vec<Request>,
    writers: usize,
    leases: BTreeMap<usize, i64>,
    reservations: BTreeMap<usize, Reservation>,
    rows: BTreeMap<usize, UsageRow>,
}

impl Ledger {
    async fn open(database: Arc<AnyDatabase>) -> Self {
        let store = database.open().await;
        let (mut accounts, mut keys) = (Vec::new(), Vec::new());
        for number in 0..ACCOUNTS {
            accounts.push(account(&store, &account_name(number)).await.id);
        }
        for number in 0..KEYS {
            keys.push(key(&store, Some(accounts[number % ACCOUNTS])).await);
        }
        let mut nodes = vec![Node { writer: 0, store, leased_until: None }];
        for writer in 1..NODES {
            nodes.push(Node { writer, store: database.open().await, leased_until: None });
        }
        Self {
            database,
            nodes,
            now: NOON,
            accounts,
            keys,
            account_caps: [None; ACCOUNTS],
            key_caps: [None; KEYS],
            requests: Vec::new(),
            writers: NODES,
            leases: BTreeMap::new(),
            reservations: BTreeMap::new(),
            rows: BTreeMap::new(),
        }
    }

    fn payer(&self, key: usize) -> (AccountId, KeyId) {
        (self.accounts[key % ACCOUNTS], self.keys[key].id)
    }

    fn renew(&mut self, node: usize) {
        let Node { writer, leased_until, .. } = &mut self.nodes[node];
        let left = leased_until.map(|until| until - self.now.0);
        if !left.is_some_and(|left| (LEASE_MS * 2 / 3..=LEASE_MS).contains(&left)) {
            *leased_until = Some(self.now.0 + LEASE_MS);
            self.leases.insert(*writer, self.now.0 + LEASE_MS);
        }
    }

    /// Removes reservations of dead nodes, of all accounts or of one. Returns how many.
    fn reap(&mut self, account: Option<usize>) -> usize {
        let (before, now, leases) = (self.reservations.len(), self.now.0, &self.leases);
        self.reservations.retain(|_, held| {
            account.is_some_and(|account| held.key % ACCOUNTS != account)
                || leases.get(&held.writer).is_some_and(|until| *until > now)
        });
        before - self.reservations.len()
    }

    fn statuses(&self, key: usize, month: Month) -> CapStatuses {
        let status = |scope, cap: Option<i64>, is_counted: &dyn Fn(usize) -> bool| {
            let spent = self.rows.iter().filter(|(number, row)| {
                Month::containing(row.at) == month && is_counted(self.requests[**number].key)
            });
            let held = self.reservations.values().filter(|held| held.month == month && is_counted(held.key));
            cap.map(|cap| CapStatus {
                scope,
                cap: Nanos(cap),
                spent: Nanos(spent.map(|(_, row)| row.cost.0).sum()),
                reserved: Nanos(held.map(|held| held.amount).sum()),
            })
        };
        let account = key % ACCOUNTS;
        CapStatuses {
            account: status(LimitScope::Account, self.account_caps[account], &|of| of % ACCOUNTS == account),
            key: status(LimitScope::Key, self.key_caps[key], &|of| of == key),
        }
    }

    /// The expected outcome; what is admitted is written down.
    fn reserve(&mut self, node: usize, key: usize, amount: i64) -> ReserveOutcome {
        self.renew(node);
        self.reap(Some(key % ACCOUNTS));
        let outcome = self.outcome(key, amount);
        if !matches!(outcome, ReserveOutcome::Rejected(_)) {
            self.admit(node, key, amount, outcome == ReserveOutcome::Reserved);
        }
        outcome
    }

    fn outcome(&self, key: usize, amount: i64) -> ReserveOutcome {
        let CapStatuses { account, key } = self.statuses(key, Month::containing(self.now));
        let tightest = account.into_iter().chain(key).min_by_key(|status| status.remaining());
        match tightest {
            None => ReserveOutcome::NoCap,
            Some(status) if status.remaining().0 < amount => ReserveOutcome::Rejected(status),
            Some(_) => ReserveOutcome::Reserved,
        }
    }

    fn admit(&mut self, node: usize, key: usize, amount: i64, is_reserved: bool) {
        let (number, month) = (self.requests.len(), Month::containing(self.now));
        let writer = self.nodes[node].writer;
        self.requests.push(Request { key, amount, at: self.now, is_reserved });
        if is_reserved {
            self.reservations.insert(number, Reservation { key, month, amount, writer });
        }
    }

    fn reservation(&self, number: usize, key: usize, amount: i64) -> SpendingReservation {
        let ((account, key), at, now) = (self.payer(key), self.now, self.now);
        let request_id = request(number);
        SpendingReservation { request_id, account, key, amount: Nanos(amount), at, now }
    }

    /// What is held only grows meanwhile. So all that was admitted must fit together, and what was rejected must not fit in the end.
    async fn race(&mut self, requests: &[(usize, usize, i64)]) {
        // A node without a lease would lose to whoever finds that first.
        for node in 0..NODES {
            self.renew(node);
            self.nodes[node].store.leases.renew_lease(self.now).await.unwrap();
        }
        let mut racing = JoinSet::new();
        // Numbers are given out later, in the order of admission.
        for (place, (node, key, amount)) in requests.iter().copied().enumerate() {
            self.reap(Some(key % ACCOUNTS));
            let reservation = self.reservation(self.requests.len() + place, key, amount);
            let store = Arc::clone(&self.nodes[node].store);
            racing.spawn(async move { (place, store.spending.reserve_spending(reservation).await.unwrap()) });
        }
        let outcomes: BTreeMap<usize, ReserveOutcome> = racing.join_all().await.into_iter().collect();
        for (place, (node, key, amount)) in requests.iter().copied().enumerate() {
            let is_reserved = outcomes[&place] == ReserveOutcome::Reserved;
            let expected = self.outcome(key, amount);
            if is_reserved {
                assert_eq!(expected, ReserveOutcome::Reserved, "{place} exceeds a cap");
            }
            // A rejected one keeps its number, and can be settled as one that reserved nothing.
            self.admit(node, key, amount, is_reserved);
        }
        for (place, (_, key, amount)) in requests.iter().copied().enumerate() {
            match &outcomes[&place] {
                ReserveOutcome::Reserved => {}
                ReserveOutcome::NoCap => assert_eq!(self.outcome(key, amount), ReserveOutcome::NoCap),
                ReserveOutcome::Rejected(_) => assert!(
                    matches!(self.outcome(key, amount), ReserveOutcome::Rejected(_)),
                    "{place} would have had room"
                ),
            }
        }
    }

    fn row(&self, number: usize, cost: i64) -> UsageRow {
        let Request { key, at, .. } = self.requests[number];
        let sample = UsageRow { at, prices: prices(1, 2), ..row(number, self.payer(key)) };
        with_tokens(sample, u32::try_from(cost).unwrap(), 0)
    }

    async fn settle(&mut self, node: usize, number: usize, cost: i64) {
        let (row, is_reserved) = (self.row(number, cost), self.requests[number].is_reserved);
        let settlement = Settlement { row: row.clone(), is_reserved, stored_reply: None };
        let outcome = self.nodes[node].store.ledger.settle(settlement).await;
        match self.rows.get(&number) {
            Some(stored) if *stored == row => outcome.unwrap(),
            Some(_) => {
                assert!(matches!(outcome, Err(LedgerError::RequestAlreadyBilled(_))), "{outcome:?}");
            }
            None if is_reserved && self.reservations.remove(&number).is_none() => {
                assert!(matches!(outcome, Err(LedgerError::ReservationLost(_))), "{outcome:?}");
            }
            None => {
                outcome.unwrap();
                self.rows.insert(number, row);
            }
        }
    }

    async fn replace(&mut self, node: usize) {
        let store = self.database.open().await;
        self.nodes[node] = Node { writer: self.writers, store, leased_until: None };
        self.writers += 1;
    }
}

fn account_name(number: usize) -> String {
    format!("Account {number}")
}

impl Model for Ledger {
    type Step = Step;

    fn draw(&self, draw: &Draw) -> Step {
        let (node, key, amount) = (draw.index(NODES), draw.index(KEYS), draw.number(0..60));
        let cap = (!draw.is_one_in(4)).then(|| draw.number(0..200));
        let number = draw.index(self.requests.len().max(1));
        match draw.index(32) {
            0..5 => Step::Wait {
                ms: match draw.index(12) {
                    0 => draw.number(-40..40) * DAY_MS,
                    1..4 => draw.number(-2 * LEASE_MS..2 * LEASE_MS),
                    _ => draw.number(0..LEASE_MS / 2),
                },
            },
            5 => Step::SetAccountCap { account: draw.index(ACCOUNTS), cap },
            6 => Step::SetKeyCap { key, cap },
            7..9 => Step::Renew { node },
            9 => Step::Reap { node },
            10..12 => Step::ReadCaps { node, key },
            12 => Step::Die { node },
            13 => Step::ShutDown { node },
            14..16 => {
                let racer = |_| (draw.index(NODES), draw.index(KEYS), draw.number(0..60));
                Step::Race((0..draw.number(2..9)).map(racer).collect())
            }
            16..20 if !self.requests.is_empty() => {
                Step::Settle { node, number, percent: draw.one_of(&[0, 50, 100]) }
            }
            20 if !self.requests.is_empty() => Step::SettleOtherValues { node, number },
            21..23 if !self.requests.is_empty() => Step::Release { node, number },
            _ => Step::Reserve { node, key, amount },
        }
    }

    async fn make(&mut self, step: &Step) {
        match *step {
            Step::Wait { ms } => self.now.0 += ms,
            Step::SetAccountCap { account, cap } => {
                let spend_per_month = cap.map_or(CapChange::Remove, |cap| CapChange::Set(Nanos(cap)));
                let change = LimitsChange { spend_per_month, ..LimitsChange::default() };
                let name = name(&account_name(account));
                self.nodes[0].store.set_limits(&name, change).await.unwrap();
                self.account_caps[account] = cap;
            }
            Step::SetKeyCap { key, cap } => {
                let spend_per_month = cap.map_or(LimitChange::Remove, |cap| LimitChange::Set(Nanos(cap)));
                let change = KeyLimitsChange { spend_per_month, ..KeyLimitsChange::default() };
                self.nodes[0].store.set_key_limits(&self.keys[key].prefix, change).await.unwrap();
                self.key_caps[key] = cap;
            }
            Step::Reserve { node, key, amount } => {
                let reservation = self.reservation(self.requests.len(), key, amount);
                let outcome = self.nodes[node].store.spending.reserve_spending(reservation).await.unwrap();
                assert_eq!(outcome, self.reserve(node, key, amount));
            }
            Step::Race(ref requests) => self.race(requests).await,
            Step::Settle { node, number, percent } => {
                let Request { amount, is_reserved, .. } = self.requests[number];
                let cost = if is_reserved { amount * percent / 100 } else { percent };
                self.settle(node, number, cost).await;
            }
            Step::SettleOtherValues { node, number } => {
                if let Some(stored) = self.rows.get(&number) {
                    self.settle(node, number, stored.cost.0 + 1).await;
                }
            }
            Step::Release { node, number } => {
                let request = request(number);
                self.nodes[node].store.spending.release_spending(&request).await.unwrap();
                self.reservations.remove(&number);
            }
            Step::Renew { node } => {
                self.renew(node);
                self.nodes[node].store.leases.renew_lease(self.now).await.unwrap();
            }
            Step::Reap { node } => {
                if self.nodes[node].leased_until.is_some() {
                    self.renew(node);
                }
                let leases = &self.nodes[node].store.leases;
                let reaped = leases.reap_orphaned_reservations(self.now, 1_000).await.unwrap();
                assert_eq!(reaped, self.reap(None) as u64);
                self.leases.retain(|_, until| *until >= self.now.0 - DAY_MS);
            }
            Step::ReadCaps { node, key } => {
                let ((account, id), month) = (self.payer(key), Month::containing(self.now));
                let read = self.nodes[node].store.spending.cap_statuses(account, id, month).await.unwrap();
                assert_eq!(read, self.statuses(key, month));
            }
            Step::Die { node } => self.replace(node).await,
            Step::ShutDown { node } => {
                self.nodes[node].store.close().await;
                self.leases.remove(&self.nodes[node].writer);
                self.replace(node).await;
            }
        }
    }

    async fn finish(self) {
        let store = &self.nodes[0].store;
        let mut rows = all_ledger_rows(store).await;
        rows.sort_by_key(|row| row.request_id.as_str().to_owned());
        assert_eq!(rows, self.rows.values().cloned().collect::<Vec<_>>());
        for account in &self.accounts {
            let query = UsageQuery { account: Some(*account), from: None, to: None, by: UsageBy::Day };
            let billed: i64 = store.ledger.usage(query).await.unwrap().iter().map(|sum| sum.cost.0).sum();
            let of_account = self.rows.values().filter(|row| row.account == *account);
            assert_eq!(billed, of_account.map(|row| row.cost.0).sum::<i64>());
        }
        for node in self.nodes {
            node.store.close().await;
        }
    }
}

pub async fn caps_reservations_and_ledger_agree_with_model(database: Arc<AnyDatabase>) {
    compare(async || Ledger::open(database.another()).await).await;
}
