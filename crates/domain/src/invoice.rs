//! Invoices and credit notes: what a document contains, and how its figures follow from usage. All of it can be recomputed from
//! one account's ledger rows of one month.
//!
//! 1. Usage is grouped into lines by model, direction and price. Cached input is a direction of its own where it has a
//!    discount. A line's exact amount is its tokens times its price.
//! 2. Each line is rounded once, to the currency's minor unit, half to even.
//! 3. The subtotal is the sum of the rounded lines. The tax is the subtotal times the rate, rounded the same way. The total is
//!    their sum.

use crate::{
    AccountId, AccountName, ContactEmail, Currency, Day, LineMode, MinorUnits, MoneyError, Month, Nanos,
    PersonRef, PostalAddress, Prices, TaxRate, TextBounds, TokenPrice, UnixMillis,
};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Minutes after the end of a month before it can be invoiced; longer than any request admitted in it can run. The month closes
/// only when it is invoiced: usage recorded later (after a long database outage) is rejected from then on.
pub const ISSUE_GRACE_MIN: u32 = 60;

/// The reason printed on a credit note.
pub const CREDIT_REASON_BOUNDS: TextBounds =
    TextBounds { what: "the reason", min_chars: 1, max_chars: 300, lines: LineMode::Single };

/// Year of issue and serial number within that year. Serials start at 1 and have no gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InvoiceNumber {
    pub year: i16,
    pub serial: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid invoice number; use a year and a number, such as 2026-0031")]
pub struct InvoiceNumberError;

/// As `2026-0031`.
impl fmt::Display for InvoiceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:04}", self.year, self.serial)
    }
}

/// Accepts only the canonical form, so that each number has one URL.
impl FromStr for InvoiceNumber {
    type Err = InvoiceNumberError;

    fn from_str(text: &str) -> Result<Self, InvoiceNumberError> {
        let (year, serial) = text.split_once('-').ok_or(InvoiceNumberError)?;
        let number = Self {
            year: year.parse().map_err(|_| InvoiceNumberError)?,
            serial: serial.parse().map_err(|_| InvoiceNumberError)?,
        };
        if number.serial > 0 && number.to_string() == text { Ok(number) } else { Err(InvoiceNumberError) }
    }
}

impl serde::Serialize for InvoiceNumber {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

closed_enum! {
    pub enum Direction {
        Input = "input",
        /// Input at the price of cached tokens, where that is a discount.
        CachedInput = "cached_input",
        Output = "output",
    }
}

impl Direction {
    /// As printed on documents.
    pub fn label(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::CachedInput => "cached input",
            Self::Output => "output",
        }
    }
}

/// One account's usage of one model in a month, at one set of prices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelUsage {
    pub model: String,
    pub prices: Prices,
    pub requests: u64,
    pub input_tokens: u64,
    /// A part of the input tokens.
    pub cached_input_tokens: u64,
    pub output_tokens: u64,
    pub cost: Nanos,
}

impl ModelUsage {
    /// The tokens of each direction, each counted once, with their price. Cached input without a discount is input like any
    /// other. Fails if more input is cached than there is.
    pub fn tokens_by_direction(&self) -> Result<[(Direction, TokenPrice, u64); 3], MoneyError> {
        let Prices { input, cached_input, output } = self.prices;
        let cached_tokens = match self.prices.cached_discount() {
            None => 0,
            Some(_) => self.cached_input_tokens,
        };
        let uncached_tokens = self.input_tokens.checked_sub(cached_tokens).ok_or(MoneyError::Overflow)?;
        Ok([
            (Direction::Input, input, uncached_tokens),
            (Direction::CachedInput, cached_input, cached_tokens),
            (Direction::Output, output, self.output_tokens),
        ])
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceLine {
    pub item: LineItem,
    /// Negative on credit notes.
    pub exact: Nanos,
    /// `exact`, rounded.
    pub amount: MinorUnits,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineItem {
    Tokens {
        model: String,
        direction: Direction,
        tokens: u64,
        price: TokenPrice,
    },
    /// A credited amount that is not tied to specific lines.
    Part,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tax {
    /// As printed on the document: "Sales tax", "VAT".
    pub name: String,
    pub rate: TaxRate,
    pub amount: MinorUnits,
}

/// The figures of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceAmounts {
    pub currency: Currency,
    pub lines: Vec<InvoiceLine>,
    pub subtotal: MinorUnits,
    pub tax: Option<Tax>,
    pub total: MinorUnits,
    /// The sum of the lines before rounding.
    pub exact: Nanos,
}

/// The seller's details from the configuration, stored with each document as they were at issue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seller {
    pub name: String,
    /// The firm's address and anything else to print below its name, line by line.
    pub letterhead: String,
    /// Payment instructions, a sentence or two. If empty, none are printed.
    pub payment: String,
}

/// Who is billed, as of the time of issue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buyer {
    pub account: AccountId,
    pub name: AccountName,
    pub address: PostalAddress,
    pub email: ContactEmail,
}

/// Invoice settings from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceTerms {
    pub currency: Currency,
    pub seller: Seller,
    /// Name and rate.
    pub tax: Option<(String, TaxRate)>,
    /// Days from the day of issue to the due date.
    pub payment_days: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvoiceKind {
    Invoice,
    /// Credits the invoice, or a part of it.
    CreditNote {
        of: InvoiceNumber,
        reason: String,
    },
}

/// An issued document. It never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invoice {
    pub number: InvoiceNumber,
    pub kind: InvoiceKind,
    pub month: Month,
    pub issued_at: UnixMillis,
    pub due: Day,
    pub seller: Seller,
    pub buyer: Buyer,
    pub bill: InvoiceAmounts,
}

