//! A separate PostgreSQL database per test, on the server that `make test` starts. Statements run through `psql`, independent of
//! our own driver.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::process::{Command, Stdio};

/// Dropping the value drops the database.
pub struct PostgresDatabase {
    admin_url: String,
    name: String,
}

impl PostgresDatabase {
    pub fn create(purpose: &str) -> Self {
        Self::create_at(&admin_url(), purpose)
    }

    /// Creates the database on the server of this database URL.
    pub fn create_at(admin_url: &str, purpose: &str) -> Self {
        let database = Self::named(admin_url, purpose);
        database.copy_from("template0 ENCODING 'UTF8'").unwrap();
        database
    }

    /// Creates a copy of a template with this schema. `migrate` makes the template, given its URL, if no test has done so yet.
    pub fn create_from_template(purpose: &str, schema: &str, migrate: impl FnOnce(&str)) -> Self {
        let admin_url = admin_url();
        let mut hasher = DefaultHasher::new();
        schema.hash(&mut hasher);
        let template = format!("chancery_template_{:016x}", hasher.finish());
        let database = Self::named(&admin_url, purpose);
        if database.copy_from(&template).is_err() {
            let made = Self::create_at(&admin_url, "template");
            migrate(&made.url());
            // Fails if another test was faster.
            let _ = query(&admin_url, &format!("ALTER DATABASE {} RENAME TO {template}", made.name));
            database.copy_from(&template).unwrap();
        }
        database
    }

    fn named(admin_url: &str, purpose: &str) -> Self {
        let name = format!("chancery_{purpose}_{:016x}", RandomState::new().hash_one(purpose));
        Self { admin_url: admin_url.to_owned(), name }
    }

    fn copy_from(&self, template: &str) -> Result<String, String> {
        query(&self.admin_url, &format!("CREATE DATABASE {} TEMPLATE {template}", self.name))
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

fn admin_url() -> String {
    let url = std::env::var("CHANCERY_TEST_POSTGRES_URL");
    url.expect("run `make test`, which starts a PostgreSQL and sets CHANCERY_TEST_POSTGRES_URL")
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
