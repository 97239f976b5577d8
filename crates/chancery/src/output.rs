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

/// Columns as wide as their widest cell; numbers (cells that start with a digit) to the right.
pub fn print_table(headings: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let is_number = |column: usize| {
        !rows.is_empty()
            && rows.iter().all(|row| {
                row[column].starts_with(|first: char| first.is_ascii_digit()) && !row[column].contains('-')
            })
    };
    let line = |cells: &[String]| {
        let cell = |(column, cell): (usize, &String)| {
            let padding = " ".repeat(widths[column] - cell.chars().count());
            if is_number(column) { format!("{padding}{cell}") } else { format!("{cell}{padding}") }
        };
        say!("{}", cells.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end());
    };
    line(&headings.iter().map(|heading| (*heading).to_owned()).collect::<Vec<_>>());
    rows.iter().for_each(|row| line(row));
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
