//! Two macros that let a query be written once for both databases. They are macros and not generics because a generic
//! store would repeat a page of trait bounds on every block, and the derive that sqlx offers for rows would compile
//! sqlx and tokio a second time for the build machine.

/// Writes the same trait implementation for `SqliteStore` and for `PostgresStore`. Inside, `self.reader` is a pool for
/// reading and `self.writer().await?` a connection for writing.
macro_rules! for_both_stores {
    (impl $aggregate:ident { $($methods:tt)* }) => {
        #[async_trait::async_trait]
        impl $aggregate for crate::sqlite::SqliteStore { $($methods)* }

        #[async_trait::async_trait]
        impl $aggregate for crate::postgres::PostgresStore { $($methods)* }
    };
}

/// Declares a struct whose fields are the columns of a result, by name, in either database.
macro_rules! stored_row {
    ($(#[$doc:meta])* struct $row:ident { $($column:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $row { $(pub(crate) $column: $kind,)* }

        impl sqlx::FromRow<'_, sqlx::sqlite::SqliteRow> for $row {
            fn from_row(row: &sqlx::sqlite::SqliteRow) -> Result<Self, sqlx::Error> {
                Ok(Self { $($column: sqlx::Row::try_get(row, stringify!($column))?,)* })
            }
        }

        impl sqlx::FromRow<'_, sqlx::postgres::PgRow> for $row {
            fn from_row(row: &sqlx::postgres::PgRow) -> Result<Self, sqlx::Error> {
                Ok(Self { $($column: sqlx::Row::try_get(row, stringify!($column))?,)* })
            }
        }
    };
}

pub(crate) use {for_both_stores, stored_row};
