//! The hard cap on an account's monthly spending.

use crate::server::{Firm, Reply, client, eventually, request};
use std::time::Duration;

#[tokio::test]
async fn spending_cap_is_usable_in_full_and_never_exceeded() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let printed = firm.run(&["account", "limits", "Hale & Ward", "--spend-per-month", "0.000005"]);
    assert!(printed.contains("0.000005 USD per month"), "{printed}");
    assert_eq!(firm.json(&["account", "list", "--json"])[0]["spend_per_month"], "0.000005");
    let server = firm.start();

    // Three input tokens at 100 nano-units each, and output tokens at 400 each.
    let too_dear = server.generate(&key, &request("", "Say hello.", 12)).await;
    assert_eq!((too_dear.status, too_dear.code()), (402, "spending_cap_reached"));
    let reason = too_dear.body["error"]["reason"].as_str().unwrap();
    assert!(reason.contains("may cost 0.0000051") && reason.contains("-01T00:00:00.000Z"), "{reason}");

    let first = server.generate(&key, &request("Tell a long story.", "", 9)).await;
    let (input, output) = first.tokens();
    let left = 5_000 - (100 * input + 400 * output);
    assert!(left >= 700, "{left}");
    let rest = (left - 300) / 400;
    let second = server.generate(&key, &request("", "Say hello.", rest)).await;
    assert_eq!(second.status, 200, "{}", second.body);
    let spent = firm.json(&["usage", "--json"])["total"]["cost_nanos"].as_u64().unwrap();
    let third = server.generate(&key, &request("", "Say hello.", 1 + (5_000 - spent) / 400)).await;
    assert_eq!((third.status, third.code()), (402, "spending_cap_reached"));
    assert_eq!(firm.json(&["usage", "--json"])["total"]["requests"], 2);

    firm.run(&["account", "limits", "Hale & Ward", "--spend-per-month", "none"]);
    eventually("the cap is gone", Duration::from_secs(5), async || {
        server.generate(&key, &request("", "Say hello.", 12)).await.status == 200
    })
    .await;
    assert!(firm.run(&["verify"]).contains(": OK"));
}

#[tokio::test]
async fn racing_requests_never_exceed_the_spending_cap() {
    let firm = Firm::new().with("CHANCERY_LIMITS__DEFAULT_RPM", "1000");
    let key = firm.account_with_key("Hale & Ward");
    // Each may cost 300 + 8 * 400 = 3,500 nano-units.
    firm.run(&["account", "limits", "Hale & Ward", "--spend-per-month", "0.000020"]);
    let server = firm.start();
    let body = request("", "Say hello.", 8);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..30 {
        let call = client().post(format!("{}/v1/generate", server.api)).bearer_auth(&key).json(&body);
        calls.spawn(async move { Reply::read(call.send().await.unwrap()).await });
    }
    let replies = calls.join_all().await;
    let served = replies.iter().filter(|reply| reply.status == 200).count();
    assert!(replies.iter().all(|reply| reply.status == 200 || reply.code() == "spending_cap_reached"));
    let total = &firm.json(&["usage", "--json"])["total"];
    assert_eq!(total["requests"], served);
    assert!(served >= 5, "five fit at their worst: {served}");
    assert!(total["cost_nanos"].as_u64().unwrap() <= 20_000, "{total}");
}

#[test]
fn invalid_amount_is_rejected_with_an_example() {
    let firm = Firm::new();
    firm.run(&["account", "create", "Hale & Ward"]);
    for amount in ["-1", "1e3", "many", "1.0000000001", ""] {
        let argument = format!("--spend-per-month={amount}");
        let text = firm.fail(&["account", "limits", "Hale & Ward", &argument]);
        assert!(text.contains("12.50"), "{amount}: {text}");
    }
}