closed_enum! {
    pub enum InvoiceState {
        /// Not issued yet: its figures are computed from the ledger as it is now.
        Draft = "draft",
        Issued = "issued",
        Paid = "paid",
        /// Fully credited. Its month may be invoiced again.
        Void = "void",
    }
    error InvoiceStateError = "must be draft, issued, paid or void";
}

/// A change to an invoice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvoiceEventKind {
    Issued,
    Paid,
    /// It was marked as paid by mistake.
    MarkedUnpaid,
    /// Partially credited by this credit note.
    Credited(InvoiceNumber),
    /// The rest was credited by this credit note.
    Voided(InvoiceNumber),
}

/// One entry of an invoice's timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceEvent {
    pub kind: InvoiceEventKind,
    pub at: UnixMillis,
    /// `None`: the command line.
    pub by: Option<PersonRef>,
}

/// How much of an invoice to credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditAmount {
    /// All that remains.
    Full,
    /// This much of the subtotal; its tax is added.
    Part(MinorUnits),
}

/// What credit notes have credited of an invoice so far. Neither amount is negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credited {
    pub subtotal: MinorUnits,
    pub total: MinorUnits,
}

impl Credited {
    /// The remaining subtotal and total of a bill.
    pub fn remaining_of(self, bill: &InvoiceAmounts) -> Result<Self, MoneyError> {
        Ok(Self {
            subtotal: bill.subtotal.checked_sub(self.subtotal)?,
            total: total_after_credits(bill.total, self)?,
        })
    }
}

/// The total less credits, whether or not it is paid.
pub fn total_after_credits(total: MinorUnits, credited: Credited) -> Result<MinorUnits, MoneyError> {
    total.checked_sub(credited.total)
}

