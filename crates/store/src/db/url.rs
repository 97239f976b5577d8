//! Which database to open. Neither `Debug` nor any error of this type shows a password.

use crate::OpenError;
use sqlx::postgres::PgConnectOptions;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// `sqlite:PATH`, `postgres://…` or `postgresql://…`.
#[derive(Clone)]
pub struct DatabaseUrl(pub(crate) Place);

#[derive(Clone)]
pub(crate) enum Place {
    Sqlite(PathBuf),
    Postgres(Box<PgConnectOptions>),
}

impl DatabaseUrl {
    /// The SQLite file at this path, whatever characters the path holds.
    pub fn sqlite_file(file: &Path) -> Self {
        Self(Place::Sqlite(file.to_owned()))
    }

    /// Whether several machines can share it.
    pub fn is_shared(&self) -> bool {
        matches!(self.0, Place::Postgres(_))
    }
}

impl FromStr for DatabaseUrl {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let (scheme, rest) = text
            .split_once(':')
            .ok_or_else(|| OpenError::BadUrl("the database URL has no scheme".to_owned()))?;
        match scheme {
            "sqlite" => sqlite_path(rest).map(|file| Self(Place::Sqlite(file))),
            "postgres" | "postgresql" if rest.starts_with("//") => match PgConnectOptions::from_str(text) {
                Ok(options) => Ok(Self(Place::Postgres(Box::new(options)))),
                // The parser's words are kept to those that cannot quote the URL, for it holds the password.
                Err(_) => Err(OpenError::BadUrl(
                    "the PostgreSQL URL has a part that cannot be read (a special character in the password is written as %XX)"
                        .to_owned(),
                )),
            },
            "postgres" | "postgresql" => Err(OpenError::BadUrl(format!("after `{scheme}:` comes `//`"))),
            // A mistyped URL may begin with anything, so only what looks like a scheme is repeated.
            _ if scheme.len() <= 20 && scheme.bytes().all(|b| b.is_ascii_alphanumeric()) => {
                Err(OpenError::BadUrl(format!("there is no database called {scheme:?} here")))
            }
            _ => Err(OpenError::BadUrl("the database URL has no scheme".to_owned())),
        }
    }
}

fn sqlite_path(rest: &str) -> Result<PathBuf, OpenError> {
    // `sqlite:///var/x.db` and `sqlite:/var/x.db` both mean /var/x.db, for people bring the habit from elsewhere.
    let path = rest.strip_prefix("//").unwrap_or(rest);
    if path.is_empty() {
        return Err(OpenError::BadUrl("the SQLite URL names no file".to_owned()));
    }
    if path.contains(":memory:") {
        return Err(OpenError::BadUrl(
            "a database in memory would lose the ledger, so SQLite needs a file".to_owned(),
        ));
    }
    if path.contains('\0') {
        return Err(OpenError::BadUrl("the SQLite URL holds a NUL character".to_owned()));
    }
    Ok(PathBuf::from(path))
}

/// For logs: the place, never the password.
impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Sqlite(file) => write!(f, "sqlite:{}", file.display()),
            Place::Postgres(options) => {
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
    fn a_url_of_another_kind_is_refused_with_what_is_allowed() {
        for text in ["", "data/chancery.db", "mysql://root@localhost/x", "sqlite:", "sqlite::memory:", "/x:y"]
        {
            let error = text.parse::<DatabaseUrl>().unwrap_err().to_string();
            assert!(error.contains("sqlite:PATH") && error.contains("postgres://"), "{text:?}: {error}");
        }
    }

    #[test]
    fn no_error_and_no_debug_output_shows_the_password() {
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
            // A bare word before a colon cannot be told from a scheme.
            if !text.starts_with("hunter2") {
                assert!(!shown.contains("hunter2"), "{text:?}: {shown}");
            }
        }
    }
}
