//! `chancery config`: shows and checks the settings.

use crate::cli::{Config as Command, GlobalArgs};
use crate::config::{EngineConfig, Loaded, ModelConfig, Setting};
use crate::output::{outln, print_json};
use crate::serve::tls::{Certificates, ServedListeners};
use anyhow::Context;
use chancery_engine_cpu::Plan;

pub fn run(global_args: &GlobalArgs, command: &Command) -> anyhow::Result<()> {
    let loaded = Loaded::read(global_args.config.as_deref(), global_args.data.as_deref())?;
    match command {
        Command::Check => {
            let models: Vec<_> = loaded.config.models.iter().filter_map(ModelConfig::to_load).collect();
            let (there, missing): (Vec<_>, Vec<_>) = models.into_iter().partition(|(file, _)| file.exists());
            for plan in Plan::for_models(&there)? {
                outln!("{plan}");
            }
            for (file, options) in missing {
                eprintln!("warning: model {}: file not found: {}", options.name, file.display());
            }
            for model in &loaded.config.models {
                if let EngineConfig::Upstream(upstream) = &model.engine {
                    upstream.servers().with_context(|| format!("model {}", model.name))?;
                    upstream.token_counter().with_context(|| format!("model {}", model.name))?;
                }
            }
            loaded.config.billing.pdf_fonts()?;
            Certificates::load(&loaded.config, ServedListeners { api: true, portal: true, auth: true })?;
            outln!("configuration OK");
        }
        Command::Show { json } => {
            let settings: Vec<Setting> = loaded.settings.into_iter().map(Setting::masked).collect();
            if *json {
                return print_json(&settings);
            }
            for setting in &settings {
                let value = setting.value.as_deref().unwrap_or_default();
                outln!("{} = {value:?}  # {}", setting.key, setting.origin);
            }
        }
    }
    Ok(())
}
