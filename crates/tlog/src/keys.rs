//! Keys of checkpoints, in the text format of signed notes (C2SP signed-note). One Ed25519 key signs both logs. Its name is the
//! site's, and each log has a name of its own below it, which is also the origin of its checkpoints.

use crate::checkpoint::{Checkpoint, CheckpointError};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chancery_domain::{LogName, Randomness, TreeHash};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use signed_note::{
    Note, Signer, StandardSigner, StandardVerifier, VerificationError, Verifier, Verifiers, key_id,
};
use tlog_tiles::Hash;

/// The type byte of Ed25519 keys in signed notes.
const ED25519: u8 = 1;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("expected one line `PRIVATE+KEY+NAME+ID+BASE64` with an Ed25519 key")]
    InvalidSigningKey,
    #[error("expected lines `NAME+ID+BASE64`, each with an Ed25519 public key; line {line} is not one")]
    InvalidVerifierKey { line: usize },
    #[error("the name `{0}` has a space or a plus sign, or is empty")]
    InvalidName(String),
}

/// Signs checkpoints. It has no `Debug`, so that it cannot be logged.
#[derive(Clone)]
pub struct SigningKey {
    name: String,
    seed: [u8; 32],
    public: [u8; 32],
    ledger: StandardSigner,
    audit: StandardSigner,
}

impl SigningKey {
    /// The name is the site's, such as `api.example.com`.
    pub fn generate(name: &str, randomness: &dyn Randomness) -> Result<Self, KeyError> {
        let mut seed = [0; 32];
        randomness.fill(&mut seed);
        Self::from_seed(name, seed)
    }

    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let text = text.trim_end_matches(['\r', '\n']);
        StandardSigner::new(text).map_err(|_| KeyError::InvalidSigningKey)?;
        let parts: Vec<&str> = text.splitn(5, '+').collect();
        let [_, _, name, _, encoded] = parts.as_slice() else { return Err(KeyError::InvalidSigningKey) };
        let key = STANDARD.decode(encoded).map_err(|_| KeyError::InvalidSigningKey)?;
        let seed: Option<[u8; 32]> = key.get(1..).and_then(|seed| seed.try_into().ok());
        let seed = seed.ok_or(KeyError::InvalidSigningKey)?;
        Self::from_seed(name, seed)
    }

    fn from_seed(name: &str, seed: [u8; 32]) -> Result<Self, KeyError> {
        if !signed_note::is_key_name_valid(name) {
            return Err(KeyError::InvalidName(name.to_owned()));
        }
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| KeyError::InvalidSigningKey)?;
        let public: &[u8] = pair.public_key().as_ref();
        let public: [u8; 32] = public.try_into().map_err(|_| KeyError::InvalidSigningKey)?;
        let signer = |log| {
            let line = signing_key_line(&origin(name, log), &seed, &public);
            StandardSigner::new(&line).map_err(|_| KeyError::InvalidSigningKey)
        };
        let (ledger, audit) = (signer(LogName::Ledger)?, signer(LogName::Audit)?);
        Ok(Self { name: name.to_owned(), seed, public, ledger, audit })
    }

    /// The secret, as it is stored.
    pub fn to_secret_line(&self) -> String {
        signing_key_line(&self.name, &self.seed, &self.public)
    }

    /// The public keys of both logs, one for each line. Anyone may have them.
    pub fn verifier_key_lines(&self) -> [String; 2] {
        LogName::ALL.map(|log| {
            let (name, key) = (origin(&self.name, log), with_type(&self.public));
            format!("{name}+{:08x}+{}", key_id(&name, &key), STANDARD.encode(&key))
        })
    }

    /// The signed checkpoint: three lines, a blank one, and the signature.
    pub fn sign(&self, log: LogName, size: u64, root: TreeHash) -> Result<String, CheckpointError> {
        let origin = origin(&self.name, log);
        let checkpoint = tlog_tiles::Checkpoint::new(&origin, size, Hash(root.0), "");
        let text = checkpoint.map_err(|_| CheckpointError::Malformed)?.to_bytes();
        let mut note = Note::new(&text, &[])?;
        let signer: &dyn Signer = match log {
            LogName::Ledger => &self.ledger,
            LogName::Audit => &self.audit,
        };
        note.add_sigs(&[signer])?;
        String::from_utf8(note.to_bytes()).map_err(|_| CheckpointError::Malformed)
    }
}

fn origin(name: &str, log: LogName) -> String {
    format!("{name}/{log}")
}

fn with_type(key: &[u8; 32]) -> Vec<u8> {
    [&[ED25519], key.as_slice()].concat()
}

fn signing_key_line(name: &str, seed: &[u8; 32], public: &[u8; 32]) -> String {
    let id = key_id(name, &with_type(public));
    format!("PRIVATE+KEY+{name}+{id:08x}+{}", STANDARD.encode(with_type(seed)))
}

/// The keys whose checkpoints are trusted.
#[derive(Clone, Default)]
pub struct VerifierKeys(Vec<StandardVerifier>);

impl VerifierKeys {
    /// One key for each line; blank lines are skipped.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut keys = Self::default();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let invalid = |_| KeyError::InvalidVerifierKey { line: index + 1 };
            keys.0.push(StandardVerifier::new(line.trim()).map_err(invalid)?);
        }
        Ok(keys)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads a checkpoint that one of these keys has signed under its origin.
    pub fn open(&self, note: &str) -> Result<Checkpoint, CheckpointError> {
        let note = Note::from_bytes(note.as_bytes())?;
        let (verified, _) = note.verify(self)?;
        let (origin, checkpoint) = Checkpoint::from_text(note.text())?;
        match verified.iter().any(|signature| signature.name() == origin) {
            true => Ok(checkpoint),
            false => Err(CheckpointError::OtherOrigin),
        }
    }
}

impl Verifiers for VerifierKeys {
    fn verifier(&self, name: &str, id: u32) -> Result<&dyn Verifier, VerificationError> {
        let found = self.0.iter().find(|key| key.name() == name && key.key_id() == id);
        match found {
            Some(key) => Ok(key),
            None => Err(VerificationError::UnknownKey { name: name.to_owned(), id }),
        }
    }
}
