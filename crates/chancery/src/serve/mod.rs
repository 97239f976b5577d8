//! `chancery serve`: wires everything together, in an order in which each step fails early with a clear error:
//!
//! 1. read the configuration and the certificates, open and lock the data directory, bind all listeners: most mistakes show up at
//!    once;
//! 2. start the operations listener: alive, not ready;
//! 3. wait until the database and Redis can be reached (see `dependencies`), lock the database against incompatible servers,
//!    open and migrate it, check the key of its secrets and the rate-limit store, load the models, replay the usage journal,
//!    create the demo firm;
//! 4. start the API, portal and identity provider listeners, and report ready;
//! 5. on SIGTERM or Ctrl-C, drain (see `shutdown`); on SIGHUP, reload the certificates and the models (see `reload`).

mod checkpoints;
mod demo;
mod demo_clients;
mod demo_history;
mod demo_templates;
mod dependencies;
mod descriptors;
mod drafting;
mod drafting_model;
mod json_lines;
mod log_writer;
mod logging;
mod model_set;
mod models;
mod ops;
mod outbox;
pub mod people;
mod person_limits;
mod prometheus;
mod reload;
mod shutdown;
pub mod tls;

use crate::cli::{GlobalArgs, PROFILE, Serve, Service};
use crate::config::{Config, EngineConfig, Loaded, ModelConfig, is_on_this_machine, scheme};
use crate::data_dir::{DataDir, ServerLock};
use crate::encryption_keys;
use anyhow::{Context, anyhow, bail};
use axum::Router;
use axum::extract::Request;
use chancery_api::ApiState;
use chancery_auth::BackchannelLogoutWorker;
use chancery_domain::{BufferedRandomness, OsRandomness, SystemClock};
use chancery_listener::{ConnectionThreads, Listener, ShutdownTokens};
use chancery_metering::{GuardedLimiter, Journal, LimitStoreUrl, Meter, Models, ReplaySummary, open_limiter};
use chancery_store::{LimitStorage, ServingLock, Store};
use chancery_web::{TrustedProxies, apply_forwarded_for};
use checkpoints::Checkpoints;
use demo::{DemoExtent, DemoOptions};
use descriptors::{ConnectionLimits, MAX_OPS_CONNECTIONS, ServersPerRequest};
use model_set::ModelSet;
use models::{LoadedModel, ModelLoader};
use ops::Serving;
use people::{Addresses, SharedDeps};
use prometheus::Metrics;
use reload::{HangUps, Reloader};
use shutdown::Signals;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tls::{Certificates, ServedListeners};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use tracing::field::display;

pub fn run(global_args: &GlobalArgs, options: &Serve) -> anyhow::Result<()> {
    let mut loaded = Loaded::read(global_args.config.as_deref(), global_args.data.as_deref())?;
    if options.demo && loaded.is_default("portal.firm_name") {
        demo::FIRM_NAME.clone_into(&mut loaded.config.portal.firm_name);
        let billing = &mut loaded.config.billing;
        for (text, of_demo) in
            [(&mut billing.letterhead, demo::LETTERHEAD), (&mut billing.payment, demo::PAYMENT)]
        {
            if text.is_empty() {
                of_demo.clone_into(text);
            }
        }
    }
    let services = Services::from_options(&loaded.config, &options.only)?;
    if options.demo {
        demo::ensure_loopback(&loaded.config, services)?;
    }
    let _flush_log = logging::start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("cannot start the async runtime")?;
    let demo = options.demo.then_some(DemoOptions {
        extent: if options.minimal { DemoExtent::Minimal } else { DemoExtent::Full },
        fetches_model: !options.no_fetch,
    });
    let outcome = runtime.block_on(serve(loaded, global_args, services, demo));
    // An interrupted start may have left a model loading; do not wait for it.
    runtime.shutdown_background();
    outcome
}

