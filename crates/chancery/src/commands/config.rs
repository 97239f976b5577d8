//! `chancery config`: what is set, where, and whether it can be used.

use crate::cli::{Config as Command, Place};
use crate::config::{EngineConfig, Loaded, ModelConfig};
use crate::output::{print_json, say};
use anyhow::Context;
use chancery_engine_cpu::Plan;

pub fn run(place: &Place, command: &Command) -> anyhow::Result<()> {
    let loaded = Loaded::read(place.config.as_deref(), place.data.as_deref())?;
    match command {
        Command::Check => {
            let models: Vec<_> = loaded.config.models.iter().filter_map(ModelConfig::to_load).collect();
            let (there, missing): (Vec<_>, Vec<_>) = models.into_iter().partition(|(file, _)| file.exists());
            for plan in Plan::for_models(&there)? {
                say!("{plan}");
            }
            for (file, options) in missing {
                eprintln!("warning: the model {} has no file {} yet", options.name, file.display());
            }
            for model in &loaded.config.models {
                if let EngineConfig::Upstream(upstream) = &model.engine {
                    upstream.servers().with_context(|| format!("the model {}", model.name))?;
                    upstream.token_counter().with_context(|| format!("the model {}", model.name))?;
                }
            }
            say!("the configuration can be used");
        }
        Command::Show { json: true } => print_json(&loaded.settings)?,
        Command::Show { json: false } => {
            for setting in &loaded.settings {
                let value = setting.value.as_deref().unwrap_or_default();
                say!("{} = {value:?}  # {}", setting.key, setting.origin);
            }
        }
    }
    Ok(())
}
