//! Sample invoices for the tests of this crate.

use chancery_domain::{
    AccountId, AccountName, Buyer, ContactEmail, CreditAmount, Credited, Invoice, InvoiceAmounts,
    InvoiceKind, InvoiceNumber, InvoiceTerms, ModelUsage, Nanos, PostalAddress, Prices, Seller, TokenPrice,
    UnixMillis,
};

pub fn used(model: &str, (input, output): (i64, i64), input_tokens: u64, output_tokens: u64) -> ModelUsage {
    let price = TokenPrice::from_nanos_per_token;
    ModelUsage {
        model: model.to_owned(),
        prices: Prices { input: price(input), cached_input: price(input), output: price(output) },
        requests: 1,
        input_tokens,
        cached_input_tokens: 0,
        output_tokens,
        cost: Nanos(0),
    }
}

pub fn terms(currency: &str, tax: Option<&str>) -> InvoiceTerms {
    let seller = Seller {
        name: "Marlow & Finch".into(),
        letterhead: "48 Commercial Wharf\nBoston, MA 02110".into(),
        payment: "By bank transfer to Marlow & Finch LLP, First Harbor Bank, account 000 123 456.".into(),
    };
    let tax = tax.map(|rate| ("Sales tax".to_owned(), rate.parse().unwrap()));
    InvoiceTerms { currency: currency.parse().unwrap(), seller, tax, payment_days: 30 }
}

pub fn invoice(usage: &[ModelUsage], terms: &InvoiceTerms) -> Invoice {
    Invoice {
        number: InvoiceNumber { year: 2026, serial: 31 },
        kind: InvoiceKind::Invoice,
        month: "2026-10".parse().unwrap(),
        issued_at: "2026-11-02T09:12:00Z".parse().unwrap(),
        due: "2026-12-02".parse().unwrap(),
        seller: terms.seller.clone(),
        buyer: Buyer {
            account: AccountId(7),
            name: AccountName::from_stored("Brightwater Claims".into()),
            address: PostalAddress::from_stored("Rob Santangelo\n210 Pier Road\nSalem, MA 01970".into()),
            email: ContactEmail::from_stored("accounts@brightwater.example".into()),
        },
        bill: InvoiceAmounts::of(usage, terms).unwrap(),
    }
}

/// A typical invoice.
pub fn ordinary() -> Invoice {
    let usage = [
        used("smollm2-135m", (100, 400), 1_284_310, 96_204),
        used("qwen2.5-7b", (300, 900), 182_640_275, 24_118_906),
        used("llama-3.3-70b", (900, 2700), 96_402_118, 11_870_455),
    ];
    invoice(&usage, &terms("USD", Some("6.25")))
}

/// With a discount for cached input.
pub fn with_cached_input() -> Invoice {
    let mut usage = used("qwen2.5-7b", (300, 900), 182_640_275, 24_118_906);
    usage.prices.cached_input = TokenPrice::from_nanos_per_token(75);
    usage.cached_input_tokens = 100_000_000;
    invoice(&[usage], &terms("USD", Some("6.25")))
}

pub fn long(lines: u64) -> Invoice {
    let usage: Vec<ModelUsage> = (0..lines / 2)
        .map(|n| used(&format!("model-{n:03}"), (100 + n as i64, 400), 1_000_003 * (n + 1), 77_777 * n + 1))
        .collect();
    invoice(&usage, &terms("USD", Some("6.25")))
}

pub fn credit(of: &Invoice, amount: CreditAmount, reason: &str) -> Invoice {
    let (bill, _) = of.bill.credit_note(amount, Credited::default()).unwrap();
    Invoice {
        number: InvoiceNumber { year: 2026, serial: of.number.serial + 1 },
        kind: InvoiceKind::CreditNote { of: of.number, reason: reason.to_owned() },
        issued_at: UnixMillis(of.issued_at.0 + 86_400_000),
        bill,
        ..of.clone()
    }
}

/// Names that try to break the layout.
pub fn hostile() -> Invoice {
    let usage = [
        used(
            &"pneumonoultramicroscopicsilicovolcanoconiosis".repeat(3),
            (999_999, 1_000_000),
            9_000_000,
            8_000_000,
        ),
        used("mistralai/mixtral-8x22b-instruct-v0.1-long-context-preview", (100, 400), 1_284_310, 96_204),
        used("東京-モデル-7b", (100, 400), 12, 13),
        used("=SUM(A1:A9)", (100, 400), 1_000_000_000_000, 5),
    ];
    let mut terms = terms("CHF", Some("8.1"));
    terms.seller.name =
        "Łukasiewicz, Þórðarson, Παπαδόπουλος & Щербаков Rechtsanwaltsgesellschaft mbH & Co. KG".into();
    terms.seller.letterhead = "Große Bäckerstraße 14–16, Hinterhaus, dritter Aufgang, 20095 Hamburg\nTel. +49 40 000 00 00\nUSt-IdNr. DE000000000".into();
    terms.tax =
        Some(("Mehrwertsteuer nach dem Bundesgesetz über die Mehrwertsteuer".into(), "8.1".parse().unwrap()));
    let mut invoice = invoice(&usage, &terms);
    invoice.buyer.name = AccountName::from_stored("Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft 東京支店 \u{202e}gnp.exe".into());
    invoice.buyer.address = PostalAddress::from_stored("Ω Αθήνα 🏦 שלום\nStraße\twith tab\n\u{e000}\u{feff}\u{0}\n東京都千代田区丸の内一丁目東京都千代田区丸の内一丁目東京都千代田区丸の内一丁目".into());
    invoice
}

/// Figures of maximum length.
pub fn largest() -> Invoice {
    let usage = [
        used("tokens", (0, 0), i64::MAX as u64, 1),
        used("money", (3_000_000_000, 3_000_000_001), 1_000_000_001, 1_000_000_003),
        used("price", (9_000_000_000_000_007, 9_000_000_000_000_009), 7, 1),
    ];
    invoice(&usage, &terms("CHF", Some("99.9999")))
}
