//! `POST /v1/tokens`.

use crate::server::{Firm, request};

#[tokio::test]
async fn token_count_is_exact_additive_free_and_quotes_the_maximum_billed() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let count = async |instructions: &str, input: &str| {
        let reply = server.post("/v1/tokens", &key, &request(instructions, input, 10)).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.body["input_tokens"].as_u64().unwrap()
    };
    let texts = [
        "Summarise.",
        "Répondez en français : ça va ?",
        "1,250.00 €",
        "  leading blanks",
        "日本語のメモ",
        "a\n\nb",
    ];
    for instructions in texts {
        for input in texts {
            let together = count(instructions, input).await;
            assert_eq!(
                together,
                count(instructions, "").await + count("", input).await,
                "{instructions:?} + {input:?}"
            );
        }
    }
    let billed = server.generate(&key, &request(texts[1], texts[2], 1)).await;
    assert_eq!(billed.tokens().0, count(texts[1], texts[2]).await);
    assert_eq!(firm.json(&["usage", "--json"])["total"]["requests"], 1);
    let reply = server
        .post("/v1/tokens", &key, &request("Answer in one short sentence.", "What is a ledger?", 100))
        .await;
    // 11 tokens at 0.10 and at most 100 at 0.40 per million.
    assert_eq!(reply.body["cost"]["input"], "0.0000011");
    assert_eq!(reply.body["cost"]["max_output"], "0.00004");
    assert_eq!(reply.body["cost"]["max_total"], "0.0000411");
    assert_eq!(reply.body["cost"]["currency"], "USD");
}
