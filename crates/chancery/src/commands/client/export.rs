//! `chancery client export`: every client with its entries into one file, which appears under its name once it is whole, and
//! which only its maker may read.

use crate::cli::ExportClients as Options;
use crate::client_file::{format_of, is_standard};
use crate::new_file;
use crate::operator::Operator;
use crate::output::counting_progress;
use anyhow::{Context, bail};
use chancery_client_files::Format;
use chancery_domain::{ClientId, grouped};
use chancery_policy::{ClientInQuestion, ExportClient, ListClients, TheFirm};
use chancery_store::{AdminStore, ClientRecord, Ownership};
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Clients that are read at once, with all their entries.
const CLIENTS_AT_ONCE: u32 = 100;
/// How often a client that changes hands in that moment is asked for again.
const ATTEMPTS: usize = 3;

#[derive(Default)]
struct Written {
    clients: u64,
    entries: u64,
}

pub async fn run(store: &AdminStore, options: &Options) -> anyhow::Result<()> {
    let (path, format) = (&options.file, format_of(&options.file, options.format)?);
    let written = if is_standard(path) {
        let mut out = BufWriter::new(std::io::stdout());
        let written = write_all(store, format, &mut out).await?;
        out.flush().context("standard output cannot be written")?;
        written
    } else {
        write_file(store, format, path, options.force).await?
    };
    // On standard error, for standard output may be the file.
    let Written { clients, entries } = written;
    eprintln!("exported {} clients with {} entries", grouped(clients), grouped(entries));
    Ok(())
}

async fn write_file(
    store: &AdminStore,
    format: Format,
    path: &Path,
    may_replace: bool,
) -> anyhow::Result<Written> {
    let mut out = BufWriter::new(new_file::create(path, may_replace)?);
    let written = write_all(store, format, &mut out).await?;
    let file = out.into_inner().map_err(|error| error.into_error());
    let file = file.with_context(|| new_file::cannot_be_written(path))?;
    new_file::persist(file, path, may_replace)?;
    Ok(written)
}

async fn write_all(store: &AdminStore, format: Format, out: &mut impl Write) -> anyhow::Result<Written> {
    let operator = Operator::new()?;
    let whose = operator.ask::<ListClients>(store, TheFirm).await?;
    let progress = counting_progress("clients exported:");
    let mut written = Written::default();
    let mut last = None;
    format.write_head(out)?;
    loop {
        let page = store.clients.ownerships(&whose, None, last, CLIENTS_AT_ONCE).await?;
        let Some(end) = page.last() else { break };
        last = Some(end.client);
        for record in records(store, &operator, &page).await? {
            let ClientRecord { client, entries, .. } = &record;
            format.write_client(out, client, entries)?;
            written.clients += 1;
            written.entries += entries.len() as u64;
        }
        progress.set_position(written.clients);
    }
    progress.finish_and_clear();
    Ok(written)
}

/// All of them, by number: those that change hands meanwhile are asked for again.
async fn records(
    store: &AdminStore,
    operator: &Operator,
    page: &[Ownership],
) -> anyhow::Result<Vec<ClientRecord>> {
    let mut wanted = page.to_vec();
    let mut found: BTreeMap<ClientId, ClientRecord> = BTreeMap::new();
    for _ in 0..ATTEMPTS {
        let mut permits = Vec::with_capacity(wanted.len());
        for Ownership { client, owner } in &wanted {
            let about = ClientInQuestion { id: *client, owner: Some(*owner) };
            permits.push(operator.ask::<ExportClient>(store, about).await?);
        }
        let read = store.clients.export_clients(permits).await?;
        found.extend(read.into_iter().map(|record| (record.client.id, record)));
        let mut left_out = Vec::new();
        for Ownership { client, .. } in wanted {
            if !found.contains_key(&client)
                && let Some(owner) = store.clients.owner_of(client).await?
            {
                left_out.push(Ownership { client, owner });
            }
        }
        if left_out.is_empty() {
            return Ok(found.into_values().collect());
        }
        wanted = left_out;
    }
    bail!("clients are changing hands just now; try again")
}
