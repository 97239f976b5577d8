//! `chancery client import`: validates a whole file, then imports all of its clients or none.

use super::import_lock::{ImportSize, lock_if_large};
use crate::cli::ImportClients;
use crate::client_file::{format_of, is_stdio, read_source};
use crate::config::Config;
use crate::operator::Operator;
use crate::output::{byte_progress, outln, print_json, row_progress};
use anyhow::bail;
use chancery_client_files::{CheckedClient, ClientFile, FileContext, UsersByEmail, read_clients};
use chancery_domain::{ClientId, Clock, Person, SystemClock, group_thousands};
use chancery_policy::NewClientResource;
use chancery_store::AdminStore;

#[derive(serde::Serialize)]
struct Summary {
    clients: u64,
    entries: u64,
    first_id: Option<ClientId>,
    last_id: Option<ClientId>,
    /// Whether the file had client numbers; imported clients get new ones.
    renumbered: bool,
    dry_run: bool,
}

pub async fn run(store: &AdminStore, config: &Config, options: &ImportClients) -> anyhow::Result<()> {
    let format = format_of(&options.file, options.format)?;
    let text = read_source(&options.file)?;
    let people = people(store).await?;
    let progress = byte_progress(text.len() as u64, "reading");
    let context = FileContext { now: SystemClock.now(), currency: config.billing.currency };
    let file = read_clients(&text, format, &people, context, |bytes| progress.set_position(bytes));
    progress.finish_and_clear();
    let file = match file {
        Ok(file) => file,
        Err(problems) => {
            let name = if is_stdio(&options.file) {
                "standard input".into()
            } else {
                options.file.to_string_lossy()
            };
            let (count, s) =
                (group_thousands(problems.count()), if problems.count() == 1 { "" } else { "s" });
            bail!("{name}: {count} problem{s}, nothing imported:\n{problems}")
        }
    };
    let mut summary = Summary {
        clients: file.clients.len() as u64,
        entries: file.entries() as u64,
        first_id: None,
        last_id: None,
        renumbered: file.has_numbers,
        dry_run: options.dry_run,
    };
    let size = ImportSize { clients: summary.clients, entries: summary.entries, bytes: text.len() as u64 };
    let serving_lock = lock_if_large(&config.database_url, size).await;
    if options.dry_run {
        // A dry run only warns: the obstacle may be gone by the time of the import.
        if let Err(error) = &serving_lock {
            eprintln!("warning: the import would fail now: {error}");
        }
    } else {
        let serving_lock = serving_lock?;
        let ids = write(store, file).await?;
        if let Some(serving_lock) = serving_lock {
            serving_lock.release().await;
        }
        (summary.first_id, summary.last_id) = (ids.first().copied(), ids.last().copied());
    }
    if options.json {
        return print_json(&summary);
    }
    print(&summary);
    Ok(())
}

/// Includes people who were removed.
async fn people(store: &AdminStore) -> anyhow::Result<UsersByEmail> {
    let removed: Vec<Person> =
        store.people.list_removed_people().await?.into_iter().map(|removed| removed.person).collect();
    Ok(UsersByEmail::new(&store.people.list_people().await?, &removed))
}

/// Returns the ids of the new clients. The demo firm uses this too.
pub async fn write(store: &AdminStore, file: ClientFile) -> anyhow::Result<Vec<ClientId>> {
    if file.clients.is_empty() {
        return Ok(Vec::new());
    }
    let operator = Operator::new()?;
    let mut permitted = Vec::with_capacity(file.clients.len());
    for CheckedClient { owner, new } in file.clients {
        permitted.push((operator.authorize(store, NewClientResource(owner)).await?, new));
    }
    let progress = row_progress(permitted.len() as u64, "importing clients");
    let written = store.client_imports.import_clients(permitted, &|done| progress.set_position(done)).await;
    progress.finish_and_clear();
    Ok(written?)
}

fn print(summary: &Summary) {
    let count = |number: u64, one: &str, many: &str| {
        format!("{} {}", group_thousands(number), if number == 1 { one } else { many })
    };
    let clients = count(summary.clients, "client", "clients");
    let entries = count(summary.entries, "entry", "entries");
    match (summary.first_id, summary.last_id) {
        (Some(first), Some(last)) if first == last => {
            outln!("imported {clients} and {entries}: number {first}");
        }
        (Some(first), Some(last)) => outln!("imported {clients} and {entries}: numbers {first} to {last}"),
        _ if summary.dry_run => outln!("dry run: {clients} and {entries} can be imported"),
        _ => outln!("no clients in the file; nothing imported"),
    }
    if summary.renumbered {
        outln!("the file's `id` values are ignored: imported clients get new numbers");
    }
}
