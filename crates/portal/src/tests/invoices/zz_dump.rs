//! Throwaway.
use super::{done, form, page};
use crate::tests::firm::Firm;
use std::time::Duration;

#[tokio::test]
async fn dump_pages() {
    let Ok(folder) = std::env::var("IP_DUMP") else { return };
    let mut firm = Firm::open().await;
    let save = |name: &str, body: &str| {
        let body = body.replace(chancery_pages::STYLESHEET_PATH, "chancery.css");
        std::fs::write(format!("{folder}/{name}.html"), body).unwrap();
    };
    save("list-empty", &page(&mut firm, "/invoices").await);
    let bright = firm.payer("Brightwater Claims").await;
    let harbour = firm.payer("Harbour Lane Bakery & Daughters, Commercial Catering of New England").await;
    let calder = firm.payer("Calder & Sons").await;
    firm.bill_to(bright, "Rob Santangelo\n210 Pier Road, Salem, MA 01970", "accounts@brightwater.example")
        .await;
    for month in ["2026-08", "2026-09", "2026-10"] {
        for (model, tokens) in [
            ("smollm2-135m", (1_284_310, 96_204)),
            ("qwen2.5-7b", (182_640_275, 24_118_906)),
            ("llama-3.3-70b", (964_021_180, 118_704_550)),
        ] {
            firm.settle(bright, &format!("{month}-05"), model, tokens).await;
        }
        firm.settle(harbour, &format!("{month}-09"), "qwen2.5-7b", (18_264_027, 2_411_890)).await;
    }
    firm.settle(calder, "2026-10-09", "qwen2.5-7b", (1_826_402, 241_189)).await;
    firm.settle(bright, "2026-11-04", "qwen2.5-7b", (51_826_402, 1_241_189)).await;
    firm.settle(calder, "2026-11-04", "qwen2.5-7b", (826_402, 41_189)).await;
    save("list-drafts", &page(&mut firm, "/invoices").await);
    save("draft-ready", &page(&mut firm, &format!("/invoices/drafts/{}/2026-10", bright.account)).await);
    save("draft-no-address", &page(&mut firm, &format!("/invoices/drafts/{}/2026-10", calder.account)).await);
    save("draft-running", &page(&mut firm, &format!("/invoices/drafts/{}/2026-11", bright.account)).await);
    for month in ["2026-08", "2026-09"] {
        firm.issued(bright, month).await;
        firm.issued(harbour, month).await;
    }
    firm.ruth.browser.post("/invoices/2026-0001/paid", "").await;
    firm.desk.pass(Duration::from_secs(33 * 86_400));
    firm.ruth.browser = firm.ruth.elsewhere(&firm.desk).await;
    let (_, shown) = done(&mut firm, &format!("/invoices/drafts/{}/2026-10/issue", bright.account), "").await;
    save("invoice-issued", &shown);
    save("credit-form", &page(&mut firm, "/invoices/2026-0004/credit").await);
    let bad = firm
        .ruth
        .browser
        .post("/invoices/2026-0004/credit", &form(&[("credit", "part"), ("amount", "4,50")]))
        .await;
    save("credit-errors", &bad.body);
    let fields = [
        ("credit", "part"),
        ("amount", "0.50"),
        (
            "reason",
            "Two requests of 9 September were sent twice by our gateway; agreed with Grace on 2 December.",
        ),
    ];
    let look = firm
        .ruth
        .browser
        .post("/invoices/2026-0004/credit", &form(&[&fields[..], &[("look", "1")]].concat()))
        .await;
    save("credit-preview", &look.body);
    let (_, note) = done(&mut firm, "/invoices/2026-0004/credit", &form(&fields)).await;
    save("credit-note", &note);
    save("invoice-part-credited", &page(&mut firm, "/invoices/2026-0004").await);
    done(
        &mut firm,
        "/invoices/2026-0003/credit",
        &form(&[("credit", "whole"), ("reason", "Wrong address.")]),
    )
    .await;
    save("invoice-void", &page(&mut firm, "/invoices/2026-0003").await);
    save("invoice-paid", &page(&mut firm, "/invoices/2026-0001").await);
    save("list", &page(&mut firm, "/invoices").await);
    save("list-filtered", &page(&mut firm, "/invoices?state=issued&year=2026").await);
    save("list-nothing", &page(&mut firm, "/invoices?year=2025").await);
    save("list-of-drafts", &page(&mut firm, "/invoices?state=draft").await);
    let (_, pdf) = firm.ruth.browser.download("/invoices/2026-0005.pdf").await;
    std::fs::write(format!("{folder}/invoice.pdf"), pdf).unwrap();
}
