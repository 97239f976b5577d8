//! SIGHUP: re-reads the certificate files and the configuration, and loads, replaces and removes models (`model_set`). Nothing else
//! changes at run time; other changed settings are logged as needing a restart. Running requests finish with the model and the
//! servers they started on. An invalid configuration changes no model at all.

use super::descriptors::ServersPerRequest;
use super::model_set::ModelSet;
use super::servers_per_request;
use super::tls::Certificates;
use crate::cli::GlobalArgs;
use crate::config::{Loaded, Setting};
use anyhow::Context;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::sync::Arc;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::{Mutex, Notify};

/// SIGHUP. Watched from the very start, whatever is served, so that it never kills the process. A signal during startup is
/// handled after it.
pub struct HangUps {
    signal: unix::Signal,
    /// Whether the process started on a terminal; closing the terminal sends this signal too.
    started_at_terminal: bool,
}

impl HangUps {
    pub fn watch() -> anyhow::Result<Self> {
        let signal = signal(SignalKind::hangup()).context("cannot watch SIGHUP")?;
        Ok(Self { signal, started_at_terminal: std::io::stderr().is_terminal() })
    }

    async fn next(&mut self) -> Option<()> {
        self.signal.recv().await
    }

    fn is_terminal_gone(&self) -> bool {
        self.started_at_terminal && !std::io::stderr().is_terminal()
    }
}

pub struct Reloader {
    pub global_args: GlobalArgs,
    /// `None` if this process does not serve the API.
    pub models: Option<Arc<Mutex<ModelSet>>>,
    pub certificates: Arc<Certificates>,
    /// The settings that the server started with.
    pub settings: Vec<Setting>,
    /// What the connection limits of the listeners were derived from.
    pub servers_per_request: ServersPerRequest,
}

impl Reloader {
    pub async fn run(self, mut hang_ups: HangUps) {
        let (reloader, requested) = (Arc::new(self), Arc::new(Notify::new()));
        // Loading a model takes time, and the next signal may be for the certificates or from a terminal that is gone.
        if let Some(models) = reloader.models.clone() {
            tokio::spawn(Arc::clone(&reloader).reload_models(models, Arc::clone(&requested)));
        }
        while hang_ups.next().await.is_some() {
            if hang_ups.is_terminal_gone() {
                // The terminal is gone, and its user would find the ports still in use: shut down as if by SIGTERM.
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TERM);
                continue;
            }
            reloader.reload_certificates();
            if reloader.models.is_none() && !reloader.certificates.has_files() {
                tracing::info!("SIGHUP ignored: no models and no certificate files to reload");
            }
            requested.notify_one();
        }
    }

    fn reload_certificates(&self) {
        if !self.certificates.has_files() {
            return;
        }
        match self.certificates.reload() {
            Ok(()) => tracing::info!("certificates reloaded"),
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "certificates not reloaded, keeping the current ones");
            }
        }
    }

    /// Signals that arrive during a reload cause one more, which reads the configuration again.
    async fn reload_models(self: Arc<Self>, models: Arc<Mutex<ModelSet>>, requested: Arc<Notify>) {
        loop {
            requested.notified().await;
            match self.reload(&models).await {
                Ok(()) => tracing::info!("configuration reloaded"),
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(error, "reload failed, keeping the current configuration");
                }
            }
        }
    }

    /// Reads and checks everything before changing anything.
    async fn reload(&self, models: &Mutex<ModelSet>) -> anyhow::Result<()> {
        let mut models = models.lock().await;
        let loaded = Loaded::read(self.global_args.config.as_deref(), self.global_args.data.as_deref())?;
        models.apply(&loaded.config.models).await?;
        if servers_per_request(&loaded.config) > self.servers_per_request {
            tracing::warn!(
                "connection limits do not include the new upstream servers yet; restart when it suits, for their share of file descriptors"
            );
        }
        let changed = keys_needing_restart(&self.settings, &loaded.settings);
        if !changed.is_empty() {
            let keys = changed.into_iter().collect::<Vec<_>>().join(", ");
            tracing::warn!(keys, "changed keys need a restart; only models and certificates are reloaded");
        }
        Ok(())
    }
}

/// Returns keys whose changed value has no effect yet. Values are left out because some are secrets.
fn keys_needing_restart(running: &[Setting], read: &[Setting]) -> BTreeSet<String> {
    let values = |settings: &[Setting]| -> BTreeMap<String, Option<String>> {
        settings.iter().map(|setting| (setting.key.clone(), setting.value.clone())).collect()
    };
    let (running, read) = (values(running), values(read));
    let keys = running.keys().chain(read.keys());
    let changed =
        keys.filter(|key| running.get(*key).cloned().flatten() != read.get(*key).cloned().flatten());
    changed.filter(|key| !key.starts_with("models.")).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_keys_that_need_a_restart_are_listed() {
        let settings = |values: &[(&str, Option<&str>)]| -> Vec<Setting> {
            let setting = |(key, value): &(&str, Option<&str>)| Setting {
                key: (*key).to_owned(),
                value: value.map(str::to_owned),
                origin: String::new(),
            };
            values.iter().map(setting).collect()
        };
        let running = settings(&[
            ("api.listen", Some("127.0.0.1:8080")),
            ("ops.listen", Some("127.0.0.1:8083")),
            ("portal.drafting.model", None),
            ("models.0.endpoints", Some("a")),
            ("models.0.input_per_million", Some("0.10")),
        ]);
        let read = settings(&[
            ("api.listen", Some("127.0.0.1:8080")),
            ("ops.listen", Some("127.0.0.1:9083")),
            ("portal.drafting.model", Some("new")),
            ("models.0.endpoints", Some("b")),
            ("models.0.input_per_million", Some("0.20")),
            ("models.1.name", Some("new")),
        ]);
        let named: Vec<String> = keys_needing_restart(&running, &read).into_iter().collect();
        assert_eq!(named, ["ops.listen", "portal.drafting.model"]);
        assert!(keys_needing_restart(&running, &running).is_empty());
    }
}
