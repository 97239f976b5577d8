//! SIGHUP: re-reads the certificate files, and the configuration, and replaces the servers and API keys of upstream models.
//! Nothing else changes at run time; other changed settings are logged as needing a restart. Running requests finish on the
//! servers they started on. An invalid configuration changes no model at all.

use super::models::UpstreamModel;
use super::tls::Certificates;
use crate::cli::GlobalArgs;
use crate::config::{EngineConfig, Loaded, Setting};
use anyhow::Context;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::sync::Arc;
use tokio::signal::unix::{self, SignalKind, signal};

/// Model keys that a reload applies.
const RELOADABLE: [&str; 3] = ["endpoints", "api_key_file", "allow_cleartext"];

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
    pub upstreams: Vec<UpstreamModel>,
    pub certificates: Arc<Certificates>,
    /// The settings that the server started with.
    pub settings: Vec<Setting>,
}

impl Reloader {
    pub async fn run(self, mut hang_ups: HangUps) {
        while hang_ups.next().await.is_some() {
            if hang_ups.is_terminal_gone() {
                // The terminal is gone, and its user would find the ports still in use: shut down as if by SIGTERM.
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TERM);
                continue;
            }
            self.reload_certificates();
            if self.upstreams.is_empty() {
                if !self.certificates.has_files() {
                    tracing::info!("SIGHUP ignored: no upstream models and no certificate files to reload");
                }
                continue;
            }
            match self.reload() {
                Ok(()) => tracing::info!("upstream servers reloaded"),
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(error, "reload failed, keeping the current configuration");
                }
            }
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

    /// Reads and checks everything before changing anything.
    fn reload(&self) -> anyhow::Result<()> {
        let loaded = Loaded::read(self.global_args.config.as_deref(), self.global_args.data.as_deref())?;
        let mut changes = Vec::new();
        for upstream in &self.upstreams {
            let named = loaded.config.models.iter().find(|model| model.name == upstream.name);
            let Some(EngineConfig::Upstream(config)) = named.map(|model| &model.engine) else {
                tracing::warn!(
                    model = upstream.name,
                    "removing a model or changing its engine needs a restart; keeping it"
                );
                continue;
            };
            let of_model = || format!("model {}", upstream.name);
            let servers = config.servers().with_context(of_model)?;
            let checked = upstream.engine.check_servers(&servers).with_context(of_model)?;
            changes.push((upstream, checked, servers.endpoints.join(", ")));
        }
        for (upstream, servers, endpoints) in changes {
            upstream.engine.replace_servers(servers);
            tracing::info!(model = upstream.name, endpoints, "upstream servers");
        }
        let changed = keys_needing_restart(&self.settings, &loaded.settings);
        if !changed.is_empty() {
            let keys = changed.into_iter().collect::<Vec<_>>().join(", ");
            tracing::warn!(
                keys,
                "changed keys need a restart; only endpoints and api_key_file of upstream models are reloaded"
            );
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
    let is_reloadable = |key: &str| {
        let name = key.strip_prefix("models.").and_then(|key| key.split_once('.'));
        name.is_some_and(|(_, name)| RELOADABLE.contains(&name))
    };
    let keys = running.keys().chain(read.keys());
    let changed =
        keys.filter(|key| running.get(*key).cloned().flatten() != read.get(*key).cloned().flatten());
    changed.filter(|key| !is_reloadable(key)).cloned().collect()
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
            ("models.0.endpoints", Some("a")),
            ("models.0.api_key_file", None),
            ("models.0.input_per_million", Some("0.10")),
            ("models.0.tokenizer", None),
        ]);
        let read = settings(&[
            ("api.listen", Some("127.0.0.1:8080")),
            ("models.0.endpoints", Some("b")),
            ("models.0.api_key_file", Some("k")),
            ("models.0.input_per_million", Some("0.20")),
            ("models.1.name", Some("new")),
        ]);
        let named: Vec<String> = keys_needing_restart(&running, &read).into_iter().collect();
        assert_eq!(named, ["models.0.input_per_million", "models.1.name"]);
        assert!(keys_needing_restart(&running, &running).is_empty());
    }
}
