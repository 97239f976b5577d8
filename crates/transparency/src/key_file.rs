//! The files of the checkpoint key: the secret in `DATA/checkpoint.key`, or in a systemd credential of the same name, and the
//! public keys in `DATA/checkpoint.pub`. Neither is in the database, so that whoever can write there cannot sign.

use chancery_domain::Randomness;
use chancery_tlog::{KeyError, SigningKey, VerifierKeys};
use std::io::Write;
use std::path::{Path, PathBuf};

pub const KEY_FILE: &str = "checkpoint.key";
pub const PUBLIC_KEY_FILE: &str = "checkpoint.pub";

/// A larger file is not a key file. Years of new keys fit.
const MAX_BYTES: u64 = 65_536;

#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("cannot use {}: {error}", .path.display())]
    Io { path: PathBuf, error: std::io::Error },
    #[error("{} is not a key file: {error}", .path.display())]
    Key { path: PathBuf, error: KeyError },
    #[error("{} has {bytes} bytes, which is no key file", .path.display())]
    TooLarge { path: PathBuf, bytes: u64 },
    #[error(
        "other users can read or change the file {}; run `chmod 600 {}`, and replace the key if others may have read it",
        .path.display(),
        .path.display()
    )]
    ReadableByOthers { path: PathBuf },
    #[error("there is no key to create: {0}")]
    Name(KeyError),
}

/// Reads the signing key from the credentials directory, or else from the data directory, where it is created if there is none.
/// Its public keys are added to `checkpoint.pub`, which has those of earlier keys too.
pub fn load_or_create_key(
    data: &Path,
    credentials: Option<&Path>,
    name: &str,
    randomness: &dyn Randomness,
) -> Result<SigningKey, KeyFileError> {
    let credential = credentials.map(|folder| folder.join(KEY_FILE)).filter(|path| path.exists());
    let own = data.join(KEY_FILE);
    let key = match &credential {
        // systemd decides who can read it.
        Some(path) => read_key(path)?,
        None if own.exists() => {
            reject_if_readable_by_others(&own)?;
            read_key(&own)?
        }
        None => {
            let key = SigningKey::generate(name, randomness).map_err(KeyFileError::Name)?;
            write_owner_only(data, &own, &format!("{}\n", key.to_secret_line()))?;
            key
        }
    };
    publish(data, &key)?;
    Ok(key)
}

/// The keys in a file of public keys. There are none if the file does not exist.
pub fn load_verifier_keys(path: &Path) -> Result<VerifierKeys, KeyFileError> {
    let text = if path.exists() { read(path)? } else { String::new() };
    VerifierKeys::parse(&text).map_err(|error| KeyFileError::Key { path: path.to_owned(), error })
}

fn publish(data: &Path, key: &SigningKey) -> Result<(), KeyFileError> {
    let path = data.join(PUBLIC_KEY_FILE);
    let mut text = if path.exists() { read(&path)? } else { String::new() };
    let is_known = |line: &String| text.lines().any(|known| known == line);
    let new: Vec<String> = key.verifier_key_lines().into_iter().filter(|line| !is_known(line)).collect();
    if new.is_empty() {
        return Ok(());
    }
    // Someone may have added a key without a line end.
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    new.iter().for_each(|line| text.extend([line.as_str(), "\n"]));
    write_owner_only(data, &path, &text)
}

fn read_key(path: &Path) -> Result<SigningKey, KeyFileError> {
    SigningKey::parse(&read(path)?).map_err(|error| KeyFileError::Key { path: path.to_owned(), error })
}

fn read(path: &Path) -> Result<String, KeyFileError> {
    let failed = |error| KeyFileError::Io { path: path.to_owned(), error };
    let bytes = std::fs::metadata(path).map_err(failed)?.len();
    if bytes > MAX_BYTES {
        return Err(KeyFileError::TooLarge { path: path.to_owned(), bytes });
    }
    std::fs::read_to_string(path).map_err(failed)
}

fn reject_if_readable_by_others(path: &Path) -> Result<(), KeyFileError> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let metadata = std::fs::metadata(path);
        let metadata = metadata.map_err(|error| KeyFileError::Io { path: path.to_owned(), error })?;
        if metadata.permissions().mode() & 0o077 != 0 {
            return Err(KeyFileError::ReadableByOthers { path: path.to_owned() });
        }
    }
    Ok(())
}

/// Atomic. Temporary files are created with mode 0600, and renaming preserves it.
fn write_owner_only(folder: &Path, path: &Path, text: &str) -> Result<(), KeyFileError> {
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        // A key that a power failure removes would leave checkpoints that nobody can verify.
        std::fs::File::open(folder)?.sync_all()
    };
    write().map_err(|error| KeyFileError::Io { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::SeededRandomness;
    use std::os::unix::fs::PermissionsExt as _;

    fn load(data: &Path, credentials: Option<&Path>, seed: u64) -> Result<SigningKey, KeyFileError> {
        load_or_create_key(data, credentials, "api.example.com", &SeededRandomness::new(seed))
    }

    #[test]
    fn key_is_created_once_with_mode_0600() {
        let data = tempfile::tempdir().unwrap();
        let key = load(data.path(), None, 1).ok().unwrap();
        let mode = std::fs::metadata(data.path().join(KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = load(data.path(), None, 2).ok().unwrap();
        assert_eq!(again.to_secret_line(), key.to_secret_line());
        let public = std::fs::read_to_string(data.path().join(PUBLIC_KEY_FILE)).unwrap();
        assert_eq!(public.lines().count(), 2, "one for each log, written once");
    }

    #[test]
    fn key_that_others_can_read_is_rejected() {
        let data = tempfile::tempdir().unwrap();
        load(data.path(), None, 1).ok().unwrap();
        let file = data.path().join(KEY_FILE);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        let error = load(data.path(), None, 1).err().unwrap().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn credential_comes_before_the_file_and_old_public_keys_stay() {
        let (data, credentials) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let old = load(data.path(), None, 1).ok().unwrap();
        // As an editor may leave it.
        let public = data.path().join(PUBLIC_KEY_FILE);
        std::fs::write(&public, old.verifier_key_lines().join("\n")).unwrap();
        let other = tempfile::tempdir().unwrap();
        let new = load(other.path(), None, 2).ok().unwrap();
        std::fs::copy(other.path().join(KEY_FILE), credentials.path().join(KEY_FILE)).unwrap();
        let used = load(data.path(), Some(credentials.path()), 3).ok().unwrap();
        assert_eq!(used.to_secret_line(), new.to_secret_line());
        let public = std::fs::read_to_string(data.path().join(PUBLIC_KEY_FILE)).unwrap();
        let expected = [old.verifier_key_lines(), new.verifier_key_lines()].concat();
        assert_eq!(public.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn damaged_key_file_is_an_error_and_is_not_replaced() {
        let data = tempfile::tempdir().unwrap();
        let file = data.path().join(KEY_FILE);
        write_owner_only(data.path(), &file, "nonsense\n").unwrap();
        let error = load(data.path(), None, 1).err().unwrap().to_string();
        assert!(error.contains("PRIVATE+KEY"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "nonsense\n");
    }
}
