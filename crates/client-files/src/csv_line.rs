//! One line of a CSV file, safe to open in a spreadsheet: no cell is taken for a formula (`domain::csv_cell` has the rule).

use chancery_domain::csv_cell;
use std::borrow::Cow;
use std::io::{self, Write};

/// The ends of lines are those of RFC 4180, which spreadsheets write too.
pub fn write_csv_line<'a>(out: &mut impl Write, cells: impl IntoIterator<Item = &'a str>) -> io::Result<()> {
    write_csv_cells(out, cells.into_iter().map(csv_cell))
}

/// With cells as they are: for lines in which figures may be negative. Whatever people wrote goes through `csv_cell` first.
pub fn write_csv_cells<'a>(
    out: &mut impl Write,
    cells: impl IntoIterator<Item = Cow<'a, str>>,
) -> io::Result<()> {
    let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(out);
    for cell in cells {
        writer.write_field(cell.as_bytes())?;
    }
    writer.write_record(None::<&[u8]>)?;
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_they_must_be_and_never_formulas() {
        let mut out = Vec::new();
        write_csv_line(&mut out, ["=1+1", "a,b", "say \"hi\"", "two\nlines", "", "plain"]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "'=1+1,\"a,b\",\"say \"\"hi\"\"\",\"two\nlines\",,plain\r\n");
    }
}
