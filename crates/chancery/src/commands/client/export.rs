//! `chancery client export`: writes all clients with their entries to one file. It appears under its name only when
//! complete, and only its owner can read it.

use crate::cli::ExportClients as Options;
use crate::client_file::{format_of, is_stdio};
use crate::operator::Operator;
use crate::output::counting_progress;
use crate::output_file;
use anyhow::{Context, bail};
use chancery_client_files::Format;
use chancery_domain::{ClientId, group_thousands};
use chancery_policy::{ClientResource, ExportClient, FirmResource, ListClients};
use chancery_store::{AdminStore, ClientOwner, ClientRecord};
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Clients per read, each with all of its entries.
const EXPORT_PAGE_SIZE: u32 = 100;
/// Attempts for a client whose owner changes during the read.
const ATTEMPTS: usize = 3;

#[derive(Default)]
struct ExportSummary {
    clients: u64,
    entries: u64,
}

pub async fn run(store: &AdminStore, options: &Options) -> anyhow::Result<()> {
    let (path, format) = (&options.file, format_of(&options.file, options.format)?);
    let summary = if is_stdio(path) {
        let mut out = BufWriter::new(std::io::stdout());
        let summary = write_all(store, format, &mut out).await?;
        out.flush().context("standard output cannot be written")?;
        summary
    } else {
        write_file(store, format, path, options.force).await?
    };
    // Standard output may be the exported file.
    let ExportSummary { clients, entries } = summary;
    let count = |number: u64, one: &str, many: &str| {
        format!("{} {}", group_thousands(number), if number == 1 { one } else { many })
    };
    let (clients, entries) = (count(clients, "client", "clients"), count(entries, "entry", "entries"));
    eprintln!("exported {clients} and {entries}");
    Ok(())
}

async fn write_file(
    store: &AdminStore,
    format: Format,
    path: &Path,
    overwrite: bool,
) -> anyhow::Result<ExportSummary> {
    let mut out = BufWriter::new(output_file::create(path, overwrite)?);
    let summary = write_all(store, format, &mut out).await?;
    let file = out.into_inner().map_err(|error| error.into_error());
    let file = file.with_context(|| output_file::write_error(path))?;
    output_file::persist(file, path, overwrite)?;
    Ok(summary)
}

async fn write_all(
    store: &AdminStore,
    format: Format,
    out: &mut impl Write,
) -> anyhow::Result<ExportSummary> {
    let operator = Operator::new()?;
    let permit = operator.authorize::<ListClients>(store, FirmResource).await?;
    let progress = counting_progress("clients exported:");
    let mut summary = ExportSummary::default();
    let mut last = None;
    format.write_header(out)?;
    loop {
        let page = store.clients.client_owners(&permit, None, last, EXPORT_PAGE_SIZE).await?;
        let Some(end) = page.last() else { break };
        last = Some(end.client);
        for record in records(store, &operator, &page).await? {
            let ClientRecord { client, entries, .. } = &record;
            format.write_client(out, client, entries)?;
            summary.clients += 1;
            summary.entries += entries.len() as u64;
        }
        progress.set_position(summary.clients);
    }
    progress.finish_and_clear();
    Ok(summary)
}

/// Returns the records of a page in order of number; a client whose owner changes meanwhile is read again.
async fn records(
    store: &AdminStore,
    operator: &Operator,
    page: &[ClientOwner],
) -> anyhow::Result<Vec<ClientRecord>> {
    let mut pending = page.to_vec();
    let mut found: BTreeMap<ClientId, ClientRecord> = BTreeMap::new();
    for _ in 0..ATTEMPTS {
        let mut permits = Vec::with_capacity(pending.len());
        for ClientOwner { client, owner } in &pending {
            let resource = ClientResource { id: *client, owner: Some(*owner) };
            permits.push(operator.authorize::<ExportClient>(store, resource).await?);
        }
        let read = store.clients.export_clients(permits).await?;
        found.extend(read.into_iter().map(|record| (record.client.id, record)));
        let mut remaining = Vec::new();
        for ClientOwner { client, .. } in pending {
            if !found.contains_key(&client)
                && let Some(owner) = store.clients.owner_of(client).await?
            {
                remaining.push(ClientOwner { client, owner });
            }
        }
        if remaining.is_empty() {
            return Ok(found.into_values().collect());
        }
        pending = remaining;
    }
    bail!("clients were reassigned during the export; try again")
}
