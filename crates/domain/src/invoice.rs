//! Invoices and credit notes: what is on the document, and how its figures come from what was used. Everything here can be
//! computed again from the ledger's rows of one account in one month.
//!
//! 1. Usage is parted into lines by model, direction and price. A line's exact amount is its tokens times its price.
//! 2. Each line is rounded once, to the currency's minor unit, halves to the even one.
//! 3. The subtotal is the sum of the rounded lines, the tax is the subtotal times the rate, rounded the same way, and the total is
//!    the two together.

use crate::{
    AccountId, AccountName, Bounds, ContactEmail, Currency, Day, Lines, MinorUnits, MoneyError, Month, Nanos,
    PersonRef, PostalAddress, Prices, TaxRate, TokenPrice, UnixMillis,
};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// How long after its end a month cannot be invoiced yet: longer than any request that was admitted in it generates. It closes only
/// when it is invoiced. What is recorded later still, after a database was away for so long, is refused from then on.
pub const ISSUE_GRACE_MIN: u32 = 60;

/// Why an invoice is credited, as the note says it.
pub const CREDIT_REASON: Bounds =
    Bounds { what: "the reason", min_chars: 1, max_chars: 300, lines: Lines::One };

/// The year in which the document was issued, and its place among those of that year. Places begin with 1 and have no gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InvoiceNumber {
    pub year: i16,
    pub serial: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an invoice's number is a year and a place in it, such as 2026-0031")]
pub struct InvoiceNumberError;

/// As `2026-0031`.
impl fmt::Display for InvoiceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:04}", self.year, self.serial)
    }
}

/// Only as it is written: a number has one address.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    Input,
    Output,
}

impl Direction {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
        }
    }
}

/// What one account has used of one model in a month, at one pair of prices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelUsage {
    pub model: String,
    pub prices: Prices,
    pub requests: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cost: Nanos,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceLine {
    pub item: LineItem,
    /// Negative on credit notes.
    pub exact: Nanos,
    /// The same, rounded.
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
    /// An amount that is credited, of whichever lines.
    Part,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tax {
    /// As the document calls it: "Sales tax", "VAT".
    pub name: String,
    pub rate: TaxRate,
    pub amount: MinorUnits,
}

/// The figures of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bill {
    pub currency: Currency,
    pub lines: Vec<InvoiceLine>,
    pub subtotal: MinorUnits,
    pub tax: Option<Tax>,
    pub total: MinorUnits,
    /// What the lines come to before any rounding.
    pub exact: Nanos,
}

/// What stands on every document of the firm, from its configuration. It is kept with each document as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seller {
    pub name: String,
    /// The firm's address, and whatever else is to stand below its name. A line each.
    pub letterhead: String,
    /// How to pay, as a sentence or two. Empty: nothing is said.
    pub payment: String,
}

/// Who is billed, as it was when the document was issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buyer {
    pub account: AccountId,
    pub name: AccountName,
    pub address: PostalAddress,
    pub email: ContactEmail,
}

/// How invoices are made, from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceTerms {
    pub currency: Currency,
    pub seller: Seller,
    /// Its name and rate.
    pub tax: Option<(String, TaxRate)>,
    /// How many days after the day of issue it is due.
    pub payment_days: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvoiceKind {
    Invoice,
    /// Takes back the invoice, or a part of it.
    CreditNote {
        of: InvoiceNumber,
        reason: String,
    },
}

/// A document as it was issued. It never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invoice {
    pub number: InvoiceNumber,
    pub kind: InvoiceKind,
    pub month: Month,
    pub issued_at: UnixMillis,
    pub due: Day,
    pub seller: Seller,
    pub buyer: Buyer,
    pub bill: Bill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InvoiceState {
    /// Not issued yet: its figures are what the ledger says at this moment.
    Draft,
    Issued,
    Paid,
    /// Credited as a whole. Its month may be invoiced again.
    Void,
}

impl InvoiceState {
    pub const ALL: [Self; 4] = [Self::Draft, Self::Issued, Self::Paid, Self::Void];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Issued => "issued",
            Self::Paid => "paid",
            Self::Void => "void",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the state of an invoice is draft, issued, paid or void")]
pub struct InvoiceStateError;

impl FromStr for InvoiceState {
    type Err = InvoiceStateError;

    fn from_str(text: &str) -> Result<Self, InvoiceStateError> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or(InvoiceStateError)
    }
}

/// What was done with an invoice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvoiceDeed {
    Issued,
    Paid,
    /// It was marked as paid by mistake.
    PaymentTakenBack,
    /// A part of it, by this note.
    Credited(InvoiceNumber),
    /// All that was left of it, by this note.
    Voided(InvoiceNumber),
}

/// One line of an invoice's timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceEvent {
    pub deed: InvoiceDeed,
    pub at: UnixMillis,
    /// None: the command line.
    pub by: Option<PersonRef>,
}

