//! The API on its own port, with one account, one key and one model on the given engine.

use chancery_api::ApiState;
use chancery_domain::{
    AccountId, ApiKey, Clock, Currency, KeyLimits, OsRandomness, Prices, RateLimits, SystemClock,
};
use chancery_engine::Engine;
use chancery_metering::{MemoryLimiter, Meter, Model, Models};
use chancery_store::{DatabaseUrl, NewAccount, NewKey, Store};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub const MODEL: &str = "m";

fn new_key(key: &ApiKey, account: Option<AccountId>) -> NewKey {
    let created_at = SystemClock.now();
    let (label, limits) = (String::new(), KeyLimits::default());
    NewKey { prefix: key.prefix(), hash: key.hash(), label, account, created_at, limits }
}

async fn create_account_with_key(store: &Store, name: &str, requests_per_min: u32) -> String {
    let key = ApiKey::generate(&OsRandomness);
    let created_at = SystemClock.now();
    let limits = RateLimits { requests_per_min, tokens_per_min: 600_000 };
    let account = NewAccount { name: name.parse().unwrap(), limits, created_at };
    let account = Some(store.create_account(account).await.unwrap().id);
    store.create_key(new_key(&key, account)).await.unwrap();
    key.reveal().to_owned()
}

pub struct TestServer {
    pub url: String,
    key: String,
    store: Arc<Store>,
    _folder: tempfile::TempDir,
}

impl TestServer {
    pub async fn start(engine: Arc<dyn Engine>) -> Self {
        Self::start_with(engine, 100_000).await
    }

    pub async fn start_with(engine: Arc<dyn Engine>, requests_per_min: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = DatabaseUrl::sqlite_file(&folder.path().join("chancery.db"));
        let store = Arc::new(Store::open(&database).await.unwrap());
        let key = create_account_with_key(&store, "Hale & Ward", requests_per_min).await;
        let prices = Prices::new("1".parse().unwrap(), "2".parse().unwrap()).unwrap();
        let models = Models::new([Model { name: MODEL.to_owned(), engine, prices }]);
        let clock = Arc::new(SystemClock);
        let limiter = Arc::new(MemoryLimiter::new(clock.clone()));
        let meter = Meter::new(models, Arc::new(store.metering()), limiter, clock, Arc::new(OsRandomness));
        let state = ApiState::new(Arc::new(meter), Currency::USD, 1 << 20);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let service = chancery_api::router(state).into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        Self { url, key, store, _folder: folder }
    }

    /// The same server, called by another account.
    pub async fn with_another_account(self, requests_per_min: u32) -> Self {
        let key = create_account_with_key(&self.store, "Ito & Sons", requests_per_min).await;
        Self { key, ..self }
    }

    /// The same server, called with another key of the first account.
    pub async fn with_limited_key(self, limits: KeyLimits) -> Self {
        let account =
            self.store.account_lookup.account_by_name(&"Hale & Ward".parse().unwrap()).await.unwrap();
        let key = ApiKey::generate(&OsRandomness);
        let new = NewKey { limits, label: "backend".to_owned(), ..new_key(&key, Some(account.id)) };
        self.store.create_key(new).await.unwrap();
        Self { key: key.reveal().to_owned(), ..self }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn with_key(self, key: String) -> Self {
        Self { key, ..self }
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    /// Stores another key, of no account.
    pub async fn store_key(&self, key: &ApiKey) {
        self.store.create_key(new_key(key, None)).await.unwrap();
    }

    pub fn get(&self, path: &str) -> reqwest::RequestBuilder {
        self.client().get(format!("{}{path}", self.url)).bearer_auth(&self.key)
    }

    pub fn generate(&self, more_fields: &Value) -> reqwest::RequestBuilder {
        let mut body =
            json!({"model": MODEL, "instructions": "", "input": "Say hello.", "max_output_tokens": 4});
        body.as_object_mut().unwrap().extend(more_fields.as_object().unwrap().clone());
        self.post("/v1/generate", &body)
    }

    pub fn post(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        self.client().post(format!("{}{path}", self.url)).bearer_auth(&self.key).json(body)
    }

    /// Sends the bytes unchanged, with a JSON content type.
    pub fn post_bytes(&self, client: &reqwest::Client, path: &str, body: Vec<u8>) -> reqwest::RequestBuilder {
        let request = client.post(format!("{}{path}", self.url)).bearer_auth(&self.key);
        request.header("content-type", "application/json").body(body)
    }

    /// Returns a whole stream as raw text.
    pub async fn stream(&self, max_output_tokens: u32) -> String {
        let fields = json!({"stream": true, "max_output_tokens": max_output_tokens});
        self.generate(&fields).send().await.unwrap().text().await.unwrap()
    }

    pub fn client(&self) -> reqwest::Client {
        // The client needs a TLS provider even though these tests use plain HTTP.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = reqwest::Client::builder().tls_certs_only([]).no_proxy();
        builder.timeout(Duration::from_secs(60)).build().unwrap()
    }

    pub async fn billed_requests(&self) -> usize {
        self.store.ledger_chains.ledger_rows(None, 100).await.unwrap().len()
    }
}
