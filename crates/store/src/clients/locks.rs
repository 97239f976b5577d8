//! How clients are locked while they are read or changed, with the check that their owner is still the one that the policy
//! saw.

use crate::ClientError;
use crate::clients::rows::{SELECT_CLIENTS, StoredClient};
use crate::clients::types::ClientOwner;
use crate::db::{Dialect, QueryError, Statement, Tx, from_row};
use chancery_domain::{ClientId, PersonId};
use chancery_policy::{AuthzAction, Permit};
use std::collections::HashMap;

/// Clients per statement.
pub(crate) const MAX_CLIENTS_PER_STATEMENT: usize = 500;

from_row!(ClientOwner { client: "id", owner: "owner_id" });

/// Why rows are locked until the transaction ends. SQLite has one writer and needs no locks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockMode {
    Reading,
    Changing,
}

impl LockMode {
    fn suffix(self, dialect: Dialect) -> &'static str {
        match (dialect, self) {
            (Dialect::Sqlite, _) => "",
            (Dialect::Postgres, Self::Reading) => " FOR SHARE OF c",
            (Dialect::Postgres, Self::Changing) => " FOR NO KEY UPDATE OF c",
        }
    }
}

pub(crate) fn lock_client(
    tx: &mut Tx<'_>,
    client: ClientId,
    mode: LockMode,
) -> Result<Option<StoredClient>, QueryError> {
    let mut read = Statement::new(SELECT_CLIENTS);
    read.push(" FROM clients c JOIN people p ON p.id = c.owner_id WHERE c.id = ").push_bind(client.0);
    read.push(mode.suffix(tx.dialect()));
    read.build().fetch_optional(tx)
}

/// Locks the client of the permit, to change it. `None` if it does not exist and did not exist for the policy. Fails with
/// `OwnerChanged` if the owner is not the one that the policy saw.
pub(crate) fn lock_for_change<A: AuthzAction>(
    tx: &mut Tx<'_>,
    permit: &Permit<A>,
) -> Result<Option<StoredClient>, ClientError> {
    lock_permitted(tx, permit, LockMode::Changing)
}

/// Locks the client of the permit against changes, with the same result as `lock_for_change`.
pub(crate) fn lock_for_reading<A: AuthzAction>(
    tx: &mut Tx<'_>,
    permit: &Permit<A>,
) -> Result<Option<StoredClient>, ClientError> {
    lock_permitted(tx, permit, LockMode::Reading)
}

fn lock_permitted<A: AuthzAction>(
    tx: &mut Tx<'_>,
    permit: &Permit<A>,
    mode: LockMode,
) -> Result<Option<StoredClient>, ClientError> {
    // No client has this id.
    let client = permit.client().unwrap_or(ClientId(i64::MIN));
    match (permit.owner(), lock_client(tx, client, mode)?) {
        (None, None) => Ok(None),
        (Some(owner), Some(found)) if found.client.owner.id == owner => Ok(Some(found)),
        _ => Err(ClientError::OwnerChanged(permit.client().unwrap_or(ClientId(0)))),
    }
}

/// Whether the owner is still the one that the policy saw.
pub(crate) fn is_owner_unchanged<A: AuthzAction>(
    owners: &HashMap<ClientId, PersonId>,
    permit: &Permit<A>,
) -> bool {
    permit.client().and_then(|client| owners.get(&client).copied()) == permit.owner()
}

/// The owners of existing clients, locked in id order to avoid deadlocks.
pub(crate) fn lock_owners(
    tx: &mut Tx<'_>,
    mut clients: Vec<ClientId>,
    mode: LockMode,
) -> Result<HashMap<ClientId, PersonId>, QueryError> {
    clients.sort_unstable();
    let mut owners = HashMap::new();
    for clients in clients.chunks(MAX_CLIENTS_PER_STATEMENT) {
        let mut lock = Statement::new("SELECT c.id, c.owner_id FROM clients c WHERE c.id IN ");
        lock.push_list(clients.iter().map(|client| client.0));
        lock.push(" ORDER BY c.id").push(mode.suffix(tx.dialect()));
        let lock = lock.build().persistent(clients.len() == 1);
        let rows: Vec<ClientOwner> = lock.fetch_all(tx)?;
        owners.extend(rows.into_iter().map(|row| (row.client, row.owner)));
    }
    Ok(owners)
}
