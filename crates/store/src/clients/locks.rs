//! How clients are locked while they are read or changed, with the check that their owner is still the one that the policy
//! saw.

use crate::ClientError;
use crate::audit::principal::{ensure_principal_unchanged, push_principal_unchanged};
use crate::clients::rows::{SELECT_CLIENTS, StoredClient};
use crate::clients::types::ClientOwner;
use crate::db::error_codes::with_timeout;
use crate::db::{Conn, Dialect, FromRow, Query, Row, Statement, TxError};
use chancery_domain::{ClientId, PersonId};
use chancery_policy::{AuthzAction, Permit};
use std::collections::HashMap;

/// Clients per statement.
pub(crate) const MAX_CLIENTS_PER_STATEMENT: usize = 500;

impl FromRow for ClientOwner {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self { client: ClientId(row.get("id")?), owner: PersonId(row.get("owner_id")?) })
    }
}

/// Why rows are locked until the transaction ends. SQLite has one writer and needs no locks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockMode {
    Reading,
    Changing,
}

impl LockMode {
    pub(crate) fn suffix(self, dialect: Dialect) -> &'static str {
        match (dialect, self) {
            (Dialect::Sqlite, _) => "",
            (Dialect::Postgres, Self::Reading) => " FOR SHARE OF c",
            (Dialect::Postgres, Self::Changing) => " FOR NO KEY UPDATE OF c",
        }
    }
}

pub(crate) async fn lock_client(
    conn: &mut Conn<'_>,
    client: ClientId,
    mode: LockMode,
) -> Result<Option<StoredClient>, sqlx::Error> {
    let mut read = Statement::new(SELECT_CLIENTS);
    read.push(" FROM clients c JOIN people p ON p.id = c.owner_id WHERE c.id = ").push_bind(client.0);
    read.push(mode.suffix(conn.dialect()));
    read.build().fetch_optional(conn).await
}

fn owner_changed<A: AuthzAction>(permit: &Permit<A>) -> TxError<ClientError> {
    ClientError::OwnerChanged(permit.client().unwrap_or(ClientId(0))).into()
}

/// Locks the client of the permit. `None` if it does not exist and did not exist for the policy. Fails with
/// `OwnerChanged` if the owner is not the one that the policy saw.
pub(crate) async fn lock_for_change<A: AuthzAction>(
    conn: &mut Conn<'_>,
    permit: &Permit<A>,
) -> Result<Option<StoredClient>, TxError<ClientError>> {
    // No client has this id.
    let client = permit.client().unwrap_or(ClientId(i64::MIN));
    match (permit.owner(), lock_client(conn, client, LockMode::Changing).await?) {
        (None, None) => Ok(None),
        (Some(owner), Some(found)) if found.client.owner.id == owner => Ok(Some(found)),
        _ => Err(owner_changed(permit)),
    }
}

/// The same check in the transaction that records a decision to read. It reads nothing else of the client.
pub(crate) async fn ensure_owner_unchanged<A: AuthzAction>(
    conn: &mut Conn<'_>,
    permit: &Permit<A>,
) -> Result<Option<ClientId>, TxError<ClientError>> {
    let client = permit.client().unwrap_or(ClientId(i64::MIN));
    let owners = lock_owners(conn, vec![client], LockMode::Reading).await?;
    match (permit.owner(), owners.get(&client)) {
        (None, None) => Ok(None),
        (Some(owner), Some(found)) if *found == owner => Ok(Some(client)),
        _ => Err(owner_changed(permit)),
    }
}

/// The client of a permit whose decision is recorded. Fails with `OwnerChanged` if it has another owner by now, and with
/// `PrincipalChanged` if the principal has another role or was removed.
pub(crate) async fn permitted_client<A: AuthzAction>(
    conn: &mut Conn<'_>,
    permit: &Permit<A>,
) -> Result<StoredClient, TxError<ClientError>> {
    match find_permitted_client(conn, permit).await? {
        Some(found) => Ok(found),
        None => Err(why_not_permitted(conn, permit).await),
    }
}

/// Why `select_permitted_client` found nothing.
pub(crate) async fn why_not_permitted<A: AuthzAction>(
    conn: &mut Conn<'_>,
    permit: &Permit<A>,
) -> TxError<ClientError> {
    match ensure_principal_unchanged::<ClientError>(conn, permit.by()).await {
        Ok(()) => owner_changed(permit),
        Err(error) => error,
    }
}

/// The client of a permit, if it has the owner and the principal has the role that the policy saw.
pub(crate) async fn find_permitted_client<A: AuthzAction>(
    conn: &mut Conn<'_>,
    permit: &Permit<A>,
) -> Result<Option<StoredClient>, sqlx::Error> {
    select_permitted_client(permit).fetch_optional(conn).await
}

/// Selects a `StoredClient`. A permit for no client, or for one without an owner, finds nothing.
pub(crate) fn select_permitted_client<A: AuthzAction>(permit: &Permit<A>) -> Query<'static> {
    let (client, owner) = (permit.client().map(|client| client.0), permit.owner().map(|owner| owner.0));
    let mut read = Statement::new(SELECT_CLIENTS);
    read.push(" FROM clients c JOIN people p ON p.id = c.owner_id WHERE c.id = ").push_bind(client);
    read.push(" AND c.owner_id = ").push_bind(owner);
    push_principal_unchanged(&mut read, permit.by());
    read.build()
}

/// Whether the owner is still the one that the policy saw.
pub(crate) fn is_owner_unchanged<A: AuthzAction>(
    owners: &HashMap<ClientId, PersonId>,
    permit: &Permit<A>,
) -> bool {
    permit.client().and_then(|client| owners.get(&client).copied()) == permit.owner()
}

/// The owners of existing clients, locked in id order to avoid deadlocks.
pub(crate) async fn lock_owners(
    conn: &mut Conn<'_>,
    mut clients: Vec<ClientId>,
    mode: LockMode,
) -> Result<HashMap<ClientId, PersonId>, sqlx::Error> {
    clients.sort_unstable();
    let mut owners = HashMap::new();
    for clients in clients.chunks(MAX_CLIENTS_PER_STATEMENT) {
        let mut lock = Statement::new("SELECT c.id, c.owner_id FROM clients c WHERE c.id IN ");
        lock.push_list(clients.iter().map(|client| client.0));
        lock.push(" ORDER BY c.id").push(mode.suffix(conn.dialect()));
        let lock = lock.build().persistent(clients.len() == 1);
        let rows: Vec<ClientOwner> = with_timeout(lock.fetch_all(conn)).await?;
        owners.extend(rows.into_iter().map(|row| (row.client, row.owner)));
    }
    Ok(owners)
}
