//! A parameter of a statement, for either database.

use rusqlite::types::ToSqlOutput;
use tokio_postgres::types::{IsNull, ToSql, Type, private::BytesMut};

/// A NULL has a type too, because PostgreSQL requires one.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Integer(Option<i64>),
    Boolean(Option<bool>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

impl Value {
    pub(super) fn postgres_type(&self) -> Type {
        match self {
            Self::Integer(_) => Type::INT8,
            Self::Boolean(_) => Type::BOOL,
            Self::Text(_) => Type::TEXT,
            Self::Bytes(_) => Type::BYTEA,
        }
    }
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Integer(value) => rusqlite::ToSql::to_sql(value),
            Self::Boolean(value) => rusqlite::ToSql::to_sql(value),
            Self::Text(value) => rusqlite::ToSql::to_sql(value),
            Self::Bytes(value) => rusqlite::ToSql::to_sql(value),
        }
    }
}

impl ToSql for Value {
    fn to_sql(
        &self,
        declared: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Integer(value) => ToSql::to_sql(value, declared, out),
            Self::Boolean(value) => ToSql::to_sql(value, declared, out),
            Self::Text(value) => ToSql::to_sql(value, declared, out),
            Self::Bytes(value) => ToSql::to_sql(value, declared, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn to_sql_checked(
        &self,
        declared: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        // Parameters are declared with the values' types, unless a cached statement is used with others.
        if *declared != self.postgres_type() {
            return Err(format!("a value of type {} is used as {declared}", self.postgres_type()).into());
        }
        ToSql::to_sql(self, declared, out)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Integer(Some(value))
    }
}

impl From<Option<i64>> for Value {
    fn from(value: Option<i64>) -> Self {
        Self::Integer(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Boolean(Some(value))
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(Some(value.to_owned()))
    }
}

impl From<Option<&str>> for Value {
    fn from(value: Option<&str>) -> Self {
        Self::Text(value.map(ToOwned::to_owned))
    }
}

impl From<Option<String>> for Value {
    fn from(value: Option<String>) -> Self {
        Self::Text(value)
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(Some(value))
    }
}

impl From<&[u8]> for Value {
    fn from(value: &[u8]) -> Self {
        Self::Bytes(Some(value.to_vec()))
    }
}

impl From<Option<&[u8]>> for Value {
    fn from(value: Option<&[u8]>) -> Self {
        Self::Bytes(value.map(<[u8]>::to_vec))
    }
}

impl From<Vec<u8>> for Value {
    fn from(value: Vec<u8>) -> Self {
        Self::Bytes(Some(value))
    }
}