async fn serve(
    loaded: Loaded,
    global_args: &GlobalArgs,
    services: Services,
    demo: Option<DemoOptions>,
) -> anyhow::Result<()> {
    let (mut signals, hang_ups) = (Signals::watch()?, HangUps::watch()?);
    let Loaded { config, settings } = loaded;
    let certificates = Arc::new(Certificates::load(&config, services.listeners())?);
    let servers_per_request = servers_per_request(&config);
    let (server, models) = tokio::select! {
        started = Server::start(config, &certificates, services, demo) => started?,
        () = signals.next() => {
            tracing::info!("stopped before it was ready");
            return Ok(());
        }
    };
    certificates.watch();
    let global_args = global_args.clone();
    let reloader = Reloader { global_args, models, certificates, settings, servers_per_request };
    tokio::spawn(reloader.run(hang_ups));
    signals.next().await;
    shutdown::leave(&server.shutdown_tokens, server.drain_wait, &mut signals).await;
    shutdown::drain(server.meter.as_deref(), &server.running_pages, &mut signals).await;
    server.stop().await;
    Ok(())
}

/// Which services run in this process.
#[derive(Clone, Copy, Debug)]
struct Services {
    api: bool,
    portal: bool,
    auth: bool,
}

impl Services {
    fn from_options(config: &Config, only: &[Service]) -> anyhow::Result<Self> {
        let has = |service| only.is_empty() || only.contains(&service);
        if only.contains(&Service::Auth) && !config.auth.is_enabled {
            bail!(
                "--only auth: the built-in identity provider is disabled, because identity.issuer is set; set auth.enabled = true if the issuer is this provider"
            );
        }
        let auth = has(Service::Auth) && config.auth.is_enabled;
        Ok(Self { api: has(Service::Api), portal: has(Service::Portal), auth })
    }

    fn listeners(self) -> ServedListeners {
        let Self { api, portal, auth } = self;
        ServedListeners { api, portal, auth }
    }
}

struct Server {
    /// `None` if this process does not serve the API.
    meter: Option<Arc<Meter>>,
    store: Arc<Store>,
    shutdown_tokens: ShutdownTokens,
    drain_wait: Duration,
    /// Requests to the portal and the identity provider.
    running_pages: TaskTracker,
    /// The threads of API connections. They outlive the store: its connections may have been opened on them.
    _connection_threads: Option<Arc<ConnectionThreads>>,
    /// The listeners, which end when the server closes.
    tasks: Vec<JoinHandle<()>>,
    /// What finds alerts and sends messages.
    outbox: [JoinHandle<()>; 2],
    checkpoints: Checkpoints,
    serving_lock: ServingLock,
    _lock: ServerLock,
}

fn servers_per_request(config: &Config) -> ServersPerRequest {
    let of_model = |model: &ModelConfig| match &model.engine {
        EngineConfig::Embedded(_) => ServersPerRequest::None,
        EngineConfig::Upstream(upstream) if upstream.hedge_after.is_none() => ServersPerRequest::One,
        EngineConfig::Upstream(_) => ServersPerRequest::Two,
    };
    config.models.iter().map(of_model).max().unwrap_or(ServersPerRequest::None)
}

