//! Command output: aligned tables, JSON, errors with their causes, and progress bars.

use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// `println!` for commands. A closed pipe (`chancery key list | head`) is not an error, and neither a closed pipe nor a full
/// disk causes a panic.
macro_rules! outln {
    ($($args:tt)*) => { $crate::output::print_line(format_args!($($args)*)) };
}
pub(crate) use outln;

pub fn print_line(line: Arguments<'_>) {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            // Standard error may be closed too.
            let _ = writeln!(std::io::stderr(), "chancery: cannot write to standard output: {error}");
            std::process::exit(1)
        }
        _ => {}
    }
}

/// Each column is as wide as its widest cell; numbers (cells that start with a digit) are right-aligned. `comfy-table` and
/// `tabled` add borders, colours and wrapping. With all of that off, `format!` is enough, and `cut` and `grep` can read the
/// output.
pub fn print_table(headings: &[&str], rows: &[Vec<String>]) {
    let is_number =
        |cell: &String| cell.starts_with(|first: char| first.is_ascii_digit()) && !cell.contains('-');
    let column = |(index, heading): (usize, &&str)| {
        let cells = || rows.iter().map(|row| &row[index]);
        let width = cells().map(|cell| cell.chars().count()).chain([heading.len()]).max().unwrap_or(0);
        (width, !rows.is_empty() && cells().all(is_number))
    };
    let columns: Vec<(usize, bool)> = headings.iter().enumerate().map(column).collect();
    let headings = headings.iter().map(|heading| (*heading).to_owned()).collect();
    for row in [&headings].into_iter().chain(rows) {
        let cells = row.iter().zip(&columns).map(|(cell, (width, is_number))| match is_number {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        outln!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    outln!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Formats the error and its causes as one line.
pub fn format_error(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // Some errors already include their cause.
        if !text.contains(&cause) {
            let colon = if text.is_empty() { "" } else { ": " };
            text += &format!("{colon}{cause}");
        }
    }
    if let Some(hint) = crate::hints::of(error) {
        text += &format!("; {hint}");
    }
    text
}

/// Drawn only if standard error is a terminal.
pub fn byte_progress(total_bytes: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}");
    ProgressBar::new(total_bytes)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(what)
}

/// The same where the size is not known.
pub fn unbounded_byte_progress(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} {bytes} {bytes_per_sec}");
    ProgressBar::new_spinner()
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
        .with_message(what)
}

/// For a known number of rows.
pub fn row_progress(total_rows: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {human_pos}/{human_len}");
    ProgressBar::new(total_rows)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(what)
}

/// For work of unknown length.
pub fn counting_progress(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} {human_pos}");
    ProgressBar::new_spinner()
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
        .with_message(what)
}
