//! `chancery serve`: wires everything together, in an order in which each step fails early and plainly:
//!
//! 1. configuration, data folder (and the lock on it), all listeners bound: what can be wrong is told within a moment;
//! 2. the operations listener answers from here on: alive, not ready;
//! 3. the database is locked against servers that do not go together with this one, opened and migrated, the limits' store
//!    is asked, the models are loaded, the demonstration firm is made;
//! 4. the listeners of the API, of the portal and of the identity provider start to answer, and the server is ready;
//! 5. on SIGTERM or Ctrl-C it drains (see `shutdown`); on SIGHUP it reads the servers of upstream models anew (see `reload`).

mod demo;
mod demo_clients;
mod descriptors;
mod drafting;
mod listener;
mod logging;
mod models;
mod ops;
mod peers;
mod people;
mod reload;
mod shutdown;

use crate::cli::{Part, Place, Serve};
use crate::config::{Config, EngineConfig, Loaded, ModelConfig};
use crate::data_folder::{DataFolder, ServerLock};
use anyhow::{Context, bail};
use chancery_api::ApiState;
use chancery_domain::{OsRandomness, SystemClock};
use chancery_metering::{GuardedLimiter, LimitStoreUrl, Meter, open_limiter};
use chancery_store::{LimitsKept, MeteringStore, ServingLock, Store};
use descriptors::{MAX_OPS_CONNECTIONS, ServersPerRequest, Shares};
use listener::Listener;
use models::{LoadedModels, UpstreamModel};
use ops::Serving;
use people::{Addresses, Ground};
use reload::{HangUps, Reloader};
use shutdown::{Ending, Signals};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tracing::field::display;

pub fn run(place: &Place, options: &Serve) -> anyhow::Result<()> {
    let mut loaded = Loaded::read(place.config.as_deref(), place.data.as_deref())?;
    if options.demo && loaded.is_default("portal.firm_name") {
        demo::FIRM_NAME.clone_into(&mut loaded.config.portal.firm_name);
    }
    let parts = Parts::chosen(&loaded.config, &options.only)?;
    logging::start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("the asynchronous runtime cannot be started")?;
    let outcome = runtime.block_on(serve(loaded, place, parts, options.demo));
    // A start that was interrupted may have left a model loading; there is nothing to wait for in that.
    runtime.shutdown_background();
    outcome
}

async fn serve(loaded: Loaded, place: &Place, parts: Parts, demo: bool) -> anyhow::Result<()> {
    let (mut signals, hang_ups) = (Signals::watch()?, HangUps::watch()?);
    let Loaded { config, settings } = loaded;
    let (server, upstreams) = tokio::select! {
        started = Server::start(config, parts, demo) => started?,
        () = signals.next() => return Ok(()),
    };
    tokio::spawn(Reloader { place: place.clone(), upstreams, settings }.run(hang_ups));
    signals.next().await;
    shutdown::leave(&server.ending, server.drain_wait, &mut signals).await;
    if let Some(meter) = &server.meter {
        shutdown::drain(meter, &mut signals).await;
    }
    server.stop().await;
    Ok(())
}

/// What of the binary runs.
#[derive(Clone, Copy, Debug)]
struct Parts {
    api: bool,
    portal: bool,
    auth: bool,
}

impl Parts {
    fn chosen(config: &Config, only: &[Part]) -> anyhow::Result<Self> {
        let has = |part| only.is_empty() || only.contains(&part);
        if only.contains(&Part::Auth) && !config.auth.is_enabled {
            bail!(
                "--only auth: the built-in identity provider is off, because identity.issuer is another's; set auth.enabled = true if it is its own address"
            );
        }
        let auth = has(Part::Auth) && config.auth.is_enabled;
        Ok(Self { api: has(Part::Api), portal: has(Part::Portal), auth })
    }
}

