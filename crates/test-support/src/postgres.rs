//! A PostgreSQL database of a test's own, on the server that `make test` starts.

use std::sync::atomic::{AtomicUsize, Ordering};

pub struct PostgresDatabase {
    admin_url: String,
    name: String,
}

impl PostgresDatabase {
    pub fn create(purpose: &str) -> Self {
        let admin_url = std::env::var("CHANCERY_TEST_POSTGRES_URL");
        let admin_url = admin_url
            .expect("run `make test`, which starts a PostgreSQL and sets CHANCERY_TEST_POSTGRES_URL");
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("chancery_{purpose}_{}_{number}", std::process::id());
        let database = Self { admin_url, name };
        database.psql(&format!("create database {}", database.name)).unwrap();
        database
    }

    pub fn url(&self) -> String {
        format!("{}/{}", self.admin_url.rsplit_once('/').unwrap().0, self.name)
    }

    fn psql(&self, statement: &str) -> Result<(), String> {
        let output = std::process::Command::new("psql")
            .args(["-q", "-c", statement, &self.admin_url])
            .output()
            .unwrap();
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }
}

impl Drop for PostgresDatabase {
    fn drop(&mut self) {
        let _ = self.psql(&format!("drop database {} with (force)", self.name));
    }
}