/// What is still to be paid. Nothing is ever due on a credit note.
pub fn outstanding(
    kind: &InvoiceKind,
    state: InvoiceState,
    total: MinorUnits,
    credited: Credited,
) -> Result<MinorUnits, MoneyError> {
    match (kind, state) {
        (InvoiceKind::Invoice, InvoiceState::Issued) => total_after_credits(total, credited),
        (InvoiceKind::CreditNote { .. }, _)
        | (_, InvoiceState::Draft | InvoiceState::Paid | InvoiceState::Void) => Ok(MinorUnits(0)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreditError {
    #[error("the amount to credit must be above zero")]
    NotPositive,
    #[error("the amount to credit exceeds the rest of the invoice's subtotal")]
    ExceedsRemaining,
    #[error(transparent)]
    Money(#[from] MoneyError),
}

impl Month {
    /// The earliest time at which the month can be invoiced.
    pub fn invoiceable_from(self) -> UnixMillis {
        UnixMillis(self.next().first_day().start().0 + i64::from(ISSUE_GRACE_MIN) * 60_000)
    }
}

impl InvoiceAmounts {
    pub fn of(usage: &[ModelUsage], terms: &InvoiceTerms) -> Result<Self, MoneyError> {
        let lines = line_items(usage, &terms.currency)?;
        let subtotal = MinorUnits::sum(lines.iter().map(|line| line.amount))?;
        let tax = match &terms.tax {
            None => None,
            Some((name, rate)) => Some(Tax { name: name.clone(), rate: *rate, amount: rate.of(subtotal)? }),
        };
        let total = subtotal.checked_add(tax.as_ref().map_or(MinorUnits(0), |tax| tax.amount))?;
        let exact = lines.iter().try_fold(Nanos(0), |sum, line| sum.checked_add(line.exact))?;
        Ok(Self { currency: terms.currency, lines, subtotal, tax, total, exact })
    }

    /// Computes the bill of a credit note (all amounts negative) and the amounts credited including it. Tax is rounded on the
    /// cumulative credits, so that partial credits that add up to the whole credit exactly the whole.
    pub fn credit_note(
        &self,
        amount: CreditAmount,
        before: Credited,
    ) -> Result<(Self, Credited), CreditError> {
        let left = self.subtotal.checked_sub(before.subtotal)?;
        let (net, lines) = match amount {
            CreditAmount::Full if before == Credited::default() => {
                let negative = |line: &InvoiceLine| -> Result<InvoiceLine, MoneyError> {
                    let exact = line.exact.0.checked_neg().map(Nanos).ok_or(MoneyError::Overflow)?;
                    Ok(InvoiceLine { item: line.item.clone(), exact, amount: line.amount.checked_neg()? })
                };
                (left, self.lines.iter().map(negative).collect::<Result<Vec<_>, _>>()?)
            }
            CreditAmount::Full => (left, vec![self.part(left)?]),
            CreditAmount::Part(MinorUnits(..=0)) => return Err(CreditError::NotPositive),
            CreditAmount::Part(net) if net > left => return Err(CreditError::ExceedsRemaining),
            CreditAmount::Part(net) => (net, vec![self.part(net)?]),
        };
        let subtotal = before.subtotal.checked_add(net)?;
        let tax_so_far = match &self.tax {
            None => MinorUnits(0),
            Some(tax) => tax.rate.of(subtotal)?,
        };
        let total = subtotal.checked_add(tax_so_far)?;
        let this_total = total.checked_sub(before.total)?;
        let this_tax = this_total.checked_sub(net)?.checked_neg()?;
        let tax = self.tax.as_ref().map(|tax| Tax { amount: this_tax, ..tax.clone() });
        let exact = lines.iter().try_fold(Nanos(0), |sum, line| sum.checked_add(line.exact))?;
        let (net, this_total) = (net.checked_neg()?, this_total.checked_neg()?);
        let bill = Self { currency: self.currency, lines, subtotal: net, tax, total: this_total, exact };
        Ok((bill, Credited { subtotal, total }))
    }

    fn part(&self, net: MinorUnits) -> Result<InvoiceLine, MoneyError> {
        let amount = net.checked_neg()?;
        Ok(InvoiceLine { item: LineItem::Part, exact: self.currency.to_nanos(amount)?, amount })
    }
}

/// Sorted by model, then input, cached input and output, then price. Items without usage have no line.
fn line_items(usage: &[ModelUsage], currency: &Currency) -> Result<Vec<InvoiceLine>, MoneyError> {
    let mut tokens: BTreeMap<(&str, Direction, TokenPrice), u64> = BTreeMap::new();
    for usage in usage {
        for (direction, price, count) in usage.tokens_by_direction()? {
            let sum = tokens.entry((usage.model.as_str(), direction, price)).or_default();
            *sum = sum.checked_add(count).ok_or(MoneyError::Overflow)?;
        }
    }
    let used = tokens.into_iter().filter(|(_, tokens)| *tokens > 0);
    used.map(|((model, direction, price), tokens)| {
        let exact = Nanos(price.nanos_per_token()).checked_mul(tokens)?;
        let item = LineItem::Tokens { model: model.to_owned(), direction, tokens, price };
        Ok(InvoiceLine { item, exact, amount: currency.round(exact) })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prices(input: i64, output: i64) -> Prices {
        Prices {
            input: TokenPrice::from_nanos_per_token(input),
            cached_input: TokenPrice::from_nanos_per_token(input),
            output: TokenPrice::from_nanos_per_token(output),
        }
    }

    fn used(model: &str, prices: Prices, input_tokens: u64, output_tokens: u64) -> ModelUsage {
        used_with_cache(model, prices, [input_tokens, 0, output_tokens])
    }

    fn used_with_cache(model: &str, prices: Prices, tokens: [u64; 3]) -> ModelUsage {
        let [input_tokens, cached_input_tokens, output_tokens] = tokens;
        let cost = i64::try_from(input_tokens - cached_input_tokens).unwrap()
            * prices.input.nanos_per_token()
            + i64::try_from(cached_input_tokens).unwrap() * prices.cached_input.nanos_per_token()
            + i64::try_from(output_tokens).unwrap() * prices.output.nanos_per_token();
        ModelUsage {
            model: model.to_owned(),
            prices,
            requests: 1,
            input_tokens,
            cached_input_tokens,
            output_tokens,
            cost: Nanos(cost),
        }
    }

    fn terms(tax: Option<&str>) -> InvoiceTerms {
        let seller =
            Seller { name: "Marlow & Finch".into(), letterhead: String::new(), payment: String::new() };
        let tax = tax.map(|rate| ("Sales tax".to_owned(), rate.parse().unwrap()));
        InvoiceTerms { currency: Currency::USD, seller, tax, payment_days: 30 }
    }

    #[test]
    fn invoice_number_accepts_only_canonical_form() {
        for text in ["2026-0001", "2026-0031", "2026-12345"] {
            assert_eq!(text.parse::<InvoiceNumber>().unwrap().to_string(), text);
        }
        for text in ["", "2026", "2026-31", "2026-0000", "2026-00031", "26-0031", "2026-0031 ", "2026-+031"] {
            assert!(text.parse::<InvoiceNumber>().is_err(), "{text:?} was taken");
        }
    }

    /// The figures of the sample page.
    #[test]
    fn each_line_is_rounded_once_and_the_total_is_the_sum_of_the_lines() {
        let usage = [
            used("smollm2-135m", prices(100, 400), 1_284_310, 96_204),
            used("qwen2.5-7b", prices(300, 900), 182_640_275, 24_118_906),
            used("llama-3.3-70b", prices(900, 2700), 96_402_118, 11_870_455),
        ];
        let bill = InvoiceAmounts::of(&usage, &terms(Some("6.25"))).unwrap();
        let amounts: Vec<i64> = bill.lines.iter().map(|line| line.amount.0).collect();
        assert_eq!(amounts, [8676, 3205, 5479, 2171, 13, 4]);
        assert_eq!(bill.exact, Nanos(195_478_145_200));
        assert_eq!((bill.subtotal, bill.total), (MinorUnits(19_548), MinorUnits(20_770)));
        assert_eq!(bill.tax.unwrap().amount, MinorUnits(1222));
    }

    /// Direction, tokens and price of each line.
    fn token_lines(usage: &[ModelUsage]) -> Vec<(Direction, u64, i64)> {
        let bill = InvoiceAmounts::of(usage, &terms(None)).unwrap();
        bill.lines
            .iter()
            .map(|line| match &line.item {
                LineItem::Tokens { direction, tokens, price, .. } => {
                    (*direction, *tokens, price.nanos_per_token())
                }
                LineItem::Part => panic!("{line:?}"),
            })
            .collect()
    }

    #[test]
    fn lines_split_only_by_changed_price() {
        let usage = [used("m", prices(100, 400), 10, 20), used("m", prices(100, 500), 30, 40)];
        assert_eq!(
            token_lines(&usage),
            [(Direction::Input, 40, 100), (Direction::Output, 20, 400), (Direction::Output, 40, 500)]
        );
    }

    #[test]
    fn discounted_cached_input_has_its_own_line() {
        let discounted = prices(100, 400).with_cached_input(TokenPrice::from_nanos_per_token(25)).unwrap();
        let usage = [
            used_with_cache("m", discounted, [10, 4, 20]),
            used_with_cache("m", discounted, [5, 5, 0]),
            // Without a discount, cached tokens are billed as input.
            used_with_cache("m", prices(100, 400), [7, 7, 1]),
        ];
        assert_eq!(
            token_lines(&usage),
            [(Direction::Input, 13, 100), (Direction::CachedInput, 9, 25), (Direction::Output, 21, 400)]
        );
        let bill = InvoiceAmounts::of(&usage, &terms(None)).unwrap();
        assert_eq!(bill.exact, Nanos(usage.iter().map(|usage| usage.cost.0).sum()));
    }

    #[test]
    fn more_cached_than_input_tokens_cannot_be_invoiced() {
        let discounted = prices(100, 400).with_cached_input(TokenPrice::from_nanos_per_token(25)).unwrap();
        let usage = ModelUsage { cached_input_tokens: 11, ..used("m", discounted, 10, 20) };
        assert_eq!(InvoiceAmounts::of(&[usage], &terms(None)), Err(MoneyError::Overflow));
    }

    #[test]
    fn credit_cannot_exceed_remaining_amount() {
        let bill = InvoiceAmounts::of(&[used("m", prices(100, 400), 10_000_000, 1)], &terms(None)).unwrap();
        let credit = |amount, before| bill.credit_note(amount, before).map(|(_, credited)| credited);
        let part = |minor| CreditAmount::Part(MinorUnits(minor));
        assert_eq!(credit(part(0), Credited::default()), Err(CreditError::NotPositive));
        assert_eq!(credit(part(101), Credited::default()), Err(CreditError::ExceedsRemaining));
        let before = credit(part(60), Credited::default()).unwrap();
        assert_eq!(credit(part(41), before), Err(CreditError::ExceedsRemaining));
        assert_eq!(credit(part(40), before), credit(CreditAmount::Full, before));
    }

    #[test]
    fn only_issued_unpaid_invoices_are_outstanding() {
        let credited = Credited { subtotal: MinorUnits(500), total: MinorUnits(500) };
        let note = InvoiceKind::CreditNote { of: "2026-0001".parse().unwrap(), reason: "x".to_owned() };
        for state in InvoiceState::ALL {
            let of = |kind| outstanding(kind, state, MinorUnits(2000), credited);
            let expected = if state == InvoiceState::Issued { 1500 } else { 0 };
            assert_eq!((of(&InvoiceKind::Invoice), of(&note)), (Ok(MinorUnits(expected)), Ok(MinorUnits(0))));
        }
        let issued = |total| outstanding(&InvoiceKind::Invoice, InvoiceState::Issued, total, credited);
        assert_eq!(issued(MinorUnits(i64::MIN)), Err(MoneyError::Overflow));
    }

    #[test]
    fn month_is_invoiceable_one_hour_after_its_end() {
        let month = Month::containing("2026-10-15".parse::<Day>().unwrap().start());
        assert_eq!(month.invoiceable_from().to_iso(), "2026-11-01T01:00:00.000Z");
    }

    prop_compose! {
        fn any_usage()(model in "[abc]", input in 0_i64..5_000_000, cached in 0_i64..5_000_000, more in 1_i64..5_000_000, tokens in prop::array::uniform3(0_u64..1_000_000)) -> ModelUsage {
            let cached_input = TokenPrice::from_nanos_per_token(cached.min(input));
            let prices = prices(input, input + more).with_cached_input(cached_input).unwrap();
            used_with_cache(&model, prices, [tokens[0], tokens[1].min(tokens[0]), tokens[2]])
        }
    }

    proptest! {
        #[test]
        fn bill_equals_usage_and_lines_round_within_half_a_cent(usage in prop::collection::vec(any_usage(), 0..12)) {
            let bill = InvoiceAmounts::of(&usage, &terms(Some("7.7"))).unwrap();
            let cost: i64 = usage.iter().map(|usage| usage.cost.0).sum();
            prop_assert_eq!(bill.exact, Nanos(cost));
            for line in &bill.lines {
                let off = line.exact.0 - Currency::USD.to_nanos(line.amount).unwrap().0;
                prop_assert!(off.abs() * 2 <= 10_000_000);
            }
            prop_assert_eq!(bill.subtotal, MinorUnits::sum(bill.lines.iter().map(|line| line.amount)).unwrap());
        }

        #[test]
        fn partial_credits_sum_to_the_full_amount(usage in any_usage(), parts in prop::collection::vec(1_i64..200_000, 0..6), rate in 0_u32..300_000) {
            let mut terms = terms(None);
            terms.tax = Some(("VAT".to_owned(), TaxRate::from_ppm(rate)));
            let bill = InvoiceAmounts::of(&[usage], &terms).unwrap();
            let (mut credited, mut notes) = (Credited::default(), MinorUnits(0));
            for part in parts {
                let Ok((note, after)) = bill.credit_note(CreditAmount::Part(MinorUnits(part)), credited) else { continue };
                notes = notes.checked_add(note.total).unwrap();
                credited = after;
            }
            let (note, all) = bill.credit_note(CreditAmount::Full, credited).unwrap();
            notes = notes.checked_add(note.total).unwrap();
            prop_assert_eq!(all, Credited { subtotal: bill.subtotal, total: bill.total });
            prop_assert_eq!(notes, bill.total.checked_neg().unwrap());
        }
    }
}
