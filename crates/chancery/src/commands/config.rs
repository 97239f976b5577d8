//! `chancery config`: what is set, where, and whether it can be used.

use crate::cli::{Config as Command, Place};
use crate::config::Loaded;
use crate::output::{print_json, say};

pub fn run(place: &Place, command: &Command) -> anyhow::Result<()> {
    let loaded = Loaded::read(place.config.as_deref(), place.data.as_deref())?;
    loaded.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    match command {
        Command::Check => say!("the configuration can be used"),
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