/// Everything that runs.
struct Server {
    /// None where the API is not among the parts.
    meter: Option<Arc<Meter>>,
    store: Arc<Store>,
    ending: Ending,
    drain_wait: Duration,
    listeners: Vec<JoinHandle<()>>,
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
    /// With it come the models whose servers can be exchanged while it runs.
    async fn start(config: Config, parts: Parts, demo: bool) -> anyhow::Result<(Self, Vec<UpstreamModel>)> {
        let data = DataFolder::open(&config.data)?;
        let lock = data.lock_for_serving()?;
        let bind = async |is_wanted: bool, address, key, max_connections| match is_wanted {
            true => Listener::bind(address, key, max_connections).await.map(Some),
            false => Ok(None),
        };
        let shares = Shares::take(servers_per_request(&config));
        let proxies = &config.portal.trusted_proxies;
        let for_browsers =
            |listener: Option<Listener>| listener.map(|listener| listener.for_browsers(proxies));
        let api_listener = bind(parts.api, config.api.listen, "api.listen", shares.api).await?;
        let portal_listener =
            for_browsers(bind(parts.portal, config.portal.listen, "portal.listen", shares.pages).await?);
        let auth_listener =
            for_browsers(bind(parts.auth, config.auth.listen, "auth.listen", shares.pages).await?);
        let ops_listener = Listener::bind(config.ops.listen, "ops.listen", MAX_OPS_CONNECTIONS).await?;
        let api_address = api_listener.as_ref().map_or(config.api.listen, Listener::address);
        let api_url = config.api.public_url.clone().unwrap_or_else(|| local_url(api_address));
        let addresses =
            Addresses::new(&config, api_url.clone(), portal_listener.as_ref(), auth_listener.as_ref());

        let recorder = ops::install_metrics()?;
        tokio::spawn(ops::keep_metrics_small(recorder.clone()));
        let ending = Ending::default();
        let readiness = ops::Readiness::default();
        let ops_router = ops::router(readiness.clone(), recorder);
        let address = |listener: &Option<Listener>| listener.as_ref().map(Listener::address);
        let listened = Listened {
            api: address(&api_listener),
            portal: address(&portal_listener),
            auth: address(&auth_listener),
            ops: ops_listener.address(),
        };
        let mut listeners = vec![tokio::spawn(ops_listener.serve(ops_router, ending.clone()))];

        let limits_kept = match config.limit_store {
            LimitStoreUrl::Memory if parts.api => LimitsKept::InMemory,
            _ => LimitsKept::Shared,
        };
        let serving_lock = ServingLock::take(&config.database_url, limits_kept).await?;
        let store = Arc::new(Store::open(&config.database_url).await?);
        let ground =
            Ground::new(&config, Arc::clone(&store), Arc::new(SystemClock), Arc::new(OsRandomness)).await?;
        warn_of_gaps(&config, parts);
        let (meter, upstreams) = match parts.api {
            true => {
                let (meter, upstreams) = open_meter(&config, store.metering(), &serving_lock, demo).await?;
                (Some(meter), upstreams)
            }
            false => (None, Vec::new()),
        };
        let api_url = parts.api.then_some(api_url);
        let demo = match (demo, &api_url) {
            (true, Some(api_url)) => Some(demo::prepare(&data, &config, &ground, api_url, &addresses).await?),
            (true, None) => bail!("--demo shows the API too; leave --only out, or have api in it"),
            (false, _) => None,
        };

        if let (Some(listener), Some(meter)) = (api_listener, &meter) {
            let state = ApiState {
                meter: Arc::clone(meter),
                currency: config.billing.currency,
                max_body_bytes: config.api.max_body_bytes,
            };
            listeners.push(tokio::spawn(listener.serve(chancery_api::router(state), ending.clone())));
            let keeps_tidy = Arc::clone(meter);
            tokio::spawn(async move { keeps_tidy.keep_tidy().await });
            let notes_activity = Arc::clone(meter);
            tokio::spawn(async move { notes_activity.keep_noting_activity().await });
        }
        if let Some(listener) = portal_listener {
            let (clock, randomness) = (ground.clock.as_ref(), ground.randomness.as_ref());
            let drafting =
                drafting::settings(&config, listened.api, &store.admin(), clock, randomness).await?;
            let portal = Arc::new(ground.portal(&config, &addresses, drafting)?);
            tokio::spawn(chancery_portal::keep_tidy(Arc::clone(&portal)));
            listeners.push(tokio::spawn(listener.serve(chancery_portal::router(portal), ending.clone())));
        }
        if let Some(listener) = auth_listener {
            let provider = Arc::new(ground.provider(&config, &addresses));
            tokio::spawn(chancery_auth::keep_tidy(Arc::clone(&provider)));
            listeners.push(tokio::spawn(listener.serve(chancery_auth::router(provider), ending.clone())));
        }
        readiness.set_ready(Serving {
            health: store.health.clone(),
            meter: meter.clone(),
            leaving: ending.leaving.clone(),
        });
        listened.log(&data);
        let greeting = match demo {
            Some(demo) => demo.to_string(),
            None => greeting(parts, api_url.as_deref(), &addresses),
        };
        greet(&greeting);
        let drain_wait = config.ops.drain_wait;
        Ok((Self { meter, store, ending, drain_wait, listeners, serving_lock, _lock: lock }, upstreams))
    }

