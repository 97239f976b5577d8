//! The metering protocol on real databases, with an engine that fails, stalls and ends on request.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in what it shares with others too")]

mod activity;
mod admission;
mod authentication;
mod deadline;
mod journal;
mod key_limits;
mod logprobs;
mod protocol;
mod redis_outage;
mod replays;
mod spending;
mod tokenizing;

use chancery_domain::{
    AccountName, ApiKey, Clock, KeyLimits, LimitUsage, ManualClock, OsRandomness, Prices, RateLimits,
    RequestId, SeededRandomness, UnixMillis,
};
use chancery_engine::{Engine, GenerationSink, Job, Penalties, ScriptedEngine, Turn};
use chancery_metering::{
    Call, Caller, GenerateRequest, Meter, MeterError, Model, Models, Reply, open_limiter,
};
use chancery_store::{DatabaseUrl, NewAccount, NewKey, Store};
use chancery_test_support::RawConnection;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

const DATABASE: &str = "chancery.db";

/// The firm's account.
pub const NAME: &str = "Hale & Ward";
pub const LIMITS: RateLimits = RateLimits { requests_per_min: 60, tokens_per_min: 60_000 };

pub fn call(caller: &Caller, request_id: RequestId, request: GenerateRequest) -> Call {
    Call { caller: caller.clone(), request_id, request, idempotency: None }
}

fn prices() -> Prices {
    Prices::new("1".parse().unwrap(), "2".parse().unwrap()).unwrap()
}

pub async fn unlock(mut database: RawConnection) {
    database.run("ROLLBACK").await.unwrap();
}

pub struct Fixture {
    pub meter: Arc<Meter>,
    pub store: Arc<Store>,
    pub clock: Arc<ManualClock>,
    pub caller: Caller,
    pub key: ApiKey,
    folder: tempfile::TempDir,
}

impl Fixture {
    pub async fn with(script: impl Fn(Job, GenerationSink) + Send + Sync + 'static) -> Self {
        Self::with_limits_in("memory", script).await
    }

    pub async fn with_limits_in(
        limit_store: &str,
        script: impl Fn(Job, GenerationSink) + Send + Sync + 'static,
    ) -> Self {
        Self::with_engine_and_limits_in(limit_store, Arc::new(ScriptedEngine::new(100, script))).await
    }

    pub async fn with_engine(engine: Arc<dyn Engine>) -> Self {
        Self::with_engine_and_limits_in("memory", engine).await
    }

    /// With a price for cached input.
    pub async fn with_cached_price(
        cached_input_per_million: &str,
        script: impl Fn(Job, GenerationSink) + Send + Sync + 'static,
    ) -> Self {
        let prices = prices().with_cached_input(cached_input_per_million.parse().unwrap()).unwrap();
        Self::with_prices("memory", Arc::new(ScriptedEngine::new(100, script)), prices).await
    }

    /// With a price for cached input, and a chat template of so many tokens.
    pub async fn with_cached_price_and_scaffolding(
        cached_input_per_million: &str,
        scaffolding_tokens: u32,
        script: impl Fn(Job, GenerationSink) + Send + Sync + 'static,
    ) -> Self {
        let prices = prices().with_cached_input(cached_input_per_million.parse().unwrap()).unwrap();
        let engine = ScriptedEngine::new(100, script).with_scaffolding(scaffolding_tokens);
        Self::with_prices("memory", Arc::new(engine), prices).await
    }

    async fn with_engine_and_limits_in(limit_store: &str, engine: Arc<dyn Engine>) -> Self {
        Self::with_prices(limit_store, engine, prices()).await
    }

    async fn with_prices(limit_store: &str, engine: Arc<dyn Engine>, prices: Prices) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = DatabaseUrl::sqlite_file(&folder.path().join(DATABASE));
        let store = Arc::new(Store::open(&url).await.unwrap());
        let clock = Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000)));
        let name: AccountName = NAME.parse().unwrap();
        let limits = LIMITS;
        let account =
            store.create_account(NewAccount { name, limits, created_at: clock.now() }).await.unwrap();
        let key = ApiKey::generate(&OsRandomness);
        let stored = store.create_key(new_key(&key, Some(account.id))).await.unwrap();
        let models = Models::new([Model { name: "words".to_owned(), engine, prices }]);
        let limiter = open_limiter(&limit_store.parse().unwrap(), clock.clone()).await.unwrap();
        let randomness = Arc::new(SeededRandomness::new(1));
        let meter = Meter::new(models, Arc::new(store.metering()), limiter, clock.clone(), randomness);
        let key_limits = KeyLimits::default();
        let caller = Caller { account: account.id, key: stored.id, limits, key_limits, is_capped: false };
        Self { meter: Arc::new(meter), store, clock, caller, key, folder }
    }

    pub fn database_file(&self) -> PathBuf {
        self.folder.path().join(DATABASE)
    }

    pub async fn raw_connection(&self) -> RawConnection {
        RawConnection::open(&format!("sqlite:{}", self.database_file().display())).await
    }

    /// Locks the database exclusively, as another process could, until `unlock`.
    pub async fn lock_database(&self) -> RawConnection {
        let mut other = self.raw_connection().await;
        other.run("BEGIN EXCLUSIVE").await.unwrap();
        other
    }

    /// The same database, opened as another node would.
    pub async fn another_process(&self) -> Arc<Store> {
        Arc::new(Store::open(&DatabaseUrl::sqlite_file(&self.database_file())).await.unwrap())
    }

    pub fn new_request(&self) -> (RequestId, GenerateRequest) {
        let request = GenerateRequest {
            model: "words".to_owned(),
            turns: Turn::from_instructions_and_input("Answer briefly.", "What is a ledger?"),
            max_output_tokens: Some(50),
            temperature: 0.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            penalties: Penalties::NONE,
            seed: None,
            stop: Vec::new(),
            stop_on_repetition: false,
            top_logprobs: None,
        };
        (self.meter.new_request_id(), request)
    }

    /// A request in its own task. Aborting the task simulates a disconnect.
    pub fn spawn_request(&self) -> JoinHandle<Result<Reply, MeterError>> {
        let (id, request) = self.new_request();
        let (meter, caller) = (Arc::clone(&self.meter), self.caller.clone());
        tokio::spawn(async move { meter.generate(call(&caller, id, request)).await })
    }

    /// Input tokens, output tokens and stop reason of each row.
    pub async fn rows(&self) -> Vec<(u32, u32, &'static str)> {
        let rows = self.store.ledger_chains.ledger_rows(None, 100).await.unwrap();
        rows.iter().map(|row| (row.input_tokens, row.output_tokens, row.stop_reason.as_str())).collect()
    }

    /// What counts against the account's limits.
    pub async fn used(&self) -> LimitUsage {
        self.meter.rate_limit_status(&self.caller).await.unwrap().used
    }

    /// Probes the ledger, as a process does, until requests are admitted again.
    pub async fn admitting(&self) {
        let admitting = async {
            while self.meter.can_record().is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = self.meter.run_ledger_probe() => {}
            () = admitting => {}
        }
    }

    /// Waits until no request is running.
    pub async fn settled(&self) {
        while self.meter.running_requests() > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

pub fn new_key(key: &ApiKey, account: Option<chancery_domain::AccountId>) -> NewKey {
    let created_at = UnixMillis(1_800_000_000_000);
    NewKey {
        prefix: key.prefix(),
        hash: key.hash(),
        label: String::new(),
        account,
        created_at,
        limits: KeyLimits::default(),
    }
}
