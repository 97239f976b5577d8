//! `chancery model`: model files on this machine.

use crate::cli::{GlobalArgs, Model as Command};
use crate::config::{EngineConfig, Loaded};
use crate::model_catalog::{self, CatalogModel};
use crate::model_pull::{self, PullOutcome};
use crate::output::{outln, print_json, print_table};
use anyhow::bail;

pub fn run(global_args: &GlobalArgs, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Pull { name } => pull(&name),
        Command::List { json } => list(global_args, json),
    }
}

fn pull(name: &str) -> anyhow::Result<()> {
    let Some(known) = model_catalog::named(name) else {
        let names: Vec<&str> = model_catalog::ALL.iter().map(|known| known.name).collect();
        bail!("unknown model {name}; available: {}", names.join(", "));
    };
    match model_pull::pull(known)? {
        PullOutcome::AlreadyPresent => eprintln!("{name} is already downloaded"),
        PullOutcome::Downloaded => eprintln!("{name} downloaded and verified"),
    }
    // Only the path goes to standard output, for scripts.
    outln!("{}", known.path().display());
    Ok(())
}

#[derive(serde::Serialize)]
struct Row {
    name: String,
    configured: bool,
    present: bool,
    file: String,
    input_per_million: String,
    /// `None`: cached tokens cost as much as other input.
    cached_input_per_million: Option<String>,
    output_per_million: String,
}

fn list(global_args: &GlobalArgs, json: bool) -> anyhow::Result<()> {
    let config = Loaded::read(global_args.config.as_deref(), global_args.data.as_deref())?.config;
    let configured = config.models.iter().map(|model| Row {
        name: model.name.clone(),
        configured: true,
        present: model.embedded().is_none_or(|embedded| embedded.file.exists()),
        file: match &model.engine {
            EngineConfig::Embedded(embedded) => embedded.file.display().to_string(),
            EngineConfig::Upstream(upstream) => upstream.endpoints.join(", "),
        },
        input_per_million: model.prices.input.to_string(),
        cached_input_per_million: model.prices.cached_discount().map(|price| price.to_string()),
        output_per_million: model.prices.output.to_string(),
    });
    let is_new = |known: &&&CatalogModel| config.models.iter().all(|model| model.name != known.name);
    let pullable = model_catalog::ALL.iter().filter(is_new).map(|known| Row {
        name: known.name.to_owned(),
        configured: false,
        present: known.path().exists(),
        file: known.path().display().to_string(),
        input_per_million: known.input_per_million.to_owned(),
        cached_input_per_million: None,
        output_per_million: known.output_per_million.to_owned(),
    });
    let rows: Vec<Row> = configured.chain(pullable).collect();
    if json {
        return print_json(&rows);
    }
    let cells = |row: &Row| {
        let state = match (row.configured, row.present) {
            (true, true) => "served",
            (true, false) => "file missing",
            (false, true) => "pulled",
            (false, false) => "available",
        };
        vec![
            row.name.clone(),
            state.to_owned(),
            row.input_per_million.clone(),
            row.cached_input_per_million.as_ref().unwrap_or(&row.input_per_million).clone(),
            row.output_per_million.clone(),
            row.file.clone(),
        ]
    };
    let headings = ["NAME", "STATE", "INPUT/MILLION", "CACHED/MILLION", "OUTPUT/MILLION", "FILE"];
    print_table(&headings, &rows.iter().map(cells).collect::<Vec<_>>());
    Ok(())
}
