//! Reads secrets from files. A file that other users can read or change is rejected, as `ssh` and PostgreSQL do: its
//! secret may be known already.

use anyhow::bail;
use std::fs::{File, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A larger file is not a secret file.
pub const MAX_BYTES: u64 = 4_096;

/// The folder where systemd puts the credentials of a unit, if it has any.
pub fn credentials_directory() -> Option<PathBuf> {
    std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from)
}

/// The secret of a file that contains one line and nothing else.
pub fn read(path: &Path) -> anyhow::Result<String> {
    let text = read_text(path)?;
    let secret = text.trim_end_matches(['\r', '\n']);
    if secret.is_empty() || secret.chars().any(char::is_control) {
        bail!("file must contain one line with the secret");
    }
    Ok(secret.to_owned())
}

/// The whole text of a file that only its owner can read.
pub fn read_text(path: &Path) -> anyhow::Result<String> {
    let file = File::open(path)?;
    check_permissions(&file.metadata()?, path)?;
    let mut text = String::new();
    file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        bail!("file has more than {MAX_BYTES} bytes; expected a file with the secret only");
    }
    Ok(text)
}

/// A file of root's may be readable by its group: so are systemd's credentials and Kubernetes' secrets, which the service
/// reads as another user.
#[cfg(unix)]
pub fn check_permissions(metadata: &Metadata, path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let mode = metadata.mode() & 0o777;
    let allowed = if metadata.uid() == 0 { 0o740 } else { 0o700 };
    if mode & !allowed != 0 {
        bail!(
            "other users can read or change the file (mode {mode:04o}); run `chmod 600 {}`, and replace the secret if others may have read it",
            path.display()
        );
    }
    Ok(())
}

#[cfg(not(unix))]
pub fn check_permissions(_: &Metadata, _: &Path) -> anyhow::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn file_that_others_can_read_or_change_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "hunter2\n").unwrap();
        let is_root = std::fs::metadata(&path).unwrap().uid() == 0;
        for (mode, is_accepted) in [
            (0o600, true),
            (0o400, true),
            (0o700, true),
            (0o440, is_root),
            (0o640, is_root),
            (0o660, false),
            (0o604, false),
            (0o602, false),
            (0o644, false),
            (0o666, false),
        ] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            match read(&path) {
                Ok(secret) => assert_eq!((secret.as_str(), is_accepted), ("hunter2", true), "{mode:o}"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(
                        !is_accepted && error.contains("chmod 600") && !error.contains("hunter2"),
                        "{error}"
                    );
                    assert!(error.contains(&format!("mode {mode:04o}")), "{error}");
                }
            }
        }
    }

    #[test]
    fn file_has_one_line_of_bounded_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let contents = |text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            read(&path).map_err(|error| error.to_string())
        };
        assert_eq!(contents("secret\r\n").unwrap(), "secret");
        for text in ["", "\n", "one\ntwo\n", "a\tb", &"x".repeat(4_097)] {
            assert!(contents(text).is_err(), "{text:?}");
        }
    }
}
