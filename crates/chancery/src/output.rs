//! What commands print: aligned tables, JSON, errors with their causes, and progress on a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// `println!` for commands: a reader that has seen enough (`chancery key list | head`) is not an error, and neither it nor
/// a full disk is a panic.
macro_rules! say {
    ($($words:tt)*) => { $crate::output::line(format_args!($($words)*)) };
}
pub(crate) use say;

pub fn line(words: Arguments<'_>) {
    match writeln!(std::io::stdout(), "{words}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            // Standard error may be as closed as standard output.
            let _ = writeln!(std::io::stderr(), "chancery: standard output cannot be written: {error}");
            std::process::exit(1)
        }
        _ => {}
    }
}

/// Columns as wide as their widest cell; numbers (cells that start with a digit) to the right. `comfy-table` and `tabled` draw
/// borders, colours and wrapped cells; with all of that off, `format!` does what is left and `cut` and `grep` read the result.
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
    for line in [&headings].into_iter().chain(rows) {
        let cells = line.iter().zip(&columns).map(|(cell, (width, is_number))| match is_number {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        say!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    say!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// One line: the error and what caused it.
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // Some errors quote their cause themselves.
        if !text.contains(&cause) {
            let colon = if text.is_empty() { "" } else { ": " };
            text += &format!("{colon}{cause}");
        }
    }
    if let Some(advice) = crate::advice::of(error) {
        text += &format!("; {advice}");
    }
    text
}

/// Drawn on standard error when that is a terminal, and nowhere otherwise.
pub fn byte_progress(total_bytes: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}");
    ProgressBar::new(total_bytes)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(what)
}

/// For a known number of rows.
pub fn row_progress(total_rows: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {human_pos}/{human_len}");
    ProgressBar::new(total_rows)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(what)
}

/// For work whose end is not known beforehand.
pub fn counting_progress(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} {human_pos}");
    ProgressBar::new_spinner()
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
        .with_message(what)
}