    async fn stop(self) {
        self.ending.closing.cancel();
        for listener in self.listeners {
            // A listener only ends by returning; there is nothing to learn from how.
            let _ = listener.await;
        }
        if let Some(meter) = &self.meter {
            shutdown::note_the_last(meter).await;
        }
        self.store.close().await;
        self.serving_lock.release().await;
        tracing::info!("stopped");
    }
}

/// Where it really listens, for the log.
struct Listened {
    api: Option<SocketAddr>,
    portal: Option<SocketAddr>,
    auth: Option<SocketAddr>,
    ops: SocketAddr,
}

impl Listened {
    fn log(&self, data: &DataFolder) {
        let [api, portal, auth] = [self.api, self.portal, self.auth].map(|address| address.map(display));
        let (ops, data) = (display(self.ops), data.path().display());
        tracing::info!(api_listen = api, portal_listen = portal, auth_listen = auth, ops_listen = ops, %data, "ready");
    }
}

/// The API's own parts: limits and models.
async fn open_meter(
    config: &Config,
    store: MeteringStore,
    serving_lock: &ServingLock,
    demo: bool,
) -> anyhow::Result<(Arc<Meter>, Vec<UpstreamModel>)> {
    let (clock, randomness) = (Arc::new(SystemClock), Arc::new(OsRandomness));
    let limiter = open_limiter(&config.limit_store, clock.clone()).await.with_context(|| {
        format!("limits.store: {} cannot be used; start it, or set it to \"memory\"", config.limit_store)
    })?;
    let limiter = Arc::new(GuardedLimiter::new(limiter, serving_lock.watch()));
    let LoadedModels { models, upstreams } = LoadedModels::load(&config.models, demo).await?;
    Ok((Arc::new(Meter::new(models, Arc::new(store), limiter, clock, randomness)), upstreams))
}

/// What starts, but will not do what people expect.
fn warn_of_gaps(config: &Config, parts: Parts) {
    // Portal and built-in provider know each other by a secret, which they share through the database, or else a file.
    let is_split = config.auth.is_enabled && parts.portal != parts.auth;
    if is_split && config.identity.client_secret_file.is_none() {
        let [here, elsewhere] =
            if parts.portal { ["portal", "identity provider"] } else { ["identity provider", "portal"] };
        tracing::warn!(
            "this process runs the {here} alone: the {elsewhere} must use the same database, or both the same identity.client_secret_file"
        );
    }
    let has_tls = config.portal.public_url.as_ref().is_some_and(|url| url.starts_with("https://"));
    if (parts.portal || parts.auth) && has_tls && config.portal.trusted_proxies.is_empty() {
        tracing::warn!(
            "portal.public_url has TLS, so a proxy stands in front, but portal.trusted_proxies names none: all people count as one place, for limits too"
        );
    }
}

fn greeting(parts: Parts, api_url: Option<&str>, addresses: &Addresses) -> String {
    let mut text = String::new();
    if let Some(api_url) = api_url {
        text += &format!("Chancery serves the API at {api_url}\n");
    }
    if parts.portal {
        text += &format!("Chancery serves the portal at {}\n", addresses.portal);
    }
    if parts.auth {
        text += &format!("Chancery signs people in at {}\n", addresses.issuer);
    }
    text
}

/// How to reach an address from this machine.
fn local_url(address: SocketAddr) -> String {
    match address.ip() {
        ip if ip.is_loopback() || ip.is_unspecified() => format!("http://localhost:{}", address.port()),
        _ => format!("http://{address}"),
    }
}

/// Standard output may be closed; the server runs all the same.
fn greet(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
