//! How callers learn what a long operation does. This crate writes to no terminal and no log.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Downloading,
    Checking,
    Copying,
}

impl Stage {
    /// For a progress bar or a log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Downloading => "downloading",
            Self::Checking => "checking",
            Self::Copying => "copying",
        }
    }
}

pub trait Progress {
    /// A stage begins. `None`: the server does not say how much there is.
    fn start(&self, stage: Stage, total_bytes: Option<u64>);
    /// Bytes of this stage that are done, including those of an earlier attempt. May decrease when a download starts again.
    fn set(&self, done_bytes: u64);
    /// The stage is over, with or without success.
    fn finish(&self);
    /// One line that people should see, such as why a source failed.
    fn message(&self, text: &str);
}

/// Reports nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&self, _stage: Stage, _total_bytes: Option<u64>) {}
    fn set(&self, _done_bytes: u64) {}
    fn finish(&self) {}
    fn message(&self, _text: &str) {}
}
