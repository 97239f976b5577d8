//! A configuration file with a password is a secret file: it is rejected if other users can read or change it.

use super::source::{RawValue, Source};
use crate::secret_file;
use std::path::Path;

/// Call this before the environment is added: a password in a variable is not in the file.
pub(super) fn check_file(path: &Path, source: &Source) -> Result<(), String> {
    let mut entries = source.entries.iter();
    let found = entries.find(|(_, entry)| matches!(&entry.value, RawValue::Text(text) if has_password(text)));
    let Some((key, entry)) = found else { return Ok(()) };
    let problem = |why: String| {
        let variable = key.to_ascii_uppercase().replace('.', "__");
        format!("{}: {key}: contains a password: {why}; or set CHANCERY_{variable} instead", entry.origin)
    };
    let metadata = std::fs::metadata(path).map_err(|error| problem(error.to_string()))?;
    secret_file::check_permissions(&metadata, path).map_err(|error| problem(error.to_string()))
}

/// Whether a URL has a password, as `scheme://user:password@host` or as a parameter.
fn has_password(text: &str) -> bool {
    let Some((_, rest)) = text.split_once("://") else { return false };
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = address.split('/').next().unwrap_or_default();
    let user_info = authority.rsplit_once('@').map_or("", |(user_info, _)| user_info);
    let in_user_info = user_info.split_once(':').is_some_and(|(_, password)| !password.is_empty());
    in_user_info || query.split('&').any(|parameter| parameter.starts_with("password="))
}

#[cfg(all(test, unix))]
mod tests {
    use super::super::Loaded;
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn passwords_are_found_in_urls() {
        for url in
            ["postgres://u:p@h/db", "redis://:p@h", "smtps://a%40b:p@h:465", "postgres://h/db?a=b&password=p"]
        {
            assert!(has_password(url), "{url}");
        }
        for url in
            ["", "memory", "postgres://u@h/db", "postgres://u:@h/db", "https://h:8080/a@b", "sqlite:a:b@c"]
        {
            assert!(!has_password(url), "{url}");
        }
    }

    #[test]
    fn configuration_file_with_a_password_must_be_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chancery.toml");
        let read = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Loaded::read(Some(&path), None).map(|_| ()).map_err(|error| error.to_string())
        };
        let with_password = "[database]\nurl = \"postgres://u:hunter2@127.0.0.1/db\"\n";
        let error = read(with_password, 0o644).unwrap_err();
        for part in [
            "line 2: database.url: contains a password",
            "(mode 0644)",
            "chmod 600",
            "CHANCERY_DATABASE__URL",
        ] {
            assert!(error.contains(part), "{error}");
        }
        assert!(!error.contains("hunter2"), "{error}");
        read(with_password, 0o600).unwrap();
        read("[database]\nurl = \"postgres://u@127.0.0.1/db\"\n", 0o644).unwrap();
    }
}
