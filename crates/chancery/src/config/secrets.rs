//! `[secrets]`: where the key is that encrypts the secrets in the database.

use super::reader::Reader;
use super::source::Origin;
use std::fmt;
use std::path::{Path, PathBuf};

const KEY_FILE: &str = "secrets.key_file";
const KEY: &str = "secrets.key";

#[derive(Debug)]
pub struct Secrets {
    pub key_file: Option<PathBuf>,
    /// From the environment only.
    pub key: Option<KeyText>,
}

/// One key, or several separated by commas. Its `Debug` output is redacted.
#[derive(Clone)]
pub struct KeyText(pub String);

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyText(…)")
    }
}

pub(super) fn secrets(reader: &mut Reader, folder: &Path) -> Secrets {
    let key_file = reader.optional_text(KEY_FILE).map(PathBuf::from);
    let key_file = match reader.origin(KEY_FILE) {
        Origin::File { .. } => key_file.map(|path| folder.join(path)),
        _ => key_file,
    };
    let key = reader.optional_text(KEY).map(KeyText);
    if key.is_some() {
        reader.show_as(KEY, "(not shown)".to_owned());
    }
    match (reader.origin(KEY), &key, &key_file) {
        (Origin::File { .. }, _, _) => reader.problem(
            KEY,
            "must not be in this file; write the key to a file of its own and set secrets.key_file, or set CHANCERY_SECRETS__KEY",
        ),
        (_, Some(_), Some(_)) => reader.problem(KEY, "conflicts with secrets.key_file; set one of them"),
        _ => {}
    }
    Secrets { key_file, key }
}

#[cfg(test)]
mod tests {
    use super::super::source::Source;
    use super::super::{ConfigError, Loaded};
    use super::*;

    fn read(text: &str, environment: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
        let mut source = Source::default();
        source.add_file(Path::new("chancery.toml"), text).unwrap();
        source.add_environment(
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        Loaded::from_source(source, Path::new("etc"), None)
    }

    #[test]
    fn key_comes_from_a_file_or_the_environment() {
        let secrets = read("[secrets]\nkey_file = \"k\"", &[]).unwrap().config.secrets;
        assert_eq!(secrets.key_file.as_deref(), Some(Path::new("etc/k")));
        let secrets = read("", &[("CHANCERY_SECRETS__KEY_FILE", "k")]).unwrap().config.secrets;
        assert_eq!(secrets.key_file.as_deref(), Some(Path::new("k")));
        let loaded = read("", &[("CHANCERY_SECRETS__KEY", "hunter2")]).unwrap();
        assert_eq!(loaded.config.secrets.key.as_ref().map(|key| key.0.as_str()), Some("hunter2"));
        let shown = format!("{:?}{:?}", loaded.config, loaded.settings);
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn key_in_the_configuration_file_is_rejected_without_showing_it() {
        let error = read("[secrets]\nkey = \"hunter2\"", &[]).unwrap_err().to_string();
        assert!(error.contains("line 2: secrets.key: must not be in this file"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
        let environment = [("CHANCERY_SECRETS__KEY", "hunter2")];
        let error = read("[secrets]\nkey_file = \"k\"", &environment).unwrap_err().to_string();
        assert!(error.contains("secrets.key: conflicts with secrets.key_file"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}
