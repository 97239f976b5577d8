//! SIGHUP: the configuration is read again, and the servers of upstream models become those that it names now, with the key
//! that its file has now. Nothing else changes while the server runs, and what would is told. Requests that run end where they
//! are. A configuration that cannot be used changes nothing, of any model.

use super::models::UpstreamModel;
use crate::cli::Place;
use crate::config::{EngineConfig, Loaded, Setting};
use anyhow::Context;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use tokio::signal::unix::{self, SignalKind, signal};

/// Keys of a model that are read anew.
const READ_ANEW: [&str; 2] = ["endpoints", "api_key_file"];

/// SIGHUP. Watched from the first moment on, whatever is served, so that it never ends a service; one that comes during the
/// start is heeded after it.
pub struct HangUps {
    signal: unix::Signal,
    /// Whether it was started at a terminal, whose closing sends this signal too.
    began_at_a_terminal: bool,
}

impl HangUps {
    pub fn watch() -> anyhow::Result<Self> {
        let signal = signal(SignalKind::hangup()).context("SIGHUP cannot be watched")?;
        Ok(Self { signal, began_at_a_terminal: std::io::stderr().is_terminal() })
    }

    async fn next(&mut self) -> Option<()> {
        self.signal.recv().await
    }

    fn is_terminal_gone(&self) -> bool {
        self.began_at_a_terminal && !std::io::stderr().is_terminal()
    }
}

pub struct Reloader {
    pub place: Place,
    pub upstreams: Vec<UpstreamModel>,
    /// As the server was started with.
    pub settings: Vec<Setting>,
}

impl Reloader {
    pub async fn run(self, mut hang_ups: HangUps) {
        while hang_ups.next().await.is_some() {
            if hang_ups.is_terminal_gone() {
                // Nobody sees it any more, and its ports would stay taken: it ends as if it were told to.
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TERM);
                continue;
            }
            if self.upstreams.is_empty() {
                tracing::info!(
                    "SIGHUP changes nothing here: only servers of upstream models are read anew, and there are none"
                );
                continue;
            }
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

    /// Everything is read and checked before anything changes.
    fn reload(&self) -> anyhow::Result<()> {
        let loaded = Loaded::read(self.place.config.as_deref(), self.place.data.as_deref())?;
        let mut changes = Vec::new();
        for upstream in &self.upstreams {
            let named = loaded.config.models.iter().find(|model| model.name == upstream.name);
            let Some(EngineConfig::Upstream(config)) = named.map(|model| &model.engine) else {
                tracing::warn!(
                    model = upstream.name,
                    "taking a model out, or its engine, needs a restart; it stays"
                );
                continue;
            };
            let of_model = || format!("the model {}", upstream.name);
            let servers = config.servers().with_context(of_model)?;
            let checked = upstream.engine.check_servers(&servers).with_context(of_model)?;
            changes.push((upstream, checked, servers.endpoints.join(", ")));
        }
        for (upstream, servers, endpoints) in changes {
            upstream.engine.replace_servers(servers);
            tracing::info!(model = upstream.name, endpoints, "upstream servers");
        }
        let waiting = needs_a_restart(&self.settings, &loaded.settings);
        if !waiting.is_empty() {
            let keys = waiting.into_iter().collect::<Vec<_>>().join(", ");
            tracing::warn!(
                keys,
                "only endpoints and api_key_file of upstream models are read anew; these keys have changed and need a restart"
            );
        }
        Ok(())
    }
}

/// Keys whose value is another now, though it has no effect. Values are left out: some are secrets.
fn needs_a_restart(running: &[Setting], read: &[Setting]) -> BTreeSet<String> {
    let values = |settings: &[Setting]| -> BTreeMap<String, Option<String>> {
        settings.iter().map(|setting| (setting.key.clone(), setting.value.clone())).collect()
    };
    let (running, read) = (values(running), values(read));
    let is_read_anew = |key: &str| {
        let name = key.strip_prefix("models.").and_then(|key| key.split_once('.'));
        name.is_some_and(|(_, name)| READ_ANEW.contains(&name))
    };
    let keys = running.keys().chain(read.keys());
    let changed =
        keys.filter(|key| running.get(*key).cloned().flatten() != read.get(*key).cloned().flatten());
    changed.filter(|key| !is_read_anew(key)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_key_that_is_not_read_anew_is_named() {
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
        let named: Vec<String> = needs_a_restart(&running, &read).into_iter().collect();
        assert_eq!(named, ["models.0.input_per_million", "models.1.name"]);
        assert!(needs_a_restart(&running, &running).is_empty());
    }
}
