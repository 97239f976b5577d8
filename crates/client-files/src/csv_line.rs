//! Writes one CSV line that is safe to open in a spreadsheet: no cell is interpreted as a formula (see `domain::escape_csv_formula`).

use chancery_domain::escape_csv_formula;
use std::borrow::Cow;
use std::io::{self, Write};

/// Lines end with CRLF, as RFC 4180 requires and spreadsheets write.
pub fn write_csv_line<'a>(out: &mut impl Write, cells: impl IntoIterator<Item = &'a str>) -> io::Result<()> {
    write_csv_cells(out, cells.into_iter().map(escape_csv_formula))
}

/// Writes cells unescaped, for lines with figures that may be negative. Pass user text through `escape_csv_formula` first.
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
    fn csv_cells_are_quoted_and_never_formulas() {
        let mut out = Vec::new();
        let cells = ["=1+1", "a,b", "say \"hi\"", "two\nlines", "", "plain", "a;=1", "a\t=1"];
        write_csv_line(&mut out, cells).unwrap();
        let text = String::from_utf8(out).unwrap();
        let quoted = "'=1+1,\"a,b\",\"say \"\"hi\"\"\",\"two\nlines\",,plain";
        assert_eq!(text, format!("{quoted},a;'=1,a\t'=1\r\n"));
    }
}
