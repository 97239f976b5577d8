//! A checkpoint: how many leaves a log has, and the root over them.

use chancery_domain::{LogName, TreeHash};
use signed_note::{Note, NoteError};

/// What a checkpoint says. Only `VerifierKeys::open` verifies who signed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub log: LogName,
    pub size: u64,
    pub root: TreeHash,
}

impl Checkpoint {
    /// Reads a signed note without verifying its signature, for a server that reads its own notes.
    pub fn parse_unverified(note: &str) -> Result<Self, CheckpointError> {
        let note = Note::from_bytes(note.as_bytes())?;
        Ok(Self::from_text(note.text())?.1)
    }

    /// The text of a note: its origin, and what it says.
    pub(crate) fn from_text(text: &[u8]) -> Result<(String, Self), CheckpointError> {
        let parsed = tlog_tiles::Checkpoint::from_bytes(text).map_err(|_| CheckpointError::Malformed)?;
        let origin = parsed.origin().to_owned();
        let log = origin.rsplit_once('/').and_then(|(_, log)| log.parse().ok());
        let log = log.ok_or(CheckpointError::OtherOrigin)?;
        Ok((origin, Self { log, size: parsed.size(), root: TreeHash(parsed.hash().0) }))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("not a signed checkpoint")]
    Malformed,
    #[error("signed by a key that is not known here")]
    UnknownKey,
    #[error("the signature is wrong")]
    WrongSignature,
    #[error("not a checkpoint of the ledger or the audit log, or signed under another name")]
    OtherOrigin,
}

impl From<NoteError> for CheckpointError {
    fn from(error: NoteError) -> Self {
        match error {
            NoteError::UnverifiedNote | NoteError::VerificationError(_) => Self::UnknownKey,
            NoteError::InvalidSignature { .. } | NoteError::MismatchedVerifier => Self::WrongSignature,
            NoteError::MalformedNote | NoteError::InvalidSigner | NoteError::SignatureError(_) => {
                Self::Malformed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeyError, SigningKey, VerifierKeys};
    use chancery_domain::SeededRandomness;

    fn key(seed: u64) -> SigningKey {
        SigningKey::generate("api.example.com", &SeededRandomness::new(seed)).unwrap()
    }

    fn verifier(key: &SigningKey) -> VerifierKeys {
        VerifierKeys::parse(&key.verifier_key_lines().join("\n")).unwrap()
    }

    #[test]
    fn signed_checkpoint_opens_with_its_key_alone() {
        let (other, key, root) = (key(2), key(1), TreeHash([7; 32]));
        for log in LogName::ALL {
            let note = key.sign(log, 42, root).unwrap();
            let lines: Vec<&str> = note.lines().collect();
            assert_eq!(lines[0], format!("api.example.com/{log}"));
            assert_eq!((lines[1], lines[3]), ("42", ""));
            assert!(lines[4].starts_with(&format!("— api.example.com/{log} ")), "{note}");
            assert_eq!(verifier(&key).open(&note).unwrap(), Checkpoint { log, size: 42, root });
            let by_other = verifier(&other).open(&note);
            assert!(matches!(by_other, Err(CheckpointError::UnknownKey)), "{by_other:?}");
        }
    }

    #[test]
    fn changed_checkpoint_is_rejected() {
        let key = key(1);
        let note = key.sign(LogName::Ledger, 42, TreeHash([7; 32])).unwrap();
        let open = |note: &str| verifier(&key).open(note);
        assert!(matches!(open(&note.replacen("42", "43", 1)), Err(CheckpointError::WrongSignature)));
        let as_audit = note.replacen("/ledger\n", "/audit\n", 1);
        assert!(matches!(open(&as_audit), Err(CheckpointError::WrongSignature)));
        assert!(matches!(open(note.trim_end()), Err(CheckpointError::Malformed)));
        assert!(matches!(open(""), Err(CheckpointError::Malformed)));
    }

    #[test]
    fn signing_key_round_trips_through_its_file() {
        let key = key(1);
        let line = key.to_secret_line();
        assert!(line.starts_with("PRIVATE+KEY+api.example.com+"));
        let read = SigningKey::parse(&format!("{line}\n")).unwrap();
        assert_eq!(read.verifier_key_lines(), key.verifier_key_lines());
        assert!(matches!(SigningKey::parse("PRIVATE+KEY+x"), Err(KeyError::InvalidSigningKey)));
        assert!(matches!(SigningKey::parse(&line[..line.len() - 4]), Err(KeyError::InvalidSigningKey)));
        let unnamed = SigningKey::generate("two words", &SeededRandomness::new(1));
        assert!(matches!(unnamed, Err(KeyError::InvalidName(_))));
    }

    #[test]
    fn error_names_the_line_of_an_invalid_verifier_key() {
        let [ledger, _] = key(1).verifier_key_lines();
        let error = VerifierKeys::parse(&format!("{ledger}\n\nnonsense\n")).err().unwrap();
        assert_eq!(error, KeyError::InvalidVerifierKey { line: 3 });
    }
}
