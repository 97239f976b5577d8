//! The lines of an invoice as CSV.

use chancery_domain::{Invoice, LineItem, escape_csv_formula};

const COLUMNS: [&str; 11] = [
    "number",
    "account",
    "month",
    "model",
    "direction",
    "tokens",
    "price_per_million",
    "exact",
    "amount",
    "currency",
    "row",
];

/// The cells that differ between rows.
#[derive(Default)]
struct Row {
    model: String,
    direction: &'static str,
    tokens: String,
    price_per_million: String,
    exact: String,
    amount: String,
    /// The type of row: `line`, `subtotal`, `tax`, `total`.
    row: &'static str,
}

/// Writes one row per line item, then subtotal, tax and total. Text cells are escaped against formula injection.
pub fn csv(invoice: &Invoice) -> Result<Vec<u8>, csv::Error> {
    let bill = &invoice.bill;
    let amount = |amount| bill.currency.to_decimal_string(amount);
    let line = |line: &chancery_domain::InvoiceLine| {
        let row =
            Row { exact: line.exact.to_string(), amount: amount(line.amount), row: "line", ..Row::default() };
        match &line.item {
            LineItem::Part => row,
            LineItem::Tokens { model, direction, tokens, price } => Row {
                model: model.clone(),
                direction: direction.as_str(),
                tokens: tokens.to_string(),
                price_per_million: price.to_string(),
                ..row
            },
        }
    };
    let mut rows: Vec<Row> = bill.lines.iter().map(line).collect();
    rows.push(Row {
        exact: bill.exact.to_string(),
        amount: amount(bill.subtotal),
        row: "subtotal",
        ..Row::default()
    });
    rows.extend(bill.tax.iter().map(|tax| Row {
        model: format!("{}, {} %", tax.name, tax.rate),
        amount: amount(tax.amount),
        row: "tax",
        ..Row::default()
    }));
    rows.push(Row { amount: amount(bill.total), row: "total", ..Row::default() });
    write_rows(invoice, &rows)
}

fn write_rows(invoice: &Invoice, rows: &[Row]) -> Result<Vec<u8>, csv::Error> {
    let (number, month) = (invoice.number.to_string(), invoice.month.to_string());
    let account = escape_csv_formula(invoice.buyer.name.as_str());
    let currency = invoice.bill.currency;
    let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(Vec::new());
    writer.write_record(COLUMNS)?;
    for row in rows {
        let Row { model, direction, tokens, price_per_million, exact, amount, row } = row;
        // Figures are not escaped: negative ones begin like a formula but are none.
        let cells: [&str; COLUMNS.len()] = [
            &number,
            &account,
            &month,
            &escape_csv_formula(model),
            direction,
            tokens,
            price_per_million,
            exact,
            amount,
            currency.as_str(),
            row,
        ];
        writer.write_record(cells)?;
    }
    writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use chancery_domain::{AccountName, CreditAmount};

    fn text(invoice: &Invoice) -> String {
        String::from_utf8(csv(invoice).unwrap()).unwrap()
    }

    #[test]
    fn csv_has_a_row_per_line_followed_by_the_totals() {
        let text = text(&samples::ordinary());
        let rows: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(rows.len(), 1 + 6 + 3 + 1, "{text}");
        assert_eq!(
            rows[0],
            "number,account,month,model,direction,tokens,price_per_million,exact,amount,currency,row"
        );
        assert_eq!(
            rows[3],
            "2026-0031,Brightwater Claims,2026-10,qwen2.5-7b,input,182640275,0.30,54.7920825,54.79,USD,line"
        );
        assert_eq!(rows[7], "2026-0031,Brightwater Claims,2026-10,,,,,195.4781452,195.48,USD,subtotal");
        assert_eq!(rows[8], "2026-0031,Brightwater Claims,2026-10,\"Sales tax, 6.25 %\",,,,,12.22,USD,tax");
        assert_eq!(rows[9], "2026-0031,Brightwater Claims,2026-10,,,,,,207.70,USD,total");
        assert_eq!(rows[10], "");
    }

    #[test]
    fn discounted_cached_input_has_a_row_between_input_and_output() {
        let text = text(&samples::with_cached_input());
        let rows: Vec<&str> = text.split("\r\n").collect();
        let prefix = "2026-0031,Brightwater Claims,2026-10,qwen2.5-7b";
        assert_eq!(rows[1], format!("{prefix},input,82640275,0.30,24.7920825,24.79,USD,line"));
        assert_eq!(rows[2], format!("{prefix},cached_input,100000000,0.075,7.50,7.50,USD,line"));
        assert_eq!(rows[3], format!("{prefix},output,24118906,0.90,21.7070154,21.71,USD,line"));
        assert_eq!(rows[4], "2026-0031,Brightwater Claims,2026-10,,,,,53.9990979,54.00,USD,subtotal");
    }

    #[test]
    fn csv_escapes_formulas_but_not_negative_amounts() {
        let text = text(&samples::credit(&samples::hostile(), CreditAmount::Full, "x"));
        assert!(
            text.contains(",'=SUM(A1:A9),input,1000000000000,0.10,-100000.00,-100000.00,CHF,line"),
            "{text}"
        );
    }

    #[test]
    fn csv_escapes_formulas_after_semicolon_and_tab() {
        let mut invoice = samples::ordinary();
        invoice.buyer.name = AccountName::from_stored("Mill;=1\t@2".to_owned());
        let text = text(&invoice);
        assert!(text.contains("2026-0031,Mill;'=1\t'@2,2026-10,"), "{text}");
    }
}
