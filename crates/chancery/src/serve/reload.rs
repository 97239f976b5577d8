//! SIGHUP: the configuration is read again, and the servers of upstream models become those that it names now, with the key
//! that its file has now. Nothing else changes while the server runs. Requests that run end where they are. A configuration that
//! cannot be used changes nothing.

use super::models::UpstreamModel;
use crate::cli::Place;
use crate::config::{EngineConfig, Loaded, UpstreamConfig};
use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub struct Reloader {
    place: Place,
    upstreams: Vec<UpstreamModel>,
    hang_ups: Signal,
}

impl Reloader {
    /// None where there is nothing that could be reloaded: then SIGHUP ends the process, as it does when a terminal is
    /// closed.
    pub fn watch(place: &Place, upstreams: Vec<UpstreamModel>) -> anyhow::Result<Option<Self>> {
        if upstreams.is_empty() {
            return Ok(None);
        }
        let hang_ups = signal(SignalKind::hangup()).context("SIGHUP cannot be watched")?;
        Ok(Some(Self { place: place.clone(), upstreams, hang_ups }))
    }

    pub async fn run(mut self) {
        while self.hang_ups.recv().await.is_some() {
            match self.reload() {
                Ok(()) => tracing::info!("the upstream servers were read anew"),
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(
                        error,
                        "the configuration cannot be read anew; everything stays as it is"
                    );
                }
            }
        }
    }

    /// Everything is read before anything changes.
    fn reload(&mut self) -> anyhow::Result<()> {
        let loaded = Loaded::read(self.place.config.as_deref(), self.place.data.as_deref())?;
        let mut changes = Vec::new();
        for (index, upstream) in self.upstreams.iter().enumerate() {
            let named = loaded.config.models.iter().find(|model| model.name == upstream.name);
            let Some(EngineConfig::Upstream(config)) = named.map(|model| &model.engine) else {
                tracing::warn!(
                    model = upstream.name,
                    "taking a model out, or its engine, needs a restart; it stays"
                );
                continue;
            };
            let servers = config.servers().with_context(|| format!("the model {}", upstream.name))?;
            changes.push((index, servers, config.clone()));
        }
        for (index, servers, config) in changes {
            let upstream = &mut self.upstreams[index];
            upstream
                .engine
                .replace_servers(&servers)
                .with_context(|| format!("the model {}", upstream.name))?;
            warn_of_the_rest(&upstream.name, &upstream.config, &config);
            tracing::info!(
                model = upstream.name,
                endpoints = servers.endpoints.join(", "),
                "upstream servers"
            );
        }
        Ok(())
    }
}

/// A change that does nothing must be told.
fn warn_of_the_rest(model: &str, running: &UpstreamConfig, read: &UpstreamConfig) {
    let UpstreamConfig { endpoints, api_key_file, .. } = read.clone();
    if (UpstreamConfig { endpoints, api_key_file, ..running.clone() }) != *read {
        tracing::warn!(
            model,
            "only endpoints and api_key_file are read anew; the other changes need a restart"
        );
    }
}
