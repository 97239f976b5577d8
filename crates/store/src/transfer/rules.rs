//! What the target does by itself when rows are added: it looks whether what they refer to is there, counts them elsewhere,
//! and refuses what comes out of order. Rows that move have all of that behind them, and tables are filled one after the
//! other, so these rules are off meanwhile. They are put back, and looked at again, in the same transaction: nobody ever
//! sees the database without them. References are checked for all rows at once when they are put back.

use super::{not_alike, refused_by_target};
use crate::db::tables::TABLES;
use crate::db::{FromRow, Row};
use crate::transfer::TransferError;
use sqlx::{AssertSqlSafe, PgConnection};

/// A reference to another table (then `is_reference`), or a trigger.
struct Rule {
    table_name: String,
    rule_name: String,
    definition: String,
    is_reference: bool,
    on_insert: bool,
    state: String,
}

impl FromRow for Rule {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            table_name: row.get("table_name")?,
            rule_name: row.get("rule_name")?,
            definition: row.get("definition")?,
            is_reference: row.get("is_reference")?,
            on_insert: row.get("on_insert")?,
            state: row.get("state")?,
        })
    }
}

/// Those of the tables themselves: partitions have theirs from the whole.
const RULES: &str = "SELECT t.relname::text AS table_name, r.conname::text AS rule_name, \
        pg_get_constraintdef(r.oid) AS definition, true AS is_reference, true AS on_insert, \
        r.convalidated::text AS state \
    FROM pg_catalog.pg_constraint r JOIN pg_catalog.pg_class t ON t.oid = r.conrelid \
    WHERE r.contype = 'f' AND r.conparentid = 0 \
        AND t.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema()) AND t.relname = ANY($1) \
    UNION ALL SELECT t.relname::text, r.tgname::text, pg_get_triggerdef(r.oid), false, (r.tgtype & 4) <> 0, r.tgenabled::text \
    FROM pg_catalog.pg_trigger r JOIN pg_catalog.pg_class t ON t.oid = r.tgrelid \
    WHERE NOT r.tgisinternal AND r.tgparentid = 0 \
        AND t.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema()) AND t.relname = ANY($1) \
    ORDER BY table_name, rule_name";

/// The rules as they were before they were taken down.
pub(super) struct Rules(Vec<Rule>);

impl Rules {
    pub(super) async fn take_down(target: &mut PgConnection) -> Result<Self, TransferError> {
        let rules = read(target).await?;
        let statements = rules.iter().filter(|rule| rule.on_insert).map(|rule| {
            let Rule { table_name, rule_name, .. } = rule;
            let statement = match rule.is_reference {
                true => format!("ALTER TABLE \"{table_name}\" DROP CONSTRAINT \"{rule_name}\""),
                false => format!("ALTER TABLE \"{table_name}\" DISABLE TRIGGER \"{rule_name}\""),
            };
            (table_name.as_str(), statement)
        });
        run(target, statements.collect()).await?;
        Ok(Self(rules))
    }

    /// Fails where a row refers to one that is not there.
    pub(super) async fn put_back(self, target: &mut PgConnection) -> Result<(), TransferError> {
        let statements = self.0.iter().filter(|rule| rule.on_insert).map(|rule| {
            let Rule { table_name, rule_name, definition, .. } = rule;
            let statement = match rule.is_reference {
                true => format!("ALTER TABLE \"{table_name}\" ADD CONSTRAINT \"{rule_name}\" {definition}"),
                false => format!("ALTER TABLE \"{table_name}\" ENABLE TRIGGER \"{rule_name}\""),
            };
            (table_name.as_str(), statement)
        });
        run(target, statements.collect()).await?;
        let (before, after) = (self.0, read(target).await?);
        if before.len() != after.len() {
            return Err(not_alike("its rules could not all be put back".to_owned()));
        }
        let changed = before.iter().zip(&after).find(|(before, after)| !before.equals(after));
        match changed {
            Some((before, _)) => {
                let Rule { table_name, rule_name, .. } = before;
                Err(not_alike(format!(
                    "the rule {rule_name} of {table_name} could not be put back as it was"
                )))
            }
            None => Ok(()),
        }
    }
}

impl Rule {
    fn equals(&self, other: &Self) -> bool {
        self.table_name == other.table_name
            && self.rule_name == other.rule_name
            && self.definition == other.definition
            && self.state == other.state
    }
}

async fn read(target: &mut PgConnection) -> Result<Vec<Rule>, TransferError> {
    let rules = sqlx::query(RULES).bind(TABLES).fetch_all(target).await?;
    Ok(rules.into_iter().map(|row| Rule::from_row(&Row::Postgres(row))).collect::<Result<_, _>>()?)
}

/// Each statement with the table that it is about.
async fn run(target: &mut PgConnection, statements: Vec<(&str, String)>) -> Result<(), TransferError> {
    for (table, statement) in statements {
        let table = TABLES.iter().find(|name| **name == table).copied().unwrap_or_default();
        let run = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *target).await;
        run.map_err(|error| refused_by_target(table, &error))?;
    }
    Ok(())
}
