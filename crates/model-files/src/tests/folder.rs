//! Importing, listing and removing files.

use super::{Fixture, NAME, SmallDisk, name, sha256_of, weights};
use crate::{FolderError, NoProgress, StoreOutcome, StoredModel};
use std::path::PathBuf;

fn write(fixture: &Fixture, file: &str, bytes: &[u8]) -> PathBuf {
    let path = fixture.scratch.path().join(file);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn imported_file_is_listed_until_it_is_removed() {
    let fixture = Fixture::new();
    let bytes = weights(0);
    let file = write(&fixture, "mine.gguf", &bytes);
    assert!(fixture.folder.list().unwrap().is_empty(), "the folder need not exist");
    let expected = sha256_of(&bytes);
    let stored = fixture.folder.import(&file, &name(), Some(&expected), &NoProgress).unwrap();
    assert_eq!((stored.outcome, stored.is_verified), (StoreOutcome::Stored, true));
    assert_eq!(std::fs::read(&stored.path).unwrap(), bytes);
    std::fs::write(fixture.folder.path("by-hand"), &bytes).unwrap();
    std::fs::write(fixture.folder.folder().join("half.gguf.partial"), "GGUF").unwrap();
    let [by_hand, half, imported]: [StoredModel; 3] = fixture.folder.list().unwrap().try_into().unwrap();
    assert_eq!((by_hand.name.as_str(), by_hand.sha256, by_hand.is_verified), ("by-hand", None, false));
    assert_eq!((half.name.as_str(), half.bytes, half.partial_bytes), ("half", None, Some(4)));
    assert_eq!((imported.name.as_str(), imported.bytes), (NAME, Some(bytes.len() as u64)));
    assert_eq!((imported.sha256, imported.is_verified), (Some(expected), true));
    assert!(fixture.folder.remove(&name()).unwrap() >= bytes.len() as u64);
    assert_eq!(fixture.folder.remove(&"half".parse().unwrap()).unwrap(), 4);
    assert_eq!(fixture.folder.list().unwrap().len(), 1);
    assert!(file.exists(), "the original stays");
    let error = fixture.folder.remove(&name()).unwrap_err();
    assert!(matches!(error, FolderError::NoSuchModel { .. }), "{error}");
}

#[test]
fn changed_file_is_no_longer_listed_as_verified() {
    let fixture = Fixture::new();
    let file = write(&fixture, "mine.gguf", &weights(0));
    fixture.folder.import(&file, &name(), None, &NoProgress).unwrap();
    let path = fixture.path();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, b"GGUF changed").unwrap();
    assert_eq!(fixture.folder.list().unwrap()[0].sha256, None);
}

#[test]
fn import_rejects_wrong_files_and_taken_names() {
    let fixture = Fixture::new();
    let import = |file: &str, bytes: &[u8], name: &str, sha256: Option<&[u8]>| {
        let file = write(&fixture, file, bytes);
        let sha256 = sha256.map(sha256_of);
        fixture.folder.import(&file, &name.parse().unwrap(), sha256.as_ref(), &NoProgress)
    };
    let error = import("page.gguf", b"<html>", NAME, None).unwrap_err();
    assert!(matches!(error, FolderError::NotGguf { .. }), "{error}");
    let error = import("a.gguf", &weights(0), NAME, Some(b"other")).unwrap_err();
    assert!(matches!(error, FolderError::WrongChecksum { .. }), "{error}");
    import("a.gguf", &weights(0), NAME, None).unwrap();
    let again = import("b.gguf", &weights(0), NAME, None).unwrap();
    assert_eq!(again.outcome, StoreOutcome::AlreadyPresent);
    let error = import("c.gguf", &weights(1), NAME, None).unwrap_err();
    assert!(matches!(error, FolderError::Exists { .. }), "{error}");
    let error = import("c.gguf", &weights(1), "smollm2-135m", None).unwrap_err();
    assert!(error.to_string().contains("name of the catalogue"), "{error}");
    let missing = fixture.folder.import(&PathBuf::from("nowhere.gguf"), &name(), None, &NoProgress);
    assert!(missing.unwrap_err().to_string().contains("cannot read nowhere.gguf"));
}

#[test]
fn file_that_is_being_downloaded_is_not_removed() {
    let fixture = Fixture::new();
    let lock = fixture.folder.lock(&name(), &NoProgress).unwrap();
    std::fs::write(fixture.partial_path(), "GGUF").unwrap();
    let error = fixture.folder.remove(&name()).unwrap_err();
    assert!(matches!(error, FolderError::InUse { .. }), "{error}");
    drop(lock);
    fixture.folder.remove(&name()).unwrap();
}

#[test]
fn lock_of_one_model_is_nothing_to_remove_for_another() {
    let fixture = Fixture::new();
    drop(fixture.folder.lock(&name(), &NoProgress).unwrap());
    let error = fixture.folder.remove(&format!("{NAME}.lock").parse().unwrap()).unwrap_err();
    assert!(matches!(error, FolderError::NoSuchModel { .. }), "{error}");
}

#[test]
fn space_check_counts_a_margin() {
    let disk = SmallDisk::new(100 << 20, u64::MAX);
    let folder = std::path::Path::new("/models");
    assert!(crate::partial::ensure_space(disk.as_ref(), folder, 36 << 20).is_ok());
    let error = crate::partial::ensure_space(disk.as_ref(), folder, 37 << 20).unwrap_err().to_string();
    assert!(error.contains("/models") && error.contains("106 MB needed, 105 MB free"), "{error}");
}
