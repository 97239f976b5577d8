//! Two macros that let a query be written once for both databases. They are macros and not generics because a generic
//! store would repeat a page of trait bounds on every block, and the derive that sqlx offers for rows would compile
//! sqlx and tokio a second time for the build machine.

/// Writes the same trait implementation for `SqliteStore` and for `PostgresStore`. Inside, `self.reader` is a pool for
/// reading, `self.long_reader` one for what may take minutes, and `self.writer().await?` a connection for writing.
macro_rules! for_both_stores {
    (impl $aggregate:ident { $($methods:tt)* }) => {
        #[async_trait::async_trait]
        impl $aggregate for crate::db::sqlite::SqliteStore { $($methods)* }

        #[async_trait::async_trait]
        impl $aggregate for crate::db::postgres::PostgresStore { $($methods)* }
    };
}

/// Writes the same trait implementation for a connection to either database: steps of a transaction that several methods of
/// the stores have in common. Inside, `&mut *self` runs a statement, and `Statement::<Self>` builds one.
macro_rules! for_both_connections {
    (impl $steps:ident { $($methods:tt)* }) => {
        #[async_trait::async_trait]
        impl $steps for sqlx::SqliteConnection { $($methods)* }

        #[async_trait::async_trait]
        impl $steps for sqlx::PgConnection { $($methods)* }
    };
}

/// A statement that is put together, for what a fixed text cannot say: lists, and conditions that are there or not.
pub(crate) type Statement<C> = sqlx::QueryBuilder<<C as sqlx::Connection>::Database>;

/// Adds a parameter for each number of a list, in parentheses.
macro_rules! push_list {
    ($statement:expr, $numbers:expr) => {{
        $statement.push("(");
        let mut list = $statement.separated(", ");
        for number in $numbers {
            list.push_bind(number);
        }
        $statement.push(")");
    }};
}

/// Declares a struct whose fields are the columns of a result, by name, in either database. `..more: Row` is a field for
/// the columns of another such struct. `named by` says which column an error names the row by.
macro_rules! stored_row {
    (
        $(#[$doc:meta])*
        struct $row:ident $(named by $name:ident)? {
            $($column:ident: $kind:ty,)*
            $(..$more:ident: $more_kind:ty,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $row {
            $(pub(crate) $column: $kind,)*
            $(pub(crate) $more: $more_kind,)?
        }

        stored_row!(@read $row, sqlx::sqlite::SqliteRow, ($($name)?), ($($column)*), ($($more)?));
        stored_row!(@read $row, sqlx::postgres::PgRow, ($($name)?), ($($column)*), ($($more)?));
    };
    (@read $row:ident, $source:ty, ($($name:ident)?), ($($column:ident)*), ($($more:ident)?)) => {
        impl sqlx::FromRow<'_, $source> for $row {
            fn from_row(row: &$source) -> Result<Self, sqlx::Error> {
                let read = || {
                    Ok(Self {
                        $($column: sqlx::Row::try_get(row, stringify!($column))?,)*
                        $($more: sqlx::FromRow::from_row(row)?,)?
                    })
                };
                read().map_err(|error| crate::db::error_codes::naming_the_row(error, stored_row!(@name row $($name)?)))
            }
        }
    };
    (@name $source:ident) => { None };
    (@name $source:ident $name:ident) => { sqlx::Row::try_get($source, stringify!($name)).ok() };
}

pub(crate) use {for_both_connections, for_both_stores, push_list, stored_row};
