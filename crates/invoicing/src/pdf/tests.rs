use super::*;
use crate::samples;
use chancery_domain::{CreditAmount, MinorUnits, ModelUsage, PostalAddress};
use proptest::prelude::*;

/// For looking at them: `CHANCERY_SHOW_PDF=FOLDER cargo test`.
fn made(name: &str, invoice: &Invoice) -> Vec<u8> {
    let bytes = pdf(invoice).unwrap();
    if let Ok(folder) = std::env::var("CHANCERY_SHOW_PDF") {
        std::fs::write(std::path::Path::new(&folder).join(format!("{name}.pdf")), &bytes).unwrap();
    }
    bytes
}

#[test]
fn show() {
    made("ordinary", &samples::ordinary());
    made("long", &samples::long(80));
    made("credit-whole", &samples::credit(&samples::ordinary(), CreditAmount::Whole, "Wrong prices."));
    made(
        "credit-part",
        &samples::credit(
            &samples::ordinary(),
            CreditAmount::Part(MinorUnits(5000)),
            "The outage of 14 October, as agreed with Mr Santangelo on the telephone.",
        ),
    );
    made("hostile", &samples::hostile());
    let yen = [samples::used("qwen2.5-7b", (45_000, 135_000), 182_640_275, 24_118_906)];
    made("yen", &samples::invoice(&yen, &samples::terms("JPY", Some("10"))));
    let mut tall = samples::long(30);
    tall.buyer.address = PostalAddress::from_stored("x\n".repeat(120));
    made("tall", &tall);
    let none: [ModelUsage; 0] = [];
    made("empty", &samples::invoice(&none, &samples::terms("USD", None)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn any_text_can_be_in_a_document(name in any::<String>(), address in any::<String>(), model in any::<String>()) {
        let mut invoice = samples::invoice(&[samples::used(&model, (1, 2), 3, 4)], &samples::terms("USD", None));
        invoice.seller.name = name;
        invoice.buyer.address = PostalAddress::from_stored(address);
        pdf(&invoice).unwrap();
    }
}
