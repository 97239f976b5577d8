//! The keys that encrypt the secrets in the database: where they are, and how a key file changes.
//!
//! The first that applies: `secrets.key_file`; `CHANCERY_SECRETS__KEY`; the systemd credential `secrets.key`;
//! `secrets.key` in the data directory, which is created with a new database. Each has one key per line (the variable:
//! separated by commas), the newest first. The others only decrypt.

use crate::config::{Config, KeyText};
use crate::secret_file;
use anyhow::{Context, bail};
use chancery_domain::OsRandomness;
use chancery_store::{DbError, EncryptionKey, EncryptionKeySource, SecretEncryption, SecretError, Store};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILE_NAME: &str = "secrets.key";

/// Where the keys are.
#[derive(Clone, Debug)]
pub enum KeySource {
    KeyFile(PathBuf),
    Variable(KeyText),
    Credential(PathBuf),
    DataDirectory(PathBuf),
}

impl KeySource {
    pub fn from_config(config: &Config) -> Self {
        if let Some(path) = &config.secrets.key_file {
            return Self::KeyFile(path.clone());
        }
        if let Some(key) = &config.secrets.key {
            return Self::Variable(key.clone());
        }
        let credential = secret_file::credentials_directory().map(|folder| folder.join(FILE_NAME));
        match credential.filter(|path| path.exists()) {
            Some(path) => Self::Credential(path),
            None => Self::DataDirectory(config.data.join(FILE_NAME)),
        }
    }

    /// The file that a rotation may change.
    pub fn writable_file(&self) -> Option<&Path> {
        match self {
            Self::KeyFile(path) | Self::DataDirectory(path) => Some(path),
            Self::Variable(_) | Self::Credential(_) => None,
        }
    }

    /// Creates the key file in the data directory for a database that has no secrets yet. Returns whether it did.
    pub async fn create_for_new_database(&self, encryption: &SecretEncryption) -> anyhow::Result<bool> {
        let Self::DataDirectory(path) = self else { return Ok(false) };
        if path.exists() || encryption.current_encryption_key().await?.is_some() {
            return Ok(false);
        }
        let key = EncryptionKey::generate(&OsRandomness)?;
        create_file(path, &format!("{}\n", key.reveal()))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Puts a new key in front of the others in the key file.
    pub fn add_key(&self, path: &Path) -> anyhow::Result<EncryptionKey> {
        let key = EncryptionKey::generate(&OsRandomness)?;
        let location = self.location();
        let by_hand = || {
            format!(
                "{location}: cannot add a key; put the output of `openssl rand -base64 32` in front of its first line yourself, and run this again"
            )
        };
        let _lock = lock_folder(path).with_context(by_hand)?;
        let old = secret_file::read_text(path).with_context(|| location.clone())?;
        let text = format!("{}\n{old}", key.reveal());
        if text.len() as u64 > secret_file::MAX_BYTES {
            bail!(
                "{location}: there is no space for another key; delete the last keys, which only old backups need"
            );
        }
        replace_file(path, &text).with_context(by_hand)?;
        Ok(key)
    }

    /// What to do if the file cannot be read.
    fn fix(&self) -> &'static str {
        match self {
            Self::DataDirectory(_) => {
                "copy it from the node that has it, or restore it from a backup; for several nodes, set secrets.key_file to a copy of the same file on each"
            }
            _ => {
                "the user that runs chancery must be able to read it; create a first key with `(umask 077; openssl rand -base64 32 > FILE)`"
            }
        }
    }
}

impl EncryptionKeySource for KeySource {
    fn load(&self) -> Result<Vec<EncryptionKey>, String> {
        let location = self.location();
        let text = match self {
            Self::Variable(KeyText(text)) => text.replace(',', "\n"),
            Self::KeyFile(path) | Self::Credential(path) | Self::DataDirectory(path) => {
                secret_file::read_text(path)
                    .map_err(|error| format!("{location}: {error}; {}", self.fix()))?
            }
        };
        parse_keys(&text).map_err(|why| format!("{location}: {why}"))
    }

    fn location(&self) -> String {
        match self {
            Self::KeyFile(path) => format!("secrets.key_file: {}", path.display()),
            Self::Variable(_) => "secrets.key (environment variable CHANCERY_SECRETS__KEY)".to_owned(),
            Self::Credential(path) => format!("systemd credential {FILE_NAME}: {}", path.display()),
            Self::DataDirectory(path) => format!("secrets key {}", path.display()),
        }
    }
}

/// Empty lines and lines that begin with `#` are ignored. An error has the line, never its text.
fn parse_keys(text: &str) -> Result<Vec<EncryptionKey>, String> {
    let mut keys = Vec::new();
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if !line.is_empty() && !line.starts_with('#') {
            keys.push(line.parse::<EncryptionKey>().map_err(|error| format!("line {}: {error}", index + 1))?);
        }
    }
    match keys.is_empty() {
        true => Err("there is no key; add the output of `openssl rand -base64 32`".to_owned()),
        false => Ok(keys),
    }
}