impl Server {
    /// Also returns the models, which can change at run time; `None` if this process does not serve the API.
    async fn start(
        config: Config,
        certificates: &Certificates,
        services: Services,
        demo: Option<DemoOptions>,
    ) -> anyhow::Result<(Self, Option<Arc<Mutex<ModelSet>>>)> {
        let data = DataDir::open(&config.data)?;
        let lock = data.lock_for_serving()?;
        let bind = |is_enabled: bool, address, key, max_connections| match is_enabled {
            true => listen(address, key, max_connections).map(Some),
            false => Ok(None),
        };
        let connection_limits = ConnectionLimits::from_rlimit(servers_per_request(&config));
        let proxies = &config.portal.trusted_proxies;
        let running_pages = TaskTracker::new();
        let for_browsers = |listener: Option<Listener>| {
            listener.map(|listener| listener.for_browsers(proxies, &running_pages))
        };
        let api_listener = bind(services.api, config.api.listen, "api.listen", connection_limits.api)?;
        let tls = |is_enabled: bool, source| match is_enabled {
            true => certificates.server_config(source),
            false => Ok(None),
        };
        let api_tls = tls(services.api, config.tls.api.as_ref())?;
        let connection_threads = if services.api {
            Some(Arc::new(ConnectionThreads::start().context("cannot start the threads of connections")?))
        } else {
            None
        };
        let api_listener = api_listener
            .zip(connection_threads.clone())
            .map(|(listener, threads)| listener.for_callers(proxies).with_tls(api_tls).on_threads(threads));
        let portal_listener = for_browsers(bind(
            services.portal,
            config.portal.listen,
            "portal.listen",
            connection_limits.pages,
        )?);
        let portal_tls = tls(services.portal, config.tls.portal.as_ref())?;
        let portal_listener = portal_listener.map(|listener| listener.with_tls(portal_tls));
        let auth_listener =
            for_browsers(bind(services.auth, config.auth.listen, "auth.listen", connection_limits.pages)?);
        let auth_tls = tls(services.auth, config.tls.auth.as_ref())?;
        let auth_listener = auth_listener.map(|listener| listener.with_tls(auth_tls));
        let ops_listener = listen(config.ops.listen, "ops.listen", MAX_OPS_CONNECTIONS)?;
        let api_address = api_listener.as_ref().map_or(config.api.listen, Listener::address);
        let api_url = config
            .api
            .public_url
            .clone()
            .unwrap_or_else(|| local_url(scheme(config.tls.api.as_ref()), api_address));
        let addresses =
            Addresses::new(&config, api_url.clone(), portal_listener.as_ref(), auth_listener.as_ref());

        let metrics = Metrics::install()?;
        let shutdown_tokens = ShutdownTokens::default();
        let readiness = ops::Readiness::default();
        let ops_router = ops::router(readiness.clone(), metrics, certificates.served());
        let address = |listener: &Option<Listener>| listener.as_ref().map(Listener::address);
        let listen_addresses = ListenAddresses {
            api: address(&api_listener),
            portal: address(&portal_listener),
            auth: address(&auth_listener),
            ops: ops_listener.address(),
        };
        let mut tasks = vec![tokio::spawn(ops_listener.serve(ops_router, shutdown_tokens.clone()))];

        dependencies::wait_until_reachable(&config, services, &readiness).await?;
        let limit_store = match config.limit_store {
            LimitStoreUrl::Memory if services.api => LimitStorage::InMemory,
            _ => LimitStorage::Shared,
        };
        let serving_lock = ServingLock::take(&config.database_url, limit_store).await?;
        let store = Arc::new(data.open_database(&config.database_url).await?);
        encryption_keys::prepare_server(&config, &store).await?;
        let own_certificates = certificates.own_certificates();
        let deps =
            SharedDeps::new(&config, Arc::clone(&store), Arc::new(SystemClock), Arc::new(OsRandomness))
                .await?;
        // The page answers only under a name of this machine.
        let is_full_demo = demo.is_some_and(|demo| demo.extent == DemoExtent::Full);
        if is_full_demo && services.portal && is_on_this_machine(&addresses.portal) {
            deps.mailer.open_mail_page(format!("{}{}", addresses.portal, chancery_portal::MAIL_PATH));
        }
        warn_about_config(&config, services);
        let (meter, models) = match services.api {
            true => {
                let journal = Journal::open(data.path())?;
                let (meter, models) =
                    open_meter(&config, &store, journal, &serving_lock, demo.is_some()).await?;
                replay_journal(&meter).await;
                (Some(meter), Some(Arc::new(Mutex::new(models))))
            }
            false => (None, None),
        };
        let checkpoints =
            Checkpoints::start(&data, config.checkpoints.clone(), &api_url, &deps, &shutdown_tokens)?;
        let api_url = services.api.then_some(api_url);
        let prepared_demo = match (demo, &api_url) {
            (Some(options), Some(api_url)) => {
                Some(demo::prepare(&data, &config, &deps, options.extent, api_url, &addresses).await?)
            }
            (Some(_), None) => bail!("--demo needs the API; remove --only, or add api to it"),
            (None, _) => None,
        };

        if let (Some(listener), Some(meter)) = (api_listener, &meter) {
            let state = ApiState::new(Arc::clone(meter), config.billing.currency, config.api.max_body_bytes);
            let router = api_router(state, &config.portal.trusted_proxies);
            tasks.push(tokio::spawn(listener.serve(router, shutdown_tokens.clone())));
            let maintenance_meter = Arc::clone(meter);
            tokio::spawn(async move { maintenance_meter.run_maintenance().await });
            let activity_meter = Arc::clone(meter);
            tokio::spawn(async move { activity_meter.run_activity_flush().await });
            let journal_meter = Arc::clone(meter);
            tokio::spawn(async move { journal_meter.run_journal_replay().await });
            let probed_meter = Arc::clone(meter);
            tokio::spawn(async move { probed_meter.run_ledger_probe().await });
        }
        if let Some(listener) = portal_listener {
            let (clock, randomness) = (deps.clock.as_ref(), deps.randomness.as_ref());
            let drafting =
                drafting::settings(&config, listen_addresses.api, &store.admin(), clock, randomness).await?;
            let demo = demo.filter(|_| drafting.is_some());
            let drafting_model = drafting_model::start(&config, demo, models.as_ref());
            let portal = deps.portal(&config, &addresses, drafting, own_certificates)?;
            let portal = Arc::new(portal.with_drafting_model(drafting_model));
            tokio::spawn(chancery_portal::run_maintenance(Arc::clone(&portal)));
            tasks
                .push(tokio::spawn(listener.serve(chancery_portal::router(portal), shutdown_tokens.clone())));
        }
        if let Some(listener) = auth_listener {
            let provider = Arc::new(deps.provider(&config, &addresses));
            tokio::spawn(chancery_auth::run_maintenance(Arc::clone(&provider)));
            let logout_worker = BackchannelLogoutWorker::new(Arc::clone(&provider), own_certificates);
            tokio::spawn(logout_worker.context("cannot create the HTTP client for logout tokens")?.run());
            tasks
                .push(tokio::spawn(listener.serve(chancery_auth::router(provider), shutdown_tokens.clone())));
        }
        let outbox = outbox::start(&config, &deps, &shutdown_tokens);
        readiness.set_ready(Serving {
            health: store.health.clone(),
            meter: meter.clone(),
            leaving: shutdown_tokens.leaving.clone(),
        });
        listen_addresses.log(&data);
        let greeting = match prepared_demo {
            Some(demo) => demo.to_string(),
            None => greeting(services, api_url.as_deref(), &addresses),
        };
        print_greeting(&greeting);
        let drain_wait = config.ops.drain_wait;
        let server = Self {
            meter,
            store,
            shutdown_tokens,
            drain_wait,
            running_pages,
            _connection_threads: connection_threads,
            tasks,
            outbox,
            checkpoints,
            serving_lock,
            _lock: lock,
        };
        Ok((server, models))
    }

