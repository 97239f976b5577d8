//! Which database to open. Neither `Debug` nor any error of this type shows a password.

use crate::OpenError;
use chancery_domain::is_loopback_host;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// `sqlite:PATH`, `postgres://…` or `postgresql://…`.
#[derive(Clone)]
pub struct DatabaseUrl(pub(crate) DatabaseLocation);

#[derive(Clone)]
pub(crate) enum DatabaseLocation {
    Sqlite(PathBuf),
    Postgres(Box<PgConnectOptions>),
}

impl DatabaseUrl {
    /// The SQLite file at this path, which may contain any characters.
    pub fn sqlite_file(file: &Path) -> Self {
        Self(DatabaseLocation::Sqlite(file.to_owned()))
    }

    /// The host, if it is another machine and TLS is not required: with PostgreSQL's default, a server without TLS, or somebody on
    /// the way, decides that everything is sent in clear text.
    pub fn cleartext_host(&self) -> Option<&str> {
        let DatabaseLocation::Postgres(options) = &self.0 else { return None };
        let host = options.get_host();
        let is_local = options.get_socket().is_some() || host.starts_with('/') || is_loopback_host(host);
        let needs_tls = match options.get_ssl_mode() {
            PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer => false,
            PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull => true,
        };
        (!is_local && !needs_tls).then_some(host)
    }

    /// Whether several machines can share the database.
    pub fn is_shared(&self) -> bool {
        matches!(self.0, DatabaseLocation::Postgres(_))
    }
}

impl FromStr for DatabaseUrl {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let (scheme, rest) = text
            .split_once(':')
            .ok_or_else(|| OpenError::BadUrl("the database URL has no scheme".to_owned()))?;
        match scheme {
            "sqlite" => sqlite_path(rest).map(|file| Self(DatabaseLocation::Sqlite(file))),
            "postgres" | "postgresql" if rest.starts_with("//") => match PgConnectOptions::from_str(text) {
                Ok(options) => Ok(Self(DatabaseLocation::Postgres(Box::new(options)))),
                // The parser's message is dropped, because it may quote the URL and its password.
                Err(_) => Err(OpenError::BadUrl(
                    "invalid PostgreSQL URL (write special characters in the password as %XX)".to_owned(),
                )),
            },
            "postgres" | "postgresql" => {
                Err(OpenError::BadUrl(format!("`{scheme}:` must be followed by `//`")))
            }
            // A mistyped URL may begin with a secret, so only what looks like a scheme is repeated.
            _ if scheme.len() <= 20 && scheme.bytes().all(|b| b.is_ascii_alphanumeric()) => {
                Err(OpenError::BadUrl(format!("unsupported database scheme {scheme:?}")))
            }
            _ => Err(OpenError::BadUrl("the database URL has no scheme".to_owned())),
        }
    }
}

fn sqlite_path(rest: &str) -> Result<PathBuf, OpenError> {
    // `sqlite:///var/x.db` and `sqlite:/var/x.db` both mean /var/x.db, because other tools use either form.
    let path = rest.strip_prefix("//").unwrap_or(rest);
    if path.is_empty() {
        return Err(OpenError::BadUrl("the SQLite URL has no file name".to_owned()));
    }
    if path.contains(":memory:") {
        return Err(OpenError::BadUrl("an in-memory database would lose the ledger; use a file".to_owned()));
    }
    if path.contains('\0') {
        return Err(OpenError::BadUrl("the SQLite URL contains a NUL character".to_owned()));
    }
    Ok(PathBuf::from(path))
}

/// For logs: the address, never the password.
impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            DatabaseLocation::Sqlite(file) => write!(f, "sqlite:{}", file.display()),
            DatabaseLocation::Postgres(options) => {
                let (host, port) = (options.get_host(), options.get_port());
                write!(f, "postgres://{host}:{port}/{}", options.get_database().unwrap_or_default())
            }
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_chooses_the_database() {
        for (text, shown) in [
            ("sqlite:data/chancery.db", "sqlite:data/chancery.db"),
            ("sqlite:/var/lib/chancery.db", "sqlite:/var/lib/chancery.db"),
            ("sqlite:///var/lib/chancery.db", "sqlite:/var/lib/chancery.db"),
            ("sqlite:odd name?x=1#2 %41.db", "sqlite:odd name?x=1#2 %41.db"),
            ("postgres://ann:secret@db.example:5433/firm", "postgres://db.example:5433/firm"),
            ("postgresql://ann@db.example/firm", "postgres://db.example:5432/firm"),
        ] {
            assert_eq!(text.parse::<DatabaseUrl>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn unsupported_url_error_lists_accepted_forms() {
        for text in ["", "data/chancery.db", "mysql://root@localhost/x", "sqlite:", "sqlite::memory:", "/x:y"]
        {
            let error = text.parse::<DatabaseUrl>().unwrap_err().to_string();
            assert!(error.contains("sqlite:PATH") && error.contains("postgres://"), "{text:?}: {error}");
        }
    }

    #[test]
    fn password_never_appears_in_errors_or_debug() {
        for text in [
            "postgres://ann:hunter2@db.example:notaport/firm",
            "postgres://ann:hunter2@db.example:99999/firm",
            "postgres://ann:hunter2@/firm?sslmode=hunter2",
            "postgres://ann:hunter2@[::1/firm",
            "postgres://ann:%ff%fehunter2@db.example/firm",
            "postgres:ann:hunter2@db.example/firm",
            "ann:hunter2@db.example/firm",
            "hunter2:x",
        ] {
            let shown = match text.parse::<DatabaseUrl>() {
                Ok(url) => format!("{url} {url:?}"),
                Err(error) => format!("{error} {error:?}"),
            };
            // A word before a colon looks like a scheme.
            if !text.starts_with("hunter2") {
                assert!(!shown.contains("hunter2"), "{text:?}: {shown}");
            }
        }
    }
}