/// Returns false if the file exists.
fn create_file(path: &Path, text: &str) -> anyhow::Result<bool> {
    let folder = parent(path);
    // Temporary files are created with mode 0600, and renaming preserves it.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    match file.persist_noclobber(path) {
        Ok(_) => {}
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => return Ok(false),
        Err(error) => return Err(error.error.into()),
    }
    // A secret must not be on the disk before its key is.
    File::open(folder)?.sync_all()?;
    Ok(true)
}

/// Until it is dropped, no other rotation changes the file: it would replace it by one without the key that was added.
fn lock_folder(path: &Path) -> anyhow::Result<File> {
    let folder = File::open(parent(&path.canonicalize()?))?;
    folder.lock()?;
    Ok(folder)
}

/// Atomic, with the same owner and permissions as before.
fn replace_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let path = path.canonicalize()?;
    let folder = parent(&path);
    let old = std::fs::metadata(&path)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.as_file().set_permissions(old.permissions())?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, fchown};
        fchown(file.as_file(), Some(old.uid()), Some(old.gid()))?;
    }
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()?;
    Ok(())
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// For the start of a server: it has every key that the secrets in its database need, or does not start.
pub async fn prepare_server(config: &Config, store: &Store) -> anyhow::Result<()> {
    let source = KeySource::from_config(config);
    let is_new = source.create_for_new_database(&store.encryption).await?;
    let path = source.writable_file().map(Path::to_owned);
    store.encryption.use_keys(Arc::new(source));
    let checked = store.encryption.check_encryption_keys().await;
    if let (true, Some(path)) = (is_new, path) {
        let file = path.display();
        match &checked {
            // Another node was faster and has made its own key current, so nothing needs this one.
            Err(DbError::Secret(SecretError::UnknownKey { .. })) => std::fs::remove_file(&path)?,
            _ => tracing::info!(%file, "secrets key created; back it up, apart from the database"),
        }
    }
    Ok(checked?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> EncryptionKey {
        EncryptionKey::generate(&OsRandomness).unwrap()
    }

    #[test]
    fn key_file_has_one_key_per_line_and_comments() {
        let (first, second) = (key(), key());
        let text = format!("# created in November\n{}\r\n\n  {}  \n", first.reveal(), second.reveal());
        let ids: Vec<_> = parse_keys(&text).unwrap().iter().map(EncryptionKey::id).collect();
        assert_eq!(ids, [first.id(), second.id()]);
        for (text, expected) in
            [("", "there is no key"), ("#\n", "there is no key"), ("\nhunter2", "line 2: ")]
        {
            let error = parse_keys(text).unwrap_err();
            assert!(error.contains(expected) && error.contains("openssl"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn variable_has_keys_separated_by_commas() {
        let (first, second) = (key(), key());
        let source = KeySource::Variable(KeyText(format!("{}, {}", first.reveal(), second.reveal())));
        let ids: Vec<_> = source.load().unwrap().iter().map(EncryptionKey::id).collect();
        assert_eq!(ids, [first.id(), second.id()]);
        assert!(!format!("{source:?}").contains(&first.reveal()));
    }

    #[test]
    fn added_key_comes_first_and_the_file_keeps_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let source = KeySource::DataDirectory(path.clone());
        let first = key();
        assert!(create_file(&path, &format!("{}\n", first.reveal())).unwrap());
        assert!(!create_file(&path, "another").unwrap(), "an existing key is never replaced");
        let second = source.add_key(&path).unwrap();
        let ids: Vec<_> = source.load().unwrap().iter().map(EncryptionKey::id).collect();
        assert_eq!(ids, [second.id(), first.id()]);
    }

    #[test]
    fn keys_added_at_the_same_time_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let source = KeySource::DataDirectory(path.clone());
        let first = key();
        create_file(&path, &format!("{}\n", first.reveal())).unwrap();
        let mut expected = vec![first.id()];
        std::thread::scope(|scope| {
            let add = || source.add_key(&path).unwrap().id();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(add)).collect();
            expected.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
        });
        let mut ids: Vec<_> = source.load().unwrap().iter().map(EncryptionKey::id).collect();
        ids.sort_unstable();
        expected.sort_unstable();
        assert_eq!(ids, expected);
    }

    #[test]
    fn key_is_not_added_to_a_file_that_would_be_too_long_to_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let source = KeySource::DataDirectory(path.clone());
        let comment = "#".repeat(4_000);
        create_file(&path, &format!("{}\n{comment}\n", key().reveal())).unwrap();
        source.add_key(&path).unwrap();
        let error = source.add_key(&path).unwrap_err();
        assert!(error.to_string().contains("delete the last keys"), "{error}");
        assert_eq!(source.load().unwrap().len(), 2, "the file is unchanged");
    }

    #[test]
    fn unreadable_key_file_error_names_setting_and_fix() {
        let path = PathBuf::from("no-such-folder/secrets.key");
        let error = KeySource::KeyFile(path.clone()).load().unwrap_err();
        for part in ["secrets.key_file: no-such-folder/secrets.key: ", "openssl rand -base64 32"] {
            assert!(error.contains(part), "{error}");
        }
        let error = KeySource::DataDirectory(path).load().unwrap_err();
        assert!(error.contains("restore it from a backup") && error.contains("secrets.key_file"), "{error}");
    }
}
