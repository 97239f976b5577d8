//! A year of requests: four accounts with two keys each, three models, and prices that change in the middle of it.

use chancery_bench::people::{SignedIn, arrive, sign_in};
use chancery_domain::{
    AccountId, ApiKey, Clock, Day, HowEnded, KeyId, Month, OsRandomness, Prices, RateLimits, RequestId, Role,
    SystemClock, TokenPrice, UnixMillis, UsageRow,
};
use chancery_store::{NewAccount, NewKey, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const ACCOUNTS: u64 = 4;
const KEYS: u64 = 2;
const MODELS: [&str; 3] = ["smollm2-135m", "qwen2.5-7b", "llama-3.3-70b"];
const DAYS: i32 = 365;
const DAY_MS: i64 = 86_400_000;

/// Requests that are settled at once.
const CALLERS: usize = 512;

pub struct Year {
    store: Arc<dyn Store>,
    pub partner: SignedIn,
    keys: Arc<[(AccountId, KeyId)]>,
    /// Its first day; the last is yesterday.
    first_day: Day,
}

impl Year {
    /// Settles this many rows, spread over all days.
    pub async fn settled(url: &str, rows: u64) -> Self {
        let store = chancery_store::open(&url.parse().unwrap()).await.unwrap();
        let ruth = arrive(&*store, "ruth@example.com", Role::Partner).await;
        let partner = sign_in(&*store, &ruth).await;
        let mut keys = Vec::new();
        for number in 0..ACCOUNTS {
            let limits = RateLimits { requests_per_min: 6_000, tokens_per_min: 10_000_000 };
            let name = format!("Account {number}").parse().unwrap();
            let new = NewAccount { name, limits, created_at: SystemClock.now() };
            let account = store.create_account(new).await.unwrap().id;
            for label in 0..KEYS {
                let key = ApiKey::generate(&OsRandomness);
                let new = NewKey {
                    prefix: key.prefix(),
                    hash: key.hash(),
                    label: format!("Key {label}"),
                    account: Some(account),
                    created_at: SystemClock.now(),
                };
                keys.push((account, store.create_key(new).await.unwrap().id));
            }
        }
        let first_day = Day(Day::of(SystemClock.now()).0 - DAYS);
        let year = Self { store, partner, keys: keys.into(), first_day };
        year.settle(rows).await;
        year
    }

    async fn settle(&self, rows: u64) {
        let next = Arc::new(AtomicU64::new(0));
        let mut callers = tokio::task::JoinSet::new();
        let first_day = self.first_day;
        for _ in 0..CALLERS {
            let (store, keys, next) = (Arc::clone(&self.store), Arc::clone(&self.keys), Arc::clone(&next));
            callers.spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= rows {
                        return;
                    }
                    let place = number as f64 / rows as f64;
                    let at = first_day.start().0 + (place * DAYS as f64 * DAY_MS as f64) as i64;
                    store.settle(row(&keys, number, UnixMillis(at)).into()).await.unwrap();
                }
            });
        }
        callers.join_all().await;
    }

    pub fn first_account(&self) -> AccountId {
        self.keys[0].0
    }

    /// A whole month in the middle, which no invoice bills.
    pub fn shown_month(&self) -> Month {
        (0..6).fold(Month::of(self.first_day.start()), |month, _| month.next())
    }

    pub fn year_of_issue(&self) -> i32 {
        Month::of(SystemClock.now()).year()
    }

    /// The first whole month of every account.
    pub fn months_to_issue(&self) -> Vec<String> {
        let month = Month::of(self.first_day.start()).next();
        let mut accounts: Vec<AccountId> = self.keys.iter().map(|(account, _)| *account).collect();
        accounts.dedup();
        let path = |account| format!("/invoices/drafts/{account}/{month}/issue");
        accounts.into_iter().map(path).collect()
    }

    pub async fn close(&self) {
        self.store.close().await;
    }
}

fn row(keys: &[(AccountId, KeyId)], number: u64, at: UnixMillis) -> UsageRow {
    let (account, key) = keys[(number % keys.len() as u64) as usize];
    let model = MODELS[(number / keys.len() as u64 % MODELS.len() as u64) as usize];
    // The prices of the second half of each month are others.
    let more = i64::from(Day::of(at).0.rem_euclid(30) / 15);
    let price = TokenPrice::from_nanos_per_token;
    let prices = Prices { input: price(100 + more), output: price(400 + more) };
    let (input_tokens, output_tokens) = (200 + (number % 97) as u32, 40 + (number % 31) as u32);
    UsageRow {
        request_id: RequestId::new(at, &OsRandomness),
        account,
        key,
        model: model.to_owned(),
        input_tokens,
        output_tokens,
        prices,
        cost: prices.cost(input_tokens, output_tokens).unwrap(),
        at,
        ended: HowEnded::Complete,
    }
}
