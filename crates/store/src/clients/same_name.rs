//! Clients with the same name, for a warning before another one is created. Names that differ in case or accents only
//! are the same.

use crate::clients::list_filter::restrict_owner;
use crate::clients::rows::SELECT_CLIENTS;
use crate::clients::search::sort_name;
use crate::db::{Query, QueryError, Statement, Tx};
use chancery_domain::{Client, ClientName, PersonId};
use chancery_policy::ClientScope;

/// How many clients the warning lists at most.
pub const MAX_SAME_NAME_CLIENTS: u32 = 5;

/// Only clients in the scope, archived ones too, by id.
pub(crate) fn clients_with_name(
    tx: &mut Tx<'_>,
    scope: ClientScope,
    name: &ClientName,
) -> Result<Vec<Client>, QueryError> {
    let Some(owner) = restrict_owner(scope, None) else { return Ok(Vec::new()) };
    select_same_name(&sort_name(name), owner).fetch_all(tx)
}

/// Both values of `is_archived` are named, because the indexes have that column before the name.
fn select_same_name(sort_name: &str, owner: Option<PersonId>) -> Query {
    let mut read = Statement::new(SELECT_CLIENTS);
    read.push(" FROM clients c JOIN people p ON p.id = c.owner_id WHERE c.sort_name = ");
    read.push_bind(sort_name).push(" AND c.is_archived IN (").push_bind(false).push(", ");
    read.push_bind(true).push(")");
    if let Some(owner) = owner {
        read.push(" AND c.owner_id = ").push_bind(owner.0);
    }
    read.push(" ORDER BY c.id LIMIT ").push_bind(i64::from(MAX_SAME_NAME_CLIENTS));
    read.build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::db::query_plan;

    /// A consultant's lookup takes no time by other people's clients.
    #[tokio::test]
    async fn equal_names_are_looked_up_in_the_name_index() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        for (owner, condition) in [
            (Some(PersonId(1)), "clients_name_of_owner (owner_id=? AND is_archived=? AND sort_name=?)"),
            (None, "is_archived=? AND sort_name=?)"),
        ] {
            let plan = query_plan(&store.db, &select_same_name("harbour lane bakery", owner)).await;
            assert!(plan.iter().any(|(_, _, detail)| detail.contains(condition)), "{plan:?}");
        }
        store.close().await;
    }
}
