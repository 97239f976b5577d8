//! Changes of a client: its details, whether it is archived, and whose it is. Each is its next version.

use crate::clients::rows::{LockFor, StoredClient};
use crate::clients::search::{replace_words, sort_name, words_of};
use crate::clients::types::{Changed, ClientChange, Ownership};
use crate::clients::versions::add_client_version;
use crate::db::error_codes::with_timeout;
use crate::db::{Conn, FromRow, Row, Statement, query};
use chancery_domain::{Asked, Client, ClientId, PersonId};
use chancery_policy::{Act, Permit};
use std::collections::HashMap;

/// Clients that one statement locks or changes.
const MAX_CLIENTS_AT_ONCE: usize = 500;

const SET_FACTS: &str = "UPDATE clients SET version = $2, name = $3, sort_name = $4, contact = $5, email = $6, \
    telephone = $7, address = $8, since_day = $9 WHERE id = $1";
const SET_ARCHIVED: &str =
    "UPDATE clients SET version = version + 1, archived_at_ms = $2, is_archived = $3 WHERE id = $1";
const SET_WORDS_ARCHIVED: &str = "UPDATE client_words SET is_archived = $2 WHERE client_id = $1";

impl FromRow for Ownership {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self { client: ClientId(row.get("id")?), owner: PersonId(row.get("owner_id")?) })
    }
}

/// Whether the client is whose it was when the policy was asked.
pub(crate) fn is_still_owned<A: Act>(owners: &HashMap<ClientId, PersonId>, permit: &Permit<A>) -> bool {
    permit.client().and_then(|client| owners.get(&client).copied()) == permit.owner()
}

/// Changes what is different, if the version is still the one that was seen.
pub(crate) async fn change_client(
    conn: &mut Conn<'_>,
    asked: &Asked,
    StoredClient { client: now, .. }: StoredClient,
    change: &ClientChange,
) -> Result<Changed<Client>, sqlx::Error> {
    if now.version != change.version {
        return Ok(Changed::Conflict(now));
    }
    let wanted = Client { name: change.name.clone(), facts: change.facts.clone(), ..now.clone() };
    if wanted == now {
        return Ok(Changed::Saved(now));
    }
    let saved = Client { version: now.version.next(), ..wanted };
    let facts = &saved.facts;
    let set = query(SET_FACTS)
        .bind(saved.id.0)
        .bind(saved.version.0)
        .bind(saved.name.as_str())
        .bind(sort_name(&saved.name))
        .bind(facts.contact.as_str())
        .bind(facts.email.as_str())
        .bind(facts.telephone.as_str())
        .bind(facts.address.as_str())
        .bind(facts.since.map(|day| i64::from(day.0)));
    set.execute(conn).await?;
    add_client_version(conn, asked, saved.id).await?;
    if words_of(saved.id, &saved.name, &saved.facts) != words_of(now.id, &now.name, &now.facts) {
        replace_words(conn, &saved).await?;
    }
    Ok(Changed::Saved(saved))
}

pub(crate) async fn archive_client(
    conn: &mut Conn<'_>,
    asked: &Asked,
    StoredClient { client: now, .. }: StoredClient,
    is_archived: bool,
) -> Result<Changed<Client>, sqlx::Error> {
    if now.archived_at.is_some() == is_archived {
        return Ok(Changed::Saved(now));
    }
    let archived_at = is_archived.then_some(asked.at);
    let set = query(SET_ARCHIVED).bind(now.id.0).bind(archived_at.map(|at| at.0)).bind(is_archived);
    set.execute(conn).await?;
    query(SET_WORDS_ARCHIVED).bind(now.id.0).bind(is_archived).execute(conn).await?;
    add_client_version(conn, asked, now.id).await?;
    Ok(Changed::Saved(Client { version: now.version.next(), archived_at, ..now }))
}

/// The owners of those that are there, locked in the order of their numbers, so that nobody waits for somebody who waits.
pub(crate) async fn lock_owners(
    conn: &mut Conn<'_>,
    mut clients: Vec<ClientId>,
    purpose: LockFor,
) -> Result<HashMap<ClientId, PersonId>, sqlx::Error> {
    clients.sort_unstable();
    let mut owners = HashMap::new();
    for clients in clients.chunks(MAX_CLIENTS_AT_ONCE) {
        let mut lock = Statement::new("SELECT c.id, c.owner_id FROM clients c WHERE c.id IN ");
        lock.push_list(clients.iter().map(|client| client.0));
        lock.push(" ORDER BY c.id").push(purpose.suffix(conn.dialect()));
        let lock = lock.build().persistent(clients.len() == 1);
        let rows: Vec<Ownership> = with_timeout(lock.fetch_all(conn)).await?;
        owners.extend(rows.into_iter().map(|row| (row.client, row.owner)));
    }
    Ok(owners)
}

/// Gives the clients another owner, by one decision's principal and time.
pub(crate) async fn move_clients(
    conn: &mut Conn<'_>,
    asked: &Asked,
    clients: &[ClientId],
    to: PersonId,
) -> Result<(), sqlx::Error> {
    for clients in clients.chunks(MAX_CLIENTS_AT_ONCE) {
        for update in [
            ("UPDATE clients SET version = version + 1, owner_id = ", " WHERE id IN "),
            ("UPDATE client_words SET owner_id = ", " WHERE client_id IN "),
        ] {
            let mut set = Statement::new(update.0);
            set.push_bind(to.0).push(update.1).push_list(clients.iter().map(|client| client.0));
            with_timeout(set.build().persistent(clients.len() == 1).execute(conn)).await?;
        }
        for client in clients {
            add_client_version(conn, asked, *client).await?;
        }
    }
    Ok(())
}
