//! `chancery client list`: every client by number, or those of one owner.

use crate::cli::{ListClients as Options, UserSelector};
use crate::commands::user;
use crate::operator::Operator;
use crate::output::{counting_progress, print_json, print_table};
use chancery_domain::UnixMillis;
use chancery_policy::{FirmResource, ListClients};
use chancery_store::{AdminStore, ClientOrder, ClientQuery, ClientSummary};

#[derive(serde::Serialize)]
struct Row {
    id: i64,
    name: String,
    owner: String,
    contact: String,
    archived: bool,
    open_disputes: u32,
    open_letters: u32,
    /// The earliest due date of the open disputes.
    next_due: Option<String>,
    last_entry_at: Option<String>,
}

pub async fn run(store: &AdminStore, options: &Options) -> anyhow::Result<()> {
    let owner = match &options.owner {
        Some(email) => {
            let selector = UserSelector { email: email.clone(), subject: None, issuer: None };
            Some(user::find(store, &selector).await?.id)
        }
        None => None,
    };
    let operator = Operator::new()?;
    let progress = counting_progress("clients read:");
    let mut rows: Vec<Row> = Vec::new();
    for page in 1.. {
        let query = ClientQuery {
            owner,
            is_archived: options.archived,
            order: ClientOrder::Id,
            page,
            ..ClientQuery::default()
        };
        let permit = operator.authorize::<ListClients>(store, FirmResource).await?;
        let found = store.clients.list_clients(permit, &query).await?;
        let is_last = found.lines.is_empty();
        rows.extend(found.lines.into_iter().map(row));
        progress.set_position(rows.len() as u64);
        if is_last || rows.len() as u64 >= found.total.known() {
            break;
        }
    }
    progress.finish_and_clear();
    if options.json {
        return print_json(&rows);
    }
    let cells = |row: &Row| {
        let to_do = match (row.open_disputes, row.open_letters) {
            (0, 0) => "",
            (0, _) => "draft letter",
            (_, 0) => "open dispute",
            _ => "open dispute, draft letter",
        };
        let last = row.last_entry_at.as_ref().map_or("", |at| at.get(..10).unwrap_or(at));
        vec![row.id.to_string(), row.name.clone(), row.owner.clone(), to_do.to_owned(), last.to_owned()]
    };
    print_table(
        &["NUMBER", "NAME", "OWNER", "TO DO", "LAST ENTRY"],
        &rows.iter().map(cells).collect::<Vec<_>>(),
    );
    Ok(())
}

fn row(line: ClientSummary) -> Row {
    let ClientSummary { client, open_disputes, open_letters, next_due } = line;
    Row {
        id: client.id.0,
        name: client.name.to_string(),
        owner: client.owner.email.to_string(),
        contact: client.details.contact.to_string(),
        archived: client.archived_at.is_some(),
        open_disputes,
        open_letters,
        next_due: next_due.map(|day| day.to_string()),
        last_entry_at: client.last_entry_at.map(UnixMillis::to_iso),
    }
}
