//! Shows the progress of downloads: a bar on a terminal, and a line for every tenth in a log.

use crate::output;
use chancery_model_files::{HumanBytes, Progress, Stage};
use indicatif::ProgressBar;
use std::cell::{Cell, RefCell};
use std::io::IsTerminal;

/// Writes to standard error.
pub struct DownloadProgress {
    is_terminal: bool,
    bar: RefCell<ProgressBar>,
    stage: Cell<Stage>,
    total_bytes: Cell<Option<u64>>,
    /// Tenths that have a line in the log.
    logged_tenths: Cell<u64>,
}

impl DownloadProgress {
    pub fn new() -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            bar: RefCell::new(ProgressBar::hidden()),
            stage: Cell::new(Stage::Checking),
            total_bytes: Cell::new(None),
            logged_tenths: Cell::new(0),
        }
    }

    /// Only downloads take long enough to be worth lines in a log.
    fn log(&self, done_bytes: u64) {
        let (Stage::Downloading, Some(total_bytes)) = (self.stage.get(), self.total_bytes.get()) else {
            return;
        };
        let tenths = done_bytes.saturating_mul(10) / total_bytes.max(1);
        if tenths > self.logged_tenths.get() {
            self.logged_tenths.set(tenths);
            eprintln!("downloading: {}0% of {}", tenths.min(10), HumanBytes(total_bytes));
        }
    }
}

impl Progress for DownloadProgress {
    fn start(&self, stage: Stage, total_bytes: Option<u64>) {
        self.stage.set(stage);
        self.total_bytes.set(total_bytes);
        *self.bar.borrow_mut() = match total_bytes {
            Some(total_bytes) => output::byte_progress(total_bytes, stage.name()),
            None => output::unbounded_byte_progress(stage.name()),
        };
    }

    fn set(&self, done_bytes: u64) {
        match self.is_terminal {
            true => self.bar.borrow().set_position(done_bytes),
            false => self.log(done_bytes),
        }
    }

    fn finish(&self) {
        self.bar.borrow().finish_and_clear();
    }

    fn message(&self, text: &str) {
        self.bar.borrow().suspend(|| eprintln!("{text}"));
    }
}