    async fn stop(self) {
        self.shutdown_tokens.closing.cancel();
        for task in self.tasks {
            // None of them has a result worth checking.
            let _ = task.await;
        }
        if let Some(meter) = &self.meter {
            shutdown::flush_activity(meter).await;
            shutdown::replay_journal(meter).await;
        }
        shutdown::stop_outbox(self.outbox).await;
        self.checkpoints.finish().await;
        self.store.close().await;
        self.serving_lock.release().await;
        tracing::info!("stopped");
    }
}

/// The API behind proxies: each request has the address of its caller, by which unknown keys are throttled.
fn api_router(state: ApiState, proxies: &TrustedProxies) -> Router {
    let proxies = proxies.clone();
    chancery_api::router(state).layer(axum::middleware::map_request(move |mut request: Request| {
        apply_forwarded_for(&mut request, &proxies);
        std::future::ready(request)
    }))
}

/// The bound addresses, for the log.
struct ListenAddresses {
    api: Option<SocketAddr>,
    portal: Option<SocketAddr>,
    auth: Option<SocketAddr>,
    ops: SocketAddr,
}

impl ListenAddresses {
    fn log(&self, data: &DataDir) {
        let [api, portal, auth] = [self.api, self.portal, self.auth].map(|address| address.map(display));
        let (ops, data) = (display(self.ops), data.path().display());
        tracing::info!(profile = PROFILE, api_listen = api, portal_listen = portal, auth_listen = auth, ops_listen = ops, %data, "ready");
    }
}

