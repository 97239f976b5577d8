//! `chancery client export`: writes all clients with their entries to one file. It appears under its name only when
//! complete, and only its owner can read it.

use crate::cli::ExportClients as Options;
use crate::client_file::{format_of, is_stdio};
use crate::operator::Operator;
use crate::output::counting_progress;
use crate::output_file;
use anyhow::{Context, bail};
use chancery_client_files::{ClientWriter, Format};
use chancery_domain::{Currency, group_thousands};
use chancery_policy::{ClientResource, ExportClient, FirmResource, ListClients};
use chancery_store::{AdminStore, ClientError, ClientOwner, RecordPart, RecordReader};
use std::io::{BufWriter, Write};
use std::path::Path;

/// Clients that are decided on at a time.
const EXPORT_PAGE_SIZE: u32 = 100;
/// Attempts for a client whose owner changes during the read.
const ATTEMPTS: usize = 3;

/// How the file is written.
#[derive(Clone, Copy)]
struct FileTarget {
    format: Format,
    /// Of the amounts of disputes.
    currency: Currency,
}

#[derive(Default)]
struct ExportSummary {
    clients: u64,
    entries: u64,
}

pub async fn run(store: &AdminStore, currency: Currency, options: &Options) -> anyhow::Result<()> {
    let path = &options.file;
    let target = FileTarget { format: format_of(path, options.format)?, currency };
    let summary = if is_stdio(path) {
        let mut out = BufWriter::new(std::io::stdout());
        let summary = write_all(store, target, &mut out).await?;
        out.flush().context("standard output cannot be written")?;
        summary
    } else {
        write_file(store, target, path, options.force).await?
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
    target: FileTarget,
    path: &Path,
    overwrite: bool,
) -> anyhow::Result<ExportSummary> {
    let mut out = BufWriter::new(output_file::create(path, overwrite)?);
    let summary = write_all(store, target, &mut out).await?;
    let file = out.into_inner().map_err(|error| error.into_error());
    let file = file.with_context(|| output_file::write_error(path))?;
    output_file::persist(file, path, overwrite)?;
    Ok(summary)
}

async fn write_all(
    store: &AdminStore,
    FileTarget { format, currency }: FileTarget,
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
        let mut reader = open_records(store, &operator, page).await?;
        let mut writer: Option<ClientWriter> = None;
        while let Some(parts) = next_page(store, &operator, &mut reader).await? {
            for RecordPart { client, entries, is_last, .. } in parts {
                let mut current = match writer.take() {
                    Some(current) => current,
                    None => format.begin_client(out, client, currency)?,
                };
                current.write_entries(out, &entries)?;
                summary.entries += entries.len() as u64;
                if is_last {
                    current.finish(out)?;
                    summary.clients += 1;
                } else {
                    writer = Some(current);
                }
            }
            progress.set_position(summary.clients);
        }
    }
    progress.finish_and_clear();
    Ok(summary)
}

/// Opens the records of a page in order of number; a client whose owner changes meanwhile is decided on again.
async fn open_records(
    store: &AdminStore,
    operator: &Operator,
    page: Vec<ClientOwner>,
) -> anyhow::Result<RecordReader<ExportClient>> {
    let mut pending = page;
    let mut reader = store.clients.open_records(Vec::new()).await?;
    for _ in 0..ATTEMPTS {
        let mut permits = Vec::with_capacity(pending.len());
        for ClientOwner { client, owner } in &pending {
            let resource = ClientResource { id: *client, owner: Some(*owner) };
            permits.push(operator.authorize::<ExportClient>(store, resource).await?);
        }
        let opened = store.clients.open_records(permits).await?;
        let mut left_out = std::mem::take(&mut pending);
        left_out.retain(|left_out| opened.clients().all(|client| client != left_out.client));
        reader.merge(opened);
        for ClientOwner { client, .. } in left_out {
            if let Some(owner) = store.clients.owner_of(client).await? {
                pending.push(ClientOwner { client, owner });
            }
        }
        if pending.is_empty() {
            return Ok(reader);
        }
    }
    bail!("clients were reassigned during the export; try again")
}

/// The next page. A client whose owner has changed since the last one is decided on again.
async fn next_page(
    store: &AdminStore,
    operator: &Operator,
    reader: &mut RecordReader<ExportClient>,
) -> anyhow::Result<Option<Vec<RecordPart>>> {
    let mut attempts = 1;
    loop {
        let id = match reader.next_page().await {
            // A renewed permit is recorded as a view, so it is renewed only if the page is then read.
            Err(ClientError::OwnerChanged(id)) if attempts < ATTEMPTS => id,
            Err(ClientError::OwnerChanged(_)) => {
                bail!("clients were reassigned during the export; try again")
            }
            outcome => return Ok(outcome?),
        };
        attempts += 1;
        let owner = store.clients.owner_of(id).await?;
        let permit = operator.authorize::<ExportClient>(store, ClientResource { id, owner }).await?;
        match store.clients.renew_permit(permit, reader).await {
            Ok(()) | Err(ClientError::OwnerChanged(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
