//! `DATA/checkpoints/`: one text file for each day with the signed checkpoints of both logs, oldest first. Files are only
//! appended to, so they can be copied at any time, and a copy made earlier is the beginning of the file.

use crate::error::LogError;
use chancery_domain::{Day, LogName};
use chancery_tlog::{Checkpoint, VerifierKeys, split_notes};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub const CHECKPOINT_FOLDER: &str = "checkpoints";

const EXTENSION: &str = "txt";

/// Whether a data directory has checkpoints which say that its database had rows.
pub fn checkpoints_know_rows(data: &Path) -> Result<bool, LogError> {
    let folder = data.join(CHECKPOINT_FOLDER);
    let files = if folder.is_dir() { checkpoint_files(&folder)? } else { Vec::new() };
    for file in files.iter().rev() {
        let text = read_lossy(file)?;
        let has_rows =
            |note: &str| Checkpoint::parse_unverified(note).is_ok_and(|checkpoint| checkpoint.size > 0);
        if split_notes(&text).notes.iter().any(|(_, note)| has_rows(note)) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[derive(Clone, Debug)]
pub struct CheckpointFolder {
    path: PathBuf,
    /// Locked while notes are appended: a run that was cancelled may still be writing.
    appending: Arc<Mutex<()>>,
}

/// A checkpoint in a file.
#[derive(Clone, Copy, Debug)]
pub struct FiledCheckpoint {
    pub checkpoint: Checkpoint,
    /// Index of the file.
    file: u32,
    line: u32,
}

/// What a folder or a file has. A checkpoint takes 48 bytes here, so that years of them fit into memory.
#[derive(Debug, Default)]
pub struct FiledCheckpoints {
    files: Vec<PathBuf>,
    pub checkpoints: Vec<FiledCheckpoint>,
    /// Notes that are no checkpoints of a known key, each with its file and line.
    pub problems: Vec<String>,
    /// Whether these are all checkpoints of a server, not a copy of some.
    pub is_folder: bool,
}

impl FiledCheckpoints {
    /// Where the checkpoint is, for people.
    pub fn source(&self, filed: &FiledCheckpoint) -> String {
        let file = self.files.get(filed.file as usize).map_or(Path::new(""), PathBuf::as_path);
        format!("{}:{}", file.display(), filed.line)
    }

    /// Reads the folder of a data directory, if there is one.
    pub fn read_data(data: &Path, keys: &VerifierKeys) -> Result<Self, LogError> {
        let folder = data.join(CHECKPOINT_FOLDER);
        let filed = if folder.is_dir() { Self::read(&folder, keys)? } else { Self::default() };
        Ok(Self { is_folder: true, ..filed })
    }

    /// Reads a file, or all files of a folder. What the last line of a file breaks off in is left out: a server may be writing it.
    pub fn read(path: &Path, keys: &VerifierKeys) -> Result<Self, LogError> {
        let files = match path.is_dir() {
            true => checkpoint_files(path)?,
            false => vec![path.to_owned()],
        };
        let mut filed = Self::default();
        for file in files {
            let text = read_lossy(&file)?;
            for (line, note) in split_notes(&text).notes {
                match keys.open(note) {
                    Ok(checkpoint) => {
                        let (file, line) = (to_u32(filed.files.len()), to_u32(line));
                        filed.checkpoints.push(FiledCheckpoint { checkpoint, file, line });
                    }
                    Err(error) => filed.problems.push(format!("{}:{line}: {error}", file.display())),
                }
            }
            filed.files.push(file);
        }
        Ok(filed)
    }
}

fn to_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl CheckpointFolder {
    /// Creates the folder.
    pub fn open(data: &Path) -> Result<Self, LogError> {
        let path = data.join(CHECKPOINT_FOLDER);
        std::fs::create_dir_all(&path).map_err(|error| LogError::Folder { path: path.clone(), error })?;
        Ok(Self { path, appending: Arc::default() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The newest checkpoint of each log that a known key has signed.
    pub fn last(&self, keys: &VerifierKeys, today: Day) -> Result<BTreeMap<LogName, Checkpoint>, LogError> {
        let todays_file = self.file_of(today);
        let mut last: BTreeMap<LogName, Checkpoint> = BTreeMap::new();
        for file in checkpoint_files(&self.path)?.iter().rev() {
            let text = read_lossy(file)?;
            for (line, note) in split_notes(&text).notes.iter().rev() {
                // Verifying the signatures of many days would take seconds.
                let is_older = |old: Checkpoint| last.get(&old.log).is_some_and(|last| old.size <= last.size);
                if Checkpoint::parse_unverified(note).is_ok_and(is_older) {
                    continue;
                }
                match keys.open(note) {
                    Ok(checkpoint) => {
                        last.insert(checkpoint.log, checkpoint);
                    }
                    Err(error) => {
                        tracing::warn!(file = %file.display(), line, %error, "checkpoint ignored");
                    }
                }
            }
            // A file of a later day dates from before the clock was set back. Newer checkpoints are in earlier files.
            if last.len() == LogName::ALL.len() && *file <= todays_file {
                break;
            }
        }
        Ok(last)
    }

    fn file_of(&self, day: Day) -> PathBuf {
        self.path.join(format!("{day}.{EXTENSION}"))
    }

    /// Returns once the notes are on disk, in the file of this day. After an error, none of them are in it. What a power failure
    /// left of a note at its end is cut off first.
    pub fn append(&self, notes: &[String], day: Day) -> Result<(), LogError> {
        let _appending = self.appending.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.file_of(day);
        // A blank line separates notes, for people.
        let text: String = notes.iter().flat_map(|note| [note.as_str(), "\n"]).collect();
        let write = || -> std::io::Result<()> {
            let is_new = !path.exists();
            if !is_new {
                cut_incomplete_note(&path)?;
            }
            let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
            let before = file.metadata()?.len();
            if let Err(error) = file.write_all(text.as_bytes()).and_then(|()| file.sync_all()) {
                file.set_len(before)?;
                return Err(error);
            }
            if is_new { File::open(&self.path)?.sync_all() } else { Ok(()) }
        };
        write().map_err(|error| LogError::Folder { path: path.clone(), error })
    }
}

/// By name, which is by day.
fn checkpoint_files(folder: &Path) -> Result<Vec<PathBuf>, LogError> {
    let failed = |error| LogError::Folder { path: folder.to_owned(), error };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// A note that breaks off may end within a character.
fn read_lossy(file: &Path) -> Result<String, LogError> {
    let bytes = std::fs::read(file).map_err(|error| LogError::Folder { path: file.to_owned(), error })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn cut_incomplete_note(file: &Path) -> std::io::Result<()> {
    let bytes = std::fs::read(file)?;
    let text = String::from_utf8_lossy(&bytes);
    let found = split_notes(&text);
    if found.incomplete.is_some() {
        tracing::warn!(file = %file.display(), "incomplete checkpoint at the end removed");
        // All before it is valid text, so the offset is the same in the file.
        let file = OpenOptions::new().write(true).open(file)?;
        file.set_len(found.complete_bytes as u64)?;
        file.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{SeededRandomness, TreeHash, UnixMillis};
    use chancery_tlog::SigningKey;

    /// 2026-11-15.
    fn today() -> Day {
        Day::containing(UnixMillis(1_794_744_000_000))
    }

    fn key() -> (SigningKey, VerifierKeys) {
        let key = SigningKey::generate("api.example.com", &SeededRandomness::new(1)).ok().unwrap();
        let verifier = VerifierKeys::parse(&key.verifier_key_lines().join("\n")).ok().unwrap();
        (key, verifier)
    }

    fn note(key: &SigningKey, log: LogName, size: u64) -> String {
        key.sign(log, size, TreeHash([7; 32])).unwrap()
    }

    #[test]
    fn newest_checkpoint_of_each_log_is_found_across_days() {
        let (data, (key, keys)) = (tempfile::tempdir().unwrap(), key());
        let folder = CheckpointFolder::open(data.path()).unwrap();
        assert!(folder.last(&keys, today()).unwrap().is_empty());
        for (number, log, size) in [(0, LogName::Audit, 2), (0, LogName::Ledger, 3), (1, LogName::Ledger, 5)]
        {
            folder.append(&[note(&key, log, size)], Day(today().0 + number)).unwrap();
        }
        let last = folder.last(&keys, Day(today().0 + 1)).unwrap();
        assert_eq!(last[&LogName::Ledger].size, 5);
        assert_eq!(last[&LogName::Audit].size, 2);
        let filed = FiledCheckpoints::read(folder.path(), &keys).unwrap();
        let sizes: Vec<u64> = filed.checkpoints.iter().map(|filed| filed.checkpoint.size).collect();
        assert_eq!((sizes, filed.problems.len()), (vec![2, 3, 5], 0));
        let source = filed.source(&filed.checkpoints[1]);
        assert!(source.ends_with("2026-11-15.txt:7"), "{source}");
    }

    #[test]
    fn newest_checkpoint_is_found_after_the_clock_was_set_back() {
        let (data, (key, keys)) = (tempfile::tempdir().unwrap(), key());
        let folder = CheckpointFolder::open(data.path()).unwrap();
        let ahead = [note(&key, LogName::Ledger, 3), note(&key, LogName::Audit, 2)];
        folder.append(&ahead, Day(today().0 + 30)).unwrap();
        folder.append(&[note(&key, LogName::Ledger, 8)], today()).unwrap();
        let last = folder.last(&keys, today()).unwrap();
        assert_eq!((last[&LogName::Ledger].size, last[&LogName::Audit].size), (8, 2));
    }

    /// Of any day: after midnight, checkpoints of other nodes are copied to the file of the day before.
    #[test]
    fn incomplete_checkpoint_is_removed_by_the_next_one_in_its_file() {
        let (data, (key, keys)) = (tempfile::tempdir().unwrap(), key());
        let folder = CheckpointFolder::open(data.path()).unwrap();
        folder.append(&[note(&key, LogName::Ledger, 3)], today()).unwrap();
        let file = folder.path().join("2026-11-15.txt");
        let mut bytes = std::fs::read(&file).unwrap();
        let torn = note(&key, LogName::Ledger, 5);
        // Within the dash that begins the signature.
        bytes.extend(&torn.as_bytes()[..torn.find('—').unwrap() + 1]);
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(FiledCheckpoints::read(&file, &keys).unwrap().checkpoints.len(), 1);
        folder.append(&[note(&key, LogName::Audit, 2)], Day(today().0 + 1)).unwrap();
        let folder = CheckpointFolder::open(data.path()).unwrap();
        folder.append(&[note(&key, LogName::Ledger, 6)], today()).unwrap();
        let filed = FiledCheckpoints::read(folder.path(), &keys).unwrap();
        assert_eq!(
            filed.checkpoints.iter().map(|filed| filed.checkpoint.size).collect::<Vec<_>>(),
            [3, 6, 2]
        );
        assert!(filed.problems.is_empty(), "{:?}", filed.problems);
    }

    #[test]
    fn checkpoint_of_an_unknown_key_is_reported_with_its_line() {
        let (data, (key, _)) = (tempfile::tempdir().unwrap(), key());
        let folder = CheckpointFolder::open(data.path()).unwrap();
        folder.append(&[note(&key, LogName::Ledger, 3)], today()).unwrap();
        let filed = FiledCheckpoints::read(folder.path(), &VerifierKeys::default()).unwrap();
        assert!(filed.checkpoints.is_empty());
        assert!(filed.problems[0].contains("2026-11-15.txt:1: signed by a key"), "{:?}", filed.problems);
    }
}
