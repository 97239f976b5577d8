//! Foreign keys and insert triggers of the target. They are disabled while tables are filled one after the other, then
//! restored and validated in the same transaction, so that no other session sees the database without them.

use super::{fetch_all, map_target_error, schemas_differ};
use crate::db::from_row;
use crate::db::tables::TABLES;
use crate::transfer::TransferError;
use tokio_postgres::Client;

/// A foreign key (then `is_foreign_key`), or a trigger.
struct Constraint {
    table_name: String,
    constraint_name: String,
    definition: String,
    is_foreign_key: bool,
    on_insert: bool,
    state: String,
}

from_row!(Constraint {
    table_name,
    constraint_name,
    definition,
    is_foreign_key: "is_reference",
    on_insert,
    state
});

/// Only rules of the tables themselves: partitions inherit them.
const RULES: &str = "SELECT t.relname::text AS table_name, r.conname::text AS constraint_name, \
        pg_get_constraintdef(r.oid) AS definition, true AS is_reference, true AS on_insert, \
        r.convalidated::text AS state \
    FROM pg_catalog.pg_constraint r JOIN pg_catalog.pg_class t ON t.oid = r.conrelid \
    WHERE r.contype = 'f' AND r.conparentid = 0 \
        AND t.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema()) AND t.relname = ANY($1) \
    UNION ALL SELECT t.relname::text, r.tgname::text, pg_get_triggerdef(r.oid), false, (r.tgtype & 4) <> 0, r.tgenabled::text \
    FROM pg_catalog.pg_trigger r JOIN pg_catalog.pg_class t ON t.oid = r.tgrelid \
    WHERE NOT r.tgisinternal AND r.tgparentid = 0 \
        AND t.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema()) AND t.relname = ANY($1) \
    ORDER BY table_name, constraint_name";

/// The constraints before they were disabled.
pub(super) struct Constraints(Vec<Constraint>);

impl Constraints {
    pub(super) async fn disable(target: &Client) -> Result<Self, TransferError> {
        let constraints = read(target).await?;
        let statements = constraints.iter().filter(|constraint| constraint.on_insert).map(|constraint| {
            let Constraint { table_name, constraint_name, .. } = constraint;
            let statement = match constraint.is_foreign_key {
                true => format!("ALTER TABLE \"{table_name}\" DROP CONSTRAINT \"{constraint_name}\""),
                false => format!("ALTER TABLE \"{table_name}\" DISABLE TRIGGER \"{constraint_name}\""),
            };
            (table_name.as_str(), statement)
        });
        run(target, statements.collect()).await?;
        Ok(Self(constraints))
    }

    /// Fails if a row violates a foreign key.
    pub(super) async fn restore(self, target: &Client) -> Result<(), TransferError> {
        let statements = self.0.iter().filter(|constraint| constraint.on_insert).map(|constraint| {
            let Constraint { table_name, constraint_name, definition, .. } = constraint;
            let statement = match constraint.is_foreign_key {
                true => {
                    format!("ALTER TABLE \"{table_name}\" ADD CONSTRAINT \"{constraint_name}\" {definition}")
                }
                false => format!("ALTER TABLE \"{table_name}\" ENABLE TRIGGER \"{constraint_name}\""),
            };
            (table_name.as_str(), statement)
        });
        run(target, statements.collect()).await?;
        let (before, after) = (self.0, read(target).await?);
        if before.len() != after.len() {
            return Err(schemas_differ("some constraints could not be restored".to_owned()));
        }
        let changed = before.iter().zip(&after).find(|(before, after)| !before.equals(after));
        match changed {
            Some((before, _)) => {
                let Constraint { table_name, constraint_name, .. } = before;
                Err(schemas_differ(format!(
                    "constraint {constraint_name} of {table_name} could not be restored"
                )))
            }
            None => Ok(()),
        }
    }
}

impl Constraint {
    fn equals(&self, other: &Self) -> bool {
        self.table_name == other.table_name
            && self.constraint_name == other.constraint_name
            && self.definition == other.definition
            && self.state == other.state
    }
}

async fn read(target: &Client) -> Result<Vec<Constraint>, TransferError> {
    fetch_all(target, RULES, &[&TABLES]).await
}

/// Each statement comes with its table.
async fn run(target: &Client, statements: Vec<(&str, String)>) -> Result<(), TransferError> {
    for (table, statement) in statements {
        let table = TABLES.iter().find(|name| **name == table).copied().unwrap_or_default();
        let run = target.batch_execute(&statement).await;
        run.map_err(|error| map_target_error(table, error))?;
    }
    Ok(())
}
