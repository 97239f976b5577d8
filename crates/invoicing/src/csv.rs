//! The lines of an invoice as CSV.

use chancery_domain::{Invoice, LineItem, csv_cell};

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

/// What of a row is its own; the rest is the same on all.
#[derive(Default)]
struct Row {
    model: String,
    direction: &'static str,
    tokens: String,
    price_per_million: String,
    exact: String,
    amount: String,
    /// Which kind of row it is: `line`, `subtotal`, `tax`, `total`.
    row: &'static str,
}

/// One row for each line, then subtotal, tax and total. Cells are safe against formulas.
pub fn csv(invoice: &Invoice) -> String {
    let bill = &invoice.bill;
    let amount = |amount| bill.currency.decimal(amount);
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
    written(invoice, &rows)
}

fn written(invoice: &Invoice, rows: &[Row]) -> String {
    let (number, month) = (invoice.number.to_string(), invoice.month.to_string());
    let account = csv_cell(invoice.buyer.name.as_str());
    let currency = invoice.bill.currency;
    let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(Vec::new());
    let mut write = |cells: [&str; 11]| {
        // Into memory, and with as many cells in every row.
        writer.write_record(cells).is_ok()
    };
    write(COLUMNS);
    for row in rows {
        let Row { model, direction, tokens, price_per_million, exact, amount, row } = row;
        // Figures are never formulas, though negative ones begin like one.
        write([
            &number,
            &account,
            &month,
            &csv_cell(model),
            direction,
            tokens,
            price_per_million,
            exact,
            amount,
            currency.as_str(),
            row,
        ]);
    }
    writer.into_inner().ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use chancery_domain::CreditAmount;

    #[test]
    fn a_row_for_each_line_and_then_the_sums() {
        let text = csv(&samples::ordinary());
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
    fn a_name_is_no_formula_and_a_negative_amount_is_a_number() {
        let text = csv(&samples::credit(&samples::hostile(), CreditAmount::Whole, "x"));
        assert!(
            text.contains(",'=SUM(A1:A9),input,1000000000000,0.10,-100000.00,-100000.00,CHF,line"),
            "{text}"
        );
    }
}
