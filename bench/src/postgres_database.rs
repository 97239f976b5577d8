//! A PostgreSQL database for one run.

use sqlx::{Connection, Executor, PgConnection};

/// A database of this run's own.
pub struct PostgresDatabase {
    admin_url: String,
    name: String,
}

impl PostgresDatabase {
    pub async fn create(admin_url: &str) -> Self {
        let name = format!("chancery_bench_{}", std::process::id());
        let database = Self { admin_url: admin_url.to_owned(), name };
        database.order("create database").await;
        database
    }

    pub fn url(&self) -> String {
        format!("{}/{}", self.admin_url.rsplit_once('/').unwrap().0, self.name)
    }

    pub async fn drop_it(&self) {
        self.order("drop database").await;
    }

    async fn order(&self, what: &str) {
        let mut connection = PgConnection::connect(&self.admin_url).await.unwrap();
        let statement = sqlx::AssertSqlSafe(format!("{what} {}", self.name));
        connection.execute(sqlx::raw_sql(statement)).await.unwrap();
    }
}