/// How much of an invoice is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditAmount {
    /// All that is left of it.
    Whole,
    /// So much of its subtotal; the tax on it is added.
    Part(MinorUnits),
}

/// What credit notes have taken back of an invoice so far. None of it is negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credited {
    pub subtotal: MinorUnits,
    pub total: MinorUnits,
}

impl Credited {
    /// What is left of a bill: of its subtotal and of its total.
    pub fn left_of(self, bill: &Bill) -> Result<Self, MoneyError> {
        Ok(Self {
            subtotal: bill.subtotal.checked_sub(self.subtotal)?,
            total: left_of_total(bill.total, self)?,
        })
    }
}

/// The total less what was credited, paid or not.
pub fn left_of_total(total: MinorUnits, credited: Credited) -> Result<MinorUnits, MoneyError> {
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
        (InvoiceKind::Invoice, InvoiceState::Issued) => left_of_total(total, credited),
        (InvoiceKind::CreditNote { .. }, _)
        | (_, InvoiceState::Draft | InvoiceState::Paid | InvoiceState::Void) => Ok(MinorUnits(0)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreditError {
    #[error("the amount to credit must be above zero")]
    NotPositive,
    #[error("the amount to credit is more than what is left of the invoice's subtotal")]
    MoreThanIsLeft,
    #[error(transparent)]
    Money(#[from] MoneyError),
}

impl Month {
    /// The first moment at which it can be invoiced.
    pub fn can_be_issued_from(self) -> UnixMillis {
        UnixMillis(self.next().first_day().start().0 + i64::from(ISSUE_GRACE_MIN) * 60_000)
    }
}

impl Bill {
    pub fn of(usage: &[ModelUsage], terms: &InvoiceTerms) -> Result<Self, MoneyError> {
        let lines = lines_of(usage, &terms.currency)?;
        let subtotal = MinorUnits::sum(lines.iter().map(|line| line.amount))?;
        let tax = match &terms.tax {
            None => None,
            Some((name, rate)) => Some(Tax { name: name.clone(), rate: *rate, amount: rate.of(subtotal)? }),
        };
        let total = subtotal.checked_add(tax.as_ref().map_or(MinorUnits(0), |tax| tax.amount))?;
        let exact = lines.iter().try_fold(Nanos(0), |sum, line| sum.checked_add(line.exact))?;
        Ok(Self { currency: terms.currency, lines, subtotal, tax, total, exact })
    }

    /// What a credit note over so much of this bill says, all of it negative, and what is credited with it. Taxes are
    /// rounded over everything that is credited so far, so that parts that make up the whole take back exactly the whole.
    pub fn credited(&self, amount: CreditAmount, before: Credited) -> Result<(Self, Credited), CreditError> {
        let left = self.subtotal.checked_sub(before.subtotal)?;
        let (net, lines) = match amount {
            CreditAmount::Whole if before == Credited::default() => {
                let negative = |line: &InvoiceLine| -> Result<InvoiceLine, MoneyError> {
                    let exact = line.exact.0.checked_neg().map(Nanos).ok_or(MoneyError::Overflow)?;
                    Ok(InvoiceLine { item: line.item.clone(), exact, amount: line.amount.checked_neg()? })
                };
                (left, self.lines.iter().map(negative).collect::<Result<Vec<_>, _>>()?)
            }
            CreditAmount::Whole => (left, vec![self.part(left)?]),
            CreditAmount::Part(MinorUnits(..=0)) => return Err(CreditError::NotPositive),
            CreditAmount::Part(net) if net > left => return Err(CreditError::MoreThanIsLeft),
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
        Ok(InvoiceLine { item: LineItem::Part, exact: self.currency.exactly(amount)?, amount })
    }
}

/// In the order of models, input before output, and of prices. What was not used has no line.
fn lines_of(usage: &[ModelUsage], currency: &Currency) -> Result<Vec<InvoiceLine>, MoneyError> {
    let mut tokens: BTreeMap<(&str, Direction, TokenPrice), u64> = BTreeMap::new();
    for ModelUsage { model, prices, input_tokens, output_tokens, .. } in usage {
        for (direction, price, count) in [
            (Direction::Input, prices.input, input_tokens),
            (Direction::Output, prices.output, output_tokens),
        ] {
            let sum = tokens.entry((model, direction, price)).or_default();
            *sum = sum.checked_add(*count).ok_or(MoneyError::Overflow)?;
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
            output: TokenPrice::from_nanos_per_token(output),
        }
    }

    fn used(model: &str, prices: Prices, input_tokens: u64, output_tokens: u64) -> ModelUsage {
        let cost = i64::try_from(input_tokens).unwrap() * prices.input.nanos_per_token()
            + i64::try_from(output_tokens).unwrap() * prices.output.nanos_per_token();
        ModelUsage {
            model: model.to_owned(),
            prices,
            requests: 1,
            input_tokens,
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
    fn a_number_is_read_only_as_it_is_written() {
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
        let bill = Bill::of(&usage, &terms(Some("6.25"))).unwrap();
        let amounts: Vec<i64> = bill.lines.iter().map(|line| line.amount.0).collect();
        assert_eq!(amounts, [8676, 3205, 5479, 2171, 13, 4]);
        assert_eq!(bill.exact, Nanos(195_478_145_200));
        assert_eq!((bill.subtotal, bill.total), (MinorUnits(19_548), MinorUnits(20_770)));
        assert_eq!(bill.tax.unwrap().amount, MinorUnits(1222));
    }

    #[test]
    fn a_price_that_changed_has_a_line_of_its_own_and_one_that_did_not_has_one_line() {
        let usage = [used("m", prices(100, 400), 10, 20), used("m", prices(100, 500), 30, 40)];
        let bill = Bill::of(&usage, &terms(None)).unwrap();
        let lines: Vec<(Direction, u64, i64)> = bill
            .lines
            .iter()
            .map(|line| match &line.item {
                LineItem::Tokens { direction, tokens, price, .. } => {
                    (*direction, *tokens, price.nanos_per_token())
                }
                LineItem::Part => panic!("{line:?}"),
            })
            .collect();
        assert_eq!(
            lines,
            [(Direction::Input, 40, 100), (Direction::Output, 20, 400), (Direction::Output, 40, 500)]
        );
    }

    #[test]
    fn more_than_is_left_is_not_credited() {
        let bill = Bill::of(&[used("m", prices(100, 400), 10_000_000, 1)], &terms(None)).unwrap();
        let credit = |amount, before| bill.credited(amount, before).map(|(_, credited)| credited);
        let part = |minor| CreditAmount::Part(MinorUnits(minor));
        assert_eq!(credit(part(0), Credited::default()), Err(CreditError::NotPositive));
        assert_eq!(credit(part(101), Credited::default()), Err(CreditError::MoreThanIsLeft));
        let before = credit(part(60), Credited::default()).unwrap();
        assert_eq!(credit(part(41), before), Err(CreditError::MoreThanIsLeft));
        assert_eq!(credit(part(40), before), credit(CreditAmount::Whole, before));
    }

    #[test]
    fn only_what_is_issued_and_not_paid_is_outstanding_and_a_sum_that_does_not_fit_is_an_error() {
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
    fn a_month_can_be_issued_an_hour_after_its_end() {
        let month = Month::of("2026-10-15".parse::<Day>().unwrap().start());
        assert_eq!(month.can_be_issued_from().to_iso(), "2026-11-01T01:00:00.000Z");
    }

    prop_compose! {
        fn any_usage()(model in "[abc]", input in 0_i64..5_000_000, more in 1_i64..5_000_000, tokens in prop::array::uniform2(0_u64..1_000_000)) -> ModelUsage {
            used(&model, prices(input, input + more), tokens[0], tokens[1])
        }
    }

    proptest! {
        #[test]
        fn a_bill_is_what_was_used_exactly_and_each_line_within_half_a_cent(usage in prop::collection::vec(any_usage(), 0..12)) {
            let bill = Bill::of(&usage, &terms(Some("7.7"))).unwrap();
            let cost: i64 = usage.iter().map(|usage| usage.cost.0).sum();
            prop_assert_eq!(bill.exact, Nanos(cost));
            for line in &bill.lines {
                let off = line.exact.0 - Currency::USD.exactly(line.amount).unwrap().0;
                prop_assert!(off.abs() * 2 <= 10_000_000);
            }
            prop_assert_eq!(bill.subtotal, MinorUnits::sum(bill.lines.iter().map(|line| line.amount)).unwrap());
        }

        #[test]
        fn parts_that_make_up_the_whole_take_back_exactly_the_whole(usage in any_usage(), parts in prop::collection::vec(1_i64..200_000, 0..6), rate in 0_u32..300_000) {
            let mut terms = terms(None);
            terms.tax = Some(("VAT".to_owned(), TaxRate::from_ppm(rate)));
            let bill = Bill::of(&[usage], &terms).unwrap();
            let (mut credited, mut notes) = (Credited::default(), MinorUnits(0));
            for part in parts {
                let Ok((note, after)) = bill.credited(CreditAmount::Part(MinorUnits(part)), credited) else { continue };
                notes = notes.checked_add(note.total).unwrap();
                credited = after;
            }
            let (note, all) = bill.credited(CreditAmount::Whole, credited).unwrap();
            notes = notes.checked_add(note.total).unwrap();
            prop_assert_eq!(all, Credited { subtotal: bill.subtotal, total: bill.total });
            prop_assert_eq!(notes, bill.total.checked_neg().unwrap());
        }
    }
}
