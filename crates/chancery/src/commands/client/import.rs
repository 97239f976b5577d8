//! `chancery client import`: all clients of a file or none of them, after everything in it was looked at.

use super::import_alone::{Size, alone_if_large};
use crate::cli::ImportClients;
use crate::client_file::{format_of, is_standard, read_source};
use crate::operator::Operator;
use crate::output::{byte_progress, print_json, row_progress, say};
use anyhow::bail;
use chancery_client_files::{CheckedClient, ClientFile, PeopleByAddress, read_clients};
use chancery_domain::{ClientId, Clock, Person, SystemClock, grouped};
use chancery_policy::NewClientFor;
use chancery_store::{AdminStore, DatabaseUrl};

#[derive(serde::Serialize)]
struct Summary {
    clients: u64,
    entries: u64,
    first_id: Option<ClientId>,
    last_id: Option<ClientId>,
    /// Whether the file had numbers, which are not taken over.
    renumbered: bool,
    dry_run: bool,
}

pub async fn run(store: &AdminStore, database: &DatabaseUrl, options: &ImportClients) -> anyhow::Result<()> {
    let format = format_of(&options.file, options.format)?;
    let text = read_source(&options.file)?;
    let people = people(store).await?;
    let progress = byte_progress(text.len() as u64, "reading");
    let file = read_clients(&text, format, &people, SystemClock.now(), |bytes| progress.set_position(bytes));
    progress.finish_and_clear();
    let file = match file {
        Ok(file) => file,
        Err(problems) => {
            let name = if is_standard(&options.file) {
                "standard input".into()
            } else {
                options.file.to_string_lossy()
            };
            let (count, s) = (grouped(problems.count()), if problems.count() == 1 { "" } else { "s" });
            bail!("{name} has {count} problem{s}, and nothing was imported:\n{problems}")
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
    let size = Size { clients: summary.clients, entries: summary.entries, bytes: text.len() as u64 };
    let alone = alone_if_large(database, size).await;
    if options.dry_run {
        // What is in the way today need not be tomorrow.
        if let Err(in_the_way) = &alone {
            eprintln!("not just now: {in_the_way}");
        }
    } else {
        let alone = alone?;
        let ids = write(store, file).await?;
        if let Some(alone) = alone {
            alone.release().await;
        }
        (summary.first_id, summary.last_id) = (ids.first().copied(), ids.last().copied());
    }
    if options.json {
        return print_json(&summary);
    }
    print(&summary);
    Ok(())
}

/// Everybody who is or was of the firm.
async fn people(store: &AdminStore) -> anyhow::Result<PeopleByAddress> {
    let removed: Vec<Person> =
        store.people.list_removed_people().await?.into_iter().map(|removed| removed.person).collect();
    Ok(PeopleByAddress::new(&store.people.list_people().await?, &removed))
}

/// Gives the clients' numbers. The demonstration firm is made by it too.
pub async fn write(store: &AdminStore, file: ClientFile) -> anyhow::Result<Vec<ClientId>> {
    if file.clients.is_empty() {
        return Ok(Vec::new());
    }
    let operator = Operator::new()?;
    let mut permitted = Vec::with_capacity(file.clients.len());
    for CheckedClient { owner, new } in file.clients {
        permitted.push((operator.ask(store, NewClientFor(owner)).await?, new));
    }
    let progress = row_progress(permitted.len() as u64, "importing clients");
    let written = store.client_imports.import_clients(permitted, &|done| progress.set_position(done)).await;
    progress.finish_and_clear();
    Ok(written?)
}

fn print(summary: &Summary) {
    let count = |number: u64, one: &str, many: &str| {
        format!("{} {}", grouped(number), if number == 1 { one } else { many })
    };
    let clients = count(summary.clients, "client", "clients");
    let entries = count(summary.entries, "entry", "entries");
    match (summary.first_id, summary.last_id) {
        (Some(first), Some(last)) if first == last => {
            say!("imported {clients} with {entries}, as number {first}");
        }
        (Some(first), Some(last)) => say!("imported {clients} with {entries}, as numbers {first} to {last}"),
        _ if summary.dry_run => say!("{clients} with {entries} can be imported; nothing was written"),
        _ => say!("the file has no clients; nothing was written"),
    }
    if summary.renumbered {
        say!("the file's own numbers (`id`) are not taken over: the firm counts its clients itself");
    }
}
