//! `chancery client import`: validates a whole file, then imports all of its clients or none.

use super::import_lock::{ImportSize, lock_if_large};
use crate::cli::ImportClients;
use crate::client_file::{ImportFile, format_of, is_stdio};
use crate::config::Config;
use crate::operator::Operator;
use crate::output::{byte_progress, outln, print_json, row_progress};
use anyhow::{Context, bail};
use chancery_client_files::{
    CheckedClient, ClientPart, FileContext, FileSummary, Format, Problems, UsersByEmail, read_parts,
};
use chancery_domain::{ClientId, Clock, Person, PersonId, SystemClock, group_thousands};
use chancery_policy::{CreateClient, NewClientResource};
use chancery_store::{AdminStore, ImportPart};
use std::collections::BTreeSet;
use tokio::sync::mpsc;

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
    let file = ImportFile::open(&options.file, &config.data)?;
    let context = FileContext { now: SystemClock.now(), currency: config.billing.currency };
    let import = Import { file, format, people: people(store).await?, context };
    let mut owners = BTreeSet::new();
    let checked = match import.check(&mut owners)? {
        Ok(checked) => checked,
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
        clients: checked.clients,
        entries: checked.entries,
        first_id: None,
        last_id: None,
        renumbered: checked.has_numbers,
        dry_run: options.dry_run,
    };
    let size = ImportSize { clients: checked.clients, entries: checked.entries, bytes: checked.bytes };
    let serving_lock = lock_if_large(&config.database_url, size).await;
    if options.dry_run {
        // A dry run only warns: the obstacle may be gone by the time of the import.
        if let Err(error) = &serving_lock {
            eprintln!("warning: the import would fail now: {error}");
        }
    } else {
        let serving_lock = serving_lock?;
        let ids = import.write(store, checked, owners).await?;
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

struct Import {
    file: ImportFile,
    format: Format,
    people: UsersByEmail,
    context: FileContext,
}

impl Import {
    fn read(
        &self,
        progress: impl FnMut(u64),
        deliver: &mut dyn FnMut(ClientPart) -> bool,
    ) -> anyhow::Result<Result<FileSummary, Problems>> {
        let source = self.file.reader().context("cannot read the file")?;
        Ok(read_parts(source, self.format, &self.people, self.context, progress, deliver))
    }

    /// Reads the whole file, and collects the owners of its clients.
    fn check(&self, owners: &mut BTreeSet<PersonId>) -> anyhow::Result<Result<FileSummary, Problems>> {
        let progress = byte_progress(self.file.bytes, "reading");
        let checked = self.read(|bytes| progress.set_position(bytes), &mut |part| {
            owners.extend(part.clients.iter().map(|client| client.owner));
            true
        });
        progress.finish_and_clear();
        checked
    }

    /// Reads the file again, while its clients are written. Returns their ids.
    async fn write(
        self,
        store: &AdminStore,
        checked: FileSummary,
        owners: BTreeSet<PersonId>,
    ) -> anyhow::Result<Vec<ClientId>> {
        let operator = Operator::new()?;
        for owner in owners {
            // Records a denial, which cannot be done during the transaction.
            drop(operator.authorize::<CreateClient>(store, NewClientResource(owner)).await?);
        }
        let progress = row_progress(checked.clients, "importing clients");
        let (sender, parts) = mpsc::channel(1);
        let reading = tokio::task::spawn_blocking(move || {
            let mut send = |ClientPart { more_entries, clients }| {
                let permitted = clients.into_iter().map(|CheckedClient { owner, new }| {
                    operator.decide(NewClientResource(owner)).ok().map(|permit| (permit, new))
                });
                let Some(clients) = permitted.collect::<Option<Vec<_>>>() else { return false };
                sender.blocking_send(ImportPart::Clients { more_entries, clients }).is_ok()
            };
            // Without an end, nothing is imported: the file changed after it was checked.
            if self.read(|_| {}, &mut send)?.is_ok_and(|read| read == checked) {
                sender.blocking_send(ImportPart::End).ok();
            }
            anyhow::Ok(())
        });
        let written = store.client_imports.import_parts(parts, &|done| progress.set_position(done)).await;
        progress.finish_and_clear();
        let ids = written?;
        reading.await??;
        Ok(ids)
    }
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
