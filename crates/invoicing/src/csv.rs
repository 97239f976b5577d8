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
