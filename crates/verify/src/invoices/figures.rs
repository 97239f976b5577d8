//! How the lines, sums and tax of a document differ from what they should be.

use super::documents::name;
use chancery_domain::{
    Bill, Direction, Invoice, InvoiceLine, InvoiceState, InvoiceTerms, LineItem, MinorUnits, ModelUsage,
    Nanos, Prices, TokenPrice,
};
use chancery_store::{DbError, InvoiceRecord, VerifyStore};
use std::collections::BTreeMap;

/// How the figures of an invoice differ from the ledger.
pub(super) async fn figure_differences(
    store: &VerifyStore,
    record: &InvoiceRecord,
) -> Result<Vec<String>, DbError> {
    let invoice = &record.invoice;
    let usage = store.issued_invoices.month_usage(invoice.buyer.account, invoice.month).await?;
    if record.state != InvoiceState::Void {
        return Ok(compare(invoice, bill_of(&usage, invoice), "the ledger makes"));
    }
    let own = usage_of_lines(invoice);
    let mut findings = compare(invoice, bill_of(&own, invoice), "its tokens and prices make");
    findings.extend(more_than_the_ledger(invoice, &usage));
    Ok(findings)
}

/// The lines of an invoice that have more tokens than were used at their price.
fn more_than_the_ledger(invoice: &Invoice, usage: &[ModelUsage]) -> Vec<String> {
    let more = |line: &InvoiceLine| {
        let LineItem::Tokens { model, direction, tokens, price } = &line.item else { return None };
        let used = |usage: &ModelUsage| match direction {
            Direction::Input if usage.prices.input == *price => usage.input_tokens,
            Direction::Output if usage.prices.output == *price => usage.output_tokens,
            Direction::Input | Direction::Output => 0,
        };
        let in_ledger =
            usage.iter().filter(|usage| usage.model == *model).map(used).fold(0, u64::saturating_add);
        (*tokens > in_ledger).then(|| {
            let (name, line) = (name(invoice), line_name(line));
            format!("{name}, {line}: it says {tokens} tokens, and the ledger has {in_ledger}")
        })
    };
    invoice.bill.lines.iter().filter_map(more).collect()
}

/// How a document differs from what it should say.
pub(super) fn compare(invoice: &Invoice, expected: Result<Bill, String>, source: &str) -> Vec<String> {
    let (said, name) = (&invoice.bill, name(invoice));
    let expected = match expected {
        Ok(expected) => expected,
        Err(why) => return vec![format!("{name}: its figures cannot be made again: {why}")],
    };
    let key = |line: &InvoiceLine| match &line.item {
        LineItem::Tokens { model, direction, price, .. } => (model.clone(), Some((*direction, *price))),
        LineItem::Part => (String::new(), None),
    };
    // There may be several of what should be there once.
    let mut lines: BTreeMap<_, (Vec<&InvoiceLine>, Vec<&InvoiceLine>)> = BTreeMap::new();
    said.lines.iter().for_each(|line| lines.entry(key(line)).or_default().0.push(line));
    expected.lines.iter().for_each(|line| lines.entry(key(line)).or_default().1.push(line));
    let mut findings = Vec::new();
    for (said, made) in lines.values() {
        for place in 0..said.len().max(made.len()) {
            let (is, made) = (said.get(place), made.get(place));
            if is == made {
                continue;
            }
            let line = is.or(made).map_or(String::new(), |line| line_name(line));
            let [is, made] =
                [is, made].map(|line| line.map_or("nothing".to_owned(), |line| line_figures(line, invoice)));
            findings.push(format!("{name}, {line}: it says {is}, {source} {made}"));
        }
    }
    if findings.is_empty() && said.lines != expected.lines {
        findings.push(format!("{name}: its lines are not in the order of models, directions and prices"));
    }
    let amount = |amount: MinorUnits| said.currency.decimal(amount);
    let tax = |bill: &Bill| bill.tax.as_ref().map_or("none".to_owned(), |tax| amount(tax.amount));
    let kind_of_tax = |bill: &Bill| {
        bill.tax.as_ref().map_or("none".to_owned(), |tax| format!("{}, {} %", tax.name, tax.rate))
    };
    for (what, is, should) in [
        ("currency", said.currency.to_string(), expected.currency.to_string()),
        ("kind of tax", kind_of_tax(said), kind_of_tax(&expected)),
        ("subtotal", amount(said.subtotal), amount(expected.subtotal)),
        ("tax", tax(said), tax(&expected)),
        ("total", amount(said.total), amount(expected.total)),
        ("exact amount", said.exact.to_string(), expected.exact.to_string()),
    ] {
        if is != should {
            findings.push(format!("{name}: its {what} is {is}, {source} {should}"));
        }
    }
    findings
}

fn bill_of(usage: &[ModelUsage], invoice: &Invoice) -> Result<Bill, String> {
    Bill::of(usage, &terms_of(invoice)).map_err(|error| error.to_string())
}

/// What its lines say was used.
fn usage_of_lines(invoice: &Invoice) -> Vec<ModelUsage> {
    let free = TokenPrice::from_nanos_per_token(0);
    let usage = |line: &InvoiceLine| {
        let LineItem::Tokens { model, direction, tokens, price } = &line.item else { return None };
        let (prices, input_tokens, output_tokens) = match direction {
            Direction::Input => (Prices { input: *price, output: free }, *tokens, 0),
            Direction::Output => (Prices { input: free, output: *price }, 0, *tokens),
        };
        Some(ModelUsage {
            model: model.clone(),
            prices,
            requests: 0,
            input_tokens,
            output_tokens,
            cost: Nanos(0),
        })
    };
    invoice.bill.lines.iter().filter_map(usage).collect()
}

/// The terms that an invoice was made on, as far as its figures go.
fn terms_of(invoice: &Invoice) -> InvoiceTerms {
    InvoiceTerms {
        currency: invoice.bill.currency,
        seller: invoice.seller.clone(),
        tax: invoice.bill.tax.as_ref().map(|tax| (tax.name.clone(), tax.rate)),
        payment_days: 0,
    }
}

fn line_name(line: &InvoiceLine) -> String {
    match &line.item {
        LineItem::Tokens { model, direction, price, .. } => {
            format!("{model} {} at {price} a million", direction.as_str())
        }
        LineItem::Part => "the part that is credited".to_owned(),
    }
}

fn line_figures(line: &InvoiceLine, invoice: &Invoice) -> String {
    let amount = invoice.bill.currency.decimal(line.amount);
    match &line.item {
        LineItem::Tokens { tokens, .. } => format!("{tokens} tokens, exactly {}, {amount}", line.exact),
        LineItem::Part => format!("exactly {}, {amount}", line.exact),
    }
}
