//! Compares the lines, sums and tax of a document with the expected ones.

use super::documents::name;
use chancery_domain::{
    Direction, Invoice, InvoiceAmounts, InvoiceLine, InvoiceState, InvoiceTerms, LineItem, MinorUnits,
    ModelUsage, Nanos, Prices, TokenPrice,
};
use chancery_store::{DbError, InvoiceRecord, VerifyStore};
use std::collections::BTreeMap;

/// Differences between the figures of an invoice and the ledger.
pub(super) async fn figure_differences(
    store: &VerifyStore,
    record: &InvoiceRecord,
) -> Result<Vec<String>, DbError> {
    let invoice = &record.invoice;
    let usage = store.issued_invoices.month_usage(invoice.buyer.account, invoice.month).await?;
    if record.state != InvoiceState::Void {
        return Ok(compare(invoice, bill_of(&usage, invoice), "ledger"));
    }
    let own = usage_of_lines(invoice);
    let mut findings = compare(invoice, bill_of(&own, invoice), "recomputed");
    findings.extend(excess_over_ledger(invoice, &usage));
    Ok(findings)
}

/// The lines of an invoice that have more tokens than were used at their price.
fn excess_over_ledger(invoice: &Invoice, usage: &[ModelUsage]) -> Vec<String> {
    let more = |line: &InvoiceLine| {
        let LineItem::Tokens { model, direction, tokens, price } = &line.item else { return None };
        // Usage that cannot be divided into lines has none.
        let used = |usage: &ModelUsage| {
            let parts = usage.tokens_by_direction().into_iter().flatten();
            let of_line = |part: &(Direction, TokenPrice, u64)| (part.0, part.1) == (*direction, *price);
            parts.filter(of_line).map(|(_, _, tokens)| tokens).fold(0, u64::saturating_add)
        };
        let in_ledger =
            usage.iter().filter(|usage| usage.model == *model).map(used).fold(0, u64::saturating_add);
        (*tokens > in_ledger).then(|| {
            let (name, line) = (name(invoice), line_name(line));
            format!("{name}, {line}: {tokens} tokens, ledger {in_ledger}")
        })
    };
    invoice.bill.lines.iter().filter_map(more).collect()
}

/// Differences between a document and its expected amounts.
pub(super) fn compare(
    invoice: &Invoice,
    expected: Result<InvoiceAmounts, String>,
    source: &str,
) -> Vec<String> {
    let (stated, name) = (&invoice.bill, name(invoice));
    let expected = match expected {
        Ok(expected) => expected,
        Err(error) => return vec![format!("{name}: cannot recompute: {error}")],
    };
    let key = |line: &InvoiceLine| match &line.item {
        LineItem::Tokens { model, direction, price, .. } => (model.clone(), Some((*direction, *price))),
        LineItem::Part => (String::new(), None),
    };
    // A document may contain duplicates of a line that should be unique.
    let mut lines: BTreeMap<_, (Vec<&InvoiceLine>, Vec<&InvoiceLine>)> = BTreeMap::new();
    stated.lines.iter().for_each(|line| lines.entry(key(line)).or_default().0.push(line));
    expected.lines.iter().for_each(|line| lines.entry(key(line)).or_default().1.push(line));
    let mut findings = Vec::new();
    for (stated, recomputed) in lines.values() {
        for position in 0..stated.len().max(recomputed.len()) {
            let (is, recomputed) = (stated.get(position), recomputed.get(position));
            if is == recomputed {
                continue;
            }
            let line = is.or(recomputed).map_or(String::new(), |line| line_name(line));
            let [is, recomputed] = [is, recomputed]
                .map(|line| line.map_or("nothing".to_owned(), |line| line_figures(line, invoice)));
            findings.push(format!("{name}, {line}: stated {is}, {source} {recomputed}"));
        }
    }
    if findings.is_empty() && stated.lines != expected.lines {
        findings.push(format!("{name}: lines are not sorted by model, direction and price"));
    }
    let amount = |amount: MinorUnits| stated.currency.to_decimal_string(amount);
    let tax = |bill: &InvoiceAmounts| bill.tax.as_ref().map_or("none".to_owned(), |tax| amount(tax.amount));
    let kind_of_tax = |bill: &InvoiceAmounts| {
        bill.tax.as_ref().map_or("none".to_owned(), |tax| format!("{}, {} %", tax.name, tax.rate))
    };
    for (what, is, should) in [
        ("currency", stated.currency.to_string(), expected.currency.to_string()),
        ("kind of tax", kind_of_tax(stated), kind_of_tax(&expected)),
        ("subtotal", amount(stated.subtotal), amount(expected.subtotal)),
        ("tax", tax(stated), tax(&expected)),
        ("total", amount(stated.total), amount(expected.total)),
        ("exact amount", stated.exact.to_string(), expected.exact.to_string()),
    ] {
        if is != should {
            findings.push(format!("{name}: {what} is {is}, {source} {should}"));
        }
    }
    findings
}

fn bill_of(usage: &[ModelUsage], invoice: &Invoice) -> Result<InvoiceAmounts, String> {
    InvoiceAmounts::of(usage, &terms_of(invoice)).map_err(|error| error.to_string())
}

/// The usage according to the invoice's lines.
fn usage_of_lines(invoice: &Invoice) -> Vec<ModelUsage> {
    let free = TokenPrice::from_nanos_per_token(0);
    let usage = |line: &InvoiceLine| {
        let LineItem::Tokens { model, direction, tokens, price } = &line.item else { return None };
        let (input, cached_input, output) = match direction {
            Direction::Input => (*price, *price, free),
            // Any other input price makes it a discount.
            Direction::CachedInput => (TokenPrice::from_nanos_per_token(i64::MAX), *price, free),
            Direction::Output => (free, free, *price),
        };
        let [input_tokens, cached_input_tokens, output_tokens] = match direction {
            Direction::Input => [*tokens, 0, 0],
            Direction::CachedInput => [*tokens, *tokens, 0],
            Direction::Output => [0, 0, *tokens],
        };
        Some(ModelUsage {
            model: model.clone(),
            prices: Prices { input, cached_input, output },
            requests: 0,
            input_tokens,
            cached_input_tokens,
            output_tokens,
            cost: Nanos(0),
        })
    };
    invoice.bill.lines.iter().filter_map(usage).collect()
}

/// The terms of an invoice, as far as they affect its figures.
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
            format!("{model} {} at {price} per million", direction.as_str())
        }
        LineItem::Part => "credited part".to_owned(),
    }
}

fn line_figures(line: &InvoiceLine, invoice: &Invoice) -> String {
    let amount = invoice.bill.currency.to_decimal_string(line.amount);
    match &line.item {
        LineItem::Tokens { tokens, .. } => format!("{tokens} tokens, exactly {}, {amount}", line.exact),
        LineItem::Part => format!("exactly {}, {amount}", line.exact),
    }
}
