//! A separate PostgreSQL database per test, on the server that `make test` starts. Statements run through `psql`, independent of
//! our own driver.

use std::hash::{BuildHasher, RandomState};
use std::process::{Command, Stdio};

/// Dropping the value drops the database.
pub struct PostgresDatabase {
    admin_url: String,
    name: String,
}

impl PostgresDatabase {
    pub fn create(purpose: &str) -> Self {
        let admin_url = std::env::var("CHANCERY_TEST_POSTGRES_URL");
        let admin_url = admin_url
            .expect("run `make test`, which starts a PostgreSQL and sets CHANCERY_TEST_POSTGRES_URL");
        Self::create_at(&admin_url, purpose)
    }

    /// Creates the database on the server of this database URL.
    pub fn create_at(admin_url: &str, purpose: &str) -> Self {
        let name = format!("chancery_{purpose}_{:016x}", RandomState::new().hash_one(purpose));
        let database = Self { admin_url: admin_url.to_owned(), name };
        let create = format!("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'", database.name);
        query(admin_url, &create).unwrap();
        database
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn url(&self) -> String {
        format!("{}/{}", self.admin_url.rsplit_once('/').unwrap().0, self.name)
    }

    /// Runs a statement that must succeed, and returns its result as text, one line per row.
    pub fn query(&self, statement: &str) -> String {
        query(&self.url(), statement).unwrap_or_else(|error| panic!("{statement}: {error}"))
    }
}

impl Drop for PostgresDatabase {
    fn drop(&mut self) {
        let _ = query(&self.admin_url, &format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}

/// `psql` for that database, without the developer's own settings.
pub fn psql(url: &str) -> Command {
    let mut command = Command::new("psql");
    command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", url]).stdin(Stdio::null());
    command
}

/// Returns the result of a statement, or the server's error message.
pub fn query(url: &str, statement: &str) -> Result<String, String> {
    let output = psql(url).args(["--command", statement]).output().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap().trim_end().to_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
