//! `chancery model`: model files on this machine.

use crate::catalogue::{self, Known};
use crate::cli::{Model as Command, Place};
use crate::config::{EngineConfig, Loaded};
use crate::model_pull::{self, Pulled};
use crate::output::{print_json, print_table, say};
use anyhow::bail;

pub fn run(place: &Place, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Pull { name } => pull(&name),
        Command::List { json } => list(place, json),
    }
}

fn pull(name: &str) -> anyhow::Result<()> {
    let Some(known) = catalogue::named(name) else {
        let names: Vec<&str> = catalogue::ALL.iter().map(|known| known.name).collect();
        bail!("there is no model {name} to pull; there is {}", names.join(", "));
    };
    match model_pull::pull(known)? {
        Pulled::AlreadyThere => eprintln!("{name} is there already"),
        Pulled::Fetched => eprintln!("{name} is fetched and checked"),
    }
    // The path alone on standard output, for scripts.
    say!("{}", known.path().display());
    Ok(())
}

#[derive(serde::Serialize)]
struct Row {
    name: String,
    configured: bool,
    present: bool,
    file: String,
    input_per_million: String,
    output_per_million: String,
}

fn list(place: &Place, json: bool) -> anyhow::Result<()> {
    let config = Loaded::read(place.config.as_deref(), place.data.as_deref())?.config;
    let configured = config.models.iter().map(|model| Row {
        name: model.name.clone(),
        configured: true,
        present: model.embedded().is_none_or(|embedded| embedded.file.exists()),
        file: match &model.engine {
            EngineConfig::Embedded(embedded) => embedded.file.display().to_string(),
            EngineConfig::Upstream(upstream) => upstream.endpoints.join(", "),
        },
        input_per_million: model.prices.input.to_string(),
        output_per_million: model.prices.output.to_string(),
    });
    let is_new = |known: &&&Known| config.models.iter().all(|model| model.name != known.name);
    let pullable = catalogue::ALL.iter().filter(is_new).map(|known| Row {
        name: known.name.to_owned(),
        configured: false,
        present: known.path().exists(),
        file: known.path().display().to_string(),
        input_per_million: known.input_per_million.to_owned(),
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
            (false, false) => "can be pulled",
        };
        vec![
            row.name.clone(),
            state.to_owned(),
            row.input_per_million.clone(),
            row.output_per_million.clone(),
            row.file.clone(),
        ]
    };
    let headings = ["NAME", "STATE", "INPUT/MILLION", "OUTPUT/MILLION", "FILE"];
    print_table(&headings, &rows.iter().map(cells).collect::<Vec<_>>());
    Ok(())
}