/// Opens what only the API needs: rate limits and models.
async fn open_meter(
    config: &Config,
    store: &Store,
    journal: Journal,
    serving_lock: &ServingLock,
    demo: bool,
) -> anyhow::Result<(Arc<Meter>, ModelSet)> {
    let (clock, randomness) = (Arc::new(SystemClock), Arc::new(BufferedRandomness));
    let limiter = open_limiter(&config.limit_store, clock.clone()).await.with_context(|| {
        format!(
            "limits.store: cannot use {}; start the Redis server, or set it to \"memory\"",
            config.limit_store
        )
    })?;
    let limiter = Arc::new(GuardedLimiter::new(limiter, serving_lock.watch()));
    let loader = ModelLoader::new(store.secrets.clone());
    let loaded = loader.load_all(&config.models, demo).await?;
    let models = Models::new(loaded.iter().map(LoadedModel::to_model));
    let meter =
        Meter::new(models, Arc::new(store.metering()), limiter, clock, randomness).with_journal(journal);
    let meter = Arc::new(meter);
    Ok((Arc::clone(&meter), ModelSet::new(meter, loader, loaded)))
}

/// Writes what an earlier process could not write, before any request is admitted: a retry under the same idempotency key then
/// finds the stored reply.
async fn replay_journal(meter: &Meter) {
    let waiting = meter.journaled_requests();
    if waiting == 0 {
        return;
    }
    tracing::info!(rows = waiting, "replaying the usage journal");
    let ReplaySummary { written, rejected, waiting } = meter.replay_journal().await;
    match waiting {
        0 => tracing::info!(written, rejected, "usage journal replayed"),
        _ => tracing::warn!(written, rejected, waiting, "usage journal not empty yet, retrying"),
    }
}

/// Warns about configurations that start but do not work as expected.
fn warn_about_config(config: &Config, services: Services) {
    // The portal authenticates to the built-in provider with a secret, shared through the database or a file.
    let is_split = config.auth.is_enabled && services.portal != services.auth;
    if is_split && config.identity.client_secret_file.is_none() {
        let [here, elsewhere] =
            if services.portal { ["portal", "identity provider"] } else { ["identity provider", "portal"] };
        tracing::warn!(
            "this process runs only the {here}: the {elsewhere} must share its database or its identity.client_secret_file"
        );
    }
    let has_tls = config.portal.public_url.as_ref().is_some_and(|url| url.starts_with("https://"));
    let has_proxy = has_tls && config.tls.portal.is_none();
    if (services.portal || services.auth) && has_proxy && config.portal.trusted_proxies.is_empty() {
        tracing::warn!(
            "portal.public_url is https, but portal.trusted_proxies is empty: all visitors share the proxy's address and its rate limit"
        );
    }
}

fn greeting(services: Services, api_url: Option<&str>, addresses: &Addresses) -> String {
    let mut text = String::new();
    if let Some(api_url) = api_url {
        text += &format!("API: {api_url}\n");
    }
    if services.portal {
        text += &format!("Portal: {}\n", addresses.portal);
    }
    if services.auth {
        text += &format!("Sign-in: {}\n", addresses.issuer);
    }
    text
}

/// `key` is the setting that names the address.
fn listen(address: SocketAddr, key: &str, max_connections: usize) -> anyhow::Result<Listener> {
    Listener::bind(address, max_connections).map_err(|error| {
        let why = match error.kind() {
            ErrorKind::AddrInUse => {
                format!("{address} is already in use; stop the other program, or")
            }
            _ => format!("cannot listen on {address} ({error});"),
        };
        let variable = format!("CHANCERY_{}", key.to_uppercase().replace('.', "__"));
        anyhow!("{key}: {why} set {key} (or {variable}) to another address")
    })
}

/// Returns the URL of an address as seen from this machine.
pub fn local_url(scheme: &str, address: SocketAddr) -> String {
    match address.ip() {
        ip if ip.is_loopback() || ip.is_unspecified() => format!("{scheme}://localhost:{}", address.port()),
        _ => format!("{scheme}://{address}"),
    }
}

/// Ignores a closed standard output; the server runs anyway.
fn print_greeting(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
